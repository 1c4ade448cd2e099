"""Bad bytes of one copy cost a reader nothing: it has them from another one, and says whose were bad."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mirrorlog.client import Client, Consumer, sync
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.errors import BadBatch, LogCorrupt
from mirrorlog.testing import Cluster, Node
from tests.client.scripted_nodes import QUEUE, Nodes, scripted
from tests.process.clusters import eventually, fast_cluster

BATCHES, RECORDS = 12, 5
"""Of each queue here; all of it comes in one answer."""


def value(queue: str, number: int) -> bytes:
    return b"<%s/%06d>" % (queue.encode(), number)


def values(queue: str, count: int = BATCHES * RECORDS) -> list[bytes]:
    return [value(queue, number) for number in range(count)]


async def filled(client: Client, queue: str, batches: int = BATCHES) -> None:
    """So many batches of `RECORDS` records."""
    async with client.producer(queue) as producer:
        for batch in range(batches):
            for number in range(batch * RECORDS, (batch + 1) * RECORDS):
                producer.send_nowait(value(queue, number))
            await producer.flush()


def rot(node: Node, queue: str, batch: int) -> Callable[[], None]:
    """Flip a bit of the batch in the node's file, which it has mapped; what is returned flips it back."""
    wanted = value(queue, batch * RECORDS + 2)
    for path in (node.data_dir / "logs").rglob("0*"):
        if path.is_file() and (at := path.read_bytes().find(wanted)) >= 0:
            _flip(path, at)
            return lambda: _flip(path, at)
    raise AssertionError(f"{wanted!r} is in no segment of {node.id}")


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        bad = file.read(1)[0] ^ 4
        file.seek(at)
        file.write(bytes([bad]))


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, str]]:
    """What was said of nodes whose bytes were bad."""
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    lines = [record.getMessage() for record in warnings if record.getMessage().startswith("bad_bytes_met ")]
    return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]


async def read(consumer: Consumer) -> list[bytes | None]:
    return [record.value async for record in consumer]


# --- Real nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Its copies rot, each test's queue by itself."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        yield cluster


@pytest.mark.process
@pytest.mark.parametrize("read_from", ["master", "mirror", "nearest"])
async def test_bad_bytes_of_the_copy_that_is_read_come_from_another_one(
    three: Cluster, caplog: pytest.LogCaptureFixture, read_from: str
) -> None:
    """Goal: every record once and in order, and the node is named. Bits of three batches flip in the mapped file of the
    node that is read from, the first and the last among them; records, batches and `read` see nothing of it."""
    queue = f"one-{read_from}"
    async with Client(*three.servers) as client:
        info = await client.admin.declare(queue)
        await filled(client, queue)
        three.wait_confirmed()
        async with client.consumer(queue, until=1, read_from=read_from) as first:
            await read(first)
            bad = first.served_by
        assert bad is not None
        assert (bad == info.master) == (read_from == "master")
        for batch in (0, 6, BATCHES - 1):
            rot(three.nodes[bad], queue, batch)
        async with client.consumer(queue, until="confirmed", read_from=read_from, max_bytes=800) as consumer:
            assert await read(consumer) == values(queue)
            assert consumer.position.queue_offset == BATCHES * RECORDS
            found = told(caplog)
            assert [(each["queue"], each["node"], int(each["queue_offset"])) for each in found] == [
                (queue, bad, batch * RECORDS) for batch in (0, 6, BATCHES - 1)
            ]
            places = [int(each["log_offset"]) for each in found]
            await consumer.seek(6 * RECORDS + 1)
            async for each in consumer.batches():
                assert (each.first, each.next) == (6 * RECORDS + 1, 7 * RECORDS)
                assert each.header.log_offset == places[1]
                break
            some = [record.value for record in await consumer.read(4 * RECORDS, timeout_ms=10_000)]
            assert some == values(queue)[7 * RECORDS : 11 * RECORDS]
            assert consumer.served_by == bad, "the rest of its copy is good"


@pytest.mark.process
async def test_copies_that_rot_in_different_places_give_the_whole_queue(three: Cluster) -> None:
    """Goal: a node is left out where its bytes are bad, and only there. Neighbouring batches are bad on different
    nodes, and one batch on two of them: whoever is read from, all is read, by the blocking face too."""
    queue = "many"
    async with Client(*three.servers) as client:
        await client.admin.declare(queue)
        await filled(client, queue)
        three.wait_confirmed()
        for node_id, batches in (("n1", (2, 5, 8)), ("n2", (3, 5)), ("n3", (4, 8))):
            for batch in batches:
                rot(three.nodes[node_id], queue, batch)
        for read_from in ("master", "mirror", "nearest"):
            for turn in range(2):
                async with client.consumer(queue, until="confirmed", read_from=read_from, turn=turn) as consumer:
                    assert await read(consumer) == values(queue)

    def read_blocking() -> list[bytes | None]:
        with sync.Client(*three.servers) as blocking, blocking.consumer(queue, until="confirmed") as consumer:
            return [record.value for record in consumer]

    assert await asyncio.to_thread(read_blocking) == values(queue)


@pytest.mark.process
async def test_a_batch_that_is_bad_on_all_copies_is_an_error_that_names_them(three: Cluster) -> None:
    """Goal: a loud end, at the place. One batch rots on all three: what stands before it is read, then the error names
    queue, log offset and nodes, again when it is asked again. One copy is mended: the same reader goes on."""
    queue = "all"
    async with Client(*three.servers) as client:
        await client.admin.declare(queue)
        await filled(client, queue)
        three.wait_confirmed()
        mend = [rot(node, queue, 4) for node in three.nodes.values()]
        async with client.consumer(queue, until="confirmed", read_from="nearest") as consumer:
            got = await consumer.read(99, timeout_ms=10_000)
            assert [record.value for record in got] == values(queue, 4 * RECORDS)
            with pytest.raises(BadBatch, match=r"^queue 'all', log offset \d+: the batch does not match") as caught:
                await read(consumer)
            assert sorted(caught.value.details["nodes"]) == ["n1", "n2", "n3"]
            assert all(node_id in caught.value.message for node_id in three.nodes)
            assert (caught.value.details["queue"], caught.value.details["queue_offset"]) == (queue, 4 * RECORDS)
            with pytest.raises(BadBatch, match=f"log offset {caught.value.details['log_offset']}:"):
                await consumer.read(1, timeout_ms=10_000)
            assert consumer.position.queue_offset == 4 * RECORDS
            mend[1]()
            assert await read(consumer) == values(queue)[4 * RECORDS :]


@pytest.mark.process
async def test_who_names_a_node_gets_what_that_one_has(three: Cluster) -> None:
    """Goal: a copy can be looked at by itself, or an audit could not tell it from the others. Read from the node that
    is bad by its name: the error names it and says how to read on; by that way all is read."""
    queue = "named"
    async with Client(*three.servers) as client:
        await client.admin.declare(queue)
        await filled(client, queue)
        three.wait_confirmed()
        mirror = three.mirrors[0]
        rot(mirror, queue, 4)
        with pytest.raises(BadBatch, match=rf"log offset \d+: .* on {mirror.id}; .*nearest") as caught:
            async with client.consumer(queue, until="confirmed", read_from=mirror.id) as consumer:
                await read(consumer)
        assert caught.value.details["nodes"] == [mirror.id]
        async with client.consumer(queue, until="confirmed", read_from="nearest") as consumer:
            assert await read(consumer) == values(queue)


@pytest.mark.long
@pytest.mark.process
async def test_a_copy_that_is_down_is_waited_for() -> None:
    """Goal: bad bytes are no end while a whole copy is on its way back. The batch rots on both nodes that run, and the
    third is started when the reader has come to it; without it the error says who was not there."""
    queue = "away"
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, request_timeout_ms=500) as client:
            await client.admin.declare(queue)
            await filled(client, queue)
            cluster.wait_confirmed()
            away = cluster.mirrors[1]
            await asyncio.to_thread(away.stop)
            for node in cluster.nodes.values():
                if node is not away:
                    rot(node, queue, 4)
            async with client.consumer(queue, until="confirmed", read_from="nearest") as consumer:
                with pytest.raises(BadBatch, match=rf"not read: {away.id}: "):
                    await read(consumer)
        async with (
            Client(*cluster.servers, request_timeout_ms=60_000) as client,
            client.consumer(queue, until="confirmed", read_from="nearest") as consumer,
        ):
            reading = asyncio.ensure_future(read(consumer))
            await asyncio.to_thread(eventually, lambda: consumer.position.queue_offset == 4 * RECORDS, "it came there")
            assert not reading.done()
            await asyncio.to_thread(away.start)
            assert await reading == values(queue)


# --- Nodes that do as they are told ---------------------------------------------------------------------------------


@asynccontextmanager
async def told_nodes(batches: int = 3) -> AsyncIterator[tuple[Nodes, Client]]:
    """Three, with so many batches, whose fetches are counted from here on."""
    async with scripted() as nodes, Client(*nodes.servers, request_timeout_ms=1_000) as client:
        await filled(client, QUEUE, batches)
        yield nodes, client


@pytest.mark.parametrize(("rotten", "asked"), [("n1", [2, 1, 0]), ("n1 n2", [2, 1, 1])])
async def test_each_copy_is_asked_once_for_a_bad_stretch(rotten: str, asked: list[int]) -> None:
    """Goal: no storm of fetches. The first batch is bad on one or two nodes: each is asked for it once, the master
    first, until one has it whole, and for what follows only the master."""
    async with told_nodes() as (nodes, client):
        for node_id in rotten.split():
            nodes[node_id].rotten = {0: HEADER_SIZE}
        async with client.consumer(QUEUE, max_bytes=1, prefetch_bytes=0, max_wait_ms=0) as consumer:
            found = await consumer.read(2 * RECORDS, timeout_ms=10_000)
        assert [record.value for record in found] == values(QUEUE, 2 * RECORDS)
        assert [node.fetches for node in nodes.by_id.values()] == asked


async def test_each_copy_is_asked_once_when_none_is_whole() -> None:
    """Goal: the same where it ends. The first batch is bad everywhere: one fetch of each node, and the error; asked
    again, the same again."""
    async with told_nodes() as (nodes, client):
        for node in nodes.by_id.values():
            node.rotten = {0: HEADER_SIZE}
        async with client.consumer(QUEUE, max_bytes=1, prefetch_bytes=0, max_wait_ms=0) as consumer:
            for times in (1, 2):
                with pytest.raises(BadBatch, match=r"on n\d, n\d, n\d$") as caught:
                    await consumer.read(1, timeout_ms=10_000)
                assert sorted(caught.value.details["nodes"]) == ["n1", "n2", "n3"]
                assert [node.fetches for node in nodes.by_id.values()] == [times] * 3


@pytest.mark.parametrize("read_from", ["master", "mirror", "nearest"])
async def test_what_a_node_refuses_as_bad_comes_from_another_copy_at_once(read_from: str) -> None:
    """Goal: a node that has found its copy bad and lives on stands in nobody's way. One node after the other refuses
    the middle batch, then two of them do: the whole queue is read within less than a node is waited for. All three
    refuse it: the error names queue, place and nodes."""
    async with told_nodes() as (nodes, client):
        for bad in ("n1", "n2", "n3", "n1 n2", "n1 n3"):
            for node in nodes.by_id.values():
                node.refused_bad = {RECORDS} if node.node_id in bad else set()
            async with client.consumer(QUEUE, until=3 * RECORDS, read_from=read_from, max_wait_ms=0) as consumer:
                async with asyncio.timeout(1.0):  # of request_timeout_ms; refused, it would be asked for that long
                    assert await read(consumer) == values(QUEUE, 3 * RECORDS), bad
        nodes["n2"].refused_bad = {RECORDS}
        async with client.consumer(QUEUE, start=RECORDS, read_from=read_from, max_wait_ms=0) as consumer:
            with pytest.raises(BadBatch, match=r"^queue 'q', queue offset 5: bad bytes .* on n\d, n\d, n\d$") as caught:
                await consumer.read(1, timeout_ms=10_000)
            assert sorted(caught.value.details["nodes"]) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("read_from", ["mirror", "nearest"])
async def test_a_node_whose_copy_was_found_bad_when_it_started_is_passed_over(read_from: str) -> None:
    """Goal: who begins to read needs no luck with the node that it comes to first. That one answers nothing of the
    queue but that its copy is damaged, as until it is repaired: the whole queue is read, from another one."""
    async with told_nodes() as (nodes, client):
        nodes["n2"].damage = LogCorrupt("this copy is damaged", first=0, last=4096)
        async with client.consumer(QUEUE, until=3 * RECORDS, read_from=read_from, max_wait_ms=0) as consumer:
            assert await read(consumer) == values(QUEUE, 3 * RECORDS)
            assert consumer.served_by != "n2"


async def test_who_names_a_node_hears_that_it_refuses() -> None:
    async with told_nodes() as (nodes, client):
        nodes["n2"].refused_bad = {0}
        async with client.consumer(QUEUE, start=0, read_from="n2", max_wait_ms=0) as consumer:
            with pytest.raises(LogCorrupt):
                await consumer.read(1, timeout_ms=10_000)


async def test_any_bad_byte_of_a_batch_is_passed_over_by_another_copy() -> None:
    """Goal: a header is not believed either. Each byte of a batch in the middle is bad on the master in turn, and the
    whole queue is read."""
    async with told_nodes() as (nodes, client):
        size = len(nodes.batches[1][1])
        for position in range(size):
            nodes["n1"].rotten = {RECORDS: position}
            async with client.consumer(QUEUE, until=3 * RECORDS, max_wait_ms=0) as consumer:
                assert await read(consumer) == values(QUEUE, 3 * RECORDS), f"byte {position} of {size}"


async def test_a_copy_that_hangs_is_passed_over_for_the_next() -> None:
    """Goal: the whole copy is found behind one that says nothing. The master is bad and one mirror is mute; then the
    other is bad, too, and the mute one speaks again: the reader has waited for it."""
    async with told_nodes() as (nodes, client):
        for mute, whole in (("n2", "n3"), ("n3", "n2")):
            nodes["n1"].rotten, nodes[whole].rotten, nodes[mute].rotten = {0: HEADER_SIZE}, {}, {}
            nodes[mute].mute = True
            async with client.consumer(QUEUE, until=3 * RECORDS, max_wait_ms=0) as consumer:
                assert await read(consumer) == values(QUEUE, 3 * RECORDS)
            nodes[whole].rotten = {0: HEADER_SIZE}
            before = nodes[mute].fetches
            async with client.consumer(QUEUE, until=3 * RECORDS, max_wait_ms=0) as consumer:
                reading = asyncio.ensure_future(read(consumer))
                fetched = lambda mute=mute, before=before: nodes[mute].fetches > before  # noqa: E731
                await asyncio.to_thread(eventually, fetched, "the mute one is asked")
                nodes[mute].mute = False
                assert await reading == values(QUEUE, 3 * RECORDS)


async def test_readers_at_once_over_a_bad_stretch_share_its_records() -> None:
    """Goal: each record goes to one of them. Four tasks read one consumer whose every second batch is bad."""
    async with told_nodes(10) as (nodes, client):
        nodes["n1"].rotten = dict.fromkeys(range(0, 10 * RECORDS, 2 * RECORDS), HEADER_SIZE)
        async with client.consumer(QUEUE, until=10 * RECORDS, max_wait_ms=0, max_bytes=400) as consumer:

            async def some() -> list[bytes | None]:
                found = []
                while batch := await consumer.read(3, timeout_ms=10_000):
                    found += [record.value for record in batch]
                return found

            shares = await asyncio.gather(*(some() for _ in range(4)))
        assert sorted(each for share in shares for each in share if each) == values(QUEUE, 10 * RECORDS)
        assert sum(map(len, shares)) == 10 * RECORDS
