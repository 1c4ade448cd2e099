"""Kills a mirror while records are published, watches the confirms stop, starts it again, and sees where it resumes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from demo.offline import end_of_log
from demo.publishing import Publication
from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, Refused, RequestTimeout
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages import LogStatus, MirrorStatus

_POLL_S: Final = 0.02
_STILL_S: Final = 1.0
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Log offsets of the killed mirror: `acked` last before the kill, `received` (whole batches on its disk after it),
    `asked` after its start. `killed` and `recovered`: s of the run's clock; confirms stood still in between."""

    node_id: str
    acked: int
    received: int
    asked: int
    killed: float
    recovered: float
    confirmed_records: int
    refusal: str


async def outage(
    cluster: Cluster, queue: str, node_id: str, publication: Publication, *, at_records: int, during: Callable[[], None]
) -> Outage:
    """Once `at_records` are confirmed: SIGKILL, wait until confirms stopped and the producer was told why, see
    a new publish refused, call `during`, start again, and wait until the mirror is back.

    Raises MirrorlogError when the new one is not refused, and when the mirror asks for less than it acked.
    """
    node = cluster.nodes[node_id]
    await _until(lambda: len(publication.confirmed) >= at_records, "enough records are confirmed")
    killed = time.perf_counter()
    await asyncio.to_thread(node.kill)
    stopped_at = await _confirms_stopped(publication)
    refusal = await _refused_anew(cluster, queue)
    status = await asyncio.to_thread(_master_log, cluster)
    acked = _mirror(status, node_id).acked
    received = await asyncio.to_thread(end_of_log, node.data_dir, status.log_id)
    await asyncio.to_thread(during)
    if len(publication.confirmed) != stopped_at:
        raise MirrorlogError(f"{len(publication.confirmed) - stopped_at} records were confirmed without {node_id}")
    await asyncio.to_thread(node.start)
    asked = await _requested(cluster, node_id)
    if asked < acked:
        raise MirrorlogError(f"{node_id} asks for log offset {asked}, below its last ack, {acked}")
    await _until(lambda: len(publication.confirmed) > stopped_at, "confirms go on")
    return Outage(node_id, acked, received, asked, killed, time.perf_counter(), stopped_at, refusal)


async def _confirms_stopped(publication: Publication) -> int:
    """The number of confirmed records, once it stood still for a second and the producer was told why."""
    deadline = time.perf_counter() + _TIMEOUT_S
    seen, since = len(publication.confirmed), time.perf_counter()
    while True:
        await asyncio.sleep(_POLL_S)
        now = time.perf_counter()
        if len(publication.confirmed) != seen:
            seen, since = len(publication.confirmed), now
        # Which of the two depends on whether a batch was under way to the mirror when it died.
        told = publication.stats.refused_attempts or publication.stats.unknown_attempts
        if told and now - since >= _STILL_S:
            return seen
        if now >= deadline:
            raise RequestTimeout(f"confirms did not stop within {_TIMEOUT_S:g} s of the kill")


async def _refused_anew(cluster: Cluster, queue: str) -> str:
    """What a new producer is told: a refusal, nothing was stored (the check of all queue offsets would find it)."""
    try:
        async with (
            Client(cluster.master.client) as client,
            client.producer(queue, confirm="all", delivery_timeout_ms=500) as producer,
        ):
            receipt = await producer.send(b"must not be stored")
    except Refused as error:
        return error.code
    raise MirrorlogError(f"a publish was confirmed without a mirror that it needs: {receipt}")


async def _requested(cluster: Cluster, node_id: str) -> int:
    """What the mirror asked its master for, once its link is proven."""
    deadline = time.perf_counter() + _TIMEOUT_S
    while time.perf_counter() < deadline:
        mirror = _mirror(await asyncio.to_thread(_master_log, cluster), node_id)
        if mirror.proven:
            return mirror.requested
        await asyncio.sleep(_POLL_S)
    raise RequestTimeout(f"{node_id} did not come back within {_TIMEOUT_S:g} s")


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + _TIMEOUT_S
    while not condition():
        if time.perf_counter() >= deadline:
            raise RequestTimeout(f"not within {_TIMEOUT_S:g} s: {what}")
        await asyncio.sleep(_POLL_S)


def _master_log(cluster: Cluster) -> LogStatus:
    return cluster.master.status().logs[0]


def _mirror(status: LogStatus, node_id: str) -> MirrorStatus:
    return next(mirror for mirror in status.mirrors if mirror.node_id == node_id)
