"""Records leave the queues that this node masters, step by step (docs/decisions/0041). Thin: `queues.departures` says
what was done, `queues.letter_body` what is sent.

A queue that something leaves has one task, which takes a piece, logs where it goes, sends it, and settles it, until
nothing leaves any more; so many queues at a time. What cannot be done now is tried again, later each time: a log that
takes nothing, a target without a master, a queue that is full. A task ends with the mastership, wherever it stands: the
next master goes on by the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from mirrorlog.broker.deliverer import Deliverer
from mirrorlog.broker.letter_reader import Leaving, LetterReader, Room
from mirrorlog.broker.publish import Publisher
from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.attributes import asked_attributes
from mirrorlog.commitlog.body import Record, encode_batch
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    MirrorlogError,
    NoSuchExchange,
    NoSuchQueue,
    OutOfSequence,
    RecordTooLarge,
    StaleProducerEpoch,
)
from mirrorlog.ha.progress import ALL_MEMBERS
from mirrorlog.queues.changes import Addressed, Change, Departed, Returned, Settled, Target, encode_changes
from mirrorlog.queues.deaths import WHYS
from mirrorlog.queues.departures import REDRIVEN, Departure, producer_of
from mirrorlog.queues.letter_body import Death, died_in, is_cycle, letter, routing_key_of
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.queues.subscriber import Range
from mirrorlog.wire.names import check_name, qualified, split
from mirrorlog.wire.routing import RoutingTable

if TYPE_CHECKING:
    from mirrorlog.broker.host import Host
    from mirrorlog.broker.letter_roads import LetterRoads

logger = logging.getLogger(__name__)

QUEUES_AT_ONCE: Final = 16
PIECE_RECORDS: Final = 256
PIECE_BYTES: Final = 256 * 1024
"""Of values, keys and headers; a larger record leaves alone."""
_PIECE_PART: Final = 4
"""Of a batch, as large as this node takes one: letters are larger than their records."""
_ALL: Final = 1 << 62
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0

_HOPELESS: Final = (BadBatch, BadRequest, BatchTooLarge, RecordTooLarge)
"""What a target refuses it refuses for ever."""


@dataclass(slots=True)
class _Pause:
    """Of a queue whose piece could not go on: until when (s, the loop's clock), and for how long the next time."""

    until: float
    next_s: float
    why: str


@dataclass(slots=True)
class _Sorted:
    """The records of a piece by where they go: qualified name and place, and their queue offsets; `kept`: nowhere."""

    by_target: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    dropped: int = 0


class DepartureKeeper:
    """Of one mastership."""

    def __init__(self, replica: Replica, publisher: Publisher, deliverer: Deliverer, host: Host) -> None:
        self._replica = replica
        self._publisher = publisher
        self._deliverer = deliverer
        self._roads = host.letters
        self._helper = host.helpers.letters
        self._reader = LetterReader(
            replica,
            helper=self._helper,
            past_helper=host.helpers.index,
            body_bytes_max=host.settings.limits.max_batch_bytes,
        )
        batch_bytes = host.settings.limits.max_batch_bytes // _PIECE_PART
        self._room = Room(PIECE_RECORDS, min(PIECE_BYTES, batch_bytes))
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pauses: dict[int, _Pause] = {}
        self._stopped = False

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock), and the mastership has begun: whoever may go on does."""
        table = self._replica.departures
        if not table.leaving and not self._pauses:
            return
        self._pauses = {queue_id: pause for queue_id, pause in self._pauses.items() if queue_id in table.leaving}
        if self._roads is None or self._stopped or self._publisher.cut_off or self._publisher.stopping:
            return
        ready = (each for each in table.leaving - self._tasks.keys() if self._may_go_on(each, now))
        for queue_id in list(islice(ready, QUEUES_AT_ONCE - len(self._tasks))):
            self._tasks[queue_id] = asyncio.ensure_future(self._leave_safely(queue_id, self._roads))

    def waits(self, queue_id: int) -> str:
        """Why nothing leaves a queue at the moment; empty when it does."""
        pause = self._pauses.get(queue_id)
        return pause.why if pause is not None else ""

    def fence(self) -> None:
        """Another one may be the master."""
        self._stopped = True
        for task in self._tasks.values():
            task.cancel()

    async def end(self) -> None:
        """After `fence`."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # --- inside ---

    def _may_go_on(self, queue_id: int, now: float) -> bool:
        pause = self._pauses.get(queue_id)
        return pause is None or pause.until <= now

    async def _leave_safely(self, queue_id: int, roads: LetterRoads) -> None:
        """What nobody foresaw waits, and is told, as what was foreseen: records that do not leave are kept."""
        try:
            while not self._stopped and queue_id in self._replica.departures.leaving:
                await self._leave(queue_id, roads)
                self._pauses.pop(queue_id, None)
        except MirrorlogError as error:
            self._pause(queue_id, str(error))
        except Exception as error:
            logger.exception("departure_failed log=%s queue=%r", self._replica.assignment.name, self._name(queue_id))
            self._pause(queue_id, f"internal error: {type(error).__name__}")
        finally:
            self._tasks.pop(queue_id, None)

    def _pause(self, queue_id: int, why: str) -> None:
        former = self._pauses.get(queue_id)
        pause_s = RETRY_FIRST_S if former is None else former.next_s
        if former is None or former.why != why:
            logger.info(
                "departure_waits log=%s queue=%r reason=%r", self._replica.assignment.name, self._name(queue_id), why
            )
        until = asyncio.get_running_loop().time() + pause_s
        self._pauses[queue_id] = _Pause(until, min(RETRY_MAX_S, 2 * pause_s), why)

    async def _leave(self, queue_id: int, roads: LetterRoads) -> None:
        """One piece, from where it stands to its end. Raises MirrorlogError."""
        there = self._replica.departures.of(queue_id)
        piece = there.piece
        departure = there.find(piece.departure) if piece is not None else there.departures[0]
        if departure is None:  # it was given up
            assert piece is not None
            self._append(queue_id, [Departed(departure=piece.departure)])
            return
        if piece is None:
            piece = await self._address(queue_id, departure, roads)
            if piece is None:
                self._append(queue_id, [Departed(departure=departure.number, last=True)])
                return
        else:
            await self._confirmed(self._replica.end)
        index = 0
        while index < len(piece.targets):  # one that is too large becomes two on its way
            piece = await self._send(queue_id, departure, piece, index, roads)
            index += 1
        self._settle(queue_id, departure, piece)

    # --- where it goes ---

    async def _address(self, queue_id: int, departure: Departure, roads: LetterRoads) -> Addressed | None:
        """Log where the next piece of a departure goes; None when nothing of it is left. Raises MirrorlogError."""
        ranges = list(_first(self._left(queue_id, departure), PIECE_RECORDS))
        if not ranges:
            return None
        leaving = await self._reader.read(queue_id, ranges, self._room)
        name = self._name(queue_id)
        sorted_ = await self._sort(name, departure, leaving, roads)
        numbering = self._replica.departures.of(queue_id).numbering
        targets = [
            Target(name, log_id, target, *numbering(target), _flat_of(offsets))
            for (name, log_id, target), offsets in sorted_.by_target.items()
        ]
        taken = sorted([*leaving.gone, *((at, at + 1) for at, _ in leaving.records)])
        kept = _flat_of(sorted_.kept)
        piece = Addressed(departure=departure.number, ranges=_flat(taken), targets=targets, kept=kept)
        gone = sum(until - first for first, until in leaving.gone)
        if sorted_.dropped or gone:
            logger.info(
                "letters_dropped log=%s queue=%r departure=%s reason=%s unroutable=%s gone=%s",
                self._replica.assignment.name, name, departure.number, departure.reason, sorted_.dropped, gone,
            )  # fmt: skip
        await self._confirmed(self._append(queue_id, [piece]))
        return piece

    async def _sort(self, queue: str, departure: Departure, leaving: Leaving, roads: LetterRoads) -> _Sorted:
        virtual_host, own = split(queue)
        table = await roads.table(virtual_host)
        death, found = Death(own, departure.reason, departure.at_us), _Sorted()
        places: dict[str, tuple[str, int] | None] = {}
        for at, record in leaving.records:
            there = False
            for name in _names(record, departure, table):
                full = qualified(virtual_host, name)
                if full not in places:
                    places[full] = await roads.find(full)
                if (place := places[full]) is not None and not is_cycle(record, death, name):
                    found.by_target.setdefault((full, *place), []).append(at)
                    there = True
            if not there and departure.reason == REDRIVEN:
                found.kept.append(at)
            elif not there:
                found.dropped += 1
        return found

    # --- on its way ---

    async def _send(
        self, queue_id: int, departure: Departure, piece: Addressed, index: int, roads: LetterRoads
    ) -> Addressed:
        """One batch, until all copies of its target have it, or it is known that it will not; the piece, under other
        numbers perhaps. Raises MirrorlogError."""
        while True:
            target = piece.targets[index]
            batch = await self._batch(queue_id, departure, target)
            if batch is None:
                self._gave_up(queue_id, target, "freed by retention, or lost, before they had left")
                return piece
            try:
                await roads.hand_over(target.log_id, batch)
            except NoSuchQueue:
                self._gave_up(queue_id, target, "the queue was deleted")
            except (OutOfSequence, StaleProducerEpoch) as error:
                piece = await self._renumber(queue_id, piece, index, error)
                continue
            except BatchTooLarge as error:
                if target.records > 1:
                    piece = await self._split(queue_id, piece, index)
                    continue
                self._gave_up(queue_id, target, str(error))
            except _HOPELESS as error:
                self._gave_up(queue_id, target, str(error))
            return piece

    async def _batch(self, queue_id: int, departure: Departure, target: Target) -> bytes | None:
        """The same whoever makes it; None when some of it is there no more."""
        pairs = _pairs(target.ranges)
        leaving = await self._reader.read(queue_id, pairs, Room(PIECE_RECORDS, _ALL))
        if len(leaving.records) != target.records:
            return None
        queue = self._replica.queues.find_id(queue_id)
        death = Death(split(queue.name)[1], departure.reason, departure.at_us)
        producer = producer_of(queue.incarnation, str(self._replica.log_id), queue_id)

        def encode() -> bytes:
            return _encode([record for _, record in leaving.records], death, target, producer, leaving.priority)

        return await asyncio.get_running_loop().run_in_executor(self._helper, encode)

    async def _renumber(self, queue_id: int, piece: Addressed, index: int, error: MirrorlogError) -> Addressed:
        """The target has forgotten whose records these are: under a producer epoch of its own they begin anew."""
        target = piece.targets[index]
        ended = error.details.get("producer_epoch", -1)
        epoch = max(target.producer_epoch, ended if isinstance(ended, int) else -1) + 1
        anew = Target(target.name, target.log_id, target.queue_id, epoch, 0, target.ranges)
        piece = replace(piece, targets=[*piece.targets[:index], anew, *piece.targets[index + 1 :]])
        logger.info(
            "departure_renumbered log=%s queue=%r target=%r producer_epoch=%s reason=%r",
            self._replica.assignment.name, self._name(queue_id), target.name, epoch, str(error),
        )  # fmt: skip
        await self._confirmed(self._append(queue_id, [piece]))
        return piece

    async def _split(self, queue_id: int, piece: Addressed, index: int) -> Addressed:
        """The target's node takes smaller batches than this one."""
        target = piece.targets[index]
        records = [at for first, until in _pairs(target.ranges) for at in range(first, until)]
        half, sequence = len(records) // 2, target.sequence
        halves = [(records[:half], sequence), (records[half:], sequence + half)]
        parts = [
            Target(target.name, target.log_id, target.queue_id, target.producer_epoch, begin, _flat_of(some))
            for some, begin in halves
        ]
        piece = replace(piece, targets=[*piece.targets[:index], *parts, *piece.targets[index + 1 :]])
        await self._confirmed(self._append(queue_id, [piece]))
        return piece

    def _gave_up(self, queue_id: int, target: Target, why: str) -> None:
        logger.warning(
            "letters_dropped log=%s queue=%r target=%r records=%s reason=%r",
            self._replica.assignment.name, self._name(queue_id), target.name, target.records, why,
        )  # fmt: skip

    # --- done ---

    def _settle(self, queue_id: int, departure: Departure, piece: Addressed) -> None:
        """What of the piece still leaves is done, or free again. Raises MirrorlogError."""
        of_piece, kept = _set(piece.ranges), _set(piece.kept)
        there = [part for run in self._of(queue_id, departure) for part in of_piece.within(*run)]
        back = [part for run in there for part in kept.within(*run)]
        done = [part for run in there for part in kept.without(*run)]
        last = next(self._left(queue_id, departure, of_piece), None) is None
        group, changes = departure.group, list[Change]()
        if done:
            changes.append(Settled(group=group, ranges=_flat(done), why=WHYS[departure.reason]))
        if back:
            changes.append(Returned(group=group, ranges=_flat(back)))
        self._append(queue_id, [*changes, Departed(departure=departure.number, last=last)])
        self._deliverer.dropped(queue_id, group, done)
        if back:
            self._deliverer.stayed(queue_id, group, back)

    def _of(self, queue_id: int, departure: Departure) -> Iterator[Range]:
        """What of the group leaves by it, still."""
        ledger = self._replica.groups.get(queue_id, departure.group)
        return iter(()) if ledger is None else ledger.lease_ranges(departure.number)

    def _left(self, queue_id: int, departure: Departure, without: RangeSet | None = None) -> Iterator[Range]:
        if without is None:
            return self._of(queue_id, departure)
        return (part for run in self._of(queue_id, departure) for part in without.without(*run))

    # --- the log ---

    def _append(self, queue_id: int, changes: Sequence[Change]) -> int:
        """Where they end. Raises MirrorlogError."""
        if self._stopped:
            raise asyncio.CancelledError
        return self._publisher.append_settlement(encode_changes(changes, queue_id=queue_id))

    async def _confirmed(self, end: int) -> None:
        """Wait until all copies have everything below `end`. Raises MirrorlogError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: MirrorlogError | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self._publisher.wait_at(end, ALL_MEMBERS, tell)
        await done

    def _name(self, queue_id: int) -> str:
        queues = self._replica.queues
        return queues.find_id(queue_id).name if queues.has_id(queue_id) else str(queue_id)


def _names(record: Record, departure: Departure, table: RoutingTable) -> Iterable[str]:
    """The queues that it is to go to, by their names in the virtual host."""
    key = departure.routing_key
    if departure.reason == REDRIVEN:
        name = died_in(record) if key is None else key
        names: Iterable[str] = () if name is None else (name,)
    else:
        own = routing_key_of(record) if key is None else key
        try:
            names = table.route(departure.exchange, own, dict(record.headers))
        except NoSuchExchange:
            return ()
    return [name for name in names if _is_name(name)]


def _is_name(name: str) -> bool:
    """Anybody may have written it: one with a separator would lead into another virtual host."""
    try:
        check_name("queue", name)
    except BadRequest:
        return False
    return True


def _encode(records: Sequence[Record], death: Death, target: Target, producer_id: int, priority: int) -> bytes:
    return bytes(
        encode_batch(
            [letter(record, death) for record in records],
            queue_id=target.queue_id,
            producer_id=producer_id,
            producer_epoch=target.producer_epoch,
            sequence=target.sequence,
            attributes=asked_attributes(priority),
        )
    )


def _first(ranges: Iterable[Range], records_max: int) -> Iterator[Range]:
    """So many of them."""
    for first, until in ranges:
        yield first, min(until, first + records_max)
        records_max -= min(until, first + records_max) - first
        if not records_max:
            return


def _pairs(flat: Sequence[int]) -> list[Range]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _set(flat: Sequence[int]) -> RangeSet:
    ranges = RangeSet()
    for first, until in _pairs(flat):
        ranges.add(first, until)
    return ranges


def _flat_of(offsets: Iterable[int]) -> list[int]:
    return _flat((at, at + 1) for at in offsets)


def _flat(ranges: Iterable[Range]) -> list[int]:
    """Ascending ones, neighbours as one."""
    flat: list[int] = []
    for first, until in ranges:
        if flat and flat[-1] == first:
            flat[-1] = until
        else:
            flat += (first, until)
    return flat
