"""Who is there: heartbeats in a full mesh, and what connections tell. Pure.

A process that is gone is told by its machine: its connection is reset, and the next attempt is refused. Both together
are a death at once. A process that hangs, or a cut, shows in nothing but silence: that takes `timeout_s`. One of the
two alone is neither: a listener that is busy resets, a node that starts refuses.

A run has an id, so a node that is back at once is another one: it died in between, whatever the timing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf


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
