"""The changes by which records of one acking group are settled, come back, end or are leased. Nothing is done by them
before they are appended. Pure. Ranges are [first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mirrorlog.errors import SettledOtherwise
from mirrorlog.queues.changes import Change, Leased, Returned, Settled
from mirrorlog.queues.dead_letters.forwarding import DELIVERY_LIMIT, MAXLEN, REDRIVEN, REJECTED
from mirrorlog.queues.dead_letters.forwarding import EXPIRED as EXPIRED_AWAY
from mirrorlog.queues.delivery.rules import Rules
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.groups.verdicts import UNKNOWN, Standing
from mirrorlog.queues.ranges import Range, RangeSet
from mirrorlog.queues.stretches import add_all, flat, joined
from mirrorlog.wire.frames import How

# How a record of an acking group ends that nobody has acknowledged: the one place by which all of them go.
#
# Rejected (`dead`), come back too often (`limit`), too old (`expired`), too many in the queue (`dropped`): a change
# each that settles them, and says why; or, in a queue with dead letters, one by which they leave for where these go
# (`queues.departures`), for every way in which records die. Records that are not there any more, or were purged, do
# not die: nobody can send them anywhere, or wants to.
#
# Pure. Ranges are [first, until), queue offsets, ascending.


DEAD: Final = "dead"
LIMIT: Final = "limit"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"

DEATHS: Final = (DEAD, LIMIT, EXPIRED, DROPPED)
"""Why a record dies: see `Settled`."""


REASONS: Final[Mapping[str, str]] = {
    DEAD: REJECTED,
    LIMIT: DELIVERY_LIMIT,
    EXPIRED: EXPIRED_AWAY,
    DROPPED: MAXLEN,
}
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
    """What is to be done with `ranges`; `records`: how many of them it changes. `number`: whose hand they leave, 0 for
    nobody's. `passed_over`: how many of those that were named somebody else has, and `elsewhere` which, none of them
    where they are more than `ELSEWHERE_MAX` runs; `contrary`: which of them are settled as something else, at most
    `CONTRARY_MAX` runs."""

    number: int
    how: int
    ranges: tuple[Range, ...]
    changes: tuple[Change, ...]
    records: int
    delay_ms: int = 0
    passed_over: int = 0
    elsewhere: tuple[Range, ...] = ()
    contrary: tuple[Standing, ...] = ()

    @property
    def refusal(self) -> SettledOtherwise | None:
        """What whoever has asked for it is told, when that is confirmed which stands."""
        if not self.contrary:
            return None
        return SettledOtherwise.of(self.contrary, passed_over=self.passed_over, elsewhere=self.elsewhere)


class Outcomes:
    """Of one group. `die`: how records end."""

    def __init__(self, group: str, ledger: Ledger, rules: Rules, die: Deaths) -> None:
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

    def contrary(self, how: int, ranges: Sequence[Range]) -> tuple[Standing, ...]:
        """What of these is settled already, or leaves, and stands as something else than `how` makes of records.
        Nothing for what settles none."""
        if how not in SETTLING or not ranges:
            return ()
        found = self._contrary(DEAD if how == How.DEAD else ACKED, ranges)
        named = tuple(islice(found, CONTRARY_MAX))
        more = next(found, None)
        return named if more is None else (*named, Standing(more.first, ranges[-1][1], UNKNOWN))

    def _contrary(self, own: str, ranges: Iterable[Range]) -> Iterator[Standing]:
        ledger = self._ledger
        for first, until in ranges:
            for low, high, state in ledger.runs(first, until):
                if state == State.SETTLED:
                    yield from (each for each in ledger.verdicts.parts(low, high) if each.stands != own)
                elif state == State.LEASED and own == ACKED:
                    yield from (Standing(*each, DEAD) for each in ledger.departing_within(low, high))

    def elsewhere(self, pairs: Sequence[Range], settled: Sequence[Range]) -> tuple[Range, ...]:
        """What of `pairs` is neither settled nor leaves, without `settled`, which are about to be."""
        found = self._elsewhere(pairs, settled)
        named = tuple(islice(found, ELSEWHERE_MAX))
        return () if next(found, None) is not None else named

    def _elsewhere(self, pairs: Sequence[Range], settled: Sequence[Range]) -> Iterator[Range]:
        ledger, done = self._ledger, RangeSet()
        add_all(done, settled)
        for first, until in pairs:
            add_all(done, ledger.departing_within(first, until))
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

    def lease(self, lease: int, holder: str, ranges: Iterable[Range], lease_ms: int) -> Leased:
        return Leased(group=self._group, lease=lease, holder=holder, ranges=flat(ranges), lease_ms=lease_ms)

    def _sort_out(self, ranges: Iterable[Range]) -> tuple[list[Range], list[Range]]:
        """Those that may be given out again, and those that came back too often."""
        limit = self._rules.delivery_limit
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
