"""Acking groups in a checkpoint: `GroupState`, then a `LedgerChunk` for each range that had exceptions at its place,
then `VerdictsState`s, then `LeasesState`s. Pure.

Each is true at its own place in the log, and changes come in between. Whoever reads from the checkpoint's beginning on
passes over what is said of a group before its `GroupState`, which says where it stands. From there on everything that
is logged counts, on what is known so far; each chunk that comes replaces what is known of it; and all the others had no
exceptions when the `GroupState` was written, so of them the changes alone tell everything. That is why the chunks are
listed in the step in which that state is taken, and why each of them is told of, also one that is settled by then. The
floor follows by itself. Who died is told when all chunks are: before, it is not known of each record whether it was
settled when a change came that has it die. A group that has no exceptions, and knows of no dead, says nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Final, NamedTuple

from mirrorlog.queues.checkpoint_states import GroupState, LeasesState, LedgerChunk, VerdictsState
from mirrorlog.queues.groups.ledger import CHUNK_RECORDS, LeaseRow, Ledger, State
from mirrorlog.queues.groups.ledger_chunk import NOT_PARKED, SETTLED, Piece, Row
from mirrorlog.queues.groups.ledger_update import LedgerUpdate

LEASES_PER_STATE: Final = 32
"""A holder's name has up to 255 characters of up to 4 bytes: half of the smallest batch that nodes can be told to
allow."""

PIECE_RECORDS: Final = 1024
"""In one value, of 27 bytes each when all of them are parked one by one: half of such a batch again."""

RUNS_PER_STATE: Final = 500
"""Of the dead, of 18 bytes each, at most."""
_OFFSETS_END: Final = 1 << 63

_BITS_BYTES: Final = PIECE_RECORDS // 8
_TO_DIGITS: Final = bytes(ord("1") if state == SETTLED else ord("0") for state in range(256))
_FROM_DIGITS: Final = bytes(SETTLED if digit == ord("1") else 0 for digit in range(256))
_PARKED: Final = bytes([State.PARKED])
_LEASED: Final = bytes([State.LEASED])


class GroupPart(NamedTuple):
    """What one value of a checkpoint is to tell of a group: [first, until) of its records, or its dead from `dead` on,
    or these `leases`, or, with none of these, where it stands."""

    walk: GroupWalk
    first: int = -1
    until: int = -1
    dead: int = -1
    leases: Sequence[int] = ()


class GroupWalk:
    """One group's way into a checkpoint. `ledger`: its own; one that has taken its place was made since, and is in the
    log."""

    def __init__(self, queue_id: int, group: str, ledger: Ledger) -> None:
        self.queue_id = queue_id
        self.group = group
        self.ledger = ledger
        self._ranges: list[tuple[int, int]] = []
        # Up to where the state told of the dead that was taken last; None while none is to be told of.
        self._told_to: int | None = None

    def parts(self) -> Iterator[GroupPart]:
        """In their order; the state of each is taken before the next one is asked for."""
        yield GroupPart(self)
        for first, until in self._ranges:
            step = PIECE_RECORDS if until - first == CHUNK_RECORDS else until - first
            yield from (GroupPart(self, at, at + step) for at in range(first, until, step))
        while (at := self._told_to) is not None and at < _OFFSETS_END:
            self._told_to = None  # when nobody takes the state its group is gone
            yield GroupPart(self, dead=at)
        numbers = iter(list(self.ledger.leases))
        while some := tuple(islice(numbers, LEASES_PER_STATE)):
            yield GroupPart(self, leases=some)

    def state(self, part: GroupPart) -> GroupState | LedgerChunk | VerdictsState | LeasesState:
        """What a part has to tell now."""
        if part.first >= 0:
            return self._chunk(part.first, part.until)
        if part.leases:
            return self._leases(part.leases)
        if part.dead >= 0:
            return self._verdicts(part.dead)
        ledger = self.ledger
        self._ranges = list(ledger.chunk_ranges())
        self._told_to = 0 if self._ranges or ledger.verdicts else None
        return GroupState(
            queue_id=self.queue_id,
            group=self.group,
            floor=ledger.floor,
            watermark=ledger.watermark,
            void=ledger.void,
            known_from=ledger.verdicts.known_from,
        )

    def _chunk(self, first: int, until: int) -> LedgerChunk:
        piece = self.ledger.piece(first, until)
        if piece is None:
            return LedgerChunk(queue_id=self.queue_id, group=self.group, first=first, next=until)
        return LedgerChunk(
            queue_id=self.queue_id,
            group=self.group,
            first=first,
            next=until,
            settled=_packed(piece.states),
            attempts=b"" if piece.attempts is None else piece.attempts,
            parked=[
                (row.first - first, row.until - first, row.number, row.logged_at)
                for row in piece.rows
                if row.logged_at != NOT_PARKED
            ],
            leased=[
                (row.first - first, row.until - first, row.number) for row in piece.rows if row.logged_at == NOT_PARKED
            ],
        )

    def _verdicts(self, since: int) -> VerdictsState:
        verdicts = self.ledger.verdicts
        borders = verdicts.runs(since, RUNS_PER_STATE)
        self._told_to = borders[-1] if len(borders) == 2 * RUNS_PER_STATE else _OFFSETS_END
        return VerdictsState(
            queue_id=self.queue_id,
            group=self.group,
            first=since,
            next=self._told_to,
            known_from=verdicts.known_from,
            dead=[until - first for first, until in pairwise([since, *borders])],
        )

    def _leases(self, numbers: Sequence[int]) -> LeasesState:
        there = self.ledger.leases
        rows = {number: there[number] for number in numbers if number in there}
        return LeasesState(
            queue_id=self.queue_id,
            group=self.group,
            leases={number: (row.holder, row.lease_ms, row.logged_at) for number, row in rows.items()},
        )


def restore_chunk(update: LedgerUpdate, state: LedgerChunk) -> None:
    """Tell a ledger what a checkpoint knows of some of its records. Raises ValueError when that makes no sense."""
    if not state.settled:
        update.settle(state.first, state.next)
        return
    if (
        state.first % PIECE_RECORDS
        or state.next - state.first != PIECE_RECORDS
        or len(state.settled) != _BITS_BYTES
        or len(state.attempts) not in (0, PIECE_RECORDS)
    ):
        raise ValueError(f"[{state.first}, {state.next}) is no chunk of {PIECE_RECORDS} records")
    update.restore(_piece(state))


def restore_verdicts(update: LedgerUpdate, state: VerdictsState) -> None:
    """Tell a ledger that has all of its chunks which of a range died. Raises ValueError when that makes no sense."""
    borders = list(accumulate(state.dead, initial=state.first))
    if (
        len(borders) % 2 == 0
        or any(step <= 0 for step in state.dead[1:])
        or not state.first <= borders[-1] <= state.next
    ):
        raise ValueError(f"{state.dead[:20]} are no runs of [{state.first}, {state.next})")
    update.restore_verdicts(state.first, state.next, borders[1:], state.known_from)


def restore_leases(update: LedgerUpdate, state: LeasesState) -> None:
    """Tell a ledger that has all of its chunks whose the leases are."""
    for number, row in state.leases.items():
        update.extend(number, LeaseRow(*row))


def _piece(state: LedgerChunk) -> Piece:
    first = state.first
    states = _unpacked(state.settled)
    rows = [Row(first + low, first + high, delay_ms, at) for low, high, delay_ms, at in state.parked]
    rows += [Row(first + low, first + high, number, NOT_PARKED) for low, high, number in state.leased]
    reached = first
    for row in sorted(rows):
        low, high = row.first - first, row.until - first
        if not reached <= row.first < row.until <= state.next or states.count(SETTLED, low, high):
            raise ValueError(f"[{row.first}, {row.until}) cannot wait for anything there")
        states[low:high] = (_LEASED if row.logged_at == NOT_PARKED else _PARKED) * (high - low)
        reached = row.until
    return Piece(first, state.next, bytes(states), state.attempts or None, tuple(sorted(rows)))


def _packed(states: bytes | None) -> bytes:
    """A bit per record, the lowest one first. By way of a number in binary digits: there is no step per record."""
    if states is None:
        return bytes(_BITS_BYTES)
    return int(states[::-1].translate(_TO_DIGITS), 2).to_bytes(_BITS_BYTES, "little")


def _unpacked(bits: bytes) -> bytearray:
    digits = format(int.from_bytes(bits, "little"), f"0{PIECE_RECORDS}b").encode()
    return bytearray(digits.translate(_FROM_DIGITS)[::-1])
