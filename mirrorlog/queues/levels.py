"""Levels: the records of one group that have a priority above the lowest, as far as they may be free.

Each level is a set of ranges: what was free when it was met, and what came back. What a search finds not to be free any
more leaves it, so nothing is gone over twice, nothing that was settled is kept, and a level in which nothing is left is
not there. A search that has gone over very much gives up (`tired`), and goes on where it stopped when it is asked
again: until then nobody knows which records come first.

Pure. Ranges are [first, until), queue offsets. Rejected: all runs of a level in order, and a place up to which none is
free (whatever comes back has all runs behind it gone over again; what is settled out of order stays).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.queues.ledger import CHUNK_RECORDS, Ledger
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.queues.subscriber import Range

STEPS_MAX: Final = 4096
"""In all searches between two calls of `rest`."""


@dataclass(slots=True)
class _Level:
    """`at`: below it none is free."""

    at: int
    ranges: RangeSet = field(default_factory=RangeSet)


class Levels:
    """Of one group."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # By priority, negative, so that the highest is first in `_order`.
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._steps = 0

    def __len__(self) -> int:
        """How many levels have records that may be free."""
        return len(self._order)

    @property
    def records(self) -> int:
        """How many records are kept."""
        return sum(len(level.ranges) for level in self._levels.values())

    @property
    def tired(self) -> bool:
        """Whether a search gave up."""
        return self._steps >= STEPS_MAX

    def rest(self) -> None:
        """Others had their turn."""
        self._steps = 0

    def add(self, priority: int, first: int, until: int) -> None:
        """These may be free."""
        level = self._levels.get(-priority)
        if level is None:
            level = self._levels[-priority] = _Level(first)
            self._order.insert(bisect_left(self._order, -priority), -priority)
        level.ranges.add(first, until)
        level.at = min(level.at, first)

    def next_free(self, limit: int) -> Range | None:
        """The first free records below `limit` of the highest level that has any; None when none has, or `tired`."""
        index = 0
        while index < len(self._order) and not self.tired:
            level = self._levels[self._order[index]]
            found = self._search(level, limit) if level.at < limit else None
            if found is not None:
                return found
            if len(level.ranges):
                index += 1
            else:
                del self._levels[self._order.pop(index)]
        return None

    # --- inside ---

    def _search(self, level: _Level, limit: int) -> Range | None:
        while not self.tired and (run := level.ranges.lowest()) is not None:
            level.at = run[0]
            if level.at >= limit:
                return None
            until = min(run[1], limit)
            found = self._ledger.next_free(level.at, until)
            if found is None:
                self._steps += 1
                found = self._ledger.next_free(until, min(limit, until + CHUNK_RECORDS))
                over = found[0] if found is not None else max(until, min(limit, until + CHUNK_RECORDS))
                level.ranges.remove(level.at, over)
                continue
            level.ranges.remove(level.at, found[0])
            level.at = found[0]
            return found
        return None
