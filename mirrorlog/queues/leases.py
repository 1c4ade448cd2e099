"""What holders of leases say of theirs: whoever has a receipt settles or extends, on whichever master. Pure. Ranges are
[first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from mirrorlog.errors import BadRequest, NotGranted, ReceiptStale
from mirrorlog.queues.attributed import Attributed
from mirrorlog.queues.changes import Leased
from mirrorlog.queues.ledger import Ledger, State
from mirrorlog.queues.outcomes import SETTLING, Outcomes, Settlement
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.queues.stretches import add_all
from mirrorlog.queues.subscriber import Range
from mirrorlog.wire.frames import How

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
