"""Where the copies of a queue are: as many as it asks for, on other nodes when one is gone for long."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import BadRequest
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
    2, 3 and the cluster's number of copies; confirms of all tell how many there are. Then the mirror of the one with
    two is killed for good: the third node gets a copy, and a confirm has two again."""
    settings = {"cluster.replace_after_ms": 1_000, "cluster.node_timeout_ms": 1_000}
    async with fast_cluster(3, min_in_sync=1, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            asked = {"one": {"copies": 1}, "two": {"copies": 2}, "three": {"copies": 3}, "default": {}}
            queues = {name: await client.admin.declare(name, arguments) for name, arguments in asked.items()}

            def in_sync(name: str) -> int:
                log = placed(cluster, queues[name].log_id)
                return len(log.in_sync) if log is not None else 0

            async def copies_of(name: str) -> int:
                async with client.producer(name, confirm="all") as producer:
                    return (await producer.send(b"v")).copies

            for name, count in {"one": 1, "two": 2, "three": 3, "default": 3}.items():
                await asyncio.to_thread(eventually, lambda n=name, c=count: in_sync(n) == c, f"{name} has its copies")  # type: ignore[misc]
                assert await copies_of(name) == count
            assert queues["three"].log_id == queues["default"].log_id
            with pytest.raises(BadRequest, match="'copies' is 4, and the cluster has 3 nodes"):
                await client.admin.declare("four", {"copies": 4})

            log = placed(cluster, queues["two"].log_id)
            assert log is not None
            (mirror,) = set(log.replicas) - {log.master}
            (third,) = set(cluster.nodes) - set(log.replicas)
            cluster.nodes[mirror].kill()
            await asyncio.to_thread(
                eventually,
                lambda: (now := placed(cluster, queues["two"].log_id)) and set(now.in_sync) == {log.master, third},
                "the third node holds a copy",
            )
            assert await copies_of("two") == 2
