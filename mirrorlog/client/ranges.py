"""Ranges of queue offsets: joining them, and cutting one out of another. Pure.

A range is (first, next), next exclusive, never empty. Lists of them are ascending and disjoint, unless it is said
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

RANGES_MAX: Final = 4_096
"""Of one frame: 64 KiB. What is acknowledged in a random order makes a range of each record."""

Range = tuple[int, int]
"""(first, next): the first queue offset and the one behind the last."""


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same queue offsets in as few ranges as can be. They may come in any order and overlap."""
    found: list[Range] = []
    for first, following in sorted(ranges):
        if found and first <= found[-1][1]:
            if following > found[-1][1]:
                found[-1] = found[-1][0], following
        else:
            found.append((first, following))
    return found


def common(first: int, following: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` up to `following` stands in `ranges`."""
    return [
        (max(first, each_first), min(following, each_next))
        for each_first, each_next in ranges
        if each_first < following and first < each_next
    ]


def without(first: int, following: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` up to `following` does not stand in `ranges`."""
    left: list[Range] = []
    at = first
    for taken_first, taken_next in common(first, following, ranges):
        if at < taken_first:
            left.append((at, taken_first))
        at = taken_next
    if at < following:
        left.append((at, following))
    return left


def flat(ranges: Iterable[Range]) -> list[int]:
    """As frames have them: first, next, first, next, …"""
    return [number for each in ranges for number in each]


def count(ranges: Iterable[Range]) -> int:
    """How many queue offsets they hold."""
    return sum(following - first for first, following in ranges)
