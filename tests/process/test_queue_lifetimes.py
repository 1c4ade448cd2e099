"""Queues that go by themselves, on real nodes: with their last subscriber, or when nobody uses them; through failovers
and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mirrorlog.client import Client, Producer, Subscription
from mirrorlog.errors import BadRequest, MirrorlogError, NoSuchQueue, NotMaster
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from tests.process.clusters import error_of, fast_cluster
from tests.process.raw import Raw

AUTO = {"auto-delete": True}
SOON_S = 15.0


@asynccontextmanager
async def cluster_of(directory: Path, *, return_ms: int = 0) -> AsyncIterator[tuple[Cluster, Client]]:
    settings = {"cluster.node_timeout_ms": 600, "limits.subscriber_return_ms": return_ms}
    with fast_cluster(3, min_in_sync=2, data_dir=directory, settings=settings) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, request_timeout_ms=20_000) as client:
            yield cluster, client


async def is_there(client: Client, queue: str) -> bool:
    metadata = await client.admin.metadata([queue])
    return bool(metadata.queues or metadata.placed)


async def gone(client: Client, queue: str) -> None:
    """Until its name is free."""
    async with asyncio.timeout(SOON_S):
        while await is_there(client, queue):  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.05)


async def looked_at(client: Client, sentinel: str) -> None:
    """Until a look has gone over all queues with lifetimes since: one that was declared after the others, and expires
    at once, is gone."""
    await client.admin.declare(sentinel, {"x-expires": 1})
    await gone(client, sentinel)
    await client.admin.declare(sentinel, {"x-expires": 1})
    await gone(client, sentinel)


async def publish_until_refused(producer: Producer) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            await producer.send(b"x")


async def read_to_end(subscription: Subscription) -> MirrorlogError:
    try:
        async for delivered in subscription:
            await delivered.ack()
    except MirrorlogError as error:
        return error
    raise AssertionError("it ended without a reason")


@pytest.mark.long
async def test_queues_go_when_nobody_needs_them(tmp_path: Path) -> None:
    """Goal: auto-delete and x-expires as promised, with bindings, and the id is not used again. Method: an auto-delete
    queue stays before its first subscriber and with one of two, goes with the last, and a batch to it is told so; an
    expiring one goes while it is published to; one that has a subscriber stays."""
    async with cluster_of(tmp_path / "nodes") as (_, client):
        first = await client.admin.declare("auto", AUTO)
        await client.admin.topology.declare_exchange("e", "fanout")
        await client.admin.topology.bind("e", "auto")
        await looked_at(client, "sentinel")
        assert await is_there(client, "auto")
        async with client.subscribe("auto"):
            async with client.subscribe("auto"):
                pass
            await looked_at(client, "sentinel")
            assert await is_there(client, "auto")
        await gone(client, "auto")
        assert not [each for each in (await client.admin.topology.routing()).bindings if each.destination == "auto"]
        again = await client.admin.declare("auto", AUTO)
        assert again.queue_id > first.queue_id

        await client.admin.declare("used", {"x-expires": 1_500})
        await client.admin.declare("idle", {"x-expires": 1_500})
        async with client.subscribe("used"), client.producer("idle") as producer:
            with pytest.raises(NoSuchQueue):
                await publish_until_refused(producer)
            await gone(client, "idle")
            await looked_at(client, "sentinel")
            assert await is_there(client, "used")
        await gone(client, "used")


@pytest.mark.long
async def test_a_failover_deletes_no_auto_delete_queue(tmp_path: Path) -> None:
    """Goal: a new master knows nobody, and that is no absence. Method: two such queues with a subscriber each; the
    master is killed: one subscriber comes back and gets what is sent, the other's client is gone: its queue is deleted
    after the time for coming back; then all nodes are killed at once and come back: the same."""
    async with cluster_of(tmp_path / "nodes", return_ms=4_000) as (cluster, client):
        for queue in ("kept", "left"):
            await client.admin.declare(queue, AUTO)
        other = await Client(*cluster.servers).connect()
        await other.subscribe("left").start()
        async with client.subscribe("kept") as kept, client.producer("kept") as producer:
            killed = cluster.master
            killed.kill()
            await other.close()
            await producer.send(b"after the failover")
            assert (await anext(kept)).value == b"after the failover"
            assert await is_there(client, "left")
            await gone(client, "left")
            assert await is_there(client, "kept")
            killed.start()
            await asyncio.to_thread(restart_all, cluster)
            await producer.send(b"after the restart")
            while (await anext(kept)).value != b"after the restart":
                pass
            await looked_at(client, "sentinel")
            assert await is_there(client, "kept")
            reading = asyncio.ensure_future(read_to_end(kept))
            await client.admin.delete_queue("kept")
            assert isinstance(await reading, NoSuchQueue)


def restart_all(cluster: Cluster) -> None:
    """Killed at once."""
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.wait_serving()


async def test_an_expiring_queue_is_read_at_its_master_alone(tmp_path: Path) -> None:
    """Reads at mirrors would be no use that the master sees: it tells of no mirrors, and a mirror sends on."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        info = await client.admin.declare("q", {"x-expires": 60_000})
        assert info.mirrors == []
        mirror = next(node for node in cluster.nodes.values() if node.id != info.master)
        with Raw(mirror.client) as raw:
            assert raw.request(GetMetadata(queues=["q"]), Metadata).queues[0].mirrors == []
            error = error_of(lambda: raw.fetch(info.queue_id, 0))
        assert isinstance(error, NotMaster)
        assert error.details["node"] == info.master
        with pytest.raises(BadRequest, match="mirror"):
            async with client.consumer("q", read_from="mirror", start="earliest") as consumer:
                await anext(aiter(consumer))


@pytest.mark.long
async def test_a_queue_that_is_read_all_the_time_outlives_a_pause_of_its_node(tmp_path: Path) -> None:
    """Goal: neither x-expires nor auto-delete takes a queue, and its confirmed records, since its node stood still for
    longer than it may be idle. Method: one is read by offset, with fetches that are over during the pause; the node is
    stopped for twice its time and goes on; when the next looks have been they are there."""
    with fast_cluster(1, min_in_sync=1, data_dir=tmp_path / "nodes") as cluster:
        cluster.wait_in_sync()
        node = next(iter(cluster.nodes.values()))
        async with Client(node.client, request_timeout_ms=30_000) as client:
            for name, arguments in (("read", {"x-expires": 1_500}), ("auto", AUTO)):
                await client.admin.declare(name, arguments)
                async with client.producer(name) as producer:
                    await producer.send(b"confirmed")
            async with (
                client.subscribe("auto") as subscription,
                client.consumer("read", start="earliest", max_wait_ms=200) as consumer,
            ):
                assert (await anext(subscription)).value == b"confirmed"
                records = aiter(consumer)
                assert (await anext(records)).value == b"confirmed"
                reading = asyncio.ensure_future(anext(records))
                node.pause()
                await asyncio.sleep(3.0)  # what is measured: nobody can use it meanwhile
                node.resume()
                await looked_at(client, "sentinel")
                assert {queue.name for queue in await client.admin.queues()} == {"read", "auto"}
                async with client.producer("read") as producer:
                    await producer.send(b"more")
                assert (await reading).value == b"more"
