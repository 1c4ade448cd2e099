"""What a gRPC consumer takes for the end of a queue, and for bad, by nodes that do as they are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mirrorlog.client import Client
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.doors.grpc.consume_options import ConsumeOptions, Edge
from mirrorlog.doors.grpc.consume_reader import ConsumeReader
from mirrorlog.errors import BadBatch, LogCorrupt, NotCurrent
from tests.client.scripted_nodes import QUEUE, Nodes, scripted

WANTED = ConsumeOptions(
    queue=QUEUE, start=Edge.EARLIEST, until=Edge.LATEST, from_mirror=False, node_id="", raw=False, max_bytes=1 << 20,
    max_wait_ms=100, outage_timeout_ms=10_000,
)  # fmt: skip


async def publish(nodes: Nodes, *values: bytes) -> None:
    async with Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
        for value in values:
            await producer.send(value)


async def asked_again(nodes: Nodes, waiting: asyncio.Future[object]) -> None:
    """The second node is asked more often than one look takes, and it has not been believed."""
    asked = nodes["n2"].asked
    async with asyncio.timeout(10):
        while nodes["n2"].asked <= asked + 3 and not waiting.done():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert not waiting.done()


@pytest.mark.parametrize(
    "wanted", [WANTED, replace(WANTED, start=Edge.LATEST, until=None)], ids=["until confirmed", "from the latest"]
)
async def test_the_end_is_taken_from_a_master_that_has_begun_alone(wanted: ConsumeOptions) -> None:
    """Goal: nothing confirmed is left out behind a failover. Method: the others name n2, which has not heard of it;
    then it has, and its epoch has not begun; then that has."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1", b"2")
        nodes["n1"].kill()
        nodes.promote("n2", version=2, heard_by="n3")
        nodes["n2"].known = 1
        reader = ConsumeReader(client, wanted)
        opening = asyncio.ensure_future(reader.open())
        await asked_again(nodes, opening)
        nodes.promote("n2", version=2, heard_by="n2")
        nodes["n2"].current = False
        await asked_again(nodes, opening)
        nodes["n2"].known, nodes["n2"].current = None, True
        opened = await asyncio.wait_for(opening, 10)
        assert opened.end == 3
        assert reader.done(3) == (wanted.until is not None)
        assert opened.next == (3 if wanted.start is Edge.LATEST else 0)


async def test_without_a_master_it_ends_in_time_and_a_mirror_is_read_as_far_as_it_knows() -> None:
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1")
        nodes["n1"].current = nodes["n2"].current = False
        nodes["n2"].known = 1
        with pytest.raises(NotCurrent):
            await asyncio.wait_for(ConsumeReader(client, replace(WANTED, outage_timeout_ms=200)).open(), 10)
        assert (await ConsumeReader(client, replace(WANTED, node_id="n2")).open()).end == 1


async def offsets_read(reader: ConsumeReader) -> list[int]:
    """The queue offsets of all batches, in the order in which they came."""
    fetched, found = await reader.open(), []
    while not reader.done(fetched.next):
        fetched = await reader.fetch(fetched.next, fetched.epoch)
        found += [batch.first for batch in fetched.batches]
    return found


@pytest.mark.parametrize("wanted", [WANTED, replace(WANTED, from_mirror=True)], ids=["master", "mirror"])
async def test_what_is_bad_on_a_node_is_asked_of_another_one(wanted: ConsumeOptions) -> None:
    """Goal: a door's reader sees nothing of a damaged copy while a whole one stands by. Method: one node refuses a
    batch, and sends another with a bad header, another with a bad body; a second one has others that are bad."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, *(b"%d" % number for number in range(8)))
        for bad, other in (("n1", "n2"), ("n2", "n3"), ("n3", "n1")):
            for node in nodes.by_id.values():
                node.refused_bad, node.rotten = set(), {}
            nodes[bad].refused_bad, nodes[bad].rotten = {3}, {0: 8, 5: HEADER_SIZE}
            nodes[other].refused_bad, nodes[other].rotten = {2}, {4: HEADER_SIZE, 6: 8}
            assert await asyncio.wait_for(offsets_read(ConsumeReader(client, wanted)), 10) == list(range(8))


async def test_what_is_bad_everywhere_or_on_the_node_that_was_named_is_an_error() -> None:
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1")
        nodes["n2"].refused_bad = {1}
        named = replace(WANTED, node_id="n2", outage_timeout_ms=200)
        with pytest.raises(LogCorrupt):
            await asyncio.wait_for(offsets_read(ConsumeReader(client, named)), 10)
        nodes["n1"].refused_bad, nodes["n3"].rotten = {1}, {1: HEADER_SIZE}
        with pytest.raises(BadBatch, match="queue offset 1: bad bytes"):
            await asyncio.wait_for(offsets_read(ConsumeReader(client, WANTED)), 10)
