"""A cluster some of whose mirrors began late: each shows queues from the last segment on, while the others have all."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from tests.process.clusters import MIB, eventually, fast_cluster, log_of

SETTINGS = {
    "log.kept_mapped_bytes": 0,
    "log.prepare_bytes": 0,
    "limits.max_batch_bytes": 256 * 1024,
    "limits.max_record_bytes": 128 * 1024,
}
QUEUE = "q"
RECORDS = 3000
OLD_QUEUE = "old"
OLD_RECORDS = 10


@contextmanager
def late_mirrors(copies: int = 2, *, late: int = 1, grpc: bool = False) -> Iterator[Cluster]:
    """n2 and the next, `late` of them, hold the end of `QUEUE`, of numbered records, and nothing of `OLD_QUEUE`."""
    with fast_cluster(copies, segment_bytes=MIB, settings=SETTINGS, min_in_sync=1, grpc=grpc) as cluster:
        cluster.wait_in_sync()
        asyncio.run(_fill(cluster))
        cluster.wait_confirmed()
        mirrors = cluster.mirrors
        for node in mirrors[:late]:
            node.stop()
            shutil.rmtree(node.data_dir / "logs")
            node.start("--set", "ha.start=last-segment")
        end = log_of(cluster.master).confirmed
        for node in mirrors[:late]:
            eventually(lambda node=node: log_of(node).begin > MIB, "it begins late")
            eventually(lambda node=node: log_of(node).confirmed >= end, "it follows")
        assert 0 < late_begin(cluster) < RECORDS
        yield cluster


def late_begin(cluster: Cluster) -> int:
    """The first record of `QUEUE` that n2 shows."""
    return next(queue.begin for queue in log_of(cluster.nodes["n2"]).queues if queue.name == QUEUE)


async def _fill(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        for queue, values in (
            (OLD_QUEUE, [b"%d" % number for number in range(OLD_RECORDS)]),
            (QUEUE, [b"%01024d" % number for number in range(RECORDS)]),
        ):
            await client.admin.declare(queue)
            async with client.producer(queue) as producer:
                await producer.send_many(values)
