"""The gaps that losses have left in a queue, as one value. Pure.

A gap is a range of queue offsets, [first, next), that a jump gave up: no record stands there, and none ever will. They
are in order, and never touch, for jumps with no record between them leave one gap. That something is in a gap is never
taken back, so what several places say of a queue may be put together in any order.

`GAPS_MAX` bounds what a queue costs in memory and in each checkpoint. Of more, the oldest are forgotten. Rejected: to
join them, for a joined gap has records in it, and whoever takes its word settles these, or sends a reader past them. Of
a gap that is forgotten readers are told nevertheless, for any place without a record is one; it is groups that go over
it step by step, if none of the masterships since has settled it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

Gap = tuple[int, int]
Gaps = tuple[Gap, ...]

NO_GAP: Final[Gap] = (0, 0)
NO_GAPS: Final[Gaps] = ()

GAPS_MAX: Final = 64
"""A loss is declared before a mastership, so it takes as many masterships that found something lost."""

_LAST: Final = 1 << 64


def gap_at(gaps: Gaps, at: int) -> Gap | None:
    """The gap that a queue offset is in."""
    if not gaps:
        return None
    index = bisect_right(gaps, (at, _LAST)) - 1
    return gaps[index] if index >= 0 and at < gaps[index][1] else None


def with_gap(gaps: Gaps, gap: Gap) -> Gaps:
    """Those and one more, joined with what it touches. An empty one changes nothing."""
    first, following = gap
    if first >= following:
        return gaps
    low = bisect_left(gaps, first, key=_end)
    high = bisect_right(gaps, following, key=_first)
    touched = (*gaps[low:high], gap)
    joined = min(touched)[0], max(map(_end, touched))
    return (*gaps[:low], joined, *gaps[high:])[-GAPS_MAX:]


def without(gaps: Gaps, first: int, following: int) -> Gaps:
    """What is left of them where [first, following) turns out not to be lost."""
    if first >= following:
        return gaps
    low = bisect_right(gaps, first, key=_end)
    high = bisect_left(gaps, following, key=_first)
    edges = [edge for one, other in gaps[low:high] for edge in ((one, first), (following, other))]
    return (*gaps[:low], *(each for each in edges if each[0] < each[1]), *gaps[high:])


def counted_there(below: Callable[[int], int], begin: int, gaps: Gaps, following: int) -> int:
    """How many of those that `below` counts, up to a queue offset, stand from `begin` on and below `following`, and in
    no gap: of what is gone the ledger of a group that nobody takes from is not told."""
    return below(following) - below(begin) - _counted_within(below, gaps, begin, following)


def counted_gone(below: Callable[[int], int], begin: int, gaps: Gaps) -> int:
    """How many of them retention has freed: they stand below `begin`, and in no gap."""
    return below(begin) - _counted_within(below, gaps, 0, begin)


def _counted_within(below: Callable[[int], int], gaps: Gaps, low: int, high: int) -> int:
    """How many of them stand in gaps, and within [low, high)."""
    parts = ((max(first, low), min(until, high)) for first, until in gaps)
    return sum(below(until) - below(first) for first, until in parts if first < until)


def within(gaps: Gaps, left_at: int, first: int) -> Gaps:
    """What they are of a queue that left the log at `left_at`, and comes back with `first`: a jump that was made
    meanwhile tells of what was lost up to there, and of nothing behind."""
    clipped = ((low, high if high <= first else left_at) for low, high in gaps)
    return tuple(gap for gap in clipped if gap[0] < gap[1])


def _first(gap: Gap) -> int:
    return gap[0]


def _end(gap: Gap) -> int:
    return gap[1]
