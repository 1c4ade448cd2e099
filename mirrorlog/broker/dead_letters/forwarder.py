"""Records leave the queues that this node masters, step by step (decision 0041): whose turn it is. Thin.

A queue that something leaves has one task, which has a piece addressed, sent and settled, and the next one, until
nothing leaves any more or others have waited; so many queues at a time, in turn. What cannot be done now is tried
again, later each time: a log that takes nothing, a target without a master, a queue that is full. A task ends with the
mastership, wherever it stands: the next master goes on by the log.

Rejected: the queues as they come in a set, by their ids: some that wait for what does not answer would be asked again
and again, and those behind them never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.dead_letters.addressing import Addressing
from mirrorlog.broker.dead_letters.journal import DeadLetterJournal
from mirrorlog.broker.dead_letters.reader import DeadLetterReader
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import asked_attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Addressed, DeadLetterTarget
from mirrorlog.queues.dead_letters.forwarding import Forwarding
from mirrorlog.queues.dead_letters.message import DEATHS_MAX, Death, dead_letter
from mirrorlog.queues.dead_letters.pieces import Step, reduced, refused, served
from mirrorlog.queues.ranges import count, flat, pairs
from mirrorlog.wire.names import shown

if TYPE_CHECKING:
    from mirrorlog.broker.log.host import Host
    from mirrorlog.broker.ports import DeadLetterTransport

# A piece on its way: each of its targets gets its records, or it is known that it never will. Thin: `queues.pieces`
# says what follows from an answer.


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

    def __init__(self, log: DeadLetterJournal, reader: DeadLetterReader, *, helper: Executor) -> None:
        self._log = log
        self._reader = reader
        self._helper = helper

    async def send(
        self, queue_id: int, forwarding: Forwarding, piece: Addressed, transport: DeadLetterTransport, *, is_new: bool
    ) -> Addressed:
        """Until all copies of each target have what it was to get, or it is known that it will not: the piece without
        targets then. `is_new`: nobody can have sent it. Raises MirrorlogError."""
        renumbered = 0
        while piece.targets:
            step = await self._serve(queue_id, forwarding, piece, transport, sent=not is_new)
            is_new = is_new and step.what in _BEFORE_ANY
            renumbered = renumbered + 1 if step.what == "renumbered" else 0
            if renumbered > RENUMBERED_MAX:
                raise _never_takes(piece.targets[0])
            piece = step.piece
            if step.logged:
                await self._log.address(queue_id, piece)
        return piece

    async def _serve(
        self, queue_id: int, forwarding: Forwarding, piece: Addressed, transport: DeadLetterTransport, *, sent: bool
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
            self._log.death(queue_id, forwarding),
            target,
            self._log.producer(queue_id),
            leaving.priority,
        )
        batch = await asyncio.get_running_loop().run_in_executor(self._helper, work)
        try:
            await transport.hand_over(target.log_id, batch, name=target.name)
        except MirrorlogError as error:
            step = refused(piece, forwarding.reason, error)
            if step is None:
                raise
            return self._noted(queue_id, target, step, str(error), target.records)
        return Step(served(piece), "sent", logged=False)

    def _noted(self, queue_id: int, target: DeadLetterTarget, step: Step, why: str, records: int) -> Step:
        self._log.note(
            queue_id, _EVENTS[step.what], target=target.name, records=records, first=target.ranges[0], reason=why
        )
        return step


def _never_takes(target: DeadLetterTarget) -> MirrorlogError:
    return MirrorlogError(f"queue {shown(target.name)!r} takes no producer epoch up to {target.producer_epoch}")


def _encode(
    records: Sequence[Record], death: Death, target: DeadLetterTarget, producer_id: int, priority: int
) -> bytes:
    """The same whoever makes it."""
    tables = DEATHS_MAX if target.tables < 0 else target.tables
    return bytes(
        encode_batch(
            [dead_letter(record, death, tables_max=tables) for record in records],
            queue_id=target.queue_id,
            producer_id=producer_id,
            producer_epoch=target.producer_epoch,
            sequence=target.sequence,
            attributes=asked_attributes(priority),
        )
    )


logger = logging.getLogger(__name__)

QUEUES_AT_ONCE: Final = 16
TURN_S: Final = 1.0
"""Of one queue, while more of them leave than may at once."""
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0


@dataclass(slots=True)
class _Pause:
    """Of a queue whose piece could not go on: until when (s, the loop's clock), and for how long the next time."""

    until: float
    next_s: float
    why: str


class DeadLetterForwarder:
    """Of one mastership."""

    def __init__(
        self, replica: Replica, publisher: LogPublisher, deliverer: Deliverer, host: Host, reader: DeadLetterReader
    ) -> None:
        batch_bytes_max, helper = host.settings.limits.max_batch_bytes, host.helpers.dead_letters
        self._log = DeadLetterJournal(replica, publisher, deliverer)
        self._transport = host.dead_letters
        self._addressing = Addressing(self._log, reader, helper=helper, batch_bytes_max=batch_bytes_max)
        self._sending = Sending(self._log, reader, helper=helper)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, _Pause] = {}
        # The queues that something leaves: who had a turn last is at the end.
        self._line: dict[int, None] = {}

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock), and the mastership has begun: whoever may go on does."""
        leaving = self._log.leaving
        if not leaving and not self._pauses and not self._line:
            return
        self._pauses = {queue_id: pause for queue_id, pause in self._pauses.items() if queue_id in leaving}
        self._line = {queue_id: None for queue_id in self._line if queue_id in leaving}
        self._line |= dict.fromkeys(sorted(leaving - self._line.keys()))
        if not self._log.takes:
            return
        for queue_id in list(islice(self._ready(now), QUEUES_AT_ONCE - len(self._tasks))):
            self._line[queue_id] = self._line.pop(queue_id)
            self._tasks[queue_id] = asyncio.ensure_future(self._leave_safely(queue_id, self._transport))

    def waits(self, queue_id: int) -> str:
        """Why nothing leaves a queue at the moment, and what of it never will; empty when all does."""
        pause = self._pauses.get(queue_id)
        return "; ".join(filter(None, (pause.why if pause is not None else "", self._log.held(queue_id))))

    def fence(self) -> None:
        """Another one may be the master."""
        self._log.closed = True
        for task in self._tasks.values():
            task.cancel()

    async def end(self) -> None:
        """After `fence`."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # --- inside ---

    def _ready(self, now: float) -> Iterator[int]:
        """Who may have a turn, in the order in which they stand."""
        for queue_id in self._line:
            pause = self._pauses.get(queue_id)
            if queue_id not in self._tasks and (pause is None or pause.until <= now):
                yield queue_id

    async def _leave_safely(self, queue_id: int, transport: DeadLetterTransport) -> None:
        """What nobody foresaw waits, and is told, as what was foreseen: records that do not leave are kept."""
        try:
            await self._leave_in_turn(queue_id, transport)
        except MirrorlogError as error:
            self._pause(queue_id, str(error))
        except Exception as error:
            logger.exception("departure_failed queue=%r", self._log.name(queue_id))
            self._pause(queue_id, f"internal error: {type(error).__name__}")
        finally:
            self._tasks.pop(queue_id, None)

    async def _leave_in_turn(self, queue_id: int, transport: DeadLetterTransport) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        while not self._log.closed and queue_id in self._log.leaving:
            await self._leave(queue_id, transport)
            self._pauses.pop(queue_id, None)
            if loop.time() >= until and len(self._line) > QUEUES_AT_ONCE:
                return
            await asyncio.sleep(0)  # a piece that leads nowhere waits for nobody

    def _pause(self, queue_id: int, why: str) -> None:
        former = self._pauses.get(queue_id)
        pause_s = RETRY_FIRST_S if former is None else former.next_s
        if former is None or former.why != why:
            self._log.note(queue_id, "departure_waits", reason=why)
        until = asyncio.get_running_loop().time() + pause_s
        self._pauses[queue_id] = _Pause(until, min(RETRY_MAX_S, 2 * pause_s), why)

    async def _leave(self, queue_id: int, transport: DeadLetterTransport) -> None:
        """One piece, from where it stands to its end. Raises MirrorlogError."""
        there = self._log.of(queue_id)
        piece = there.piece
        forwarding = there.find(piece.departure) if piece is not None else there.first
        if piece is None:
            assert forwarding is not None
            piece = await self._addressing.begin(queue_id, forwarding, transport)
            if piece is None:
                self._log.end_empty(queue_id, forwarding)
                return
        elif forwarding is None:
            self._log.give_up_piece(queue_id, piece)
            return
        else:
            await self._log.confirmed()
        await self._carry(queue_id, forwarding, piece, transport, is_new=there.piece is None)

    async def _carry(
        self, queue_id: int, forwarding: Forwarding, piece: Addressed, transport: DeadLetterTransport, *, is_new: bool
    ) -> None:
        piece = await self._sending.send(queue_id, forwarding, piece, transport, is_new=is_new)
        while piece.more:
            piece = await self._addressing.go_on(queue_id, forwarding, piece, transport)
            piece = await self._sending.send(queue_id, forwarding, piece, transport, is_new=True)
        self._log.settle(queue_id, forwarding, piece)
