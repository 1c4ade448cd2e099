"""Moments: when something comes to which stretch of a queue.

A stretch that grows, as the newest run of a queue does, is one moment however many pieces it came in: the one that was
told last stands apart and is made longer. What is settled long before its time comes lies here until then, but for what
`sweep` and `forget` find: the first one takes what is below a floor, and only when there is twice as much as it left
the last time; so to add one costs the same however many there are.

Pure. Times in µs UTC, queue offsets, [first, until). Rejected: a heap entry for each piece (one for each confirm of a
queue with a time to live); to go through all of them whenever there are more of them than of runs (once nothing can go,
that is always).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

_SPARE: Final = 64


class Moment(NamedTuple):
    """When, and for which records."""

    at_us: int
    first: int
    until: int


class Moments:
    """Of one group."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._newest: Moment | None = None
        self._kept = 0

    def __len__(self) -> int:
        return len(self._moments) + (self._newest is not None)

    @property
    def next_us(self) -> float:
        """When the first one comes."""
        first = self._first()
        return math.inf if first is None else first.at_us

    def add(self, at_us: int, first: int, until: int, *, goes_on: bool) -> None:
        """`goes_on`: of the same run as the one that was told before; all of it has the later time."""
        newest = self._newest
        if goes_on and newest is not None and newest.until == first:
            self._newest = Moment(max(at_us, newest.at_us), newest.first, until)
            return
        if newest is not None:
            heappush(self._moments, newest)
        self._newest = Moment(at_us, first, until)

    def come(self, now_us: int) -> Moment | None:
        """The first one that has come; it is here no more."""
        first = self._first()
        if first is None or first.at_us > now_us:
            return None
        return self._pop(first)

    def put_back(self, moment: Moment) -> None:
        """Some of one that has come is still to be done."""
        heappush(self._moments, moment)

    def sweep(self, floor: int) -> None:
        """Nothing below `floor` is waited for."""
        if len(self._moments) > 2 * self._kept + _SPARE:
            self._moments = [each for each in self._moments if each.until > floor]
            heapify(self._moments)
            self._kept = len(self._moments)

    def forget(self, is_over: Callable[[Moment], bool], count_max: int) -> None:
        """The first ones go, as long as they are over before their time, so many at most."""
        while count_max > 0 and (first := self._first()) is not None and is_over(first):
            count_max -= 1
            self._pop(first)

    # --- inside ---

    def _first(self) -> Moment | None:
        if not self._moments:
            return self._newest
        return self._moments[0] if self._newest is None else min(self._moments[0], self._newest)

    def _pop(self, first: Moment) -> Moment:
        if first is self._newest:
            self._newest = None
            return first
        return heappop(self._moments)
