"""Limits of queues that have moved hold for what they have left in former logs, on real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import QueueFull
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import MIB, fast_cluster
from tests.process.test_moves import told, values
from tests.process.test_syncs import fill, move, numbers

pytestmark = pytest.mark.process

SMALL = {"log.kept_mapped_bytes": 0, "limits.max_batch_bytes": 256 * 1024, "limits.max_record_bytes": 128 * 1024}
ONE, OTHER = {"nodes": ["n1"], "flush": "memory"}, {"nodes": ["n2"], "flush": "memory"}


async def beside(client: Client) -> None:
    """So that a log is not the queue's alone, which would go along."""
    await client.admin.declare("beside", ONE)
    await client.admin.declare("beside the other", OTHER)


async def until_told(client: Client, queue: str, reached: Callable[[QueueInfo], bool]) -> QueueInfo:
    info = None
    try:
        async with asyncio.timeout(40):
            while True:
                info = await told(client, queue)
                if reached(info):
                    return info
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not reached: {info}")


def log_bytes(cluster: Cluster, node: str, queue: QueueInfo) -> int:
    status: Any = cluster.nodes[node].status()
    return sum(log.end - log.begin for log in status.logs if log.log_id == queue.log_id)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("limits", "kept"),
    [({"retention_bytes": 4 * MIB}, 200), ({"retention_ms": 2_000}, 0)],
    ids=["bytes", "age"],
)
async def test_a_limit_reaches_what_is_in_a_former_log(limits: dict[str, Any], kept: int) -> None:
    """Goal: a queue that moved keeps as much as one that never did, though nobody publishes to it. Method: 6 MB stay in
    a log of one node, 2 MB are in that of another one; the queue then begins where its limit says, and what is below is
    freed in the former log, whose other queue goes on."""
    async with fast_cluster(2, settings=SMALL, segment_bytes=MIB) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await beside(client)
            await client.admin.declare("orders", {**ONE, **limits})
            await fill(client, "orders", 0, 300, size=20_000)
            before = await told(client, "orders")
            await move(client, "orders", OTHER)
            await fill(client, "orders", 300, 400, size=20_000)
            await fill(client, "beside", 0, 60, size=20_000)  # so that its segment is not the newest one
            info = await until_told(client, "orders", lambda info: info.begin >= (100 if kept else 300))
            assert info.begin <= 400 - kept
            left = numbers(await values(client, "orders"))
            assert left == list(range(info.begin, 400))
            if kept:
                assert [span.first for span in info.spans] == [0, 300]
            else:
                await until_told(client, "orders", lambda info: not info.spans)
            async with asyncio.timeout(40):
                while await asyncio.to_thread(log_bytes, cluster, "n1", before) > (6 if kept else 3) * MIB:
                    await asyncio.sleep(0.5)
                    await fill(client, "beside", 0, 1)
            assert (await told(client, "beside")).begin == 0


async def test_a_work_queue_leaves_its_former_log_when_all_there_is_settled() -> None:
    """Goal: nothing is kept for nobody. Method: it moves with records that are settled afterwards, and nothing is
    published to it any more."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await beside(client)
            await client.admin.declare("orders", {**ONE, "retention": "work"})
            await fill(client, "orders", 0, 20)
            await move(client, "orders", OTHER)
            assert [span.first for span in (await told(client, "orders")).spans] == [0, 20]
            async with client.subscribe("orders") as subscription, asyncio.timeout(20):
                for _ in range(20):
                    await (await anext(subscription)).ack()
            info = await until_told(client, "orders", lambda info: not info.spans)
            assert (info.begin, info.next) == (20, 20)


@pytest.mark.parametrize("overflow", ["reject-publish", "drop-head"])
async def test_the_length_of_a_queue_counts_what_it_has_left(overflow: str) -> None:
    """Goal: x-max-length-bytes means the same for a queue that moved. Method: it is full, and moves, and comes back:
    one more record is refused each time, or takes the place of an old one; what was settled meanwhile is room again."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await beside(client)
            limits = {"x-max-length-bytes": 100_000, "x-overflow": overflow}
            await client.admin.declare("orders", {**ONE, **limits})
            for step, place in enumerate((OTHER, ONE, OTHER)):
                stored = await fill_up(client, "orders")
                assert stored == (10 if step else 90) or overflow == "drop-head"
                await move(client, "orders", place)
                if overflow == "reject-publish":
                    assert await fill_up(client, "orders") == 0, step
                async with client.subscribe("orders", prefetch=1) as subscription, asyncio.timeout(20):
                    for _ in range(10):
                        delivery = await anext(subscription)
                        await delivery.ack()
            if overflow == "drop-head":
                await fill_up(client, "orders")
                async with client.subscribe("orders", prefetch=200) as subscription, asyncio.timeout(20):
                    first = await anext(subscription)
                next_ = (await told(client, "orders")).next
                assert 85 <= next_ - first.offset <= 95


async def fill_up(client: Client, queue: str) -> int:
    """Records of some 1,100 bytes with what a batch needs, each in one of its own: until it is full, or 100."""
    stored = 0
    async with client.producer(queue, batch_bytes=1, confirm="all", delivery_timeout_ms=1_000) as producer:
        for _ in range(100):
            try:
                await producer.send(b"v" * 1_000)
            except QueueFull:
                break
            stored += 1
    return stored
