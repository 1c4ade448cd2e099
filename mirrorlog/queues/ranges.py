"""A set of numbers that come in runs: which records somebody has in hand.

Kept as borders in chunks of 4,096 numbers, two bytes for each border: what is whole costs four bytes per chunk, the
worst case (every second number) two bytes per number, and a change moves the borders of one chunk at most. Rejected:
one sorted list of pairs (a change in the middle of a million moves megabytes, and each pair is 100 bytes), a byte per
number (a subscriber that has one record in hand would cost 4 KiB).

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

CHUNK: Final = 4096

_Borders: TypeAlias = "array[int]"
"""Begin, end, begin, end, … within a chunk, rising; neighbours are one run."""


class RangeSet:
    """Numbers from 0; ranges are [first, next)."""

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: dict[int, _Borders] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many numbers are in it."""
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Its runs, ascending, as long as they are."""
        first = following = -1
        for chunk in sorted(self._chunks):
            borders = self._chunks[chunk]
            base = chunk * CHUNK
            for at in range(0, len(borders), 2):
                if base + borders[at] != following:
                    if following > first:
                        yield first, following
                    first = base + borders[at]
                following = base + borders[at + 1]
        if following > first:
            yield first, following

    def add(self, first: int, following: int) -> int:
        """Put [first, following) in; how many were not in it."""
        return sum(self._change(*piece, inside=True) for piece in _pieces(first, following))

    def remove(self, first: int, following: int) -> int:
        """Take [first, following) out; how many were in it."""
        if not self._chunks:
            return 0
        return sum(
            self._change(*piece, inside=False) for piece in self._there(first, following) if piece[0] in self._chunks
        )

    def within(self, first: int, following: int) -> list[tuple[int, int]]:
        """What of [first, following) is in it, ascending; a run may come in pieces."""
        found: list[tuple[int, int]] = []
        for chunk, low, high in self._there(first, following):
            borders = self._chunks.get(chunk)
            if borders is None:
                continue
            base = chunk * CHUNK
            at = bisect_right(borders, low) & ~1
            while at < len(borders) and borders[at] < high:
                if borders[at + 1] > low:
                    found.append((base + max(low, borders[at]), base + min(high, borders[at + 1])))
                at += 2
        return found

    def without(self, first: int, following: int) -> Iterator[tuple[int, int]]:
        """What of [first, following) is not in it, ascending."""
        at = first
        for begin, end in self.within(first, following):
            if begin > at:
                yield at, begin
            at = end
        if at < following:
            yield at, following

    def _there(self, first: int, following: int) -> Iterable[tuple[int, int, int]]:
        """[first, following) by chunk, ascending, with all chunks that are here. It may be far longer than what is in
        here: a loss leaves gaps of 2^32."""
        if following - first <= (len(self._chunks) + 1) * CHUNK:
            return _pieces(first, following)
        bounds = [(chunk, chunk * CHUNK) for chunk in sorted(self._chunks)]
        pieces = [(chunk, max(first - base, 0), min(following - base, CHUNK)) for chunk, base in bounds]
        return [piece for piece in pieces if piece[1] < piece[2]]

    def _change(self, chunk: int, low: int, high: int, *, inside: bool) -> int:
        """Have [low, high) of a chunk in the set, or not; how many numbers that changed."""
        borders = self._chunks.get(chunk)
        if borders is None:
            borders = self._chunks[chunk] = array("H")
        begin, end = bisect_left(borders, low), bisect_right(borders, high)
        # An odd place is within a run: then that run's own border stays, and ours is none, or the other way round.
        new = array("H")
        if bool(begin & 1) != inside:
            new.append(low)
        if bool(end & 1) != inside:
            new.append(high)
        before = _length(borders, begin, end, low, high)
        borders[begin:end] = new
        changed = high - low - before if inside else before
        self._count += changed if inside else -changed
        if not borders:
            del self._chunks[chunk]
        return changed


def _length(borders: _Borders, begin: int, end: int, low: int, high: int) -> int:
    """How many numbers of [low, high) are in a chunk: `begin`, `end`: where these two stand among its borders."""
    total, at, since = 0, begin, low
    if not begin & 1:
        if begin == end:
            return 0
        since, at = borders[begin], begin + 1
    while at < end:
        total += borders[at] - since
        at += 1
        if at >= end:
            return total
        since = borders[at]
        at += 1
    return total + high - since


def _pieces(first: int, following: int) -> Iterator[tuple[int, int, int]]:
    """[first, following) by chunk: its number, and first and next in it."""
    while first < following:
        chunk, low = divmod(first, CHUNK)
        high = min(CHUNK, low + following - first)
        yield chunk, low, high
        first += high - low
