"""Who has had what: the states of one acking group's records (docs/decisions/0033).

Everything below the *floor* is settled, everything above it is free, but for exceptions. Exceptions live in chunks of
4,096 records, a byte each; a chunk without exceptions is not there, and neither is one that is settled whole: runs of
these are kept as ranges, since queue offsets leap by 2^32 and more after a loss. So a group that acks in order is a few
numbers, one with a million records in hand a megabyte, and order comes by itself: what returns is found at its place.

Two sorts of changes meet here. Those that were logged (`settle`, `give_again`, `lease`, …) are the same on every copy,
and can be undone: while `journal` is a list they write into it what was there before. *Volatile* ones (`take`,
`give_back`) are the master's memory of what it has given out, and only it has them: OUT is nobody else's state, and is
in no checkpoint and no journal. What a logged change does never depends on it.

Pure. Queue offsets everywhere; ranges are [first, until).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirrorlog.queues.groups.ledger_chunk import (
    BITS,
    FREE,
    NOT_PARKED,
    OUT,
    RECORDS,
    SETTLED,
    Chunk,
    Piece,
    Row,
    State,
)
from mirrorlog.queues.groups.verdicts import Before, Verdicts
from mirrorlog.queues.ranges import Spans

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


class _LeaseBefore(NamedTuple):
    """In a journal: how a lease stood."""

    number: int
    row: LeaseRow | None


Journal = list[Piece | _LeaseBefore | Before]
_Part = tuple[int, int, Chunk | None, int]
"""first, until, the chunk that they are in or None, then the state of all of them."""


class Ledger:
    """One group. `floor`: all below are settled. `watermark`: those below may have been given out. `void`: see
    `GroupReset`. `verdicts`: what the settled ones stand as; `known_from`: of those below nothing is known, by default
    of all below the floor."""

    __slots__ = (
        "_chunks", "_lease_chunks", "_order", "_totals", "_wholes",
        "floor", "journal", "leases", "verdicts", "void", "watermark",
    )  # fmt: skip

    def __init__(
        self, floor: int = 0, watermark: int | None = None, void: int = 0, *, known_from: int | None = None
    ) -> None:
        self.floor = floor
        self.void = void
        self.verdicts = Verdicts(floor if known_from is None else known_from)
        self.watermark = floor if watermark is None else watermark
        self.leases: dict[int, LeaseRow] = {}
        self.journal: Journal | None = None
        # By number of the chunk: its first queue offset / RECORDS.
        self._chunks: dict[int, Chunk] = {}
        self._order: list[int] = []
        # Numbers of the chunks that are settled whole, above the floor.
        self._wholes = Spans()
        # How many have which state, above the floor; of the free ones it says nothing.
        self._totals = [0] * len(State)
        # By lease, and number of the chunk: how many records of it are there, and that none is in front of which.
        self._lease_chunks: dict[int, dict[int, tuple[int, int]]] = {}

    # --- asking ---

    @property
    def out(self) -> int:
        """How many are given out."""
        return self._totals[OUT]

    @property
    def parked(self) -> int:
        """How many wait with a delay."""
        return self._totals[_PARKED]

    @property
    def leased(self) -> int:
        """How many are leased."""
        return self._totals[_LEASED]

    def ready(self, until: int) -> int:
        """How many below `until` are free."""
        return self._below(until, (SETTLED, OUT, _PARKED, _LEASED))

    def unsettled_total(self, until: int) -> int:
        """How many below `until` are not settled."""
        return self._below(until, (SETTLED,))

    def unsettled(self, first: int, until: int) -> int:
        """How many of [first, until) are not settled."""
        found = 0
        for at, end, chunk, state in self._parts(first, until):
            if chunk is not None:
                found += end - at - chunk.count(SETTLED, at, end)
            elif state == FREE:
                found += end - at
        return found

    def next_free(self, at: int, until: int) -> tuple[int, int] | None:
        """The first maximal run of free records within [max(at, floor), until)."""
        first = -1
        for begin, end, chunk, state in self._parts(at, until):
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
        run: tuple[int, int] | None = None
        for begin, end in self._idle_pieces(first, until):
            if run is not None and run[1] == begin:
                run = run[0], end
                continue
            if run is not None:
                yield run
            run = begin, end
        if run is not None:
            yield run

    def attempts(self, at: int, until: int) -> tuple[int, int]:
        """How often the record at `at` came back, 255 standing for more; and where the run ends, `until` at the latest,
        of those with the same number."""
        count, reached = -1, at
        for _, end, chunk, _ in self._parts(at, until):
            here, run_end = (0, end) if chunk is None else chunk.attempts_at(reached, end)
            if count not in (-1, here):
                return count, reached
            count, reached = here, run_end
            if run_end < end:
                return count, reached
        return max(count, 0), until

    def parked_rows(self, since: int = 0) -> Iterator[Parked]:
        """What waits with a delay, by queue offset, from `since` on."""
        for number in self._order[bisect_left(self._order, since >> BITS) :] if self.parked else ():
            for row in self._chunks[number].rows:
                if row.logged_at != NOT_PARKED and row.first >= since:
                    yield Parked(*row)

    def lease_ranges(self, lease: int) -> Iterator[tuple[int, int]]:
        """What a lease has still, by queue offset; a range never reaches over a chunk's border."""
        for number, (records, first) in sorted(self._lease_chunks.get(lease, {}).items()):
            yield from self._chunks[number].leased(lease, records, first)

    def lease_within(self, lease: int, first: int, until: int) -> Iterator[tuple[int, int]]:
        """What a lease has of [first, until), by queue offset, however much it has elsewhere."""
        for at, end, chunk, _ in self._parts(first, until) if lease in self._lease_chunks else ():
            for row in chunk.rows_in(at, end) if chunk is not None else ():
                if row.number == lease and row.logged_at == NOT_PARKED:
                    yield row.first, row.until

    def lease_records(self, lease: int) -> int:
        """How many records a lease has still."""
        return sum(records for records, _ in self._lease_chunks.get(lease, {}).values())

    def lease_of(self, at: int) -> int | None:
        """Which lease has the record."""
        chunk = self._chunks.get(at >> BITS)
        row = None if chunk is None else chunk.row_at(at)
        return row.number if row is not None and row.logged_at == NOT_PARKED else None

    def lease_has(self, lease: int, first: int, until: int) -> bool:
        """Whether one row of the lease has all of [first, until): so it is with most receipts. False may mean that
        several have it, see `lease_ranges`."""
        chunk = self._chunks.get(first >> BITS)
        row = None if chunk is None else chunk.row_at(first)
        return row is not None and (row.number, row.logged_at) == (lease, NOT_PARKED) and until <= row.until

    def departing(self, first: int, until: int) -> int:
        """How many of [first, until) leave for other queues."""
        return sum(high - low for low, high in self.departing_within(first, until)) if self.leased else 0

    def departing_within(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        """What of [first, until) leaves for other queues, by queue offset: what leases below 2^32 have."""
        for at, end, chunk, _ in self._parts(first, until):
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
            for number in list(self._order):
                self.give_back(number << BITS, (number + 1) << BITS)

    # --- what was logged ---

    def settle(self, first: int, until: int) -> int:
        """They are done, whatever they were. How many it was that changed."""
        chunk = self._chunks.get(first >> BITS)
        if chunk is not None and until == first + 1 and first >= self.floor and not chunk.rows:
            return self._settle_one(chunk, first)
        if first <= self.floor and not self._order and not self._wholes:
            return self._settle_ahead(until)
        changed = 0
        for at, end, chunk, state in self._parts(max(first, self.floor), until):
            if chunk is not None:
                changed += self._settle_in(chunk, at, end)
            elif state == FREE:
                changed += end - at
                self._settle_free(at, end)
        self._raise_floor()
        return changed

    def die(self, first: int, until: int) -> int:
        """They are done as by `settle`, and stand as dead if they were not settled before."""
        for low, high, state in list(self.runs(first, until)):
            for before in self.verdicts.died(low, high) if state != State.SETTLED else ():
                self._note(before)
        return self.settle(first, until)

    def give_again(self, first: int, until: int, *, counted: bool, delay_ms: int = 0, logged_at: int = 0) -> None:
        """What is not settled of it is free, or waits for `delay_ms`; `counted`: one attempt more for each."""
        row = (delay_ms, logged_at) if delay_ms else None
        for chunk, at, end in self._unsettled(first, until, needed=counted or row is not None):
            self._write(chunk, FREE if row is None else _PARKED, at, end, row)
            if counted:
                chunk.count_attempt(at, end)
            self._tidy(chunk)

    def lease(self, number: int, row: LeaseRow, first: int, until: int) -> None:
        """What is not settled of it belongs to that lease."""
        self._note(_LeaseBefore(number, self.leases.get(number)))
        for chunk, at, end in self._unsettled(first, until):
            self._write(chunk, _LEASED, at, end, (number, NOT_PARKED))
        if number in self._lease_chunks:
            self.leases[number] = row

    def extend(self, number: int, row: LeaseRow) -> None:
        """That lease begins anew, if it has anything."""
        if number in self._lease_chunks:
            self._note(_LeaseBefore(number, self.leases.get(number)))
            self.leases[number] = row

    def undo(self, journal: Journal, *, floor: int, watermark: int) -> None:
        """Take back what was written into a journal, and only that, since `floor` and `watermark` were so."""
        self.drop_volatile()
        self.watermark = watermark
        if floor < self.floor:
            self._lower_floor(floor)
        for entry in reversed(journal):
            if isinstance(entry, Piece):
                self._put_back(entry)
            elif isinstance(entry, Before):
                self.verdicts.take_back(entry)
            elif entry.row is None:
                self.leases.pop(entry.number, None)
            else:
                self.leases[entry.number] = entry.row
        self._raise_floor()

    # --- checkpoints ---

    def chunk_ranges(self) -> Iterator[tuple[int, int]]:
        """What has exceptions, as ranges of which `piece` can be asked: chunks, and runs of some settled whole."""
        yield from ((number << BITS, (number + 1) << BITS) for number in self._order)
        yield from ((first << BITS, until << BITS) for first, until in self._wholes)

    def piece(self, first: int, until: int) -> Piece | None:
        """What is known of a range that `chunk_ranges` gave once, or a part of it; None when all of it is settled."""
        chunk = self._chunks.get(first >> BITS)
        if chunk is not None and until <= chunk.base + RECORDS:
            return chunk.piece(first, until)
        if self.unsettled(first, until) == 0:
            return None
        below = self.floor - first
        if below <= 0:
            return Piece(first, until, None, None)
        # The floor passed a part of it, and nothing is special behind that.
        return Piece(first, until, bytes([SETTLED]) * below + bytes(until - first - below), None)

    def restore(self, piece: Piece) -> None:
        """What a checkpoint knows of a part of a chunk, in place of what is known here."""
        if piece.until <= self.floor:
            return
        below = self.floor - piece.first
        if below > 0:
            piece = Piece(
                piece.first + below,
                piece.until,
                None if piece.states is None else piece.states[below:],
                None if piece.attempts is None else piece.attempts[below:],
                piece.rows,
            )
        chunk = self._chunks.get(piece.first >> BITS) or self._open(piece.first >> BITS)
        self._note(chunk.piece(piece.first, piece.until))
        self._put_back(piece)
        self._raise_floor()

    def restore_verdicts(self, first: int, until: int, dead: Sequence[int], known_from: int) -> None:
        """What a checkpoint knows of the dead of [first, until), in place of what is known here. `dead`: as borders."""
        self._note(self.verdicts.put(first, until, dead, known_from))

    # --- inside: where things are ---

    def _parts(self, first: int, until: int) -> Iterator[_Part]:
        """What [max(first, floor), until) consists of. A part that was given may be changed before the next is asked
        for."""
        at = max(first, self.floor)
        while at < until:
            number = at >> BITS
            chunk = self._chunks.get(number)
            if chunk is not None:
                end = min(until, (number + 1) << BITS)
                yield at, end, chunk, FREE
            elif (whole := self._wholes.covering(number)) is not None:
                end = min(until, whole[1] << BITS)
                yield at, end, None, SETTLED
            else:
                end = min(until, self._next_exception(number, until) << BITS)
                yield at, end, None, FREE
            at = end

    def _next_exception(self, number: int, until: int) -> int:
        """The first chunk behind that one with anything special; one behind `until` without any."""
        index = bisect_left(self._order, number)
        found = self._order[index] if index < len(self._order) else (until >> BITS) + 1
        whole = self._wholes.next_from(number)
        return found if whole is None else min(found, whole)

    def _pieces_of_one_state(self, first: int, until: int) -> Iterator[tuple[int, int, int]]:
        if first < min(until, self.floor):
            yield first, min(until, self.floor), SETTLED
        for at, end, chunk, state in self._parts(first, until):
            if chunk is None:
                yield at, end, state
                continue
            begin = at
            while begin < end:
                run_end = chunk.run_end(begin, end)
                yield begin, run_end, chunk.states[begin - chunk.base]
                begin = run_end

    def _idle_pieces(self, first: int, until: int) -> Iterator[tuple[int, int]]:
        for at, end, chunk, state in self._parts(first, until):
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
            found -= self._totals[state] - self._above(until, state)
        return found

    def _above(self, until: int, state: int) -> int:
        """How many from `until` on, above the floor, have that state."""
        if not self._totals[state]:
            return 0
        found = 0
        for number in self._order[bisect_left(self._order, until >> BITS) :]:
            base = number << BITS
            found += self._chunks[number].count(state, max(base, until), base + RECORDS)
        if state == SETTLED:
            for first, end in self._wholes.from_on(until >> BITS):
                found += (end << BITS) - max(first << BITS, until)
        return found

    # --- inside: changing ---

    def _note(self, entry: Piece | _LeaseBefore | Before) -> None:
        if self.journal is not None:
            self.journal.append(entry)

    def _open(self, number: int) -> Chunk:
        """The chunk, which is made if nothing there was special; one that is settled whole is opened again."""
        chunk = self._chunks.get(number)
        if chunk is None:
            base = number << BITS
            whole = self._wholes.covering(number) is not None
            chunk = self._chunks[number] = Chunk(base, base + RECORDS if whole else self.floor)
            self._wholes.remove(number, number + 1)
            insort(self._order, number)
        return chunk

    def _drop(self, number: int) -> None:
        del self._chunks[number]
        del self._order[bisect_left(self._order, number)]

    def _tidy(self, chunk: Chunk) -> None:
        """A chunk in which nothing is special goes."""
        number = chunk.base >> BITS
        if chunk.counts[SETTLED] == RECORDS:
            self._drop(number)
            self._wholes.add(number, number + 1)
        elif chunk.counts[FREE] == RECORDS - max(0, self.floor - chunk.base) and not chunk.has_attempts():
            self._drop(number)

    def _count(self, changes: list[int]) -> None:
        totals = self._totals
        for state, change in enumerate(changes):
            totals[state] += change

    def _settle_in(self, chunk: Chunk, first: int, until: int) -> int:
        changed = until - first - chunk.count(SETTLED, first, until)
        if changed:
            self._note(chunk.piece(first, until))
            self._write(chunk, SETTLED, first, until, None)
            chunk.forget_attempts(first, until)
            self._tidy(chunk)
        return changed

    def _settle_one(self, chunk: Chunk, at: int) -> int:
        """As `_settle_in`, of one record not below the floor that neither waits nor is leased: what most settlements
        are that are awaited one by one, or come in no order; and five times as fast."""
        index = at - chunk.base
        state = chunk.states[index]
        if state == SETTLED:
            return 0
        if self.journal is not None:
            self.journal.append(chunk.piece(at, at + 1))
        chunk.states[index] = SETTLED
        for counts in (chunk.counts, self._totals):
            counts[state] -= 1
            counts[SETTLED] += 1
        if chunk.attempts is not None:
            chunk.attempts[index] = 0
        if chunk.counts[SETTLED] == RECORDS:
            self._tidy(chunk)
        if at == self.floor:
            self._raise_floor()
        return 1

    def _settle_ahead(self, until: int) -> int:
        """While nothing is special: the floor moves."""
        changed = max(0, until - self.floor)
        if changed:
            self._note(Piece(self.floor, until, None, None))
            self.floor = until
        return changed

    def _settle_free(self, first: int, until: int) -> None:
        """Where nothing is special."""
        self._note(Piece(first, until, None, None))
        if first == self.floor:
            self.floor = until
        else:
            self._settle_plain(first, until)

    def _settle_plain(self, first: int, until: int) -> None:
        """Settle what nothing is special of and is above the floor: whole chunks as a range, the rest in chunks."""
        low, high = -(-first >> BITS), until >> BITS
        if low < high:
            self._wholes.add(low, high)
            self._totals[SETTLED] += (high - low) << BITS
        for at, end in _edges(first, until):
            chunk = self._open(at >> BITS)
            self._write(chunk, SETTLED, at, end, None)
            self._tidy(chunk)

    def _unsettled(self, first: int, until: int, *, needed: bool = True) -> Iterator[tuple[Chunk, int, int]]:
        """What is not settled of a range, by chunk, noted in the journal. `needed`: also where nothing is special."""
        for at, end, chunk, state in self._parts(first, until):
            if chunk is not None:
                for low, high in list(chunk.unsettled_runs(at, end)):
                    self._note(chunk.piece(low, high))
                    yield chunk, low, high
            elif state == FREE and needed:
                for low, high in _by_chunk(at, end):
                    self._note(Piece(low, high, None, None))
                    yield self._open(low >> BITS), low, high

    def _write(self, chunk: Chunk, state: int, first: int, until: int, row: tuple[int, int] | None) -> None:
        if chunk.rows:
            self._forget_rows(chunk, chunk.take_rows(first, until))
        self._count(chunk.write(state, first, until))
        if row is not None:
            chunk.add_row(Row(first, until, *row))
            if row[1] == NOT_PARKED:
                self._count_lease(row[0], chunk, until - first, first)

    def _forget_rows(self, chunk: Chunk, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.logged_at == NOT_PARKED:
                self._count_lease(row.number, chunk, row.first - row.until, row.first)

    def _count_lease(self, lease: int, chunk: Chunk, change: int, first: int) -> None:
        """So many records of it more, or fewer, of which the lowest is `first`. A lease that has nothing is
        forgotten."""
        there = self._lease_chunks.setdefault(lease, {})
        number = chunk.base >> BITS
        records, lowest = there.get(number, (0, first))
        if records + change:
            there[number] = records + change, min(lowest, first)
            return
        there.pop(number, None)
        if not there:
            del self._lease_chunks[lease]
            if lease in self.leases:
                self._note(_LeaseBefore(lease, self.leases.pop(lease)))

    def _swap(self, state: int, other: int, first: int, until: int) -> None:
        within = self._chunks.get(first >> BITS)
        if within is not None and first >= self.floor and first < until <= within.base + RECORDS:
            self._swap_in(within, state, other, first, until)
            return
        for at, end, chunk, uniform in self._parts(first, until):
            if chunk is not None:
                self._swap_in(chunk, state, other, at, end)
            elif uniform == state:
                for low, high in _by_chunk(at, end):
                    self._swap_in(self._open(low >> BITS), state, other, low, high)

    def _swap_in(self, chunk: Chunk, state: int, other: int, first: int, until: int) -> None:
        count = chunk.swap(state, other, first, until)
        self._totals[state] -= count
        self._totals[other] += count
        self._tidy(chunk)

    def _raise_floor(self) -> None:
        """Over what is settled behind it."""
        while True:
            number = self.floor >> BITS
            chunk = self._chunks.get(number)
            if chunk is not None:
                if chunk.states[self.floor - chunk.base] != SETTLED:
                    self._tidy(chunk)
                    return
                reached = chunk.run_end(self.floor, chunk.base + RECORDS)
            else:
                whole = self._wholes.covering(number)
                if whole is None:
                    return
                reached = whole[1] << BITS
                self._wholes.remove(*whole)
            self._totals[SETTLED] -= reached - self.floor
            self.floor = reached

    def _lower_floor(self, floor: int) -> None:
        """What is between is settled, one by one, until a journal says otherwise."""
        former, self.floor = self.floor, floor
        for at, end, chunk, state in self._parts(floor, former):
            if chunk is None and state == FREE:
                self._settle_plain(at, end)
            else:
                # Bytes below the floor are settled; now they count.
                self._totals[SETTLED] += end - at

    def _put_back(self, piece: Piece) -> None:
        if piece.states is None:
            self._clear(piece.first, piece.until)
        else:
            self._put_in(piece)

    def _put_in(self, piece: Piece) -> None:
        chunk = self._open(piece.first >> BITS)
        former = list(chunk.rows_in(piece.first, piece.until)) if chunk.rows else []
        self._count(chunk.put(piece))
        for row in piece.rows:
            if row.logged_at == NOT_PARKED:
                self._count_lease(row.number, chunk, row.until - row.first, row.first)
        # Behind them, or a lease that is in both would be forgotten in between.
        self._forget_rows(chunk, former)
        self._tidy(chunk)

    def _clear(self, first: int, until: int) -> None:
        """Nothing is special any more in a range."""
        for at, end, chunk, state in list(self._parts(first, until)):
            if chunk is not None:
                self._put_in(Piece(at, end, None, None))
            elif state == SETTLED:
                low, high = -(-at >> BITS), end >> BITS
                for edge in _edges(at, end):
                    self._put_in(Piece(*edge, None, None))
                if low < high:
                    self._wholes.remove(low, high)
                    self._totals[SETTLED] -= (high - low) << BITS


def _edges(first: int, until: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that do not fill a chunk."""
    low, high = -(-first >> BITS) << BITS, until >> BITS << BITS
    if low > high:
        yield first, until
        return
    if first < low:
        yield first, low
    if high < until:
        yield high, until


def _by_chunk(first: int, until: int) -> Iterator[tuple[int, int]]:
    """The parts of a range that are in one chunk each."""
    while first < until:
        end = min(until, ((first >> BITS) + 1) << BITS)
        yield first, end
        first = end
