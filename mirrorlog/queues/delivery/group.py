"""One acking group of one queue on its master: who is given which records, and what becomes of them.

The ledger says which records are free; this says who gets them: subscribers in turn, each as much as its prefetch
allows, in the order of the queue; what returns is found again at its place. What was given is OUT in the ledger, and in
the unacknowledged ones of one subscriber here. Both are this master's memory. What outlives it is logged: settlements,
returns, leases, and the watermark, ahead of which nothing is given (decision 0033).

Nothing here changes the ledger but its volatile states: decisions go out as changes, and count when they were appended.
So a change whose append is refused leaves everything as it was: first ask (`settle`, `expired`, …), then append, then
tell (`settled`, `expired_done`, …), in one step of the loop.

Its parts are known by name: who takes, and whose turn it is (`subscribers`), what is free and goes first (`free`), how
far was given out and may be (`front`), the grants (`giving`), what subscribers and holders of leases say (`settling`,
`leases`), when delays and leases end (`endings`). What attributes of batches ask for is inside, and absent while no
record of the queue has any. This is the rest: what concerns several of them, what ends without anybody's word, and
time.

What may be much (a million scattered unacknowledged records, a purge, leases that end together) comes in parts, and who
drives this asks for the next part in another turn of the loop.

Pure: events, `now` (s, one monotonic clock) and `now_us` (µs UTC) in, grants and changes out. Ranges are [first,
until), queue offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final

from mirrorlog.errors import ExclusiveTaken
from mirrorlog.queues.changes import Change, Settled, Watermark
from mirrorlog.queues.dead_letters.forwarding import NUMBERS
from mirrorlog.queues.delivery.deadlines import Endings
from mirrorlog.queues.delivery.dispatch import GRANTS_MAX, Dispatch, Dispatcher, Reach, ReachOut
from mirrorlog.queues.delivery.keys import KeyOrder, KeysRead, ReadKeys
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.ready import RANGES_AT_ONCE, FreeRecords, Front
from mirrorlog.queues.delivery.settlement import (
    EPOCH_BITS,
    EXPIRED,
    GONE,
    PURGED,
    Deaths,
    LeaseClaim,
    LeaseSettlement,
    Outcomes,
    Settlement,
    SubscriberSettlement,
    deaths,
    ended,
    returned_of,
)
from mirrorlog.queues.delivery.subscribers import LeaseWish, Rules, Subscriber, SubscriberOptions, Subscribers
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.limits.attributes import QueueRuns
from mirrorlog.queues.ranges import Range, joined, pairs_of
from mirrorlog.wire.frames import How

__all__ = [
    "EPOCH_BITS",
    "GRANTS_MAX",
    "RANGES_AT_ONCE",
    "Dispatch",
    "GroupDelivery",
    "KeysRead",
    "LeaseClaim",
    "LeaseWish",
    "Reach",
    "ReachOut",
    "Rules",
    "Settlement",
]


_WINDOW: Final = 65_536


class GroupDelivery:
    """`epoch`: of the mastership; `found_watermark`: as it was when that began: what is below may have been given out
    by another master. `next_lease`: numbers a lease; `runs`: those of the queue, as far as they are known now;
    `appended`: where the queue ends now, confirmed or not, needed where there are runs. `front`: of the delivery of
    this group that this mastership had before, see `front`. `die`: how records end. `keys`: reads those of records."""

    def __init__(
        self,
        group: str,
        ledger: Ledger,
        rules: Rules,
        *,
        epoch: int,
        found_watermark: int,
        reach: ReachOut,
        next_lease: Callable[[], int],
        now: float,
        runs: Callable[[], QueueRuns | None] = lambda: None,
        appended: Callable[[], int] = lambda: 0,
        front: int = 0,
        die: Deaths = deaths,
        keys: ReadKeys = lambda at, until: KeysRead(until),
    ) -> None:
        self.group = group
        self.rules = rules
        """May be others while it lives, as far as what dies is concerned: `delivery_limit`."""
        self.ledger = ledger
        self._appended = appended
        self._nothing_to_give = False
        self._now, self._now_us = now, 0
        self.subscribers = subscribers = Subscribers(rules)
        self.keys = KeyOrder(ledger, keys)
        self._attributed = attributed = Attributed(ledger, self.keys, priority_max=rules.priority_max, runs=runs)
        self.free = free = FreeRecords(ledger, attributed)
        self.front = fronted = Front(group, ledger, found=found_watermark, given=front)
        self._outcomes = outcomes = Outcomes(group, ledger, lambda: self.rules, die)
        self.giving = Dispatcher(
            ledger,
            subscribers=subscribers, free=free, front=fronted, outcomes=outcomes, reach=reach, next_lease=next_lease,
        )  # fmt: skip
        self.endings = endings = Endings(ledger, now)
        self.settling = SubscriberSettlement(
            ledger, attributed, endings,
            subscribers=subscribers, free=free, front=fronted, outcomes=outcomes, epoch=epoch,
        )  # fmt: skip
        self.leases = LeaseSettlement(ledger, attributed, outcomes)

    # --- who is there ---

    @property
    def taken(self) -> bool:
        """Whether there is anybody who takes records, or has unacknowledged ones."""
        return self.subscribers.any

    @property
    def idle(self) -> bool:
        """Whether nobody would miss this: it can be made again from the ledger."""
        if self.subscribers.any or self.behind or not self.endings.idle:
            return False
        return self.front.idle and (self._attributed.plain or self._attributed.idle)

    @property
    def behind(self) -> bool:
        """Whether some of what `grant` was asked about was not looked at, for there is much: it is to be asked again,
        though nothing happens."""
        return self.free.behind

    @property
    def held_back(self) -> int:
        """How many records are OUT in the ledger and with no subscriber: they wait for their time, or are too old."""
        return self._attributed.taken

    def let_go(self) -> None:
        """It is idle, and is let alone."""
        self._attributed.let_go()
        self.keys.end()

    def subscribe(self, facts: SubscriberOptions) -> None:
        """Who is the first is not given what had no time to live and came before, and says whether keys have an order.
        Raises ExclusiveTaken."""
        self._check_order(facts.ordered)
        was_taken = self.subscribers.any
        self.subscribers.subscribe(facts)
        self._came(was_taken, facts.ordered)

    def lease(self, wish: LeaseWish) -> None:
        """Somebody waits for records, as who subscribes; `gone` ends that. Raises ExclusiveTaken."""
        self._check_order(wish.ordered)
        was_taken = self.subscribers.any
        self.subscribers.lease(wish)
        self._came(was_taken, wish.ordered)

    def _check_order(self, ordered: bool) -> None:
        if self.keys.on in (None, ordered):
            return
        leased = any(lease >= NUMBERS for lease in self.ledger.leases)
        if self.subscribers.any or leased:
            ways = "in order by key (ordered_by)", "in the order of the queue alone"
            ours, theirs = ways if ordered else reversed(ways)
            raise ExclusiveTaken(
                f"this group is consumed {theirs} now, by {'leases that run' if leased else 'others'}: consume it so, "
                f"wait until they are gone to consume it {ours}, or use another group"
            )

    def _came(self, was_taken: bool, ordered: bool) -> None:
        if self.keys.on != ordered:
            if ordered:
                self.keys.begin()
            else:
                self.free.came_back(self.keys.end())
        if not was_taken:
            self._attributed.taken_from(self._appended())

    def gone(self, number: int) -> list[Change]:
        """It is there no more, nor is who waited for a lease under that number: the changes that count what it had as
        returned, some thousand ranges of it; `leave` gives the next ones while some are `leaving`. They are free at
        once, whether these can be appended or not; `Front.not_counted` follows when not."""
        subscriber = self.subscribers.gone(number)
        return self._leave(subscriber) if subscriber is not None else []

    def leave(self) -> list[Change]:
        """The next part of what `gone` began."""
        leaving = self.subscribers.leaving
        return self._leave(leaving[0]) if leaving else []

    def _leave(self, subscriber: Subscriber) -> list[Change]:
        part = list(islice(subscriber.unacked, RANGES_AT_ONCE))
        for first, until in part:
            self.ledger.give_back(first, until)
        self.subscribers.let_go(subscriber, part)
        self.free.came_back(part)
        return self._outcomes.come_back(part, 0)

    # --- giving ---

    def watermark_wanted(self, end: int, freed: int = 0) -> Watermark | None:
        """The watermark to be logged now, if it is time; then `Front.appended`. It is ahead of what was given by what
        subscribers have room for, and will have when they have settled `freed` records. `end`: as of `grant`."""
        subscribers = self.subscribers
        return self.front.wanted(self.free, end, room=subscribers.room + freed, auto_ack=bool(subscribers.auto_ack))

    def freed(self, settlement: Settlement) -> int:
        """For how many records more its subscriber will have room."""
        subscriber = self.subscribers.get(settlement.number)
        if subscriber is None or subscriber.closing or settlement.how == How.EXTEND:
            return 0
        freed = 0
        for first, until in settlement.ranges:
            freed += until - first
        return freed

    def watermark_confirmed(self, queue_offset: int, end: int) -> bool:
        """It is on all copies. Whether somebody may be given something by that; `end`: as of `grant`."""
        before = self.front.covered
        self.front.confirmed(queue_offset)
        return before < end or not self._attributed.plain

    def grant(self, end: int, now: float, *, bytes_max: int) -> Dispatch | None:
        """Whoever's turn it is gets what is there below `end`, where what is confirmed ends; None when nobody can be
        given anything. To be asked until then. `bytes_max`: for this turn; one record may be larger."""
        met = self.free.met(end, self._now_us, taken=self.subscribers.turns.next() is not None)
        given = self.giving.give(met, now, bytes_max=bytes_max)
        self._nothing_to_give = given is None and not self.free.uncovered
        if self._nothing_to_give and not self._attributed.plain and self.front.is_covered and not self.behind:
            self._attributed.had_chance()
        return given

    def served(self, watermark: int) -> bool:
        """Whether everybody who had room when `watermark` was asked for has been given what there is; as of the last
        `grant`."""
        if not self._nothing_to_give or self.behind:
            return False
        return self.subscribers.turns.next() is None or self.front.covered >= min(watermark, self.front.asked)

    # --- what ends though nobody who had it said so ---

    def purge(self, end: int, since: int = 0) -> Settled | None:
        """Settles what stands below `end` and is with no subscriber, from `since` on, some thousand ranges; None when
        there is nothing more. Then `purge_done`."""
        since = max(since, self.ledger.floor)
        ranges = list(islice(merge(self.ledger.idle_runs(since, end), self._nobodys(since, end)), RANGES_AT_ONCE))
        return self._outcomes.settle(ranges, PURGED) if ranges else None

    def purge_done(self, change: Settled) -> None:
        """What `purge` gave is appended, or this part of it."""
        self.settling.done(pairs_of(change.ranges))

    def missing(self, begin: int, gap: Range) -> Settled | None:
        """Settles what is not there any more, whoever has it: what stands below `begin`, where the queue
        begins now, or in the `gap` that a loss left; None when there is nothing. Then `missing_done`."""
        floor = self.ledger.floor
        low, high = max(floor, begin, gap[0]), gap[1]
        ranges = [(floor, begin)] if floor < begin else []
        if low < high and self.ledger.unsettled(low, high):
            ranges.append((low, high))
        return self._outcomes.settle(ranges, GONE) if ranges else None

    def missing_done(self, change: Settled) -> None:
        """What `missing` gave is appended: no subscriber has these any more."""
        ranges = pairs_of(change.ranges)
        self.settling.done(ranges)
        self.subscribers.take(ranges)

    def _nobodys(self, first: int, until: int) -> Iterator[Range]:
        """What of these is OUT in the ledger, and with no subscriber; asked for by windows, and in ever larger ones
        where nothing is, which may be far: it is perhaps much, and most of it is not wanted at once."""
        window = _WINDOW
        while first < until and self._attributed.taken:
            end = min(until, first + window)
            there = sorted(self._attributed.nobodys(first, end))
            for run in there:
                yield from ((low, high) for low, high, state in self.ledger.runs(*run) if state == State.OUT)
            first, window = end, _WINDOW if there else 2 * window

    # --- time ---

    def clock(self, now: float, now_us: int) -> None:
        """A look at this group begins. What has had its one chance, or has come to its time, is known from here on."""
        self._now, self._now_us = now, now_us
        if not self._attributed.plain and (lowest := self._attributed.look(now_us)) is not None:
            self.free.freed(lowest)

    @property
    def due_at(self) -> float:
        """When there is something to ask of `expired` or who is overdue, or it is time for a look; perhaps a little
        earlier."""
        due = min(self.endings.next_at, self.subscribers.overdue_at)
        if self._attributed.plain or (next_us := self._attributed.next_us) == math.inf:
            return due
        return min(due, self._now + (next_us - self._now_us) / 1_000_000)

    def expired(self, now: float) -> list[Change]:
        """The changes that end the delays and leases whose time has come, and records whose time to live is over, some
        thousand ranges at a time; then `expired_done`."""
        changes = self._outcomes.die(self._attributed.dying(), EXPIRED)
        parked, leased = (sorted(ranges) for ranges in self.endings.due(now, RANGES_AT_ONCE))
        changes += self._outcomes.come_back(list(joined(leased)), 0)
        return [*changes, self._outcomes.again(joined(parked), 0, counted=False)] if parked else changes

    def expired_done(self, changes: Iterable[Change], *, whole: bool = True) -> None:
        """What `expired` gave is appended; not `whole`: this part of it, and `expired` gives the rest again."""
        if whole:
            self.endings.done()
        for change in changes:
            self.settling.done(ended(change))
            self.free.came_back(returned_of(change))
