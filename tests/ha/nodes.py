"""Whole nodes in this process and on one loop, joined by real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mirrorlog.broker.hosted import HostedLog
from mirrorlog.broker.node import Node
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.roles import MasterRole, MirrorRole
from mirrorlog.config import (
    ClusterSettings,
    Flush,
    GrpcSettings,
    HaSettings,
    LogAssignment,
    LogSettings,
    Member,
    NodeSettings,
    Settings,
)
from mirrorlog.ha.accept import MasteredLog
from mirrorlog.ha.client_service import HAClientService
from mirrorlog.testing.ports import HOST, free_ports
from tests.ha.replicas import KIB

WAIT_S = 10.0


def cluster_settings(
    root: Path, *, copies: int, ha: HaSettings, flush: Flush = "memory", replication: str | None = None
) -> list[Settings]:
    """One node each for a log on all of them; the first is the master, advertised at `replication`."""
    ports = iter(free_ports(2 * copies))
    members = tuple(
        Member(id=f"n{number}", client=f"{HOST}:{next(ports)}", replication=f"{HOST}:{next(ports)}")
        for number in range(copies)
    )
    if replication is not None:
        members = (members[0].model_copy(update={"replication": replication}), *members[1:])
    names = tuple(member.id for member in members)
    log = LogAssignment(master=names[0], mirrors=names[1:], flush=flush, min_in_sync=1)
    return [
        Settings(
            cluster=ClusterSettings(members=members, logs=(log,)),
            node=NodeSettings(id=name, data_dir=root / name),
            grpc=GrpcSettings(enabled=False),
            log=LogSettings(segment_bytes=8 * 1024 * KIB, populate_bytes=0, flush_interval_ms=20),
            ha=ha,
        )
        for name in names
    ]


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Node]:
    """A node that serves; stopped cleanly at the end."""
    node = Node(settings)
    task = asyncio.ensure_future(node.run())
    await until(lambda: task.done() or (node._door is not None and node._door._server is not None))
    if task.done():
        task.result()
    try:
        yield node
    finally:
        node.stop()
        await asyncio.wait_for(task, WAIT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the nodes tell nobody of what they have reached
            await asyncio.sleep(0.005)


def hosted_by(node: Node) -> HostedLog:
    """The only log of a node, once it has been opened."""
    (log,) = node.logs
    return log


def replica_of(node: Node) -> Replica:
    return hosted_by(node).replica


def mastered_by(node: Node) -> MasteredLog:
    role = hosted_by(node).role
    assert isinstance(role, MasterRole)
    return role.mastered


def mirrored_by(node: Node) -> HAClientService:
    role = hosted_by(node).role
    assert isinstance(role, MirrorRole)
    return role.service
