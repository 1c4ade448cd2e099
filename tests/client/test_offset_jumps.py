"""A consumer meets the gap that a loss left in its queue: it is told, wherever it began, and goes on where it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mirrorlog.client import Client, Consumer
from mirrorlog.errors import MirrorlogError, PositionLost
from tests.broker.hosting import running_all, settings_for
from tests.ha.nodes import Node, hosted_by, until

COUNT = 5


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """A master and a mirror."""
    async with running_all(settings_for(tmp_path, 2)) as running:
        yield running


@pytest.fixture
async def client(nodes: list[Node]) -> AsyncIterator[Client]:
    """With a queue of five records."""
    async with Client(nodes[0].settings.client_bind) as connected:
        await connected.admin.declare("q")
        await publish(connected, COUNT)
        yield connected


async def publish(client: Client, count: int) -> None:
    async with client.producer("q") as producer:
        for number in range(count):
            await producer.send(b"%d" % number)


async def jump(node: Node) -> int:
    """Let the queue offsets leap, as a master does after a loss; where the queue goes on."""
    log = hosted_by(node)
    told: list[MirrorlogError | None] = []
    log.publisher.append_change(log.replica.jump_batch(lost_from=log.replica.log.end), told.append)
    await until(lambda: told == [None])
    return log.replica.index.next_confirmed(log.replica.queues.find("q").queue_id)


async def read_to_the_loss(consumer: Consumer) -> tuple[list[int], PositionLost]:
    """The queue offsets up to the error, and the error."""
    found: list[int] = []
    try:
        async for record in consumer:
            found.append(record.queue_offset)
    except PositionLost as error:
        return found, error
    raise AssertionError("it ended without an error")


@pytest.mark.parametrize("read_from", ["master", "mirror"])
async def test_a_reader_is_told_and_goes_on(nodes: list[Node], client: Client, read_from: str) -> None:
    """Goal: nothing is left out in silence, also not for who began at the earliest record, and nothing is stuck. Read
    to the gap, twice; then seek to where the error says, and read what comes there."""
    go_on_at = await jump(nodes[0])
    async with client.consumer("q", start="earliest", read_from=read_from) as consumer:
        for expected in (list(range(COUNT)), []):
            found, error = await read_to_the_loss(consumer)
            assert (found, error.details["go_on_at"]) == (expected, go_on_at)
        assert consumer.position.queue_offset == COUNT
        await consumer.seek(go_on_at)
        await publish(client, 1)
        assert [record.queue_offset for record in await consumer.read(1, timeout_ms=30_000)] == [go_on_at]


async def test_a_reader_that_waits_is_told(nodes: list[Node], client: Client) -> None:
    """Goal: a reader at the end does not just go on. It waits there when the log leaps; a reader from the earliest
    record of a queue without any waits, too, and is told as well."""
    await client.admin.declare("empty")
    async with (
        client.consumer("q", start=COUNT, max_wait_ms=60_000) as at_end,
        client.consumer("empty", start="earliest", max_wait_ms=60_000) as at_start,
    ):
        reading = [asyncio.ensure_future(read_to_the_loss(each)) for each in (at_end, at_start)]
        fetcher = hosted_by(nodes[0]).fetcher
        await until(lambda: fetcher._count == 2)
        go_on_at = await jump(nodes[0])
        for found, error in await asyncio.gather(*reading):
            assert (found, error.details["go_on_at"]) == ([], go_on_at)


async def test_a_group_s_position_at_the_end_is_lost(nodes: list[Node], client: Client) -> None:
    """Goal: the position of a group is moved by nobody but the group. It stands behind all records; it is told, seeks,
    commits, and another start goes on from there."""
    async with client.consumer("q", group="g", start="earliest") as consumer:
        await consumer.read(COUNT, timeout_ms=30_000)
        await consumer.commit()
    go_on_at = await jump(nodes[0])
    async with client.consumer("q", group="g") as consumer:
        found, error = await read_to_the_loss(consumer)
        assert (found, error.details["go_on_at"]) == ([], go_on_at)
        await consumer.seek(go_on_at)
        await consumer.commit()
    await publish(client, 1)
    async with client.consumer("q", group="g") as consumer:
        assert [record.queue_offset for record in await consumer.read(1, timeout_ms=30_000)] == [go_on_at]


async def test_who_starts_behind_the_gap_hears_nothing_of_it(nodes: list[Node], client: Client) -> None:
    """Goal: no error for who wants only what comes. Start at latest, and at the earliest record of an empty queue."""
    await client.admin.declare("empty")
    go_on_at = await jump(nodes[0])
    for queue, start in (("q", "latest"), ("empty", "earliest")):
        async with client.consumer(queue, start=start) as consumer:
            assert consumer.position.queue_offset == go_on_at
            assert await consumer.read(1, timeout_ms=1) == []
