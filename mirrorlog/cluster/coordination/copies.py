"""Which copy of a log is made or taken away next: one step, and the next one when that is done. Pure.

A log that is wished elsewhere (`LogPlace.target`) goes there so: a copy is added, and waited for until it is in sync;
then the next one; the mastership is handed over to the new home as soon as that is in sync (`handover`); then a copy
that is not wanted goes. So at no time fewer whole copies are there than the log promises, and no more than one is
being filled. While moving is paused none of this is done, and what is lost is replaced all the same.

Without a wish a log gets the copies that it lacks, on the nodes that hold the fewest, and loses those whose nodes are
gone for long. Which wishes there are `balance` says. A log that was made for a placement and in which nothing is goes,
after a while: one that was made a moment ago is for a queue that is being declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import (
    Command,
    InSyncShrunk,
    LogRemoved,
    ReplicaAdded,
    ReplicaRemoved,
    ReplicaRetired,
)
from mirrorlog.cluster.state.log_rules import homes_for, promised, promised_of, spares
from mirrorlog.cluster.state.placements import NO_PLACES, LogPlaces
from mirrorlog.cluster.state.state import ClusterState, LogFacts

REMOVE_AFTER_S: Final = 60.0
"""A log with nothing in it is kept for so long: longer than a declaration may take."""


class LogCopies:
    """`replace_after_s`: a copy whose node is gone for so long is made elsewhere, where a log's rule says nothing."""

    def __init__(self, replace_after_s: float) -> None:
        self._replace_after_s = replace_after_s
        self._now = 0.0
        self._gone_since: dict[str, float] = {}
        self._unused_since: dict[str, float] = {}
        # A step is made many times a second, and there may be 100,000 queues: which logs none of them needs.
        self._searched: tuple[Mapping[str, str], Mapping[str, str], LogPlaces] = {}, {}, NO_PLACES
        self._used: set[str] = set()

    def look(self, state: ClusterState, life: Callable[[str], Life], now: float) -> None:
        """Before the steps of all logs."""
        self._now = now
        for node in state.nodes:
            if life(node) is Life.DOWN:
                self._gone_since.setdefault(node, now)
            else:
                self._gone_since.pop(node, None)
        self._note_unused(state)

    def gone(self, node: str, log_id: str, state: ClusterState) -> bool:
        """Whether it is down for so long that what it holds of a log is made elsewhere."""
        after_ms = state.rule(log_id).replace_after_ms
        after_s = self._replace_after_s if after_ms is None else after_ms / 1000
        return self._now - self._gone_since.get(node, self._now) >= after_s

    def step(self, log_id: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> Command | None:
        """Of a log whose master lives: a set that shrinks beside a dead one may be left with nobody who can be
        promoted."""
        down = [node for node in log.in_sync if node not in state.nodes or life(node) is Life.DOWN]
        if leaving := log.may_leave([*down, *log.marked]):
            return InSyncShrunk(log_id=log_id, seen=log.seen, nodes=leaving)
        places = state.places
        if places is not None and log_id in places.logs:
            if places.logs[log_id].target and not places.paused:
                return _towards(log_id, log, state, life)
            if (since := self._unused_since.get(log_id)) is not None and self._now - since >= REMOVE_AFTER_S:
                return LogRemoved(log_id=log_id, seen=log.seen)
        return self._whole(log_id, log, state, life)

    def _whole(self, log_id: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> Command | None:
        gone = self._gone_since
        lasting = [node for node in log.replicas if node not in gone or not self.gone(node, log_id, state)]
        able = homes_for(state, log_id)
        wanted = promised_of(state.rule(log_id), able)
        able = [node for node in able if not state.nodes[node].draining]
        wanted = min(wanted, len(able))
        if len(lasting) < wanted and (node := _least_used(log, able, state, life)) is not None:
            return ReplicaAdded(log_id=log_id, seen=log.seen, node=node)
        replaced = [
            node for node in log.replicas if node not in lasting and node not in log.in_sync and spares(log, node)
        ]
        if replaced and len(lasting) >= wanted and len(log.in_sync) >= wanted:
            return ReplicaRemoved(log_id=log_id, seen=log.seen, node=replaced[0])
        return None

    # --- logs in which nothing is ---

    def _note_unused(self, state: ClusterState) -> None:
        """Since when nothing needs them; of those that were made for a placement."""
        places = state.places
        if places is None:
            return
        made = [log_id for log_id, place in places.logs.items() if place.rule is not None and log_id in state.logs]
        if not made:
            self._unused_since.clear()
            return
        queues, groups, placed = self._searched
        if queues is not state.queues or groups is not state.log_groups or placed is not places:
            self._searched = state.queues, state.log_groups, places
            self._used = {*state.queues.values(), *state.log_groups.values(), *state.transient.values()}
            self._used.update(span.log_id for spans in places.spans.values() for span in spans)
            self._used.update(each for move in places.moves.values() for each in (move.source, move.target))
        since = self._unused_since
        self._unused_since = {each: since.get(each, self._now) for each in made if each not in self._used}


def _towards(log_id: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> Command | None:
    """The next step to where a log is wished; None while one is under way, or cannot be made now."""
    target = state.placing.place(log_id).target
    if any(node in log.replicas and node not in log.promotable for node in target):
        return None  # it is being filled, or waited for
    for node in target:
        if node not in log.replicas:
            ready = state.nodes[node].stays and life(node) is Life.UP
            return ReplicaAdded(log_id=log_id, seen=log.seen, node=node) if ready else None
    if log.master is None or log.master.node != target[0]:
        return None  # it is handed over
    unwanted = [node for node in log.replicas if node not in target]
    for node in unwanted:
        if node not in log.in_sync and spares(log, node):
            return ReplicaRemoved(log_id=log_id, seen=log.seen, node=node)
    whole = [node for node in log.promotable if node not in unwanted[:1]]
    if unwanted and len(whole) >= max(log.copies_wanted, promised(state, log_id)):
        return ReplicaRetired(log_id=log_id, seen=log.seen, node=unwanted[0])
    return None


def _least_used(log: LogFacts, able: list[str], state: ClusterState, life: Callable[[str], Life]) -> str | None:
    """A node that lives and holds the fewest copies; of equals the first by name."""
    free = [node for node in able if node not in log.replicas and life(node) is Life.UP]
    held = {node: sum(node in each.replicas for each in state.logs.values()) for node in free}
    return min(free, key=lambda node: (held[node], node), default=None)
