"""One acking group of one queue on its master: who is given which records, and what becomes of them.

The ledger says which records are free; this says who gets them: subscribers in turn, each as much as its prefetch
allows, in the order of the queue; what returns is found again at its place. What was given is OUT in the ledger, and in
the hand of one subscriber here. Both are this master's memory. What outlives it is logged: settlements, returns,
leases, and the watermark, ahead of which nothing is given (docs/decisions/0033).

Nothing here changes the ledger but its volatile states: decisions go out as changes, and count when they were appended.
So a change whose append is refused leaves everything as it was: first ask (`settle`, `expired`, …), then append, then
tell (`settled`, `expired_done`, …), in one step of the loop.

What the attributes of batches ask for is in `queues.attributed`: a record that waits for its time, or is too old, is
OUT and in nobody's hands, and within the order of priorities that of the queue is kept. A group whose queue has no such
batches asks nothing of it. When delays and leases end is in `queues.endings`.

What may be much (a hand of a million scattered records, a purge, leases that end together) comes in parts, and who
drives this asks for the next part in another turn of the loop.

Pure: events, `now` (s, one monotonic clock) and `now_us` (µs UTC) in, grants and changes out. Ranges are [first,
until), queue offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from mirrorlog.commitlog.attributes import PRIORITY_MAX
from mirrorlog.errors import BadRequest, ExclusiveTaken, NoSuchSubscription, NotGranted, ReceiptStale
from mirrorlog.queues.attributed import Attributed
from mirrorlog.queues.changes import Change, Departing, Leased, Returned, Settled, Watermark
from mirrorlog.queues.deaths import DEAD, EXPIRED, LIMIT, Deaths, deaths
from mirrorlog.queues.endings import Endings
from mirrorlog.queues.ledger import Ledger, State
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.queues.runs import QueueRuns
from mirrorlog.queues.subscriber import Range, Subscriber, Subscription
from mirrorlog.queues.turns import Turns
from mirrorlog.wire.frames import GRANT_REDELIVERED, Grant, How

ACKED: Final = "acked"
PURGED: Final = "purged"
"""Why records are settled: see `Settled`."""

AUTO_ACK_AHEAD: Final = 65_536
"""So far the watermark is ahead of subscribers that have nothing in hand."""
EPOCH_BITS: Final = 32
"""A lease's number is epoch << EPOCH_BITS | count."""
GRANTS_MAX: Final = 256
"""In one turn of a subscriber, so that scattered records keep nobody else waiting."""
RANGES_AT_ONCE: Final = 4096
"""Of what goes, is purged or ends, in one part."""
CONSUMER_TIMEOUT_MS: Final = 30 * 60 * 1000
_ATTEMPTS_MAX: Final = 254
_NO_LIMIT: Final = 1 << 62
_WINDOW: Final = 65_536
_NOBODY: Final = 0
_SETTLING: Final = frozenset({int(How.ACK), int(How.DEAD)})
_IDLE: Final = (State.FREE, State.PARKED)


class Reach(NamedTuple):
    """Records [first, until), of `size` bytes. `first`: where the next record stands that there is, beyond what was
    asked for too; then there are none. `sent`: bytes of the whole batches that are sent with them; 0: as `size`."""

    first: int
    until: int
    size: int
    sent: int = 0


ReachOut = Callable[[int, int, int], Reach]
"""(at, until, bytes): the records from `at` on, below `until`, that fit into so many bytes, at least one. They stand
one after the other, and end with a batch rather than within one."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a queue's arguments say of delivery. `delivery_limit`: a record that came back more often is dead.
    `priority_max`: higher priorities count as that; 0 tells none apart."""

    single_active: bool = False
    consumer_timeout_s: float = CONSUMER_TIMEOUT_MS / 1000
    delivery_limit: int | None = None
    priority_max: int = 0

    @staticmethod
    def of(arguments: dict[str, Any]) -> Rules:
        """From a queue's arguments, which may be older than their check."""
        timeout, limit = arguments.get("x-consumer-timeout"), arguments.get("x-delivery-limit")
        priority = arguments.get("x-max-priority")
        return Rules(
            single_active=arguments.get("x-single-active-consumer") is True,
            consumer_timeout_s=(timeout if type(timeout) is int and timeout > 0 else CONSUMER_TIMEOUT_MS) / 1000,
            delivery_limit=min(limit, _ATTEMPTS_MAX) if type(limit) is int and limit >= 0 else None,
            priority_max=min(priority, PRIORITY_MAX) if type(priority) is int and priority > 0 else 0,
        )


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """Somebody waits for up to `records_max` records, for `lease_ms`."""

    number: int
    holder: str
    records_max: int
    lease_ms: int


class Receipt(NamedTuple):
    """Records [first, until) that were given under a lease."""

    first: int
    until: int
    lease: int


@dataclass(frozen=True, slots=True)
class Given:
    """To be sent to `number`, a subscriber or who waits for a lease; 0: to nobody, only the change is to be made.
    `change`: to be appended before; then nothing is sent without it, and `take_back` follows when it is refused."""

    number: int
    grants: tuple[Grant, ...] = ()
    change: Settled | Leased | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to be done with `ranges`; `records`: how many of them it changes. `number`: whose hand they leave, 0 for
    nobody's."""

    number: int
    how: int
    ranges: tuple[Range, ...]
    changes: tuple[Change, ...]
    records: int
    delay_ms: int = 0
    passed_over: int = 0


class Delivery:
    """`epoch`: of the mastership; `found_watermark`: as it was when that began: what is below may have been given out
    by another master. `next_lease`: numbers a lease; `runs`: those of the queue, as far as they are known now. `front`:
    of the delivery of this group that this mastership had before, see `front`. `die`: how records end."""

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
        front: int = 0,
        die: Deaths = deaths,
    ) -> None:
        self.group = group
        self.rules = rules
        self._ledger = ledger
        self._epoch = epoch
        self._found = found_watermark
        self._reach = reach
        self._next_lease = next_lease
        self._deaths = die
        self._attributed = Attributed(ledger, priority_max=rules.priority_max, runs=runs)
        # Where what is confirmed ended when it was asked for last.
        self._end = 0
        self._nothing_to_give = False
        self._clock = (now, 0)
        self._subscribers: dict[int, Subscriber] = {}
        # Those whose connection is gone, and who had much.
        self._leaving: dict[int, Subscriber] = {}
        self._wishes: dict[int, LeaseWish] = {}
        self._turns = Turns()
        self._active: int | None = None
        # Those that are not closing, those of them that have nothing in hand ever, and the one that is alone, if any.
        self._open: set[int] = set()
        self._auto_ack: set[int] = set()
        self._alone = _NOBODY
        # Below it nothing is free.
        self._free_from = ledger.floor
        self.front = max(front, ledger.floor)
        """Nothing from there on was ever given to a subscriber in this mastership."""
        self._covered = self._asked = ledger.watermark
        # What subscribers have room for, by number and of all.
        self._rooms: dict[int, int] = {}
        self._room = 0
        # What came back, and could not be logged as that.
        self._uncounted = RangeSet()
        self._endings = Endings(ledger, now)
        self._look_at = math.inf

    # --- who is there ---

    @property
    def subscribers(self) -> int:
        return len(self._open)

    @property
    def takers(self) -> list[Subscriber]:
        """The subscribers, those that give back what they have and end among them."""
        return list(self._subscribers.values())

    @property
    def alone(self) -> int | None:
        """Who has this group for itself, if anybody does."""
        return self._alone if self._alone in self._open else self._active

    @property
    def waiting(self) -> int:
        """How many wait for leases."""
        return len(self._wishes)

    @property
    def numbers(self) -> list[int]:
        """All who take records, or have some in hand: subscribers, and who waits for a lease."""
        return [*self._subscribers, *self._wishes]

    def knows(self, number: int) -> bool:
        """Whether it takes records, or has some in hand."""
        return number in self._subscribers or number in self._wishes

    @property
    def taken(self) -> bool:
        """Whether there is anybody who takes records, or has some in hand."""
        return bool(self._subscribers or self._wishes)

    @property
    def idle(self) -> bool:
        """Whether nobody would miss this: it can be made again from the ledger."""
        if self._subscribers or self._wishes or self._asked != self._covered or not self._endings.idle:
            return False
        if self.behind:
            return False
        return self._attributed.idle and not any(self._ledger.unsettled(*each) for each in self._uncounted)

    @property
    def behind(self) -> bool:
        """Whether some of what `grant` was asked about was not looked at, for there is much: it is to be asked again,
        though nothing happens."""
        return self._attributed.met < self._end or self._attributed.unsorted

    @property
    def held_back(self) -> int:
        """How many records are OUT in the ledger and in nobody's hands: they wait for their time, or are too old."""
        return self._attributed.taken

    def let_go(self) -> None:
        """It is idle, and is let alone."""
        self._attributed.let_go()

    def subscribe(self, facts: Subscription) -> None:
        """Raises ExclusiveTaken."""
        if self._alone in self._open:
            raise ExclusiveTaken("another subscriber has this group for itself; wait until it is gone")
        if facts.exclusive and self._open:
            raise ExclusiveTaken(f"{len(self._open)} others are subscribed to this group: none can have it for itself")
        if facts.exclusive and self._wishes:
            raise ExclusiveTaken(f"{len(self._wishes)} wait for leases of this group: none can have it for itself")
        if facts.exclusive:
            self._alone = facts.number
        if facts.auto_ack:
            self._auto_ack.add(facts.number)
        self._open.add(facts.number)
        subscriber = self._subscribers[facts.number] = Subscriber(facts, self.rules.consumer_timeout_s)
        self._choose()
        self._look(subscriber)

    def unsubscribe(self, number: int) -> None:
        """It is given nothing more; what it has in hand stays there. Raises NoSuchSubscription."""
        subscriber = self._subscriber(number)
        subscriber.closing = True
        self._open.discard(number)
        self._auto_ack.discard(number)
        self._look(subscriber)

    def hold(self, number: int, held: bool) -> None:
        """Whether its connection takes no more at the moment."""
        subscriber = self._subscribers.get(number)
        if subscriber is not None and subscriber.held != held:
            subscriber.held = held
            self._look(subscriber)

    def gone(self, number: int) -> list[Change]:
        """It is there no more, nor is who waited for a lease under that number: the changes that count what it had as
        returned, some thousand ranges of it; `leave` gives the next ones while `leaving`. They are free at once,
        whether these can be appended or not; `not_counted` follows when not."""
        self._forget(number)
        self._wishes.pop(number, None)
        subscriber = self._subscribers.get(number)
        if subscriber is None:
            return []
        subscriber.closing = True
        self._leaving[number] = subscriber
        return self._leave(number, subscriber)

    @property
    def leaving(self) -> bool:
        """Whether somebody who is gone has not let go of everything."""
        return bool(self._leaving)

    def leave(self) -> list[Change]:
        """The next part of what `gone` began."""
        for number, subscriber in self._leaving.items():
            return self._leave(number, subscriber)
        return []

    def _leave(self, number: int, subscriber: Subscriber) -> list[Change]:
        part = list(islice(subscriber.hand, RANGES_AT_ONCE))
        for first, until in part:
            self._ledger.give_back(first, until)
            subscriber.take(first, until)
        self._came_back(part)
        if not len(subscriber.hand):
            self._forget(number)
            del self._subscribers[number]
            self._choose()
        return self._return(part, 0)

    def not_counted(self, changes: Iterable[Change]) -> None:
        """What `gone` gave could not be appended: these records stay flagged all the same."""
        for change in changes:
            if isinstance(change, Returned | Settled | Departing):
                _add_all(self._uncounted, _pairs(change.ranges))

    # --- giving ---

    def watermark_wanted(self, end: int, freed: int = 0) -> Watermark | None:
        """The watermark to be logged now, if it is time; then `watermark_appended`. It is ahead of what was given by
        what subscribers have room for, and will have when they have settled `freed` records. `end`: as of `grant`."""
        auto_ack = AUTO_ACK_AHEAD if self._auto_ack else 0
        room = self._room + freed
        if not room + auto_ack:
            return None
        front = self._next_front(end)
        if self._asked >= front + room + auto_ack // 2:
            return None
        return Watermark(group=self.group, queue_offset=front + room + auto_ack)

    def _next_front(self, end: int) -> int:
        """Where the next record stands that was not given before."""
        front = max(self.front, self._ledger.floor)
        urgent = self._attributed.levels.next_free(end) if self._attributed.levels else None
        if urgent is not None and urgent[0] >= self._asked:
            return max(front, urgent[0])  # what it is given before is covered with it
        if self._free_from < self._asked or self._asked <= front or self._asked >= end:
            return front
        # Nothing below the watermark is free: settled or leased records are passed over, not given.
        run = self._ledger.next_free(self._asked, end)
        return run[0] if run is not None else end

    def freed(self, settlement: Settlement) -> int:
        """For how many records more its subscriber will have room."""
        subscriber = self._subscribers.get(settlement.number)
        if subscriber is None or subscriber.closing or settlement.how == How.EXTEND:
            return 0
        return sum(until - first for first, until in settlement.ranges)

    def exact_watermark(self) -> Watermark | None:
        """Below which something may have been given out, to be logged before another one masters the log; None when it
        is logged so."""
        exact = max(self._found, self.front)
        return Watermark(group=self.group, queue_offset=exact) if exact < self._ledger.watermark else None

    def watermark_appended(self, queue_offset: int) -> None:
        self._asked = queue_offset
        self._covered = min(self._covered, queue_offset)

    def watermark_confirmed(self, queue_offset: int) -> None:
        """It is on all copies."""
        self._covered = min(queue_offset, self._asked)

    def grant(self, end: int, now: float, *, bytes_max: int) -> Given | None:
        """Whoever's turn it is gets what is there below `end`, where what is confirmed ends; None when nobody can be
        given anything. To be asked until then. `bytes_max`: for this turn; one record may be larger."""
        given = self._grant(self._met(end), now, bytes_max)
        self._nothing_to_give = given is None
        if given is None and self._asked == self._covered and not self.behind:
            self._attributed.had_chance()
        return given

    def served(self, watermark: int) -> bool:
        """Whether everybody who had room when `watermark` was asked for has been given what there is; as of the last
        `grant`."""
        if not self._nothing_to_give or self.behind:
            return False
        return self._turns.next() is None or self._covered >= min(watermark, self._asked)

    @property
    def watermark(self) -> int:
        """As it was asked for last."""
        return self._asked

    def _grant(self, end: int, now: float, bytes_max: int) -> Given | None:
        while (number := self._turns.next()) is not None:
            wish = self._wishes.get(number)
            if wish is not None:
                return self._lend(wish, end)
            limit = min(end, self._covered)
            run = self._next_free(limit)
            if run is None:
                return None
            given = self._give(self._subscribers[number], run, limit, now, bytes_max)
            if given is not None:
                return given
            self._turns.not_ready(number)  # the next record is larger than what it may have beside the others
        return None

    def take_back(self, given: Given) -> None:
        """The change that it needed was refused: nobody has it."""
        for grant in given.grants:
            self._ledger.give_back(grant.first, grant.next)
        self._came_back([(grant.first, grant.next) for grant in given.grants])

    # --- what becomes of it ---

    def settle(
        self, number: int, epoch: int, how: int, ranges: Sequence[int], delay_ms: int = 0, *, again: bool = False
    ) -> Settlement:
        """What a subscriber says of records that it has, or had: in an older epoch, or (`again`) on a connection that
        was lost. `how`: see `How`; `ranges`: flat, first, until, first, until, ….

        Of what it had only that counts which nobody else has by now. Raises BadRequest, NotGranted or
        NoSuchSubscription; then nothing of it counts.
        """
        subscriber = self._subscriber(number)
        pairs = self.given(ranges)
        if epoch > self._epoch:
            raise NotGranted(f"epoch {epoch} has not begun for this node, which knows {self._epoch}; subscribe again")
        if epoch < self._ledger.void >> EPOCH_BITS:
            raise NotGranted(f"the group was reset since epoch {epoch}: what was given out before is nobody's any more")
        if epoch == self._epoch and not again:
            return self._settlement(number, how, self._in_hand(subscriber, pairs), delay_ms)
        given = max(self._found, self._ledger.floor, self.front if epoch == self._epoch else 0)
        for first, until in pairs:
            if until > given:
                raise NotGranted(
                    f"records {first} to {until} were not given out in epoch {epoch}", first=first, next=until
                )
        # A return was counted when the connection went, or is in the log of the master before; and if it is nowhere,
        # the record is free all the same. To count it here might be to count it twice.
        counts = how in _SETTLING
        settlement = self._settlement(number, how, self._had(subscriber, how, pairs) if counts else (), delay_ms)
        if how not in _SETTLING:
            return settlement
        ledger = self._ledger
        left = sum(ledger.unsettled(first, until) - ledger.departing(first, until) for first, until in pairs)
        return replace(settlement, passed_over=left - settlement.records)

    def given(self, ranges: Sequence[int]) -> list[Range]:
        """What somebody says that he has, flat, as ranges. Before anything else is asked of them: they may name what
        there never was. Raises BadRequest or NotGranted."""
        pairs = _pairs(ranges)
        if pairs and pairs[-1][1] > max(self._found, self._ledger.floor, self.front):
            first, until = pairs[-1]
            raise NotGranted(f"records {first} to {until} were not given out", first=first, next=until)
        return pairs

    def settled(self, settlement: Settlement, now: float) -> None:
        """The changes of a settlement are appended."""
        how, ranges = settlement.how, settlement.ranges
        subscriber = self._subscribers.get(settlement.number)
        if how == How.EXTEND:
            if subscriber is not None:
                subscriber.extend(ranges, now)
            return
        if subscriber is not None:
            self._taken_from((subscriber,), ranges)
        if self._leaving:
            self._taken_from(self._leaving.values(), ranges)
        if how in _SETTLING:
            self._forget_settled(ranges)
        elif how == How.RELEASE:
            for first, until in ranges:
                self._ledger.give_back(first, until)
        if how in (How.RETURN, How.RELEASE):
            self._returned(settlement, now)
        if subscriber is not None:
            self._look(subscriber)

    def purge(self, end: int, since: int = 0) -> Settled | None:
        """Settles what stands below `end` and is in nobody's hands, from `since` on, some thousand ranges; None when
        there is nothing more. Then `purge_done`."""
        since = max(since, self._ledger.floor)
        ranges = list(islice(merge(self._ledger.idle_runs(since, end), self._nobodys(since, end)), RANGES_AT_ONCE))
        return self._settle(ranges, PURGED) if ranges else None

    def purge_done(self, change: Settled) -> None:
        """What `purge` gave is appended, or this part of it."""
        self._forget_settled(_pairs(change.ranges))

    def _nobodys(self, first: int, until: int) -> Iterator[Range]:
        """What of these is OUT in the ledger, and in nobody's hands; asked for by windows, and in ever larger ones
        where nothing is, which may be far: it is perhaps much, and most of it is not wanted at once."""
        window = _WINDOW
        while first < until and self._attributed.taken:
            end = min(until, first + window)
            there = sorted(self._attributed.nobodys(first, end))
            for run in there:
                yield from ((low, high) for low, high, state in self._ledger.runs(*run) if state == State.OUT)
            first, window = end, _WINDOW if there else 2 * window

    def missing(self, begin: int, gap: Range) -> Settled | None:
        """Settles what is not there any more, in whosever hands it is: what stands below `begin`, where the queue
        begins now, or in the `gap` that a loss left; None when there is nothing. Then `missing_done`."""
        floor = self._ledger.floor
        low, high = max(floor, begin, gap[0]), gap[1]
        ranges = [(floor, begin)] if floor < begin else []
        if low < high and self._ledger.unsettled(low, high):
            ranges.append((low, high))
        return self._settle(ranges, EXPIRED) if ranges else None

    def missing_done(self, change: Settled) -> None:
        """What `missing` gave is appended: nobody has these in hand any more."""
        ranges = _pairs(change.ranges)
        self._forget_settled(ranges)
        self._taken_from(self._subscribers.values(), ranges)
        for subscriber in list(self._subscribers.values()):
            self._look(subscriber)

    def left(self, ranges: Sequence[Range]) -> None:
        """What lay free is settled, or leaves, by others; that is appended."""
        self._forget_settled(ranges)

    def stayed(self, ranges: Sequence[Range]) -> None:
        """What was to leave is free again; that is appended."""
        self._came_back(ranges)

    def ready(self, end: int, records_max: int) -> list[Range]:
        """The first ready records below `end`, so many at most, some thousand ranges; then `left`."""
        found, left = list[Range](), records_max
        at = max(self._ledger.floor, self._free_from)
        while left > 0 and len(found) < RANGES_AT_ONCE and (run := self._ledger.next_free(at, end)) is not None:
            first, at = run[0], min(run[1], run[0] + left)
            found.append((first, at))
            left -= at - first
        return found

    # --- leases ---

    def lease(self, wish: LeaseWish) -> None:
        """Somebody waits for records; `gone` ends that. Raises ExclusiveTaken."""
        if self.rules.single_active or self._alone in self._open:
            raise ExclusiveTaken("one subscriber has this group for itself, so nothing of it is leased")
        self._wishes[wish.number] = wish
        self._turns.ready(wish.number, 0)

    def lease_began(self, lease: int, lease_ms: int, now: float) -> None:
        """It was given, or extended: it ends `lease_ms` from now."""
        self._endings.began(lease, lease_ms, now)

    def settle_leased(self, receipts: Iterable[Receipt], how: int, delay_ms: int = 0, *, end: int) -> Settlement:
        """What a holder says. A receipt of a lease that has ended acks what nobody has, and returns nothing. `end`:
        where what is confirmed ends. Raises BadRequest, or ReceiptStale; then nothing of it counts."""
        if how == How.EXTEND:
            raise BadRequest("a lease is extended by ExtendLease")
        leases = _Leases(self._ledger, self._attributed)
        found = RangeSet()
        for receipt in receipts:
            if not 0 <= receipt.first < receipt.until <= end:
                raise BadRequest(f"records {receipt.first} to {receipt.until} were never leased")
            if not receipt.lease >> EPOCH_BITS:
                raise BadRequest(f"lease {receipt.lease} is none")
            if receipt.lease < self._ledger.void:
                raise ReceiptStale(
                    f"the group was reset since lease {receipt.lease} was given",
                    first=receipt.first,
                    next=receipt.until,
                )
            _add_all(found, leases.ranges(receipt, settles=how in _SETTLING))
        settlement = self._settlement(0, how, tuple(found.runs()), delay_ms)
        if how == How.RELEASE and not settlement.changes and settlement.ranges:
            # What is leased is free again by a change alone.
            return replace(settlement, changes=(self._again(settlement.ranges, 0, counted=False),))
        return settlement

    def extend_leased(self, receipts: Iterable[Receipt], lease_ms: int) -> list[Leased]:
        """A lease begins anew as a whole, whichever of its receipts says so; then `lease_began`. Raises NotGranted when
        one has ended."""
        leases, extended = _Leases(self._ledger, self._attributed), dict[int, Range]()
        for receipt in receipts:
            of_it = (receipt.first, receipt.until)
            if not receipt.lease >> EPOCH_BITS or any(leases.of(receipt.lease).without(*of_it)):
                raise NotGranted(
                    f"lease {receipt.lease} of records {receipt.first} to {receipt.until} has ended",
                    first=receipt.first,
                    next=receipt.until,
                )
            extended[receipt.lease] = of_it
        holders = {lease: self._ledger.leases[lease].holder for lease in extended}
        return [self._leased(lease, holders[lease], [of_it], lease_ms) for lease, of_it in extended.items()]

    # --- time ---

    def clock(self, now: float, now_us: int) -> None:
        """A look at this group begins. What has had its one chance, or has come to its time, is known from here on."""
        self._clock = (now, now_us)
        lowest = self._attributed.look(self._clock[1])
        if lowest is not None:
            self._freed(lowest)

    @property
    def due_at(self) -> float:
        """When there is something to ask of `expired` or `overdue`, or it is time for a look; perhaps a little
        earlier."""
        due, next_us = min(self._endings.next_at, self._look_at), self._attributed.next_us
        if next_us == math.inf:
            return due
        now, now_us = self._clock
        return min(due, now + (next_us - now_us) / 1_000_000)

    def overdue(self, now: float) -> list[int]:
        """The subscribers that have had a record for too long."""
        if now < self._look_at:
            return []
        there = {number: each for number, each in self._subscribers.items() if number not in self._leaving}
        found = [number for number, each in there.items() if each.overdue_at <= now]
        left = (each.overdue_at for number, each in there.items() if number not in found)
        self._look_at = min(left, default=math.inf)
        return found

    def expired(self, now: float) -> list[Change]:
        """The changes that end the delays and leases whose time has come, and records whose time to live is over, some
        thousand ranges at a time; then `expired_done`."""
        changes = self._die(self._attributed.dying(), EXPIRED)
        parked, leased = (sorted(ranges) for ranges in self._endings.due(now, RANGES_AT_ONCE))
        changes += self._return(list(_joined(leased)), 0)
        return [*changes, self._again(_joined(parked), 0, counted=False)] if parked else changes

    def expired_done(self, changes: Iterable[Change], *, whole: bool = True) -> None:
        """What `expired` gave is appended; not `whole`: this part of it, and `expired` gives the rest again."""
        if whole:
            self._endings.done()
        for change in changes:
            self._forget_settled(_ended(change))
            self._came_back(_again(change))

    # --- inside: giving ---

    def _met(self, end: int) -> int:
        """Below which records may be given out of those below `end`: of all these it is known what they ask for."""
        attributed, now_us = self._attributed, self._clock[1]
        self._end = end
        if attributed.met < end:
            attributed.meet(end, now_us, taken=self._turns.next() is not None)
        return 0 if attributed.behind(now_us) else min(end, attributed.met)

    def _next_free(self, limit: int) -> Range | None:
        """The first free records below `limit`, of the highest priority that there is."""
        if (levels := self._attributed.levels) and ((urgent := levels.next_free(limit)) is not None or levels.tired):
            return urgent
        run = self._ledger.next_free(self._free_from, limit)
        self._free_from = run[0] if run is not None else max(self._free_from, limit)
        return run

    def _freed(self, first: int) -> None:
        self._free_from = min(self._free_from, first)

    def _came_back(self, ranges: Sequence[Range]) -> None:
        """They are in nobody's hands any more. Who is too old of them is not free either."""
        if ranges:
            self._attributed.freed(ranges)
            self._freed(min(ranges)[0])

    def _give(self, subscriber: Subscriber, run: Range | None, limit: int, now: float, bytes_max: int) -> Given | None:
        """From `run` on; None when the first record does not fit beside what it has."""
        number = subscriber.facts.number
        equals = self._turns.equals(number)
        room_bytes = subscriber.room_bytes
        grants: list[Grant] = []
        size = sent = 0
        left = subscriber.room  # with auto-ack its hand stays empty
        while run is not None and min(left, subscriber.room) > 0 and len(grants) < GRANTS_MAX:
            share = -(-(run[1] - run[0]) // equals)
            wanted = run[0] + min(share, left, subscriber.room)
            reach = self._reach(run[0], wanted, max(1, min(room_bytes - size, bytes_max - sent)))
            if reach.first > run[0] and not grants:
                # Behind the watermark nothing was given: a gap is not gone through step by step of it.
                return self._missing(run[0], reach.first if run[1] == limit else min(run[1], reach.first))
            above = size + reach.size > room_bytes and (grants or len(subscriber.hand))
            if reach.first > run[0] or above or (grants and sent + (reach.sent or reach.size) > bytes_max):
                break
            given = self._hand_out(reach, GRANTS_MAX - len(grants))
            grants += given
            size += reach.size
            sent += reach.sent or reach.size
            until = given[-1].next
            left -= until - reach.first
            if not subscriber.facts.auto_ack:
                part = reach.size * (until - reach.first) // (reach.until - reach.first)
                subscriber.give(reach.first, until, part, now)
            # One that shares with others gets a part of the first run alone, so that each has its part of the queue;
            # one whose turn has no bytes left goes on with a whole batch at its next.
            run = self._next_free(limit) if equals == 1 and until == wanted else None
            if run is not None and run[0] < until:
                run = None  # of a lower priority: the grants of a frame rise
        if not grants:
            return None
        self._look_at = min(self._look_at, subscriber.overdue_at)
        self._turns.not_ready(number)
        self._turns.served(number)
        self._look(subscriber)
        settled = self._settle([(each.first, each.next) for each in grants], ACKED)
        return Given(number, tuple(grants), settled if subscriber.facts.auto_ack else None)

    def _lend(self, wish: LeaseWish, end: int) -> Given | None:
        grants: list[Grant] = []
        left = wish.records_max
        while left and len(grants) < GRANTS_MAX and (run := self._next_free(end)) is not None:
            reach = self._reach(run[0], min(run[1], run[0] + left), _NO_LIMIT)
            if reach.first > run[0]:
                if not grants:
                    return self._missing(run[0], min(run[1], reach.first))
                break
            given = self._hand_out(reach, GRANTS_MAX - len(grants))
            left -= given[-1].next - reach.first
            grants += given
        if not grants:
            return None
        del self._wishes[wish.number]
        self._turns.forget(wish.number)
        ranges = sorted((each.first, each.next) for each in grants)
        return Given(wish.number, tuple(grants), self._leased(self._next_lease(), wish.holder, ranges, wish.lease_ms))

    def _missing(self, first: int, until: int) -> Given:
        """Records that are there no more, or never were: a gap that a loss has left, or retention went over them."""
        return Given(0, (), self._settle([(first, until)], EXPIRED))

    def _hand_out(self, reach: Reach, grants_max: int) -> list[Grant]:
        """Take what is reached, as grants in which all records are alike, so many at most."""
        at, grants = reach.first, list[Grant]()
        while at < reach.until and len(grants) < grants_max:
            attempts, end = self._ledger.attempts(at, reach.until)
            again, end = self._was_given(at, end)
            grants.append(Grant(at, end, GRANT_REDELIVERED if attempts or again else 0, attempts))
            at = end
        self._ledger.take(reach.first, at)
        self.front = max(self.front, at)
        return grants

    def _was_given(self, at: int, until: int) -> tuple[bool, int]:
        """Whether the record may have been given before, for all that is not counted; up to where that is so."""
        if at < self._found:
            return True, min(until, self._found)
        there = self._uncounted.within(at, until) if len(self._uncounted) else []
        if not there:
            return False, until
        first, end = there[0]
        return (True, end) if first == at else (False, first)

    # --- inside: whose turn ---

    def _subscriber(self, number: int) -> Subscriber:
        subscriber = self._subscribers.get(number)
        if subscriber is None:
            raise NoSuchSubscription(f"subscription {number} is not there; subscribe again")
        return subscriber

    def _look(self, subscriber: Subscriber) -> None:
        """Whether it can take something now, or is done."""
        number = subscriber.facts.number
        if subscriber.closing and not len(subscriber.hand):
            self._forget(number)
            self._subscribers.pop(number, None)
            self._choose()
            return
        room = subscriber.room if self._active in (None, number) else 0
        if room > 0:
            self._turns.ready(number, subscriber.facts.priority)
        else:
            self._turns.not_ready(number)
        if not subscriber.facts.auto_ack:
            self._room += room - self._rooms.get(number, 0)
            self._rooms[number] = room

    def _forget(self, number: int) -> None:
        self._turns.forget(number)
        self._leaving.pop(number, None)
        self._open.discard(number)
        self._auto_ack.discard(number)
        self._room -= self._rooms.pop(number, 0)

    def _choose(self) -> None:
        """With a single active subscriber: who it is. It stays so until it is gone, its records with it: the next one
        gets none before, so the order of the queue is kept over the change."""
        if not self.rules.single_active or self._active in self._subscribers:
            return
        # The first of those with the highest priority.
        self._active = max(
            self._subscribers, key=lambda number: self._subscribers[number].facts.priority, default=_NOBODY
        )
        for subscriber in list(self._subscribers.values()):
            self._look(subscriber)

    # --- inside: settling ---

    def _in_hand(self, subscriber: Subscriber, pairs: Iterable[Range]) -> list[Range]:
        """What of it the subscriber has; the rest must be settled. Raises NotGranted."""
        found: list[Range] = []
        for first, until in pairs:
            found += subscriber.hand.within(first, until)
            for low, high in subscriber.hand.without(first, until):
                if self._ledger.unsettled(low, high) > self._ledger.departing(low, high):
                    raise NotGranted(
                        f"records {low} to {high} are not in the hands of subscription {subscriber.facts.number}",
                        first=low,
                        next=high,
                    )
        return found

    def _had(self, subscriber: Subscriber, how: int, pairs: Iterable[Range]) -> Iterator[Range]:
        """What of it a word from before can change: what lies free; and a settlement what the same one has again."""
        lies = (State.FREE, State.PARKED) if how in _SETTLING else (State.FREE,)
        for first, until in pairs:
            for low, high, state in self._ledger.runs(first, until):
                if state in lies:
                    yield low, high
                elif state == State.OUT and how in _SETTLING:
                    hands = (each.hand.within(low, high) for each in (subscriber, *self._leaving.values()))
                    yield from sorted(chain(self._attributed.nobodys(low, high), *hands))

    def _settlement(self, number: int, how: int, ranges: Iterable[Range], delay_ms: int) -> Settlement:
        ranges = tuple(_joined(ranges))
        changes: list[Change] = []
        if ranges and how == How.RETURN:
            changes = self._return(ranges, delay_ms)
        elif ranges and how in _SETTLING:
            changes = self._die(ranges, DEAD) if how == How.DEAD else [self._settle(ranges, ACKED)]
        elif ranges and how == How.RELEASE and delay_ms:
            changes = [self._again(ranges, delay_ms, counted=False)]
        records = sum(self._ledger.unsettled(first, until) for first, until in ranges)
        return Settlement(number, how, ranges, tuple(changes), records, delay_ms)

    def _return(self, ranges: Iterable[Range], delay_ms: int) -> list[Change]:
        """The changes that count a return of each; of those that came back too often, that end them."""
        again, dead = self._sort_out(ranges)
        changes = self._die(dead, LIMIT)
        return [*changes, self._again(again, delay_ms, counted=True)] if again else changes

    def _sort_out(self, ranges: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Those that may be given out again, and those that came back too often."""
        limit = self.rules.delivery_limit
        if limit is None:
            return list(ranges), []
        again: list[Range] = []
        dead: list[Range] = []
        for first, until in ranges:
            at = first
            while at < until:
                attempts, end = self._ledger.attempts(at, until)
                (dead if attempts >= limit else again).append((at, end))
                at = end
        return list(_joined(again)), list(_joined(dead))

    def _taken_from(self, those: Iterable[Subscriber], ranges: Iterable[Range]) -> None:
        for subscriber in those:
            for first, until in ranges:
                subscriber.take(first, until)

    def _forget_settled(self, ranges: Sequence[Range]) -> None:
        """They are done."""
        self._attributed.settled(ranges)
        if len(self._uncounted):
            for first, until in ranges:
                self._uncounted.remove(first, until)

    def _returned(self, settlement: Settlement, now: float) -> None:
        """Those that came back too often are among them, and end."""
        ranges: Sequence[Range] = settlement.ranges
        if dead := [each for change in settlement.changes for each in _ended(change)]:
            self._forget_settled(dead)
            ranges = [each for change in settlement.changes for each in _again(change)]
        if settlement.delay_ms:
            self._endings.park(ranges, settlement.delay_ms, now)
        self._came_back(ranges)

    # --- inside: changes ---

    def _die(self, ranges: Sequence[Range], why: str) -> list[Change]:
        """The changes by which records end that nobody has acknowledged. All of them come by here."""
        return list(self._deaths(self.group, list(_joined(ranges)), why))

    def _settle(self, ranges: Iterable[Range], why: str) -> Settled:
        return Settled(group=self.group, ranges=_flat(ranges), why=why)

    def _again(self, ranges: Iterable[Range], delay_ms: int, *, counted: bool) -> Returned:
        return Returned(group=self.group, ranges=_flat(ranges), delay_ms=delay_ms, counted=counted)

    def _leased(self, lease: int, holder: str, ranges: Iterable[Range], lease_ms: int) -> Leased:
        return Leased(group=self.group, lease=lease, holder=holder, ranges=_flat(ranges), lease_ms=lease_ms)


class _Leases:
    """What leases have, for receipts of them: each is looked up once."""

    def __init__(self, ledger: Ledger, attributed: Attributed) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._known: dict[int, RangeSet] = {}

    def of(self, lease: int) -> RangeSet:
        known = self._known.get(lease)
        if known is None:
            known = self._known[lease] = RangeSet()
            _add_all(known, self._ledger.lease_ranges(lease))
        return known

    def ranges(self, receipt: Receipt, *, settles: bool) -> Iterator[Range]:
        """What of it the receipt can change. Raises ReceiptStale when somebody else has some of it."""
        for first, until, state in self._ledger.runs(receipt.first, receipt.until):
            if state in _IDLE:
                if settles:
                    yield first, until
            elif self._ledger.lease_has(receipt.lease, first, until):
                yield first, until
            elif state != State.SETTLED:
                nobodys = sorted(self._attributed.nobodys(first, until)) if state == State.OUT else []
                yield from nobodys if settles else ()
                for low, high in self._others(receipt.lease, first, until, nobodys):
                    raise ReceiptStale(
                        f"lease {receipt.lease} has ended, and records {low} to {high} are somebody else's by now",
                        first=low,
                        next=high,
                    )
                if state == State.LEASED:
                    yield first, until

    def _others(self, lease: int, first: int, until: int, nobodys: Iterable[Range]) -> Iterator[Range]:
        """What of these neither the lease has nor nobody."""
        known = self.of(lease)
        if nobodys:
            known = RangeSet()
            _add_all(known, nobodys)
        return known.without(first, until)


def _pairs(ranges: Sequence[int]) -> list[Range]:
    """Raises BadRequest for ranges that are empty, or not in order."""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    at = 0
    for first, until in pairs:
        if not at <= first < until:
            raise BadRequest(f"ranges rise and hold something each, not {first} to {until} behind {at}")
        at = until
    return pairs


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Neighbours as one."""
    last: Range | None = None
    for each in ranges:
        if last is not None and last[1] == each[0]:
            last = last[0], each[1]
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _flat(ranges: Iterable[Range]) -> list[int]:
    return [border for each in _joined(ranges) for border in each]


def _ended(change: Change) -> list[Range]:
    """The records that end with it."""
    return _pairs(change.ranges) if isinstance(change, Settled | Departing) else []


def _again(change: Change) -> list[Range]:
    """Those that are given out again."""
    return _pairs(change.ranges) if isinstance(change, Returned) else []


def _add_all(ranges: RangeSet, more: Iterable[Range]) -> None:
    for first, until in more:
        ranges.add(first, until)
