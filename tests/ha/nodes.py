"""Servers in this process and on one loop, joined by real sockets, whose logs have the roles that a list gives them.

No cluster service runs here: what a log does on a node, and between nodes, is tried by itself. Who is in sync `Decider`
says, as a cluster does: a log begins with its master alone, which lets its mirrors in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.roles import MasterRole, MirrorRole
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.server import Server
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.placements import NO_PLACES, LogPlaces, MovingQueue, Span
from mirrorlog.cluster.state.state import QUEUE_IDS_GRANTED, ClusterState, LogFacts, Outcome
from mirrorlog.cluster.state.topology import User, VirtualHost
from mirrorlog.cluster.state.topology_commands import PasswordRenewed
from mirrorlog.commitlog.directory import DataDirectory
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
from mirrorlog.errors import LogUnavailable, MirrorlogError, NotLeader
from mirrorlog.ha.accept import MasteredLog
from mirrorlog.ha.client_service import HAClientService
from mirrorlog.queues.queue_table import Queue
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.queues import QueueOutage
from mirrorlog.wire.messages.status import ClusterStatus
from tests.ha.decider import Decider
from tests.ha.replicas import KIB

WAIT_S = 10.0
NEVER_MS = 600_000
"""Longer than a test takes: nobody leaves an in-sync set for being away."""


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
            cluster=ClusterSettings(members=members, logs=(log,), mirror_lag_time_ms=NEVER_MS),
            node=NodeSettings(id=name, data_dir=root / name),
            grpc=GrpcSettings(enabled=False),
            log=LogSettings(segment_bytes=8 * 1024 * KIB, populate_bytes=0, flush_interval_ms=20),
            ha=ha,
        )
        for name in names
    ]


class Assigned:
    """What a node knows where the list of the logs, and what tests tell its own logs, is all there is to know."""

    def __init__(self, settings: Settings) -> None:
        self._cluster = settings.cluster
        self.node = settings.node.id
        self.decider = Decider.of(settings)
        self.hosted = HostedLogs()
        self.queue_ids_granted = QUEUE_IDS_GRANTED
        self.queue_ids_refused = False
        self.behind: set[str] = set()
        """Queues that were placed, as is not known here before it is asked for."""

    @property
    def known(self) -> ClusterState | None:
        return None

    def member(self, node: str) -> Member | None:
        return next((member for member in self._cluster.members if member.id == node), None)

    def members(self) -> Iterable[Member]:
        return self._cluster.members

    def logs(self) -> Mapping[UUID, LogAssignment]:
        return {self._cluster.log_id(log): log for log in self._cluster.logs}

    def master(self, log_id: UUID) -> Member | None:
        log = self.hosted.get(str(log_id))
        return self.member(log.assignment.master if log is not None else self.logs()[log_id].master)

    def contact_at(self, now: float) -> float:
        return now

    def version(self) -> int:
        return 0

    def cluster_version(self) -> int:
        return versions.OWN

    def routing_version(self, virtual_host: str) -> int:
        return 0

    def virtual_host(self, name: str) -> VirtualHost | None:
        return VirtualHost()

    async def up_to_date(self) -> None:
        self.behind.clear()

    def users(self) -> Mapping[str, User]:
        return {}

    def renew_password(self, renewed: PasswordRenewed) -> None:
        raise NotLeader("there is no cluster here")

    def has_heard(self) -> bool:
        return True

    def placed(self, queue: str) -> UUID | None:
        return next(iter(self.logs())) if queue not in self.behind else None

    def unlike(self, queue: Queue, log_id: UUID) -> Mapping[str, Any]:
        return {}

    def policies_version(self) -> int:
        return 0

    def is_group_moving(self, log_group: str) -> bool:
        return False

    def outage(self, log_id: UUID, queue: str = "") -> LogUnavailable | None:
        return None

    def why_unmastered(self, log_id: UUID) -> str:
        return ""

    def why_elsewhere(self, log_number: int) -> MirrorlogError | None:
        return None

    def outages(self, queues: Iterable[str] | None) -> list[QueueOutage]:
        return []

    async def place(self, queue: str, arguments: Mapping[str, Any]) -> UUID:
        raise NotLeader("there is no cluster here")

    def queue_ids(self, log_id: UUID) -> int:
        return self.queue_ids_granted

    async def grant_queue_ids(self, log_id: UUID, *, given: int) -> None:
        if self.queue_ids_refused:
            raise NotLeader("there is no cluster here")
        self.queue_ids_granted = given + 3

    def names(self) -> list[str]:
        return []

    def spans(self, queue: str) -> Sequence[Span]:
        return ()

    def all_spans(self) -> Mapping[str, Sequence[Span]]:
        return {}

    def moves(self) -> Mapping[str, MovingQueue]:
        return {}

    def places(self) -> LogPlaces:
        return NO_PLACES

    def log_facts(self, log_id: str) -> LogFacts | None:
        return None

    def placed_in(self, log_id: UUID) -> list[str]:
        return []

    def is_transient(self, log_id: UUID) -> bool:
        return False

    def lost_from(self, log_id: UUID) -> bool:
        return False

    async def unbind_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        raise NotLeader("there is no cluster here")

    async def remove_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        raise NotLeader("there is no cluster here")

    def links(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def status(self, now: float) -> ClusterStatus | None:
        return None

    async def decide_once(self, command: Command) -> Outcome:
        return self.decider.decide(command)


class Node:
    """A server whose logs are what the list says. `start`, then `stop`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failure: MirrorlogError | None = None
        self.ended = asyncio.Event()
        cluster, node = settings.cluster, settings.node
        self._directory = DataDirectory.open(node.data_dir, cluster_id=cluster.cluster_id, node_id=node.id)
        view = self.view = Assigned(settings)
        self._decider, self._start_id = view.decider, versions.run_id(str(uuid4()))
        self.server = Server(settings, self._directory, start_id=self._start_id, view=view, failed=self.fail)
        view.hosted = self.logs

    @property
    def logs(self) -> HostedLogs:
        return self.server.logs

    async def run(self) -> int:
        """Until it has failed; its exit code."""
        try:
            await self.start()
            await self.ended.wait()
        finally:
            await self.stop()
        return self.failure.exit_code if self.failure is not None else 0

    def fail(self, error: MirrorlogError) -> None:
        self.failure = self.failure or error
        self.ended.set()

    async def start(self) -> None:
        """Raises MirrorlogError; it is to be stopped all the same."""
        await self.server.start()
        cluster, node = self.settings.cluster, self.settings.node.id
        for assignment in cluster.logs:
            await self.server.open_log(assignment, cluster.log_id(assignment))
        self._decider.started(node, self._start_id, self.logs)
        for log in self.logs:
            assignment = log.assignment
            if log.error is not None:
                continue
            if assignment.master == node:
                await lead(log, assignment, max(log.facts().epoch_known, self._decider.facts(log).epoch) + 1)
            else:
                await log.follow(assignment)
        await self.server.listen()

    async def stop(self) -> None:
        self.server.refuse_publishes()
        await self.server.drain(hurry=lambda: self.failure is not None)
        self._decider.ended(self.settings.node.id)
        await self.server.stop()
        self.server.shut_down()
        self._directory.close()


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Node]:
    """A node that serves; stopped cleanly at the end."""
    node = Node(settings)
    try:
        await node.start()
        yield node
    finally:
        await asyncio.wait_for(node.stop(), WAIT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails after `WAIT_S`."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the nodes tell nobody of what they have reached
            await asyncio.sleep(0.005)


def hosted_by(node: Node) -> HostedLog:
    """The only log of a node, once it has been opened."""
    (log,) = node.logs
    return log


def decider_of(log: HostedLog) -> Decider:
    return Decider.of(log._host.settings)


async def lead(log: HostedLog, assignment: LogAssignment, epoch: int) -> None:
    """As a cluster does it: promote, and tell what was decided meanwhile."""
    decider = decider_of(log)
    await log.lead(assignment, epoch, decider.promoted(log, epoch))
    decider.tell()


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
