"""How long a queue is, and what has to go when it is too long: x-max-length and x-max-length-bytes.

What counts is what is *ready* in the queue's own group: not settled and not delivered, as RabbitMQ has it; records
that were returned with a delay are ready too, those unacknowledged or leased are not, nor what waits for the delay or
the end that its attributes ask for while somebody takes from the queue. Numbers of records are known from the ledger's
totals.

Bytes are those that batches have in the log (header, values, keys, headers), of which each record has an equal share,
so they are exact where a batch has one record. `Sizes` keeps the sizes of batches in queue order, of 24 bytes each, and
only for queues that have such a limit: no record is touched. In a queue with thousands of unacknowledged stretches
the bytes of those behind the first 1,024 are taken in proportion.

*Drop-head* settles the oldest of what is ready. *Reject-publish* refuses a batch whose first record would be too much;
so a batch of one record is refused exactly above the limit, and a larger one, which is taken whole, ends above it by
less than itself.

Pure. Queue offsets everywhere, [first, until).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from mirrorlog.commitlog.index.gaps import NO_GAPS, Gaps
from mirrorlog.errors import QueueFull
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.ranges import Range

RANGES_MAX: Final = 1024
"""Separate stretches that are looked at for their bytes, and that are dropped at once."""

_SWEPT_PART: Final = 4


DROP_HEAD: Final = "drop-head"


class LengthLimits(NamedTuple):
    """How many records of the queue's own group may be ready, and how many bytes of them; None: any number."""

    records: int | None
    size: int | None
    overflow: str

    @property
    def rejects(self) -> bool:
        """Whether a publish is refused when it is full, instead of older records being dropped."""
        return self.overflow != DROP_HEAD


class Sizes:
    """Batches of one queue by their queue offsets, in order: how many bytes they have."""

    __slots__ = ("_base", "_ends", "_firsts", "_totals")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")
        # Bytes of all batches up to the end of this one, with `_base`, those of all that were dropped.
        self._totals = array("Q")
        self._base = 0

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def end(self) -> int:
        """Where the last one ends; 0 without any."""
        return self._ends[-1] if self._ends else 0

    def add(self, first: int, until: int, size: int) -> None:
        """The next one; what of it is here already is passed over."""
        if until <= self.end or first >= until:
            return
        part = size if first >= self.end else size * (until - self.end) // (until - first)
        self._totals.append(self._total(len(self)) + part)
        self._firsts.append(max(first, self.end))
        self._ends.append(until)

    def between(self, first: int, until: int) -> int:
        """Bytes of [first, until), shares of batches rounded down; of what is not known, none."""
        return max(0, self._below(until) - self._below(first))

    def where(self, first: int, until: int, size: int) -> int:
        """The least offset above `first` up to which there are so many bytes behind `first`; `until` at the latest."""
        offsets = range(first + 1, until)
        return first + 1 + bisect_left(offsets, size, key=lambda at: self.between(first, at))

    def drop(self, below: int) -> None:
        """Nobody asks for what is below. Nothing is moved before a quarter of all can go; the last one stays, for the
        end that it tells."""
        count = min(bisect_right(self._ends, below), len(self) - 1)
        if count > 0 and count * _SWEPT_PART >= len(self):
            self._base = self._totals[count - 1]
            del self._firsts[:count], self._ends[:count], self._totals[:count]

    def _total(self, count: int) -> int:
        """Of the first so many, and of what was dropped."""
        return self._totals[count - 1] if count else self._base

    def _below(self, offset: int) -> int:
        index = bisect_right(self._ends, offset)
        total = self._total(index)
        if index < len(self) and self._firsts[index] < offset:
            first, end = self._firsts[index], self._ends[index]
            total += (self._totals[index] - total) * (offset - first) // (end - first)
        return total


class QueueLengthView(NamedTuple):
    """A queue as it is looked at: the ledger of its own group, None while there is no such group; where it begins, up
    to where it is looked at, and what losses have left gaps of."""

    ledger: Ledger | None
    begin: int
    until: int
    gaps: Gaps = NO_GAPS

    @property
    def low(self) -> int:
        """No record below is ready."""
        return self.begin if self.ledger is None else max(self.begin, self.ledger.floor)

    def records(self) -> int:
        """How many are ready."""
        lost = [(max(self.low, first), min(self.until, until)) for first, until in self.gaps]
        if self.ledger is None:
            return max(0, self.until - self.begin - sum(until - first for first, until in lost if first < until))
        ready = self.ledger.ready(self.until) + self.ledger.parked
        for first, until in ((self.ledger.floor, self.begin), *lost):
            if first < until:
                ready -= self.ledger.unsettled(first, until)
        return max(0, ready)

    def ranges(self) -> Iterator[Range]:
        """What is ready, the oldest first."""
        for first, until in self._without_gaps():
            if self.ledger is None:
                yield first, until
            else:
                yield from self.ledger.idle_runs(first, until)

    def _without_gaps(self) -> Iterator[Range]:
        at = self.low
        for first, until in (*self.gaps, (self.until, self.until)):
            if at < min(first, self.until):
                yield at, min(first, self.until)
            at = max(at, until)


class QueueLength:
    """One queue that has a limit."""

    __slots__ = ("_arriving", "_arriving_size", "limits", "sizes")

    def __init__(self, limits: LengthLimits) -> None:
        self.limits = limits
        self.sizes = Sizes()
        """Of what is confirmed; nobody asks them unless there is a limit of bytes."""
        # What was taken and may not be confirmed: first, until, bytes.
        self._arriving: deque[tuple[int, int, int]] = deque()
        self._arriving_size = 0

    def arrived(self, first: int, until: int, size: int) -> None:
        """A batch is about to be appended there. One that was to stand there before was not."""
        if self.limits.size is None:
            return
        while self._arriving and self._arriving[-1][1] > first:
            self._arriving_size -= self._arriving.pop()[2]
        self._arriving.append((first, until, size))
        self._arriving_size += size

    def arriving_from(self, following: int) -> int:
        """Where the first batch stands that counts though it may not be confirmed; `following` without any."""
        return self._arriving[0][0] if self._arriving else following

    def confirmed(self, first: int, until: int, size: int) -> None:
        """The next batch that is confirmed, from the index."""
        self.sizes.add(first, until, size)

    def check(self, view: QueueLengthView, count: int, size: int) -> None:
        """Whether a batch of so many records and bytes may be appended to a queue that rejects. `view`: up to what is
        appended. Raises QueueFull."""
        records, bytes_max, _ = self.limits
        there = view.records()
        if records is not None and there + 1 > records:
            raise _full(f"{there} records are ready, x-max-length is {records}", "x-max-length", records)
        if bytes_max is None:
            return
        ready = self._size(view, bytes_max - size // count)
        if ready + size // count > bytes_max:
            what = f"{ready} bytes are ready and {size // count} more do not fit, x-max-length-bytes is {bytes_max}"
            raise _full(what, "x-max-length-bytes", bytes_max)

    def to_drop(self, view: QueueLengthView) -> list[int]:
        """What has to go, flat ranges, the oldest; some of it, when it lies scattered. `view`: up to what is
        confirmed."""
        records, bytes_max, _ = self.limits
        over = 0 if records is None else view.records() - records
        over_bytes = 0 if bytes_max is None else self._size(view, bytes_max) - bytes_max
        found: list[int] = []
        for first, until in islice(view.ranges(), RANGES_MAX) if over > 0 or over_bytes > 0 else ():
            if over <= 0 and over_bytes <= 0:
                break
            by_bytes = self.sizes.where(first, until, over_bytes) if over_bytes > 0 else first
            end = min(until, max(first + over, by_bytes))
            found += (first, end)
            over -= end - first
            over_bytes -= self.sizes.between(first, end)
        return found

    def _size(self, view: QueueLengthView, enough: int) -> int:
        """Bytes of what is ready; not looked at closely when all that there is, unacknowledged too, is not above
        `enough`."""
        while self._arriving and self._arriving[0][1] <= self.sizes.end:
            self._arriving_size -= self._arriving.popleft()[2]
        self.sizes.drop(view.low)
        arriving = self._arriving_size
        for _, until, size in reversed(self._arriving):
            if until <= view.until:
                break
            arriving -= size  # it was not appended, or does not count yet
        known = min(view.until, self.sizes.end)
        most = self.sizes.between(view.low, known)
        return arriving + (most if most + arriving <= enough else self._ready_size(view._replace(until=known)))

    def _ready_size(self, view: QueueLengthView) -> int:
        size, at, left = 0, view.low, view.records()
        for first, until in islice(view.ranges(), RANGES_MAX):
            size += self.sizes.between(first, until)
            at, left = until, left - (until - first)
        if at >= view.until or left <= 0:
            return size
        return size + self.sizes.between(at, view.until) * left // (view.until - at)


def _full(what: str, limit: str, most: int) -> QueueFull:
    return QueueFull(
        f"the queue is full: {what}; nothing was stored, send it again when some have been consumed",
        limit=limit,
        most=most,
    )
