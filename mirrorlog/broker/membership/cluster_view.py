"""What this node knows of its cluster, for whoever asks it: members, logs, masters, and all of it as a status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, Final
from uuid import UUID, uuid5

from mirrorlog import versions
from mirrorlog.broker.hosting.hosting import assignment_of
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.membership.cluster_status import cluster_status
from mirrorlog.broker.membership.placing import Declared, PlacingSettings, evening, place_for, rule_for, unlike, will_do
from mirrorlog.cluster.coordination.liveness import Change, Life, nodes_needed, nodes_out
from mirrorlog.cluster.coordination.unmastered import waited_for
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import (
    Command,
    LogMade,
    MoveBegun,
    QueueIdsGranted,
    QueuesPlaced,
    QueuesRemoved,
    QueuesUnbound,
    SpanSeen,
    TransientLogMade,
    member_of,
)
from mirrorlog.cluster.state.log_rules import other_queue, promised_of
from mirrorlog.cluster.state.move_rules import why_not
from mirrorlog.cluster.state.placements import NO_PLACES, LogPlaces, MovingQueue, Placement, Span
from mirrorlog.cluster.state.state import QUEUE_IDS_GRANTED, QUEUE_IDS_MAX, ClusterState, LogFacts, Outcome
from mirrorlog.cluster.state.topology import NONE as NO_TOPOLOGY
from mirrorlog.cluster.state.topology import User, VirtualHost
from mirrorlog.cluster.state.topology_commands import PasswordRenewed
from mirrorlog.config import LOG_NUMBER_MAX, LogAssignment, Member
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError, NoSuchVirtualHost, NotLeader
from mirrorlog.queues.arguments import log_group_key
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.queues.policies import Effective, effective
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.queues import QueueOutage
from mirrorlog.wire.messages.status import ClusterStatus
from mirrorlog.wire.names import qualified, shown, split

EVERYWHERE_S: Final = 2.0
"""How long nodes may take to hear that nothing leads to a queue any more; those that hang are not waited for longer."""
PLACE_S: Final = 8.0
"""How long a log may be looked for, for a queue: a coordinator that hangs is noticed and replaced within that."""


class NodeView:
    """`ClusterView` of a node whose cluster service is `service`, and the way to its decisions."""

    def __init__(self, placing: PlacingSettings | None = None) -> None:
        self._placing = placing or PlacingSettings()
        self.service: ClusterService | None = None
        self._down_since_us: dict[str, int] = {}
        self._transient: Mapping[str, str] = {}
        self._transient_ids: frozenset[UUID] = frozenset()
        self._log_groups: Mapping[str, str] = {}
        self._grouped_logs: frozenset[str] = frozenset()

    def life_changed(self, change: Change) -> None:
        """Another node is up or down, as seen from here."""
        if change.life is Life.DOWN:
            self._down_since_us.setdefault(change.node, now_us())
        else:
            self._down_since_us.pop(change.node, None)

    async def decide_once(self, command: Command) -> Outcome:
        """As `Decisions.decide_once`."""
        if self.service is None:
            raise NotLeader("this node is in no cluster yet")
        return await self.service.decisions.decide_once(command)

    @property
    def known(self) -> ClusterState | None:
        """See `ports.ClusterView`."""
        return self.service.state if self.service is not None else None

    def member(self, node: str) -> Member | None:
        """Where a node is reached."""
        facts = self.known.nodes.get(node) if self.known is not None else None
        return member_of(node, facts.addresses) if facts is not None else None

    def members(self) -> Iterable[Member]:
        """All but witnesses, which no client has any use for."""
        nodes = self.known.nodes if self.known is not None else {}
        return [member_of(node, facts.addresses) for node, facts in nodes.items() if not facts.witness]

    def logs(self) -> Mapping[UUID, LogAssignment]:
        """All logs there are, in the order of their numbers."""
        logs = self.known.logs if self.known is not None else {}
        by_number = sorted(logs.items(), key=lambda item: item[1].number)
        return {UUID(log_id): assignment_of(facts) for log_id, facts in by_number}

    def master(self, log_id: UUID) -> Member | None:
        """Who writes a log, if anybody does."""
        facts = self.known.logs.get(str(log_id)) if self.known is not None else None
        return self.member(facts.master.node) if facts is not None and facts.master is not None else None

    def contact_at(self, now: float) -> float:
        """When this node was in touch with a majority of its cluster last (s, the loop's clock)."""
        return self.service.driver.raft.contact_at(now) if self.service is not None else -inf

    def version(self) -> int:
        """Of the newest decision that is known here."""
        return self.known.version if self.known is not None else 0

    def cluster_version(self) -> int:
        """What may be written; see `mirrorlog.versions`."""
        return self.known.cluster_version if self.known is not None else versions.FIRST

    def renew_password(self, renewed: PasswordRenewed) -> None:
        """Have it decided, and do not wait; whoever logs in later asks for it again."""
        self._cluster_service().propose_soon(renewed)

    def routing_version(self, virtual_host: str) -> int:
        """Of what is known here; 0 when there is no such virtual host, or nothing is known."""
        host = self.known.routing.virtual_host(virtual_host) if self.known is not None else None
        return host.version if host is not None else 0

    def virtual_host(self, name: str) -> VirtualHost | None:
        """Its exchanges and bindings, as far as they are known here; another object after each change of them."""
        return self.known.routing.virtual_host(name) if self.known is not None else None

    async def ask(self, node: str, question: bytes) -> bytes:
        """As `ClusterService.ask`."""
        return await self._cluster_service().ask(node, question)

    async def up_to_date(self) -> None:
        """As `Decisions.up_to_date`."""
        await self._cluster_service().decisions.up_to_date()

    def users(self) -> Mapping[str, User]:
        """Another object after each change of them. Until it is known what of it is decided: all that the disk holds,
        for the snapshot alone may be of a time without users."""
        service = self.service  # asked for with every batch
        topology = service.expected.topology if service is not None else None
        return (topology or NO_TOPOLOGY).users

    def has_heard(self) -> bool:
        """Whether the cluster knows of this run, and what it decided before is known here."""
        return self.service is not None and self.service.registration.is_in

    def placed(self, queue: str) -> UUID | None:
        """The log that a queue is in, if it was ever declared."""
        log_id = self.known.queues.get(queue) if self.known is not None else None
        return UUID(log_id) if log_id is not None else None

    def spans(self, queue: str) -> Sequence[Span]:
        """Of a queue that has moved; see `ports.ClusterView`."""
        return self.known.placing.spans.get(queue, ()) if self.known is not None else ()

    def all_spans(self) -> Mapping[str, Sequence[Span]]:
        """Of all queues that have moved; see `ports.ClusterView`."""
        return self.known.placing.spans if self.known is not None else {}

    def span_seen(self, queue: str, span: Span) -> SpanSeen:
        """See `ports.ClusterView`."""
        spans = self.spans(queue)
        target = spans[-1].log_id if spans else ""  # it is deleted: nothing that is said of it counts
        return SpanSeen(target, self.places().came.get(queue, 0), span.first)

    def moves(self) -> Mapping[str, MovingQueue]:
        """Queues on their way; see `ports.ClusterView`."""
        return self.known.placing.moves if self.known is not None else {}

    def places(self) -> LogPlaces:
        """See `ports.ClusterView`."""
        return self.known.placing if self.known is not None else NO_PLACES

    def log_facts(self, log_id: str) -> LogFacts | None:
        """What the cluster has decided of a log."""
        return self.known.logs.get(log_id) if self.known is not None else None

    def in_group(self, queue: str, log_group: str) -> bool:
        """Whether a queue is where its `x-log-group` is, as far as is known here."""
        state = self.known
        key = qualified(split(queue)[0], log_group)
        return state is not None and queue in state.queues and state.queues[queue] == state.log_groups.get(key)

    def is_group_moving(self, log_group: str) -> bool:
        """See `ports.ClusterView`."""
        return bool(log_group) and any(move.log_group == log_group for move in self.moves().values())

    def outage(self, log_id: UUID, queue: str = "") -> LogUnavailable | None:
        """Why nobody can answer for a log, and a queue in it, now; None while somebody may."""
        state = self.known
        facts = state.logs.get(str(log_id)) if state is not None else None
        if state is None or facts is None or self.service is None or self.is_transient(log_id):
            return None  # what goes with its node is about to be gone
        nodes = nodes_out(facts, state, self.service.life)
        if not nodes:
            return None
        return self._outage(facts, nodes, queue, grouped=self._is_grouped(log_id, state))

    def _is_grouped(self, log_id: UUID, state: ClusterState) -> bool:
        """Whether there are log groups in a log."""
        if state.log_groups is not self._log_groups:  # asked for of each queue that is out, and there may be 10,000
            self._log_groups, self._grouped_logs = state.log_groups, frozenset(state.log_groups.values())
        return str(log_id) in self._grouped_logs

    def why_unmastered(self, log_id: UUID) -> str:
        """See `ports.ClusterView`."""
        state, service, key = self.known, self.service, str(log_id)
        if state is None or service is None or key not in state.logs or self.is_transient(log_id):
            return ""
        nodes = waited_for(state.logs[key], state, service.life)
        return service.why_unmastered(key, since=_since(self._down_since_us.get(nodes[0], 0))) if nodes else ""

    def why_elsewhere(self, log_number: int) -> MirrorlogError | None:
        """See `ports.ClusterView`."""
        logs = self.known.logs.items() if self.known is not None else ()
        for log_id, facts in logs:
            if facts.number == log_number:
                master = self.member(facts.master.node) if facts.master is not None else None
                return self.outage(UUID(log_id)) or not_master(
                    facts.name, master, why=self.why_unmastered(UUID(log_id))
                )
        return None

    def names(self) -> Iterable[str]:
        """Of all queues that have a place, as the cluster has decided."""
        return self.known.queues if self.known is not None else ()

    def outages(self, queues: Iterable[str] | None) -> list[QueueOutage]:
        """Those of these queues, or of all there are, that nobody can answer for now, by name; of these also the ones
        that have a copy here, and that nobody can master."""
        state = self.known
        if state is None:
            return []
        if queues is None:
            names: Iterable[str] = state.queues
            out = {log_id for log_id in map(UUID, state.logs) if self.outage(log_id)}
        else:
            names = queues
            logs = {log_id for name in queues if (log_id := self.placed(name)) is not None}
            out = {log_id for log_id in logs if self.outage(log_id) or self._waits_for_nodes(log_id, "")}
        if not out:
            return []
        return [self._queue_outage(name, log_id) for name in sorted(names) if (log_id := self.placed(name)) in out]

    def _queue_outage(self, name: str, log_id: UUID | None) -> QueueOutage:
        assert log_id is not None
        error = self.outage(log_id, name) or self._waits_for_nodes(log_id, name)
        assert error is not None
        node, since = error.details["node"], error.details["since"]
        return QueueOutage(name=name, log_id=str(log_id), node=node, since_us=since, reason=str(error))

    def _waits_for_nodes(self, log_id: UUID, queue: str) -> LogUnavailable | None:
        """Why nobody can master a log now, though a copy of it is up; None while somebody may."""
        state = self.known
        facts = state.logs.get(str(log_id)) if state is not None else None
        if state is None or facts is None or self.service is None or self.is_transient(log_id):
            return None
        nodes = nodes_needed(facts, state, self.service.life)
        if not nodes or self.service.identity.node not in facts.replicas:
            return None  # said with the copy, which may be read
        since = self._down_since_us.get(nodes[0], 0)
        return LogUnavailable(
            f"queue {shown(queue)!r} has no master: {self.why_unmastered(log_id)}",
            node=nodes[0],
            since=since,
            queue=queue,
        )

    def _outage(self, log: LogFacts, nodes: tuple[str, ...], queue: str, *, grouped: bool) -> LogUnavailable:
        """`grouped`: there are log groups in this log, and who names one again comes back to it."""
        what = f"queue {shown(queue)!r}" if queue else f"log {log.name}"
        since = self._down_since_us.get(nodes[0], 0)
        when = _since(since)
        if len(nodes) == 1:
            where, advice = f"on node {nodes[0]} alone, which is down{when}", f"start {nodes[0]}"
        else:
            where, advice = f"on nodes {', '.join(nodes)}, which are all down{when}", "start them"
        error = LogUnavailable(
            f"{what} is {where}; {advice}, or declare a queue with more copies under another name"
            + (" and another x-log-group" if grouped else ""),
            node=nodes[0],
            since=since,
        )
        if queue:
            error.details["queue"] = queue
        return error

    async def place(self, queue: str, arguments: Mapping[str, Any]) -> UUID:
        """Have a log decided for a new queue; see `ports.ClusterView`."""
        service = self._cluster_service()
        virtual_host = split(queue)[0]
        if service.state.routing.virtual_host(virtual_host) is None:
            raise NoSuchVirtualHost(f"there is no virtual host {virtual_host[:64]!r}; add it first")
        if is_transient(arguments):
            return await self._place_here(queue, service)
        arguments, log_group = self.effective(queue, arguments).arguments, log_group_key(queue, arguments)
        found = self._place_for(service, queue, arguments, log_group)
        log_id = await self._made(found, service) if isinstance(found, LogMade) else found
        # Asked for again if a coordinator hangs: it is decided once, whatever comes of the first.
        asked = {name: arguments[name] for name in ("copies", "flush") if log_group and name in arguments}
        command = QueuesPlaced(log_id=log_id, names=(queue,), log_group=log_group, **asked)
        outcome = await service.decisions.decide(command, timeout_s=PLACE_S)
        if outcome.refusal and log_group:
            raise outcome.error if outcome.code else BadRequest(outcome.refusal)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")
        if (placed := service.state.queues.get(queue)) is None:
            # A master that found a place without a queue has taken it away, between the decision and this look.
            raise NotLeader(f"queue {shown(queue)!r} was placed, and its place taken away; ask again")
        return UUID(placed)

    def _place_for(
        self, service: ClusterService, queue: str, arguments: Mapping[str, Any], log_group: str = ""
    ) -> str | LogMade:
        declared = Declared(queue, arguments, service.identity.node, log_group)
        return place_for(service.state, declared, self._placing, is_up=self._is_up)

    def _is_up(self, node: str) -> bool:
        return self.life(node) is Life.UP

    def life(self, node: str) -> Life:
        """See `ports.ClusterView`."""
        return self._cluster_service().life(node)

    def evening(self, queue: str, arguments: Mapping[str, Any], log_id: UUID) -> int:
        """See `ports.ClusterView`."""
        service = self._cluster_service()
        declared = Declared(queue, arguments, service.identity.node)
        return evening(service.state, declared, str(log_id), self._placing, is_up=self._is_up)

    def rule_of(self, log_id: UUID) -> Placement:
        """By which a log is on its nodes."""
        return self._cluster_service().state.rule(str(log_id))

    def rule_for(self, arguments: Mapping[str, Any]) -> Placement:
        """See `ports.ClusterView`."""
        return rule_for(arguments, self._cluster_service().state, self._placing)

    def unlike(self, queue: Queue, log_id: UUID) -> Mapping[str, Any]:
        """See `ports.ClusterView`."""
        state, key = self._cluster_service().state, str(log_id)
        if key not in state.logs:
            return {}
        made = state.placing.place(key).rule is not None
        default = self._placing if queue.governed is not None else None
        return unlike(queue.effective, state.rule(key), made=made, default=default)

    def policies_version(self) -> int:
        """See `ports.ClusterView`."""
        return self.known.routing.policies_version if self.known is not None else 0

    def effective(self, queue: str, arguments: Mapping[str, Any]) -> Effective:
        """See `ports.ClusterView`."""
        return effective(self.virtual_host(split(queue)[0]), queue, arguments)

    def moving_paused(self) -> bool:
        """See `ports.ClusterView`."""
        return self.known is not None and self.known.placing.paused

    def move_refusal(self, moved: MoveBegun) -> str:
        """See `ports.ClusterView`."""
        return why_not(self._cluster_service().state, moved)

    def copies_of(self, rule: Placement) -> int:
        """See `ports.ClusterView`."""
        staying = [
            node
            for node, facts in self._cluster_service().state.nodes.items()
            if not facts.witness and not facts.leaving
        ]
        return promised_of(rule, [node for node in staying if not rule.nodes or node in rule.nodes])

    def may_alter(self, log_id: UUID, rule: Placement) -> bool:
        """See `ports.ClusterView`."""
        state, key = self._cluster_service().state, str(log_id)
        log, made = state.logs.get(key), state.placing.place(key).rule is not None
        return made and log is not None and log.flush == rule.flush and not other_queue(state, key)

    async def wanted_log(
        self, queue: str, arguments: Mapping[str, Any], log_id: UUID | None, *, make: bool
    ) -> UUID | None:
        """See `ports.ClusterView`."""
        service = self._cluster_service()
        if log_id is not None and will_do(service.state, str(log_id), arguments, self._placing):
            return log_id
        found = self._place_for(service, queue, arguments)
        if isinstance(found, LogMade):
            return UUID(await self._made(found, service)) if make else None
        return UUID(found)

    async def _place_here(self, queue: str, service: ClusterService) -> UUID:
        """In the log of what goes with this node's run, which is made when it is needed first."""
        state, node = service.state, service.identity.node
        if node not in state.transient:
            number = state.free_number(LOG_NUMBER_MAX)
            if number is None:
                raise BadRequest(f"the cluster has {len(state.logs)} logs, and can have no more")
            log_id = str(uuid5(UUID(state.cluster_id), f"transient-{node}-{number}"))
            made = await service.decisions.decide(
                TransientLogMade(log_id=log_id, number=number, node=node), timeout_s=PLACE_S
            )
            if made.refusal:
                raise NotLeader(f"{made.refusal}; ask again")
        placed = QueuesPlaced(log_id=service.state.transient[node], names=(queue,))
        outcome = await service.decisions.decide(placed, timeout_s=PLACE_S)
        if outcome.refusal or queue not in service.state.queues:
            raise NotLeader(f"{outcome.refusal or 'the cluster has just given this run up'}; ask again")
        return UUID(service.state.queues[queue])

    def is_transient(self, log_id: UUID) -> bool:
        """Whether what is in a log goes with its node's run; what the cluster has not placed there is gone."""
        transient = self.known.transient if self.known is not None else {}
        if transient is not self._transient:  # asked for with every fetch
            self._transient, self._transient_ids = transient, frozenset(map(UUID, transient.values()))
        return log_id in self._transient_ids

    def placed_in(self, log_id: UUID) -> list[str]:
        """The queues that are in a log; see `ports.ClusterView`."""
        queues = self.known.queues if self.known is not None else {}
        wanted = str(log_id)  # once: there may be 100,000 queues
        return [name for name, where in queues.items() if where == wanted]

    def lost_from(self, log_id: UUID) -> bool:
        """Whether a loss was ever declared of a log."""
        facts = self.known.logs.get(str(log_id)) if self.known is not None else None
        return facts is None or bool(facts.losses)

    def queue_ids(self, log_id: UUID) -> int:
        """See `ports.ClusterView`."""
        return self.known.queue_ids(str(log_id)) if self.known is not None else QUEUE_IDS_MAX

    async def grant_queue_ids(self, log_id: UUID, *, given: int) -> None:
        """See `ports.ClusterView`."""
        until = max(given, self.queue_ids(log_id)) + QUEUE_IDS_GRANTED
        granted = QueueIdsGranted(log_id=str(log_id), until=until)
        outcome = await self._cluster_service().decisions.decide(granted, timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")

    async def unbind_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        """Nothing leads to the queues any more, on every node that is up; see `ports.ClusterView`."""
        service = self._cluster_service()
        command = QueuesUnbound(names=tuple(queues), log_id=str(log_id), epoch=epoch)
        outcome = await service.decisions.decide(command, timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")
        await service.decisions.applied_everywhere(outcome.index, timeout_s=EVERYWHERE_S)

    async def remove_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        """The queues' places are taken away; see `ports.ClusterView`."""
        service = self._cluster_service()
        removals = service.state.removals.get(str(log_id), 0)
        command = QueuesRemoved(names=tuple(queues), log_id=str(log_id), epoch=epoch, removals=removals)
        outcome = await service.decisions.decide(command, timeout_s=PLACE_S)
        if outcome.refusal:
            raise NotLeader(f"{outcome.refusal}; ask again")

    def _cluster_service(self) -> ClusterService:
        if self.service is None:
            raise NotLeader("this node is in no cluster yet; ask again")
        return self.service

    @staticmethod
    async def _made(log: LogMade, service: ClusterService) -> str:
        """Its id, once the log is there: this declaration's, or that of one that came at the same time."""
        outcome = await service.decisions.decide(log, timeout_s=PLACE_S)
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
        return cluster_status(self.service) if self.service is not None else None


def _since(time_us: int) -> str:
    """For people; empty when it is not known."""
    return f" since {datetime.fromtimestamp(time_us // 1_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}" if time_us else ""
