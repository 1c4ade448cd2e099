"""A set of whole numbers kept as ranges: sorted, disjoint, never touching. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

Span = tuple[int, int]
"""[first, until)."""


class Spans:
    """Ranges that were added and not removed since."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._spans)

    def covering(self, at: int) -> Span | None:
        """The range that `at` is in."""
        index = bisect_right(self._spans, (at, at)) - 1
        for span in self._spans[max(0, index) : index + 2]:
            if span[0] <= at < span[1]:
                return span
        return None

    def next_from(self, at: int) -> int | None:
        """Where the first range begins that begins at `at` or behind."""
        index = bisect_left(self._spans, (at, at))
        return self._spans[index][0] if index < len(self._spans) else None

    def from_on(self, at: int) -> Iterator[Span]:
        """What there is at `at` and behind."""
        index = self._first_behind(at)
        return ((max(first, at), until) for first, until in self._spans[index:])

    def add(self, first: int, until: int) -> None:
        """Put [first, until) in, whatever of it is there."""
        if first >= until:
            return
        low = self._first_behind(first - 1)
        high = low
        while high < len(self._spans) and self._spans[high][0] <= until:
            first, until = min(first, self._spans[high][0]), max(until, self._spans[high][1])
            high += 1
        self._spans[low:high] = [(first, until)]

    def remove(self, first: int, until: int) -> None:
        """Take [first, until) out, whatever of it is there."""
        if first >= until:
            return
        low = self._first_behind(first)
        high, left = low, []
        while high < len(self._spans) and self._spans[high][0] < until:
            start, end = self._spans[high]
            left += [span for span in ((start, first), (until, end)) if span[0] < span[1]]
            high += 1
        self._spans[low:high] = left

    def _first_behind(self, at: int) -> int:
        """The index of the first range that ends behind `at`."""
        index = max(0, bisect_left(self._spans, (at, at)) - 1)
        while index < len(self._spans) and self._spans[index][1] <= at:
            index += 1
        return index
