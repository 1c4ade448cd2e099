"""Where the next piece of a forwarding goes: its records are read and routed, the queues asked for, and all of it is
logged (decision 0041). Thin: `queues.letter_routes` says which queues.

A piece may be for more queues than one change may name. Then it is addressed in parts, by the names of the queues, each
when the one before has what it was to get; and its records are settled with the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorlog.broker.dead_letters.journal import DeadLetterJournal
from mirrorlog.broker.dead_letters.reader import READ_BYTES_MAX, DeadLetterReader, Room
from mirrorlog.commitlog.format.body import Record
from mirrorlog.queues.changes import Addressed, DeadLetterTarget
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN, Forwarding
from mirrorlog.queues.dead_letters.routes import Routes, routes
from mirrorlog.queues.ranges import flat_of, joined_flat, pairs, without
from mirrorlog.wire.names import qualified, split

if TYPE_CHECKING:
    from mirrorlog.broker.ports import DeadLetterTransport

PIECE_RECORDS: Final = 256
PIECE_BYTES: Final = 256 * 1024
"""Of values, keys and headers; a larger record leaves alone."""
PIECE_PART: Final = 4
"""Of a batch, as large as this node takes one: letters are larger than their records."""
RANGES_MAX: Final = 1024
"""That are looked at for one piece: most of them may be gone."""
PAIRS_MAX: Final = 16_384
"""Of records and queues; a record for more of them leaves alone."""
TARGETS_AT_ONCE: Final = 500
"""Of one part of a piece."""
TARGET_BYTES: Final = 256 * 1024
TARGET_PART: Final = 8
"""The same as with pieces, of what one change says of its targets."""


@dataclass(slots=True)
class _Part:
    """Of a piece: targets, and queue offsets for which one was not found. `more`: there are queues behind that name."""

    targets: list[DeadLetterTarget] = field(default_factory=list)
    missed: set[int] = field(default_factory=set)
    size: int = 0
    more: str = ""

    def takes(self, target: DeadLetterTarget, *, size_max: int) -> bool:
        """One at least."""
        self.size += len(msgspec.msgpack.encode(target))
        if self.targets and (self.size > size_max or len(self.targets) >= TARGETS_AT_ONCE):
            self.more = self.targets[-1].name
            return False
        self.targets.append(target)
        return True


class Addressing:
    """Of one mastership. `batch_bytes_max`: as this node takes them."""

    def __init__(
        self, log: DeadLetterJournal, reader: DeadLetterReader, *, helper: Executor, batch_bytes_max: int
    ) -> None:
        self._log = log
        self._reader = reader
        self._helper = helper
        self._room = Room(PIECE_RECORDS, min(PIECE_BYTES, batch_bytes_max // PIECE_PART), READ_BYTES_MAX)
        self._target_bytes_max = min(TARGET_BYTES, batch_bytes_max // TARGET_PART)

    async def begin(self, queue_id: int, forwarding: Forwarding, transport: DeadLetterTransport) -> Addressed | None:
        """The next piece of a forwarding, logged if it goes anywhere; None when no record was there. Raises
        MirrorlogError."""
        ranges = list(islice(self._log.left(queue_id, forwarding), RANGES_MAX))
        if ranges and not self._log.is_confirmed(queue_id, ranges[-1][1]):
            await self._log.confirmed()  # what a full queue refuses leaves as it comes
        leaving = await self._reader.read(queue_id, ranges, self._room)
        if leaving.gone:
            gone = sum(until - first for first, until in leaving.gone)
            self._log.note(queue_id, "letters_dropped", reason="freed by retention, or lost", records=gone)
            self._log.settle_gone(queue_id, forwarding, leaving.gone)
        if leaving.unreadable:
            self._log.note(
                queue_id, "letters_held", departure=forwarding.number, ranges=leaving.unreadable[:8], reason=leaving.why
            )
            self._log.keep(queue_id, forwarding, leaving.unreadable, leaving.why)
        if not leaving.records:
            return None
        found = await self._routes(queue_id, forwarding, leaving.records, transport)
        part = await self._part(queue_id, found, transport)
        records = [at for at, _ in leaving.records[: found.records]]
        nowhere = sorted({*found.nowhere, *part.missed})
        kept = flat_of(nowhere) if forwarding.reason == REDRIVEN else []
        if not kept:
            self._note_dropped(queue_id, forwarding, nowhere, part)
        piece = Addressed(
            departure=forwarding.number, ranges=flat_of(records), targets=part.targets, kept=kept, more=part.more
        )
        if piece.targets:
            await self._log.address(queue_id, piece)
        return piece

    async def go_on(
        self, queue_id: int, forwarding: Forwarding, piece: Addressed, transport: DeadLetterTransport
    ) -> Addressed:
        """The next part of a piece of which all targets so far have what they were to get, logged if it goes anywhere.
        Raises MirrorlogError."""
        ranges = without(piece.ranges, piece.kept) if forwarding.reason == REDRIVEN else piece.ranges
        leaving = await self._reader.read_again(queue_id, pairs(ranges))
        found = await self._routes(queue_id, forwarding, leaving.records, transport, behind=split(piece.more)[1])
        part = await self._part(queue_id, found, transport)
        kept = joined_flat(piece.kept, flat_of(sorted(part.missed))) if forwarding.reason == REDRIVEN else piece.kept
        piece = Addressed(
            departure=piece.departure, ranges=piece.ranges, targets=part.targets, kept=kept, more=part.more
        )
        if piece.targets:
            await self._log.address(queue_id, piece)
        return piece

    # --- inside ---

    async def _routes(
        self,
        queue_id: int,
        forwarding: Forwarding,
        records: Sequence[tuple[int, Record]],
        transport: DeadLetterTransport,
        behind: str | None = None,
    ) -> Routes:
        table = await transport.table(split(self._log.name(queue_id))[0])
        death = self._log.death(queue_id, forwarding)
        work = partial(routes, records, forwarding, death, table, pairs_max=PAIRS_MAX, behind=behind)
        return await asyncio.get_running_loop().run_in_executor(self._helper, work)

    async def _part(self, queue_id: int, found: Routes, transport: DeadLetterTransport) -> _Part:
        """The first of the queues."""
        virtual_host, _ = split(self._log.name(queue_id))
        numbering, part = self._log.of(queue_id).numbering, _Part()
        for name, offsets in found.by_name:
            full = qualified(virtual_host, name)
            place = await transport.find(full)
            if place is None:
                part.missed.update(offsets)
                continue
            target = DeadLetterTarget(full, *place, *numbering(place[1]), flat_of(offsets))
            if not part.takes(target, size_max=self._target_bytes_max):
                break
        return part

    def _note_dropped(self, queue_id: int, forwarding: Forwarding, nowhere: Sequence[int], part: _Part) -> None:
        """Of what goes in several parts it is not known yet."""
        had = {at for target in part.targets for first, until in pairs(target.ranges) for at in range(first, until)}
        dropped = [at for at in nowhere if at not in had]
        if dropped and not part.more:
            self._log.note(
                queue_id, "letters_dropped", reason="unroutable", departure=forwarding.number, why=forwarding.reason,
                records=len(dropped),
            )  # fmt: skip
