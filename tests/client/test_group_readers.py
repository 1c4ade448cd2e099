"""One reader of a stream group at a time, on real nodes: the second one is told what to do, and nobody blocks his own
restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from mirrorlog.client import Client, Consumer
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import ExclusiveTaken, InSyncReplicasNotEnough, MirrorlogError
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

T = TypeVar("T")


@pytest.fixture
async def published(client: Client, queue: str) -> str:
    async with client.producer(queue) as producer:
        await producer.send_many([b"%d" % each for each in range(10)])
    return queue


async def soon(attempt: Callable[[], Awaitable[T]], refused: type[MirrorlogError]) -> T:
    """As soon as it is not refused any more."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await attempt()
            except refused:
                await asyncio.sleep(0.01)


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    return [each.value for each in await consumer.read(count, timeout_ms=10_000)]


@pytest.mark.parametrize("start", [None, "earliest"])
async def test_a_second_reader_of_a_group_is_refused_and_the_first_goes_on(
    client: Client, published: str, shared_cluster: Cluster, start: str | None
) -> None:
    """Of another client, and of the same one; a reader of another group, and one without, are let in."""
    async with client.consumer(published, group="g") as first:
        assert await values(first, 3) == [b"0", b"1", b"2"]
        async with Client(*shared_cluster.servers) as other:
            for each in (client, other):
                with pytest.raises(ExclusiveTaken, match=r"as group 'g' already, by .*subscribe\(ordered_by"):
                    await each.consumer(published, group="g", start=start).start()
                async with each.consumer(published, group="h") as another, each.consumer(published) as alone:
                    assert await values(another, 1) == await values(alone, 1) == [b"0"]
        await first.commit()
        assert await values(first, 1) == [b"3"]
        await first.commit()
    async with client.consumer(published, group="g") as again:
        assert await values(again, 1) == [b"4"], "closed, its place is free at once"


async def test_a_reader_that_died_leaves_its_place(client: Client, published: str, shared_cluster: Cluster) -> None:
    """Its client is closed without a word, or nobody has it any more."""
    other = await Client(*shared_cluster.servers).connect()
    reader = await other.consumer(published, group="g").start()
    await values(reader, 2)
    await reader.commit()
    await other.close()

    readers = [await soon(lambda: client.consumer(published, group="g").start(), ExclusiveTaken)]
    assert await values(readers[0], 1) == [b"2"]
    with pytest.warns(ResourceWarning):
        readers.clear()
    await (await soon(lambda: client.consumer(published, group="g").start(), ExclusiveTaken)).close()


async def test_positions_that_nobody_named_as_a_reader_are_stored_as_before(client: Client, published: str) -> None:
    """As older clients and tools store them."""
    async with client.consumer(published, group="g") as reader:
        await values(reader, 5)
        await client.admin.commit_position(published, "g", reader.position)
        assert await client.admin.position(published, "g") == reader.position


def test_the_blocking_reader_too(shared_cluster: Cluster) -> None:
    with SyncClient(*shared_cluster.servers) as client:
        client.admin.declare("read-once")
        with client.producer("read-once") as producer:
            producer.send(b"0")
        with client.consumer("read-once", group="g") as reader:
            assert [each.value for each in reader.read(1, timeout_ms=10_000)] == [b"0"]
            with pytest.raises(ExclusiveTaken), client.consumer("read-once", group="g"):
                pass
            reader.commit()


async def test_behind_a_failover_the_reader_keeps_its_group() -> None:
    """Goal: first come. Method: the master is killed; the reader commits at the next one, where a second is refused."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client, Client(*cluster.servers) as other:
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                await producer.send_many([b"%d" % each for each in range(10)])
            async with client.consumer("q", group="g") as reader:
                await values(reader, 3)
                cluster.nodes[(await client.queue_info("q")).master].kill()
                await values(reader, 2)
                await soon(reader.commit, InSyncReplicasNotEnough)
                with pytest.raises(ExclusiveTaken):
                    await other.consumer("q", group="g").start()
            async with other.consumer("q", group="g") as following:
                assert await values(following, 1) == [b"5"]
