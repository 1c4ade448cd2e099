"""The batches of one queue that are in memory, in the order of their queue offsets. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import reduce
from typing import NamedTuple

import numpy as np

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.index.gaps import NO_GAPS, Gap, Gaps, with_gap, within, without
from mirrorlog.errors import LogCorrupt


class QueueOrder:
    """The batches of one queue in memory, in queue order: base queue offsets and row numbers. Those at or above
    `next_confirmed` are pending.

    `begin`: first queue offset that the log has. `logged_start`: the same as the log itself says it, -1 while it does
    not. `jump`: where the queue offsets went on above the expected one, the last time. `gaps`: those that losses left,
    as far as they are confirmed and known. `hot_start`: from here on all of it is in
    memory; below are at most some copied batches. `floor`: rows below it were forgotten when this queue was
    last looked at. `mixed`: the row numbers do not rise with the queue offsets.
    """

    __slots__ = (
        "bases", "begin", "floor", "gaps", "hot_start", "jump", "logged_start", "mixed", "next_appended",
        "next_confirmed", "numbers",
    )  # fmt: skip

    def __init__(self, floor: int) -> None:
        self.bases = array("Q")
        self.numbers = array("Q")
        self.begin = 0
        self.logged_start = -1
        self.jump = 0
        self.gaps: Gaps = NO_GAPS
        self.hot_start = 0
        self.next_confirmed = 0
        self.next_appended = 0
        self.floor = floor
        self.mixed = False

    @property
    def visible(self) -> int:
        """How many of the batches are confirmed."""
        return bisect_left(self.bases, self.next_confirmed)

    def confirmed_from(self, index: int) -> int:
        """The first confirmed queue offset from the batch at `index` on; the next one when there is none."""
        return min(self.bases[index], self.next_confirmed) if index < len(self.bases) else self.next_confirmed

    def insert(self, base: int, number: int, records: int) -> None:
        """A copied batch, somewhere below the last one; it takes the place of one that holds the same records. A copy
        that began late may have followed a jump before it heard of these: they are not lost."""
        self.mixed = True
        if self.gaps:
            self.gaps = without(self.gaps, base, base + records)
        index = bisect_left(self.bases, base)
        if index < len(self.bases) and self.bases[index] == base:
            self.numbers[index] = number
        else:
            self.bases.insert(index, base)
            self.numbers.insert(index, number)

    def arrive(self, jump: OffsetJump) -> None:
        """It comes from another log, and that is confirmed: its next record here is the one it goes on at, and none is
        at or behind that. What is before is in that log, or behind it in this one, up to where it left this one; what a
        loss had let it jump over here above that was none of its. Where it begins is said anew."""
        first = jump.go_on_at
        if self.begin >= self.next_confirmed:
            self.begin = first
        self.hot_start = self.jump = self.next_confirmed = first
        self.logged_start = -1
        self.gaps = jump.gaps_behind(self.gaps, first)

    def cut(self, count: int) -> None:
        """Forget the pending batches with numbers from `count` on."""
        while self.numbers and self.numbers[-1] >= count:
            self.numbers.pop()
            self.bases.pop()

    def trim(self, floor: int) -> None:
        """Forget the batches with numbers below `floor`."""
        self.floor = floor
        if self.mixed:
            self._trim_mixed(floor)
        elif gone := bisect_left(self.numbers, floor):
            del self.bases[:gone], self.numbers[:gone]
            self.hot_start = max(self.hot_start, self.confirmed_from(0))

    def _trim_mixed(self, floor: int) -> None:
        """From behind the last batch that goes, the memory is complete."""
        numbers = np.frombuffer(self.numbers, np.uint64)
        stays = numbers >= floor
        gone = np.flatnonzero(~stays)
        if not len(gone):
            return
        self.hot_start = max(self.hot_start, self.confirmed_from(int(gone[-1]) + 1))
        numbers = numbers[stays]
        self.bases = array("Q", np.frombuffer(self.bases, np.uint64)[stays].tobytes())
        self.numbers = array("Q", numbers.tobytes())
        # Once the copies are behind it, the queue is as any other.
        self.mixed = bool((numbers[1:] < numbers[:-1]).any())


class QueuedBatch(NamedTuple):
    """A batch in its queue. `length`: bytes of the whole batch."""

    log_offset: int
    base_queue_offset: int
    record_count: int
    length: int

    @property
    def next_queue_offset(self) -> int:
        return self.base_queue_offset + self.record_count


class OffsetJump(NamedTuple):
    """Queues go on at `go_on_at` behind the batch at `log_offset`. `stood`: their next queue offsets before, by queue
    id, of those that were below. `lost`: what comes in between; else it is in another log, which the queue went to at
    `left_at` if it was here before, and `told` are gaps of it that were told behind this."""

    log_offset: int
    go_on_at: int
    stood: dict[int, int]
    told: list[Gap]
    lost: bool = True
    left_at: int = 0

    def gaps_behind(self, gaps: Gaps, stood: int) -> Gaps:
        """Those of a queue once this is confirmed, which was at `stood` before."""
        if self.lost:
            return with_gap(gaps, (stood, self.go_on_at))
        return reduce(with_gap, self.told, within(gaps, self.left_at, self.go_on_at))


def goes_back(header: BatchHeader, expected: int) -> LogCorrupt:
    """Why a batch cannot follow, whose queue goes on at the queue offset `expected`."""
    return LogCorrupt(
        f"queue {header.queue_id}: the batch at log offset {header.log_offset} begins at queue offset "
        f"{header.base_queue_offset}, below {expected}; the log was written by a broken master",
        first=header.log_offset,
        last=header.next_log_offset,
    )
