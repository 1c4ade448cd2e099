"""What subscribers of an acking group say of records that they have, or had, and what becomes of these.

What is asked comes back as a `Settlement`, which counts when its changes were appended. Pure. Ranges are
[first, until), queue offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from mirrorlog.errors import NotGranted
from mirrorlog.queues.attributed import Attributed
from mirrorlog.queues.endings import Endings
from mirrorlog.queues.free_records import FreeRecords
from mirrorlog.queues.front import Front
from mirrorlog.queues.leases import EPOCH_BITS
from mirrorlog.queues.ledger import Ledger, State
from mirrorlog.queues.outcomes import SETTLING, Outcomes, Settlement
from mirrorlog.queues.stretches import ended, given_again, pairs_of
from mirrorlog.queues.subscriber import Range, Subscriber
from mirrorlog.queues.takers import Takers, taken_from
from mirrorlog.wire.frames import How


class Settling:
    """Of one group. `epoch`: of the mastership."""

    def __init__(
        self,
        ledger: Ledger,
        attributed: Attributed,
        endings: Endings,
        *,
        takers: Takers,
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
        taken_from([*((subscriber,) if subscriber is not None else ()), *self._takers.leaving], ranges)
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
            found += subscriber.hand.within(first, until)
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
