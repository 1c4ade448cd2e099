"""What this node knows of its cluster, for whoever asks it: members, logs, masters, and all of it as a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final
from uuid import UUID

from mirrorlog import versions
from mirrorlog.broker.hosting import assignment_of
from mirrorlog.broker.placing import place_for
from mirrorlog.cluster.advice import advice
from mirrorlog.cluster.commands import AnyCommand, LogMade, QueueRemoved, QueuesPlaced, QueueUnbound
from mirrorlog.cluster.founding import member_of
from mirrorlog.cluster.liveness import Life
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state import ClusterState, LogFacts, NodeFacts, Outcome
from mirrorlog.cluster.topology import User
from mirrorlog.config import LogAssignment, Member
from mirrorlog.errors import NoSuchVirtualHost, NotLeader
from mirrorlog.versions import version_of
from mirrorlog.wire.messages import ClusterStatus, LossStatus, NodeStatus, PlacedLog
from mirrorlog.wire.names import split

EVERYWHERE_S: Final = 2.0
"""How long nodes may take to hear that nothing leads to a queue any more; those that hang are not waited for longer."""
PLACE_S: Final = 8.0
"""How long a log may be looked for, for a queue: a coordinator that hangs is noticed and replaced within that."""


_NO_USERS: Final[Mapping[str, User]] = {}


class View:
    """`ClusterView` of a node whose cluster service is `service`, and the way to its decisions."""

    def __init__(self) -> None:
        self.service: ClusterService | None = None

    async def decide_once(self, command: AnyCommand) -> Outcome:
        """As `ClusterService.decide_once`."""
        if self.service is None:
            raise NotLeader("this node is in no cluster yet")
        return await self.service.decide_once(command)

    @property
    def _known(self) -> ClusterState | None:
        return self.service.state if self.service is not None else None

    def member(self, node: str) -> Member | None:
        """Where a node is reached."""
        facts = self._known.nodes.get(node) if self._known is not None else None
        return member_of(node, facts.addresses) if facts is not None else None

    def members(self) -> Iterable[Member]:
        """All but witnesses, which no client has any use for."""
        nodes = self._known.nodes if self._known is not None else {}
        return [member_of(node, facts.addresses) for node, facts in nodes.items() if not facts.witness]

    def logs(self) -> Mapping[UUID, LogAssignment]:
        """All logs there are, in the order of their numbers."""
        logs = self._known.logs if self._known is not None else {}
        by_number = sorted(logs.items(), key=lambda item: item[1].number)
        return {UUID(log_id): assignment_of(facts) for log_id, facts in by_number}

    def master(self, log_id: UUID) -> Member | None:
        """Who writes a log, if anybody does."""
        facts = self._known.logs.get(str(log_id)) if self._known is not None else None
        return self.member(facts.master.node) if facts is not None and facts.master is not None else None

    def contact_at(self, now: float) -> float:
        """When this node was in touch with a majority of its cluster last (s, the loop's clock)."""
        return self.service.driver.raft.contact_at(now) if self.service is not None else -inf

    def version(self) -> int:
        """Of the newest decision that is known here."""
        return self._known.version if self._known is not None else 0

    def cluster_version(self) -> int:
        """What may be written; see `mirrorlog.versions`."""
        return self._known.cluster_version if self._known is not None else versions.FIRST

    def routing_version(self, virtual_host: str) -> int:
        """Of what is known here; 0 when there is no such virtual host, or nothing is known."""
        host = self._known.routing.virtual_host(virtual_host) if self._known is not None else None
        return host.version if host is not None else 0

    def users(self) -> Mapping[str, User]:
        """Another object after each change of them. Until it is known what of it is decided: all that the disk holds,
        for the snapshot alone may be of a time without users."""
        service = self.service  # asked for with every batch
        return service.expected.routing.users if service is not None else _NO_USERS

    def has_heard(self) -> bool:
        """Whether the cluster knows of this run, and what it decided before is known here."""
        return self.service is not None and self.service.registration.is_in

    def placed(self, queue: str) -> UUID | None:
        """The log that a queue is in, if it was ever declared."""
        log_id = self._known.queues.get(queue) if self._known is not None else None
        return UUID(log_id) if log_id is not None else None

    async def place(self, queue: str, arguments: Mapping[str, Any]) -> UUID:
        """Have a log decided for a new queue; see `requests.ClusterView`."""
        service = self._cluster_service()
        virtual_host = split(queue)[0]
        if service.state.routing.virtual_host(virtual_host) is None:
            raise NoSuchVirtualHost(f"there is no virtual host {virtual_host[:64]!r}; add it first")
        found = place_for(
            service.state, arguments, copies=service.wanted.copies, is_up=lambda node: service.life(node) is Life.UP
        )
        log_id = await self._made(found, service) if isinstance(found, LogMade) else found
        # Asked for again if a coordinator hangs: it is decided once, whatever comes of the first.
        outcome = await service.decide(QueuesPlaced(log_id=log_id, names=(queue,)), timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")
        return UUID(service.state.queues[queue])

    async def unbind_queue(self, queue: str) -> None:
        """Nothing leads to the queue any more, on every node that is up; see `deletion.Cluster`."""
        service = self._cluster_service()
        outcome = await service.decide(QueueUnbound(name=queue), timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")
        await service.applied_everywhere(outcome.index, timeout_s=EVERYWHERE_S)

    async def remove_queue(self, queue: str, log_id: UUID, epoch: int) -> None:
        """The queue's place is taken away; see `deletion.Cluster`."""
        service = self._cluster_service()
        removals = service.state.removals.get(str(log_id), 0)
        command = QueueRemoved(name=queue, log_id=str(log_id), epoch=epoch, removals=removals)
        outcome = await service.decide(command, timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")

    def _cluster_service(self) -> ClusterService:
        if self.service is None:
            raise NotLeader("this node is in no cluster yet; ask again")
        return self.service

    @staticmethod
    async def _made(log: LogMade, service: ClusterService) -> str:
        """Its id, once the log is there: this declaration's, or that of one that came at the same time."""
        outcome = await service.decide(log, timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")
        return log.log_id

    def links(self) -> tuple[int, int, int]:
        """To other members: opened in this run, standing now, and questions that failed on them."""
        if self.service is None:
            return 0, 0, 0
        mesh = self.service.mesh
        return mesh.opened, len(mesh.reached()), mesh.failed

    def status(self, now: float) -> ClusterStatus | None:
        """`now`: the loop's clock in s."""
        service = self.service
        if service is None:
            return None
        state, waits = service.state, service.waits
        own = state.nodes.get(service.identity.node)
        return ClusterStatus(
            version=state.version,
            incarnation=state.incarnation,
            coordinator=service.leader,
            term=service.driver.raft.term,
            elections=service.elections,
            registered=own is not None and own.start_id == service.identity.start_id,
            nodes=[_node_status(node, facts, service) for node, facts in state.nodes.items()],
            logs=[_placed(log_id, log, waits.get(log_id, ())) for log_id, log in state.logs.items()],
            advice=advice(state),
            cluster_version=state.cluster_version,
        )


def _node_status(node: str, facts: NodeFacts, service: ClusterService) -> NodeStatus:
    addresses = facts.addresses
    return NodeStatus(
        node_id=node,
        member=facts.member,
        client=addresses.client,
        replication=addresses.replication,
        grpc=addresses.grpc,
        http=addresses.http,
        life=service.life(node).value,
        start_id=facts.start_id,
        kind=facts.kind.value if facts.start_id else "",
        witness=facts.witness,
        stopped=facts.stopped,
        draining=facts.draining,
        votes=facts.member not in service.driver.raft.members.learners,
        software_version=version_of(facts.start_id) if facts.start_id else 0,
    )


def _placed(log_id: str, log: LogFacts, waits_for: Iterable[str]) -> PlacedLog:
    return PlacedLog(
        log_id=log_id,
        name=log.name,
        flush=log.flush,
        replicas=list(log.replicas),
        master=log.master.node if log.master is not None else "",
        epoch=log.epoch,
        version=log.version,
        in_sync=[node for node in log.replicas if node in log.in_sync],
        marked=[node for node in log.replicas if node in log.marked],
        copies=log.copies,
        copies_wanted=log.copies_wanted,
        losses=[LossStatus(epoch=loss.epoch, start=loss.start, end=loss.end, leapt=loss.leapt) for loss in log.losses],
        waits_for=list(waits_for),
        wished=log.wished,
    )
