"""Where the copies of a queue are: as many as it asks for, on other nodes when one is gone for long."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.status import PlacedLog
from tests.process.clusters import eventually, fast_cluster

pytestmark = pytest.mark.process


def placed(cluster: Cluster, log_id: str) -> PlacedLog | None:
    """As a node that answers has it."""
    views = [status.cluster for status in cluster.statuses().values() if status.cluster is not None]
    newest = max(views, key=lambda view: view.version)
    return next((log for log in newest.logs if log.log_id == log_id), None)


async def test_a_queue_has_as_many_copies_as_it_asks_for_and_a_lost_one_is_replaced() -> None:
    """Goal: a queue's own number of copies, and no fewer for longer than is set. Method: of three nodes, queues with 1,
    2, 3, 4 and the cluster's number of copies; confirms of all tell how many there are. Then the mirror of the one with
    two is killed for good: the third node gets a copy, and a confirm has two again."""
    settings = {"cluster.replace_after_ms": 1_000, "cluster.node_timeout_ms": 1_000}
    async with fast_cluster(3, min_in_sync=1, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            asked = {
                "one": {"copies": 1},
                "two": {"copies": 2},
                "three": {"copies": 3},
                "four": {"copies": 4},
                "default": {},
            }
            queues = {name: await client.admin.declare(name, arguments) for name, arguments in asked.items()}

            def in_sync(name: str) -> int:
                log = placed(cluster, queues[name].log_id)
                return len(log.in_sync) if log is not None else 0

            async def copies_of(name: str) -> int:
                async with client.producer(name, confirm="all") as producer:
                    return (await producer.send(b"v")).copies

            for name, count in {"one": 1, "two": 2, "three": 3, "four": 3, "default": 3}.items():
                await asyncio.to_thread(eventually, lambda n=name, c=count: in_sync(n) == c, f"{name} has its copies")  # type: ignore[misc]
                assert await copies_of(name) == count
            assert queues["three"].log_id == queues["default"].log_id
            assert queues["four"].log_id != queues["three"].log_id, "it is all nodes, also of those that come"

            def two_copies(without: str = "") -> PlacedLog | None:
                """The log, unless a node was just taken for dead: then it has a third one for a while."""
                log = placed(cluster, queues["two"].log_id)
                return (
                    log if log and len(log.replicas) == len(log.in_sync) == 2 and without not in log.replicas else None
                )

            log = await asyncio.to_thread(eventually, two_copies, "two copies")
            (mirror,) = set(log.replicas) - {log.master}
            cluster.nodes[mirror].kill()
            await asyncio.to_thread(eventually, lambda: two_copies(without=mirror), "the third node holds a copy")
            assert await copies_of("two") == 2


async def test_every_list_of_queues_is_the_clusters_whichever_node_is_asked() -> None:
    """Goal: no queue is missing because the wrong node was asked. Method: three nodes with a queue each that only they
    have, and one on all; the list of a client that knows one node, for each; then a node is paused that nobody takes
    for dead yet: its own queue is told with the node that does not answer."""
    settings = {"cluster.node_timeout_ms": 60_000}
    async with fast_cluster(3, min_in_sync=1, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("everywhere")
        for name, node in cluster.nodes.items():
            async with Client(node.client) as own:
                await own.admin.declare(f"on-{name}", {"durable": False})
        masters = {"everywhere": "n1", "on-n1": "n1", "on-n2": "n2", "on-n3": "n3"}
        for node in cluster.nodes.values():
            async with Client(node.client) as client:
                found = await client.admin.metadata()
                assert {queue.name: queue.master for queue in found.queues} == masters
                assert found.outages == []
                named = await client.admin.metadata(["on-n3", "none", "on-n1", "on-n2"])
                assert [queue.name for queue in named.queues] == ["on-n3", "on-n1", "on-n2"]
                assert named.missing == ["none"]
        cluster.nodes["n2"].pause()
        try:
            async with Client(cluster.nodes["n3"].client) as client:
                found = await client.admin.metadata()
            assert {queue.name for queue in found.queues} == masters.keys() - {"on-n2"}
            assert [(each.name, each.node) for each in found.outages] == [("on-n2", "n2")]
            assert "n2 does not" in found.outages[0].reason
        finally:
            cluster.nodes["n2"].resume()
