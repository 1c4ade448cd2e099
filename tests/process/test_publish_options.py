"""What a producer may ask for: compression, and where its confirms must have the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from tests.process.clusters import assert_copies_equal, eventually, fast_cluster, log_of

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Nobody but a waiting confirm makes these nodes flush.
    with fast_cluster(3, settings={"log.flushIntervalCommitLog": 3_600_000}) as started:
        started.wait_in_sync()
        yield started


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_compressed_batch_is_stored_as_it_is_and_read_as_it_was(cluster: Cluster, compression: str) -> None:
    """Goal: the server opens no body. Publish text with keys, headers and an absent value, look how much the log grew,
    read it from master and mirror, and compare the copies byte by byte."""
    records = [(b"a line of text, a line of text %d " % n * 20, b"key %d" % (n % 7)) for n in range(2000)]
    queue = f"q-{compression}"
    before = log_of(cluster.master).end

    async def publish_and_read() -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.declare(queue)
            async with client.producer(queue, compression=compression) as producer:
                for value, key in records:
                    producer.send_nowait(value, key=key, headers=[("h", None)])
                await producer.send(None, key=b"tombstone")
            for read_from in ("master", "mirror"):
                await asyncio.to_thread(cluster.wait_confirmed)
                async with client.consumer(queue, until=len(records) + 1, read_from=read_from) as consumer:
                    found = [record async for record in consumer]
                assert [(record.value, record.key) for record in found] == [*records, (None, b"tombstone")]
                assert found[0].headers == [("h", None)]

    asyncio.run(publish_and_read())
    grown = log_of(cluster.master).end - before
    raw = sum(len(value) for value, _ in records)
    assert (grown > raw) if compression == "none" else (grown < raw / 5)
    assert_copies_equal(cluster)


def test_a_producer_that_asks_for_the_disk_does_not_wait_for_the_interval(cluster: Cluster) -> None:
    """Goal: durability is the producer's to ask for, on a log whose flushes are in no hurry. The interval is an hour:
    a disk confirm comes all the same, from all copies, and a hundred waiting ones share few flushes."""

    async def publish() -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("durable")
            async with client.producer("durable", durability="disk", linger_ms=0, batch_bytes=64) as producer:
                receipt = await producer.send(b"x")
                assert (receipt.durability, receipt.copies) == (1, 3)
                receipts = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(100)))
                assert all(each.durability == 1 for each in receipts)
            async with client.producer("durable") as producer:
                assert (await producer.send(b"y")).durability == 0

    asyncio.run(publish())
    statuses = [log_of(node) for node in cluster.nodes.values()]
    assert all(status.flushed > 0 for status in statuses)


def test_without_one_who_asks_nothing_is_flushed_before_its_time(cluster: Cluster) -> None:
    """Goal: a memory confirm waits for no disk. After a durable publish, memory ones leave the flushed offset."""

    async def publish() -> None:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("quick")
            async with client.producer("quick") as producer:
                for _ in range(50):
                    await producer.send(b"z" * 100)

    asyncio.run(publish())
    eventually(lambda: log_of(cluster.master).confirmed == log_of(cluster.master).end, "all is confirmed")
    assert log_of(cluster.master).flushed < log_of(cluster.master).end
