"""Kills the master while records are published, sees another copy take over, and starts it again as a mirror."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from demo.offline import end_of_log
from demo.publishing import Publication
from mirrorlog.errors import MirrorlogError, RequestTimeout
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.status import LogStatus, MirrorStatus, Status

_POLL_S: Final = 0.005
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Outage:
    """`killed` and `recovered`: s of the run's clock, from the kill until the killed node is in sync again.

    `failover_s`: from the kill to the first confirm of the new epoch. `held`: the log offset where the killed node's
    disk ended; `asked`: from where it asked its successor, which is below that where it held what nobody else had.
    """

    node_id: str
    successor: str
    epoch: int
    failover_s: float
    held: int
    asked: int
    killed: float
    recovered: float


async def outage(
    cluster: Cluster, log_name: str, publication: Publication, *, at_records: int, during: Callable[[], None]
) -> Outage:
    """Once `at_records` are confirmed: SIGKILL of the log's master, wait until confirms go on, call `during`, start it
    again, and wait until it is in sync.

    Raises MirrorlogError when nobody takes over, or the node does not come back.
    """
    await _until(lambda: len(publication.confirmed) >= at_records, "enough records are confirmed")
    node = cluster.nodes[await asyncio.to_thread(cluster.wait_master, log_name)]
    log = _log(await asyncio.to_thread(node.status), log_name)
    await asyncio.to_thread(node.kill)
    killed = time.perf_counter()
    await _until(lambda: publication.epoch > log.epoch, "confirms go on in a new epoch")
    failover_s = publication.epoch_began - killed
    successor = await asyncio.to_thread(cluster.wait_master, log_name)
    held = await asyncio.to_thread(end_of_log, node.data_dir, log.log_id)
    await asyncio.to_thread(during)
    await asyncio.to_thread(node.start)
    mirror = await _in_sync(cluster, log_name, successor, node.id)
    return Outage(
        node.id, successor, publication.epoch, failover_s, held, mirror.requested, killed, time.perf_counter()
    )


def _log(status: Status, name: str) -> LogStatus:
    return next(log for log in status.logs if log.name == name)


async def _in_sync(cluster: Cluster, log_name: str, master: str, node_id: str) -> MirrorStatus:
    """The mirror as its master sees it, once it is in sync."""
    deadline = time.perf_counter() + _TIMEOUT_S
    while time.perf_counter() < deadline:
        log = _log(await asyncio.to_thread(cluster.nodes[master].status), log_name)
        for mirror in log.mirrors:
            if mirror.node_id == node_id and mirror.in_sync:
                return mirror
        await asyncio.sleep(_POLL_S)
    raise RequestTimeout(f"{node_id} did not come back within {_TIMEOUT_S:g} s")


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.perf_counter() + _TIMEOUT_S
    while not condition():
        if time.perf_counter() >= deadline:
            raise MirrorlogError(f"not within {_TIMEOUT_S:g} s: {what}")
        await asyncio.sleep(_POLL_S)
