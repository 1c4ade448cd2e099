"""Records of one acking group that end, or leave, though nobody who had them said so: a purge, what is not there any
more, what others settled. Pure. Ranges are [first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final

from mirrorlog.queues.attributed import Attributed
from mirrorlog.queues.changes import Settled
from mirrorlog.queues.free_records import RANGES_AT_ONCE
from mirrorlog.queues.ledger import Ledger, State
from mirrorlog.queues.outcomes import GONE, PURGED, Outcomes
from mirrorlog.queues.settling import Settling
from mirrorlog.queues.stretches import pairs_of
from mirrorlog.queues.subscriber import Range
from mirrorlog.queues.takers import Takers

_WINDOW: Final = 65_536


class Clearing:
    """Of one group."""

    def __init__(
        self, ledger: Ledger, attributed: Attributed, *, takers: Takers, outcomes: Outcomes, settling: Settling
    ) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._takers = takers
        self._outcomes = outcomes
        self._settling = settling

    def purge(self, end: int, since: int) -> Settled | None:
        """Settles what stands below `end` and is in nobody's hands, from `since` on, some thousand ranges; None when
        there is nothing more."""
        since = max(since, self._ledger.floor)
        ranges = list(islice(merge(self._ledger.idle_runs(since, end), self._nobodys(since, end)), RANGES_AT_ONCE))
        return self._outcomes.settle(ranges, PURGED) if ranges else None

    def purge_done(self, change: Settled) -> None:
        """It is appended."""
        self._settling.done(pairs_of(change.ranges))

    def missing(self, begin: int, gap: Range) -> Settled | None:
        """Settles what is not there any more, in whosever hands it is: what stands below `begin`, where the queue
        begins now, or in the `gap` that a loss left; None when there is nothing."""
        floor = self._ledger.floor
        low, high = max(floor, begin, gap[0]), gap[1]
        ranges = [(floor, begin)] if floor < begin else []
        if low < high and self._ledger.unsettled(low, high):
            ranges.append((low, high))
        return self._outcomes.settle(ranges, GONE) if ranges else None

    def missing_done(self, change: Settled) -> None:
        """It is appended: nobody has these in hand any more."""
        ranges = pairs_of(change.ranges)
        self._settling.done(ranges)
        self._takers.take(ranges)

    def _nobodys(self, first: int, until: int) -> Iterator[Range]:
        """What of these is OUT in the ledger, and in nobody's hands; asked for by windows, and in ever larger ones
        where nothing is, which may be far: it is perhaps much, and most of it is not wanted at once."""
        window = _WINDOW
        while first < until and self._attributed.taken:
            end = min(until, first + window)
            there = sorted(self._attributed.nobodys(first, end))
            for run in there:
                yield from ((low, high) for low, high, state in self._ledger.runs(*run) if state == State.OUT)
            first, window = end, _WINDOW if there else 2 * window
