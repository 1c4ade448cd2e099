"""What was said of records in a turn of the loop becomes changes of the log, and is answered when that is confirmed.

Settlements of a group are logged together, with the watermark that they make room for: `PendingSettlements` says as
what. Whoever has settled all that he had, and takes no more, leaves the table of subscriptions with that. Thin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.broker.consumer_groups.active_groups import (
    ActiveGroup,
    LoggedSettlements,
    PendingSettlements,
    SettlementRequest,
    ranges_of,
)
from mirrorlog.broker.consumer_groups.deliveries import Deliveries, GroupContext
from mirrorlog.broker.ports import Receiver
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.errors import BadRequest, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change, Watermark
from mirrorlog.queues.delivery.group import Settlement
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import FrameType, Grant, How, SentBefore, frame
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.groups import SubscriptionEnded

# Who is subscribed to groups of a log that this node masters, and how each of them ends. Thin.


# What a subscription with auto-ack was sent and its program has not taken. Pure.
#
# Such records are settled as they are sent, so they are with no consumer, and no prefetch would bound them: a program
# that is slower than the queue would have its client's memory filled, and would lose all of that when it dies. So they
# are counted here, and the client says what its program has taken (SETTLE, how extend: there is nothing to settle).
# The prefetch bounds them; a turn that begins below it may go beyond it once.
#
# Rejected: to stop at what the connection takes alone (the client reads it at once, for others on that connection
# wait); to keep them as unacknowledged (such comes back when a connection goes, and these do not).


@dataclass(slots=True)
class Unread:
    """`records_max`, `bytes_max`: the prefetch; `size`: bytes that were sent for `records`. `grants`: first queue
    offset and number of records of each, in the order in which they were sent."""

    records_max: int
    bytes_max: int
    records: int = 0
    size: int = 0
    grants: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def full(self) -> bool:
        """Whether nothing more is to be sent; never while there is nothing."""
        return self.records >= self.records_max or (self.records > 0 and self.size >= self.bytes_max)

    @property
    def first(self) -> int | None:
        """The lowest queue offset that its program may still come for."""
        return min((first for first, _ in self.grants), default=None)

    def sent(self, grants: Iterable[Grant], size: int) -> None:
        added = [(each.first, each.next - each.first) for each in grants]
        self.grants += added
        self.records += sum(records for _, records in added)
        self.size += size

    def taken(self, records: int) -> None:
        """By the program, as its client says. More than was sent is all of it. Of the bytes they are counted in
        proportion."""
        records = min(records, self.records)
        if records > 0:
            self.size -= self.size * records // self.records
            self.records -= records
        while records > 0:
            first, there = self.grants.popleft()
            if there > records:
                self.grants.appendleft((first + records, there - records))
            records -= there


@dataclass(slots=True)
class Pushed:
    """A subscription. `sent`: the batches that its client has; `unread`: with auto-ack."""

    work: ActiveGroup
    receiver: Receiver
    sent: SentBefore = field(default_factory=lambda: SentBefore(0))
    unread: Unread | None = None

    @property
    def held(self) -> bool:
        """Whether it takes no more at the moment."""
        return not self.receiver.endpoint.takes_records or (self.unread is not None and self.unread.full)


class PushedTable:
    """By the numbers of subscriptions. Whoever leaves it leaves the book too."""

    def __init__(self, book: SubscriptionBook, deliveries: Deliveries) -> None:
        self._book = book
        self._deliveries = deliveries
        self._pushed: dict[int, Pushed] = {}

    def __getitem__(self, number: int) -> Pushed:
        """Of a number that the book knows."""
        return self._pushed[number]

    def get(self, number: int) -> Pushed | None:
        return self._pushed.get(number)

    def items(self) -> list[tuple[int, Pushed]]:
        return list(self._pushed.items())

    def unread_floors(self) -> dict[int, int]:
        """Of queues with subscriptions with auto-ack: the lowest queue offset that was sent and is not taken."""
        floors: dict[int, int] = {}
        for pushed in self._pushed.values():
            if pushed.unread is not None and (first := pushed.unread.first) is not None:
                queue_id = pushed.work.key[0]
                floors[queue_id] = min(first, floors.get(queue_id, first))
        return floors

    def add(self, number: int, pushed: Pushed) -> None:
        self._pushed[number] = pushed

    def connection(self, number: int) -> Endpoint | None:
        """Whose it is."""
        return self._pushed[number].receiver.endpoint if number in self._pushed else None

    def end(self, number: int, receiver: Receiver, error: MirrorlogError | None) -> None:
        """It is no more, and is told `error`; None: its connection is gone, or it has asked for that."""
        self._pushed.pop(number, None)
        self._book.remove(number)
        if error is not None:
            ended = SubscriptionEnded(
                subscription=number, code=error.code, message=error.message, details=error.details
            )
            receiver.answer(frame(FrameType.ENDED, encode(ended)))

    def forget_if_done(self, number: int, work: ActiveGroup) -> None:
        """One that was unsubscribed, and has nothing unacknowledged any more."""
        if number in self._pushed and not work.delivery.subscribers.knows(number):
            del self._pushed[number]
            self._book.remove(number)
            self._deliveries.drop_if_idle(work)


# The watermarks of a log's groups on their way to all copies: a record is given out only below one that is there.
#
# Thin: `queues.delivery` says when one is to be logged, and where it stands (decision 0033).


class _Logged(NamedTuple):
    """A watermark that is not on all copies yet."""

    end: int
    work: ActiveGroup
    queue_offset: int


class Watermarks:
    """Of the groups of one log, in the order of their ends in the log."""

    def __init__(self, context: GroupContext, deliveries: Deliveries) -> None:
        self._replica = context.replica
        self._works = context.works
        self._log = context.log
        self._deliveries = deliveries
        self._logged: deque[_Logged] = deque()

    def move(self, work: ActiveGroup, end: int) -> None:
        """Log it, if it is time; see `GroupDelivery.watermark_wanted`."""
        change = work.delivery.watermark_wanted(end)
        if change is None:
            return
        logged_to = self._log.append_if_possible(work, [change])
        if logged_to is not None:
            self.appended(work, logged_to, change)

    def appended(self, work: ActiveGroup, end: int, change: Watermark) -> None:
        """It is logged, with others or alone. `end`: where that ends in the log."""
        work.delivery.front.appended(change.queue_offset)
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


class SettlementService:
    """Of the groups of one log."""

    def __init__(self, context: GroupContext, watermarks: Watermarks, pushed: PushedTable) -> None:
        self._replica = context.replica
        self._publisher = context.publisher
        self._works = context.works
        self._log = context.log
        self._watermarks = watermarks
        self._pushed = pushed
        self._waiting_max = context.limits.max_waiting_confirms
        self._now = context.now
        self._waiting = 0

    def gather(self, work: ActiveGroup, asked: SettlementRequest) -> None:
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

    def flush(self, work: ActiveGroup) -> None:
        """Log what was gathered, and answer it when it is confirmed; the group is looked at soon."""
        if work.gathered.asked:
            self.log_gathered(work)
            self._works.plan(work)
            self._works.wake(work)

    def log_gathered(self, work: ActiveGroup) -> None:
        """`flush`, of a group that is looked at next."""
        gathered, work.gathered = work.gathered, PendingSettlements()
        for part in gathered.parts(work.key[1]):
            self._log_part(work, part)

    def settled(self, work: ActiveGroup, settlement: Settlement, now: float) -> None:
        """Its changes are in the log."""
        work.delivery.settling.settled(settlement, now)
        if settlement.how == How.ACK:
            self._replica.counters.settled(work.key, settlement.records, now)

    # --- inside ---

    def _log_part(self, work: ActiveGroup, part: LoggedSettlements) -> None:
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

    def _count_part(self, work: ActiveGroup, part: LoggedSettlements, logged: Sequence[Change], now: float) -> None:
        """When some of it is in the log though the rest was refused, it is one settlement alone, and that of it
        counts."""
        if logged:
            counts = replace(part.asked[0].settlement, ranges=ranges_of(logged), changes=tuple(logged))
            work.delivery.settling.settled(counts, now)
            self._pushed.forget_if_done(counts.number, work)

    def _count(self, work: ActiveGroup, those: Sequence[SettlementRequest], end: int, now: float) -> None:
        """They are in the log, which ends at `end` with them; each is answered at its own level."""
        by_copies: dict[int, list[SettlementRequest]] = {}
        for asked in those:
            self.settled(work, asked.settlement, now)
            by_copies.setdefault(asked.copies, []).append(asked)
            self._pushed.forget_if_done(asked.settlement.number, work)
        for copies, equals in by_copies.items():
            self._publisher.wait_at(end, copies, partial(self._answer, equals))

    def _answer(self, those: Sequence[SettlementRequest], error: MirrorlogError | None) -> None:
        self._waiting -= len(those)
        for asked in those:
            asked.done(error)


def check_settle(how: int, delay_ms: int) -> None:
    """Of a settlement, of whatever kind. Raises BadRequest."""
    if how not in _HOWS:
        raise BadRequest(f"how {how} is none of " + ", ".join(f"{each.value} ({each.name.lower()})" for each in How))
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequest(f"delay_ms {delay_ms} is not within 0 and {DELAY_MS_MAX}")
