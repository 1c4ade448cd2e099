"""What time does to one acking group on its master: delays and leases end, records expire, subscribers are overdue.

Pure: `now` (s, one monotonic clock) and `now_us` (µs UTC) in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mirrorlog.queues.changes import Change
from mirrorlog.queues.delivery.deadlines import Endings
from mirrorlog.queues.delivery.outcomes import EXPIRED, Outcomes
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.ready import RANGES_AT_ONCE, FreeRecords
from mirrorlog.queues.delivery.settlement import Settling
from mirrorlog.queues.delivery.subscribers import Subscribers
from mirrorlog.queues.stretches import ended, given_again, joined


class Times:
    """Of one group. `now_us`: as of the last look."""

    def __init__(
        self,
        attributed: Attributed,
        endings: Endings,
        *,
        takers: Subscribers,
        free: FreeRecords,
        outcomes: Outcomes,
        settling: Settling,
        now: float,
    ) -> None:
        self.now_us = 0
        self._now = now
        self._attributed = attributed
        self._endings = endings
        self._takers = takers
        self._free = free
        self._outcomes = outcomes
        self._settling = settling

    def look(self, now: float, now_us: int) -> None:
        """What has had its one chance, or has come to its time, is known from here on."""
        self._now, self.now_us = now, now_us
        if not self._attributed.plain and (lowest := self._attributed.look(now_us)) is not None:
            self._free.freed(lowest)

    @property
    def due_at(self) -> float:
        """When there is something to ask of `expired` or who is overdue, or it is time for a look; perhaps a little
        earlier."""
        due = min(self._endings.next_at, self._takers.overdue_at)
        if self._attributed.plain or (next_us := self._attributed.next_us) == math.inf:
            return due
        return min(due, self._now + (next_us - self.now_us) / 1_000_000)

    def expired(self, now: float) -> list[Change]:
        """The changes that end the delays and leases whose time has come, and records whose time to live is over, some
        thousand ranges at a time; then `expired_done`."""
        changes = self._outcomes.die(self._attributed.dying(), EXPIRED)
        parked, leased = (sorted(ranges) for ranges in self._endings.due(now, RANGES_AT_ONCE))
        changes += self._outcomes.come_back(list(joined(leased)), 0)
        return [*changes, self._outcomes.again(joined(parked), 0, counted=False)] if parked else changes

    def expired_done(self, changes: Iterable[Change], *, whole: bool) -> None:
        """What `expired` gave is appended; not `whole`: this part of it, and `expired` gives the rest again."""
        if whole:
            self._endings.done()
        for change in changes:
            self._settling.done(ended(change))
            self._free.came_back(given_again(change))
