"""The watermarks of a log's groups on their way to all copies: a record is given out only below one that is there.

Thin: `queues.delivery` says when one is to be logged, and where it stands (docs/decisions/0033).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.group_log import GroupLog
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.works import Work, WorkTable
from mirrorlog.queues.changes import Watermark


class _Logged(NamedTuple):
    """A watermark that is not on all copies yet."""

    end: int
    work: Work
    queue_offset: int


class Watermarks:
    """Of the groups of one log, in the order of their ends in the log."""

    def __init__(self, replica: Replica, works: WorkTable, log: GroupLog, deliveries: Deliveries) -> None:
        self._replica = replica
        self._works = works
        self._log = log
        self._deliveries = deliveries
        self._logged: deque[_Logged] = deque()

    def wanted(self, work: Work, freed: int = 0) -> Watermark | None:
        """See `Delivery.watermark_wanted`."""
        return work.delivery.watermark_wanted(self._replica.index.next_confirmed(work.key[0]), freed)

    def move(self, work: Work) -> None:
        """Log it, if it is time."""
        change = self.wanted(work)
        if change is None:
            return
        end = self._log.append_if_possible(work, [change])
        if end is not None:
            self.appended(work, end, change)

    def appended(self, work: Work, end: int, change: Watermark) -> None:
        """It is logged, with others or alone. `end`: where that ends in the log."""
        work.delivery.watermark_appended(change.queue_offset)
        self._logged.append(_Logged(end, work, change.queue_offset))
        self.note_confirmed()

    def note_confirmed(self) -> None:
        """What is confirmed by now counts."""
        while self._logged and self._logged[0].end <= self._replica.confirmed:
            _, work, queue_offset = self._logged.popleft()
            work.delivery.watermark_confirmed(queue_offset)
            self._works.wake(work)
            self._deliveries.drop_if_idle(work)
