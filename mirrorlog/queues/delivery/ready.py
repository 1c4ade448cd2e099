"""What is free of one acking group on its master, and what goes first of it: the order of the queue, and before it that
of the priorities (`queues.attributed`). Pure. Ranges are [first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mirrorlog.queues.changes import Change, ForwardingStarted, Returned, Settled, Watermark
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.ranges import Range, RangeSet, add_all, pairs_of

RANGES_AT_ONCE: Final = 4096
"""Of what goes, is purged or ends, in one part."""


class FreeRecords:
    """`uncovered`: whether what goes first lay beyond the watermark when it was asked for last."""

    def __init__(self, ledger: Ledger, attributed: Attributed) -> None:
        self.uncovered = False
        self._ledger = ledger
        self._attributed = attributed
        self.keys = attributed.keys
        # Below it nothing is free.
        self._from = ledger.floor
        # Where what is confirmed ended when it was asked for last.
        self._end = 0

    @property
    def behind(self) -> bool:
        """Whether some of what `met` was asked about was not looked at, for there is much."""
        attributed = self._attributed
        met = attributed.met < self._end or (not attributed.plain and attributed.unsorted)
        return met or self.keys.behind

    def met(self, end: int, now_us: int, *, taken: bool) -> int:
        """Below which records may be given out of those below `end`: of all these it is known what they ask for.
        `taken`: whether somebody could take one now."""
        attributed = self._attributed
        self._end, self.uncovered = end, False
        if attributed.met < end:
            attributed.meet(end, now_us, taken=taken)
        end = min(end, attributed.met)
        if self.keys.on:
            self.keys.meet(end)
            end = min(end, self.keys.met)
        return 0 if not attributed.plain and attributed.behind(now_us) else end

    def next(self, limit: int) -> Range | None:
        """The first free records below `limit`, of the highest priority that there is."""
        levels = self._attributed.levels if self._attributed.has_levels else None
        if levels and ((urgent := levels.next_free(limit)) is not None or levels.tired):
            return urgent
        if self._from >= limit:
            return None
        run = self._ledger.next_free(self._from, limit)
        self._from = run[0] if run is not None else max(self._from, limit)
        return run

    def next_covered(self, end: int, covered: int) -> Range | None:
        """What of the next free records below `end` the watermark covers. While it does not cover those of the highest
        priority nobody is given lower ones instead: who has room for one would be kept from the higher by the lower."""
        self.uncovered = False
        if not self._attributed.has_levels or not self._attributed.levels:
            return self.next(min(end, covered))
        run = self.next(end)
        if run is None or run[1] <= covered:
            return run
        self.uncovered = run[0] >= covered
        return None if self.uncovered else (run[0], covered)

    def next_new(self, end: int, *, front: int, asked: int) -> int:
        """Where the next record stands that was not given before. `front`: nothing was from there on; `asked`: the
        watermark as it was asked for last."""
        levels = self._attributed.levels if self._attributed.has_levels else None
        urgent = levels.next_free(end) if levels else None
        if urgent is not None and urgent[0] >= asked:
            return max(front, urgent[0])  # what it is given before is covered with it
        if self._from < asked or asked <= front or asked >= end:
            return front
        # Nothing below the watermark is free: settled or leased records are passed over, not given.
        run = self._ledger.next_free(asked, end)
        return run[0] if run is not None else end

    def ready(self, end: int, records_max: int) -> list[Range]:
        """The first ready records below `end`, so many at most, some thousand ranges."""
        found, left = list[Range](), records_max
        at = max(self._ledger.floor, self._from)
        while left > 0 and len(found) < RANGES_AT_ONCE and (run := self._ledger.next_free(at, end)) is not None:
            first, at = run[0], min(run[1], run[0] + left)
            found.append((first, at))
            left -= at - first
        return found

    def freed(self, first: int) -> None:
        """This one is free again, and perhaps others behind it."""
        self._from = min(self._from, first)

    def came_back(self, ranges: Sequence[Range]) -> None:
        """No subscriber has them any more. Who is too old of them is not free either."""
        if ranges:
            if self.keys.waiting:
                self.keys.came_back(ranges)
            if not self._attributed.plain:
                self._attributed.freed(ranges)
            self.freed(min(ranges)[0])


# How far one acking group was given out, and how far it may be: the watermark of its master (decision 0033).
#
# Nothing is given ahead of a watermark that is on all copies. It runs ahead by what subscribers have room for, so a
# record that is published alone waits for no round trip. Pure; queue offsets.


AUTO_ACK_AHEAD: Final = 65_536
"""So far the watermark is ahead of subscribers that have nothing unacknowledged."""


class Front:
    """`found`: what is below may have been given out by another master; `given`: nothing from there on was ever given
    to a subscriber in this mastership. `covered`: the watermark that is on all copies, `asked`: as it was asked for
    last."""

    def __init__(self, group: str, ledger: Ledger, *, found: int, given: int) -> None:
        self.found = found
        self.given = max(given, ledger.floor)
        self.covered = self.asked = ledger.watermark
        self._group = group
        self._ledger = ledger
        # What came back, and could not be logged as that.
        self._uncounted = RangeSet()

    @property
    def end(self) -> int:
        """Nothing from there on was ever given out."""
        return max(self.found, self._ledger.floor, self.given)

    @property
    def is_covered(self) -> bool:
        """Whether no watermark is on its way."""
        return self.asked == self.covered

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way, and of nothing is more known than the ledger says."""
        return self.is_covered and not any(self._ledger.unsettled(*each) for each in self._uncounted)

    def wanted(self, free: FreeRecords, end: int, *, room: int, auto_ack: bool) -> Watermark | None:
        """The watermark to be logged now, if it is time. `room`: for so many records; `auto_ack`: whether there are
        subscribers that have room for any number."""
        ahead = AUTO_ACK_AHEAD if auto_ack else 0
        if not room + ahead:
            return None
        front = free.next_new(end, front=max(self.given, self._ledger.floor), asked=self.asked)
        if self.asked >= front + room + ahead // 2:
            return None
        return Watermark(group=self._group, queue_offset=front + room + ahead)

    def exact(self) -> Watermark | None:
        """Below which something may have been given out; None when it is logged so."""
        exact = max(self.found, self.given)
        return Watermark(group=self._group, queue_offset=exact) if exact < self._ledger.watermark else None

    def appended(self, queue_offset: int) -> None:
        """A watermark is logged."""
        self.asked = queue_offset
        self.covered = min(self.covered, queue_offset)

    def confirmed(self, queue_offset: int) -> None:
        """It is on all copies."""
        self.covered = min(queue_offset, self.asked)

    def gave(self, until: int) -> None:
        """Records below were given out."""
        self.given = max(self.given, until)

    def was_delivered(self, at: int, until: int) -> tuple[bool, int]:
        """Whether the record may have been given before, for all that is not counted; up to where that is so."""
        if at < self.found:
            return True, min(until, self.found)
        there = self._uncounted.within(at, until)
        if not there:
            return False, until
        first, end = there[0]
        return (True, end) if first == at else (False, first)

    def not_counted(self, changes: Iterable[Change]) -> None:
        """What came back by these could not be logged: these records stay flagged all the same."""
        for change in changes:
            if isinstance(change, Returned | Settled | ForwardingStarted):
                add_all(self._uncounted, pairs_of(change.ranges))

    def settled(self, ranges: Iterable[Range]) -> None:
        """These are done."""
        if self._uncounted.count:
            for first, until in ranges:
                self._uncounted.remove(first, until)
