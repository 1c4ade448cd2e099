"""One look at a group that somebody takes from: what is missing or overdue ends, and everybody is given what is there.
Thin: `queues.delivery` decides.

What is much is done in parts: a group of which there is more to do has another turn behind the others of the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroups, Work
from mirrorlog.broker.consumer_groups.deliveries import BatchReader, Deliveries, GroupLog
from mirrorlog.broker.consumer_groups.expiry import MissingRecords
from mirrorlog.broker.consumer_groups.leases import Leasing
from mirrorlog.broker.consumer_groups.settlement import Pushed, PushedTable, SettlementService, Watermarks
from mirrorlog.broker.consumer_groups.subscriptions import Subscribing
from mirrorlog.broker.log.clock import LogClock
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.errors import ConsumerTimedOut, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change, ForwardingStarted, Settled
from mirrorlog.queues.delivery.group import Dispatch
from mirrorlog.queues.delivery.settlement import EXPIRED, REASONS
from mirrorlog.wire.frames import Grant, deliver_head

# The frames by which subscribers are given records: the grants, and the bytes of their batches as far as the log's
# memory has them and they were not sent to this one before (docs/decisions/0034). Thin.


class DeliverFrames:
    """`bytes_max`: of batches in one frame, but for a larger one; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        book: SubscriptionBook,
        reached: BatchReader,
        *,
        bytes_max: int,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._book = book
        self._reached = reached
        self._bytes_max = bytes_max
        self._now = now

    def send(self, number: int, pushed: Pushed, grants: Sequence[Grant]) -> None:
        """To the subscription of that number."""
        parts, sent = self._reached.read(grants, pushed.last, self._bytes_max)
        if sent:
            pushed.last = sent[-1].base_queue_offset
        queue_id, size = pushed.work.key[0], sum(map(len, parts))
        head = deliver_head(
            subscription=number,
            epoch=self._replica.epochs.current,
            next_confirmed=self._replica.index.next_confirmed(queue_id),
            grants=grants,
            batch_count=len(sent),
            batches_bytes=size,
        )
        self._replica.counters.queue(queue_id).granted(grants, self._now())
        endpoint = pushed.receiver.endpoint
        endpoint.send([head, *parts])
        if endpoint.meter is not None:
            endpoint.meter.read(size)
        if pushed.unread is not None:
            pushed.unread.sent(sum(each.next - each.first for each in grants), size)
            pushed.work.delivery.subscribers.hold(number, pushed.held)
        if not endpoint.takes_records:
            self._hold_all(pushed)

    def _hold_all(self, pushed: Pushed) -> None:
        """All that its connection has, or each of a thousand would put one more frame into its buffer."""
        for each, deliverer in self._book.of(pushed.receiver):
            deliverer.held(each)


logger = logging.getLogger(__name__)

_TURNS: Final = 32
"""So many frames to a group's subscribers, then others of the loop have their turn."""


class Pump:
    """Of the groups of one log. `bytes_max`: of batches in one frame, but for a larger one; `clock`: by which times to
    live and delays end; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        works: ActiveGroups,
        log: GroupLog,
        *,
        deliveries: Deliveries,
        watermarks: Watermarks,
        reached: BatchReader,
        pushed: PushedTable,
        settling: SettlementService,
        subscribing: Subscribing,
        leasing: Leasing,
        missing: MissingRecords,
        frames: DeliverFrames,
        bytes_max: int,
        clock: LogClock,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._works = works
        self._log = log
        self._deliveries = deliveries
        self._watermarks = watermarks
        self._reached = reached
        self._pushed = pushed
        self._settling = settling
        self._subscribing = subscribing
        self._leasing = leasing
        self._missing = missing
        self._frames = frames
        self._bytes_max = bytes_max
        self._clock = clock
        self._now = now

    def pump_safely(self, work: Work) -> None:
        """Others go on when one cannot be served; what nobody foresaw ends the node, or its subscribers would wait."""
        try:
            self.pump(work)
        except MirrorlogError as error:
            logger.warning("group_not_served log=%s reason=%r", self._replica.assignment.name, str(error))
            self._works.refuse(work)
        except Exception as error:
            logger.exception("group_failed log=%s", self._replica.assignment.name)
            self._replica.on_broken(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def pump(self, work: Work) -> None:
        """Give everybody what is there."""
        delivery, now, index, queue_id = work.delivery, self._now(), self._replica.index, work.key[0]
        if index.begin(queue_id) > delivery.ledger.floor or index.gaps_of(queue_id) is not work.gaps:
            self._missing.settle(work)
            if not work.there:
                return
        if delivery.subscribers.leaving:
            self._subscribing.left(work, delivery.leave())
            self._works.wake(work)
        delivery.clock(now, self._clock())
        if delivery.due_at <= now and not work.refused:
            self.look_at_times(work, now)
            if not self._works.has(work):
                return
        self._give(work, now)
        self._works.plan(work)
        if not delivery.taken:
            self._deliveries.drop_if_idle(work)

    def look_at_times(self, work: Work, now: float) -> None:
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

    def _give(self, work: Work, now: float) -> None:
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

    def _hand_out(self, work: Work, given: Dispatch) -> bool:
        """Whether it could be."""
        end = None
        if given.change is not None:
            end = self._log.append_if_possible(work, [given.change])
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

    def _time_out(self, number: int, work: Work) -> None:
        timeout_s = work.delivery.rules.consumer_timeout_s
        self._replica.counters.queue(work.key[0]).timed_out += 1
        error = ConsumerTimedOut(
            f"a record was not settled within {timeout_s:g} s (x-consumer-timeout): settle sooner, or extend"
        )
        self._subscribing.end(number, self._pushed[number], error)


def _is_old(change: Settled | ForwardingStarted) -> bool:
    """Whether its records end by their time to live."""
    return change.why == EXPIRED if isinstance(change, Settled) else change.reason == REASONS[EXPIRED]
