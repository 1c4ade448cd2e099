"""Whom a master waits for before it asks the cluster to let it in.

Under steady publishing the confirmed offset runs ahead of the acks of a copy that is further away than the members. It
follows as well as they do, and yet never holds all that is confirmed, which whoever is let in must. So it is *courted*
first: nothing is confirmed without it, as if it were a member, and a round trip later it holds everything.

Publishes wait with it. So only a copy that is near is courted, one at a time and not for long, and one that did not
come rests, longer each time. No command names it yet, so it is dropped without asking anybody; once one does, it is
proposed (`in_sync.py`), and no longer this file's.

Rejected: to let in a copy that lacks some of what is confirmed (it may be promoted at once), and to hold publishes back
until it is there (who asks for fewer copies than all need not wait for it).

Pure: what is known and `now` in, whom to wait for out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

NEAR_S: Final = 0.25
"""A copy is near that has what was confirmed so long ago: a round trip around the world. Publishes wait about as long
as its acks take, when it is courted."""
COURT_S: Final = 1.0
"""So long it is courted; a healthy copy needs a round trip and the time until the next look."""
REST_S: Final = 5.0
"""One that did not come is not courted again for so long, and for twice the time after each further failure,"""
REST_MAX_S: Final = 60.0
"""up to this."""


class Candidate(NamedTuple):
    """A copy that may be let in once it holds all that is confirmed, in the run that the cluster knows."""

    node: str
    start_id: str


@dataclass(frozen=True, slots=True)
class _Past:
    """Of a node, when its copy was courted last. `until`: it rests; `rest_s`: for how long it does, 0 after success."""

    start_id: str
    until: float
    rest_s: float = 0.0


class Court:
    """Looks at the candidates from time to time, and courts one at a time."""

    def __init__(self) -> None:
        self.courted: Candidate | None = None
        """Waited for like a member, with no command under way for it."""
        self._since = 0.0
        self._marks: dict[Candidate, tuple[int, float]] = {}
        self._pasts: dict[str, _Past] = {}

    def look(self, now: float, *, confirmed: int, reached: Mapping[Candidate, int], free: bool) -> None:
        """Begin to court, or drop who is courted. `confirmed`, `reached`: how far the log and each candidate are now;
        `free`: the cluster could be asked at once, and nobody is proposed."""
        near = self._near(now, confirmed, reached)
        if self.courted is not None:
            if self.courted not in reached or now - self._since >= COURT_S:
                self._drop(self.courted, now)
        elif free and (rested := [copy for copy in near if self._has_rested(copy, now)]):
            # Whoever was not courted for the longest time: one that never comes does not keep the others out.
            self.courted = min(rested, key=self._rested_at)
            self._since = now

    def won(self, now: float) -> None:
        """A wish is handed out; whom it names is proposed from here on, and courted no more."""
        if self.courted is not None:
            self._pasts[self.courted.node] = _Past(self.courted.start_id, now)
            self.courted = None

    def _drop(self, courted: Candidate, now: float) -> None:
        past = self._pasts.get(courted.node)
        before_s = past.rest_s if past is not None and past.start_id == courted.start_id else 0.0
        rest_s = min(max(REST_S, 2 * before_s), REST_MAX_S)
        self._pasts[courted.node] = _Past(courted.start_id, now + rest_s, rest_s)
        self.courted = None

    def _near(self, now: float, confirmed: int, reached: Mapping[Candidate, int]) -> list[Candidate]:
        """Who reached in time what was confirmed at an earlier look. It is kept per copy until it is reached, so one
        that is slower than the log is found to be late, however far the looks are apart."""
        near, marks = [], {}
        for copy, offset in reached.items():
            mark, marked_at = self._marks.get(copy, (confirmed, now))
            if offset >= mark:
                if now - marked_at <= NEAR_S:
                    near.append(copy)
                mark, marked_at = confirmed, now
            marks[copy] = mark, marked_at
        self._marks = marks
        return near

    def _has_rested(self, copy: Candidate, now: float) -> bool:
        past = self._pasts.get(copy.node)
        return past is None or past.start_id != copy.start_id or now >= past.until

    def _rested_at(self, copy: Candidate) -> float:
        past = self._pasts.get(copy.node)
        return -math.inf if past is None else past.until
