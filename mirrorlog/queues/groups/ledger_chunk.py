"""The states of 4,096 records of one acking group: one byte each, and only where somebody needs it what they wait for
and how often they came back. Pure; `queues.ledger` alone uses it.

Ranges are written, found and counted by slices, `find`, `count` and `translate`: no step per record. How many records
have which state is kept with each write, for counting 4,096 bytes takes longer than to change a few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

BITS: Final = 12
RECORDS: Final = 1 << BITS


class State(IntEnum):
    """Of one record in one group. OUT is known to the master alone, which has given it out; for all others such a
    record is free."""

    FREE = 0
    SETTLED = 1
    OUT = 2
    PARKED = 3
    LEASED = 4


# Plain numbers: an operation with a member of an enum takes a microsecond.
FREE: Final = int(State.FREE)
SETTLED: Final = int(State.SETTLED)
OUT: Final = int(State.OUT)
_STATES: Final = len(State)
_FULL: Final = tuple(bytes([state]) * RECORDS for state in State)
_ONE: Final = tuple(bytes([state]) for state in State)
_NOT_OUT: Final = bytes(FREE if state == OUT else state for state in range(256))
_ONE_MORE: Final = bytes(min(count + 1, 255) for count in range(256))

NOT_PARKED: Final = -1


class Row(NamedTuple):
    """What records [first, until) of a chunk wait for. Of leased ones `number` is the lease and `logged_at` NOT_PARKED;
    of parked ones `number` is the delay in ms and `logged_at` the log offset of the change that said so."""

    first: int
    until: int
    number: int
    logged_at: int


class Piece(NamedTuple):
    """What was known of records [first, until). `states`: None when all are free, without attempts. `attempts`: None
    when none had any."""

    first: int
    until: int
    states: bytes | None
    attempts: bytes | None
    rows: tuple[Row, ...] = ()


class Chunk:
    """Queue offsets [base, base + RECORDS). `settled_below`: records below that queue offset are settled."""

    __slots__ = ("attempts", "base", "counts", "rows", "states")

    def __init__(self, base: int, settled_below: int) -> None:
        settled = min(max(settled_below - base, 0), RECORDS)
        self.base = base
        self.states = bytearray(_FULL[SETTLED][:settled] + _FULL[FREE][settled:])
        self.counts = [RECORDS - settled, settled, 0, 0, 0]
        """How many records have which state."""
        self.attempts: bytearray | None = None
        self.rows: list[Row] = []
        """Of the parked and the leased ones, by queue offset."""

    # --- asking; all by queue offsets within the chunk ---

    def count(self, state: int, first: int, until: int) -> int:
        if not self.counts[state]:
            return 0
        if until - first == RECORDS:
            return self.counts[state]
        return self.states.count(state, first - self.base, until - self.base)

    def find(self, state: int, first: int, until: int) -> int:
        """The first one with that state in [first, until); -1 without one."""
        if not self.counts[state]:
            return -1
        found = self.states.find(state, first - self.base, until - self.base)
        return -1 if found < 0 else found + self.base

    def run_end(self, first: int, until: int) -> int:
        """Where the run of one state ends that begins at `first`, `until` at the latest."""
        part = self.states[first - self.base : until - self.base]
        return until - len(part.lstrip(_ONE[part[0]]))

    def runs_of(self, states: tuple[int, ...], first: int, until: int) -> Iterator[tuple[int, int]]:
        """The maximal runs of one of these states each, in [first, until)."""
        while first < until and any(self.counts[state] for state in states):
            found = [at for state in states if (at := self.find(state, first, until)) >= 0]
            if not found:
                return
            begin = min(found)
            first = self.run_end(begin, until)
            yield begin, first

    def unsettled_runs(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        """The maximal ranges of [first, until) in which nothing is settled."""
        while first < until:
            part = self.states[first - self.base : until - self.base]
            first = until - len(part.lstrip(_ONE[SETTLED]))
            if first < until:
                end = self.find(SETTLED, first, until)
                yield first, (end if end >= 0 else until)
                first = end if end >= 0 else until

    def attempts_at(self, first: int, until: int) -> tuple[int, int]:
        """How often the record at `first` came back, and where the run with the same number ends."""
        if self.attempts is None:
            return 0, until
        part = self.attempts[first - self.base : until - self.base]
        return part[0], until - len(part.lstrip(part[:1]))

    def has_attempts(self) -> bool:
        """Whether any record that is not settled came back once."""
        if self.attempts is not None and not self.attempts.lstrip(b"\0"):
            self.attempts = None
        return self.attempts is not None

    def piece(self, first: int, until: int) -> Piece:
        """What is known of [first, until), but to whom it is out."""
        low, high = first - self.base, until - self.base
        if until == first + 1 and self.attempts is None and not self.rows:
            return Piece(first, until, _ONE[_NOT_OUT[self.states[low]]], None)
        states = bytes(self.states[low:high])
        if self.counts[OUT]:
            states = states.translate(_NOT_OUT)
        attempts = None if self.attempts is None else bytes(self.attempts[low:high])
        return Piece(first, until, states, attempts, tuple(self.rows_in(first, until)) if self.rows else ())

    def rows_in(self, first: int, until: int) -> Iterator[Row]:
        """What there is of rows in [first, until), clipped."""
        low, high = self._rows_span(first, until)
        for row in self.rows[low:high]:
            yield row._replace(first=max(row.first, first), until=min(row.until, until))

    def row_at(self, at: int) -> Row | None:
        """The row that the record is in."""
        index = bisect_left(self.rows, (at + 1,)) - 1
        return self.rows[index] if index >= 0 and self.rows[index].until > at else None

    def leased(self, lease: int, records: int, first: int) -> Iterator[tuple[int, int]]:
        """The ranges of a lease that has so many records here, none of them in front of `first`. As many rows are
        looked at as lie between them: what is leased together stands together."""
        rows = self.rows
        for index in range(bisect_left(rows, (first,)), len(rows)):
            row = rows[index]
            if row.number == lease and row.logged_at == NOT_PARKED:
                yield row.first, row.until
                records -= row.until - row.first
                if not records:
                    return

    # --- changing ---

    def write(self, state: int, first: int, until: int) -> list[int]:
        """Give [first, until) that state. By how much each state's count changed."""
        changes = [0] * _STATES
        low, high = first - self.base, until - self.base
        if high - low == 1:
            changes[self.states[low]] -= 1
            self.states[low] = state
        else:
            for each in range(_STATES):
                changes[each] -= self.count(each, first, until)
            self.states[low:high] = _FULL[state][: high - low]
        changes[state] += high - low
        self._add(changes)
        return changes

    def put(self, piece: Piece) -> list[int]:
        """Make known of a piece what it says; its rows replace those that are there. By how much each state's count
        changed."""
        changes = [0] * _STATES
        first, until = piece.first, piece.until
        low, high = first - self.base, until - self.base
        states = _FULL[FREE][: high - low] if piece.states is None else piece.states
        for each in range(_STATES):
            changes[each] = states.count(each) - self.count(each, first, until)
        self.states[low:high] = states
        self._add(changes)
        self._put_attempts(low, high, piece.attempts)
        start, end = self._rows_span(first, until)
        self.rows[start:end] = [*self._outside(start, end, first, until)[0], *piece.rows]
        self.rows.sort()
        return changes

    def swap(self, state: int, other: int, first: int, until: int) -> int:
        """Give those of [first, until) that have `state` the `other` one; how many."""
        count = self.count(state, first, until)
        if count:
            low, high = first - self.base, until - self.base
            # Of as many bytes as before.
            self.states[low:high] = self.states[low:high].replace(_ONE[state], _ONE[other])
            self.counts[state] -= count
            self.counts[other] += count
        return count

    def forget_attempts(self, first: int, until: int) -> None:
        """Of settled ones nobody asks."""
        if self.attempts is not None:
            self.attempts[first - self.base : until - self.base] = bytes(until - first)

    def count_attempt(self, first: int, until: int) -> None:
        """One more for each, 255 at most."""
        if self.attempts is None:
            self.attempts = bytearray(RECORDS)
        low, high = first - self.base, until - self.base
        self.attempts[low:high] = self.attempts[low:high].translate(_ONE_MORE)

    def take_rows(self, first: int, until: int) -> list[Row]:
        """Cut the rows of [first, until) out; what was cut."""
        start, end = self._rows_span(first, until)
        if start == end:
            return []
        outside, inside = self._outside(start, end, first, until)
        self.rows[start:end] = outside
        return inside

    def add_row(self, row: Row) -> None:
        """None is there in its range."""
        self.rows.insert(bisect_left(self.rows, row), row)

    # --- inside ---

    def _add(self, changes: list[int]) -> None:
        counts = self.counts
        for state in range(_STATES):
            counts[state] += changes[state]

    def _put_attempts(self, low: int, high: int, attempts: bytes | None) -> None:
        if attempts is not None and self.attempts is None:
            self.attempts = bytearray(RECORDS)
        if self.attempts is not None:
            self.attempts[low:high] = bytes(high - low) if attempts is None else attempts

    def _rows_span(self, first: int, until: int) -> tuple[int, int]:
        """Which rows reach into [first, until), by their index."""
        rows = self.rows
        start = bisect_left(rows, (first,))
        if start and rows[start - 1].until > first:
            start -= 1
        return start, max(start, bisect_left(rows, (until,)))

    def _outside(self, start: int, end: int, first: int, until: int) -> tuple[list[Row], list[Row]]:
        """The parts of rows start..end that are outside of [first, until), and those that are in it."""
        outside: list[Row] = []
        inside: list[Row] = []
        for row in self.rows[start:end]:
            for low, high, where in (
                (row.first, min(row.until, first), outside),
                (max(row.first, first), min(row.until, until), inside),
                (max(row.first, until), row.until, outside),
            ):
                if low < high:
                    where.append(row._replace(first=low, until=high))
        return outside, inside
