"""Queues with a limit of length, on three real nodes of which the master is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client import Client, Subscription
from mirrorlog.errors import QueueFull
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster

MAX = 20


async def take(subscription: Subscription, count: int) -> list[Any]:
    async with asyncio.timeout(30):
        return [await anext(subscription) for _ in range(count)]


async def publish(client: Client, queue: str, numbers: range) -> int:
    """One record after the other, until the queue refuses; how many were stored."""
    async with client.producer(queue, delivery_timeout_ms=20_000) as patient:
        for number in numbers[:1]:
            await patient.send(b"%d" % number)  # over the failover
    async with client.producer(queue, delivery_timeout_ms=500) as producer:
        for number in numbers[1:]:
            try:
                await producer.send(b"%d" % number)
            except QueueFull:
                return number - numbers[0]
    return len(numbers)


@pytest.mark.long
@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_queue_keeps_its_length_when_its_master_is_killed_with_records_in_hand(tmp_path: Path, overflow: str) -> None:
    """Goal: no acked record comes back, no confirmed one is missing but what the limit says, and the next master says
    the same. Five are in hands, of which two are acked; the master is killed; those in hands come again in order,
    beside what is ready, and the queue is as full as the limit has it."""

    async def test(cluster: Cluster) -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q", {"x-max-length": MAX, "x-overflow": overflow})
            assert await publish(client, "q", range(5)) == 5
            async with client.subscribe("q", prefetch=5) as subscription:
                hands = await take(subscription, 5)
                await hands[0].ack()
                await hands[1].ack()
                # Two more are given out for the two that were acked.
                assert await publish(client, "q", range(5, 5 + MAX)) == MAX
                await take(subscription, 2)
                cluster.master.kill()
            async with client.subscribe("q", prefetch=1) as subscription:
                (again,) = await take(subscription, 1)
                assert (again.offset, again.redelivered) == (2, True)
                # 22 are ready beside the one in hand.
                if overflow == "reject-publish":
                    with pytest.raises(QueueFull):
                        async with client.producer("q", delivery_timeout_ms=500) as producer:
                            await producer.send(b"too many")
                else:
                    assert await publish(client, "q", range(25, 28)) == 3
                await again.ack()
            newest = 24 if overflow == "reject-publish" else 27
            got: list[int] = []
            async with client.subscribe("q", prefetch=100) as subscription:
                while not got or got[-1] < newest:
                    got += [each.offset for each in await take(subscription, 1)]
            if overflow == "reject-publish":
                assert got == list(range(3, 25))
            else:
                # The one that the subscriber of before was given for the one it acked is there besides, unless it is
                # one of these: it was in hand, or not, when the last one was published.
                assert got[-MAX:] == list(range(28 - MAX, 28))
                assert len(got) <= MAX + 1

    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        cluster.wait_in_sync()
        asyncio.run(test(cluster))
