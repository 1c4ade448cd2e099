"""What queues have left in former logs is copied to their own, while they are used, on real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.queues import QueueInfo, QueueSync
from tests.process.clusters import fast_cluster
from tests.process.test_moves import moved, told, values

pytestmark = pytest.mark.process

BEFORE = 300
SLOW = {"cluster.move_bytes_per_s": 256 * 1024}


async def until(
    client: Client, queue: str, reached: Callable[[QueueSync], bool], *, timeout_s: float = 30
) -> QueueSync:
    """Once the queue's master tells that."""
    sync = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    sync = await client.admin.queue_sync(queue)
                    if reached(sync):
                        return sync
                except MirrorlogError:
                    pass  # nobody can say at the moment
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not reached: {sync}")


async def synced(client: Client, queue: str) -> QueueInfo:
    """Once nothing of the queue is elsewhere."""
    await until(client, queue, lambda sync: not sync.spans and not sync.wished)
    return await told(client, queue)


async def fill(client: Client, queue: str, first: int, last: int, *, size: int = 0) -> None:
    """Numbers, as text, with so many bytes more."""
    async with client.producer(queue, confirm="all") as producer:
        for number in range(first, last):
            await producer.send(str(number).encode() + b" " * size)


def numbers(records: list[bytes]) -> list[int]:
    return [int(record) for record in records]


async def move(client: Client, queue: str, place: dict[str, Any]) -> QueueInfo:
    before = await told(client, queue)
    await client.admin.alter(queue, place)
    return await moved(client, queue, before.log_id)


async def test_a_synced_queue_needs_its_former_logs_no_more() -> None:
    """Goal: all records are in the queue's own log, in order, and the former logs free them. Method: a queue with
    records in three logs of three nodes is synced while nobody uses it; it is read whole with the nodes of the former
    logs stopped, and neither of these keeps anything of it."""
    async with fast_cluster(3) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            for node in ("n1", "n2", "n3"):
                await client.admin.declare(f"beside {node}", {"nodes": [node]})
            await client.admin.declare("orders", {"nodes": ["n1"]})
            await fill(client, "orders", 0, BEFORE)
            await move(client, "orders", {"nodes": ["n2"]})
            await fill(client, "orders", BEFORE, 2 * BEFORE)
            await move(client, "orders", {"nodes": ["n3"]})
            await fill(client, "orders", 2 * BEFORE, 3 * BEFORE)
            left = await client.admin.queue_sync("orders")
            assert [(span.first, span.next, span.records) for span in left.spans] == [
                (0, BEFORE, BEFORE),
                (BEFORE, 2 * BEFORE, BEFORE),
            ]
            assert all(span.size > 0 for span in left.spans)
            assert (left.wished, left.done_records) == (False, 0)
            begun = await client.admin.sync_queue("orders")
            assert begun.wished or not begun.spans
            after = await synced(client, "orders")
            assert (after.spans, after.begin, after.next) == ([], 0, 3 * BEFORE)
            for node in ("n1", "n2"):
                cluster.nodes[node].kill()
        async with Client(cluster.nodes["n3"].client) as client:
            assert numbers(await values(client, "orders")) == list(range(3 * BEFORE))
