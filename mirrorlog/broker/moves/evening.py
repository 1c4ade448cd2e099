"""Queues are spread over the homes that they may have: after a node joined, or many queues went, some move.

Each node gives away what it has too much of. While nothing else moves, and after a quiet time that is longer for a node
with fewer queues, so that the fullest one begins and the others see it: two that begin at once may give too much, and
the next look gives it back. Who has nothing that may move says nothing, and the next one's time comes.

A queue that was placed by anything but the fewest masters stays, and so does a log group that is too large to make
anything more even. Of those that may move the ones with the fewest records go: what they have stays in the former log.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.coordination.balance import at_rest
from mirrorlog.cluster.state.commands import MoveBegun
from mirrorlog.cluster.state.state import ClusterState, holds_transient
from mirrorlog.errors import MirrorlogError, Refused
from mirrorlog.queues.arguments import OF_PLACES, fits, log_group_key
from mirrorlog.queues.limits.lifetime import is_transient
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""For the node with most queues; so much more for each that has more than a node."""
LOOK_S: Final = 0.5
AGAIN_S: Final = 60.0
"""How long a queue is left where it is whose move did not come about."""
AT_ONCE_MAX: Final = 8
"""Queues that begin to move together, each by itself."""


_NOWHERE: Final = ("",) * len(OF_PLACES)


class QueueEvening:
    """Of one node, `own`."""

    def __init__(self, own: str, logs: HostedLogs, view: ClusterView) -> None:
        self._own = own
        self._logs = logs
        self._view = view
        self.is_being_deleted: Callable[[str], bool] = lambda name: False
        """As of `MoveService`."""
        self._look_at = self._quiet_since = 0.0
        self._seen: tuple[object, ...] = ()
        # Of what was seen: see `_ranked`; whether all else is as it should be, once it was asked for.
        self._rank: int | None = None
        self._is_rest: bool | None = None
        self._again_at = 0.0
        self._not_before: dict[str, float] = {}
        self._staying: dict[str, tuple[object, ...]] = {}
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if now < self._look_at or (self._task is not None and not self._task.done()):
            return
        self._look_at = now + LOOK_S
        state = self._view.known
        if state is None or state.cluster_version < versions.PLACEMENTS:
            return
        seen = (state.queues, state.logs, state.places, state.nodes, *map(self._view.life, state.nodes))
        if seen != self._seen:
            self._seen, self._quiet_since, self._again_at = seen, now, 0.0
            self._rank, self._is_rest = self._ranked(state), None
        elif self._rank is not None and now - self._quiet_since >= QUIET_S * (1 + self._rank) and now >= self._again_at:
            self._give(state, now)

    def _give(self, state: ClusterState, now: float) -> None:
        """What may go, if anything may. When nothing may, nobody looks again before something changes: there may be
        100,000 queues."""
        if self._is_rest is None:
            self._is_rest = at_rest(state, self._view.life)
        if not self._is_rest:
            return
        self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        for log in self._mastered():
            if moves := self._moves(log):
                names = [queue.name for queues in moves for queue in queues]
                self._not_before.update(dict.fromkeys(names, now + AGAIN_S))
                self._task = asyncio.ensure_future(self._begin(log, moves))
                return
        if all(log.knows_confirmed for log in self._logs if log.masters):
            self._again_at = min((now + AGAIN_S, *self._not_before.values()))

    def _mastered(self) -> Iterator[HostedLog]:
        return (log for log in self._logs if log.masters and log.knows_confirmed)

    def stays(self, queue: Queue) -> None:
        """Somebody has cancelled its move: it stays while there are these nodes, and it asks for this place. That is
        not decided, and forgotten with this run of the node."""
        state = self._view.known
        queues = state.queues if state is not None else {}
        self._staying = {name: at for name, at in self._staying.items() if name in queues}
        self._staying[queue.name] = self._situation(queue)

    def _situation(self, queue: Queue) -> tuple[object, ...]:
        """What a queue's place depends on."""
        state = self._view.known
        nodes = state.nodes.items() if state is not None else ()
        return (*_place_of(queue), *(node for node, facts in nodes if facts.stays))

    async def idle(self) -> None:
        """Until what it has chosen has begun, or was refused."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Nothing is begun any more."""
        if self._task is not None:
            self._task.cancel()
            await self.idle()

    def planned(self) -> Iterator[tuple[HostedLog, Queue, str]]:
        """Queues that this node would give away next, also while moving is paused: each with its log, and why."""
        state = self._view.known
        if state is None or self._ranked(state) is None:
            return
        if not at_rest(replace(state, places=replace(state.placing, paused=False)), self._view.life):
            return
        mastered = _mastered(state)
        least = min(
            (node for node, facts in state.nodes.items() if facts.stays), key=lambda node: (mastered[node], node)
        )
        why = f"{self._own} masters {mastered[self._own]} queues, {least} {mastered[least]}"
        for log in self._mastered():
            yield from ((log, queue, why) for queues in self._moves(log) for queue in queues)

    def _ranked(self, state: ClusterState) -> int | None:
        """How many nodes master more queues, of equals those with lower names; None when this one has no more to give
        than a queue, whoever takes it."""
        mastered = _mastered(state)
        least = min((mastered[node] for node, facts in state.nodes.items() if facts.stays), default=0)
        if mastered[self._own] - least < 2:
            return None
        return sum((-count, node) < (-mastered[self._own], self._own) for node, count in mastered.items() if node)

    def _moves(self, log: HostedLog) -> list[tuple[Queue, ...]]:
        """Of one log, all to one home, so that it does not become the fuller one: those that go together."""
        alone: defaultdict[tuple[str, ...], list[Queue]] = defaultdict(list)
        groups: defaultdict[str, list[Queue]] = defaultdict(list)
        for queue in log.replica.queues:
            if group := log_group_key(queue.name, queue.arguments):
                groups[group].append(queue)
            elif self._may_move(queue):
                alone[_place_of(queue)].append(queue)
        size = self._size(log)
        # What goes there together has the same arguments of its place.
        least = {place: min(queues, key=size) for place, queues in alone.items()}
        for place in sorted(least, key=lambda place: size(least[place])):
            same = alone[place]
            if many := self._many(least[place], log):
                return [(each,) for each in heapq.nsmallest(min(many, AT_ONCE_MAX), same, key=size)]
        for _, queues in sorted(groups.items()):
            if all(map(self._may_move, queues)) and len(queues) <= self._many(queues[0], log):
                return [tuple(queues)]
        return []

    @staticmethod
    def _size(log: HostedLog) -> Callable[[Queue], tuple[int, str]]:
        """Records that would stay behind."""
        index = log.replica.index
        return lambda queue: (index.next_confirmed(queue.queue_id) - index.begin(queue.queue_id), queue.name)

    def _may_move(self, queue: Queue) -> bool:
        if is_transient(queue.arguments) or queue.name in self._not_before or self.is_being_deleted(queue.name):
            return False
        return queue.name not in self._staying or self._staying[queue.name] != self._situation(queue)

    def _many(self, queue: Queue, log: HostedLog) -> int:
        try:
            return self._view.evening(queue.name, queue.effective, log.log_id)
        except MirrorlogError as error:
            logger.debug("queue_not_evened queue=%r reason=%r", queue.name, str(error))
            return 0

    async def _begin(self, log: HostedLog, moves: Sequence[tuple[Queue, ...]]) -> None:
        """All of them go where the first one would be."""
        first = moves[0][0]
        try:
            target = await self._view.wanted_log(first.name, first.effective, None, make=True)
            for queues in moves:
                names, group = tuple(queue.name for queue in queues), log_group_key(queues[0].name, queues[0].arguments)
                begun = MoveBegun(names=names, target=str(target), log_group=group)
                if refusal := self._view.move_refusal(begun):
                    raise Refused(refusal)
                outcome = await self._view.decide_once(begun)
                if outcome.refusal:
                    raise outcome.error
                logger.info("queues_evened log=%s queues=%s to=%s", log.name, ",".join(begun.names), target)
        except MirrorlogError as error:
            logger.info("queues_not_evened log=%s queue=%r reason=%r", log.name, first.name, str(error))


def _place_of(queue: Queue) -> tuple[str, ...]:
    """What it says about that, to be compared."""
    of = queue.effective
    if of.keys().isdisjoint(OF_PLACES):
        return _NOWHERE  # as most queues, of which there may be very many
    return tuple(repr(of[name]) if name in of and fits(name, of[name]) else "" for name in OF_PLACES)


def _mastered(state: ClusterState) -> Counter[str]:
    """How many queues each node masters, but for those that go with it."""
    held, mastered = Counter(state.queues.values()), Counter[str]()
    for log_id, log in state.logs.items():
        if not holds_transient(state, log_id):
            mastered[log.master.node if log.master is not None else ""] += held[log_id]
    return mastered
