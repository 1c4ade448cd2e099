"""Who has had what: the states of one acking group's records (decision 0033).

Everything below the *floor* is settled, everything above it is free, but for exceptions. Exceptions live in chunks of
4,096 records, a byte each; a chunk without exceptions is not there, and neither is one that is settled whole: runs of
these are kept as ranges, since queue offsets jump by 2^32 and more after a loss. So a group that acks in order is a few
numbers, one with a million records unacknowledged a megabyte, and order comes by itself: what returns is found at its
place.

Two sorts of changes meet here. Those that were logged are the same on every copy, and can be undone: `LedgerUpdate`
makes them. *Volatile* ones (`take`, `give_back`) are the master's memory of what it has given out, and only it has
them: OUT is nobody else's state, and is in no checkpoint and no journal.

Pure. Queue offsets everywhere; ranges are [first, until).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirrorlog.queues.groups.ledger_chunk import BITS, FREE, NOT_PARKED, OUT, RECORDS, SETTLED, Chunk, Piece, State
from mirrorlog.queues.groups.verdicts import Verdicts
from mirrorlog.queues.ranges import Spans, joined

__all__ = ["CHUNK_RECORDS", "LeaseRow", "Ledger", "Parked", "State"]

CHUNK_RECORDS: Final = RECORDS
_PARKED: Final = int(State.PARKED)
_LEASED: Final = int(State.LEASED)


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease that has records. `lease_ms`: how long it is, a duration; it began, or began anew, with the change at the
    log offset `logged_at`, and begins in full with every mastership."""

    holder: str
    lease_ms: int
    logged_at: int


class Parked(NamedTuple):
    """Records that are not given out again before `delay_ms` have gone by since the change at the log offset
    `logged_at`, or since the mastership began that is behind it. A range never reaches over a chunk's border."""

    first: int
    until: int
    delay_ms: int
    logged_at: int


_Part = tuple[int, int, Chunk | None, int]
"""first, until, the chunk that they are in or None, then the state of all of them."""


class Ledger:
    """One group. `floor`: all below are settled. `watermark`: those below may have been given out. `void`: see
    `GroupReset`. `verdicts`: what the settled ones stand as; `known_from`: of those below nothing is known, by default
    of all below the floor."""

    __slots__ = (
        "chunks",
        "floor",
        "lease_chunks",
        "leases",
        "order",
        "totals",
        "verdicts",
        "void",
        "watermark",
        "wholes",
    )  # fmt: skip

    def __init__(
        self, floor: int = 0, watermark: int | None = None, void: int = 0, *, known_from: int | None = None
    ) -> None:
        self.floor = floor
        self.void = void
        self.verdicts = Verdicts(floor if known_from is None else known_from)
        self.watermark = floor if watermark is None else watermark
        self.leases: dict[int, LeaseRow] = {}
        # From here on: for `LedgerUpdate` alone. By number of the chunk: its first queue offset / RECORDS.
        self.chunks: dict[int, Chunk] = {}
        self.order: list[int] = []
        # Numbers of the chunks that are settled whole, above the floor.
        self.wholes = Spans()
        # How many have which state, above the floor; of the free ones it says nothing.
        self.totals = [0] * len(State)
        # By lease, and number of the chunk: how many records of it are there, and that none is in front of which.
        self.lease_chunks: dict[int, dict[int, tuple[int, int]]] = {}

    # --- asking ---

    @property
    def out(self) -> int:
        """How many are given out."""
        return self.totals[OUT]

    @property
    def parked(self) -> int:
        """How many wait with a delay."""
        return self.totals[_PARKED]

    @property
    def leased(self) -> int:
        """How many are leased."""
        return self.totals[_LEASED]

    def ready(self, until: int) -> int:
        """How many below `until` are free."""
        return self._below(until, (SETTLED, OUT, _PARKED, _LEASED))

    def unsettled_total(self, until: int) -> int:
        """How many below `until` are not settled."""
        return self._below(until, (SETTLED,))

    def unsettled(self, first: int, until: int) -> int:
        """How many of [first, until) are not settled."""
        found = 0
        for at, end, chunk, state in self.parts(first, until):
            if chunk is not None:
                found += end - at - chunk.count(SETTLED, at, end)
            elif state == FREE:
                found += end - at
        return found

    def next_free(self, at: int, until: int) -> tuple[int, int] | None:
        """The first maximal run of free records within [max(at, floor), until)."""
        first = -1
        for begin, end, chunk, state in self.parts(at, until):
            if chunk is None:
                if state == FREE:
                    first = begin if first < 0 else first
                    continue
                if first >= 0:
                    return first, begin
                continue
            if first < 0:
                first = chunk.find(FREE, begin, end)
                if first < 0:
                    continue
            elif chunk.states[begin - chunk.base] != FREE:
                return first, begin
            run_end = chunk.run_end(max(first, begin), end)
            if run_end < end:
                return first, run_end
        return (first, until) if first >= 0 else None

    def runs(self, first: int, until: int) -> Iterator[tuple[int, int, State]]:
        """The maximal runs of one state that make up [first, until), below the floor too."""
        run: tuple[int, int, int] | None = None
        for begin, end, state in self._pieces_of_one_state(first, until):
            if run is not None and run[2] == state:
                run = run[0], end, state
                continue
            if run is not None:
                yield run[0], run[1], State(run[2])
            run = begin, end, state
        if run is not None:
            yield run[0], run[1], State(run[2])

    def idle_runs(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        """What of [first, until) is free or waits with a delay: runs, ascending, none of which touches the next. What
        is neither costs nothing but a look at its chunks, however scattered it is."""
        return joined(self._idle_pieces(first, until))

    def attempts(self, at: int, until: int) -> tuple[int, int]:
        """How often the record at `at` came back, 255 standing for more; and where the run ends, `until` at the latest,
        of those with the same number."""
        count, reached = -1, at
        for _, end, chunk, _ in self.parts(at, until):
            here, run_end = (0, end) if chunk is None else chunk.attempts_at(reached, end)
            if count not in (-1, here):
                return count, reached
            count, reached = here, run_end
            if run_end < end:
                return count, reached
        return max(count, 0), until

    def parked_rows(self, since: int = 0) -> Iterator[Parked]:
        """What waits with a delay, by queue offset, from `since` on."""
        for number in self.order[bisect_left(self.order, since >> BITS) :] if self.parked else ():
            for row in self.chunks[number].rows:
                if row.logged_at != NOT_PARKED and row.first >= since:
                    yield Parked(*row)

    def lease_ranges(self, lease: int) -> Iterator[tuple[int, int]]:
        """What a lease has still, by queue offset; a range never reaches over a chunk's border."""
        for number, (records, first) in sorted(self.lease_chunks.get(lease, {}).items()):
            yield from self.chunks[number].leased(lease, records, first)

    def lease_within(self, lease: int, first: int, until: int) -> Iterator[tuple[int, int]]:
        """What a lease has of [first, until), by queue offset, however much it has elsewhere."""
        for at, end, chunk, _ in self.parts(first, until) if lease in self.lease_chunks else ():
            for row in chunk.rows_in(at, end) if chunk is not None else ():
                if row.number == lease and row.logged_at == NOT_PARKED:
                    yield row.first, row.until

    def lease_records(self, lease: int) -> int:
        """How many records a lease has still."""
        return sum(records for records, _ in self.lease_chunks.get(lease, {}).values())

    def lease_has(self, lease: int, first: int, until: int) -> bool:
        """Whether one row of the lease has all of [first, until): so it is with most receipts. False may mean that
        several have it, see `lease_ranges`."""
        chunk = self.chunks.get(first >> BITS)
        row = None if chunk is None else chunk.row_at(first)
        return row is not None and (row.number, row.logged_at) == (lease, NOT_PARKED) and until <= row.until

    def forwarding(self, first: int, until: int) -> int:
        """How many of [first, until) leave for other queues."""
        return sum(high - low for low, high in self.forwarding_within(first, until)) if self.leased else 0

    def forwarding_within(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        """What of [first, until) leaves for other queues, by queue offset: what leases below 2^32 have."""
        for at, end, chunk, _ in self.parts(first, until):
            for row in chunk.rows_in(at, end) if chunk is not None else ():
                if row.logged_at == NOT_PARKED and row.number >> 32 == 0:
                    yield row.first, row.until

    # --- volatile: the master's memory of what it has given out ---

    def take(self, first: int, until: int) -> None:
        """What is free of it is out."""
        self._swap(FREE, OUT, first, until)

    def give_back(self, first: int, until: int) -> None:
        """What is out of it is free."""
        self._swap(OUT, FREE, first, until)

    def drop_volatile(self) -> None:
        """Nothing is out any more: another one is the master."""
        if self.out:
            for number in list(self.order):
                self.give_back(number << BITS, (number + 1) << BITS)

    # --- checkpoints ---

    def chunk_ranges(self) -> Iterator[tuple[int, int]]:
        """What has exceptions, as ranges of which `piece` can be asked: chunks, and runs of some settled whole."""
        yield from ((number << BITS, (number + 1) << BITS) for number in self.order)
        yield from ((first << BITS, until << BITS) for first, until in self.wholes)

    def piece(self, first: int, until: int) -> Piece | None:
        """What is known of a range that `chunk_ranges` gave once, or a part of it; None when all of it is settled."""
        chunk = self.chunks.get(first >> BITS)
        if chunk is not None and until <= chunk.base + RECORDS:
            return chunk.piece(first, until)
        if self.unsettled(first, until) == 0:
            return None
        below = self.floor - first
        if below <= 0:
            return Piece(first, until, None, None)
        # The floor passed a part of it, and nothing is special behind that.
        return Piece(first, until, bytes([SETTLED]) * below + bytes(until - first - below), None)

    # --- where things are; from here on for `LedgerUpdate` and this class alone ---

    def parts(self, first: int, until: int) -> Iterator[_Part]:
        """What [max(first, floor), until) consists of. A part that was given may be changed before the next is asked
        for."""
        at = max(first, self.floor)
        while at < until:
            number = at >> BITS
            chunk = self.chunks.get(number)
            if chunk is not None:
                end = min(until, (number + 1) << BITS)
                yield at, end, chunk, FREE
            elif (whole := self.wholes.covering(number)) is not None:
                end = min(until, whole[1] << BITS)
                yield at, end, None, SETTLED
            else:
                end = min(until, self._next_exception(number, until) << BITS)
                yield at, end, None, FREE
            at = end

    def _next_exception(self, number: int, until: int) -> int:
        """The first chunk behind that one with anything special; one behind `until` without any."""
        index = bisect_left(self.order, number)
        found = self.order[index] if index < len(self.order) else (until >> BITS) + 1
        whole = self.wholes.next_from(number)
        return found if whole is None else min(found, whole)

    def _pieces_of_one_state(self, first: int, until: int) -> Iterator[tuple[int, int, int]]:
        if first < min(until, self.floor):
            yield first, min(until, self.floor), SETTLED
        for at, end, chunk, state in self.parts(first, until):
            if chunk is None:
                yield at, end, state
                continue
            begin = at
            while begin < end:
                run_end = chunk.run_end(begin, end)
                yield begin, run_end, chunk.states[begin - chunk.base]
                begin = run_end

    def _idle_pieces(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        for at, end, chunk, state in self.parts(first, until):
            if chunk is not None:
                yield from chunk.runs_of((FREE, _PARKED), at, end)
            elif state == FREE:
                yield at, end

    def _below(self, until: int, states: Iterable[int]) -> int:
        """How many of [floor, until) have none of these states, SETTLED among them. Chunks below `until` are not looked
        at."""
        if until <= self.floor:
            return 0
        found = until - self.floor
        for state in states:
            found -= self.totals[state] - self._above(until, state)
        return found

    def _above(self, until: int, state: int) -> int:
        """How many from `until` on, above the floor, have that state."""
        if not self.totals[state]:
            return 0
        found = 0
        for number in self.order[bisect_left(self.order, until >> BITS) :]:
            base = number << BITS
            found += self.chunks[number].count(state, max(base, until), base + RECORDS)
        if state == SETTLED:
            for first, end in self.wholes.from_on(until >> BITS):
                found += (end << BITS) - max(first << BITS, until)
        return found

    # --- changing ---

    def open(self, number: int) -> Chunk:
        """The chunk, which is made if nothing there was special; one that is settled whole is opened again."""
        chunk = self.chunks.get(number)
        if chunk is None:
            base = number << BITS
            whole = self.wholes.covering(number) is not None
            chunk = self.chunks[number] = Chunk(base, base + RECORDS if whole else self.floor)
            self.wholes.remove(number, number + 1)
            insort(self.order, number)
        return chunk

    def _drop(self, number: int) -> None:
        del self.chunks[number]
        del self.order[bisect_left(self.order, number)]

    def tidy(self, chunk: Chunk) -> None:
        """A chunk in which nothing is special goes."""
        number = chunk.base >> BITS
        if chunk.counts[SETTLED] == RECORDS:
            self._drop(number)
            self.wholes.add(number, number + 1)
        elif chunk.counts[FREE] == RECORDS - max(0, self.floor - chunk.base) and not chunk.has_attempts():
            self._drop(number)

    def count_states(self, changes: list[int]) -> None:
        totals = self.totals
        for state, change in enumerate(changes):
            totals[state] += change

    def settle_plain(self, first: int, until: int) -> None:
        """Settle what nothing is special of and is above the floor: whole chunks as a range, the rest in chunks."""
        low, high = -(-first >> BITS), until >> BITS
        if low < high:
            self.wholes.add(low, high)
            self.totals[SETTLED] += (high - low) << BITS
        for at, end in edges(first, until):
            chunk = self.open(at >> BITS)
            self.count_states(chunk.write(SETTLED, at, end))
            self.tidy(chunk)

    def _swap(self, state: int, other: int, first: int, until: int) -> None:
        within = self.chunks.get(first >> BITS)
        if within is not None and first >= self.floor and first < until <= within.base + RECORDS:
            self._swap_in(within, state, other, first, until)
            return
        for at, end, chunk, uniform in self.parts(first, until):
            if chunk is not None:
                self._swap_in(chunk, state, other, at, end)
            elif uniform == state:
                for low, high in by_chunk(at, end):
                    self._swap_in(self.open(low >> BITS), state, other, low, high)

    def _swap_in(self, chunk: Chunk, state: int, other: int, first: int, until: int) -> None:
        count = chunk.swap(state, other, first, until)
        self.totals[state] -= count
        self.totals[other] += count
        self.tidy(chunk)

    def raise_floor(self) -> None:
        """Over what is settled behind it."""
        while True:
            number = self.floor >> BITS
            chunk = self.chunks.get(number)
            if chunk is not None:
                if chunk.states[self.floor - chunk.base] != SETTLED:
                    self.tidy(chunk)
                    return
                reached = chunk.run_end(self.floor, chunk.base + RECORDS)
            else:
                whole = self.wholes.covering(number)
                if whole is None:
                    return
                reached = whole[1] << BITS
                self.wholes.remove(*whole)
            self.totals[SETTLED] -= reached - self.floor
            self.floor = reached

    def lower_floor(self, floor: int) -> None:
        """What is between is settled, one by one, until a journal says otherwise."""
        former, self.floor = self.floor, floor
        for at, end, chunk, state in self.parts(floor, former):
            if chunk is None and state == FREE:
                self.settle_plain(at, end)
            else:
                # Bytes below the floor are settled; now they count.
                self.totals[SETTLED] += end - at


def edges(first: int, until: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that do not fill a chunk."""
    low, high = -(-first >> BITS) << BITS, until >> BITS << BITS
    if low > high:
        yield first, until
        return
    if first < low:
        yield first, low
    if high < until:
        yield high, until


def by_chunk(first: int, until: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that are in one chunk each."""
    while first < until:
        end = min(until, ((first >> BITS) + 1) << BITS)
        yield first, end
        first = end
