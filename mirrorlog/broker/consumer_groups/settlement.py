"""What was said of records in a turn of the loop becomes changes of the log, and is answered when that is confirmed.

Settlements of a group are logged together, with the watermark that they make room for: `broker.gathered` says as what.
Thin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.broker.consumer_groups.active_groups import (
    ActiveGroups,
    Asked,
    Part,
    PendingSettlements,
    Work,
    ranges_of,
)
from mirrorlog.broker.consumer_groups.deliveries import Deliveries
from mirrorlog.broker.consumer_groups.group_log import GroupLog
from mirrorlog.broker.consumer_groups.push import PushedTable
from mirrorlog.broker.log.publish import Publisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.errors import BadRequest, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change, Watermark
from mirrorlog.queues.delivery.group import Settlement
from mirrorlog.wire.frames import How
from mirrorlog.wire.messages.base import Message

# The watermarks of a log's groups on their way to all copies: a record is given out only below one that is there.
#
# Thin: `queues.delivery` says when one is to be logged, and where it stands (docs/decisions/0033).


class _Logged(NamedTuple):
    """A watermark that is not on all copies yet."""

    end: int
    work: Work
    queue_offset: int


class Watermarks:
    """Of the groups of one log, in the order of their ends in the log."""

    def __init__(self, replica: Replica, works: ActiveGroups, log: GroupLog, deliveries: Deliveries) -> None:
        self._replica = replica
        self._works = works
        self._log = log
        self._deliveries = deliveries
        self._logged: deque[_Logged] = deque()

    def move(self, work: Work, end: int) -> None:
        """Log it, if it is time; see `Delivery.watermark_wanted`."""
        change = work.delivery.watermark_wanted(end)
        if change is None:
            return
        logged_to = self._log.append_if_possible(work, [change])
        if logged_to is not None:
            self.appended(work, logged_to, change)

    def appended(self, work: Work, end: int, change: Watermark) -> None:
        """It is logged, with others or alone. `end`: where that ends in the log."""
        work.delivery.watermark_appended(change.queue_offset)
        self._logged.append(_Logged(end, work, change.queue_offset))
        self.note_confirmed()

    def note_confirmed(self) -> None:
        """What is confirmed by now counts."""
        confirmed = self._replica.log.confirmed
        while self._logged and self._logged[0].end <= confirmed:
            _, work, queue_offset = self._logged.popleft()
            queue_id = work.key[0]
            more = work.delivery.watermark_confirmed(queue_offset, self._replica.index.next_confirmed(queue_id))
            if more or queue_id in self._replica.queues.lengths:
                self._works.wake(work)
            self._deliveries.drop_if_idle(work)


DELAY_MS_MAX: Final = 366 * 24 * 3600 * 1000

_HOWS: Final = frozenset(map(int, How))

Respond = Callable[[Message | MirrorlogError], None]
"""Answers whoever asked, once."""


class Settling:
    """`waiting_max`: so many settlements wait for a confirm; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        works: ActiveGroups,
        log: GroupLog,
        *,
        watermarks: Watermarks,
        pushed: PushedTable,
        waiting_max: int,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._works = works
        self._log = log
        self._watermarks = watermarks
        self._pushed = pushed
        self._waiting_max = waiting_max
        self._now = now
        self._waiting = 0

    def gather(self, work: Work, asked: Asked) -> None:
        """It is logged at the end of the turn. Raises Overloaded."""
        if self._waiting >= self._waiting_max:
            raise Overloaded(
                f"{self._waiting} settlements wait for a confirm (limits.max_waiting_confirms); send fewer at once",
                limit="max_waiting_confirms",
            )
        self._waiting += 1
        work.gathered.add(asked)
        if self._log.stopped:
            self.flush(work)
        self._works.wake(work)

    def flush(self, work: Work) -> None:
        """Log what was gathered, and answer it when it is confirmed; the group is looked at soon."""
        if work.gathered.asked:
            self.log_gathered(work)
            self._works.plan(work)
            self._works.wake(work)

    def log_gathered(self, work: Work) -> None:
        """`flush`, of a group that is looked at next."""
        gathered, work.gathered = work.gathered, PendingSettlements()
        for part in gathered.parts(work.key[1]):
            self._log_part(work, part)

    def settled(self, work: Work, settlement: Settlement, now: float) -> None:
        """Its changes are in the log."""
        work.delivery.settled(settlement, now)
        if settlement.how == How.ACK:
            self._replica.counters.queue(work.key[0]).acked.add(settlement.records, now)

    # --- inside ---

    def _log_part(self, work: Work, part: Part) -> None:
        """Log a part of what was gathered; the others go on without it when it is refused."""
        those, changes, logged = part.asked, part.changes, list[Change]()
        freed = sum([work.delivery.freed(asked.settlement) for asked in those])
        watermark = work.delivery.watermark_wanted(self._replica.index.next_confirmed(work.key[0]), freed)
        if changes and watermark is not None:
            changes.append(watermark)
        now = self._now()
        try:
            end = self._log.append(work.key[0], changes, logged)
        except MirrorlogError as error:
            self._count_part(work, part, logged, now)
            self._answer([each for each in those if each.settlement.changes], error)
            # What takes no change, as a release, is not refused with the others.
            those, changes, end = [each for each in those if not each.settlement.changes], [], self._log.end
        if changes and watermark is not None:
            self._watermarks.appended(work, end, watermark)
        self._count(work, those, end, now)

    def _count_part(self, work: Work, part: Part, logged: Sequence[Change], now: float) -> None:
        """When some of it is in the log though the rest was refused, it is one settlement alone, and that of it
        counts."""
        if logged:
            counts = replace(part.asked[0].settlement, ranges=ranges_of(logged), changes=tuple(logged))
            work.delivery.settled(counts, now)
            self._pushed.forget_if_done(counts.number, work)

    def _count(self, work: Work, those: Sequence[Asked], end: int, now: float) -> None:
        """They are in the log, which ends at `end` with them; each is answered at its own level."""
        by_copies: dict[int, list[Asked]] = {}
        for asked in those:
            self.settled(work, asked.settlement, now)
            by_copies.setdefault(asked.copies, []).append(asked)
            self._pushed.forget_if_done(asked.settlement.number, work)
        for copies, equals in by_copies.items():
            self._publisher.wait_at(end, copies, partial(self._answer, equals))

    def _answer(self, those: Sequence[Asked], error: MirrorlogError | None) -> None:
        self._waiting -= len(those)
        for asked in those:
            asked.done(error)


def check_settle(how: int, delay_ms: int) -> None:
    """Of a settlement, of whatever kind. Raises BadRequest."""
    if how not in _HOWS:
        raise BadRequest(f"how {how} is none of " + ", ".join(f"{each.value} ({each.name.lower()})" for each in How))
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequest(f"delay_ms {delay_ms} is not within 0 and {DELAY_MS_MAX}")
