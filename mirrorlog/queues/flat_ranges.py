"""Flat ranges, as changes have them: first, until, first, until, …, ascending, queue offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirrorlog.queues.ranges import Range, RangeSet, flat


def flat_of(offsets: Iterable[int]) -> list[int]:
    """Of ascending single ones."""
    return flat((at, at + 1) for at in offsets)


def pairs(flat_ranges: Sequence[int]) -> list[Range]:
    return list(zip(flat_ranges[::2], flat_ranges[1::2], strict=True))


def offsets_of(flat_ranges: Sequence[int]) -> list[int]:
    """Each of them: of no more than a piece has."""
    return [at for first, until in pairs(flat_ranges) for at in range(first, until)]


def set_of(flat_ranges: Sequence[int]) -> RangeSet:
    ranges = RangeSet()
    for first, until in pairs(flat_ranges):
        ranges.add(first, until)
    return ranges


def joined(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """Both."""
    ranges = set_of(some)
    for first, until in pairs(others):
        ranges.add(first, until)
    return flat(ranges)


def without(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """What is in the first and not in the second."""
    taken = set_of(others)
    return flat(part for run in pairs(some) for part in taken.without(*run))


def count(flat_ranges: Sequence[int]) -> int:
    """How many records."""
    return sum(flat_ranges[1::2]) - sum(flat_ranges[::2])
