"""What subscribers of an acking group say of records that they have, or had, and what becomes of these.

What is asked comes back as a `Settlement`, which counts when its changes were appended. Pure. Ranges are
[first, until), queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, islice
from typing import Final, NamedTuple

from mirrorlog.errors import BadRequest, NotGranted, ReceiptStale
from mirrorlog.queues.changes import Leased, Settled
from mirrorlog.queues.delivery.deadlines import Endings
from mirrorlog.queues.delivery.outcomes import GONE, PURGED, SETTLING, Outcomes, Settlement
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.ready import RANGES_AT_ONCE, FreeRecords, Front
from mirrorlog.queues.delivery.subscribers import Subscriber, Subscribers, taken_from
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.ranges import Range, RangeSet
from mirrorlog.queues.stretches import add_all, ended, given_again, pairs_of
from mirrorlog.wire.frames import How

# What holders of leases say of theirs: whoever has a receipt settles or extends, on whichever master. Pure. Ranges are
# [first, until), queue offsets.


EPOCH_BITS: Final = 32
"""A lease's number is epoch << EPOCH_BITS | count."""
_IDLE: Final = (State.FREE, State.PARKED)


class Receipt(NamedTuple):
    """Records [first, until) that were given under a lease."""

    first: int
    until: int
    lease: int


class Leases:
    """Of one group."""

    def __init__(self, ledger: Ledger, attributed: Attributed, outcomes: Outcomes) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._outcomes = outcomes

    def settle(self, receipts: Iterable[Receipt], how: int, delay_ms: int, *, end: int) -> Settlement:
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

    def extend(self, receipts: Iterable[Receipt], lease_ms: int) -> list[Leased]:
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

    def _check(self, receipt: Receipt, end: int) -> None:
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

    def ranges(self, receipt: Receipt, *, settles: bool) -> Iterator[Range]:
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
        leaves = list(self._ledger.departing_within(first, until))
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


class Settling:
    """Of one group. `epoch`: of the mastership."""

    def __init__(
        self,
        ledger: Ledger,
        attributed: Attributed,
        endings: Endings,
        *,
        takers: Subscribers,
        free: FreeRecords,
        front: Front,
        outcomes: Outcomes,
        epoch: int,
    ) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._endings = endings
        self._takers = takers
        self._free = free
        self._front = front
        self._outcomes = outcomes
        self._epoch = epoch

    def settle(
        self, number: int, epoch: int, how: int, ranges: Sequence[int], delay_ms: int, *, again: bool
    ) -> Settlement:
        """Of what the subscriber had in an older epoch, or (`again`) on a connection that was lost, only that counts
        which nobody else has by now. What is settled already stays as it is, and `contrary` says of which that is
        another word. Raises BadRequest, NotGranted or NoSuchSubscription; then nothing of it counts."""
        subscriber = self._takers.find(number)
        pairs = self.given(ranges)
        if epoch > self._epoch:
            raise NotGranted(f"epoch {epoch} has not begun for this node, which knows {self._epoch}; subscribe again")
        if epoch < self._ledger.void >> EPOCH_BITS:
            raise NotGranted(f"the group was reset since epoch {epoch}: what was given out before is nobody's any more")
        if epoch == self._epoch and not again:
            found, settled = self._in_hand(subscriber, pairs)
            settlement = self._outcomes.settlement(number, how, found, delay_ms)
            return replace(settlement, contrary=self._outcomes.contrary(how, settled)) if settled else settlement
        given = max(self._front.found, self._ledger.floor, self._front.given if epoch == self._epoch else 0)
        for first, until in pairs:
            if until > given:
                raise NotGranted(
                    f"records {first} to {until} were not given out in epoch {epoch}", first=first, next=until
                )
        return self._from_before(subscriber, how, pairs, delay_ms)

    def given(self, ranges: Sequence[int]) -> list[Range]:
        """What somebody says that he has, flat, as ranges. Raises BadRequest or NotGranted."""
        pairs = pairs_of(ranges)
        if pairs and pairs[-1][1] > self._front.end:
            first, until = pairs[-1]
            raise NotGranted(f"records {first} to {until} were not given out", first=first, next=until)
        return pairs

    def settled(self, settlement: Settlement, now: float) -> None:
        """The changes of a settlement are appended."""
        how, ranges = settlement.how, settlement.ranges
        subscriber = self._takers.get(settlement.number)
        if how == How.EXTEND:
            if subscriber is not None:
                subscriber.extend(ranges, now)
            return
        taken_from(self._takers.leaving if subscriber is None else (subscriber, *self._takers.leaving), ranges)
        if how in SETTLING:
            self.done(ranges)
        elif how == How.RELEASE:
            for first, until in ranges:
                self._ledger.give_back(first, until)
        if how in (How.RETURN, How.RELEASE):
            self._returned(settlement, now)
        if subscriber is not None:
            self._takers.look(subscriber)

    def done(self, ranges: Sequence[Range]) -> None:
        """They are settled, or leave."""
        if not self._attributed.plain:
            self._attributed.settled(ranges)
        self._front.settled(ranges)

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
        left = sum(ledger.unsettled(first, until) - ledger.departing(first, until) for first, until in pairs)
        passed_over = left - settlement.records
        return replace(
            settlement,
            passed_over=passed_over,
            elsewhere=self._outcomes.elsewhere(pairs, settlement.ranges) if passed_over else (),
            contrary=self._outcomes.contrary(how, pairs),
        )

    def _in_hand(self, subscriber: Subscriber, pairs: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """What of it the subscriber has; and the rest, which must be settled. Raises NotGranted."""
        found: list[Range] = []
        settled: list[Range] = []
        for first, until in pairs:
            there = subscriber.hand.within(first, until)
            found += there
            if there == [(first, until)]:
                continue
            for low, high in subscriber.hand.without(first, until):
                if self._ledger.unsettled(low, high) > self._ledger.departing(low, high):
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
                    hands = (each.hand.within(low, high) for each in (subscriber, *self._takers.leaving))
                    yield from sorted(chain(self._attributed.nobodys(low, high), *hands))

    def _returned(self, settlement: Settlement, now: float) -> None:
        """Those that came back too often are among them, and end."""
        ranges: Sequence[Range] = settlement.ranges
        if dead := [each for change in settlement.changes for each in ended(change)]:
            self.done(dead)
            ranges = [each for change in settlement.changes for each in given_again(change)]
        if settlement.delay_ms:
            self._endings.park(ranges, settlement.delay_ms, now)
        self._free.came_back(ranges)


# Records of one acking group that end, or leave, though nobody who had them said so: a purge, what is not there any
# more, what others settled. Pure. Ranges are [first, until), queue offsets.


_WINDOW: Final = 65_536


class Clearing:
    """Of one group."""

    def __init__(
        self, ledger: Ledger, attributed: Attributed, *, takers: Subscribers, outcomes: Outcomes, settling: Settling
    ) -> None:
        self._ledger = ledger
        self._attributed = attributed
        self._takers = takers
        self._outcomes = outcomes
        self._settling = settling

    def purge(self, end: int, since: int) -> Settled | None:
        """Settles what stands below `end` and is in nobody's hands, from `since` on, some thousand ranges; None when
        there is nothing more."""
        since = max(since, self._ledger.floor)
        ranges = list(islice(merge(self._ledger.idle_runs(since, end), self._nobodys(since, end)), RANGES_AT_ONCE))
        return self._outcomes.settle(ranges, PURGED) if ranges else None

    def purge_done(self, change: Settled) -> None:
        """It is appended."""
        self._settling.done(pairs_of(change.ranges))

    def missing(self, begin: int, gap: Range) -> Settled | None:
        """Settles what is not there any more, in whosever hands it is: what stands below `begin`, where the queue
        begins now, or in the `gap` that a loss left; None when there is nothing."""
        floor = self._ledger.floor
        low, high = max(floor, begin, gap[0]), gap[1]
        ranges = [(floor, begin)] if floor < begin else []
        if low < high and self._ledger.unsettled(low, high):
            ranges.append((low, high))
        return self._outcomes.settle(ranges, GONE) if ranges else None

    def missing_done(self, change: Settled) -> None:
        """It is appended: nobody has these in hand any more."""
        ranges = pairs_of(change.ranges)
        self._settling.done(ranges)
        self._takers.take(ranges)

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
