"""The acking groups of a log that this node masters: what others ask of them, and when each is looked at. Thin:
`queues.delivery` decides.

What comes in a turn of the loop is gathered: settlements of a group are one change, confirms of a queue wake its groups
once, and then everybody is given what is there. A group costs nothing while nobody takes from it, leases from it or
waits in it: it is a ledger then, and there is a `GroupDelivery` only from the first one to the last.

Each thing that is done here is a class, with the state that it needs: which groups somebody takes from (`ActiveGroups`,
`Deliveries`), their changes in the log (`GroupLog`, `Watermarks`, `SettlementService`), who takes (`PushedTable`,
`Subscribing`, `Leasing`) and what goes out to them (`DeliverFrames`), what asks for an end (`ReadyRecords`,
`GroupEnds`) or is one by itself (`MissingRecords`, `ExpiryLooks`), and one look at a group (`Pump`). They know each
other in that order and no other; this puts them together, and is all that the rest of the node knows. What a group does
not use is not asked for: no time to live, no lease, no limit of length, no gap costs a turn a call.

Nothing is given before this mastership's first batch is confirmed, nor while this node is out of touch with the
cluster: another one may be giving the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroups, LeaseNumbers
from mirrorlog.broker.consumer_groups.deliveries import BatchReader, Deliveries, GroupContext, GroupForwarding, GroupLog
from mirrorlog.broker.consumer_groups.dispatch import ExpiryLooks, Pump
from mirrorlog.broker.consumer_groups.group_changes import GroupEnds, ReadyRecords
from mirrorlog.broker.consumer_groups.key_reader import BatchAt, KeyReader
from mirrorlog.broker.consumer_groups.leases import Leasing
from mirrorlog.broker.consumer_groups.settlement import PushedTable, Respond, SettlementService, Watermarks
from mirrorlog.broker.consumer_groups.subscriptions import GroupConsumers, Subscribing, consumers_of, leases_of
from mirrorlog.broker.log.clock import LogClock
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import ElsewhereLog
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import Receiver
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.config import LimitSettings
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.delivery.subscribers import Rules
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.messages.groups import LeaseInfo

__all__ = ["Deliverer", "Respond"]


class Deliverer:
    """Of one mastership. `now`: the loop's clock in s; `begun`: whether its first batch is confirmed; `bytes_max`: of
    batches in one frame, but for a larger one; `clock`: by which times to live and delays end; `batch_at`, `helper`: by
    which keys are read that are not in memory."""

    def __init__(
        self,
        replica: Replica,
        publisher: LogPublisher,
        *,
        limits: LimitSettings,
        book: SubscriptionBook,
        bytes_max: int,
        begun: Callable[[], bool],
        now: Callable[[], float],
        clock: LogClock,
        batch_at: BatchAt,
        helper: Executor,
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self._begun = begun
        self._has_begun = False
        self._now = now
        self.clock = clock
        self._due = False
        self._works = works = ActiveGroups(self._soon)
        self._log = GroupLog(replica, publisher, works)
        self.lease_numbers = LeaseNumbers(
            lambda queue_id: replica.log.epochs.current + replica.queues.epoch_shifts.get(queue_id, 0)
        )
        self.forwardings = GroupForwarding(replica)
        """How records leave for other queues."""
        self._keys = KeyReader(replica, batch_at, helper, self._wake_queue)
        context = GroupContext(
            replica, publisher, works, self._log, book, limits, bytes_max, begun, clock, now,
            batches=BatchReader(replica), leases=self.lease_numbers, forwardings=self.forwardings, keys=self._keys,
        )  # fmt: skip
        self._deliveries = deliveries = Deliveries(context)
        self._watermarks = watermarks = Watermarks(context, deliveries)
        self._pushed = pushed = PushedTable(book, deliveries)
        self._settling = settling = SettlementService(context, watermarks, pushed)
        self.subscribing = Subscribing(context, deliveries, pushed, settling)
        self.leasing = Leasing(context, deliveries, settling)
        self.ready = ReadyRecords(context, deliveries, settling)
        self.ends = GroupEnds(context, deliveries, pushed, settling, self.leasing)
        self._expiries = ExpiryLooks(context, deliveries, self._soon)
        self._pump = Pump(
            context, deliveries,
            watermarks=watermarks, pushed=pushed, settling=settling, subscribing=self.subscribing, leasing=self.leasing,
        )  # fmt: skip
        self.on_pumped: Callable[[Set[int]], None] = lambda queue_ids: None
        """Called at the end of a turn with the queues from whose own groups was given what could be, while any queue of
        the log may be so long and no longer."""
        replica.on_confirmed.append(self._confirmed)
        replica.on_governed.append(self._governed)

    # --- connections ---

    def end_refused(self, refused: Callable[[Receiver, int], MirrorlogError | None]) -> None:
        """End the subscriptions and waits for leases of those who may not read their queue any more: `refused` says
        why, of a connection and a queue's id."""
        for number, pushed in self._pushed.items():
            if (error := refused(pushed.receiver, pushed.work.key[0])) is not None:
                self.subscribing.end(number, pushed, error)
        for number, waiter in self.leasing.waiters():
            if (error := refused(waiter.receiver, waiter.work.key[0])) is not None:
                self.leasing.leave(number).respond(error)

    def forget(self, receiver: Receiver) -> None:
        """A connection is no more: it waits for no lease."""
        for number, waiter in self.leasing.waiters():
            if waiter.receiver is receiver:
                self.leasing.leave(number)

    def unread_floors(self) -> dict[int, int]:
        """See `PushedTable.unread_floors`: what is settled, and is to be had for a moment all the same."""
        return self._pushed.unread_floors()

    # --- records that end, or leave ---

    def stayed(self, queue_id: int, group: str, ranges: Sequence[Range]) -> None:
        """Records that were to leave are free again; that is appended."""
        if (work := self._works.get((queue_id, group))) is not None:
            work.delivery.keys.meet_again(ranges)
            work.delivery.free.came_back(ranges)
            self._works.wake(work)

    def dropped(self, queue_id: int, group: str, ranges: Sequence[Range]) -> None:
        """What was with no consumer in a group was settled by others, or leaves; that is appended."""
        if (work := self._works.get((queue_id, group))) is not None:
            work.delivery.settling.done(ranges)
            self._deliveries.drop_if_idle(work)

    # --- groups ---

    def pump_soon(self, queue_id: int, group: str) -> bool:
        """Whether somebody may have room for records of the group; then he is given them soon, see `on_pumped`."""
        if (work := self._works.get((queue_id, group))) is None:
            return False
        self._works.wake(work)
        return True

    def served(self, queue_id: int, group: str, watermark: int | None) -> tuple[bool, int]:
        """Whether everybody who had room when `watermark` was asked for has been given what there is, behind a pump;
        else the watermark to ask again with, at the next one. Who gets room meanwhile is not waited for: he always
        would be, under traffic."""
        if (work := self._works.get((queue_id, group))) is None:
            return True, 0
        watermark = work.delivery.front.asked if watermark is None else watermark
        return not work.refused and work.delivery.served(watermark), watermark

    def in_use(self, queue_id: int, group: str) -> str:
        """Who takes from an acking group now, in words; empty when nobody does and nobody has anything of it."""
        ledger, work = self._replica.groups.find(queue_id, group), self._works.get((queue_id, group))
        counts = {
            "subscribed": len(work.delivery.subscribers) if work is not None else 0,
            "waiting for leases": work.delivery.subscribers.waiting if work is not None else 0,
            "records in hand": ledger.out - self.held_back(queue_id, group),
            "records leased": ledger.leased - self.forwardings.forwarding(queue_id, group),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    def held_back(self, queue_id: int, group: str) -> int:
        """How many of its records that are out are with no consumer: they wait for their time, or are too old."""
        work = self._works.get((queue_id, group))
        return work.delivery.held_back if work is not None else 0

    def subscribers(self, queue_id: int, group: str) -> int:
        """How many there are now."""
        work = self._works.get((queue_id, group))
        return len(work.delivery.subscribers) if work is not None else 0

    def consumers(self, queue_id: int, group: str) -> GroupConsumers:
        """Who takes from it now, and what holds them up."""
        work = self._works.get((queue_id, group))
        if work is None:
            return GroupConsumers()
        return consumers_of(
            work.delivery.subscribers,
            waiting=work.delivery.subscribers.waiting,
            alone=work.delivery.subscribers.alone,
            due_at=work.delivery.due_at,
            now=self._now(),
            now_us=self.clock(),
            connection=self._pushed.connection,
        )

    def leases(self, queue_id: int, group: str) -> tuple[LeaseInfo, ...]:
        """Those of a group that run, some of them."""
        ledger, work = self._replica.groups.get(queue_id, group), self._works.get((queue_id, group))
        if ledger is None:
            return ()
        ends_at = work.delivery.endings.ends_at if work else lambda lease: None
        return leases_of(ledger, ends_at=ends_at, now=self._now(), now_us=self.clock())

    # --- queues ---

    def consumer_count(self, queue_id: int) -> int:
        """How many are subscribed to groups of a queue, or wait for leases from them."""
        return sum(
            len(each.delivery.subscribers) + each.delivery.subscribers.waiting
            for each in self._works.of_queue(queue_id)
        )

    def flush_queue(self, queue_id: int) -> None:
        """Log what was settled in groups of a queue: nothing of it may come behind the queue's end."""
        for work in self._works.of_queue(queue_id):
            self._settling.flush(work)

    def end_queue(self, queue_id: int, error: MirrorlogError) -> None:
        """A queue is there no more; all who take from it, or wait, are told `error`."""
        self.ends.end_queue(queue_id, error)
        self._expiries.forget(queue_id)

    def begin_queue(self, queue_id: int) -> None:
        """A queue has come to this log, or comes back to it: what waits in it waits on."""
        self._deliveries.begin_queue(queue_id)
        self._expiries.gained({queue_id})

    # --- the life of the mastership ---

    @property
    def begun(self) -> bool:
        """Whether its first batch is confirmed."""
        return self._begun()

    def begin(self, *, jumped: bool = False) -> None:
        """What the master before left waiting waits on: delays and leases begin anew. When the epoch's first batch is
        appended, and no record of it. `jumped`: confirmed records may be lost, and watermarks with them."""
        self._deliveries.begin(jumped=jumped)
        self._expiries.begin()

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if not self._due:  # else the turn that is coming ends them, once it has looked at what they wait for
            self.leasing.end_waits(now)
        if not self._gives:
            return
        due = self._works.come(now)
        if self.clock.jumped():
            self._works.wake_all()
        # First all of them: one whose changes are refused is due again at once, which is at the next tick.
        for key in due:
            if (work := self._works.start(key, now)) is not None:
                self._pump.look_at_times(work, now)
        self._works.try_again()
        self._pump.missing.settle_gaps()
        if self._works.awake or self._expiries.due:
            self._soon()

    def hand_over(self) -> None:
        """Nothing is given from here on; the next master shall know exactly what was."""
        if self._log.stopped:
            return
        for work in self._works.all():
            self._settling.flush(work)
            self._deliveries.log_exactly(work)
        self._log.stopped = True

    def fence(self, elsewhere: ElsewhereLog) -> None:
        """Another one may be the master: all who take or wait here are sent `elsewhere`."""
        self._log.stopped = True
        self._keys.stop()
        self._replica.on_confirmed.remove(self._confirmed)
        self._replica.on_governed.remove(self._governed)
        for work in self._works.all():
            for asked in work.gathered.asked:
                asked.done(elsewhere.refusal())
        for number, pushed in self._pushed.items():
            self._pushed.end(number, pushed.receiver, elsewhere.refusal())
        for number, _ in self.leasing.waiters():
            self.leasing.refuse(number, elsewhere.refusal())
        for work in self._works.all():
            if (ledger := self._replica.groups.get(*work.key)) is not None:
                ledger.drop_volatile()
        self._works.clear()

    # --- inside ---

    @property
    def _gives(self) -> bool:
        """Whether it may give anything; if not now, a confirm or a tick comes back to it."""
        if not self._has_begun:
            self._has_begun = self._begun()  # and stays so: what is confirmed does not go back
        return self._has_begun and not self._log.stopped and not self._publisher.cut_off

    def _wake_queue(self, queue_id: int) -> None:
        for work in self._works.of_queue(queue_id):
            self._works.wake(work)

    def _governed(self, queue_id: int) -> None:
        """Something else holds for a queue from now on."""
        for work in self._works.of_queue(queue_id):
            work.delivery.rules = Rules.of(self._replica.queues.find_id(queue_id).effective)

    def _confirmed(self, gained: Set[int]) -> None:
        """More is confirmed. Only noted: this may come in the middle of an append of this log."""
        if self._works.by_key:
            self._watermarks.note_confirmed()
            self._works.gained(gained)
        if self._replica.runs.total or self._replica.groups.made:
            self._expiries.gained(gained)
            if self._expiries.unlooked:
                self._soon()
        if self._works.awake:
            self._soon()

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        """Once in a turn of the loop, when anything has happened."""
        self._due = False
        if not self._gives:
            return
        self._expiries.look()
        works = self._works.awakened()
        for work in works:
            if work.gathered.asked:
                self._settling.log_gathered(work)
        for work in works:
            if work.there:
                self._pump.pump_safely(work)
            if work.there and not work.refused and work.due <= self._now():
                self._works.wake(work)
        if self.leasing.ends:
            self.leasing.end_waits(self._now())
        if self._replica.queues.lengths:
            self.on_pumped({work.key[0] for work in works if work.key[1] == OWN_GROUP})
