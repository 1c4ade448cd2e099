"""A piece on its way: each of its targets gets its records, or it is known that it never will. Thin: `queues.pieces`
says what follows from an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Final

from mirrorlog.broker.departure_log import DepartureLog
from mirrorlog.broker.letter_reader import LetterReader
from mirrorlog.commitlog.attributes import asked_attributes
from mirrorlog.commitlog.body import Record, encode_batch
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Addressed, Target
from mirrorlog.queues.departures import Departure
from mirrorlog.queues.flat_ranges import count, pairs
from mirrorlog.queues.letter_body import DEATHS_MAX, Death, letter
from mirrorlog.queues.pieces import Step, reduced, refused, served
from mirrorlog.queues.stretches import flat
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.broker.letter_roads import LetterRoads

RENUMBERED_MAX: Final = 8
"""In one go, of one target: more often, and it is tried again later."""
_EVENTS: Final = {
    **dict.fromkeys(("dropped", "gone", "reduced"), "letters_dropped"),
    "held": "letters_held",
    "landed": "departure_had_landed",
    "renumbered": "departure_renumbered",
    "shortened": "departure_shortened",
    "split": "departure_split",
    "stayed": "letters_stayed",
}
"""What the log says of a step, by `Step.what`."""

_BEFORE_ANY: Final = ("sent", "gone", "reduced")
"""Steps behind which the first target of a new piece is one that nothing was sent to."""


class Sending:
    """Of one mastership."""

    def __init__(self, log: DepartureLog, reader: LetterReader, *, helper: Executor) -> None:
        self._log = log
        self._reader = reader
        self._helper = helper

    async def send(
        self, queue_id: int, departure: Departure, piece: Addressed, roads: LetterRoads, *, is_new: bool
    ) -> Addressed:
        """Until all copies of each target have what it was to get, or it is known that it will not: the piece without
        targets then. `is_new`: nobody can have sent it. Raises MirrorlogError."""
        renumbered = 0
        while piece.targets:
            step = await self._serve(queue_id, departure, piece, roads, sent=not is_new)
            is_new = is_new and step.what in _BEFORE_ANY
            renumbered = renumbered + 1 if step.what == "renumbered" else 0
            if renumbered > RENUMBERED_MAX:
                raise _never_takes(piece.targets[0])
            piece = step.piece
            if step.logged:
                await self._log.address(queue_id, piece)
        return piece

    async def _serve(
        self, queue_id: int, departure: Departure, piece: Addressed, roads: LetterRoads, *, sent: bool
    ) -> Step:
        """One batch for the first target, and what follows from the answer. Raises MirrorlogError."""
        target = piece.targets[0]
        leaving = await self._reader.read_again(queue_id, pairs(target.ranges))
        if leaving.gone:
            gone = flat(leaving.gone)
            return self._noted(
                queue_id, target, reduced(piece, gone, sent=sent), "freed by retention, or lost", count(gone)
            )
        work = partial(
            _encode,
            [record for _, record in leaving.records],
            self._log.death(queue_id, departure),
            target,
            self._log.producer(queue_id),
            leaving.priority,
        )
        batch = await asyncio.get_running_loop().run_in_executor(self._helper, work)
        try:
            await roads.hand_over(target.log_id, batch, name=target.name)
        except MirrorlogError as error:
            step = refused(piece, departure.reason, error)
            if step is None:
                raise
            return self._noted(queue_id, target, step, str(error), target.records)
        return Step(served(piece), "sent", logged=False)

    def _noted(self, queue_id: int, target: Target, step: Step, why: str, records: int) -> Step:
        self._log.note(
            queue_id, _EVENTS[step.what], target=target.name, records=records, first=target.ranges[0], reason=why
        )
        return step


def _never_takes(target: Target) -> MirrorlogError:
    return MirrorlogError(f"queue {shown(target.name)!r} takes no producer epoch up to {target.producer_epoch}")


def _encode(records: Sequence[Record], death: Death, target: Target, producer_id: int, priority: int) -> bytes:
    """The same whoever makes it."""
    tables = DEATHS_MAX if target.tables < 0 else target.tables
    return bytes(
        encode_batch(
            [letter(record, death, tables_max=tables) for record in records],
            queue_id=target.queue_id,
            producer_id=producer_id,
            producer_epoch=target.producer_epoch,
            sequence=target.sequence,
            attributes=asked_attributes(priority),
        )
    )
