"""What subscribers of an acking group say of records that they have, or had, and what becomes of these.

What is asked comes back as a `Settlement`, which counts when its changes were appended. Pure. Ranges are
[first, until), queue offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, NamedTuple

from mirrorlog.errors import BadRequest, NotGranted, ReceiptStale, SettledOtherwise
from mirrorlog.queues.changes import Change, ForwardingStarted, RecordsLeased, Returned, Settled
from mirrorlog.queues.dead_letters.forwarding import DELIVERY_LIMIT, MAXLEN, REDRIVEN, REJECTED
from mirrorlog.queues.dead_letters.forwarding import EXPIRED as EXPIRED_AWAY
from mirrorlog.queues.delivery.deadlines import Endings
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.ready import FreeRecords, Front
from mirrorlog.queues.delivery.subscribers import Rules, Subscriber, Subscribers, taken_from
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.groups.verdicts import UNKNOWN, Verdict
from mirrorlog.queues.ranges import Range, RangeSet, add_all, flat, joined, pairs_of
from mirrorlog.wire.frames import How

# The changes by which records of one acking group are settled, come back, end or are leased. Nothing is done by them
# before they are appended. Pure. Ranges are [first, until), queue offsets.


# How a record of an acking group ends that nobody has acknowledged: the one place by which all of them go.
#
# Rejected (`dead`), come back too often (`limit`), too old (`expired`), too many in the queue (`dropped`): a change
# each that settles them, and says why; or, in a queue with dead letters, one by which they leave for where these go
# (`dead_letters.forwarding`), for every way in which records die. Records that are not there any more, or were purged,
# do not die: nobody can send them anywhere, or wants to.  Pure. Ranges are [first, until), queue offsets, ascending.


DEAD: Final = "dead"
LIMIT: Final = "limit"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"

DEATHS: Final = (DEAD, LIMIT, EXPIRED, DROPPED)
"""Why a record dies: see `Settled`."""


REASONS: Final[Mapping[str, str]] = {DEAD: REJECTED, LIMIT: DELIVERY_LIMIT, EXPIRED: EXPIRED_AWAY, DROPPED: MAXLEN}
"""What a dead letter says of it."""
WHYS: Final[Mapping[str, str]] = {**{reason: why for why, reason in REASONS.items()}, REDRIVEN: REDRIVEN}
"""And back: why a record that has left is settled."""

Deaths = Callable[[str, Sequence[Range], str], Sequence[Change]]
"""`deaths`, or what stands for it in a queue with dead letters."""


def deaths(group: str, ranges: Sequence[Range], why: str) -> list[Change]:
    """The changes by which they die; none for no records. `why`: one of `DEATHS`."""
    flat = [border for each in ranges for border in each]
    return [Settled(group=group, ranges=flat, why=why)] if flat else []


ACKED: Final = "acked"
PURGED: Final = "purged"
GONE: Final = "gone"
"""Why records are settled: see `Settled`."""
CONTRARY_MAX: Final = 1_000
"""Runs that an answer names; of what stands behind them it says that nobody knows."""
ELSEWHERE_MAX: Final = 1_000
"""Runs that an answer names of what somebody else has."""
SETTLING: Final = frozenset({int(How.ACK), int(How.DEAD)})


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is to be done with `ranges`; `records`: how many of them it changes. `number`: of the subscriber that
    had them, 0 for none. `passed_over`: how many of those that were named somebody else has, and `elsewhere` which,
    none of them where they are more than `ELSEWHERE_MAX` runs; `contrary`: which of them are settled as something else,
    at most `CONTRARY_MAX` runs."""

    number: int
    how: int
    ranges: tuple[Range, ...]
    changes: tuple[Change, ...]
    records: int
    delay_ms: int = 0
    passed_over: int = 0
    elsewhere: tuple[Range, ...] = ()
    contrary: tuple[Verdict, ...] = ()

    @property
    def refusal(self) -> SettledOtherwise | None:
        """What whoever has asked for it is told, when that is confirmed which stands."""
        if not self.contrary:
            return None
        return SettledOtherwise.of(self.contrary, passed_over=self.passed_over, elsewhere=self.elsewhere)


class Outcomes:
    """Of one group. `die`: how records end."""

    def __init__(self, group: str, ledger: Ledger, rules: Callable[[], Rules], die: Deaths) -> None:
        self._group = group
        self._ledger = ledger
        self._rules = rules
        self._deaths = die

    def settlement(self, number: int, how: int, ranges: Iterable[Range], delay_ms: int) -> Settlement:
        """`how`: see `How`."""
        ranges = tuple(ranges)
        if len(ranges) > 1:
            ranges = tuple(joined(ranges))
        changes: list[Change] = []
        if ranges and how == How.RETURN:
            changes = self.come_back(ranges, delay_ms)
        elif ranges and how in SETTLING:
            changes = self.die(ranges, DEAD) if how == How.DEAD else [self.settle(ranges, ACKED)]
        elif ranges and how == How.RELEASE and delay_ms:
            changes = [self.again(ranges, delay_ms, counted=False)]
        records = 0
        for first, until in ranges:
            records += self._ledger.unsettled(first, until)
        return Settlement(number, how, ranges, tuple(changes), records, delay_ms)

    def contrary(self, how: int, ranges: Sequence[Range]) -> tuple[Verdict, ...]:
        """What of these is settled already, or leaves, and stands as something else than `how` makes of records.
        Nothing for what settles none."""
        if how not in SETTLING or not ranges:
            return ()
        found = self._contrary(DEAD if how == How.DEAD else ACKED, ranges)
        named = tuple(islice(found, CONTRARY_MAX))
        more = next(found, None)
        return named if more is None else (*named, Verdict(more.first, ranges[-1][1], UNKNOWN))

    def _contrary(self, own: str, ranges: Iterable[Range]) -> Iterator[Verdict]:
        ledger = self._ledger
        for first, until in ranges:
            for low, high, state in ledger.runs(first, until):
                if state == State.SETTLED:
                    yield from (each for each in ledger.verdicts.parts(low, high) if each.stands != own)
                elif state == State.LEASED and own == ACKED:
                    yield from (Verdict(*each, DEAD) for each in ledger.forwarding_within(low, high))

    def elsewhere(self, pairs: Sequence[Range], settled: Sequence[Range]) -> tuple[Range, ...]:
        """What of `pairs` is neither settled nor leaves, without `settled`, which are about to be."""
        found = self._elsewhere(pairs, settled)
        named = tuple(islice(found, ELSEWHERE_MAX))
        return () if next(found, None) is not None else named

    def _elsewhere(self, pairs: Sequence[Range], settled: Sequence[Range]) -> Iterator[Range]:
        ledger, done = self._ledger, RangeSet()
        add_all(done, settled)
        for first, until in pairs:
            add_all(done, ledger.forwarding_within(first, until))
            for low, high, state in ledger.runs(first, until):
                if state != State.SETTLED:
                    yield from done.without(low, high)

    def come_back(self, ranges: Iterable[Range], delay_ms: int) -> list[Change]:
        """The changes that count a return of each; of those that came back too often, that end them."""
        again, dead = self._sort_out(ranges)
        changes = self.die(dead, LIMIT)
        return [*changes, self.again(again, delay_ms, counted=True)] if again else changes

    def die(self, ranges: Sequence[Range], why: str) -> list[Change]:
        """The changes by which records end that nobody has acknowledged. All of them come by here."""
        return list(self._deaths(self._group, list(joined(ranges)), why))

    def settle(self, ranges: Iterable[Range], why: str) -> Settled:
        return Settled(group=self._group, ranges=flat(ranges), why=why)

    def again(self, ranges: Iterable[Range], delay_ms: int, *, counted: bool) -> Returned:
        return Returned(group=self._group, ranges=flat(ranges), delay_ms=delay_ms, counted=counted)

    def lease(self, lease: int, holder: str, ranges: Iterable[Range], lease_ms: int) -> RecordsLeased:
        return RecordsLeased(group=self._group, lease=lease, holder=holder, ranges=flat(ranges), lease_ms=lease_ms)

    def _sort_out(self, ranges: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Those that may be given out again, and those that came back too often."""
        limit = self._rules().delivery_limit
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
        return list(joined(again)), list(joined(dead))


def ended(change: Change) -> list[Range]:
    """The records that end with it."""
    return pairs_of(change.ranges) if isinstance(change, Settled | ForwardingStarted) else []


def returned_of(change: Change) -> list[Range]:
    """Those that are given out again by it."""
    return pairs_of(change.ranges) if isinstance(change, Returned) else []


# What holders of leases say of theirs: whoever has a receipt settles or extends, on whichever master. Pure. Ranges are
# [first, until), queue offsets.


EPOCH_BITS: Final = 32
"""A lease's number is epoch << EPOCH_BITS | count."""
_IDLE: Final = (State.FREE, State.PARKED)


class LeaseClaim(NamedTuple):
    """Records [first, until) that were given under a lease."""

    first: int
    until: int
    lease: int


class LeaseSettlement:
    """Of one group."""

    def __init__(self, ledger: Ledger, attributed: Attributed, outcomes: Outcomes) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._outcomes = outcomes

    def settle(self, receipts: Iterable[LeaseClaim], how: int, delay_ms: int = 0, *, end: int) -> Settlement:
        """A receipt of a lease that has ended acks what nobody has, and returns nothing. `end`: where what is confirmed
        ends. Raises BadRequest, or ReceiptStale; then nothing of it counts, nor does it when some of it is `contrary`
        to what stands."""
        if how == How.EXTEND:
            raise BadRequest("a lease is extended by ExtendLease")
        leased = _Leased(self._ledger, self._attributed)
        found = RangeSet()
        for receipt in receipts:
            self._check(receipt, end)
            add_all(found, leased.ranges(receipt, settles=how in SETTLING))
        if contrary := self._outcomes.contrary(how, leased.settled):
            return Settlement(0, how, (), (), 0, contrary=contrary)
        settlement = self._outcomes.settlement(0, how, tuple(found.runs()), delay_ms)
        if how == How.RELEASE and not settlement.changes and settlement.ranges:
            # What is leased is free again by a change alone.
            return replace(settlement, changes=(self._outcomes.again(settlement.ranges, 0, counted=False),))
        return settlement

    def extend(self, receipts: Iterable[LeaseClaim], lease_ms: int) -> list[RecordsLeased]:
        """A lease begins anew as a whole, whichever of its receipts says so. Raises NotGranted when one has ended."""
        leased, extended = _Leased(self._ledger, self._attributed), dict[int, Range]()
        for receipt in receipts:
            of_it = (receipt.first, receipt.until)
            if not receipt.lease >> EPOCH_BITS or any(leased.of(receipt.lease).without(*of_it)):
                raise NotGranted(
                    f"lease {receipt.lease} of records {receipt.first} to {receipt.until} has ended",
                    first=receipt.first,
                    next=receipt.until,
                )
            extended[receipt.lease] = of_it
        holders = {lease: self._ledger.leases[lease].holder for lease in extended}
        return [self._outcomes.lease(lease, holders[lease], [of_it], lease_ms) for lease, of_it in extended.items()]

    def _check(self, receipt: LeaseClaim, end: int) -> None:
        if not 0 <= receipt.first < receipt.until <= end:
            raise BadRequest(f"records {receipt.first} to {receipt.until} were never leased")
        if not receipt.lease >> EPOCH_BITS:
            raise BadRequest(f"lease {receipt.lease} is none")
        if receipt.lease < self._ledger.void:
            raise ReceiptStale(
                f"the group was reset since lease {receipt.lease} was given", first=receipt.first, next=receipt.until
            )


class _Leased:
    """What leases have, for receipts of them: each is looked up once. `settled`: what receipts named and is done."""

    def __init__(self, ledger: Ledger, attributed: Attributed) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._known: dict[int, RangeSet] = {}
        self.settled: list[Range] = []

    def of(self, lease: int) -> RangeSet:
        known = self._known.get(lease)
        if known is None:
            known = self._known[lease] = RangeSet()
            add_all(known, self._ledger.lease_ranges(lease))
        return known

    def ranges(self, receipt: LeaseClaim, *, settles: bool) -> Iterator[Range]:
        """What of it the receipt can change. Raises ReceiptStale when somebody else has some of it."""
        for first, until, state in self._ledger.runs(receipt.first, receipt.until):
            if state in _IDLE:
                if settles:
                    yield first, until
            elif state == State.SETTLED:
                self.settled.append((first, until))
            elif self._ledger.lease_has(receipt.lease, first, until):
                yield first, until
            elif state == State.OUT:
                nobodys = sorted(self._attributed.nobodys(first, until))
                yield from nobodys if settles else ()
                _check_others(receipt.lease, first, until, but=nobodys)
            else:
                yield from self._leased(receipt.lease, first, until)

    def _leased(self, lease: int, first: int, until: int) -> Iterator[Range]:
        """What the lease has of leased records. What leaves among them is done."""
        leaves = list(self._ledger.forwarding_within(first, until))
        self.settled += leaves
        own = self.of(lease).within(first, until)
        _check_others(lease, first, until, but=[*own, *leaves])
        yield from own


def _check_others(lease: int, first: int, until: int, *, but: Iterable[Range]) -> None:
    """Raises ReceiptStale when somebody has some of these, `but` those."""
    known = RangeSet()
    add_all(known, but)
    for low, high in known.without(first, until):
        raise ReceiptStale(
            f"lease {lease} has ended, and records {low} to {high} are somebody else's by now", first=low, next=high
        )


class SubscriberSettlement:
    """Of one group. `epoch`: of the mastership."""

    def __init__(
        self,
        ledger: Ledger,
        attributed: Attributed,
        endings: Endings,
        *,
        subscribers: Subscribers,
        free: FreeRecords,
        front: Front,
        outcomes: Outcomes,
        epoch: int,
    ) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._endings = endings
        self._subscribers = subscribers
        self._free = free
        self._front = front
        self._outcomes = outcomes
        self._epoch = epoch

    def settle(
        self, number: int, epoch: int, how: int, ranges: Sequence[int], delay_ms: int = 0, *, again: bool = False
    ) -> Settlement:
        """What a subscriber says of records that it has, or had; `how`: see `How`; `ranges`: flat. Of what it had in an
        older epoch, or (`again`) on a connection that was lost, only that counts which nobody else has by now. What is
        settled already stays as it is, and `contrary` says of which that is another word. Raises BadRequest, NotGranted
        or NoSuchSubscription; then nothing of it counts."""
        subscriber = self._subscribers.find(number)
        pairs = self.delivered(ranges)
        if epoch > self._epoch:
            raise NotGranted(f"epoch {epoch} has not begun for this node, which knows {self._epoch}; subscribe again")
        if epoch < self._ledger.void >> EPOCH_BITS:
            raise NotGranted(f"the group was reset since epoch {epoch}: what was given out before is nobody's any more")
        if epoch == self._epoch and not again:
            found, settled = self._unacked_of(subscriber, pairs)
            settlement = self._outcomes.settlement(number, how, found, delay_ms)
            return replace(settlement, contrary=self._outcomes.contrary(how, settled)) if settled else settlement
        given = max(self._front.found, self._ledger.floor, self._front.given if epoch == self._epoch else 0)
        for first, until in pairs:
            if until > given:
                raise NotGranted(
                    f"records {first} to {until} were not given out in epoch {epoch}", first=first, next=until
                )
        return self._from_before(subscriber, how, pairs, delay_ms)

    def delivered(self, ranges: Sequence[int]) -> list[Range]:
        """What somebody says that he has, flat, as ranges. Raises BadRequest or NotGranted."""
        pairs = pairs_of(ranges)
        if pairs and pairs[-1][1] > self._front.end:
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
        had = self._subscribers.leaving if subscriber is None else (subscriber, *self._subscribers.leaving)
        taken_from(had, ranges)
        if how in SETTLING:
            self.done(ranges)
        elif how == How.RELEASE:
            for first, until in ranges:
                self._ledger.give_back(first, until)
        if how in (How.RETURN, How.RELEASE):
            self._returned(settlement, now)
        if subscriber is not None:
            self._subscribers.look(subscriber)

    def done(self, ranges: Sequence[Range]) -> None:
        """They are settled, or leave."""
        if not self._attributed.plain:
            self._attributed.settled(ranges)
        self._front.settled(ranges)
        if self._free.keys.on:
            self._free.came_back(self._free.keys.settled(ranges))

    # --- inside ---

    def _from_before(self, subscriber: Subscriber, how: int, pairs: Sequence[Range], delay_ms: int) -> Settlement:
        # A return was counted when the connection went, or is in the log of the master before; and if it is nowhere,
        # the record is free all the same. To count it here might be to count it twice.
        number, counts = subscriber.facts.number, how in SETTLING
        had = self._had(subscriber, how, pairs) if counts else ()
        settlement = self._outcomes.settlement(number, how, had, delay_ms)
        if not counts:
            return settlement
        ledger = self._ledger
        left = sum(ledger.unsettled(first, until) - ledger.forwarding(first, until) for first, until in pairs)
        passed_over = left - settlement.records
        return replace(
            settlement,
            passed_over=passed_over,
            elsewhere=self._outcomes.elsewhere(pairs, settlement.ranges) if passed_over else (),
            contrary=self._outcomes.contrary(how, pairs),
        )

    def _unacked_of(self, subscriber: Subscriber, pairs: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """What of it the subscriber has; and the rest, which must be settled. Raises NotGranted."""
        found: list[Range] = []
        settled: list[Range] = []
        for first, until in pairs:
            there = subscriber.unacked.within(first, until)
            found += there
            if there == [(first, until)]:
                continue
            for low, high in subscriber.unacked.without(first, until):
                if self._ledger.unsettled(low, high) > self._ledger.forwarding(low, high):
                    raise NotGranted(
                        f"records {low} to {high} are not in the hands of subscription {subscriber.facts.number}",
                        first=low,
                        next=high,
                    )
                settled.append((low, high))
        return found, settled

    def _had(self, subscriber: Subscriber, how: int, pairs: Iterable[Range]) -> Iterator[Range]:
        """What of it a word from before can change: what lies free; and a settlement what the same one has again."""
        lies = (State.FREE, State.PARKED) if how in SETTLING else (State.FREE,)
        for first, until in pairs:
            for low, high, state in self._ledger.runs(first, until):
                if state in lies:
                    yield low, high
                elif state == State.OUT and how in SETTLING:
                    held = (each.unacked.within(low, high) for each in (subscriber, *self._subscribers.leaving))
                    yield from sorted(chain(self._attributed.nobodys(low, high), *held))

    def _returned(self, settlement: Settlement, now: float) -> None:
        """Those that came back too often are among them, and end."""
        ranges: Sequence[Range] = settlement.ranges
        if dead := [each for change in settlement.changes for each in ended(change)]:
            self.done(dead)
            ranges = [each for change in settlement.changes for each in returned_of(change)]
        if settlement.delay_ms:
            self._endings.park(ranges, settlement.delay_ms, now)
        self._free.came_back(ranges)
