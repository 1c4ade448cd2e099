"""A set of numbers that come in runs: which records of somebody are unacknowledged.

Kept as borders in chunks of 4,096 numbers, two bytes for each border, and runs of chunks that are in it whole as
ranges: a gap of 2^32 that a loss left costs nothing, the worst case (every second number) two bytes per number, and a
change moves the borders of two chunks at most. However long a range is that is asked for, nothing takes more steps than
there are chunks. Rejected: one sorted list of pairs (a change in the middle of a million moves megabytes, and each pair
is 100 bytes), a byte per number (a subscriber with one unacknowledged record would cost 4 KiB).

Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import Final, TypeAlias

from mirrorlog.errors import BadRequest

# A set of whole numbers kept as ranges: sorted, disjoint, never touching. Pure.


Span = tuple[int, int]
"""[first, until)."""


class Spans:
    """Ranges that were added and not removed since."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """Sorted, disjoint, never touching; to be read."""

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self.spans)

    def covering(self, at: int) -> Span | None:
        """The range that `at` is in."""
        index = bisect_right(self.spans, (at, at)) - 1
        for span in self.spans[max(0, index) : index + 2]:
            if span[0] <= at < span[1]:
                return span
        return None

    def next_from(self, at: int) -> int | None:
        """Where the first range begins that begins at `at` or behind."""
        index = bisect_left(self.spans, (at, at))
        return self.spans[index][0] if index < len(self.spans) else None

    def from_on(self, at: int) -> Iterator[Span]:
        """What there is at `at` and behind."""
        index = self._first_behind(at)
        return ((max(first, at), until) for first, until in self.spans[index:])

    def add(self, first: int, until: int) -> None:
        """Put [first, until) in, whatever of it is there."""
        if first >= until:
            return
        low = self._first_behind(first - 1)
        high = low
        while high < len(self.spans) and self.spans[high][0] <= until:
            first, until = min(first, self.spans[high][0]), max(until, self.spans[high][1])
            high += 1
        self.spans[low:high] = [(first, until)]

    def remove(self, first: int, until: int) -> None:
        """Take [first, until) out, whatever of it is there."""
        if first >= until:
            return
        low = self._first_behind(first)
        high, left = low, []
        while high < len(self.spans) and self.spans[high][0] < until:
            start, end = self.spans[high]
            left += [span for span in ((start, first), (until, end)) if span[0] < span[1]]
            high += 1
        self.spans[low:high] = left

    def _first_behind(self, at: int) -> int:
        """The index of the first range that ends behind `at`."""
        index = max(0, bisect_left(self.spans, (at, at)) - 1)
        while index < len(self.spans) and self.spans[index][1] <= at:
            index += 1
        return index


Range = tuple[int, int]
"""[first, until), queue offsets."""

CHUNK: Final = 4096
_END: Final = 1 << 64

_Borders: TypeAlias = "array[int]"
"""Begin, end, begin, end, … within a chunk, rising; neighbours are one run."""

_NONE: Final[_Borders] = array("H")


class RangeSet:
    """Numbers from 0 to 2^64; ranges are [first, next)."""

    __slots__ = ("_chunks", "_order", "_wholes", "count")

    def __init__(self) -> None:
        # Those that are in it in part, by number, which are `_order` too; and the numbers of those that are whole.
        self._chunks: dict[int, _Borders] = {}
        self._order: list[int] = []
        self._wholes = Spans()
        self.count = 0
        """How many numbers are in it."""

    def __len__(self) -> int:
        """How many numbers are in it."""
        return self.count

    def __iter__(self) -> Iterator[Span]:
        """Its runs, ascending, as long as they are."""
        first = following = -1
        for low, high in self._runs(0, _END):
            if low != following:
                if following > first:
                    yield first, following
                first = low
            following = high
        if following > first:
            yield first, following

    def runs(self) -> list[Span]:
        """Its runs as a list. `list` itself makes room for as many as there are numbers: of a gap, that is no room."""
        return list(iter(self))

    def add(self, first: int, following: int) -> int:
        """Put [first, following) in; how many were not in it."""
        return self._change(first, following, inside=True)

    def remove(self, first: int, following: int) -> int:
        """Take [first, following) out; how many were in it."""
        return self._change(first, following, inside=False) if self.count else 0

    def lowest(self) -> Span | None:
        """Its first run, whole; None when it is empty."""
        number, whole = self._order[0] if self._order else None, self._wholes.next_from(0)
        if number is not None and (whole is None or number < whole):
            borders = self._chunks[number]
            first, following = number * CHUNK + borders[0], number * CHUNK + borders[1]
            whole = number + 1 if borders[1] == CHUNK else None
        elif whole is not None:
            first = following = whole * CHUNK
        else:
            return None
        if whole is not None and (span := self._wholes.covering(whole)) is not None:
            following = span[1] * CHUNK
        if following % CHUNK == 0 and (borders := self._chunks.get(following // CHUNK, _NONE)) and not borders[0]:
            following += borders[1]
        return first, following

    def within(self, first: int, following: int) -> list[Span]:
        """What of [first, following) is in it, ascending; a run may come in pieces."""
        return list(self._runs(first, following)) if self.count else []

    def meets(self, first: int, following: int) -> bool:
        """Whether anything of [first, following) is in it."""
        return self.count > 0 and next(self._runs(first, following), None) is not None

    def without(self, first: int, following: int) -> Iterator[Span]:
        """What of [first, following) is not in it, ascending."""
        at = first
        for begin, end in self.within(first, following):
            if begin > at:
                yield at, begin
            at = end
        if at < following:
            yield at, following

    # --- inside: asking ---

    def _runs(self, first: int, following: int) -> Iterator[Span]:
        """`within`, one by one."""
        of_chunks = self._runs_in_chunks(first, following)
        return merge(of_chunks, self._runs_of_wholes(first, following)) if self._wholes.spans else of_chunks

    def _runs_in_chunks(self, first: int, following: int) -> Iterator[Span]:
        low = bisect_left(self._order, first // CHUNK)
        for number in self._order[low : bisect_left(self._order, -(-following // CHUNK), low)]:
            borders, base = self._chunks[number], number * CHUNK
            low, high = max(first - base, 0), min(following - base, CHUNK)
            for at in range(bisect_right(borders, low) & ~1, len(borders), 2):
                if borders[at] >= high:
                    break
                if borders[at + 1] > low:
                    yield base + max(low, borders[at]), base + min(high, borders[at + 1])

    def _runs_of_wholes(self, first: int, following: int) -> Iterator[Span]:
        for begin, end in self._wholes.from_on(first // CHUNK):
            low, high = max(begin * CHUNK, first), min(end * CHUNK, following)
            if low >= high:
                return
            yield low, high

    # --- inside: changing ---

    def _change(self, first: int, following: int, *, inside: bool) -> int:
        """Have [first, following) in the set, or not; how many numbers that changed."""
        number, low = divmod(first, CHUNK)
        last, high = divmod(following, CHUNK)
        if first >= following:
            return 0
        if number == last:
            return self._change_in(number, low, high, inside=inside)
        changed = 0
        if low:
            changed += self._change_in(number, low, CHUNK, inside=inside)
            number += 1
        if high:
            changed += self._change_in(last, 0, high, inside=inside)
        return changed + (self._change_wholes(number, last, inside=inside) if number < last else 0)

    def _change_wholes(self, number: int, last: int, *, inside: bool) -> int:
        """`_change`, of chunks from one number to another."""
        there = sum(until - first for first, until in self._runs(number * CHUNK, last * CHUNK))
        low, high = bisect_left(self._order, number), bisect_left(self._order, last)
        for each in self._order[low:high]:
            del self._chunks[each]
        del self._order[low:high]
        (self._wholes.add if inside else self._wholes.remove)(number, last)
        changed = (last - number) * CHUNK - there if inside else there
        self.count += changed if inside else -changed
        return changed

    def _change_in(self, number: int, low: int, high: int, *, inside: bool) -> int:
        """`_change`, of [low, high) of a chunk."""
        borders = self._chunks.get(number)
        if borders is None:
            whole = bool(self._wholes.spans) and self._wholes.covering(number) is not None
            if whole == inside:
                return 0
            borders = self._open(number, whole=whole)
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
        self.count += changed if inside else -changed
        if len(borders) <= 2:
            self._tidy(number, borders)
        return changed

    def _open(self, number: int, *, whole: bool) -> _Borders:
        borders = self._chunks[number] = array("H", (0, CHUNK) if whole else ())
        insort(self._order, number)
        if whole:
            self._wholes.remove(number, number + 1)
        return borders

    def _tidy(self, number: int, borders: _Borders) -> None:
        """A chunk that is empty, or whole, is no exception."""
        if borders and (borders[0], borders[1]) != (0, CHUNK):
            return
        del self._chunks[number]
        del self._order[bisect_left(self._order, number)]
        if borders:
            self._wholes.add(number, number + 1)


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


# Stretches of a queue that come together: in changes and frames flat (first, until, first, until, …), else as pairs
# [first, until). Pure.


def pairs_of(ranges: Sequence[int]) -> list[Range]:
    """Raises BadRequest for ranges that are empty, or not in order."""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    at = 0
    for first, until in pairs:
        if not at <= first < until:
            raise BadRequest(f"ranges rise and hold something each, not {first} to {until} behind {at}")
        at = until
    return pairs


def joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Neighbours as one."""
    last: Range | None = None
    for each in ranges:
        if last is not None and last[1] == each[0]:
            last = last[0], each[1]
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def flat(ranges: Iterable[Range]) -> list[int]:
    """Neighbours as one."""
    borders: list[int] = []
    for first, until in ranges:
        if borders and borders[-1] == first:
            borders[-1] = until
        else:
            borders += (first, until)
    return borders


def add_all(ranges: RangeSet, more: Iterable[Range]) -> None:
    for first, until in more:
        ranges.add(first, until)


# Flat ranges, as changes have them: first, until, first, until, …, ascending.


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


def joined_flat(some: Sequence[int], others: Sequence[int]) -> list[int]:
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
