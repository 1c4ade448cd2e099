"""How far one acking group was given out, and how far it may be: the watermark of its master (docs/decisions/0033).

Nothing is given ahead of a watermark that is on all copies. It runs ahead by what subscribers have room for, so a
record that is published alone waits for no round trip. Pure; queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirrorlog.queues.changes import Change, Departing, Returned, Settled, Watermark
from mirrorlog.queues.free_records import FreeRecords
from mirrorlog.queues.ledger import Ledger
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.queues.stretches import add_all, pairs_of
from mirrorlog.queues.subscriber import Range

AUTO_ACK_AHEAD: Final = 65_536
"""So far the watermark is ahead of subscribers that have nothing in hand."""


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

    def was_given(self, at: int, until: int) -> tuple[bool, int]:
        """Whether the record may have been given before, for all that is not counted; up to where that is so."""
        if at < self.found:
            return True, min(until, self.found)
        there = self._uncounted.within(at, until) if len(self._uncounted) else []
        if not there:
            return False, until
        first, end = there[0]
        return (True, end) if first == at else (False, first)

    def not_counted(self, changes: Iterable[Change]) -> None:
        """What came back by these could not be logged: these records stay flagged all the same."""
        for change in changes:
            if isinstance(change, Returned | Settled | Departing):
                add_all(self._uncounted, pairs_of(change.ranges))

    def settled(self, ranges: Iterable[Range]) -> None:
        """These are done."""
        if len(self._uncounted):
            for first, until in ranges:
                self._uncounted.remove(first, until)
