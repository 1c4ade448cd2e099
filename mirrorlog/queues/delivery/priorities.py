"""What the attributes of batches mean to one acking group on its master: which records wait for their time, which are
of no use any more, and which come before others (decision 0036).

Runs (`queues.runs`) are *met* in the order of the queue, once, as the queue is confirmed. A record that is free and
whose time has not come is *held back*: OUT in the ledger, and with no subscriber, so the one search for what is free
passes over it as over any record that somebody has. A record whose time to live is over is *old*: from then on it is
given to nobody. It is taken just so when it lies free, or waits, to be settled as expired by a logged change; one that
somebody has may still be settled by him, and is looked at again when it comes back. What has a priority above the
lowest, and may be free, is known by its level; what is in none is found by the ledger alone.

A look does a bounded part of what there is to do: so many runs are met, so many stretches come to their time, or come
back, some thousand records of a run at a time. While it is `behind`, nothing is given out that was not looked at.

All of it is this master's memory and follows from the log: another one meets the same runs. A group that has met no
run keeps nothing.

Pure: runs and `now_us` in, µs UTC on the clock of the log's append times. Ranges are [first, until), queue offsets.
Rejected: held records as a state of its own in the ledger (no copy but the master's would ever have it); a search
through the waiting runs for each grant (there may be a million before the first record that is free).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from mirrorlog.queues.delivery.keys import KeyOrder
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, Ledger, State
from mirrorlog.queues.limits.attributes import QueueRuns, RunRow
from mirrorlog.queues.ranges import Range, RangeSet

# Moments: when something comes to which stretch of a queue.
#
# A stretch that grows, as the newest run of a queue does, is one moment however many pieces it came in: the one that
# was told last stands apart and is made longer. What is settled long before its time comes lies here until then, but
# for what `sweep` and `forget` find: the first one takes what is below a floor, and only when there is twice as much
# as it left the last time; so to add one costs the same however many there are.
#
# Pure. Times in µs UTC, queue offsets, [first, until). Rejected: a heap entry for each piece (one for each confirm of
# a queue with a time to live); to go through all of them whenever there are more of them than of runs (once nothing
# can go, that is always).


_SPARE: Final = 64


class Moment(NamedTuple):
    """When, and for which records."""

    at_us: int
    first: int
    until: int


class Moments:
    """Of one group."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._newest: Moment | None = None
        self._kept = 0

    def __len__(self) -> int:
        return len(self._moments) + (self._newest is not None)

    @property
    def next_us(self) -> float:
        """When the first one comes."""
        first = self._first()
        return math.inf if first is None else first.at_us

    def add(self, at_us: int, first: int, until: int, *, goes_on: bool) -> None:
        """`goes_on`: of the same run as the one that was told before; all of it has the later time."""
        newest = self._newest
        if goes_on and newest is not None and newest.until == first:
            self._newest = Moment(max(at_us, newest.at_us), newest.first, until)
            return
        if newest is not None:
            heappush(self._moments, newest)
        self._newest = Moment(at_us, first, until)

    def come(self, now_us: int) -> Moment | None:
        """The first one that has come; it is here no more."""
        first = self._first()
        if first is None or first.at_us > now_us:
            return None
        return self._pop(first)

    def put_back(self, moment: Moment) -> None:
        """Some of one that has come is still to be done."""
        heappush(self._moments, moment)

    def sweep(self, floor: int) -> None:
        """Nothing below `floor` is waited for."""
        if len(self._moments) > 2 * self._kept + _SPARE:
            self._moments = [each for each in self._moments if each.until > floor]
            heapify(self._moments)
            self._kept = len(self._moments)

    def forget(self, is_over: Callable[[Moment], bool], count_max: int) -> None:
        """The first ones go, as long as they are over before their time, so many at most."""
        while count_max > 0 and (first := self._first()) is not None and is_over(first):
            count_max -= 1
            self._pop(first)

    # --- inside ---

    def _first(self) -> Moment | None:
        if not self._moments:
            return self._newest
        return self._moments[0] if self._newest is None else min(self._moments[0], self._newest)

    def _pop(self, first: Moment) -> Moment:
        if first is self._newest:
            self._newest = None
            return first
        return heappop(self._moments)


# Levels: the records of one group that have a priority above the lowest, as far as they may be free.
#
# Each level is a set of ranges: what was free when it was met, and what came back. What a search finds not to be free
# any more leaves it, so nothing is gone over twice, nothing that was settled is kept, and a level in which nothing is
# left is not there. A search that has gone over very much gives up (`tired`), and goes on where it stopped when it is
# asked again: until then nobody knows which records come first.
#
# Pure. Ranges are [first, until), queue offsets. Rejected: all runs of a level in order, and a place up to which none
# is free (whatever comes back has all runs behind it gone over again; what is settled out of order stays).


STEPS_MAX: Final = 4096
"""In all searches between two calls of `rest`."""


@dataclass(slots=True)
class _Level:
    """`at`: below it none is free."""

    at: int
    ranges: RangeSet = field(default_factory=RangeSet)


class Levels:
    """Of one group."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # By priority, negative, so that the highest is first in `_order`.
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._steps = 0

    def __len__(self) -> int:
        """How many levels have records that may be free."""
        return len(self._order)

    @property
    def records(self) -> int:
        """How many records are kept."""
        return sum(len(level.ranges) for level in self._levels.values())

    @property
    def tired(self) -> bool:
        """Whether a search gave up."""
        return self._steps >= STEPS_MAX

    def rest(self) -> None:
        """Others had their turn."""
        self._steps = 0

    def add(self, priority: int, first: int, until: int) -> None:
        """These may be free."""
        level = self._levels.get(-priority)
        if level is None:
            level = self._levels[-priority] = _Level(first)
            self._order.insert(bisect_left(self._order, -priority), -priority)
        level.ranges.add(first, until)
        level.at = min(level.at, first)

    def next_free(self, limit: int) -> Range | None:
        """The first free records below `limit` of the highest level that has any; None when none has, or `tired`."""
        index = 0
        while index < len(self._order) and not self.tired:
            level = self._levels[self._order[index]]
            found = self._search(level, limit) if level.at < limit else None
            if found is not None:
                return found
            if len(level.ranges):
                index += 1
            else:
                del self._levels[self._order.pop(index)]
        return None

    # --- inside ---

    def _search(self, level: _Level, limit: int) -> Range | None:
        while not self.tired and (run := level.ranges.lowest()) is not None:
            level.at = run[0]
            if level.at >= limit:
                return None
            until = min(run[1], limit)
            found = self._ledger.next_free(level.at, until)
            if found is None:
                self._steps += 1
                found = self._ledger.next_free(until, min(limit, until + CHUNK_RECORDS))
                over = found[0] if found is not None else max(until, min(limit, until + CHUNK_RECORDS))
                level.ranges.remove(level.at, over)
                continue
            level.ranges.remove(level.at, found[0])
            level.at = found[0]
            return found
        return None


RUNS_MAX: Final = 4096
"""So many runs are met in one look. Among what was met the highest priority goes first."""
LOOKS_MAX: Final = 512
"""So many stretches come to their time or come back in one look, so that a million of them keep nobody else waiting."""
WINDOW: Final = 1024
"""Records of a run that are gone through one by one at once: how many stretches they are is known afterwards."""


class Attributed:
    """Of one group. `priority_max`: `x-max-priority`: higher ones count as that, 0 tells nothing apart; `runs`: those
    of the queue, as far as they are known now. `met`: records below have been met. `keys`: who waits for his key."""

    def __init__(
        self, ledger: Ledger, keys: KeyOrder, *, priority_max: int, runs: Callable[[], QueueRuns | None] = lambda: None
    ) -> None:
        self.met = ledger.floor
        self.keys = keys
        self._ledger = ledger
        self._priority_max = priority_max
        self._runs = runs
        self._waits = Moments()
        self._ends = Moments()
        # What is below came when nobody took from this group. A queue offset and no time: the clock may go back.
        self._taken_from = 0
        # Those of no time to live that have their one chance now, and those that have had it.
        self._chances: list[Range] = []
        self._at_once: list[Range] = []
        self._held = RangeSet()
        self._old = RangeSet()
        """Those that somebody has."""
        self._dying = RangeSet()
        """Those that nobody has; to be settled."""
        self._back = RangeSet()
        """Those that came back and were not looked at."""
        self.levels = Levels(ledger)
        self.has_levels = False
        """Whether there ever was one; until then nobody need ask."""
        self.plain = True
        """Whether no run was met: nothing is held back, old, or before others, and nobody need ask about times."""

    # --- asking ---

    @property
    def idle(self) -> bool:
        """Whether no time to live of a record that was met is still to end."""
        self._ends.forget(lambda each: not self._ledger.unsettled(each.first, each.until), LOOKS_MAX)
        return not (
            len(self._ends)
            or self._chances
            or self._at_once
            or self._old.count
            or self._dying.count
            or self._back.count
        )

    @property
    def next_us(self) -> float:
        """When there is something to do; -inf: now."""
        if self._at_once or self._dying.count:
            return -math.inf
        return min(self._waits.next_us, self._ends.next_us)

    def behind(self, now_us: int) -> bool:
        """Whether a look had not time enough: then nothing is to be given out before the next one."""
        return self.unsorted or self._ends.next_us <= now_us

    @property
    def unsorted(self) -> bool:
        """Whether nobody knows yet which records come first."""
        return self._back.count > 0 or self.levels.tired

    @property
    def taken(self) -> int:
        """How many records are OUT, or wait, and are with no subscriber."""
        return self._held.count + self._dying.count + self.keys.waiting

    def nobodys(self, first: int, until: int) -> Iterator[Range]:
        """What of these records is OUT in the ledger, and with no subscriber."""
        yield from self._held.within(first, until)
        yield from self._dying.within(first, until)
        for run in self.keys.within(first, until) if self.keys.waiting else ():
            yield from self._held.without(*run)

    def dying(self) -> list[Range]:
        """What is to be settled as expired now; some of it, when there is much."""
        dying: list[Range] = []
        for first, until in list(islice(self._dying, LOOKS_MAX)):
            left = LOOKS_MAX - len(dying)
            for low, high, state in list(islice(self._ledger.runs(first, until), left)):
                if state == State.SETTLED:
                    self._dying.remove(low, high)
                else:
                    dying.append((low, high))
        return dying

    # --- what happens ---

    def taken_from(self, appended: int) -> None:
        """Somebody takes from this group from now on, and nobody did before. `appended`: where the queue ends."""
        self._taken_from = appended

    def meet(self, until: int, now_us: int, *, taken: bool) -> None:
        """Records below `until` are confirmed; so many of their runs are met as one look takes. `taken`: whether
        somebody could take a record now: those of no time to live that came while somebody did have this one chance."""
        runs = self._runs()
        if runs is None and self.plain:
            self.met = max(self.met, until)
            return
        rows = [] if runs is None else runs.rows(self.met, until, RUNS_MAX)
        left = RUNS_MAX
        for row in rows:
            if left <= 0:
                break
            self.plain = False
            end = min(row.until, until)
            self.met = max(self.met, row.first)
            while self.met < end and left > 0:
                left -= self._meet(row, end, now_us, taken)
        if left > 0 and len(rows) < RUNS_MAX:
            self.met = max(self.met, until)
        for moments in (self._waits, self._ends):
            moments.sweep(self._ledger.floor)

    def had_chance(self) -> None:
        """Whoever could take a record has been given what there was."""
        self._at_once += self._chances
        self._chances = []

    def look(self, now_us: int) -> int | None:
        """Time passes: the lowest record that is free by it; None when there is none."""
        self.levels.rest()
        if self._back.count:
            self._sort()
        if not (len(self._waits) or len(self._ends) or self._at_once):
            return None
        lowest: int | None = None
        left = LOOKS_MAX
        while left > 0 and (moment := self._waits.come(now_us)) is not None:
            waited = self._held.within(moment.first, _window(moment, self._waits))
            self._let_out(waited)
            left -= 1 + len(waited)
            if waited:
                lowest = waited[0][0] if lowest is None else min(lowest, waited[0][0])
        for first, until in self._at_once:
            self._ends.put_back(Moment(0, first, until))
        self._at_once = []
        left = LOOKS_MAX
        while left > 0 and (moment := self._ends.come(now_us)) is not None:
            left -= 1 + self._grow_old(moment.first, _window(moment, self._ends))
        return lowest

    def freed(self, ranges: Iterable[Range]) -> None:
        """These came back."""
        if not (self.has_levels or self._old.count or self._dying.count):
            return
        for first, until in ranges:
            self._back.add(first, until)
        self._sort()

    def settled(self, ranges: Iterable[Range]) -> None:
        """These are done."""
        for first, until in ranges if self._old.count or self.taken else ():
            for known in (self._held, self._old, self._dying):
                known.remove(first, until)

    def let_go(self) -> None:
        """The group is let alone: nothing of it is held back."""
        for first, until in (*self._held, *self._dying):
            self._ledger.give_back(first, until)

    # --- inside ---

    def _meet(self, row: RunRow, end: int, now_us: int, taken: bool) -> int:
        """Meet what of a run was not met, up to `end`, or some of it; for how many runs that counts."""
        goes_on, attributes, first = row.first < self.met, row.attributes, self.met
        expires_us, not_before_us = attributes.expires_at_us(row.appended_us), attributes.not_before_us(row.appended_us)
        at_once = attributes.ttl_ms == 0 and not attributes.delay_ms
        if at_once and first < self._taken_from:
            end = min(end, self._taken_from)
        chance = at_once and taken and first >= self._taken_from
        is_old = expires_us is not None and expires_us <= now_us and not chance
        if is_old or not_before_us > now_us:
            end = min(end, first + WINDOW)
        self.met = end
        if is_old:
            return 1 + self._grow_old(first, end) * RUNS_MAX // LOOKS_MAX
        if chance:
            self._chances.append((first, end))
        elif expires_us is not None:
            self._ends.add(expires_us, first, end, goes_on=goes_on)
        if not_before_us > now_us:
            return 1 + self._hold_back(row, end, first, goes_on=goes_on) * RUNS_MAX // LOOKS_MAX
        self._add_to_level(row, first, end)
        return 1

    def _level(self, row: RunRow) -> int:
        return min(row.attributes.priority, self._priority_max)

    def _add_to_level(self, row: RunRow, first: int, until: int) -> None:
        """What of them may be free."""
        if not (level := self._level(row)):
            return
        self.has_levels = True
        if (found := self._ledger.next_free(first, until)) is not None:
            self.levels.add(level, found[0], until)

    def _hold_back(self, row: RunRow, until: int, first: int, *, goes_on: bool) -> int:
        self.has_levels |= self._level(row) > 0
        free = [(low, high) for low, high, state in self._ledger.runs(first, until) if state == State.FREE]
        for low, high in free:
            self._ledger.take(low, high)
            self._held.add(low, high)
        if free:
            self._waits.add(row.attributes.not_before_us(row.appended_us), first, until, goes_on=goes_on)
        return len(free)

    def _let_out(self, ranges: Iterable[Range]) -> None:
        """Their time has come."""
        for low, high in ranges:
            self._held.remove(low, high)
            self._ledger.give_back(low, high)
            if self.keys.waiting:
                self.keys.came_back([(low, high)])
            if self.has_levels:
                self._sort_runs(low, high)

    def _grow_old(self, first: int, until: int) -> int:
        """Their time to live is over. How many stretches it was."""
        stretches = list(self._ledger.runs(first, until))
        for low, high, state in stretches:
            if state == State.FREE:
                self._ledger.take(low, high)
                self._dying.add(low, high)
            elif state == State.PARKED:
                self._dying.add(low, high)
            elif state != State.SETTLED:
                self._old.add(low, high)
        for low, high in self._held.within(first, until) if self._held.count else ():
            self._held.remove(low, high)
            self._old.remove(low, high)
            self._dying.add(low, high)
        return len(stretches)

    def _sort(self) -> None:
        """Look at what came back: who is too old is not free, and the others have their level."""
        left = LOOKS_MAX
        while left > 0 and (run := self._back.lowest()) is not None:
            first, until = run[0], min(run[1], run[0] + WINDOW) if self._old.count or self._dying.count else run[1]
            left -= 1
            for low, high in self._old.within(first, until) if self._old.count else ():
                self._old.remove(low, high)
                left -= self._grow_old(low, high)
            for low, high in self._dying.within(first, until) if self._dying.count else ():
                self._ledger.take(low, high)
                left -= 1
            runs = self._sort_runs(first, until) if self.has_levels else []
            left -= len(runs)
            self._back.remove(first, min(until, runs[-1].until) if len(runs) == LOOKS_MAX else until)

    def _sort_runs(self, first: int, until: int) -> list[RunRow]:
        """Put them to their levels, as many runs of them as one look takes; those runs."""
        runs = self._runs()
        rows = [] if runs is None else runs.rows(first, until, LOOKS_MAX)
        for row in rows:
            self._add_to_level(row, max(row.first, first), min(row.until, until))
        return rows


def _window(moment: Moment, moments: Moments) -> int:
    """Up to where a moment is looked at now; the rest of it goes back."""
    until = min(moment.until, moment.first + WINDOW)
    if until < moment.until:
        moments.put_back(moment._replace(first=until))
    return until
