"""What subscribers do: they come and go, take more or no more, and say what is to become of what they have. Thin:
`queues.delivery` decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Final

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, SettlementRequest
from mirrorlog.broker.consumer_groups.deliveries import Deliveries, GroupContext
from mirrorlog.broker.consumer_groups.settlement import Pushed, PushedTable, SettlementService, Unread, check_settle
from mirrorlog.broker.ports import Receiver, Within
from mirrorlog.errors import BadRequest, MirrorlogError, NotGranted
from mirrorlog.queues.changes import Change
from mirrorlog.queues.dead_letters.forwarding import NUMBERS
from mirrorlog.queues.delivery.keys import check_ordered
from mirrorlog.queues.delivery.subscribers import Subscriber, SubscriberOptions
from mirrorlog.queues.groups.ledger import LeaseRow, Ledger
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import SETTLE_AGAIN, How, SentBefore, Settle, settled_frame
from mirrorlog.wire.messages.groups import ConsumerInfo, LeaseInfo, SetPrefetch, Subscribe, Subscribed

NAME_CHARS_MAX: Final = 255


class Subscribing:
    """Of one log; the book knows it by that for the connections."""

    def __init__(
        self, context: GroupContext, deliveries: Deliveries, pushed: PushedTable, settling: SettlementService
    ) -> None:
        self._publisher = context.publisher
        self._works = context.works
        self._log = context.log
        self._book = context.book
        self._deliveries = deliveries
        self._pushed = pushed
        self._settling = settling
        self._limits = context.limits
        self._clock = context.clock
        self._now = context.now

    # --- coming and going ---

    def subscribe(self, message: Subscribe, queue_id: int, receiver: Receiver) -> Subscribed:
        """From here on it is given records. Raises BadRequest, ExclusiveTaken, Overloaded, LimitReached, or why the
        group cannot be made."""
        facts = self._facts(message)
        work = self._deliveries.of((queue_id, message.group), make=message.create)
        try:
            self._book.add(facts.number, receiver, self)
            work.delivery.clock(self._now(), self._clock())
            work.delivery.subscribe(facts)
        except MirrorlogError:
            self._book.remove(facts.number)
            self._deliveries.drop_if_idle(work)
            raise
        # What is settled as it is sent is with no consumer.
        unread = Unread(facts.prefetch_records, facts.prefetch_bytes) if facts.auto_ack else None
        pushed = Pushed(work, receiver, SentBefore(facts.prefetch_bytes if facts.ordered else 0), unread)
        self._pushed.add(facts.number, pushed)
        work.delivery.subscribers.hold(facts.number, pushed.held)
        self._works.wake(work)
        replica = self._publisher.replica
        return Subscribed(
            subscription=facts.number,
            log_id=str(replica.log_id),
            epoch=replica.log.epochs.current + replica.queues.epoch_shifts.get(queue_id, 0),
            queue_id=queue_id,
            prefetch_records=facts.prefetch_records,
            prefetch_bytes=facts.prefetch_bytes,
        )

    def set_prefetch(self, message: SetPrefetch) -> None:
        """It may have more from now on, or less: then nothing is taken back. Raises BadRequest, NoSuchSubscription."""
        records, size = self._prefetch(message)
        pushed = self._pushed[message.subscription]
        pushed.work.delivery.subscribers.bound(message.subscription, records, size)
        if pushed.unread is not None:
            pushed.unread.records_max, pushed.unread.bytes_max = records, size
        self.writable(message.subscription)

    def unsubscribe(self, number: int) -> None:
        """It is given nothing more; what it has it may settle. Raises NoSuchSubscription."""
        work = self._pushed[number].work
        work.delivery.subscribers.unsubscribe(number)
        self._pushed.forget_if_done(number, work)

    def gone(self, number: int) -> None:
        """Its connection is no more: what it had is given to others."""
        if (pushed := self._pushed.get(number)) is not None:
            self.end(number, pushed, None)

    def queue_of(self, number: int) -> int:
        """The id of the queue that a subscription takes from."""
        return self._pushed[number].work.key[0]

    def end(self, number: int, pushed: Pushed, error: MirrorlogError | None) -> None:
        """A subscription ends, by `error` or because its connection is gone; what it had is given to others."""
        work = pushed.work
        self._settling.flush(work)
        self.left(work, work.delivery.gone(number))
        self._pushed.end(number, pushed.receiver, error)
        self._works.wake(work)
        self._deliveries.drop_if_idle(work)

    def left(self, work: ActiveGroup, changes: list[Change]) -> None:
        """A part of what somebody had who is gone."""
        if changes and (self._log.stopped or self._log.append_if_possible(work, changes) is None):
            work.delivery.front.not_counted(changes)

    def writable(self, number: int) -> None:
        """Its connection takes more."""
        pushed = self._pushed.get(number)
        if pushed is not None:
            pushed.work.delivery.subscribers.hold(number, pushed.held)
            self._works.wake(pushed.work)

    def held(self, number: int) -> None:
        """Its connection takes no more; `writable` follows."""
        pushed = self._pushed.get(number)
        if pushed is not None:
            pushed.work.delivery.subscribers.hold(number, True)

    # --- settling ---

    def settle(self, settle: Settle, ranges: Sequence[int], receiver: Receiver, correlation_id: int) -> None:
        """Answered with SETTLED when so many copies have it, or SettledOtherwise when they have what some of it is
        contrary to. Raises BadRequest, NotGranted, NoSuchSubscription or Overloaded: then nothing of it counts."""
        copies = self._publisher.copies_for(settle.level)
        self._check(settle)
        pushed = self._pushed[settle.subscription]
        if pushed.unread is not None:
            pushed.unread.taken(sum(ranges[1::2]) - sum(ranges[::2]))
            self.writable(settle.subscription)
            receiver.answer(settled_frame(0, correlation_id))
            return
        work = pushed.work
        if work.gathered.asked:
            self._flush_if_met(work, ranges)
        again = bool(settle.flags & SETTLE_AGAIN)
        settlement = work.delivery.settling.settle(
            settle.subscription, settle.epoch, settle.how, ranges, settle.delay_ms, again=again
        )

        def done(error: MirrorlogError | None) -> None:
            if (wrong := error or settlement.refusal) is not None:
                receiver.refuse(wrong, correlation_id)
            else:
                told = settlement.records, correlation_id, settlement.passed_over, settlement.elsewhere
                receiver.answer(settled_frame(*told))

        self._settling.gather(work, SettlementRequest(settlement, copies, done))

    def settle_within(self, settle: Settle, ranges: Sequence[int], *, whole: bool = False) -> Within:
        """Check a settlement that is to be logged by somebody else, with other things; nothing of it counts before
        `logged_within`, in the same step of the loop. Raises as `settle`, SettledOtherwise, and NotGranted for what
        somebody else has; `whole`: also for what is settled already, or something else would count beside it once
        more."""
        work = self._pushed[settle.subscription].work
        self._flush_if_met(work, ranges)
        again = bool(settle.flags & SETTLE_AGAIN)
        number, epoch = settle.subscription, settle.epoch
        settlement = judged = work.delivery.settling.settle(
            number, epoch, settle.how, ranges, settle.delay_ms, again=again
        )
        if settle.how == How.RETURN and not settlement.ranges:
            # They went back with a former session. That is as asked, if they could still be settled from there.
            judged = work.delivery.settling.settle(number, epoch, How.ACK, ranges, again=again)
        if (contrary := settlement.refusal) is not None:
            raise contrary
        if judged.passed_over:
            raise NotGranted(f"{judged.passed_over} of the records are in somebody else's hands by now")
        missed = sum(ranges[1::2]) - sum(ranges[::2]) - judged.records
        if whole and missed:
            raise NotGranted(f"{missed} of the records are settled already, and not by this transaction")
        return Within(self, work, settlement)

    def logged_within(self, within: Within) -> None:
        """Its changes are in the log."""
        work, settlement = within.work, within.settlement
        assert isinstance(work, ActiveGroup)  # `settle_within` has made it
        self._settling.settled(work, settlement, self._now())
        self._pushed.forget_if_done(settlement.number, work)
        self._works.plan(work)
        self._works.wake(work)

    # --- inside ---

    def _facts(self, message: Subscribe) -> SubscriberOptions:
        """What is asked for, with a number, and the prefetch as it holds. Raises BadRequest."""
        records, size = self._prefetch(message)
        ordered = check_ordered(message.ordered_by)
        if ordered and message.auto_ack:
            raise BadRequest("ordered_by needs acknowledgements: with auto_ack a key would have no consumer of its own")
        return SubscriberOptions(
            number=self._book.next_number(),
            prefetch_records=records,
            prefetch_bytes=size,
            auto_ack=message.auto_ack,
            exclusive=message.exclusive,
            priority=message.priority,
            name=_name(message.name),
            since_us=self._clock(),
            ordered=ordered,
        )

    def _prefetch(self, message: Subscribe | SetPrefetch) -> tuple[int, int]:
        """Records and bytes, as they hold; no record while it is paused. Raises BadRequest."""
        records = _within(message.prefetch_records, self._limits.max_unsettled_records, "prefetch_records")
        size = _within(message.prefetch_bytes, self._limits.max_unsettled_bytes, "prefetch_bytes")
        return 0 if message.paused else records, size

    def _check(self, settle: Settle) -> None:
        """Raises BadRequest."""
        check_settle(settle.how, settle.delay_ms)
        if settle.range_count > self._limits.max_ranges_per_settle:
            raise BadRequest(
                f"{settle.range_count} ranges in one settlement are above the limit of "
                f"{self._limits.max_ranges_per_settle} (limits.max_ranges_per_settle); send several"
            )

    def _flush_if_met(self, work: ActiveGroup, ranges: Sequence[int]) -> None:
        """What is being settled already is settled first. Raises BadRequest or NotGranted."""
        work.delivery.settling.delivered(ranges)
        if work.gathered.meets(ranges):
            self._settling.flush(work)


def _name(name: str) -> str:
    """As it holds. Raises BadRequest."""
    if len(name) > NAME_CHARS_MAX:
        raise BadRequest(f"a subscription's name has at most {NAME_CHARS_MAX} characters, and not {len(name)}")
    return name


def _within(asked: int, limit: int, what: str) -> int:
    """A prefetch as it holds. Raises BadRequest."""
    if asked < 0:
        raise BadRequest(f"{what} {asked} is below 0; 0 stands for the node's limit, {limit}")
    return min(asked or limit, limit)


# Who takes from a group that acks, and what holds each of them up, as the group's master sees it. Pure.


NAMED_MAX: Final = 20
"""So many are named; the counts are of all."""


@dataclass(frozen=True, slots=True)
class GroupConsumers:
    """See `GroupInfo`, whose fields these are."""

    waiting: int = 0
    idle_for_another: int = 0
    without_credit: tuple[str, ...] = ()
    not_reading: tuple[str, ...] = ()
    alone: str = ""
    due_ms: int = -1
    consumers: tuple[ConsumerInfo, ...] = ()


def consumers_of(
    subscribers: Iterable[Subscriber],
    *,
    waiting: int,
    alone: int | None,
    due_at: float,
    now: float,
    now_us: int,
    connection: Callable[[int], Endpoint | None],
) -> GroupConsumers:
    """`alone`: the number of the one that has the group for itself. `due_at`, `now`: s; `now_us`: µs UTC.
    `connection`: whose subscription a number is."""
    there = [each for each in subscribers if not each.closing]

    def peer(each: Subscriber) -> str:
        found = connection(each.facts.number)
        return found.peer if found is not None else "?"

    def name(each: Subscriber) -> str:
        return f"{peer(each)} ({'' if each.facts.prefetch_records else 'paused, '}{len(each.unacked)} in hand)"

    held_back = [each for each in there if alone and each.facts.number != alone]
    able = [each for each in there if each not in held_back]
    return GroupConsumers(
        waiting=waiting,
        idle_for_another=len(held_back),
        without_credit=tuple(name(each) for each in able if not each.held and each.room <= 0)[:NAMED_MAX],
        not_reading=tuple(name(each) for each in able if each.held)[:NAMED_MAX],
        alone=next((name(each) for each in there if each.facts.number == alone), ""),
        due_ms=-1 if due_at == math.inf else max(0, int((due_at - now) * 1000)),
        consumers=tuple(
            ConsumerInfo(
                peer=peer(each),
                name=each.facts.name,
                priority=each.facts.priority,
                in_hand=len(each.unacked),
                alone=each.facts.number == alone,
                since_us=each.facts.since_us,
                held_since_us=0 if (at := each.held_at(now)) is None else now_us - int((now - at) * 1_000_000),
                connection=found.name if (found := connection(each.facts.number)) is not None else "",
            )
            for each in there[:NAMED_MAX]
        ),
    )


def leases_of(
    ledger: Ledger, *, ends_at: Callable[[int], float | None], now: float, now_us: int
) -> tuple[LeaseInfo, ...]:
    """Some that run. Of other numbers are forwardings: nobody holds these. `ends_at`: when a lease ends, s."""

    def told(lease: int, row: LeaseRow) -> LeaseInfo:
        left_s = -1.0 if (at := ends_at(lease)) is None else max(0.0, at - now)
        return LeaseInfo(
            lease=lease,
            holder=row.holder,
            records=ledger.lease_records(lease),
            ends_in_ms=-1 if left_s < 0 else int(left_s * 1000),
            since_us=0 if left_s < 0 else now_us + int(left_s * 1_000_000) - row.lease_ms * 1000,
        )

    some = islice((each for each in ledger.leases.items() if each[0] >= NUMBERS), NAMED_MAX)
    return tuple(told(lease, row) for lease, row in sorted(some, key=itemgetter(0)))
