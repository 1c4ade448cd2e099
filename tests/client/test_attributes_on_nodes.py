"""Records with a priority, a time to live or a delay on a real cluster of three copies: from every producer to every
reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes
from mirrorlog.testing import Cluster

pytestmark = pytest.mark.process

ASKED = Attributes(9, ttl_ms=3_600_000, delay_ms=0)


async def test_a_queue_says_that_it_takes_attributes_and_keeps_them(client: Client, queue: str) -> None:
    """Goal: a new cluster offers them, and a reader of any copy has them. Method: publish with and without, read from
    the master and from a mirror, as records, as batches and as a group that acks."""
    info = await client.queue_info(queue)
    assert info.attributes
    async with client.producer(queue) as producer:
        await producer.send(b"plain")
        await producer.send_many([b"urgent"] * 3, **ASKED._asdict())
    for copy in ("master", "mirror"):
        async with client.consumer(queue, start=0, until=4, read_from=copy) as consumer:
            records = [record async for record in consumer]
        assert [record.attributes for record in records] == [NO_ATTRIBUTES, ASKED, ASKED, ASKED]
        assert records[1].expires_at_us == records[1].append_time_us + 3_600_000_000
    async with client.subscribe(queue, prefetch=10) as subscription:
        given = [await anext(subscription) for _ in range(4)]
        assert [(each.priority, each.attributes.ttl_ms) for each in given] == [(0, None)] + [(9, 3_600_000)] * 3
        for each in given:
            await each.ack()


async def test_leases_show_them(client: Client, queue: str) -> None:
    """Goal: the same for who leases. Method: one record."""
    async with client.producer(queue) as producer:
        await producer.send(b"v", priority=3, ttl_ms=3_600_000)
    [leased] = await client.lease(queue, max_records=1, lease_ms=30_000, wait_ms=5_000)
    assert (leased.priority, leased.expires_at_us) == (3, leased.append_time_us + 3_600_000_000)
    await leased.ack()


async def test_an_exchange_passes_them_to_every_queue(client: Client, new_name: Callable[[], str]) -> None:
    """Goal: a publisher's messages have them in each queue that they are routed to. Method: a fanout to two."""
    exchange, first, second = new_name(), new_name(), new_name()
    for name in (first, second):
        await client.admin.declare(name)
    await client.admin.topology.declare_exchange(exchange, "fanout")
    for name in (first, second):
        await client.admin.topology.bind(exchange, name)
    async with client.publisher(exchange) as publisher:
        await publisher.publish("k", b"v", priority=4, ttl_ms=0, delay_ms=5)
        await publisher.publish("k", b"plain")
    for name in (first, second):
        async with client.consumer(name, start=0, until="confirmed") as consumer:
            assert [record.attributes async for record in consumer] == [Attributes(4, 0, 5), NO_ATTRIBUTES]


def test_synchronous_readers_show_them(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    """Goal: deliveries and leases of the synchronous face too. Method: one record to each."""
    name = new_name()
    with SyncClient(*shared_cluster.servers) as client:
        client.admin.declare(name)
        with client.producer(name) as producer:
            producer.send_many([b"v"] * 2, priority=6)
        with client.publisher("") as publisher:
            publisher.publish(name, b"v", priority=6)
        with client.subscribe(name, prefetch=1) as subscription:
            given = next(iter(subscription))
            assert (given.priority, given.expires_at_us, given.not_before_us) == (6, None, given.append_time_us)
            given.ack()
        [leased] = client.lease(name, max_records=1, lease_ms=30_000, wait_ms=5_000)
        assert leased.attributes == Attributes(6)
        leased.ack()


async def test_priorities_in_turn_are_as_few_batches_as_priorities(client: Client, queue: str) -> None:
    """Goal: records with the same attributes share batches, on the way to three copies. Method: 3,000 records."""
    async with client.producer(queue) as producer:
        for number in range(3_000):
            producer.send_nowait(b"%d" % number, priority=number % 3)
            if number % 500 == 499:
                await asyncio.sleep(0)
        await producer.flush()
        assert producer.stats.batches < 100
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async with client.consumer(queue, start=0, until="confirmed") as consumer:
        async for record in consumer:
            found[record.priority].append(int(record.value or b""))
    assert found == {priority: list(range(priority, 3_000, 3)) for priority in range(3)}
