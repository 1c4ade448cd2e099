"""What the log's changes do with a ledger, and how a change is taken back when the log is cut.

Each change is the same on every copy. A `LedgerUpdate` makes the changes of one batch; where they may be cut yet it
writes into a journal what stood in the places that it touches, and `undo` puts that back. What a change does never
depends on what the master has given out.

Pure. Queue offsets everywhere; ranges are [first, until).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mirrorlog.queues.groups.ledger import LeaseRow, Ledger, State, by_chunk, edges
from mirrorlog.queues.groups.ledger_chunk import BITS, FREE, NOT_PARKED, RECORDS, SETTLED, Chunk, Piece, Row
from mirrorlog.queues.groups.verdicts import Before

_PARKED: Final = int(State.PARKED)
_LEASED: Final = int(State.LEASED)


class _LeaseBefore(NamedTuple):
    """In a journal: how a lease stood."""

    number: int
    row: LeaseRow | None


Journal = list[Piece | _LeaseBefore | Before]


class LedgerUpdate:
    """Changes to one ledger. `journal`: takes what they are undone with; None when nobody will."""

    __slots__ = ("_journal", "_ledger")

    def __init__(self, ledger: Ledger, journal: Journal | None = None) -> None:
        self._ledger = ledger
        self._journal = journal

    def settle(self, first: int, until: int) -> int:
        """They are done, whatever they were. How many it was that changed."""
        ledger = self._ledger
        chunk = ledger.chunks.get(first >> BITS)
        if chunk is not None and until == first + 1 and first >= ledger.floor and not chunk.rows:
            return self._settle_one(chunk, first)
        if first <= ledger.floor and not ledger.order and not ledger.wholes:
            # Nothing is special: the floor moves.
            if until <= ledger.floor:
                return 0
            changed = until - ledger.floor
            self._settle_free(ledger.floor, until)
            return changed
        changed = 0
        for at, end, chunk, state in ledger.parts(first, until):
            if chunk is not None:
                changed += self._settle_in(chunk, at, end)
            elif state == FREE:
                changed += end - at
                self._settle_free(at, end)
        ledger.raise_floor()
        return changed

    def die(self, first: int, until: int) -> int:
        """They are done as by `settle`, and stand as dead if they were not settled before."""
        for low, high, state in list(self._ledger.runs(first, until)):
            for before in self._ledger.verdicts.died(low, high) if state != State.SETTLED else ():
                self._note(before)
        return self.settle(first, until)

    def give_again(self, first: int, until: int, *, counted: bool, delay_ms: int = 0, logged_at: int = 0) -> None:
        """What is not settled of it is free, or waits for `delay_ms`; `counted`: one attempt more for each."""
        row = (delay_ms, logged_at) if delay_ms else None
        for chunk, at, end in self._unsettled(first, until, needed=counted or row is not None):
            self._write(chunk, FREE if row is None else _PARKED, at, end, row)
            if counted:
                chunk.count_attempt(at, end)
            self._ledger.tidy(chunk)

    def lease(self, number: int, row: LeaseRow, first: int, until: int) -> None:
        """What is not settled of it belongs to that lease."""
        self._note(_LeaseBefore(number, self._ledger.leases.get(number)))
        for chunk, at, end in self._unsettled(first, until):
            self._write(chunk, _LEASED, at, end, (number, NOT_PARKED))
        if number in self._ledger.lease_chunks:
            self._ledger.leases[number] = row

    def extend(self, number: int, row: LeaseRow) -> None:
        """That lease begins anew, if it has anything."""
        if number in self._ledger.lease_chunks:
            self._note(_LeaseBefore(number, self._ledger.leases.get(number)))
            self._ledger.leases[number] = row

    def undo(self, journal: Journal, *, floor: int, watermark: int) -> None:
        """Take back what was written into a journal, and only that, since `floor` and `watermark` were so."""
        ledger = self._ledger
        ledger.drop_volatile()
        ledger.watermark = watermark
        if floor < ledger.floor:
            ledger.lower_floor(floor)
        for entry in reversed(journal):
            if isinstance(entry, Piece):
                self._put_back(entry)
            elif isinstance(entry, Before):
                ledger.verdicts.take_back(entry)
            elif entry.row is None:
                ledger.leases.pop(entry.number, None)
            else:
                ledger.leases[entry.number] = entry.row
        ledger.raise_floor()

    def restore(self, piece: Piece) -> None:
        """What a checkpoint knows of a part of a chunk, in place of what is known here."""
        if piece.until <= self._ledger.floor:
            return
        below = self._ledger.floor - piece.first
        if below > 0:
            piece = Piece(
                piece.first + below,
                piece.until,
                None if piece.states is None else piece.states[below:],
                None if piece.attempts is None else piece.attempts[below:],
                piece.rows,
            )
        chunk = self._ledger.chunks.get(piece.first >> BITS) or self._ledger.open(piece.first >> BITS)
        self._note(chunk.piece(piece.first, piece.until))
        self._put_back(piece)
        self._ledger.raise_floor()

    def restore_verdicts(self, first: int, until: int, dead: Sequence[int], known_from: int) -> None:
        """What a checkpoint knows of the dead of [first, until), in place of what is known here. `dead`: as borders."""
        self._note(self._ledger.verdicts.put(first, until, dead, known_from))

    def _settle_in(self, chunk: Chunk, first: int, until: int) -> int:
        changed = until - first - chunk.count(SETTLED, first, until)
        if changed:
            self._note(chunk.piece(first, until))
            self._write(chunk, SETTLED, first, until, None)
            chunk.forget_attempts(first, until)
            self._ledger.tidy(chunk)
        return changed

    def _settle_one(self, chunk: Chunk, at: int) -> int:
        """As `_settle_in`, of one record not below the floor that neither waits nor is leased: what most settlements
        are that are awaited one by one, or come in no order; and five times as fast."""
        index = at - chunk.base
        state = chunk.states[index]
        if state == SETTLED:
            return 0
        if self._journal is not None:
            self._journal.append(chunk.piece(at, at + 1))
        chunk.states[index] = SETTLED
        for counts in (chunk.counts, self._ledger.totals):
            counts[state] -= 1
            counts[SETTLED] += 1
        if chunk.attempts is not None:
            chunk.attempts[index] = 0
        if chunk.counts[SETTLED] == RECORDS:
            self._ledger.tidy(chunk)
        if at == self._ledger.floor:
            self._ledger.raise_floor()
        return 1

    def _settle_free(self, first: int, until: int) -> None:
        """Where nothing is special."""
        self._note(Piece(first, until, None, None))
        if first == self._ledger.floor:
            self._ledger.floor = until
        else:
            self._ledger.settle_plain(first, until)

    def _unsettled(self, first: int, until: int, *, needed: bool = True) -> Iterator[tuple[Chunk, int, int]]:
        """What is not settled of a range, by chunk, noted in the journal. `needed`: also where nothing is special."""
        for at, end, chunk, state in self._ledger.parts(first, until):
            if chunk is not None:
                for low, high in list(chunk.unsettled_runs(at, end)):
                    self._note(chunk.piece(low, high))
                    yield chunk, low, high
            elif state == FREE and needed:
                for low, high in by_chunk(at, end):
                    self._note(Piece(low, high, None, None))
                    yield self._ledger.open(low >> BITS), low, high

    def _write(self, chunk: Chunk, state: int, first: int, until: int, row: tuple[int, int] | None) -> None:
        if chunk.rows:
            self._forget_rows(chunk, chunk.take_rows(first, until))
        self._ledger.count_states(chunk.write(state, first, until))
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
        there = self._ledger.lease_chunks.setdefault(lease, {})
        number = chunk.base >> BITS
        records, lowest = there.get(number, (0, first))
        if records + change:
            there[number] = records + change, min(lowest, first)
            return
        there.pop(number, None)
        if not there:
            del self._ledger.lease_chunks[lease]
            if lease in self._ledger.leases:
                self._note(_LeaseBefore(lease, self._ledger.leases.pop(lease)))

    def _put_back(self, piece: Piece) -> None:
        if piece.states is None:
            self._clear(piece.first, piece.until)
        else:
            self._put_in(piece)

    def _put_in(self, piece: Piece) -> None:
        chunk = self._ledger.open(piece.first >> BITS)
        former = list(chunk.rows_in(piece.first, piece.until)) if chunk.rows else []
        self._ledger.count_states(chunk.put(piece))
        for row in piece.rows:
            if row.logged_at == NOT_PARKED:
                self._count_lease(row.number, chunk, row.until - row.first, row.first)
        # Behind them, or a lease that is in both would be forgotten in between.
        self._forget_rows(chunk, former)
        self._ledger.tidy(chunk)

    def _clear(self, first: int, until: int) -> None:
        """Nothing is special any more in a range."""
        for at, end, chunk, state in list(self._ledger.parts(first, until)):
            if chunk is not None:
                self._put_in(Piece(at, end, None, None))
            elif state == SETTLED:
                low, high = -(-at >> BITS), end >> BITS
                for edge in edges(at, end):
                    self._put_in(Piece(*edge, None, None))
                if low < high:
                    self._ledger.wholes.remove(low, high)
                    self._ledger.totals[SETTLED] -= (high - low) << BITS

    def _note(self, entry: Piece | _LeaseBefore | Before) -> None:
        if self._journal is not None:
            self._journal.append(entry)
