"""What the settled records of an acking group stand as, acknowledged or dead (decision 0043). Pure.

Two who have had the same record may settle it each as something else: one of them is told that he was too late. For
that it is enough to remember the dead, which are few, as runs: every other settled record is acknowledged, or was
purged, or is not there any more, and nothing comes of it. So a group in which nothing dies is one number here.

No more than `RUNS_MAX` runs are remembered. Beyond that the lowest are forgotten, and of what was settled below
`known_from` nobody can say as what. The bound is a constant and no setting: all copies of a log have to know the same.

Rejected: a byte per record in the ledger (what is settled has none there, and that is why a group is small), a time
for which a verdict is remembered (no copy may rely on its clock).

Queue offsets; ranges are [first, until).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

RUNS_MAX: Final = 32_768
"""Of the dead of one group: half a megabyte."""

ACKED: Final = "acked"
DEAD: Final = "dead"
UNKNOWN: Final = "unknown"
"""What a record stands as."""

DEAD_WHYS: Final = frozenset({"dead", "limit", "expired", "dropped", "redriven"})
"""Why a record is dead: see `Settled`. What is sent back to where it died is not done by an acknowledgement either."""

_Borders: TypeAlias = "array[int]"
_NONE: Final[_Borders] = array("Q")


class Verdict(NamedTuple):
    """Settled records, and what all of them stand as."""

    first: int
    until: int
    stands: str


class Before(NamedTuple):
    """In a journal: what was known of [first, until), as borders of runs."""

    first: int
    until: int
    borders: Sequence[int]
    known_from: int


class Verdicts:
    """Of one group. `known_from`: of what was settled below it nothing is known."""

    __slots__ = ("_borders", "known_from")

    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        # First, until, first, until, … of the dead; runs that touch are one.
        self._borders = _NONE

    def __len__(self) -> int:
        """How many runs are remembered."""
        return len(self._borders) // 2

    def died(self, first: int, until: int) -> list[Before]:
        """These are dead. What takes that back, the last one first."""
        if until <= self.known_from:
            return []
        first = max(first, self.known_from)
        taken_back = [self.put(first, until, (first, until), self.known_from)]
        while len(self) > RUNS_MAX:
            low, high = self._borders[:2]
            taken_back.append(self.put(low, high, (), high))
        return taken_back

    def put(self, first: int, until: int, borders: Sequence[int], known_from: int) -> Before:
        """Have the dead of [first, until) be these runs and no others. What was there."""
        former = Before(first, until, self._within(first, until), self.known_from)
        self.known_from = known_from
        if not self._borders and borders:
            self._borders = array("Q")
        there = self._borders
        begin, end = bisect_left(there, first), bisect_right(there, until)
        new = array("Q")
        # An odd place is within a run, which ends, or begins again, at our own border.
        for border in ((first,) if begin & 1 else (), borders, (until,) if end & 1 else ()):
            for each in border:
                if new and new[-1] == each:
                    new.pop()  # they touch
                else:
                    new.append(each)
        there[begin:end] = new
        return former

    def take_back(self, before: Before) -> None:
        self.put(*before)

    def parts(self, first: int, until: int) -> Iterator[Verdict]:
        """What the settled records of [first, until) stand as, ascending."""
        if first < min(until, self.known_from):
            yield Verdict(first, min(until, self.known_from), UNKNOWN)
        at = max(first, self.known_from)
        borders = self._within(at, until)
        for low, high in zip(borders[::2], borders[1::2], strict=True):
            if at < low:
                yield Verdict(at, low, ACKED)
            yield Verdict(low, high, DEAD)
            at = high
        if at < until:
            yield Verdict(at, until, ACKED)

    def runs(self, at: int, runs_max: int) -> list[int]:
        """The first runs that end behind `at`, so many at most, from `at` on, as borders."""
        begin = bisect_right(self._borders, at) & ~1
        found = list(self._borders[begin : begin + 2 * runs_max])
        if found:
            found[0] = max(found[0], at)
        return found

    def _within(self, first: int, until: int) -> list[int]:
        """The runs of [first, until), as borders."""
        if not self._borders or first >= until:
            return []
        begin, end = bisect_right(self._borders, first), bisect_left(self._borders, until)
        return [*((first,) if begin & 1 else ()), *self._borders[begin:end], *((until,) if end & 1 else ())]
