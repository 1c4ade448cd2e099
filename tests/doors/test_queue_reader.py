"""What a gRPC consumer takes for the end of a queue, by nodes that do as they are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mirrorlog.client import Client
from mirrorlog.doors.queue_reader import QueueReader
from mirrorlog.doors.subscription import Edge, Subscription
from mirrorlog.errors import NotCurrent
from tests.client.scripted_nodes import QUEUE, Nodes, scripted

WANTED = Subscription(
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
async def test_the_end_is_taken_from_a_master_that_has_begun_alone(wanted: Subscription) -> None:
    """Goal: nothing confirmed is left out behind a failover. Method: the others name n2, which has not heard of it;
    then it has, and its epoch has not begun; then that has."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1", b"2")
        nodes["n1"].kill()
        nodes.promote("n2", version=2, heard_by="n3")
        nodes["n2"].known = 1
        reader = QueueReader(client, wanted)
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
            await asyncio.wait_for(QueueReader(client, replace(WANTED, outage_timeout_ms=200)).open(), 10)
        assert (await QueueReader(client, replace(WANTED, node_id="n2")).open()).end == 1
