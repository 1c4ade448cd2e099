"""The deliveries of a log's groups: made from the ledger when somebody comes, and let go when nobody would miss them.

What a delivery knows beyond the ledger outlives it here, for this mastership: up to where another master may have given
records out, and how far this one has. Beside it stands what a delivery works with: the batches that a grant reaches
(`BatchReader`), the log that takes its changes (`GroupLog`), and the way out for records that die (`GroupForwarding`).
Thin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

from mirrorlog.broker.consumer_groups.active_groups import (
    ActiveGroup,
    ActiveGroups,
    Key,
    LeaseNumbers,
    in_batches,
    merged,
)
from mirrorlog.broker.consumer_groups.key_reader import KeyReader
from mirrorlog.broker.log.clock import LogClock, now_us
from mirrorlog.broker.log.fetch import join_runs
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.config import LimitSettings
from mirrorlog.errors import MirrorlogError, OffsetOutOfRange, OutcomeUnknown, Overloaded
from mirrorlog.queues.arguments import dead_letters_of
from mirrorlog.queues.changes import Change, encode_changes
from mirrorlog.queues.dead_letters.forwarding import HELD, REDRIVEN, Forwarding, ForwardingNumbers
from mirrorlog.queues.delivery.group import GroupDelivery, Reach, Rules
from mirrorlog.queues.delivery.settlement import REASONS, deaths
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.queue_table import Queue
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.frames import Grant, SentBefore

# How records of a group leave for other queues: as dead letters, or because somebody redrives them. Thin:
# `queues.dead_letters` numbers them, and `broker.dead_letters` carries them.


class GroupForwarding:
    """Of the groups of one log."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._numbers = ForwardingNumbers(replica.forwardings, self._is_open)

    def die(self, queue_id: int, group: str, ranges: Sequence[Range], why: str) -> list[Change]:
        """The changes by which records of a group end that nobody has acknowledged: they are settled, or leave."""
        queues = self._replica.queues
        own = group == OWN_GROUP and queues.has_id(queue_id)
        way = dead_letters_of(queues.find_id(queue_id).effective) if own else None
        if way is None or not ranges:
            return deaths(group, ranges, why)
        return [
            self._numbers.forwarding(
                queue_id, group, _flat(ranges), REASONS[why], at_us=now_us(),
                exchange=way.exchange, routing_key=way.routing_key,
            )
        ]  # fmt: skip

    def check_room(self, queue_id: int, to: str) -> None:
        """Before a redrive; `to`: see `redriven`. Raises Overloaded when no more may leave."""
        if self._numbers.is_full(queue_id):
            raise Overloaded(
                f"{len(self._replica.forwardings.of(queue_id).forwardings)} departures of this queue wait "
                "(max_departures); mqtool doctor says for whom",
                limit="max_departures",
            )
        if not self._replica.forwardings.of(queue_id).has_room_for(to):
            raise Overloaded(
                "records of this queue leave for many others by name; ask again when some have arrived (mqtool doctor "
                "says for whom they wait)",
                limit="names of departures",
            )

    def redriven(self, queue_id: int, ranges: Sequence[Range], to: str) -> Change:
        """The change by which records of the queue's own group leave. `to`: a queue; empty: where each came from."""
        return self._numbers.forwarding(
            queue_id, OWN_GROUP, _flat(ranges), REDRIVEN, at_us=now_us(), exchange="", routing_key=to or None
        )

    def holding(self, queue_id: int, group: str, ranges: Sequence[Range]) -> Change:
        """The change by which records that were to leave, and cannot, are held."""
        return self._numbers.forwarding(
            queue_id, group, _flat(ranges), HELD, at_us=now_us(), exchange="", routing_key=None
        )

    def forwarding(self, queue_id: int, group: str) -> int:
        """How many records of a group leave for other queues."""
        ledger = self._replica.groups.get(queue_id, group)
        there = {each.number for each in self._replica.forwardings.of(queue_id).forwardings if each.group == group}
        return sum(map(ledger.lease_records, there)) if ledger is not None else 0

    def _is_open(self, queue_id: int, forwarding: Forwarding) -> bool:
        ledger = self._replica.groups.get(queue_id, forwarding.group)
        return ledger is not None and ledger.lease_records(forwarding.number) > 0


def _flat(ranges: Sequence[Range]) -> list[int]:
    return [border for each in ranges for border in each]


# The batches that a grant reaches: how far it goes, and what of their bytes is in the log's memory. Thin.
#
# Only the index of the memory is asked, and only mapped bytes are read: delivery never waits for a disk. Of records of
# the past no more is known here than that they are there; whoever is granted them fetches them.


_COLD_RECORD_BYTES: Final = 4096
"""What is taken for the size of a record of the past."""


class BatchReader:
    """Of one turn: `forget`, then `reach` as often as the turn asks, then `read`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.runs: list[QueuedBatch] = []

    def forget(self) -> None:
        """Another turn begins."""
        self.runs.clear()

    def reach(self, queue_id: int, at: int, until: int, bytes_max: int) -> Reach:
        """See `ReachOut`."""
        index = self._replica.index
        begin = index.begin(queue_id)
        behind = index.gap_end(queue_id, at)
        if at < begin or behind is not None:
            there = max(begin, behind or 0)
            return Reach(there, there, 0)
        past_until = index.past_until(queue_id, at)
        if past_until is not None:
            records = max(1, min(until, past_until) - at)
            records = min(records, max(1, bytes_max // _COLD_RECORD_BYTES))
            return Reach(at, at + records, records * _COLD_RECORD_BYTES)
        try:
            run = index.find(queue_id, at)
        except OffsetOutOfRange:  # in a jump that no record has followed
            there = max(at + 1, index.next_confirmed(queue_id))
            return Reach(there, there, 0)
        if run.base_queue_offset > at:
            return Reach(run.base_queue_offset, run.base_queue_offset, 0)
        runs = [run]
        if run.next_queue_offset < until:
            # No more of them than will do, if they are of a size.
            wanted = 2 * run.length * -(-(until - at) // run.record_count)
            runs = index.entries(queue_id, at, min(wanted, bytes_max))
        return self._reached(runs, at, until, bytes_max)

    def read(
        self, grants: Sequence[Grant], before: SentBefore, bytes_max: int
    ) -> tuple[list[memoryview], list[QueuedBatch]]:
        """The bytes of the batches that something was granted of, as far as they are in memory, and which batches these
        are. Without those that were sent before. The first ones that fit into so many bytes, one at least: the others
        are fetched."""
        runs = [run for run in self._granted(grants) if run.base_queue_offset not in before]
        ends = accumulate(run.length for run in runs)
        fitting = sum(1 for end in ends if end <= bytes_max)
        return self._read(runs[: max(1, fitting)])

    # --- inside ---

    def _reached(self, runs: Sequence[QueuedBatch], first: int, until: int, bytes_max: int) -> Reach:
        at, size, sent = first, 0, 0
        for run in runs:
            records = min(run.next_queue_offset, until) - at
            part = -(-run.length * records // run.record_count)
            if size + part > bytes_max:
                if at > first:
                    break
                records = max(1, records * bytes_max // part)
                part = -(-run.length * records // run.record_count)
            sent += self._note(run)
            at += records
            size += part
            if at >= until or at < run.next_queue_offset:
                break
        # What was reached before in this turn is sent with that.
        return Reach(first, at, size, sent or size)

    def _note(self, run: QueuedBatch) -> int:
        """How many bytes more are sent with it."""
        known = bool(self.runs) and self.runs[-1].log_offset == run.log_offset
        self.runs.append(run)
        return 0 if known else run.length

    def _granted(self, grants: Sequence[Grant]) -> list[QueuedBatch]:
        """Of the batches reached those that something was given of, each once. Both rise."""
        found: list[QueuedBatch] = []
        for run in self.runs:
            if run.base_queue_offset < grants[-1].next and (not found or found[-1].log_offset != run.log_offset):
                found.append(run)
        return found

    def _read(self, runs: Sequence[QueuedBatch]) -> tuple[list[memoryview], list[QueuedBatch]]:
        """What of these batches is in memory, and which ones these are."""
        parts: list[memoryview] = []
        sent: list[QueuedBatch] = []
        at = 0
        for joined in join_runs(runs):
            those = runs[at : at + joined.batches]
            at += joined.batches
            view = self._view(joined.log_offset, joined.length)
            if view is not None:
                parts.append(view)
                sent += those
                continue
            # A segment ends among them, or the memory begins.
            for run in those if len(those) > 1 else ():
                view = self._view(run.log_offset, run.length)
                if view is not None:
                    parts.append(view)
                    sent.append(run)
        return parts, sent

    def _view(self, log_offset: int, length: int) -> memoryview | None:
        view = self._replica.log.read(log_offset, length, until=log_offset + length)
        return view if view is not None and len(view) == length else None


# How changes of groups come into the log: in batches that every node takes, and as they can be. Thin.
#
# What needs a change that is refused is tried again at a tick; whoever asked for a change hears why it was refused.


logger = logging.getLogger(__name__)


class GroupLog:
    """Of one mastership. `stopped`: it has ended, or is handed over: nothing is given any more."""

    def __init__(self, replica: Replica, publisher: LogPublisher, works: ActiveGroups) -> None:
        self._replica = replica
        self._publisher = publisher
        self._works = works
        self.stopped = False

    @property
    def end(self) -> int:
        return self._replica.log.end

    def append(self, queue_id: int, changes: Iterable[Change], logged: list[Change] | None = None) -> int:
        """Where they end in the log. Raises MirrorlogError, OutcomeUnknown when a part of them is there; `logged`: is
        given what is there."""
        begin = end = self._replica.log.end
        for batch in in_batches(changes):
            try:
                end = self._publisher.append_settlement(encode_changes(batch, queue_id=queue_id), batch)
            except MirrorlogError as error:
                if end == begin:
                    raise
                raise OutcomeUnknown(f"the first part of many ranges is logged, the rest is not: {error}") from None
            if logged is not None:
                logged.extend(batch)
        return end

    def append_if_possible(
        self, work: ActiveGroup, changes: Iterable[Change], logged: list[Change] | None = None
    ) -> int | None:
        """Nobody waits for it, and what needs it is tried again. `logged`: as `append`."""
        try:
            return self.append(work.key[0], merged(work.key[1], changes), logged)
        except MirrorlogError as error:
            logger.debug("group_not_logged log=%s reason=%r", self._replica.assignment.name, str(error))
            self._works.refuse(work)
            return None


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What the parts of one mastership's groups share. `begun`: whether its first batch is confirmed; `bytes_max`: of
    batches in one frame, but for a larger one; `clock`: by which times to live and delays end; `now`: the loop's clock
    in s."""

    replica: Replica
    publisher: LogPublisher
    works: ActiveGroups
    log: GroupLog
    book: SubscriptionBook
    limits: LimitSettings
    bytes_max: int
    begun: Callable[[], bool]
    clock: LogClock
    now: Callable[[], float]
    batches: BatchReader
    leases: LeaseNumbers
    forwardings: GroupForwarding
    keys: KeyReader


class Deliveries:
    """Of the groups of one log."""

    def __init__(self, context: GroupContext) -> None:
        self._replica = context.replica
        self._works = context.works
        self._log = context.log
        self._reached = context.batches
        self._leases = context.leases
        self._forwardings = context.forwardings
        self._keys = context.keys
        self._begun = context.begun
        self._now = context.now
        self._jumped = False
        self._found: dict[Key, int] = {}
        """Watermarks as this mastership found them, of the groups that were delivered from in it."""
        self._fronts: dict[Key, int] = {}
        """And how far this one has given them out, of those that nobody takes from now."""

    def begin(self, *, jumped: bool) -> None:
        """See `Deliverer.begin`."""
        self._jumped = jumped
        for queue_id, group, ledger in list(self._replica.groups):
            self._begin_group(queue_id, group, ledger)

    def begin_queue(self, queue_id: int) -> None:
        """A queue has come to this log: its groups go on as behind another master."""
        for group in self._replica.groups.groups(queue_id):
            self._begin_group(queue_id, group, self._replica.groups.find(queue_id, group))

    def _begin_group(self, queue_id: int, group: str, ledger: Ledger) -> None:
        ledger.drop_volatile()
        # It runs ahead of the queue. What comes from here on nobody has had before.
        following = self._replica.index.next_appended(queue_id)
        self._found[queue_id, group] = following if self._jumped else min(ledger.watermark, following)
        leased = ledger.leased and ledger.leased > self._forwardings.forwarding(queue_id, group)
        if (leased or ledger.parked) and self._replica.queues.has_id(queue_id):
            self._works.plan(self.of((queue_id, group)))

    def of(self, key: Key, *, make: bool = False) -> ActiveGroup:
        """The group's. `make`: the group too, if there is none yet; the queue's own always. Raises NoSuchGroup,
        LimitReached, BadRequest, or why nothing is taken."""
        work = self._works.get(key)
        if work is not None:
            return work
        queue_id, group = key
        queue, groups = self._replica.queues.find_id(queue_id), self._replica.groups
        if groups.get(queue_id, group) is None and (make or group == OWN_GROUP):
            self._make_group(key, queue)
        work = ActiveGroup(key, self._delivery(key, queue, groups.find(queue_id, group)))
        self._works.add(work)
        return work

    def drop_if_idle(self, work: ActiveGroup) -> None:
        """Let it go when nobody takes from it, and nothing of it is under way."""
        if not work.there or work.gathered.asked or not work.delivery.idle:
            return
        self.log_exactly(work)
        work.delivery.let_go()
        self._fronts[work.key] = work.delivery.front.given
        self._works.remove(work)
        self._keys.forget_queue(work.key[0])

    def log_exactly(self, work: ActiveGroup) -> None:
        """The next master shall know how far it was given out, if it can be logged."""
        change = work.delivery.front.exact()
        if change is not None and self._log.append_if_possible(work, [change]) is not None:
            work.delivery.front.appended(change.queue_offset)

    def forget_group(self, key: Key) -> None:
        """What is made under this name from here on begins anew."""
        self._found.pop(key, None)
        self._fronts.pop(key, None)

    def forget_queue(self, queue_id: int) -> None:
        """It is there no more."""
        self._keys.forget_queue(queue_id)
        for known in (self._found, self._fronts):
            for key in [key for key in known if key[0] == queue_id]:
                del known[key]

    # --- inside ---

    def _make_group(self, key: Key, queue: Queue) -> None:
        queue_id, group = key
        begin, void = self._replica.index.begin(queue_id), self._leases.last(queue_id) + 1
        made = self._replica.groups.reset(queue_id, group, begin, streams=queue.newest, void=void)
        self._log.append(queue_id, [made])
        if self._jumped:  # it may have been there before, and its making be a part of what was lost
            following = self._replica.index.next_appended(queue_id)
            self._found[key] = self._replica.index.gap(queue_id)[1] if self._begun() else following

    def _delivery(self, key: Key, queue: Queue, ledger: Ledger) -> GroupDelivery:
        queue_id, group = key
        return GroupDelivery(
            group,
            ledger,
            Rules.of(queue.effective),
            epoch=self._replica.log.epochs.current + self._replica.queues.epoch_shifts.get(queue_id, 0),
            found_watermark=self._found.setdefault(key, ledger.watermark),
            reach=partial(self._reached.reach, queue_id),
            next_lease=partial(self._leases.next, queue_id),
            runs=partial(self._replica.runs.of, queue_id),
            appended=partial(self._replica.index.next_appended, queue_id),
            now=self._now(),
            front=self._fronts.pop(key, 0),
            die=partial(self._forwardings.die, queue_id),
            keys=partial(self._keys.read, queue_id),
        )
