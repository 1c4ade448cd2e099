"""Who waits for a lease, who is given one, and what holders say of theirs. Thin: `queues.delivery` decides."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import cycle
from typing import Final, NamedTuple

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, SettlementRequest
from mirrorlog.broker.consumer_groups.deliveries import Deliveries, GroupContext
from mirrorlog.broker.consumer_groups.settlement import Respond, SettlementService, check_settle
from mirrorlog.broker.ports import Receiver
from mirrorlog.commitlog.index.gaps import counted_there
from mirrorlog.errors import BadRequest, LimitReached, MirrorlogError, NotGranted, Overloaded
from mirrorlog.ha.group_transfer import ALL_MEMBERS
from mirrorlog.queues.changes import Change, RecordsLeased
from mirrorlog.queues.delivery.group import Dispatch, LeaseClaim, LeaseWish
from mirrorlog.queues.delivery.keys import check_ordered
from mirrorlog.wire.messages.groups import ExtendLease, Lease, LeasedRange, Leases, LeasesSettled, SettleLease

LEASE_MS_MAX: Final = 366 * 24 * 3600 * 1000
WAIT_MS_MAX: Final = 60_000

APART_MAX: Final = 25
"""Leases that are given together: their changes are one batch, or none of them."""
_HOLDER_CHARS_MAX: Final = 255
_SPARE: Final = 64


class Waiter(NamedTuple):
    """Who waits for a lease."""

    work: ActiveGroup
    respond: Respond
    receiver: Receiver
    ordered: bool = False


class Leasing:
    """Of the groups of one log."""

    def __init__(self, context: GroupContext, deliveries: Deliveries, settling: SettlementService) -> None:
        self._replica = context.replica
        self._publisher = context.publisher
        self._works = context.works
        self._log = context.log
        self._book = context.book
        self._numbers = context.leases
        self._deliveries = deliveries
        self._settling = settling
        self._limits = context.limits
        self._clock = context.clock
        self._now = context.now
        self._waiters: dict[int, Waiter] = {}
        self.ends: list[tuple[float, int]] = []

    # --- waiting ---

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def waits(self, number: int) -> bool:
        return number in self._waiters

    def waiters(self) -> list[tuple[int, Waiter]]:
        return list(self._waiters.items())

    def lease(self, message: Lease, queue_id: int, receiver: Receiver, respond: Respond) -> None:
        """Answered with Leases, confirmed, or with none. Raises BadRequest, ExclusiveTaken, Overloaded or
        LimitReached."""
        self._check(message)
        ordered = check_ordered(message.ordered_by)
        work = self._deliveries.of((queue_id, message.group), make=True)
        number = self._book.next_wait()
        try:
            work.delivery.clock(self._now(), self._clock())
            records = min(message.records_max, APART_MAX) if message.apart else message.records_max
            wish = LeaseWish(number, message.holder, records, message.lease_ms, ordered, message.apart)
            work.delivery.lease(wish)
        except MirrorlogError:
            self._deliveries.drop_if_idle(work)
            raise
        self._waiters[number] = Waiter(work, respond, receiver, ordered)
        heappush(self.ends, (self._now() + min(message.wait_ms, WAIT_MS_MAX) / 1000, number))
        if len(self.ends) > 2 * len(self._waiters) + _SPARE:
            self.ends = [each for each in self.ends if each[1] in self._waiters]
            heapify(self.ends)
        self._works.wake(work)

    def refuse(self, number: int, error: MirrorlogError) -> None:
        """Whoever waits under this number, if anybody does, is told that it is in vain."""
        if (waiter := self._waiters.pop(number, None)) is not None:
            waiter.respond(error)

    def leave(self, number: int) -> Waiter:
        """He waits no more, and is told nothing yet."""
        waiter = self._waiters.pop(number)
        waiter.work.delivery.gone(number)
        self._deliveries.drop_if_idle(waiter.work)
        return waiter

    def end_waits(self, now: float) -> None:
        """Who has waited for a lease long enough is told that there is none."""
        while self.ends and self.ends[0][0] <= now:
            _, number = heappop(self.ends)
            if number in self._waiters:
                waiter = self.leave(number)
                waiter.respond(self._answer(waiter, []))

    def lend(self, work: ActiveGroup, given: Dispatch, end: int) -> None:
        """Answer who waited. `end`: where the changes end in the log by which he was given these."""
        waiter = self._waiters.pop(given.number)
        leases = list[int]()
        for change in given.changes:
            assert isinstance(change, RecordsLeased)
            work.delivery.endings.began(change.lease, change.lease_ms, self._now())
            leases.append(change.lease)
        self._replica.counters.granted(work.key, given.grants, self._now())
        leased = [
            LeasedRange(
                first=each.first,
                next=each.next,
                lease=lease,
                redelivered=each.redelivered,
                attempts=each.attempts,
            )
            for each, lease in zip(given.grants, leases if len(leases) > 1 else cycle(leases), strict=False)
        ]
        answer = self._answer(waiter, leased)
        self._publisher.wait_at(end, ALL_MEMBERS, lambda error: waiter.respond(error or answer))

    # --- what holders say ---

    def settle(self, message: SettleLease, queue_id: int, respond: Respond) -> None:
        """Answered with LeasesSettled at its level, or SettledOtherwise at that. Raises BadRequest."""
        copies = self._publisher.copies_for(message.level)
        check_settle(message.how, message.delay_ms)
        work = self._deliveries.of((queue_id, message.group))
        end = self._replica.index.next_confirmed(queue_id)
        try:
            receipts = self._receipts(message.receipts, end, BadRequest)
            if work.gathered.meets(border for each in receipts for border in each[:2]):
                self._settling.flush(work)
            settlement = work.delivery.leases.settle(receipts, message.how, message.delay_ms, end=end)
        except MirrorlogError:
            self._deliveries.drop_if_idle(work)
            raise
        answer = LeasesSettled(records=settlement.records)
        self._settling.gather(
            work, SettlementRequest(settlement, copies, lambda error: respond(error or settlement.refusal or answer))
        )

    def extend(self, message: ExtendLease, queue_id: int, respond: Respond) -> None:
        """Answered with LeasesSettled once it is confirmed. Raises BadRequest or NotGranted."""
        _check_lease_ms(message.lease_ms)
        work = self._deliveries.of((queue_id, message.group))
        self._settling.flush(work)
        logged = list[Change]()
        try:
            receipts = self._receipts(message.receipts, self._replica.index.next_confirmed(queue_id), NotGranted)
            end = self._log.append(queue_id, work.delivery.leases.extend(receipts, message.lease_ms), logged)
        finally:  # a part of many leases may be logged, and the rest refused
            for change in logged:
                if isinstance(change, RecordsLeased):
                    work.delivery.endings.began(change.lease, change.lease_ms, self._now())
            self._works.plan(work)
            self._deliveries.drop_if_idle(work)
        records = sum(each.until - each.first for each in receipts)
        done = LeasesSettled(records=records)
        self._publisher.wait_at(end, ALL_MEMBERS, lambda error: respond(error or done))

    # --- inside ---

    def _answer(self, waiter: Waiter, leased: list[LeasedRange]) -> Leases:
        queue_id, index = waiter.work.key[0], self._replica.index
        following = index.next_confirmed(queue_id)
        ready = waiter.work.delivery.ledger.ready
        return Leases(
            log_id=str(self._replica.log_id),
            epoch=self._replica.log.epochs.current + self._replica.queues.epoch_shifts.get(queue_id, 0),
            queue_id=queue_id,
            next=following,
            leased=leased,
            ordered=waiter.ordered,
            ready=counted_there(ready, index.begin(queue_id), index.gaps_of(queue_id), following),
        )

    def _check(self, message: Lease) -> None:
        """Raises BadRequest, Overloaded or LimitReached."""
        _check_lease_ms(message.lease_ms)
        _check_holder(message.holder)
        if not 1 <= message.records_max <= self._limits.max_unsettled_records:
            raise BadRequest(
                f"records_max {message.records_max} is not within 1 and {self._limits.max_unsettled_records} "
                "(limits.max_unsettled_records)"
            )
        if len(self._waiters) >= self._limits.max_waiting_fetches:
            raise Overloaded(
                f"{len(self._waiters)} wait for leases (limits.max_waiting_fetches)", limit="max_waiting_fetches"
            )
        if self._numbers.full:
            raise LimitReached("this mastership has given 2^32 leases; let another node master the log")

    def _receipts(
        self, told: Sequence[LeasedRange], end: int, never: type[BadRequest] | type[NotGranted]
    ) -> list[LeaseClaim]:
        """Bounded by what there is, before anything else is asked of them. Raises BadRequest, or `never` for records
        from `end` on."""
        if not 1 <= len(told) <= self._limits.max_ranges_per_settle:
            raise BadRequest(
                f"{len(told)} receipts are not within 1 and {self._limits.max_ranges_per_settle} "
                "(limits.max_ranges_per_settle)"
            )
        receipts = [LeaseClaim(each.first, each.next, each.lease) for each in told]
        twice = reached = 0
        for first, until, _ in sorted(receipts):
            if not 0 <= first < until < 1 << 63:
                raise BadRequest(f"a receipt of records {first} to {until} is none")
            if until > end:
                raise never(f"records {first} to {until} were never leased", first=first, next=until)
            twice += max(0, min(reached, until) - first)
            reached = max(reached, until)
        if twice > self._limits.max_unsettled_records:
            raise BadRequest(
                f"these receipts name {twice} records more than once, above {self._limits.max_unsettled_records} "
                "(limits.max_unsettled_records); send several"
            )
        return receipts


def _check_lease_ms(lease_ms: int) -> None:
    if not 1 <= lease_ms <= LEASE_MS_MAX:
        raise BadRequest(f"lease_ms {lease_ms} is not within 1 and {LEASE_MS_MAX}")


def _check_holder(holder: str) -> None:
    if len(holder) > _HOLDER_CHARS_MAX:
        raise BadRequest(f"a lease's holder has at most {_HOLDER_CHARS_MAX} characters")
