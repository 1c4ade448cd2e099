"""Which nodes are up, in which run, and which logs are out of reach because of it. Pure.

Members send each other heartbeats in a full mesh. A process that is gone is told by its machine: its connection is
reset, and the next attempt is refused. Both together are a death at once. A process that hangs, or a cut, shows in
nothing but silence: that takes `timeout_s`. One of the two alone is neither: a listener that is busy resets, a node
that starts refuses.

A run has an id, so a node that is back at once is another one: it died in between, whatever the timing. A node may have
a run that the cluster does not know of yet, or two at once: an old one that is ending, or two processes on copies of
one disk. What is decided about a node is decided about the run that the cluster knows.

A log may have all its copies on nodes that are down: nothing can be asked of them, and nothing is promoted. Of another
one only copies may be up that lack something: they are read from as far as they know, and nobody masters them. Whoever
asks for such a log is told so at once, and which node has to be started; while another copy may yet be promoted he is
told to wait instead. A node that has stopped and is back in a run that has still to register is not down: it is waited
for. Rejected: to let everybody wait until his own time is up, which is longer than most people wait; to refuse readers
of a copy that is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from mirrorlog.cluster.raft.messages import EntryKind, RaftEntry
from mirrorlog.cluster.state.command_codec import decode_command
from mirrorlog.cluster.state.commands import NodeStarted
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.errors import NotLeader


class Life(Enum):
    """UNKNOWN: not heard since this node started watching, and not for long enough yet."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Change:
    """A node's life has changed; `start_id`: of the run that is up, or was."""

    node: str
    life: Life
    start_id: str
    reason: str


class _Watched:
    __slots__ = ("heard_at", "life", "reset", "start_id")

    def __init__(self, now: float) -> None:
        self.life = Life.UNKNOWN
        self.heard_at = now
        self.reset = False
        self.start_id = ""


class Liveness:
    """What one node knows of the others."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._watched: dict[str, _Watched] = {}
        self._ticked_at = -inf

    def watch(self, nodes: set[str], now: float) -> None:
        """Exactly these from now on."""
        for gone in self._watched.keys() - nodes:
            del self._watched[gone]
        for node in sorted(nodes - self._watched.keys()):
            self._watched[node] = _Watched(now)

    def life(self, node: str) -> Life:
        """UNKNOWN for one that is not watched."""
        return self._watched[node].life if node in self._watched else Life.UNKNOWN

    def start_id(self, node: str) -> str:
        """The run that was heard last; empty for none."""
        return self._watched[node].start_id if node in self._watched else ""

    def heard(self, node: str, start_id: str, now: float) -> list[Change]:
        """Something came from this run of it."""
        watched = self._watched.get(node)
        if watched is None:
            return []
        changes: list[Change] = []
        if watched.start_id not in ("", start_id) and watched.life is Life.UP:
            changes.append(self._changed(node, watched, Life.DOWN, f"it runs as {start_id} now"))
        watched.heard_at, watched.reset, watched.start_id = now, False, start_id
        if watched.life is not Life.UP:
            changes.append(self._changed(node, watched, Life.UP, "heard"))
        return changes

    def reset(self, node: str) -> None:
        """Its connection ended; an attempt to connect follows."""
        if node in self._watched:
            self._watched[node].reset = True

    def refused(self, node: str) -> list[Change]:
        """Nobody listens where it did."""
        watched = self._watched.get(node)
        if watched is None or not watched.reset or watched.life is Life.DOWN:
            return []
        return [self._changed(node, watched, Life.DOWN, "its connection was reset and is refused")]

    def tick(self, now: float) -> list[Change]:
        """Who has been silent for too long. To be called often: after a long pause it was this node that was stopped,
        and what the others said meanwhile is still to be read."""
        if now - self._ticked_at > self._timeout_s / 2:
            for watched in self._watched.values():
                watched.heard_at = max(watched.heard_at, now)
        self._ticked_at = now
        return [
            self._changed(node, watched, Life.DOWN, f"silent for {self._timeout_s * 1000:.0f} ms")
            for node, watched in self._watched.items()
            if watched.life is not Life.DOWN and now - watched.heard_at >= self._timeout_s
        ]

    @staticmethod
    def _changed(node: str, watched: _Watched, life: Life, reason: str) -> Change:
        watched.life = life
        return Change(node, life, watched.start_id, reason)


RIVAL_HEARD_S: Final = 1.0
"""A run that lives is heard ten times as often."""
RUNS_MAX: Final = 1_000
"""Of those that were heard; then the silent ones are forgotten."""


class Runs:
    """When each run of a node was heard last. `now` is in s of a clock that only goes forward."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], float] = {}

    def heard(self, node: str, start_id: str, now: float) -> None:
        """Something came from it."""
        if len(self._heard) >= RUNS_MAX and (node, start_id) not in self._heard:
            self._heard = {run: at for run, at in self._heard.items() if now - at < RIVAL_HEARD_S}
        self._heard[node, start_id] = now

    def life_of(self, node: str, start_id: str, liveness: Liveness, now: float) -> Life:
        """Of this run. One that is not heard while another run of its node is has ended."""
        life = liveness.life(node)
        if life is not Life.UP or liveness.start_id(node) == start_id:
            return life
        return Life.UNKNOWN if self._is_heard(node, start_id, now) else Life.DOWN

    def check_rival(self, started: NodeStarted, own: tuple[str, str], now: float) -> None:
        """A disk that was set back begins anew, and the run that the cluster knows is over then: not while that one is
        heard, for then this is a second process with its name. `own`: node and start id of who is asked. Raises
        NotLeader."""
        seen = (started.node, started.seen)
        if started.seen and (seen == own or self._is_heard(*seen, now)):
            raise NotLeader(
                f"run {started.seen} of node {started.node} is there, so run {started.start_id} has its name and no "
                "disk of its own; stop it, or give it another id",
                rival=started.seen,
            )

    def _is_heard(self, node: str, start_id: str, now: float) -> bool:
        return now - self._heard.get((node, start_id), -inf) < RIVAL_HEARD_S


def unknown_to(
    node: str, start_id: str, *, runs: tuple[str, ...] | None, registered: str, undecided: Iterable[RaftEntry]
) -> str:
    """The run that the cluster knows of `node` and the disk of run `start_id` does not; empty when it knows it.

    Such a disk was set back, or is blank: it may have forgotten a vote, and entries that it answered for. `runs`: those
    that it knows, None when it did not say; `registered`: by what is decided; `undecided`: the entries behind that, by
    which a later run may have registered.
    """
    if runs is None or start_id == registered:
        return ""
    newest = registered
    for entry in undecided:
        if entry.kind is EntryKind.COMMAND:
            command = decode_command(entry.data)
            if isinstance(command, NodeStarted) and command.node == node:
                newest = command.start_id
    return "" if newest in ("", start_id, *runs) else newest


def nodes_out(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> tuple[str, ...]:
    """All nodes that hold the log, when each of them is down; none while one may answer. First those whose start helps:
    who has everything, and may be promoted; then who is in sync; the home before others."""
    if all(is_down(node, state, life) for node in log.replicas):
        return tuple(sorted(log.replicas, key=lambda node: (node not in log.promotable, node not in log.in_sync)))
    return ()


def nodes_needed(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> tuple[str, ...]:
    """Those that have everything of a log that has no master, when each of them is down and another copy is up; none
    while somebody may master it, or when `nodes_out` tells."""
    whole = log.promotable or tuple(node for node in log.replicas if node in log.in_sync)
    masters = log.master is not None and not is_down(log.master.node, state, life)
    if not whole or masters or all(is_down(node, state, life) for node in log.replicas):
        return ()
    return whole if all(is_down(node, state, life) for node in whole) else ()


def is_down(node: str, state: ClusterState, life: Callable[[str], Life]) -> bool:
    """Whether nothing can be asked of it; one that said that it stops is down until it is heard again."""
    facts = state.nodes.get(node)
    stopped = facts is not None and facts.stopped
    return life(node) is Life.DOWN or (stopped and life(node) is not Life.UP)
