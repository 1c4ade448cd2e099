"""When which node could not be counted on: what was done to it, as intervals.

Whoever judges what a cluster may have lost needs it: a level below `all` promises that a record outlives fewer deaths
than it has copies, as long as the other copies answer. What happens to processes and machines is read from the trace,
whoever did it; what happens to networks and disks is told by who does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Final

from sim.trace import Note

AFTERMATH_S: Final = 2.0
"""After a cut is mended or a disk is fast again: what stood still is sent again within a second, and who was given up
is dialled anew."""
_GONE: Final = frozenset({"killed", "lost power", "returned", "asked to stop"})
_PAUSED: Final = "paused"
_RESUMED: Final = "resumed"
_STARTED: Final = "started"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of `node`, in s of the run. `late`: it lives and may answer late or not at all; what it says of others may be
    late as well."""

    node: str
    since: float
    until: float
    late: bool


class Troubles:
    """Watches a trace. `now`: s of the run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ended: list[Trouble] = []
        self._begun: dict[tuple[str, str], float] = {}
        """By node and what ends it."""
        self._serial = count()

    def __call__(self, note: Note) -> None:
        at, who, what, _ = note
        if what in _GONE:
            self._begun.setdefault((who, _STARTED), at)
        elif what == _PAUSED:
            self._begun.setdefault((who, _RESUMED), at)
        elif what == _RESUMED:
            self._end(who, _RESUMED, at)
        elif what == _STARTED:
            self._end(who, _STARTED, at)
            self._end(who, _RESUMED, at)

    @contextmanager
    def late(self, *nodes: str) -> Iterator[None]:
        """While this lasts, and for some time after it, these may not answer."""
        end = f"late {next(self._serial)}"
        for node in nodes:
            self._begun[node, end] = self._now()
        yield
        for node in nodes:
            self._end(node, end, self._now())

    def damaged(self, node: str) -> None:
        """Its disk holds less than it says, or will not answer for it, from now on: nobody knows when that shows."""
        self._ended.append(Trouble(node, self._now(), inf, late=False))

    def between(self, since: float, until: float) -> Iterator[Trouble]:
        """Those that lasted at some moment of that time."""
        going_on = [Trouble(node, begun, inf, end != _STARTED) for (node, end), begun in self._begun.items()]
        for trouble in (*self._ended, *going_on):
            if trouble.since <= until and trouble.until >= since:
                yield trouble

    def _end(self, node: str, end: str, at: float) -> None:
        since = self._begun.pop((node, end), None)
        if since is not None:
            late = end != _STARTED
            self._ended.append(Trouble(node, since, at + AFTERMATH_S if late else at, late))
