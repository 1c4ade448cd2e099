"""The acking groups of a log that this node masters: frames out, settlements in, changes to the log. Thin:
`queues.delivery` decides.

What comes in a turn of the loop is gathered: settlements of a group are one change, confirms of a queue wake its groups
once, and then everybody is given what is there. A group costs nothing while nobody takes from it, leases from it or
waits in it: it is a ledger then, and there is a `Delivery` only from the first one to the last. All times are in one
heap per log. The bytes of records go out with their grants as far as the log's memory has them; what is older, and what
this subscriber was sent already, it fetches (docs/decisions/0034).

Nothing is given before this mastership's first batch is confirmed, nor while this node is out of touch with the
cluster: another one may be giving the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Final, NamedTuple

from mirrorlog.broker.gathered import Asked, Gathered, Part, in_batches, merged, ranges_of
from mirrorlog.broker.host import now_us
from mirrorlog.broker.log_clock import LogClock
from mirrorlog.broker.publish import ElsewhereLog, Publisher
from mirrorlog.broker.reached_batches import ReachedBatches
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.subscription_book import Receiver, SubscriptionBook
from mirrorlog.broker.taking import Taking, taking_of
from mirrorlog.broker.unread import Unread
from mirrorlog.config import LimitSettings
from mirrorlog.errors import (
    BadRequest,
    ConsumerTimedOut,
    LimitReached,
    MirrorlogError,
    NotGranted,
    OutcomeUnknown,
    Overloaded,
    SubscriptionCancelled,
)
from mirrorlog.ha.progress import ALL_MEMBERS
from mirrorlog.queues.arguments import dead_letters_of
from mirrorlog.queues.changes import (
    Change,
    Departing,
    GroupDeleted,
    GroupReset,
    Leased,
    PositionCommitted,
    Settled,
    Watermark,
    encode_changes,
)
from mirrorlog.queues.deaths import EXPIRED, REASONS, deaths
from mirrorlog.queues.delivery import EPOCH_BITS, Delivery, Given, LeaseWish, Receipt, Rules, Settlement
from mirrorlog.queues.departures import REDRIVEN, DepartureNumbers
from mirrorlog.queues.expiries import Expiries
from mirrorlog.queues.groups import OWN_GROUP, no_such_group
from mirrorlog.queues.subscriber import Range, Subscription
from mirrorlog.wire.frames import SETTLE_AGAIN, FrameType, Grant, How, Settle, deliver_head, frame, settled_frame
from mirrorlog.wire.messages import (
    Done,
    ExtendLease,
    Lease,
    LeasedRange,
    Leases,
    LeasesSettled,
    Message,
    Purged,
    Redrive,
    Redriven,
    SettleLease,
    Subscribe,
    Subscribed,
    SubscriptionEnded,
    encode,
)

logger = logging.getLogger(__name__)

LEASE_MS_MAX: Final = 366 * 24 * 3600 * 1000
DELAY_MS_MAX: Final = 366 * 24 * 3600 * 1000
WAIT_MS_MAX: Final = 60_000

_TURNS: Final = 32
"""So many frames to a group's subscribers, then others of the loop have their turn."""
_HOLDER_CHARS_MAX: Final = 255
_GAPS_AT_ONCE: Final = 64
_LOOKED_AT_ONCE: Final = 4096
_EXPIRING_AT_ONCE: Final = 256
"""Groups that look at what has expired, in a turn of the loop."""
_LEASES_MAX: Final = (1 << EPOCH_BITS) - 1
_SPARE: Final = 64
_EXPIRING: Final = ("x-message-ttl", "x-dead-letter-exchange")
"""A queue that is declared with one of these has its own group as soon as there is something that expires: nobody has
to take from it first."""

_HOWS: Final = frozenset(map(int, How))

_Key = tuple[int, str]
"""Queue id and group."""
_Replacing = GroupReset | GroupDeleted | PositionCommitted
Respond = Callable[[Message | MirrorlogError], None]


@dataclass(slots=True)
class _Work:
    """A group that somebody takes from. `planned`: when it is looked at next. `refused`: a change of it was."""

    key: _Key
    delivery: Delivery
    gathered: Gathered = field(default_factory=Gathered)
    planned: float = inf
    refused: bool = False


@dataclass(slots=True)
class _Pushed:
    """A subscription. `last`: the base queue offset of the batch it was sent last; `unread`: with auto-ack."""

    work: _Work
    receiver: Receiver
    last: int = -1
    unread: Unread | None = None

    @property
    def held(self) -> bool:
        """Whether it takes no more at the moment."""
        return self.receiver.endpoint.paused or (self.unread is not None and self.unread.full)


class _Waiter(NamedTuple):
    """Who waits for a lease."""

    work: _Work
    respond: Respond
    receiver: Receiver


class Within(NamedTuple):
    """A settlement that is logged with other things."""

    deliverer: Deliverer
    work: _Work
    settlement: Settlement


class _Logged(NamedTuple):
    """A watermark that is not on all copies yet."""

    end: int
    work: _Work
    queue_offset: int


class Deliverer:
    """Of one mastership. `now`: the loop's clock in s; `begun`: whether its first batch is confirmed; `bytes_max`: of
    batches in one frame, but for a larger one; `clock`: by which times to live and delays end."""

    def __init__(
        self,
        replica: Replica,
        publisher: Publisher,
        *,
        limits: LimitSettings,
        book: SubscriptionBook,
        bytes_max: int,
        begun: Callable[[], bool],
        now: Callable[[], float],
        clock: LogClock,
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._limits = limits
        self._book = book
        self._bytes_max = bytes_max
        self._begun = begun
        self._now = now
        self._log_clock = clock
        self._works: dict[_Key, _Work] = {}
        # In the order in which they came: a simulated run repeats to the last callback.
        self._of_queue: dict[int, dict[str, None]] = {}
        self._found: dict[_Key, int] = {}
        """Watermarks as this mastership found them, of the groups that were delivered from in it."""
        self._fronts: dict[_Key, int] = {}
        """And how far this one has given them out, of those that nobody takes from now."""
        self._pushed: dict[int, _Pushed] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._waits: list[tuple[float, int]] = []
        self._watermarks: deque[_Logged] = deque()
        self._times: list[tuple[float, _Key]] = []
        self._awake: dict[_Key, None] = {}
        self._reached = ReachedBatches(replica)
        self._departures = DepartureNumbers(replica.departures)
        self._settling = 0
        self._leases = 0
        self._leapt = False
        self._expiries = Expiries(runs=replica.runs.of, confirmed=replica.index.next_confirmed)
        # Groups in whose queues something has expired.
        self._expiring: deque[_Key] = deque()
        # Groups that may count what a loss has left a gap of; made when this mastership has begun.
        self._gapped: Iterator[_Key] | None = None
        self._due = False
        self._stopped = False
        self._any_refused = False
        self.on_pumped: Callable[[Set[int]], None] = lambda queue_ids: None
        """Called at the end of a turn with the queues from whose own groups was given what could be."""
        replica.on_confirmed.append(self._confirmed)

    # --- subscriptions ---

    def subscribe(self, message: Subscribe, queue_id: int, receiver: Receiver) -> Subscribed:
        """From here on it is given records. Raises BadRequest, ExclusiveTaken, Overloaded, LimitReached, or why the
        group cannot be made."""
        limits = self._limits
        records = _within(message.prefetch_records, limits.max_unsettled_records, "prefetch_records")
        size = _within(message.prefetch_bytes, limits.max_unsettled_bytes, "prefetch_bytes")
        facts = Subscription(
            number=self._book.next_number(),
            prefetch_records=records,
            prefetch_bytes=size,
            auto_ack=message.auto_ack,
            exclusive=message.exclusive,
            priority=message.priority,
        )
        work = self._work((queue_id, message.group), make=message.create)
        try:
            self._book.add(facts.number, receiver, self)
            work.delivery.subscribe(facts)
        except MirrorlogError:
            self._book.remove(facts.number)
            self._drop_if_idle(work)
            raise
        # What is settled as it is sent is in nobody's hands.
        unread = Unread(records, size) if message.auto_ack else None
        pushed = self._pushed[facts.number] = _Pushed(work, receiver, unread=unread)
        work.delivery.hold(facts.number, pushed.held)
        self._wake(work)
        return Subscribed(
            subscription=facts.number,
            log_id=str(self._replica.log_id),
            epoch=self._replica.epochs.current,
            queue_id=queue_id,
            prefetch_records=facts.prefetch_records,
            prefetch_bytes=facts.prefetch_bytes,
        )

    def unsubscribe(self, number: int) -> None:
        """It is given nothing more; what it has it may settle. Raises NoSuchSubscription."""
        work = self._pushed[number].work
        work.delivery.unsubscribe(number)
        self._forget_if_done(number, work)

    def writable(self, number: int) -> None:
        """Its connection takes more."""
        pushed = self._pushed.get(number)
        if pushed is not None:
            pushed.work.delivery.hold(number, pushed.held)
            self._wake(pushed.work)

    def held(self, number: int) -> None:
        """Its connection takes no more; `writable` follows."""
        pushed = self._pushed.get(number)
        if pushed is not None:
            pushed.work.delivery.hold(number, True)

    def gone(self, number: int) -> None:
        """Its connection is no more: what it had is given to others."""
        pushed = self._pushed.get(number)
        if pushed is not None:
            self._end(number, pushed, None)

    def end_refused(self, refused: Callable[[Receiver, int], MirrorlogError | None]) -> None:
        """End the subscriptions and waits for leases of those who may not read their queue any more: `refused` says
        why, of a connection and a queue's id."""
        for number, pushed in list(self._pushed.items()):
            if (error := refused(pushed.receiver, pushed.work.key[0])) is not None:
                self._end(number, pushed, error)
        for number, waiter in list(self._waiters.items()):
            if (error := refused(waiter.receiver, waiter.work.key[0])) is not None:
                del self._waiters[number]
                waiter.work.delivery.gone(number)
                self._drop_if_idle(waiter.work)
                waiter.respond(error)

    def forget(self, receiver: Receiver) -> None:
        """A connection is no more: it waits for no lease."""
        for number in [number for number, each in self._waiters.items() if each.receiver is receiver]:
            work = self._waiters.pop(number).work
            work.delivery.gone(number)
            self._drop_if_idle(work)

    def settle(self, settle: Settle, ranges: Sequence[int], receiver: Receiver, correlation_id: int) -> None:
        """Answered with SETTLED when so many copies have it. Raises BadRequest, NotGranted, NoSuchSubscription or
        Overloaded: then nothing of it counts."""
        copies = self._publisher.copies_for(settle.level)
        _check_settle(settle.how, settle.delay_ms)
        if settle.range_count > self._limits.max_ranges_per_settle:
            raise BadRequest(
                f"{settle.range_count} ranges in one settlement are above the limit of "
                f"{self._limits.max_ranges_per_settle} (limits.max_ranges_per_settle); send several"
            )
        pushed = self._pushed[settle.subscription]
        if pushed.unread is not None:
            pushed.unread.taken(sum(ranges[1::2]) - sum(ranges[::2]))
            self.writable(settle.subscription)
            receiver.answer(settled_frame(0, correlation_id))
            return
        work = pushed.work
        if work.gathered.asked:
            work.delivery.given(ranges)
            if work.gathered.meets(ranges):
                self._flush(work)
        settlement = work.delivery.settle(
            settle.subscription,
            settle.epoch,
            settle.how,
            ranges,
            settle.delay_ms,
            again=bool(settle.flags & SETTLE_AGAIN),
        )

        def done(error: MirrorlogError | None) -> None:
            if error is not None:
                receiver.refuse(error, correlation_id)
            else:
                receiver.answer(settled_frame(settlement.records, correlation_id, settlement.passed_over))

        self._gather(work, Asked(settlement, copies, done))

    def queue_of(self, number: int) -> int:
        """The id of the queue that a subscription takes from."""
        return self._pushed[number].work.key[0]

    def settle_within(self, settle: Settle, ranges: Sequence[int], *, whole: bool = False) -> Within:
        """Check a settlement that is to be logged by somebody else, with other things; nothing of it counts before
        `logged_within`, in the same step of the loop. Raises as `settle`, and NotGranted for what somebody else has;
        `whole`: also for what is settled already, or something else would count beside it once more."""
        work = self._pushed[settle.subscription].work
        work.delivery.given(ranges)
        if work.gathered.meets(ranges):
            self._flush(work)
        again = bool(settle.flags & SETTLE_AGAIN)
        settlement = work.delivery.settle(settle.subscription, settle.epoch, settle.how, ranges, again=again)
        if settlement.passed_over:
            raise NotGranted(f"{settlement.passed_over} of the records are in somebody else's hands by now")
        missed = sum(ranges[1::2]) - sum(ranges[::2]) - settlement.records
        if whole and missed:
            raise NotGranted(f"{missed} of the records are settled already, and not by this transaction")
        return Within(self, work, settlement)

    def logged_within(self, within: Within) -> None:
        """Its changes are in the log."""
        work = within.work
        now = self._now()
        work.delivery.settled(within.settlement, now)
        if within.settlement.how == How.ACK:
            self._replica.counters.queue(work.key[0]).acked.add(within.settlement.records, now)
        self._forget_if_done(within.settlement.number, work)
        self._plan(work)
        self._wake(work)

    # --- leases ---

    def lease(self, message: Lease, queue_id: int, receiver: Receiver, respond: Respond) -> None:
        """Answered with Leases, confirmed, or with none. Raises BadRequest, ExclusiveTaken, Overloaded or
        LimitReached."""
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
        if self._leases >= _LEASES_MAX:
            raise LimitReached("this mastership has given 2^32 leases; let another node master the log")
        work = self._work((queue_id, message.group), make=True)
        number = self._book.next_wait()
        try:
            work.delivery.lease(LeaseWish(number, message.holder, message.records_max, message.lease_ms))
        except MirrorlogError:
            self._drop_if_idle(work)
            raise
        self._waiters[number] = _Waiter(work, respond, receiver)
        heappush(self._waits, (self._now() + min(message.wait_ms, WAIT_MS_MAX) / 1000, number))
        if len(self._waits) > 2 * len(self._waiters) + _SPARE:
            self._waits = [each for each in self._waits if each[1] in self._waiters]
            heapify(self._waits)
        self._wake(work)

    def settle_lease(self, message: SettleLease, queue_id: int, respond: Respond) -> None:
        """Answered with LeasesSettled at its level. Raises BadRequest."""
        copies = self._publisher.copies_for(message.level)
        _check_settle(message.how, message.delay_ms)
        work = self._work((queue_id, message.group))
        end = self._replica.index.next_confirmed(queue_id)
        try:
            receipts = self._receipts(message.receipts, end, BadRequest)
            if work.gathered.meets(border for each in receipts for border in each[:2]):
                self._flush(work)
            settlement = work.delivery.settle_leased(receipts, message.how, message.delay_ms, end=end)
        except MirrorlogError:
            self._drop_if_idle(work)
            raise
        answer = LeasesSettled(records=settlement.records)
        self._gather(work, Asked(settlement, copies, lambda error: respond(error or answer)))

    def extend_lease(self, message: ExtendLease, queue_id: int, respond: Respond) -> None:
        """Answered with LeasesSettled once it is confirmed. Raises BadRequest or NotGranted."""
        _check_lease_ms(message.lease_ms)
        work = self._work((queue_id, message.group))
        self._flush(work)
        logged = list[Change]()
        try:
            receipts = self._receipts(message.receipts, self._replica.index.next_confirmed(queue_id), NotGranted)
            end = self._append(queue_id, work.delivery.extend_leased(receipts, message.lease_ms), logged)
        finally:  # a part of many leases may be logged, and the rest refused
            for change in logged:
                if isinstance(change, Leased):
                    work.delivery.lease_began(change.lease, change.lease_ms, self._now())
            self._plan(work)
            self._drop_if_idle(work)
        records = sum(each.until - each.first for each in receipts)
        done = LeasesSettled(records=records)
        self._publisher.wait_at(end, ALL_MEMBERS, lambda error: respond(error or done))

    def _next_lease(self) -> int:
        self._leases += 1
        return self.last_lease

    @property
    def last_lease(self) -> int:
        """The highest number that was given to a lease in this mastership; below all that will be."""
        return self._replica.epochs.current << EPOCH_BITS | self._leases

    def _receipts(
        self, told: Sequence[LeasedRange], end: int, never: type[BadRequest] | type[NotGranted]
    ) -> list[Receipt]:
        """Bounded by what there is, before anything else is asked of them. Raises BadRequest, or `never` for records
        from `end` on."""
        if not 1 <= len(told) <= self._limits.max_ranges_per_settle:
            raise BadRequest(
                f"{len(told)} receipts are not within 1 and {self._limits.max_ranges_per_settle} "
                "(limits.max_ranges_per_settle)"
            )
        receipts = [Receipt(each.first, each.next, each.lease) for each in told]
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

    # --- groups ---

    def purge(self, queue_id: int, group: str, respond: Respond) -> None:
        """Settle what is in nobody's hands. Answered with Purged once that is confirmed. Raises MirrorlogError: then
        nothing was changed."""
        self._purge(self._work((queue_id, group)), self._replica.index.next_confirmed(queue_id), 0, 0, respond)

    def _purge(self, work: _Work, until: int, since: int, records: int, respond: Respond) -> None:
        """From the queue offset `since` on, behind `records` that were settled; the rest in turns to come."""
        self._flush(work)
        change, logged = work.delivery.purge(until, since), list[Change]()
        try:
            end = self._append(work.key[0], [change], logged) if change is not None else self._replica.end
        finally:
            for part in logged:
                if isinstance(part, Settled):
                    work.delivery.purge_done(part)
            self._drop_if_idle(work)
        if change is None:
            done = Purged(records=records)
            self._publisher.wait_at(end, ALL_MEMBERS, lambda error: respond(error or done))
            return
        records += sum(change.ranges[1::2]) - sum(change.ranges[::2])
        asyncio.get_running_loop().call_soon(self._purge_on, work.key, until, change.ranges[-1], records, respond)

    def _purge_on(self, key: _Key, until: int, since: int, records: int, respond: Respond) -> None:
        try:
            self._purge(self._work(key), until, since, records, respond)
        except MirrorlogError as error:
            respond(OutcomeUnknown(f"{records} records were purged, and the rest was not: {error}"))

    # --- dead letters ---

    def die(self, queue_id: int, group: str, ranges: Sequence[Range], why: str) -> list[Change]:
        """The changes by which records of a group end that nobody has acknowledged: they are settled, or leave."""
        queues = self._replica.queues
        own = group == OWN_GROUP and queues.has_id(queue_id)
        way = dead_letters_of(queues.find_id(queue_id).arguments) if own else None
        if way is None or not ranges:
            return deaths(group, ranges, why)
        flat = [border for each in ranges for border in each]
        return [
            self._departures.departing(
                queue_id, group, flat, REASONS[why], at_us=now_us(), exchange=way.exchange, routing_key=way.routing_key
            )
        ]

    def redrive(self, message: Redrive, queue_id: int, respond: Respond) -> None:
        """Have ready records of the queue's own group leave. Answered with Redriven once it is confirmed that they do.
        Raises MirrorlogError: then none does."""
        if self._departures.is_full(queue_id):
            raise Overloaded(
                f"{len(self._replica.departures.of(queue_id).departures)} departures of this queue wait "
                "(max_departures); mqtool doctor says for whom",
                limit="max_departures",
            )
        work = self._work((queue_id, OWN_GROUP))
        self._flush(work)
        try:
            ready = work.delivery.ready(self._replica.index.next_confirmed(queue_id), message.records_max)
            if ready:
                change = self._departures.departing(
                    queue_id, OWN_GROUP, [border for each in ready for border in each], REDRIVEN, at_us=now_us(),
                    exchange="", routing_key=message.to or None,
                )  # fmt: skip
                self._append(queue_id, [change])
                work.delivery.left(ready)
        finally:
            self._drop_if_idle(work)
        done = Redriven(records=sum(until - first for first, until in ready))
        self._publisher.wait_at(self._replica.end, ALL_MEMBERS, lambda error: respond(error or done))

    def departing(self, queue_id: int, group: str) -> int:
        """How many records of a group leave for other queues."""
        ledger = self._replica.groups.get(queue_id, group)
        there = {each.number for each in self._replica.departures.of(queue_id).departures if each.group == group}
        return sum(map(ledger.lease_records, there)) if ledger is not None else 0

    def stayed(self, queue_id: int, group: str, ranges: Sequence[Range]) -> None:
        """Records that were to leave are free again; that is appended."""
        if (work := self._works.get((queue_id, group))) is not None:
            work.delivery.stayed(ranges)
            self._wake(work)

    def delete_group(self, queue_id: int, group: str, respond: Respond) -> None:
        """Forget it, of either kind, whoever is subscribed. Answered with Done once that is confirmed. Raises
        NoSuchGroup, or MirrorlogError: then nothing was changed."""
        streams = self._replica.queues.find_id(queue_id).newest
        if self._replica.groups.get(queue_id, group) is None and group not in streams:
            raise no_such_group(group)
        self.replace(queue_id, [GroupDeleted(group=group)], "deleted", lambda error: respond(error or Done()))

    def settle_gathered(self, queue_id: int, groups: Iterable[str]) -> None:
        """What was asked of these groups is logged: it comes before whatever is to be decided now."""
        for work in [self._works[queue_id, group] for group in groups if (queue_id, group) in self._works]:
            self._flush(work)

    def pump_soon(self, queue_id: int, group: str) -> bool:
        """Whether somebody may have room for records of the group; then he is given them soon, see `on_pumped`."""
        if (work := self._works.get((queue_id, group))) is None:
            return False
        self._wake(work)
        return True

    def served(self, queue_id: int, group: str, watermark: int | None) -> tuple[bool, int]:
        """Whether everybody who had room when `watermark` was asked for has been given what there is, behind a pump;
        else the watermark to ask again with, at the next one. Who gets room meanwhile is not waited for: he always
        would be, under traffic."""
        if (work := self._works.get((queue_id, group))) is None:
            return True, 0
        watermark = work.delivery.watermark if watermark is None else watermark
        return not work.refused and work.delivery.served(watermark), watermark

    def dropped(self, queue_id: int, group: str, ranges: Sequence[Range]) -> None:
        """What was in nobody's hands in a group was settled by others, or leaves; that is appended."""
        if (work := self._works.get((queue_id, group))) is not None:
            work.delivery.left(ranges)
            self._drop_if_idle(work)

    def replace(
        self, queue_id: int, changes: Sequence[_Replacing], what: str, done: Callable[[MirrorlogError | None], None]
    ) -> None:
        """Log what ends, or makes anew, some groups of a queue, all or none: who takes from one, or waits for a lease
        of it, is told that it was `what`, and whatever he has of it is nobody's. `done`: once it is confirmed. Raises
        MirrorlogError: then nothing was changed."""
        groups = [change.group for change in changes]
        batch = encode_changes(changes, queue_id=queue_id)
        if len(batch) > self._limits.max_batch_bytes:
            raise BadRequest(
                f"{len(groups)} groups at once do not fit into a batch (limits.max_batch_bytes); name fewer"
            )
        self.settle_gathered(queue_id, groups)
        end = self._publisher.append_settlement(batch)
        for group in groups:
            work = self._works.get((queue_id, group))
            if work is not None:
                self._cancel(work, SubscriptionCancelled(f"group {group!r} was {what}"))
            # What is made anew under this name begins anew.
            self._found.pop((queue_id, group), None)
            self._fronts.pop((queue_id, group), None)
        self._publisher.wait_at(end, ALL_MEMBERS, done)

    def taken(self, queue_id: int, group: str) -> str:
        """Who takes from an acking group now, in words; empty when nobody does and nobody has anything of it."""
        ledger, work = self._replica.groups.find(queue_id, group), self._works.get((queue_id, group))
        counts = {
            "subscribed": work.delivery.subscribers if work is not None else 0,
            "waiting for leases": work.delivery.waiting if work is not None else 0,
            "records in hand": ledger.out - self.held_back(queue_id, group),
            "records leased": ledger.leased - self.departing(queue_id, group),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def held_back(self, queue_id: int, group: str) -> int:
        """How many of its records that are out are in nobody's hands: they wait for their time, or are too old."""
        work = self._works.get((queue_id, group))
        return work.delivery.held_back if work is not None else 0

    def subscribers(self, queue_id: int, group: str) -> int:
        """How many there are now."""
        work = self._works.get((queue_id, group))
        return work.delivery.subscribers if work is not None else 0

    def taking(self, queue_id: int, group: str) -> Taking:
        """Who takes from it now, and what holds them up."""
        work = self._works.get((queue_id, group))
        if work is None:
            return Taking()
        return taking_of(
            work.delivery.takers,
            waiting=work.delivery.waiting,
            alone=work.delivery.alone,
            due_at=work.delivery.due_at,
            now=self._now(),
            peer=lambda number: self._pushed[number].receiver.endpoint.peer if number in self._pushed else "?",
        )

    # --- queues ---

    def takers(self, queue_id: int) -> int:
        """How many are subscribed to groups of a queue, or wait for leases from them."""
        deliveries = [self._works[queue_id, group].delivery for group in self._of_queue.get(queue_id, ())]
        return sum(delivery.subscribers + delivery.waiting for delivery in deliveries)

    def flush_queue(self, queue_id: int) -> None:
        """Log what was settled in groups of a queue: nothing of it may come behind the queue's end."""
        for group in list(self._of_queue.get(queue_id, ())):
            self._flush(self._works[queue_id, group])

    def end_queue(self, queue_id: int, error: MirrorlogError) -> None:
        """A queue is there no more; all who take from it, or wait, are told `error`."""
        for group in list(self._of_queue.get(queue_id, ())):
            self._cancel(self._works[queue_id, group], error)
        for known in (self._found, self._fronts):
            for key in [key for key in known if key[0] == queue_id]:
                del known[key]
        self._expiries.forget(queue_id)

    # --- the life of the mastership ---

    def begin(self, *, leapt: bool = False) -> None:
        """What the master before left waiting waits on: delays and leases begin anew. When the epoch's first batch is
        appended, and no record of it. `leapt`: confirmed records may be lost, and watermarks with them."""
        self._leapt = leapt
        for queue_id, group, ledger in list(self._replica.groups):
            ledger.drop_volatile()
            # It runs ahead of the queue. What comes from here on nobody has had before.
            following = self._replica.index.next_appended(queue_id)
            self._found[queue_id, group] = following if leapt else min(ledger.watermark, following)
            leased = ledger.leased and ledger.leased > self.departing(queue_id, group)
            if (leased or ledger.parked) and self._replica.queues.has_id(queue_id):
                self._plan(self._work((queue_id, group)))
        self._expiries.gained(self._replica.runs.queue_ids())

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        self._end_waits(now)
        if self._stopped or self._publisher.cut_off or not self._begun():
            return
        due: list[_Key] = []
        while self._times and self._times[0][0] <= now:
            due.append(heappop(self._times)[1])
        if self._log_clock.leapt():
            for each in self._works.values():
                self._wake(each)
        # First all of them: one whose changes are refused is due again at once, which is at the next tick.
        for key in due:
            work = self._works.get(key)
            if work is not None and work.planned <= now:
                work.planned = inf
                self._look_at_times(work, now)
        for work in [each for each in self._works.values() if each.refused] if self._any_refused else ():
            work.refused = False
            self._wake(work)
        self._any_refused = False
        self._settle_gaps()
        if self._awake or self._looks_for_ends:
            self._soon()

    def hand_over(self) -> None:
        """Nothing is given from here on; the next master shall know exactly what was."""
        if self._stopped:
            return
        for work in list(self._works.values()):
            self._flush(work)
            self._log_exactly(work)
        self._stopped = True

    def fence(self, elsewhere: ElsewhereLog) -> None:
        """Another one may be the master: all who take or wait here are sent `elsewhere`."""
        self._stopped = True
        self._replica.on_confirmed.remove(self._confirmed)
        for work in self._works.values():
            for asked in work.gathered.asked:
                asked.done(elsewhere.refusal())
        for number, pushed in list(self._pushed.items()):
            self._tell_ended(number, pushed.receiver, elsewhere.refusal())
        for waiter in list(self._waiters.values()):
            waiter.respond(elsewhere.refusal())
        for queue_id, group in self._works:
            if (ledger := self._replica.groups.get(queue_id, group)) is not None:
                ledger.drop_volatile()
        self._works.clear()
        self._pushed.clear()
        self._waiters.clear()

    # --- inside: works ---

    def _work(self, key: _Key, *, make: bool = False) -> _Work:
        """The group's. `make`: the group too, if there is none yet; the queue's own always. Raises NoSuchGroup,
        LimitReached, BadRequest, or why nothing is taken."""
        work = self._works.get(key)
        if work is not None:
            return work
        queue_id, group = key
        queue, groups = self._replica.queues.find_id(queue_id), self._replica.groups
        if groups.get(queue_id, group) is None and (make or group == OWN_GROUP):
            begin = self._replica.index.begin(queue_id)
            made = groups.reset(queue_id, group, begin, streams=queue.newest, void=self.last_lease + 1)
            self._append(queue_id, [made])
            if self._leapt:  # it may have been there before, and its making be a part of what was lost
                following = self._replica.index.next_appended(queue_id)
                self._found[key] = self._replica.index.gap(queue_id)[1] if self._begun() else following
        ledger = groups.find(queue_id, group)
        delivery = Delivery(
            group,
            ledger,
            Rules.of(queue.arguments),
            epoch=self._replica.epochs.current,
            found_watermark=self._found.setdefault(key, ledger.watermark),
            reach=partial(self._reached.reach, queue_id),
            next_lease=self._next_lease,
            runs=partial(self._replica.runs.of, queue_id),
            now=self._now(),
            front=self._fronts.pop(key, 0),
            die=partial(self.die, queue_id),
        )
        work = self._works[key] = _Work(key, delivery)
        self._of_queue.setdefault(queue_id, {})[group] = None
        return work

    def _drop_if_idle(self, work: _Work) -> None:
        if self._works.get(work.key) is not work or work.gathered.asked or not work.delivery.idle:
            return
        self._log_exactly(work)
        work.delivery.let_go()
        self._fronts[work.key] = work.delivery.front
        self._forget(work)

    def _forget(self, work: _Work) -> None:
        queue_id, group = work.key
        del self._works[work.key]
        groups = self._of_queue[queue_id]
        del groups[group]
        if not groups:
            del self._of_queue[queue_id]
        self._awake.pop(work.key, None)

    def _log_exactly(self, work: _Work) -> None:
        change = work.delivery.exact_watermark()
        if change is not None and self._append_if_possible(work, [change]) is not None:
            work.delivery.watermark_appended(change.queue_offset)

    def _cancel(self, work: _Work, error: MirrorlogError) -> None:
        """The group is gone, and with it all who take from it."""
        for number in work.delivery.numbers:
            if (pushed := self._pushed.pop(number, None)) is not None:
                self._tell_ended(number, pushed.receiver, error)
            if (waiter := self._waiters.pop(number, None)) is not None:
                waiter.respond(error)
        self._forget(work)

    def _end(self, number: int, pushed: _Pushed, error: MirrorlogError | None) -> None:
        """A subscription ends, by `error` or because its connection is gone; what it had is given to others."""
        work = pushed.work
        self._flush(work)
        self._left(work, work.delivery.gone(number))
        self._pushed.pop(number, None)
        if error is not None:
            self._tell_ended(number, pushed.receiver, error)
        else:
            self._book.remove(number)
        self._wake(work)
        self._drop_if_idle(work)

    def _left(self, work: _Work, changes: list[Change]) -> None:
        """A part of what somebody had who is gone."""
        if changes and (self._stopped or self._append_if_possible(work, changes) is None):
            work.delivery.not_counted(changes)

    def _tell_ended(self, number: int, receiver: Receiver, error: MirrorlogError) -> None:
        self._book.remove(number)
        ended = SubscriptionEnded(subscription=number, code=error.code, message=error.message, details=error.details)
        receiver.answer(frame(FrameType.ENDED, encode(ended)))

    def _forget_if_done(self, number: int, work: _Work) -> None:
        """One that was unsubscribed, and has nothing in hand any more."""
        if number in self._pushed and not work.delivery.knows(number):
            del self._pushed[number]
            self._book.remove(number)
            self._drop_if_idle(work)

    # --- inside: the log ---

    def _append(self, queue_id: int, changes: Iterable[Change], logged: list[Change] | None = None) -> int:
        """Where they end in the log. Raises MirrorlogError, OutcomeUnknown when a part of them is there; `logged`: is
        given what is there."""
        begin = end = self._replica.end
        for batch in in_batches(changes):
            try:
                end = self._publisher.append_settlement(encode_changes(batch, queue_id=queue_id))
            except MirrorlogError as error:
                if end == begin:
                    raise
                raise OutcomeUnknown(f"the first part of many ranges is logged, the rest is not: {error}") from None
            if logged is not None:
                logged.extend(batch)
        return end

    def _append_if_possible(
        self, work: _Work, changes: Iterable[Change], logged: list[Change] | None = None
    ) -> int | None:
        """Nobody waits for it, and what needs it is tried again. `logged`: as `_append`."""
        try:
            return self._append(work.key[0], merged(work.key[1], changes), logged)
        except MirrorlogError as error:
            logger.debug("group_not_logged log=%s reason=%r", self._replica.assignment.name, str(error))
            work.refused = self._any_refused = True
            return None

    def _confirmed(self, gained: Set[int]) -> None:
        """More is confirmed. Only noted: this may come in the middle of an append of this log."""
        if self._watermarks:
            self._note_watermarks()
        for queue_id in gained & self._of_queue.keys() if self._of_queue else ():
            for group in self._of_queue[queue_id]:
                if self._works[queue_id, group].delivery.taken:
                    self._awake[queue_id, group] = None
        if self._replica.runs.total:
            self._expiries.gained(gained)
        if made := self._replica.groups.made:
            for queue_id in made:
                self._expiries.anew(queue_id)
            made.clear()
        if self._awake or self._expiries.unlooked:
            self._soon()

    def _note_watermarks(self) -> None:
        while self._watermarks and self._watermarks[0].end <= self._replica.confirmed:
            _, work, queue_offset = self._watermarks.popleft()
            work.delivery.watermark_confirmed(queue_offset)
            self._wake(work)
            self._drop_if_idle(work)

    # --- inside: settling ---

    def _gather(self, work: _Work, asked: Asked) -> None:
        if self._settling >= self._limits.max_waiting_confirms:
            raise Overloaded(
                f"{self._settling} settlements wait for a confirm (limits.max_waiting_confirms); send fewer at once",
                limit="max_waiting_confirms",
            )
        self._settling += 1
        work.gathered.add(asked)
        if self._stopped:
            self._flush(work)
        self._wake(work)

    def _flush(self, work: _Work) -> None:
        """Log what was gathered, and answer it when it is confirmed."""
        gathered = work.gathered
        if not gathered.asked:
            return
        work.gathered = Gathered()
        for part in gathered.parts(work.key[1]):
            self._log(work, part)
        self._plan(work)
        self._wake(work)

    def _log(self, work: _Work, part: Part) -> None:
        """Log a part of what was gathered; the others go on without it when it is refused."""
        those, changes, logged = part.asked, part.changes, list[Change]()
        freed = sum(map(work.delivery.freed, part.settlements))
        watermark = work.delivery.watermark_wanted(self._replica.index.next_confirmed(work.key[0]), freed)
        if changes and watermark is not None:
            changes.append(watermark)
        now = self._now()
        try:
            end = self._append(work.key[0], changes, logged)
        except MirrorlogError as error:
            if logged:  # it is one settlement alone, and that of it counts
                counts = replace(part.settlements[0], ranges=ranges_of(logged), changes=tuple(logged))
                work.delivery.settled(counts, now)
                self._forget_if_done(part.settlements[0].number, work)
            self._answer([each for each in those if each.settlement.changes], error)
            # What takes no change, as a release, is not refused with the others.
            those, changes, end = [each for each in those if not each.settlement.changes], [], self._replica.end
        if changes and watermark is not None:
            self._watermark_appended(work, end, watermark)
        by_copies: dict[int, list[Asked]] = {}
        for asked in those:
            work.delivery.settled(asked.settlement, now)
            if asked.settlement.how == How.ACK:
                self._replica.counters.queue(work.key[0]).acked.add(asked.settlement.records, now)
            by_copies.setdefault(asked.copies, []).append(asked)
            self._forget_if_done(asked.settlement.number, work)
        for copies, equals in by_copies.items():
            self._publisher.wait_at(end, copies, partial(self._answer, equals))

    def _answer(self, those: Sequence[Asked], error: MirrorlogError | None) -> None:
        self._settling -= len(those)
        for asked in those:
            asked.done(error)

    # --- inside: giving ---

    def _wake(self, work: _Work) -> None:
        if self._works.get(work.key) is work:
            self._awake[work.key] = None
            self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Once in a turn of the loop, when anything has happened."""
        self._due = False
        if self._stopped or not self._begun() or self._publisher.cut_off:
            return  # a confirm or a tick comes back to it
        self._look_for_ends()
        awake, self._awake = self._awake, {}
        works = [self._works[key] for key in awake if key in self._works]
        for work in works:
            self._flush(work)
        for work in works:
            if self._works.get(work.key) is work:
                self._pump_safely(work)
            if self._works.get(work.key) is work and not work.refused and work.delivery.due_at <= self._now():
                self._wake(work)
        self._end_waits(self._now())
        self.on_pumped({work.key[0] for work in works if work.key[1] == OWN_GROUP})

    @property
    def _looks_for_ends(self) -> bool:
        """Whether `_look_for_ends` has something to do."""
        expiries = self._expiries
        return expiries.unlooked or bool(self._expiring) or expiries.next_us <= self._log_clock()

    def _look_for_ends(self) -> None:
        """Records that expire do so whether somebody takes from their group or not."""
        if not self._looks_for_ends:
            return
        not_made = [each for each in self._expiries.look(_LOOKED_AT_ONCE) if not self._make_own(each)]
        groups = self._replica.groups.groups
        for queue_id in self._expiries.come(self._log_clock()):
            self._expiring += ((queue_id, group) for group in groups(queue_id))
        for _ in range(min(len(self._expiring), _EXPIRING_AT_ONCE)):
            self._let_expire(self._expiring.popleft())
        if self._looks_for_ends:
            self._soon()
        for queue_id in not_made:  # a confirm or a tick comes back to it
            self._expiries.anew(queue_id)

    def _make_own(self, queue_id: int) -> bool:
        """Something of the queue expires. Whether it has its own group, if it is to have one for that."""
        queues = self._replica.queues
        if not queues.has_id(queue_id) or not any(each in queues.find_id(queue_id).arguments for each in _EXPIRING):
            return True
        try:
            self._drop_if_idle(self._work((queue_id, OWN_GROUP)))
        except MirrorlogError as error:
            logger.debug("group_not_made log=%s reason=%r", self._replica.assignment.name, str(error))
            return False
        return True

    def _let_expire(self, key: _Key) -> None:
        """The group looks at what stands in its queue, unless all of that is settled."""
        ledger = self._replica.groups.get(*key)
        if ledger is None or not self._replica.queues.has_id(key[0]):
            return
        if ledger.floor < self._replica.index.next_confirmed(key[0]):
            self._wake(self._work(key))

    def _pump_safely(self, work: _Work) -> None:
        """Others go on when one cannot be served; what nobody foresaw ends the node, or its subscribers would wait."""
        try:
            self._pump(work)
        except MirrorlogError as error:
            logger.warning("group_not_served log=%s reason=%r", self._replica.assignment.name, str(error))
            work.refused = self._any_refused = True
        except Exception as error:
            logger.exception("group_failed log=%s", self._replica.assignment.name)
            self._replica.on_broken(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def _pump(self, work: _Work) -> None:
        """Give everybody what is there."""
        self._settle_missing(work)
        if self._works.get(work.key) is not work:
            return
        delivery, queue_id, now = work.delivery, work.key[0], self._now()
        if delivery.leaving:
            self._left(work, delivery.leave())
            self._wake(work)
        self._clock(work, now)
        if delivery.due_at <= now and not work.refused:
            self._look_at_times(work, now)
            if self._works.get(work.key) is not work:
                return
        end = self._replica.index.next_confirmed(queue_id)
        self._move_watermark(work)
        for _ in range(_TURNS):
            self._reached.forget()
            given = delivery.grant(end, now, bytes_max=self._bytes_max)
            if given is None:
                break
            if not self._hand_out(work, given):
                break
        else:
            self._wake(work)
        if delivery.behind:
            self._wake(work)
        self._move_watermark(work)
        self._plan(work)
        self._drop_if_idle(work)

    def _clock(self, work: _Work, now: float) -> None:
        """Times to live and delays count on the clock of the log's append times."""
        work.delivery.clock(now, self._log_clock())

    def _settle_missing(self, work: _Work) -> None:
        """What retention has freed, or a loss has left a gap of, is waited for by nobody."""
        index, queue_id = self._replica.index, work.key[0]
        change = work.delivery.missing(index.begin(queue_id), index.gap(queue_id))
        expired = 0 if change is None else self._unsettled(work, change.ranges[-1])
        if change is None or self._append_if_possible(work, [change]) is None:
            return
        self._replica.counters.queue(queue_id).expired += max(0, expired - self._unsettled(work, change.ranges[-1]))
        numbers = work.delivery.numbers
        work.delivery.missing_done(change)
        for number in numbers:
            self._forget_if_done(number, work)
        self._drop_if_idle(work)

    def _unsettled(self, work: _Work, below: int) -> int:
        ledger = self._replica.groups.get(*work.key)
        return 0 if ledger is None else ledger.unsettled_total(below)

    def _settle_gaps(self) -> None:
        """The same of groups that nobody takes from: once in a mastership, for a loss is declared before one."""
        if self._gapped is None:
            queues = [queue_id for queue_id, _ in self._replica.index.gaps()]
            self._gapped = iter([(each, group) for each in queues for group in self._replica.groups.groups(each)])
        for key in islice(self._gapped, _GAPS_AT_ONCE):
            if (work := self._works.get(key)) is not None:
                self._wake(work)
            else:
                self._settle_gap(*key)

    def _settle_gap(self, queue_id: int, group: str) -> None:
        ledger, (first, until) = self._replica.groups.get(queue_id, group), self._replica.index.gap(queue_id)
        if ledger is None or not ledger.unsettled(first, until):
            return
        change = Settled(group=group, ranges=[max(first, ledger.floor), until], why=EXPIRED)
        try:
            self._append(queue_id, [change])
        except MirrorlogError as error:  # whoever takes from it has it settled then
            logger.debug("gap_not_settled log=%s reason=%r", self._replica.assignment.name, str(error))

    def _move_watermark(self, work: _Work) -> None:
        change = work.delivery.watermark_wanted(self._replica.index.next_confirmed(work.key[0]))
        if change is None:
            return
        end = self._append_if_possible(work, [change])
        if end is not None:
            self._watermark_appended(work, end, change)

    def _watermark_appended(self, work: _Work, end: int, change: Watermark) -> None:
        work.delivery.watermark_appended(change.queue_offset)
        self._watermarks.append(_Logged(end, work, change.queue_offset))
        self._note_watermarks()

    def _hand_out(self, work: _Work, given: Given) -> bool:
        """Whether it could be."""
        end = None
        if given.change is not None:
            end = self._append_if_possible(work, [given.change])
            if end is None:
                work.delivery.take_back(given)
                if (waiter := self._waiters.pop(given.number, None)) is not None:
                    waiter.respond(Overloaded("this log takes nothing at the moment; ask for the lease again"))
                return False
        if given.number in self._pushed:
            self._send(given.number, self._pushed[given.number], given.grants)
        elif end is not None and given.number in self._waiters:
            self._lend(work, given, end)
        return True

    def _send(self, number: int, pushed: _Pushed, grants: Sequence[Grant]) -> None:
        queue_id = pushed.work.key[0]
        parts, sent = self._reached.read(grants, pushed.last, self._bytes_max)
        if sent:
            pushed.last = sent[-1].base_queue_offset
        head = deliver_head(
            subscription=number,
            epoch=self._replica.epochs.current,
            next_confirmed=self._replica.index.next_confirmed(queue_id),
            grants=grants,
            batch_count=len(sent),
            batches_bytes=sum(map(len, parts)),
        )
        self._count_given(queue_id, grants)
        endpoint = pushed.receiver.endpoint
        endpoint.send([head, *parts])
        if pushed.unread is not None:
            pushed.unread.sent(sum(each.next - each.first for each in grants), sum(map(len, parts)))
            pushed.work.delivery.hold(number, pushed.held)
        if endpoint.paused:
            # All that it has, or each of a thousand would put one more frame into its buffer.
            for each, deliverer in self._book.of(pushed.receiver):
                deliverer.held(each)

    def _lend(self, work: _Work, given: Given, end: int) -> None:
        waiter = self._waiters.pop(given.number)
        change = given.change
        assert isinstance(change, Leased)
        work.delivery.lease_began(change.lease, change.lease_ms, self._now())
        queue_id = work.key[0]
        self._count_given(queue_id, given.grants)
        answer = Leases(
            log_id=str(self._replica.log_id),
            epoch=self._replica.epochs.current,
            queue_id=queue_id,
            next=self._replica.index.next_confirmed(queue_id),
            leased=[
                LeasedRange(
                    first=each.first,
                    next=each.next,
                    lease=change.lease,
                    redelivered=each.redelivered,
                    attempts=each.attempts,
                )
                for each in given.grants
            ],
        )
        self._publisher.wait_at(end, ALL_MEMBERS, lambda error: waiter.respond(error or answer))

    def _count_given(self, queue_id: int, grants: Sequence[Grant]) -> None:
        records = sum(each.next - each.first for each in grants)
        again = sum(each.next - each.first for each in grants if each.redelivered)
        self._replica.counters.queue(queue_id).given(records, again, self._now())

    def _end_waits(self, now: float) -> None:
        """Who has waited for a lease long enough is told that there is none."""
        while self._waits and self._waits[0][0] <= now:
            _, number = heappop(self._waits)
            waiter = self._waiters.pop(number, None)
            if waiter is None:
                continue
            queue_id = waiter.work.key[0]
            waiter.work.delivery.gone(number)
            self._drop_if_idle(waiter.work)
            waiter.respond(
                Leases(
                    log_id=str(self._replica.log_id),
                    epoch=self._replica.epochs.current,
                    queue_id=queue_id,
                    next=self._replica.index.next_confirmed(queue_id),
                    leased=[],
                )
            )

    # --- inside: time ---

    def _plan(self, work: _Work) -> None:
        due = work.delivery.due_at
        if due < work.planned and self._works.get(work.key) is work:
            work.planned = due
            heappush(self._times, (due, work.key))
            if len(self._times) > 2 * len(self._works) + _SPARE:
                self._times = [(each.planned, each.key) for each in self._works.values() if each.planned < inf]
                heapify(self._times)

    def _look_at_times(self, work: _Work, now: float) -> None:
        delivery = work.delivery
        self._flush(work)
        self._clock(work, now)
        for number in delivery.overdue(now):
            pushed = self._pushed[number]
            timeout_s = delivery.rules.consumer_timeout_s
            self._replica.counters.queue(work.key[0]).timed_out += 1
            self._end(number, pushed, ConsumerTimedOut(
                f"a record was not settled within {timeout_s:g} s (x-consumer-timeout): settle sooner, or extend"
            ))  # fmt: skip
        changes, logged = delivery.expired(now), list[Change]()
        whole = not changes or self._append_if_possible(work, changes, logged) is not None
        delivery.expired_done(logged, whole=whole)
        old = [each for each in logged if isinstance(each, Settled | Departing) and _is_old(each)]
        records = sum(sum(each.ranges[1::2]) - sum(each.ranges[::2]) for each in old)
        self._replica.counters.queue(work.key[0]).expired += records
        self._wake(work)
        self._plan(work)
        self._drop_if_idle(work)


def _is_old(change: Settled | Departing) -> bool:
    """Whether its records end by their time to live."""
    return change.why == EXPIRED if isinstance(change, Settled) else change.reason == REASONS[EXPIRED]


def _within(asked: int, limit: int, what: str) -> int:
    """A prefetch as it holds. Raises BadRequest."""
    if asked < 0:
        raise BadRequest(f"{what} {asked} is below 0; 0 stands for the node's limit, {limit}")
    return min(asked or limit, limit)


def _check_settle(how: int, delay_ms: int) -> None:
    if how not in _HOWS:
        raise BadRequest(f"how {how} is none of " + ", ".join(f"{each.value} ({each.name.lower()})" for each in How))
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadRequest(f"delay_ms {delay_ms} is not within 0 and {DELAY_MS_MAX}")


def _check_lease_ms(lease_ms: int) -> None:
    if not 1 <= lease_ms <= LEASE_MS_MAX:
        raise BadRequest(f"lease_ms {lease_ms} is not within 1 and {LEASE_MS_MAX}")


def _check_holder(holder: str) -> None:
    if len(holder) > _HOLDER_CHARS_MAX:
        raise BadRequest(f"a lease's holder has at most {_HOLDER_CHARS_MAX} characters")
