"""What operators ask of the cluster, through whichever node they ask: drain, forget, rebalance, promote, events.

Everything that changes something is a command for the cluster and is answered once that is decided. What follows from
it (a log that is handed over) the coordinator brings about, this one or the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from msgspec.structs import replace

from mirrorlog.attempts import outcome_of
from mirrorlog.broker.hosting.former import FormerCopies
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.membership.events import WAIT_MS_MAX, EventRing
from mirrorlog.broker.session.topology_requests import RoutingRequests
from mirrorlog.cluster.coordination.coordinator import Fence
from mirrorlog.cluster.coordination.handover import Away, away_from_home
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import (
    FenceReport,
    Unclean,
    best_of,
    lost_from,
    lost_to,
    unclean_promotion,
)
from mirrorlog.cluster.decisions import asker
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import (
    Command,
    Holder,
    MasterWished,
    MovingPaused,
    NodeDraining,
    NodeForgotten,
    NodeLeaving,
    Promoted,
)
from mirrorlog.cluster.state.events import OF_USERS
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, encode_state
from mirrorlog.cluster.state.topology import ADMINISTRATOR
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError, NoSuchLog, NotLeader, Refused
from mirrorlog.queues.access import has_tag
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.operators import (
    ClusterEvent,
    CopyMoves,
    CopyPromoted,
    CopyReport,
    Drained,
    DrainNode,
    Events,
    ForgetNode,
    FreeFormer,
    GetCopyMoves,
    GetEvents,
    LogEpoch,
    LogRead,
    MasterMove,
    NoSuchNode,
    PauseMoving,
    PlannedMove,
    PromoteCopy,
    ReadLog,
    ReadState,
    Rebalance,
    Rebalanced,
    StateRead,
)
from mirrorlog.wire.messages.queues import Done

logger = logging.getLogger(__name__)

DECIDE_S: Final = 5.0
"""How long the cluster may take to decide what an operator asks for."""
READ_BYTES_MAX: Final = 1024 * 1024
"""Of a log, in one answer; one batch alone may be larger."""
WISH_ATTEMPTS: Final = 5
"""A log may move on between a look at it and the wish."""


class Operations:
    """`handlers`: by request, what answers it, at once where nothing has to be waited for: then it is done in the turn
    of who asks. Each raises MirrorlogError as the answer."""

    def __init__(
        self,
        service: ClusterService,
        events: EventRing,
        former: FormerCopies | None = None,
        *,
        logs: HostedLogs | None = None,
        helper: Executor | None = None,
    ) -> None:
        """`former`, `logs`: those of this node; None where there is no disk. `helper`: reads it."""
        self._service = service
        self._events = events
        self._former = former
        self._logs = HostedLogs() if logs is None else logs  # one that is empty now is not
        self._helper = helper
        self.handlers: Mapping[type[Message], Callable[[Any], Awaitable[Message] | Message]] = {
            DrainNode: self._drain,
            ForgetNode: self._forget,
            Rebalance: self._rebalance,
            GetCopyMoves: self._copy_moves,
            PauseMoving: self._pause,
            PromoteCopy: self._promote,
            GetEvents: self._get_events,
            FreeFormer: self._free_former,
            ReadState: self._read_state,
            ReadLog: self._read_log,
            **RoutingRequests(service).handlers,
        }

    # --- nodes ---

    async def _drain(self, asked: DrainNode) -> Message:
        node = asked.node or self._service.identity.node
        facts = self._facts_of(node)
        if asked.draining and asked.empty:
            await self._decide(NodeLeaving(node=node, leaving=True))
            return Drained(node=node, draining=facts.draining, leaving=True)
        await self._decide(NodeDraining(node=node, draining=asked.draining))
        if not asked.draining and facts.leaving:
            await self._decide(NodeLeaving(node=node, leaving=False))
        return Drained(node=node, draining=asked.draining, leaving=asked.draining and facts.leaving)

    async def _forget(self, asked: ForgetNode) -> Message:
        self._check_coordinates()
        facts = self._facts_of(asked.node)
        if self._service.life(asked.node) is Life.UP and not asked.force:
            raise Refused(
                f"node {asked.node} is up, as node {self._service.identity.node} sees it; stop it first, or force it"
            )
        await self._decide(NodeForgotten(node=asked.node, member=facts.member))
        return Done()

    async def _free_former(self, asked: FreeFormer) -> Message:
        if self._former is None:
            raise BadRequest("this node keeps no copies")
        return await self._former.free(asked.log)

    # --- logs ---

    async def _rebalance(self, asked: Rebalance) -> Message:
        moves = [(away, self._move(away)) for away in away_from_home(self._state, self._service.life)]
        wished = [] if asked.dry_run else [away for away, move in moves if not move.reason]
        for count, away in enumerate(wished):
            try:
                await self._wish(away)
            except MirrorlogError as error:
                raise outcome_of(error, in_doubt=count > 0, message=f"{count} of {len(wished)} logs go home") from None
        return Rebalanced(moves=[move for _, move in moves], done=not asked.dry_run)

    async def _copy_moves(self, asked: GetCopyMoves) -> Message:
        self._check_coordinates()
        state, coordination = self._state, self._service.coordination
        begun = {log_id for log_id, place in state.placing.logs.items() if place.target}
        return CopyMoves(
            moves=[
                PlannedMove(
                    log_id=move.log_id,
                    name=state.logs[move.log_id].name,
                    source=list(source),
                    target=list(move.nodes),
                    why=move.why,
                    size_bytes=coordination.sizes.get(move.log_id, -1),
                    under_way=move.log_id in begun and source == state.logs[move.log_id].replicas,
                )
                for source, move in await coordination.plan()
            ],
            paused=state.placing.paused,
        )

    async def _pause(self, asked: PauseMoving) -> Message:
        await self._decide(MovingPaused(paused=asked.paused))
        return Done()

    def _move(self, away: Away) -> MasterMove:
        log = self._state.logs[away.log_id]
        source = log.master.node if log.master is not None else ""
        return MasterMove(log_id=away.log_id, name=log.name, source=source, target=away.home, reason=away.reason)

    async def _wish(self, away: Away) -> None:
        """Decided when this returns: whoever coordinates hands the log over."""
        refusal = ""
        for _ in range(WISH_ATTEMPTS):
            log = self._state.logs.get(away.log_id)
            if log is None or log.wished == away.home or (log.master is not None and log.master.node == away.home):
                return
            wished = MasterWished(log_id=away.log_id, seen=log.seen, node=away.home)
            refusal = (await self._service.decisions.decide_once(wished)).refusal
            if not refusal:
                return
        raise Refused(refusal)

    async def _promote(self, asked: PromoteCopy) -> Message:
        self._check_coordinates()
        service = self._service
        log_id, log = self._log(asked.log)
        unclean = unclean_promotion(log, self._state, service.life)
        if asked.to and asked.to not in unclean.able:
            able = ", ".join(unclean.able)
            raise BadRequest(f"node {asked.to} cannot master log {log.name}; up, and with a copy of it, are: {able}")
        answer = CopyPromoted(
            log_id=log_id, name=log.name, missing=list(unclean.missing), able=list(unclean.able), done=False
        )
        if not asked.accept_loss:
            return answer
        reports, copies = await self._fence(log_id, log, unclean)
        node = asked.to or best_of(log, reports)
        if node not in reports:
            raise Refused(f"node {node} does not say what its copy of log {log.name} holds; nothing was changed")
        promoted = Promoted(
            log_id=log_id,
            seen=log.seen,
            holder=Holder(node, reports[node].start_id),
            epoch=max([log.epoch + 1, *(max(each.last_epoch + 1, each.promised) for each in reports.values())]),
            unclean=True,
            lost_from=lost_from(log, node, reports),
        )
        logger.warning("promoting_by_hand log=%s node=%s lost_from=%s", log.name, node, promoted.lost_from)
        await self._decide(promoted)
        return CopyPromoted(
            log_id=log_id,
            name=log.name,
            missing=list(unclean.missing),
            able=list(unclean.able),
            done=True,
            node=node,
            epoch=promoted.epoch,
            lost_from=promoted.lost_from,
            lost_to=lost_to(log, node, reports),
            copies=copies,
        )

    async def _fence(
        self, log_id: str, log: LogFacts, unclean: Unclean
    ) -> tuple[dict[str, FenceReport], list[CopyReport]]:
        """What the copies that are there hold; from here on none of them writes or acks an older epoch."""
        fences = [Fence(node, log_id, log.epoch + 1) for node in unclean.able]
        answers = await asyncio.gather(
            *(self._service.coordination.ask_fence(fence) for fence in fences), return_exceptions=True
        )
        reports: dict[str, FenceReport] = {}
        copies = []
        for fence, answer in zip(fences, answers, strict=True):
            if isinstance(answer, FenceReport):
                reports[fence.node] = answer
                copies.append(
                    CopyReport(
                        node_id=fence.node, last_epoch=answer.last_epoch, end=answer.end, confirmed=answer.confirmed
                    )
                )
            elif isinstance(answer, MirrorlogError):
                copies.append(CopyReport(node_id=fence.node, error=str(answer)))
            else:
                raise answer
        if not reports:
            reasons = "; ".join(f"{copy.node_id}: {copy.error}" for copy in copies)
            raise Refused(f"no copy of log {log.name} says what it holds; nothing was changed: {reasons}")
        return reports, copies

    # --- events ---

    def _get_events(self, asked: GetEvents) -> Awaitable[Message] | Message:
        if asked.after < 0 or asked.limit < 1:
            raise BadRequest(f"events are numbered from 1, and one at least is asked for: {asked.after}, {asked.limit}")
        if self._events.last > asked.after or asked.wait_ms <= 0:
            return self._events_behind(asked)
        return self._events_later(asked)

    async def _events_later(self, asked: GetEvents) -> Message:
        await self._events.wait(asked.after, min(asked.wait_ms, WAIT_MS_MAX) / 1000)
        return self._events_behind(asked)

    def _events_behind(self, asked: GetEvents) -> Message:
        events, identity = self._events, self._service.identity
        return Events(
            node_id=identity.node,
            start_id=identity.start_id,
            now_us=now_us(),
            first=events.first,
            last=events.last,
            events=[self._readable(event) for event in events.behind(asked.after, asked.limit)],
        )

    def _readable(self, event: ClusterEvent) -> ClusterEvent:
        """For who asks. What he may not know leaves its number: he follows them by that."""
        users = self._state.routing.users
        if event.kind not in OF_USERS or not users:
            return event
        user = users.get(asker())
        if user is not None and has_tag(user, (ADMINISTRATOR,)):
            return event
        return replace(
            event, text=f"a matter of users and permissions; what, the tag {ADMINISTRATOR} may read", details={}
        )

    # --- backups ---

    def _read_state(self, asked: ReadState) -> Message:
        if not self._service.in_touch():
            raise NotLeader("this node has not heard its cluster for a while; ask another node")
        return StateRead(state=encode_state(self._state), version=self._state.version)

    async def _read_log(self, asked: ReadLog) -> Message:
        hosted = self._logs.get(asked.log_id)
        if hosted is None:
            raise LogUnavailable(f"this node has no copy of log {asked.log_id} that can be read")
        log = hosted.replica.log
        begin, confirmed, masters = log.begin, log.confirmed, hosted.knows_confirmed
        until = min(asked.until, confirmed)
        if asked.max_bytes < 1 or asked.first >= until:
            epochs = [LogEpoch(*each) for each in log.epochs.held(confirmed)]
            return LogRead(begin=begin, confirmed=confirmed, masters=masters, epochs=epochs)
        size = min(asked.max_bytes, READ_BYTES_MAX)
        run: bytes | memoryview | None = log.read(asked.first, size, until=until)
        if run is None:
            job = log.read_cold(asked.first, size, until=until)
            run = await asyncio.get_running_loop().run_in_executor(self._helper, job.run)
        return LogRead(begin=begin, confirmed=confirmed, masters=masters, data=bytes(run))

    # --- inside ---

    @property
    def _state(self) -> ClusterState:
        return self._service.state

    def _check_coordinates(self) -> None:
        """Who is gone for one node may be there for the others: who coordinates has to see it. One that has just begun
        to may not have heard of all that was decided yet. Raises NotLeader."""
        own, leader = self._service.identity.node, self._service.leader
        if leader != own:
            raise NotLeader(
                f"node {own} does not coordinate the cluster, {leader or 'nobody known'} does; ask that one"
            )
        if not self._service.driver.raft.settled:
            raise NotLeader(f"node {own} has only begun to coordinate the cluster; ask again")

    def _facts_of(self, node: str) -> NodeFacts:
        facts = self._state.nodes.get(node)
        if facts is None:
            raise NoSuchNode(f"no node {node!r} in this cluster; there are {', '.join(self._state.nodes)}")
        return facts

    def _log(self, name: str) -> tuple[str, LogFacts]:
        for log_id, log in self._state.logs.items():
            if name in (log_id, log.name):
                return log_id, log
        known = ", ".join(log.name for log in self._state.logs.values()) or "none"
        raise NoSuchLog(f"no log {name!r} in this cluster; there are {known}")

    async def _decide(self, command: Command) -> None:
        """Raises Refused with the cluster's reason, RequestTimeout when no majority decides, OutcomeUnknown."""
        outcome = await self._service.decisions.propose(command, timeout_s=DECIDE_S)
        if outcome.refusal:
            raise outcome.error
