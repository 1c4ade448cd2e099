"""Records that the log has no more, read on from the Delta table that a tiered landing has named: on a real node, over
tables as a landing, or anybody else, may have left them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvloop
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mirrorlog.client import Client
from mirrorlog.client.consumer import tier_table
from mirrorlog.client.consumer.records import ConsumedRecord
from mirrorlog.client.consumer.tier import TierOptions
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import (
    BadRequest,
    MissingDependency,
    OffsetOutOfRange,
    TierBroken,
    TierNotAllowed,
    TierUnreachable,
)
from tests.broker.hosting import KIB, running_all
from tests.broker.test_holds import settings_of

HOUR_MS = 3600 * 1000
COUNT = 2_000
"""Records of 1 KiB: eight segments."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table_of(records: Sequence[ConsumedRecord]) -> pa.Table:
    """As a raw landing writes them."""
    times = [record.append_time_us if record.timestamp is None else record.timestamp for record in records]
    utc = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "topic": pa.array([record.queue for record in records], pa.string()),
            "partition": pa.array([0] * len(records), pa.int32()),
            "offset": pa.array([record.queue_offset for record in records], pa.int64()),
            "timestamp": pa.array(times, utc),
            "timestampType": pa.array([int(record.timestamp is None) for record in records], pa.int32()),
            "headers": pa.array(
                [[{"key": name, "value": value} for name, value in record.headers] or None for record in records],
                HEADERS,
            ),
            "appendTime": pa.array([record.append_time_us for record in records], utc),
        }
    )


class Tiered:
    """A queue `q` whose records are in a log at first, then landed, and gone from the log up to `begin`."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client = client
        self.path = path
        self.records: list[ConsumedRecord] = []
        self.begin = 0
        self.application = ""

    async def publish(self) -> None:
        """Some with keys, headers, times, and some absent; in several batches."""
        await self.client.admin.declare("q", {"tier_keep_ms": 0})
        async with self.client.producer("q", batch_bytes=16 * KIB) as producer:
            for number in range(COUNT):
                await producer.send(
                    None if number % 50 == 7 else b"%06d" % number + bytes(KIB),
                    key=b"k%d" % number if number % 3 else None,
                    headers={"h": b"%d" % number, "absent": None} if number % 4 == 0 else None,
                    timestamp=1_700_000_000_000_000 + number if number % 5 == 0 else None,
                )
        async with self.client.consumer("q", start=0, until="confirmed") as consumer:
            self.records = [record async for record in consumer]
        assert len(self.records) == COUNT

    async def land(self, records: Sequence[ConsumedRecord], *, upto: int | None = None, **options: Any) -> None:
        """A commit of a landing; `upto`: the queue offset in its transaction id."""
        write_deltalake(
            self.path, table_of(records), mode="append", commit_properties=await self.properties(upto), **options
        )

    async def properties(self, upto: int | None, *, since: int | None = None) -> CommitProperties | None:
        """`since`: the first queue offset that was landed, where the landing says so."""
        if upto is None:
            return None
        metadata = await self.client.admin.metadata(["q"])
        self.application = f"mirrorlog:{metadata.cluster_id}:{metadata.queues[0].incarnation}"
        ids = [Transaction(self.application, upto)]
        if since is not None:
            ids.append(Transaction(f"{self.application}:begin", since))
        return CommitProperties(app_transactions=ids)

    async def hold(self, queue_offset: int = COUNT, **options: Any) -> None:
        """Of a landing that began with the queue, and has landed so far."""
        given = {
            "name": "lake",
            "location": str(self.path),
            "tiered": True,
            "holder": "x",
            "lease_ms": HOUR_MS,
            **options,
        }
        name = given.pop("name")
        await self.client.admin.set_hold("q", name, queue_offset=0, **given)
        await self.client.admin.set_hold("q", name, queue_offset=queue_offset, **given)

    async def let_go(self, least: int = 1) -> None:
        """Until the log begins there, and then no more of it. More is published meanwhile, as checkpoints want it, to
        another queue."""
        await self.client.admin.declare("other", {"retention_ms": 1})
        async with asyncio.timeout(20), self.client.producer("other") as producer:
            while (begin := (await self.client.admin.metadata(["q"])).queues[0].begin) < least:
                await producer.send(bytes(8 * KIB))
                await asyncio.sleep(0.01)
        brake = await self.client.admin.set_hold("q", "brake", holder="x", queue_offset=begin, lease_ms=HOUR_MS)
        self.begin = brake.begin

    async def read(self, start: Any = "earliest", until: Any = "confirmed", **options: Any) -> list[ConsumedRecord]:
        async with self.client.consumer("q", start=start, until=until, **options) as consumer:
            return [record async for record in consumer]


@asynccontextmanager
async def tiered(root: Path, **options: Any) -> AsyncIterator[Tiered]:
    settings = settings_of(root / "nodes")
    async with running_all(settings), Client(settings[0].client_bind, **options) as client:
        it = Tiered(client, root / "lake")
        await it.publish()
        yield it


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


async def landed(it: Tiered) -> None:
    """All of it, in commits of 300 records, and mostly gone from the log."""
    for first in range(0, COUNT, 300):
        some = it.records[first : first + 300]
        await it.land(some, upto=first + len(some))
    await it.hold()
    await it.let_go(1000)


# --- what a reader sees ---


@pytest.mark.long
def test_a_reader_crosses_the_border_without_noticing(tmp_path: Path) -> None:
    """Goal: the same records, byte for byte, wherever they are. Read all, from within the table, from the border, from
    within the log, up to some offset, with seeks over the border, in pieces, by two at once, as batches, as columns,
    and without await."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            assert 1000 <= it.begin < COUNT
            with pytest.raises(OffsetOutOfRange):
                await it.read(0, tiers=False)
            assert await it.read() == it.records
            assert [record.queue_offset for record in await it.read(tiers=False)] == list(range(it.begin, COUNT))
            for start, until in ((0, 10), (5, it.begin), (it.begin - 1, it.begin + 1), (it.begin, COUNT), (1, COUNT)):
                assert await it.read(start, until) == it.records[start:until]
            assert await asyncio.gather(it.read(), it.read(700)) == [it.records, it.records[700:]]
            async with it.client.consumer("q", start=it.begin + 10) as consumer:
                assert await consumer.read(3, timeout_ms=5000) == it.records[it.begin + 10 : it.begin + 13]
                await consumer.seek(17)
                assert await consumer.read(900, timeout_ms=5000) == it.records[17:917]
                assert consumer.served_by == str(it.path)
                await consumer.seek(it.begin - 1)
                assert await consumer.read(2, timeout_ms=5000) == it.records[it.begin - 1 : it.begin + 1]
                assert consumer.position.queue_offset == it.begin + 1
            async with it.client.consumer("q", until="confirmed", prefetch_bytes=1) as consumer:
                found = [batch async for batch in consumer.batches()]
            assert [batch.first for batch in found] == [0, *(batch.next for batch in found[:-1])]
            arrow = pa.Table.from_batches([batch.to_arrow() for batch in found])
            assert arrow.column("value").to_pylist() == [record.value for record in it.records]
            assert {batch.header.append_time_us for batch in found} == {each.append_time_us for each in it.records}

            def without_await() -> list[ConsumedRecord]:
                with (
                    SyncClient(*it.client.servers) as client,
                    client.consumer("q", start="earliest", until="confirmed") as consumer,
                ):
                    return list(consumer)

            assert await asyncio.to_thread(without_await) == it.records

    run(test)


def test_a_reader_begins_at_a_time_that_only_the_table_has(tmp_path: Path) -> None:
    """By append times of records in the table, before all of them, of the log's, and after all."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            for number in (0, 450, 900, it.begin + 50):
                time_us = it.records[number].append_time_us
                first = next(each.queue_offset for each in it.records if each.append_time_us >= time_us)
                found = await it.read(datetime.fromtimestamp(time_us / 1e6, UTC))
                assert abs(found[0].queue_offset - first) <= 1, "a datetime is a float's µs"
                assert found == it.records[found[0].queue_offset :]
            assert await it.read(datetime.now(UTC) - timedelta(days=1)) == it.records
            assert await it.read(datetime.now(UTC) + timedelta(days=1)) == []

    run(test)


def test_a_group_goes_on_where_it_stood_though_the_log_has_gone_on(tmp_path: Path) -> None:
    """Commit, let the log go, and read on."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            async with it.client.consumer("q", group="g") as consumer:
                await consumer.read(123, timeout_ms=5000)
                await consumer.commit()
            await landed(it)
            async with it.client.consumer("q", group="g", until="confirmed") as consumer:
                assert [record async for record in consumer] == it.records[123:]
                await consumer.commit()
            assert (await it.client.admin.position("q", "g")).queue_offset == COUNT  # type: ignore[union-attr]

    run(test)


# --- tables ---


@pytest.mark.parametrize("how", ["partitioned", "compacted", "many queues", "small windows", "old", "unordered"])
def test_a_table_may_be_laid_out_in_any_way(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: whatever becomes of a table, its records come in order. Rows over several partitions, files joined, rows of
    another queue with the same offsets, windows that are too large at first, no column appendTime, rows in no order."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            properties = await it.properties(COUNT)
            table = table_of(it.records)
            if how == "partitioned":
                shares = pa.array([number % 3 for number in range(COUNT)], pa.int32())
                table = table.append_column("part", shares)
                write_deltalake(it.path, table, partition_by=["part"], commit_properties=properties)
            elif how == "many queues":
                other = table.set_column(2, "topic", pa.array(["p"] * COUNT))
                write_deltalake(it.path, pa.concat_tables([other, table]), commit_properties=properties)
            elif how == "old":
                write_deltalake(it.path, table.drop(["appendTime"]), commit_properties=properties)
            elif how == "unordered":
                mixed = table.take(pa.array([(number * 7) % COUNT for number in range(1, COUNT + 1)]))
                assert COUNT % 7, "or not all are in it"
                write_deltalake(it.path, mixed, commit_properties=properties)
            else:
                for first in range(0, COUNT, 50):
                    write_deltalake(it.path, table[first : first + 50], mode="append", commit_properties=properties)
                    properties = None
            if how == "compacted":
                DeltaTable(it.path).optimize.compact()
            if how == "small windows":
                monkeypatch.setattr(tier_table, "WINDOW_BYTES", 4 * KIB)
            await it.hold()
            await it.let_go()
            found = await it.read()
            if how == "old":
                old = [each._replace(append_time_us=each.timestamp or each.append_time_us) for each in it.records]
                assert found[: it.begin] == old[: it.begin]
                assert found[it.begin :] == it.records[it.begin :]
            else:
                assert found == it.records

    run(test)


def test_a_table_that_begins_later_is_read_from_its_begin(tmp_path: Path) -> None:
    """A table without the first 100 records: `earliest` begins with what there is; who asks for what is nowhere is told
    so, and where the rest begins."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await it.land(it.records[100:], upto=COUNT)
            await it.hold()
            await it.let_go(200)
            assert await it.read() == it.records[100:]
            with pytest.raises(OffsetOutOfRange) as refusal:
                await it.read(99)
            assert refusal.value.details["begin"] == 100

    run(test)


def test_of_two_tables_the_one_that_has_it_serves(tmp_path: Path) -> None:
    """Two tiered landings; the one that is further on begins later, and the other's table is of older records."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await it.land(it.records[500:], upto=COUNT)
            await it.hold(name="new")
            first, it.path = it.path, tmp_path / "old lake"
            await it.land(it.records[:1500], upto=1500)
            await it.hold(1500, name="old")
            await it.let_go(1000)
            assert await it.read() == it.records
            assert first != it.path

    run(test)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("twice, far behind", "has queue offset 300 of queue 'q' more than once"),
        ("twice", "has queue offset 300 of queue 'q' more than once"),
        ("hole", "lacks 300 up to 310 of queue 'q'"),
        ("another queue", "has no transaction id of queue 'q' as it is now"),
        ("decoded", "has no column value"),
    ],
)
def test_a_table_that_is_not_what_it_should_be_is_never_read_over(
    tmp_path: Path, what: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an error, never silence. A row twice, rows missing, another incarnation's table, one without values; what
    is sound before that is read."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            if what == "twice, far behind":
                monkeypatch.setattr(tier_table, "_ROWS_MAX", 100)
                await it.land([*it.records, it.records[300]], upto=COUNT)
            elif what == "twice":
                await it.land([*it.records, it.records[300]], upto=COUNT)
            elif what == "hole":
                await it.land([*it.records[:300], *it.records[310:]], upto=COUNT)
            elif what == "another queue":
                await it.land(it.records)
            else:
                table = table_of(it.records).drop(["value"])
                write_deltalake(it.path, table, commit_properties=await it.properties(COUNT))
            await it.hold()
            await it.let_go(1000)
            with pytest.raises(TierBroken, match=message) as broken:
                await it.read(0)
            assert broken.value.details["location"] == str(it.path)
            if what == "hole":
                with pytest.raises(TierBroken, match="lacks 305 up to 310"):
                    await it.read(305)
                assert broken.value.details["go_on_at"] == 310
                assert await it.read(310) == it.records[310:]

    run(test)


def formerly(records: Sequence[ConsumedRecord]) -> list[ConsumedRecord]:
    """Records of a queue of the same name that was there before."""
    return [record._replace(value=b"former", append_time_us=record.append_time_us - 10**9) for record in records]


@pytest.mark.parametrize("layout", ["files", "one file"])
def test_rows_of_a_former_queue_are_not_served(tmp_path: Path, layout: str) -> None:
    """Goal: a queue that was made anew has its own records only. Method: its landing began at 100 and says so; below
    stand the former queue's rows, and beyond what is landed, in files of their own or joined with the others. Begin at
    the earliest, at a time, at offsets, and within what only the former queue had."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            beyond = [record._replace(queue_offset=record.queue_offset + COUNT) for record in it.records[:500]]
            former, own = formerly([*it.records[:100], *it.records[1900:], *beyond]), it.records[100:1900]
            properties = await it.properties(1900, since=100)
            if layout == "one file":
                write_deltalake(it.path, table_of([*former, *own]), commit_properties=properties)
            else:
                await it.land(former[:60])
                await it.land(former[60:])
                write_deltalake(it.path, table_of(own), mode="append", commit_properties=properties)
            await it.hold(1900)
            await it.let_go(1000)
            assert await it.read() == it.records[100:]
            assert await it.read(150) == it.records[150:]
            assert await it.read(datetime.now(UTC) - timedelta(days=1)) == it.records[100:]
            with pytest.raises(OffsetOutOfRange) as refusal:
                await it.read(50)
            assert refusal.value.details["begin"] == 100

    run(test)


def test_a_former_queues_row_among_the_present_ones_is_told(tmp_path: Path) -> None:
    """At an offset that the present queue has landed too: nobody can say which of them it is, and neither is served;
    what stands before it is."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await it.land(formerly(it.records[50:200]))
            properties = await it.properties(COUNT, since=100)
            write_deltalake(it.path, table_of(it.records[100:]), mode="append", commit_properties=properties)
            await it.hold()
            await it.let_go(1000)
            with pytest.raises(TierBroken, match="has queue offset 100 of queue 'q' more than once"):
                await it.read()
            assert await it.read(200) == it.records[200:]

    run(test)


# --- several tables ---


@pytest.mark.parametrize("how", ["hole", "gone"])
def test_what_one_table_lacks_in_the_middle_another_one_serves(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader is stopped only when nobody has what follows. Two tables; the one that is asked first lacks ten
    records, or its storage goes away, when it has served some; the other one has them, and not what comes last."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await it.land(it.records[:300], upto=300)
            await it.land(it.records[310:] if how == "hole" else it.records[300:], upto=COUNT)
            await it.hold(name="new")
            new, it.path = it.path, tmp_path / "old lake"
            await it.land(it.records[:1500], upto=1500)
            await it.hold(1500, name="old")
            await it.let_go(1000)
            if how == "gone":
                window = tier_table.TierTable._in_a_row

                def gone(table: tier_table.TierTable, at: int, until: int) -> Any:
                    if table.location == str(new) and at >= 300:
                        raise TierUnreachable("its storage is away", location=table.location)
                    for found in window(table, at, until):
                        yield found
                        return

                monkeypatch.setattr(tier_table.TierTable, "_in_a_row", gone)
            found = await it.read()
            assert found == it.records
            assert new != it.path

    run(test)


def test_a_table_of_which_nothing_is_landed_yet_stops_no_reader(tmp_path: Path) -> None:
    """Goal: a landing that has just registered, before its first commit, breaks nobody. Two landings: one's table has
    what is gone, the other's is not there. Read from the earliest, in a new group, and from an old time; then the
    second one says that it has landed something, and is believed."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            wanted = {"holder": "x", "lease_ms": HOUR_MS, "location": str(tmp_path / "none"), "tiered": True}
            await it.client.admin.set_hold("q", "new", queue_offset=it.begin, **wanted)
            assert await it.read() == it.records
            assert await it.read(group="g", start="committed") == it.records
            assert await it.read(datetime.now(UTC) - timedelta(days=1)) == it.records
            await it.client.admin.set_hold("q", "new", queue_offset=it.begin + 1, **wanted)
            with pytest.raises(TierUnreachable, match="none, which cannot be read"):
                await it.read()

    run(test)


# --- where it is ---


def test_a_table_that_is_not_there_is_told_and_can_be_placed(tmp_path: Path) -> None:
    """A location that is another one here: the error names it and what to do; a map of places finds it, a reader that
    wants no tables is not kept from the log."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            for first in range(0, COUNT, 500):
                await it.land(it.records[first : first + 500], upto=first + 500)
            await it.hold(location="file:///elsewhere/lake")
            await it.let_go()
            for start in ("earliest", 3):
                with pytest.raises(
                    TierUnreachable, match=r"in the table file:///elsewhere/lake, which cannot be read.*tiers="
                ):
                    await it.read(start)
            assert await it.read(tiers={"file:///elsewhere/": f"{tmp_path}/", "file:///": "/nowhere/"}) == it.records
            assert (await it.read(tiers=False))[0].queue_offset == it.begin

    run(test)


def test_a_reader_with_a_list_opens_no_table_elsewhere(tmp_path: Path) -> None:
    """Goal: the word of another user opens nothing with this program's rights. Method: the table lies where no list
    says; a reader with an empty list, those that list another place, one with a login by default, and one that lists
    the right one."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            for tiers in ([], [f"{tmp_path}/lak"], [f"{tmp_path}/lake/x"], {"s3://a": "/b"}):
                for start in ("earliest", 0):
                    with pytest.raises(TierNotAllowed, match="follows no location"):
                        await it.read(start, tiers=tiers)
            assert await it.read(0, tiers=[f"file://{tmp_path}"]) == it.records
            assert await it.read(0) == it.records
            async with Client(*it.client.servers, user="ann", password="a") as ann:
                reader = ann.consumer("q", start=0, until="confirmed")
                with pytest.raises(TierNotAllowed):
                    async with reader:
                        await reader.read(1, timeout_ms=5_000)
                async with ann.consumer("q", start=0, until="confirmed", tiers=True) as trusting:
                    assert [record async for record in trusting] == it.records

    run(test)


def test_without_the_packages_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if deltalake were not there."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            monkeypatch.setitem(__import__("sys").modules, "mirrorlog.client.consumer.tier_table", None)
            with pytest.raises(MissingDependency, match="pip install deltalake pyarrow"):
                await it.read(0)
            assert await it.read(it.begin) == it.records[it.begin :]

    run(test)


def test_a_table_that_was_compacted_under_a_reader_is_opened_anew(tmp_path: Path) -> None:
    """Read a little, compact and remove the old files, and read on."""

    async def test() -> None:
        async with tiered(tmp_path) as it:
            await landed(it)
            async with it.client.consumer("q", start=0, until="confirmed", prefetch_bytes=1) as consumer:
                found = await consumer.read(10, timeout_ms=5000)
                table = DeltaTable(it.path)
                table.optimize.compact()
                table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
                found += [record async for record in consumer]
            assert found == it.records

    run(test)


def test_places_and_options_are_what_they_say() -> None:
    """Of the places the longest that fits; schemes that only say that it is a file; what is no option is refused."""
    options = TierOptions.of({"s3://a/": "/x/", "s3://a/b/": "/y/"}, None)
    assert options.located("s3://a/b/t") == "/y/t"
    assert options.located("s3://a/c") == "/x/c"
    for location in ("/t", "file:/t", "file:///t", "delta:///t", "delta://file:///t", "delta://file:/t"):
        assert TierOptions.of(True, None).located(location) in ("/t", "file:///t")
    assert TierOptions.of(True, None).located("abfss://c@h/t") == "abfss://c@h/t"
    with pytest.raises(TierNotAllowed):
        TierOptions.of(["/t"], None).located("file:///t/../a")
    with pytest.raises(BadRequest, match="no place"):
        TierOptions.of(["t"], None)
    with pytest.raises(BadRequest, match="tiers 'yes'"):
        TierOptions.of("yes", None)
