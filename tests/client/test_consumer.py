"""The consumer on real nodes: what is read, where it begins and ends, and that nothing is skipped or read twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.client import Client, Consumer
from mirrorlog.errors import BadRequest, Closed, ConnectionLost, NoSuchQueue, OffsetOutOfRange
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import Position
from tests.process.clusters import MIB, eventually, fast_cluster, log_directory, log_of

pytestmark = pytest.mark.process

Queue = str


async def publish(client: Client, queue: Queue, *sizes: int) -> None:
    """Batches of so many records; the values count from 0."""
    number = 0
    async with client.producer(queue) as producer:
        for size in sizes:
            for _ in range(size):
                producer.send_nowait(b"%d" % number)
                number += 1
            await producer.flush()


async def numbers(consumer: Consumer) -> list[int]:
    return [int(record.value or b"") async for record in consumer]


async def test_a_record_comes_back_as_it_was_sent(client: Client, queue: Queue) -> None:
    """Absent is not empty, in every column; by sending each combination in one batch and in batches of their own."""
    sent: list[dict[str, Any]] = [
        {"value": b"v", "key": b"k", "headers": [("a", b"1"), ("a", None), ("ü", b"")], "timestamp": 5},
        {"value": None},
        {"value": b"", "key": b"", "headers": {}, "timestamp": datetime(2026, 1, 2, tzinfo=UTC)},
        {"value": b"last", "timestamp": -1},
    ]
    async with client.producer(queue) as producer:
        await asyncio.gather(*(producer.send(**record) for record in sent))
        for record in sent:
            await producer.send(**record)
    async with client.consumer(queue, until="confirmed") as consumer:
        got = [record async for record in consumer]
    expected = [
        (b"v", b"k", [("a", b"1"), ("a", None), ("ü", b"")], 5),
        (None, None, [], None),
        (b"", b"", [], 1_767_312_000_000_000),
        (b"last", None, [], -1),
    ]
    assert [(record.value, record.key, record.headers, record.timestamp) for record in got] == 2 * expected
    assert [record.queue_offset for record in got] == list(range(8))
    assert {record.queue for record in got} == {queue}
    assert [record.append_time_us for record in got] == sorted(record.append_time_us for record in got)


async def test_leaving_the_records_and_coming_back_skips_none(client: Client, queue: Queue) -> None:
    """The position is behind the last record given out; by leaving after every second one, within batches."""
    await publish(client, queue, 5, 1, 7)
    found: list[int] = []
    async with client.consumer(queue, until="confirmed") as consumer:
        while len(found) < 13:
            async for record in consumer:
                found.append(int(record.value or b""))
                assert consumer.position.queue_offset == len(found)
                if len(found) % 2 == 0:
                    break
    assert found == list(range(13))


async def test_leaving_the_batches_and_coming_back_skips_none(client: Client, queue: Queue) -> None:
    """A batch that was given out is passed, the next one is not; by leaving after each, then going on by record."""
    await publish(client, queue, 2, 3, 4)
    async with client.consumer(queue, until="confirmed") as consumer:
        async for batch in consumer.batches():
            assert (batch.first, batch.next) == (0, 2)
            break
        async for batch in consumer.batches():
            assert (batch.first, batch.next) == (2, 5)
            assert [int(record.value or b"") for record in batch.records()] == [2, 3, 4]
            break
        assert await numbers(consumer) == [5, 6, 7, 8]


async def test_giving_up_waiting_for_a_record_loses_none(client: Client, queue: Queue) -> None:
    """A cancelled wait leaves the consumer whole; by cancelling it on an empty queue and then publishing."""
    async with client.consumer(queue, max_wait_ms=5_000) as consumer:
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await publish(client, queue, 3)
        assert [int(record.value or b"") for record in await consumer.read(3, timeout_ms=10_000)] == [0, 1, 2]


async def test_a_read_that_is_cancelled_loses_none(client: Client, queue: Queue) -> None:
    """The position moves when records are returned; by cancelling a read that has found less than it waits for."""
    await publish(client, queue, 2, 1)
    async with client.consumer(queue, max_wait_ms=5_000) as consumer:
        reading = asyncio.ensure_future(consumer.read(10, timeout_ms=60_000))
        await asyncio.to_thread(eventually, lambda: consumer.cursor.fetched == 3, "all is fetched")
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert consumer.position.queue_offset == 0
        assert [record.queue_offset for record in await consumer.read(3, timeout_ms=10_000)] == [0, 1, 2]


async def test_an_error_behind_what_was_found_waits_for_the_next_read() -> None:
    """Nothing is skipped; by killing the node when part of what is asked for is here, and starting it again."""
    with fast_cluster(1, min_in_sync=1) as cluster:
        master = cluster.master
        async with Client(*cluster.servers, request_timeout_ms=300) as client:
            await client.admin.declare("q")
            await publish(client, "q", 3, 1)
            async with client.consumer("q", max_bytes=1, prefetch_bytes=0) as consumer:
                assert [record.queue_offset for record in await consumer.read(1, timeout_ms=10_000)] == [0]
                await asyncio.to_thread(master.kill)
                assert [record.queue_offset for record in await consumer.read(9, timeout_ms=30_000)] == [1, 2]
                with pytest.raises(ConnectionLost):
                    await consumer.read(9, timeout_ms=30_000)
                assert consumer.position.queue_offset == 3
                await asyncio.to_thread(master.start)
                assert [record.queue_offset for record in await consumer.read(1, timeout_ms=30_000)] == [3]


async def test_reads_of_one_consumer_at_once_share_its_records(client: Client, queue: Queue) -> None:
    """Each record goes to one of them; by four tasks that read until the end, and a seek under one that waits."""
    await publish(client, queue, *[3] * 10)

    async def read() -> list[int]:
        found: list[int] = []
        while records := await consumer.read(4, timeout_ms=10_000):
            found += [record.queue_offset for record in records]
        return found

    async with client.consumer(queue, until="confirmed", max_bytes=1) as consumer:
        parts = await asyncio.gather(*(read() for _ in range(4)))
        assert sorted(offset for part in parts for offset in part) == list(range(30))
    async with client.consumer(queue, start=28, max_wait_ms=5_000) as consumer:
        reading = asyncio.ensure_future(consumer.read(3, timeout_ms=60_000))
        await asyncio.to_thread(eventually, lambda: consumer.cursor.fetched == 30, "all is fetched")
        await consumer.seek(5)
        assert [record.queue_offset for record in await asyncio.wait_for(reading, 20)] == [5, 6, 7]


async def test_a_waiting_consumer_gets_a_record_when_it_is_confirmed(client: Client, queue: Queue) -> None:
    """It waits for new ones, and well below its longest wait; by publishing behind a waiting reader."""
    async with client.consumer(queue, max_wait_ms=60_000) as consumer:
        waiting = asyncio.ensure_future(anext(aiter(consumer)))
        await publish(client, queue, 1)
        assert (await asyncio.wait_for(waiting, 10)).value == b"0"


async def test_seek_holds_at_once_in_an_iteration_that_is_under_way(client: Client, queue: Queue) -> None:
    """Back and forth, within a batch and beyond what is held; by seeking inside the loop."""
    await publish(client, queue, 4, 4)
    jumps = {1: 6, 6: 3, 4: 0}
    found: list[int] = []
    async with client.consumer(queue, until="confirmed") as consumer:
        async for record in consumer:
            found.append(record.queue_offset)
            if (target := jumps.pop(record.queue_offset, None)) is not None:
                await consumer.seek(target)
    assert found == [0, 1, 6, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7]


async def test_read_gives_what_is_there_and_ends_in_time(client: Client, queue: Queue) -> None:
    """Batch jobs must end; by reading an empty queue, then less and more than there is."""
    async with client.consumer(queue) as consumer:
        assert await consumer.read(timeout_ms=20) == []
        await publish(client, queue, 5)
        assert [record.queue_offset for record in await consumer.read(2, timeout_ms=10_000)] == [0, 1]
        assert [record.queue_offset for record in await consumer.read(timeout_ms=10_000)] == [2, 3, 4]
        assert await consumer.read(1, timeout_ms=20) == []
        assert consumer.position.queue_offset == 5


async def test_until_ends_the_iteration_within_a_batch(client: Client, queue: Queue) -> None:
    """Exactly the records below it; by an offset in the middle of a batch, by records and by batches."""
    await publish(client, queue, 4, 4)
    async with client.consumer(queue, start=1, until=6) as consumer:
        assert await numbers(consumer) == [1, 2, 3, 4, 5]
    async with client.consumer(queue, start=1, until=6) as consumer:
        assert [(batch.first, batch.next) async for batch in consumer.batches()] == [(1, 4), (4, 6)]
        assert consumer.position.queue_offset == 6


async def test_until_confirmed_stands_where_it_was_at_the_start(client: Client, queue: Queue) -> None:
    """Records published meanwhile do not prolong the job; by publishing from within the loop."""
    await publish(client, queue, 2)
    seen = 0
    async with client.consumer(queue, until="confirmed") as consumer:
        async for _ in consumer:
            seen += 1
            await publish(client, queue, 1)
    assert seen == 2


@pytest.mark.parametrize(
    ("start", "first"), [("earliest", 0), ("latest", None), (3, 3), (5, None), (datetime(2020, 1, 1, tzinfo=UTC), 0)]
)
async def test_start_says_where_to_begin(client: Client, queue: Queue, start: Any, first: int | None) -> None:
    """By asking for the first record of each; None: there is none yet."""
    await publish(client, queue, 5)
    async with client.consumer(queue, start=start) as consumer:
        found = await consumer.read(1, timeout_ms=10_000 if first is not None else 20)
    assert [record.queue_offset for record in found] == ([] if first is None else [first])


async def test_a_time_starts_at_the_first_batch_appended_then_or_later(client: Client, queue: Queue) -> None:
    """Append times are the log's; by starting at the second batch's."""
    await publish(client, queue, 2, 2)
    async with client.consumer(queue, until="confirmed") as consumer:
        times = [batch.header.append_time_us async for batch in consumer.batches()]
    assert times[0] < times[1]
    assert await client.admin.find_offset(queue, times[1]) == 2
    assert await client.admin.find_offset(queue, times[1] + 1) == 4


async def test_a_group_goes_on_where_it_committed(client: Client, queue: Queue) -> None:
    """With a group the start is its position, else the earliest record; by two consumers one after the other."""
    await publish(client, queue, 5)
    async with client.consumer(queue, group="g") as consumer:
        async for record in consumer:
            if record.queue_offset == 2:
                await consumer.commit()
                break
    stored = await client.admin.position(queue, "g")
    assert stored is not None
    assert stored.queue_offset == 3
    async with client.consumer(queue, group="g", until="confirmed") as consumer:
        assert await numbers(consumer) == [3, 4]
    async with client.consumer(queue, group="g", start="earliest", until="confirmed") as consumer:
        assert await numbers(consumer) == [0, 1, 2, 3, 4]
    assert await client.admin.position(queue, "other") is None


async def test_a_position_starts_a_reader_and_one_of_another_log_is_refused(client: Client, queue: Queue) -> None:
    """Positions are compared within one log only; by a reader's own and one with another log's id."""
    await publish(client, queue, 3)
    async with client.consumer(queue) as consumer:
        await consumer.read(2, timeout_ms=10_000)
        position = consumer.position
    async with client.consumer(queue, start=position, until="confirmed") as consumer:
        assert await numbers(consumer) == [2]
    elsewhere = Position(log_id="00000000-0000-0000-0000-000000000000", epoch=1, queue_offset=0)
    with pytest.raises(BadRequest, match="position of log"):
        await client.consumer(queue, start=elsewhere).start()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "soon"}, "start 'soon'"),
        ({"start": -1}, "queue offset -1"),
        ({"start": 2**64}, "queue offset"),
        ({"start": "committed"}, "needs a group"),
        ({"until": "later"}, "until 'later'"),
        ({"until": -3}, "queue offset -3"),
        ({"read_from": "n9"}, "n9"),
        ({"max_bytes": 0}, "max_bytes 0"),
        ({"max_bytes": 2**40}, "max_bytes"),
        ({"max_wait_ms": -1}, "max_wait_ms -1"),
        ({"prefetch_bytes": -1}, "prefetch_bytes -1"),
        ({"prefetch_bytes": 2**40}, "prefetch_bytes"),
        *[
            ({name: value}, name)
            for name in ("max_bytes", "max_wait_ms", "prefetch_bytes")
            for value in (1.5, "9", True)
        ],
    ],
)
async def test_a_wrong_option_is_named(client: Client, queue: Queue, options: dict[str, Any], says: str) -> None:
    """Bad input is a BadRequest that says what; one option at a time."""
    with pytest.raises(BadRequest, match=says):
        await client.consumer(queue, **options).start()


async def test_a_consumer_that_was_not_started_says_so(client: Client, queue: Queue) -> None:
    """It would read from 0 whatever its start says; by each way to read, and by asking for its position."""
    await publish(client, queue, 1)
    consumer = client.consumer(queue, start="latest", until="confirmed")
    with pytest.raises(Closed, match="not started"):
        await numbers(consumer)
    with pytest.raises(Closed, match="not started"):
        await anext(consumer.batches())
    with pytest.raises(Closed, match="not started"):
        await consumer.read(1, timeout_ms=100)
    with pytest.raises(Closed, match="not started"):
        consumer.position  # noqa: B018


async def test_closing_ends_a_wait_for_records(client: Client, queue: Queue) -> None:
    """Nobody reads on behind a close, whatever was fetched already; by closing under a task that waits."""
    await publish(client, queue, 2, 2)
    consumer = await client.consumer(queue, start=4, max_wait_ms=60_000).start()
    waiting = asyncio.ensure_future(anext(aiter(consumer)))
    await asyncio.sleep(0)
    await consumer.close()
    with pytest.raises(Closed, match="closed"):
        await asyncio.wait_for(waiting, 20)
    consumer = await client.consumer(queue).start()
    await consumer.read(1, timeout_ms=10_000)
    await consumer.close()
    with pytest.raises(Closed, match="closed"):
        await consumer.read(1, timeout_ms=10_000)
    assert consumer.position.queue_offset == 1


async def test_closing_the_client_ends_its_readers_for_good(shared_cluster: Cluster, queue: Queue) -> None:
    """They get ConnectionLost at once and no connection is opened again, until the client is connected anew; by one
    that waits, one that has records fetched, one that is not started, and a question."""
    client = await Client(*shared_cluster.servers).connect()
    await publish(client, queue, 2, 2)
    idle = await client.consumer(queue, start=4, max_wait_ms=60_000).start()
    waiting = asyncio.ensure_future(anext(aiter(idle)))
    busy = await client.consumer(queue).start()
    await busy.read(1, timeout_ms=10_000)
    await client.close()
    async with asyncio.timeout(5):
        with pytest.raises(Closed, match="closed"):
            await waiting
        for reading in (idle.read, busy.read):
            with pytest.raises(Closed, match="client is closed"):
                await reading(1, timeout_ms=60_000)
        with pytest.raises(Closed, match="client is closed"):
            await client.consumer(queue).start()
        with pytest.raises(Closed, match="client is closed"):
            await client.admin.metadata()
    assert client._connections == {}
    async with client, client.consumer(queue, until="confirmed") as consumer:
        assert await numbers(consumer) == [0, 1, 2, 3]


async def test_a_reader_from_the_begin_starts_where_it_is_now() -> None:
    """Retention may move the begin between asking for it and reading there; by letting it move in between. Whoever
    named an offset is told that it is gone."""
    settings = {
        "log.kept_mapped_bytes": 0,
        "log.prepare_bytes": 0,
        "log.retention_bytes": 2 * MIB,
        "limits.max_batch_bytes": 256 * 1024,
        "limits.max_record_bytes": 128 * 1024,
    }
    with fast_cluster(1, segment_bytes=MIB, settings=settings) as cluster:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            starts: list[Any] = ["earliest", None, datetime(2020, 1, 1, tzinfo=UTC)]
            readers = [await client.consumer("q", start=each, group=f"g{each}").start() for each in starts]
            named = [await client.consumer("q", start=start).start() for start in (0, readers[0].position)]
            async with client.producer("q") as producer:
                await producer.send_many([bytes(1024)] * 6 * 1024)

            def begin() -> int:
                return log_of(cluster.master).queues[0].begin

            await asyncio.to_thread(eventually, begin, "the begin has moved")
            for reader in readers:
                (record,) = await reader.read(1, timeout_ms=10_000)
                assert 0 < record.queue_offset <= await asyncio.to_thread(begin)
                assert reader.position.queue_offset == record.queue_offset + 1
            for reader in named:
                with pytest.raises(OffsetOutOfRange):
                    await reader.read(1, timeout_ms=10_000)


@pytest.mark.long
async def test_what_a_mirror_that_began_late_lacks_is_read_elsewhere() -> None:
    """It is not freed for that; by a mirror that begins at the last segment, is asked first and names its own begin.
    Whoever insists on that one is told so, and has from `earliest` what it has. What is freed indeed is passed over,
    and no more; by a reader that has started before."""
    settings = {
        "log.retention_bytes": 4 * MIB,
        "log.kept_mapped_bytes": 0,
        "log.prepare_bytes": 0,
        "limits.max_batch_bytes": 256 * 1024,
        "limits.max_record_bytes": 128 * 1024,
    }
    with fast_cluster(3, segment_bytes=MIB, settings=settings, min_in_sync=2) as cluster:
        master = cluster.master
        cluster.wait_in_sync()
        late, other = cluster.mirrors
        async with Client(master.client, request_timeout_ms=2_000) as client:
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                await producer.send_many([bytes(1024)] * 3 * 1024)
            cluster.wait_confirmed()
            late.stop()
            shutil.rmtree(late.data_dir / "logs")
            late.start("--set", "ha.start=last-segment")
            await asyncio.to_thread(eventually, lambda: log_of(late).begin > MIB, "it begins late")
            end = log_of(master).confirmed
            await asyncio.to_thread(eventually, lambda: log_of(late).confirmed >= end, "it follows")
            starts: list[Any] = ["earliest", datetime(2020, 1, 1, tzinfo=UTC), 5]
            for start in starts:
                async with client.consumer("q", start=start, read_from="mirror") as consumer:
                    (record,) = await consumer.read(1, timeout_ms=20_000)
                    assert record.queue_offset == (5 if start == 5 else 0)
                    assert consumer.served_by == other.id
            for start in starts[1:]:
                async with client.consumer("q", start=start, read_from=late.id) as consumer:
                    with pytest.raises(OffsetOutOfRange, match=f"{late.id} at"):
                        await consumer.read(1, timeout_ms=20_000)
            async with client.consumer("q", start="earliest", read_from=late.id) as consumer:
                (record,) = await consumer.read(1, timeout_ms=20_000)
                assert record.queue_offset > 0

            def begin() -> int:
                return log_of(master).queues[0].begin

            async with client.consumer("q", read_from="mirror") as consumer, client.producer("q") as producer:
                assert consumer.position.queue_offset == 0
                await producer.send_many([bytes(1024)] * 2 * 1024)
                await asyncio.to_thread(eventually, begin, "the begin has moved")
                (record,) = await consumer.read(1, timeout_ms=20_000)
                assert 0 < record.queue_offset <= begin()
                if begin() < log_of(late).queues[0].begin:  # else it lacks nothing any more
                    assert consumer.served_by == other.id
            master.kill()
            other.kill()
            async with (
                Client(late.client, request_timeout_ms=2_000, allow_stale_reads=True) as alone,
                alone.consumer("q", start=5, read_from=late.id) as consumer,
            ):
                with pytest.raises(OffsetOutOfRange, match=f"whether {late.id} lacks it"):
                    await consumer.read(1, timeout_ms=20_000)


async def test_errors_of_the_place_surface(client: Client, queue: Queue, new_name: Callable[[], str]) -> None:
    """No such queue, nothing at that offset, no group to commit for; by asking for each."""
    with pytest.raises(NoSuchQueue, match="mqtool declare"):
        await client.consumer(new_name()).start()
    await publish(client, queue, 2)
    async with client.consumer(queue, start=7) as consumer:
        with pytest.raises(OffsetOutOfRange):
            await consumer.read(1, timeout_ms=10_000)
        with pytest.raises(BadRequest, match="without a group"):
            await consumer.commit()
        await consumer.seek(1)
        assert [record.value for record in await consumer.read(1, timeout_ms=10_000)] == [b"1"]


async def test_a_job_sees_all_that_was_confirmed_whatever_node_the_client_knows(
    client: Client, shared_cluster: Cluster, new_name: Callable[[], str]
) -> None:
    """A mirror learns of a confirm later than its producer; by clients that know one mirror only, again and again."""
    for _ in range(20):
        name = (await client.admin.declare(new_name())).name
        await publish(client, name, 3)
        async with (
            Client(shared_cluster.mirrors[0].client) as other,
            other.consumer(name, until="confirmed") as consumer,
        ):
            assert await numbers(consumer) == [0, 1, 2]


@pytest.mark.long
async def test_a_mirror_serves_readers_while_the_master_is_down() -> None:
    """Records, a group's position and a time's offset, from what is confirmed; by stopping the master."""
    with fast_cluster(3) as cluster:
        master = cluster.master
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            await publish(client, "q", 3, 3)
            async with client.consumer("q", group="g") as consumer:
                await consumer.read(2, timeout_ms=10_000)
                await consumer.commit()
        cluster.wait_confirmed()
        await asyncio.to_thread(master.stop)
        async with Client(*cluster.servers) as client:
            async with client.consumer("q", group="g", until="confirmed", read_from="mirror") as consumer:
                assert await numbers(consumer) == [2, 3, 4, 5]
                assert consumer.served_by in ("n2", "n3")
            start = datetime(2020, 1, 1, tzinfo=UTC)
            async with client.consumer("q", start=start, until="confirmed", read_from="n3") as consumer:
                assert await numbers(consumer) == [0, 1, 2, 3, 4, 5]
                assert consumer.served_by == "n3"
        async with Client(*cluster.servers) as client, client.consumer("q", start=0, until=6) as consumer:
            assert await numbers(consumer) == [0, 1, 2, 3, 4, 5], "by the next master"


async def test_readers_are_served_while_the_former_masters_log_is_corrupt() -> None:
    """Its node answers, and another copy has the records: by flipping a byte of its log, which repairs itself from the
    next master."""
    with fast_cluster(2, min_in_sync=1) as cluster:
        master = cluster.master
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            await publish(client, "q", 3, 3)
        cluster.wait_confirmed()
        await asyncio.to_thread(master.stop)
        segment = log_directory(master) / ("0" * 20)
        content = bytearray(segment.read_bytes())
        content[300] ^= 0xFF
        segment.write_bytes(content)
        await asyncio.to_thread(master.start)
        async with Client(*cluster.servers) as client:
            starts: list[Any] = [None, datetime(2020, 1, 1, tzinfo=UTC)]
            for start in starts:
                async with client.consumer("q", start=start, group="g", until=6, read_from="mirror") as consumer:
                    assert await numbers(consumer) == [0, 1, 2, 3, 4, 5]
        cluster.wait_in_sync()
        assert log_of(master).state == "following"
        assert segment.read_bytes()[: len(content)] != content


async def test_a_reader_goes_on_when_its_node_comes_back() -> None:
    """Neither a gap nor a repeat over a restart; by killing the node that is read from between two records."""
    with fast_cluster(1, min_in_sync=1) as cluster:
        master = cluster.master
        async with Client(*cluster.servers, request_timeout_ms=30_000) as client:
            await client.admin.declare("q")
            await publish(client, "q", 3)
            async with client.consumer("q", max_wait_ms=200) as consumer:
                found = await consumer.read(3, timeout_ms=10_000)
                await asyncio.to_thread(master.kill)
                reading = asyncio.ensure_future(consumer.read(2, timeout_ms=30_000))
                await asyncio.to_thread(master.start)
                await publish(client, "q", 2)
                found += await reading
    assert [record.queue_offset for record in found] == [0, 1, 2, 3, 4]


async def test_a_mirror_that_stands_still_is_left_for_another() -> None:
    """One that hangs must not end a reader while another is well; by pausing the one that is read from."""
    with fast_cluster(3) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, request_timeout_ms=1_000) as client:
            await client.admin.declare("q")
            await publish(client, "q", 1, 1)
            async with client.consumer("q", read_from="mirror", max_bytes=1, prefetch_bytes=0) as consumer:
                assert [record.queue_offset for record in await consumer.read(1, timeout_ms=10_000)] == [0]
                hung = consumer.served_by
                assert hung is not None
                cluster.wait_confirmed()
                cluster.nodes[hung].pause()
                try:
                    assert [record.queue_offset for record in await consumer.read(1, timeout_ms=20_000)] == [1]
                    assert consumer.served_by != hung
                finally:
                    cluster.nodes[hung].resume()
