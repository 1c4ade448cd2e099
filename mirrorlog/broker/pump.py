"""One look at a group that somebody takes from: what is missing or overdue ends, and everybody is given what is there.
Thin: `queues.delivery` decides.

What is much is done in parts: a group of which there is more to do has another turn behind the others of the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from mirrorlog.broker.deliver_frames import DeliverFrames
from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.group_log import GroupLog
from mirrorlog.broker.leasing import Leasing
from mirrorlog.broker.log_clock import LogClock
from mirrorlog.broker.missing_records import MissingRecords
from mirrorlog.broker.pushed import PushedTable
from mirrorlog.broker.reached_batches import ReachedBatches
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.settling import Settling
from mirrorlog.broker.subscribing import Subscribing
from mirrorlog.broker.watermarks import Watermarks
from mirrorlog.broker.works import Work, WorkTable
from mirrorlog.errors import ConsumerTimedOut, MirrorlogError, Overloaded
from mirrorlog.queues.changes import Change, Departing, Settled
from mirrorlog.queues.deaths import EXPIRED, REASONS
from mirrorlog.queues.delivery import Given

logger = logging.getLogger(__name__)

_TURNS: Final = 32
"""So many frames to a group's subscribers, then others of the loop have their turn."""


class Pump:
    """Of the groups of one log. `bytes_max`: of batches in one frame, but for a larger one; `clock`: by which times to
    live and delays end; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        works: WorkTable,
        log: GroupLog,
        *,
        deliveries: Deliveries,
        watermarks: Watermarks,
        reached: ReachedBatches,
        pushed: PushedTable,
        settling: Settling,
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
        self._missing.settle(work)
        if not self._works.has(work):
            return
        delivery, now = work.delivery, self._now()
        if delivery.leaving:
            self._subscribing.left(work, delivery.leave())
            self._works.wake(work)
        delivery.clock(now, self._clock())
        if delivery.due_at <= now and not work.refused:
            self.look_at_times(work, now)
            if not self._works.has(work):
                return
        self._give(work, now)
        self._works.plan(work)
        self._deliveries.drop_if_idle(work)

    def look_at_times(self, work: Work, now: float) -> None:
        """Who has had a record for too long is ended, and so is what has come to its end by now."""
        delivery = work.delivery
        self._settling.flush(work)
        delivery.clock(now, self._clock())
        for number in delivery.overdue(now):
            self._time_out(number, work)
        changes, logged = delivery.expired(now), list[Change]()
        whole = not changes or self._log.append_if_possible(work, changes, logged) is not None
        delivery.expired_done(logged, whole=whole)
        old = [each for each in logged if isinstance(each, Settled | Departing) and _is_old(each)]
        records = sum(sum(each.ranges[1::2]) - sum(each.ranges[::2]) for each in old)
        self._replica.counters.queue(work.key[0]).expired += records
        self._works.wake(work)
        self._works.plan(work)
        self._deliveries.drop_if_idle(work)

    # --- inside ---

    def _give(self, work: Work, now: float) -> None:
        delivery, end = work.delivery, self._replica.index.next_confirmed(work.key[0])
        self._watermarks.move(work)
        for _ in range(_TURNS):
            self._reached.forget()
            given = delivery.grant(end, now, bytes_max=self._bytes_max)
            if given is None or not self._hand_out(work, given):
                break
        else:
            self._works.wake(work)
        if delivery.behind:
            self._works.wake(work)
        self._watermarks.move(work)

    def _hand_out(self, work: Work, given: Given) -> bool:
        """Whether it could be."""
        end = None
        if given.change is not None:
            end = self._log.append_if_possible(work, [given.change])
            if end is None:
                work.delivery.take_back(given)
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


def _is_old(change: Settled | Departing) -> bool:
    """Whether its records end by their time to live."""
    return change.why == EXPIRED if isinstance(change, Settled) else change.reason == REASONS[EXPIRED]
