"""One look at a group that somebody takes from: what is missing or overdue ends, and everybody is given what is there.
Thin: `queues.delivery` decides.

What is much is done in parts: a group of which there is more to do has another turn behind the others of the loop.

Records that expire do so whether their group has consumers or not (`queues.limits.expiry` says when). A group that
looks is an active one, for that moment. A queue that is declared with something that expires has its own group as soon
as it has such records: nobody has to consume it first.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from itertools import islice
from typing import Final

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, Key
from mirrorlog.broker.consumer_groups.deliveries import Deliveries, GroupContext
from mirrorlog.broker.consumer_groups.leases import Leasing
from mirrorlog.broker.consumer_groups.settlement import Pushed, PushedTable, SettlementService, Watermarks
from mirrorlog.broker.consumer_groups.subscriptions import Subscribing
from mirrorlog.commitlog.index.gaps import NO_GAP, Gaps
from mirrorlog.errors import ConsumerTimedOut, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change, ForwardingStarted, Settled
from mirrorlog.queues.delivery.group import Dispatch
from mirrorlog.queues.delivery.settlement import EXPIRED, GONE, REASONS
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.limits.expiry import Expiries
from mirrorlog.wire.frames import Grant, deliver_head

logger = logging.getLogger(__name__)

_LOOKED_AT_ONCE: Final = 4096
_EXPIRING_AT_ONCE: Final = 256
"""Groups that look at what has expired, in a turn of the loop."""
_EXPIRING: Final = ("x-message-ttl", "x-dead-letter-exchange")
"""Arguments of queues that have their own group for what expires."""


class ExpiryLooks:
    """Of the queues of one log. `soon`: has `look` called in a turn of the loop to come."""

    def __init__(self, context: GroupContext, deliveries: Deliveries, soon: Callable[[], None]) -> None:
        replica = context.replica
        self._replica = replica
        self._works = context.works
        self._deliveries = deliveries
        self._clock = context.clock
        self._soon = soon
        self._expiries = Expiries(runs=replica.runs.of, confirmed=replica.index.next_confirmed)
        self.unlooked, self._moments = self._expiries.unlooked, self._expiries.moments
        """Queues of which something was not looked at."""
        # Groups in whose queues something has expired.
        self._expiring: deque[Key] = deque()

    @property
    def due(self) -> bool:
        """Whether `look` has something to do."""
        if self.unlooked or self._expiring:
            return True
        return bool(self._moments) and self._expiries.next_us <= self._clock()

    def begin(self) -> None:
        """A mastership begins: all queues are to be looked at."""
        self._expiries.gained(self._replica.runs.queue_ids())

    def gained(self, queue_ids: Set[int]) -> None:
        """More of these is confirmed, and groups may have been made."""
        if self._replica.runs.total:
            self._expiries.gained(queue_ids)
        if made := self._replica.groups.made:
            for queue_id in made:
                self._expiries.anew(queue_id)
            made.clear()

    def forget(self, queue_id: int) -> None:
        """It is there no more."""
        self._expiries.forget(queue_id)

    def look(self) -> None:
        """Wake the groups in whose queues something has expired, so many at once."""
        if not self.due:
            return
        not_made = [each for each in self._expiries.look(_LOOKED_AT_ONCE) if not self._make_own(each)]
        groups = self._replica.groups.groups
        for queue_id in self._expiries.come(self._clock()):
            self._expiring += ((queue_id, group) for group in groups(queue_id))
        for _ in range(min(len(self._expiring), _EXPIRING_AT_ONCE)):
            self._let_expire(self._expiring.popleft())
        if self.due:
            self._soon()
        for queue_id in not_made:  # a confirm or a tick comes back to it
            self._expiries.anew(queue_id)

    # --- inside ---

    def _make_own(self, queue_id: int) -> bool:
        """Something of the queue expires. Whether it has its own group, if it is to have one for that."""
        queues = self._replica.queues
        if not queues.has_id(queue_id) or not any(each in queues.find_id(queue_id).effective for each in _EXPIRING):
            return True
        try:
            self._deliveries.drop_if_idle(self._deliveries.of((queue_id, OWN_GROUP)))
        except MirrorlogError as error:
            logger.debug("group_not_made log=%s reason=%r", self._replica.assignment.name, str(error))
            return False
        return True

    def _let_expire(self, key: Key) -> None:
        """The group looks at what stands in its queue, unless all of that is settled."""
        ledger = self._replica.groups.get(*key)
        if ledger is None or not self._replica.queues.has_id(key[0]):
            return
        if ledger.floor < self._replica.index.next_confirmed(key[0]):
            self._works.wake(self._deliveries.of(key))


# Records that are there no more: retention has freed them, or losses have left gaps. Nobody waits for such ones, and
# whatever becomes of them is not for a group to say: they are settled. Thin.


_GAPS_AT_ONCE: Final = 64


class MissingRecords:
    """Of the groups of one log."""

    def __init__(self, context: GroupContext, deliveries: Deliveries, pushed: PushedTable) -> None:
        self._replica = context.replica
        self._works = context.works
        self._log = context.log
        self._deliveries = deliveries
        self._pushed = pushed
        # Groups that may count what a loss has left a gap of; made when this mastership has begun.
        self._gapped: Iterator[Key] | None = None

    def settle(self, work: ActiveGroup) -> None:
        """Those of a group that somebody takes from."""
        index, queue_id = self._replica.index, work.key[0]
        begin, gaps = index.begin(queue_id), index.gaps_of(queue_id)
        changes = self._missing(work, begin, gaps)
        if not changes:
            work.gaps = gaps
            return
        freed = self._freed(*work.key)
        if self._log.append_if_possible(work, changes) is None:
            return
        work.gaps = gaps
        self._replica.counters.queue(queue_id).expired += freed
        numbers = work.delivery.subscribers.numbers
        for change in changes:
            work.delivery.missing_done(change)
        for number in numbers:
            self._pushed.forget_if_done(number, work)
        self._deliveries.drop_if_idle(work)

    def settle_gaps(self) -> None:
        """Those of groups that nobody takes from, some at a time: once in a mastership, for a loss is declared before
        one."""
        if self._gapped is None:
            queues = [queue_id for queue_id, _ in self._replica.index.gaps()]
            self._gapped = iter([(each, group) for each in queues for group in self._replica.groups.groups(each)])
        for key in islice(self._gapped, _GAPS_AT_ONCE):
            if (work := self._works.get(key)) is not None:
                self._works.wake(work)
            else:
                self._settle_gaps(*key)

    # --- inside ---

    @staticmethod
    def _missing(work: ActiveGroup, begin: int, gaps: Gaps) -> list[Settled]:
        """What settles all of it, in order."""
        behind = (gap for gap in gaps if gap[1] > begin) if gaps is not work.gaps else ()
        found = [work.delivery.missing(begin, NO_GAP), *(work.delivery.missing(0, gap) for gap in behind)]
        return [change for change in found if change is not None]

    def _freed(self, queue_id: int, group: str) -> int:
        """How many records retention has freed that are not settled. What stood in a gap was none."""
        index, ledger = self._replica.index, self._replica.groups.find(queue_id, group)
        begin = index.begin(queue_id)
        lost = ((max(first, ledger.floor), min(until, begin)) for first, until in index.gaps_of(queue_id))
        freed = ledger.unsettled(ledger.floor, begin) if ledger.floor < begin else 0
        return freed - sum(ledger.unsettled(first, until) for first, until in lost if first < until)

    def _settle_gaps(self, queue_id: int, group: str) -> None:
        ledger, gaps = self._replica.groups.get(queue_id, group), self._replica.index.gaps_of(queue_id)
        if ledger is None:
            return
        unsettled = [each for each in gaps if ledger.unsettled(*each)]
        if not unsettled:
            return
        ranges = [edge for first, until in unsettled for edge in (max(first, ledger.floor), until)]
        change = Settled(group=group, ranges=ranges, why=GONE)
        try:
            self._log.append(queue_id, [change])
        except MirrorlogError as error:  # whoever takes from it has it settled then
            logger.debug("gap_not_settled log=%s reason=%r", self._replica.assignment.name, str(error))


# The frames by which subscribers are given records: the grants, and the bytes of their batches as far as the log's
# memory has them and they were not sent to this one before (decision 0034). Thin.


class DeliverFrames:
    """Of one log."""

    def __init__(self, context: GroupContext) -> None:
        self._replica = context.replica
        self._book = context.book
        self._reached = context.batches
        self._bytes_max = context.bytes_max
        self._now = context.now

    def send(self, number: int, pushed: Pushed, grants: Sequence[Grant]) -> None:
        """To the subscription of that number."""
        parts, sent = self._reached.read(grants, pushed.sent, self._bytes_max)
        for each in sent:
            pushed.sent.add(each.base_queue_offset, each.length)
        queue_id, size = pushed.work.key[0], sum(map(len, parts))
        head = deliver_head(
            subscription=number,
            epoch=self._replica.log.epochs.current + self._replica.queues.epoch_shifts.get(queue_id, 0),
            next_confirmed=self._replica.index.next_confirmed(queue_id),
            grants=grants,
            batch_count=len(sent),
            batches_bytes=size,
        )
        self._replica.counters.granted(pushed.work.key, grants, self._now())
        endpoint = pushed.receiver.endpoint
        endpoint.send([head, *parts])
        if endpoint.meter is not None:
            endpoint.meter.read(size)
        if pushed.unread is not None:
            pushed.unread.sent(grants, size)
            pushed.work.delivery.subscribers.hold(number, pushed.held)
        if not endpoint.takes_records:
            self._hold_all(pushed)

    def _hold_all(self, pushed: Pushed) -> None:
        """All that its connection has, or each of a thousand would put one more frame into its buffer."""
        for each, deliverer in self._book.of(pushed.receiver):
            deliverer.held(each)


_TURNS: Final = 32
"""So many frames to a group's subscribers, then others of the loop have their turn."""


class Pump:
    """Of the groups of one log."""

    def __init__(
        self,
        context: GroupContext,
        deliveries: Deliveries,
        *,
        watermarks: Watermarks,
        pushed: PushedTable,
        settling: SettlementService,
        subscribing: Subscribing,
        leasing: Leasing,
    ) -> None:
        self._replica = context.replica
        self._works = context.works
        self._log = context.log
        self._deliveries = deliveries
        self._watermarks = watermarks
        self._reached = context.batches
        self._pushed = pushed
        self._settling = settling
        self._subscribing = subscribing
        self._leasing = leasing
        self.missing = MissingRecords(context, deliveries, pushed)
        self._frames = DeliverFrames(context)
        self._bytes_max = context.bytes_max
        self._clock = context.clock
        self._now = context.now

    def pump_safely(self, work: ActiveGroup) -> None:
        """Others go on when one cannot be served; what nobody foresaw ends the node, or its subscribers would wait."""
        try:
            self.pump(work)
        except MirrorlogError as error:
            logger.warning("group_not_served log=%s reason=%r", self._replica.assignment.name, str(error))
            self._works.refuse(work)
        except Exception as error:
            logger.exception("group_failed log=%s", self._replica.assignment.name)
            self._replica.on_broken(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def pump(self, work: ActiveGroup) -> None:
        """Give everybody what is there."""
        delivery, now, index, queue_id = work.delivery, self._now(), self._replica.index, work.key[0]
        if index.begin(queue_id) > delivery.ledger.floor or index.gaps_of(queue_id) is not work.gaps:
            self.missing.settle(work)
            if not work.there:
                return
        if delivery.subscribers.leaving:
            self._subscribing.left(work, delivery.leave())
            self._works.wake(work)
        delivery.clock(now, self._clock())
        if delivery.due_at <= now and not work.refused:
            self.look_at_times(work, now)
            if not work.there:
                return
        self._give(work, now)
        self._works.plan(work)
        if not delivery.taken:
            self._deliveries.drop_if_idle(work)

    def look_at_times(self, work: ActiveGroup, now: float) -> None:
        """Who has had a record for too long is ended, and so is what has come to its end by now."""
        delivery = work.delivery
        self._settling.flush(work)
        delivery.clock(now, self._clock())
        for number in delivery.subscribers.overdue(now):
            self._time_out(number, work)
        changes, logged = delivery.expired(now), list[Change]()
        whole = not changes or self._log.append_if_possible(work, changes, logged) is not None
        delivery.expired_done(logged, whole=whole)
        old = [each for each in logged if isinstance(each, Settled | ForwardingStarted) and _is_old(each)]
        records = sum(sum(each.ranges[1::2]) - sum(each.ranges[::2]) for each in old)
        self._replica.counters.queue(work.key[0]).expired += records
        self._works.wake(work)
        self._works.plan(work)
        self._deliveries.drop_if_idle(work)

    # --- inside ---

    def _give(self, work: ActiveGroup, now: float) -> None:
        delivery, end = work.delivery, self._replica.index.next_confirmed(work.key[0])
        self._watermarks.move(work, end)
        turns = 0
        while turns < _TURNS:
            if self._reached.runs:
                self._reached.forget()
            given = delivery.grant(end, now, bytes_max=self._bytes_max)
            if given is None or not self._hand_out(work, given):
                break
            turns += 1
        if turns == _TURNS or delivery.behind:
            self._works.wake(work)
        # Also when nothing was given: below the watermark nothing may be free, and it is known by that alone.
        if turns or delivery.front.covered < end:
            self._watermarks.move(work, end)

    def _hand_out(self, work: ActiveGroup, given: Dispatch) -> bool:
        """Whether it could be."""
        end = None
        if given.changes:
            end = self._log.append_if_possible(work, given.changes)
            if end is None:
                work.delivery.giving.take_back(given)
                self._leasing.refuse(
                    given.number, Overloaded("this log takes nothing at the moment; ask for the lease again")
                )
                return False
        if (pushed := self._pushed.get(given.number)) is not None:
            self._frames.send(given.number, pushed, given.grants)
        elif end is not None and self._leasing.waits(given.number):
            self._leasing.lend(work, given, end)
        return True

    def _time_out(self, number: int, work: ActiveGroup) -> None:
        timeout_s = work.delivery.rules.consumer_timeout_s
        self._replica.counters.queue(work.key[0]).timed_out += 1
        error = ConsumerTimedOut(
            f"a record was not settled within {timeout_s:g} s (x-consumer-timeout): settle sooner, or extend"
        )
        self._subscribing.end(number, self._pushed[number], error)


def _is_old(change: Settled | ForwardingStarted) -> bool:
    """Whether its records end by their time to live."""
    return change.why == EXPIRED if isinstance(change, Settled) else change.reason == REASONS[EXPIRED]
