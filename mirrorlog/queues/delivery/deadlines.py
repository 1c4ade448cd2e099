"""When the delays and leases of one acking group end on its master.

A delay ends in a step of 20 ms, late rather than early, with all others of that step; a lease at its own moment, which
an extension puts off. All moments stand in one heap. What they were said for may be settled or extended long before
they come: then they mean nothing any more, and as soon as most of them are so, the heap is made anew. So a lease of
twelve hours that is settled after a second, or extended a thousand times, is no more than one that runs.

What waits when a mastership begins, perhaps a million leases, is read from the ledger in parts, with each `due`, and
waits from then on: its time begins anew in any case.

Pure: `now` in, s of one monotonic clock; ranges out. What has come is asked with `due`, some thousand ranges at a time,
and taken for done with `done`, when its change was appended; otherwise it comes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from mirrorlog.queues.dead_letters.forwarding import NUMBERS
from mirrorlog.queues.groups.ledger import Ledger, State
from mirrorlog.queues.ranges import Range, RangeSet

PARK_S: Final = 0.02
READ_AT_ONCE: Final = 4096
"""Leases, and ranges that wait with a delay, that are read from the ledger at once."""
_SPARE: Final = 64


class _Moment(NamedTuple):
    """`key`: the lease, or the step of what is parked."""

    at: float
    is_lease: bool
    key: int


class _Ended(NamedTuple):
    """What has come of a moment; `whole`: all of it."""

    moment: _Moment
    ranges: list[Range]
    whole: bool


class Endings:
    """Of one group; what waits in the ledger begins anew, in full."""

    def __init__(self, ledger: Ledger, now: float) -> None:
        self._ledger = ledger
        self._parked: dict[int, RangeSet] = {}
        self._leases: dict[int, float] = {}
        self._moments: list[_Moment] = []
        self._ended: list[_Ended] = []
        # Of what waited before: leases that were not read, the others are forwardings, and end by what becomes of them;
        # and from where on what is parked was not, None: nowhere.
        self._unread = [lease for lease in ledger.leases if lease >= NUMBERS]
        self._read_from: int | None = 0
        self._read(now)

    def __len__(self) -> int:
        """How many moments are kept."""
        return len(self._moments)

    @property
    def idle(self) -> bool:
        return not self._ledger.parked and all(lease < NUMBERS for lease in self._ledger.leases)

    @property
    def next_at(self) -> float:
        """When there is something to ask of `due`; perhaps a little earlier."""
        if self._ended or self._unread or self._read_from is not None:
            return -math.inf
        return self._moments[0].at if self._moments else math.inf

    def ends_at(self, lease: int) -> float | None:
        """When a lease ends, s; None of one that is not read yet."""
        return self._leases.get(lease)

    def park(self, ranges: Iterable[Range], delay_ms: int, now: float) -> None:
        """They wait from now on."""
        step = math.ceil((now + delay_ms / 1000) / PARK_S)
        parked = self._parked.get(step)
        if parked is None:
            parked = self._parked[step] = RangeSet()
            heappush(self._moments, _Moment(step * PARK_S, False, step))
        for first, until in ranges:
            parked.add(first, until)

    def began(self, lease: int, lease_ms: int, now: float) -> None:
        """It was given or extended: it ends `lease_ms` from now."""
        at = now + lease_ms / 1000
        if self._leases.get(lease) != at:
            self._add(lease, at)
        # What was settled or extended meanwhile is no moment any more.
        if len(self._moments) > 2 * (len(self._ledger.leases) + len(self._parked)) + _SPARE:
            self._put_back()
            self._sweep(lease)

    def due(self, now: float, ranges_max: int) -> tuple[list[Range], list[Range]]:
        """What is parked and what is leased, and has waited for long enough; not in order."""
        self._read(now)
        self._put_back()
        parked: list[Range] = []
        leased: list[Range] = []
        while self._moments and self._moments[0].at <= now and ranges_max > 0:
            moment = heappop(self._moments)
            there = list(islice(self._of(moment), ranges_max + 1))
            ended = _Ended(moment, there[:ranges_max], len(there) <= ranges_max)
            self._ended.append(ended)
            if moment.is_lease:
                leased += ended.ranges
            else:
                parked += [run for each in ended.ranges for run in self._still_parked(each)]
            ranges_max -= len(ended.ranges) + 1
        return parked, leased

    def done(self) -> None:
        """What `due` gave is appended, all of it."""
        ended, self._ended = self._ended, []
        for moment, ranges, whole in ended:
            if not whole:
                heappush(self._moments, moment)
            if moment.is_lease:
                if whole and self._leases.get(moment.key) == moment.at:
                    del self._leases[moment.key]
                continue
            parked = self._parked[moment.key]
            for first, until in ranges:
                parked.remove(first, until)
            if whole:
                del self._parked[moment.key]

    # --- inside ---

    def _read(self, now: float) -> None:
        """The next part of what waited before."""
        if self._read_from is not None:
            rows = list(islice(self._ledger.parked_rows(self._read_from), READ_AT_ONCE))
            for row in rows:
                self.park([(row.first, row.until)], row.delay_ms, now)
            self._read_from = rows[-1].until if len(rows) == READ_AT_ONCE else None
        part = self._unread[-READ_AT_ONCE:]
        del self._unread[-READ_AT_ONCE:]
        for lease in part:
            held = self._ledger.leases.get(lease)
            if held is not None and lease not in self._leases:
                self._add(lease, now + held.lease_ms / 1000)

    def _add(self, lease: int, at: float) -> None:
        self._leases[lease] = at
        heappush(self._moments, _Moment(at, True, lease))

    def _of(self, moment: _Moment) -> Iterator[Range]:
        if not moment.is_lease:
            return iter(self._parked.get(moment.key, ()))
        return self._ledger.lease_ranges(moment.key) if self._leases.get(moment.key) == moment.at else iter(())

    def _still_parked(self, run: Range) -> Iterator[Range]:
        return ((first, until) for first, until, state in self._ledger.runs(*run) if state == State.PARKED)

    def _put_back(self) -> None:
        for ended in self._ended:
            heappush(self._moments, ended.moment)
        self._ended.clear()

    def _sweep(self, begun: int) -> None:
        """`begun`: a lease whose change is perhaps not followed yet."""
        leases = self._ledger.leases
        self._leases = {lease: at for lease, at in self._leases.items() if lease in leases or lease == begun}
        self._moments = [
            *(_Moment(at, True, lease) for lease, at in self._leases.items()),
            *(_Moment(step * PARK_S, False, step) for step in self._parked),
        ]
        heapify(self._moments)
