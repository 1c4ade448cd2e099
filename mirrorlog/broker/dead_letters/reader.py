"""Reads the records of a queue that leave it, wherever they stand: in memory, in a segment, in the past. Thin.

A batch is read and opened once for all that is asked of it, however scattered that is: records with keys in turn go to
queues in turn, and each of these asks for every second one. What takes a step per record is done on a helper thread, a
batch at a time. What retention has freed, or a loss has taken, is told as gone; nothing else is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.attributes import attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import BatchHeader, check_body, read_header
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.errors import BadBatch, LogUnavailable, OffsetOutOfRange
from mirrorlog.queues.dead_letters.message import size_of
from mirrorlog.queues.ranges import Range, flat_of, pairs

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of batches that are read for one new piece: scattered records may each stand in another."""
_ALL: Final = 1 << 62
_GONE_AT_ONCE: Final = 256
"""Ranges, before others get their turn of the loop."""


@dataclass(slots=True)
class Leaving:
    """What was read: by queue offset, all of one priority; `gone`: ranges that are not there any more; `unreadable`:
    those that stand there as they were sent, and that nobody can open, and `why`. `read`: bytes of the batches that
    they stand in."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    gone: list[Range] = field(default_factory=list)
    unreadable: list[Range] = field(default_factory=list)
    why: str = ""
    priority: int = 0
    size: int = 0
    read: int = 0

    def has_room(self, room: Room) -> bool:
        return len(self.records) < room.records and self.size < room.size and self.read < room.read


class Room(NamedTuple):
    """What one read may have: records, their bytes, and those of their batches."""

    records: int
    size: int = _ALL
    read: int = _ALL


class BatchLookup:
    """Finds batches of a log by their records. `helper`, `past_helper`: see `DeadLetterReader`."""

    def __init__(self, replica: Replica, *, helper: Executor, past_helper: Executor) -> None:
        self._replica = replica
        self._helper = helper
        self._past_helper = past_helper

    async def at(self, queue_id: int, at: int) -> tuple[QueuedBatch, bytes] | None:
        """The confirmed batch with this record; None when it is not in this log. Raises MirrorlogError."""
        run = await self._run_at(queue_id, at)
        if run is None or not run.base_queue_offset <= at < run.next_queue_offset:
            return None
        end = run.log_offset + run.length
        view = self._replica.log.read(run.log_offset, run.length, until=end)
        if view is not None and len(view) == run.length:
            return run, bytes(view)
        job = self._replica.log.read_cold(run.log_offset, run.length, until=end)
        content = await asyncio.get_running_loop().run_in_executor(self._helper, job.run)
        return run, bytes(content)

    async def _run_at(self, queue_id: int, at: int) -> QueuedBatch | None:
        index, past = self._replica.index, self._replica.past
        if at < index.begin(queue_id) or index.gap_end(queue_id, at) is not None:
            return None
        past_until = index.past_until(queue_id, at)
        if past_until is None:
            try:
                return index.find(queue_id, at)
            except OffsetOutOfRange:
                return None
        if past is None:
            return None
        look = partial(past.entries, queue_id, at, 1, until=past_until)
        runs = await asyncio.get_running_loop().run_in_executor(self._past_helper, look)
        return runs[0] if runs else None


def queued(header: BatchHeader) -> QueuedBatch:
    """Where a batch stands, by its own word."""
    return QueuedBatch(header.log_offset, header.base_queue_offset, header.record_count, header.length)


class DeadLetterReader:
    """Of one log. `helper`: for disks and records; `past_helper`: where the index of the past is asked; `former`: the
    batch of a queue that holds a record from before the queue came to this log, None when that is freed or lost."""

    def __init__(
        self,
        replica: Replica,
        *,
        helper: Executor,
        past_helper: Executor,
        body_bytes_max: int,
        former: Callable[[int, int], Awaitable[bytes | None]],
    ) -> None:
        self._replica = replica
        self._helper = helper
        self._former = former
        self._batches = BatchLookup(replica, helper=helper, past_helper=past_helper)
        self._body_bytes_max = body_bytes_max

    async def read(self, queue_id: int, ranges: Iterable[Range], room: Room) -> Leaving:
        """The first of these, ascending: as many as are of one priority and have room, one at least. Raises
        MirrorlogError."""
        found, left = Leaving(), deque(ranges)
        while left and found.has_room(room):
            there = await self._batch_at(queue_id, left[0][0])
            if there is None:
                self._pass_gone(queue_id, left, found)
                if len(found.gone) % _GONE_AT_ONCE == 0:
                    await asyncio.sleep(0)
            elif not await self._take(there, left, found, room):
                break
        return found

    async def read_again(self, queue_id: int, ranges: Sequence[Range]) -> Leaving:
        """All of these, which were of one priority and had room when they were addressed. Raises MirrorlogError."""
        count = sum(until - first for first, until in ranges)
        found = await self.read(queue_id, ranges, Room(count))
        gone = sum(until - first for first, until in found.gone)
        if len(found.records) + gone != count:
            raise LogUnavailable(
                f"{len(found.records)} of {count - gone} records that are addressed could be read; none is sent"
            )
        return found

    async def batch_at(self, queue_id: int, at: int) -> bytes | None:
        """The batch that holds a record; None when it is there no more. Raises MirrorlogError."""
        found = await self._batch_at(queue_id, at)
        return None if found is None else found[1]

    # --- inside ---

    def _pass_gone(self, queue_id: int, left: deque[Range], found: Leaving) -> None:
        """Raises LogUnavailable for what may be there, and cannot be read yet."""
        (first, until), index = left[0], self._replica.index
        if first >= index.next_confirmed(queue_id) and index.gap_end(queue_id, first) is None:
            raise LogUnavailable(f"the record at queue offset {first} is not known to be confirmed yet")
        end = self._gone_until(queue_id, first, until)
        found.gone.append((first, end))
        _advance(left, end)

    async def _take(self, there: tuple[QueuedBatch, bytes], left: deque[Range], found: Leaving, room: Room) -> bool:
        """What is asked of one batch; whether to go on: what comes may be of another priority, or too large beside the
        others."""
        run, batch = there
        found.read += run.length
        wanted = _wanted(left, run, room.records - len(found.records))
        work = partial(
            _records,
            batch,
            [at - run.base_queue_offset for at in wanted],
            body_bytes_max=self._body_bytes_max,
            bytes_max=room.size - found.size,
            one=not found.records,
        )
        opened = await asyncio.get_running_loop().run_in_executor(self._helper, work)
        if found.records and (not opened.done or (opened.records and opened.priority != found.priority)):
            return False
        base = run.base_queue_offset
        if opened.records:
            found.priority = opened.priority
            found.records += [(base + index, record) for index, record in opened.records]
            found.size += opened.size
        if opened.unreadable:
            found.unreadable += pairs(flat_of([base + index for index in opened.unreadable]))
            found.why = opened.why
        _advance(left, wanted[opened.done - 1] + 1)
        return opened.done == len(wanted)

    async def _batch_at(self, queue_id: int, at: int) -> tuple[QueuedBatch, bytes] | None:
        found = await self._batches.at(queue_id, at)
        index, moves = self._replica.index, self._replica.queues.moves
        if found is not None or moves.elsewhere(queue_id, at) is None:
            return found
        if at < index.begin(queue_id) or index.gap_end(queue_id, at) is not None:
            return None
        batch = await self._former(queue_id, at)
        return (queued(read_header(batch)), batch) if batch is not None else None

    def _gone_until(self, queue_id: int, at: int, until: int) -> int:
        index = self._replica.index
        behind = index.gap_end(queue_id, at) or max(at + 1, index.begin(queue_id))
        return min(until, behind)


def _wanted(left: Iterable[Range], run: QueuedBatch, records_max: int) -> list[int]:
    """What is asked of a batch: so many queue offsets at most."""
    wanted = list[int]()
    for first, until in left:
        end = min(until, run.next_queue_offset, first + records_max - len(wanted))
        if end <= first:
            break
        wanted += range(first, end)
    return wanted


def _advance(left: deque[Range], at: int) -> None:
    """What is below `at` is done."""
    while left and left[0][1] <= at:
        left.popleft()
    if left and left[0][0] < at:
        left[0] = at, left[0][1]


@dataclass(slots=True)
class _Opened:
    """What was asked of one batch, by the number in it: those that had room. `done`: how many of what was asked."""

    priority: int
    records: list[tuple[int, Record]] = field(default_factory=list)
    size: int = 0
    unreadable: list[int] = field(default_factory=list)
    why: str = ""
    done: int = 0


def _records(batch: bytes, which: Sequence[int], *, body_bytes_max: int, bytes_max: int, one: bool) -> _Opened:
    """`one`: one at least. Raises BadBatch for bytes that went bad here: another copy may have better ones."""
    header = read_header(batch)
    opened = _Opened(_priority(header, batch))
    if header.body_length > body_bytes_max:
        check_body(memoryview(batch), 0, header)  # it was let in under another limit, if its header is what it was
    try:
        body = open_body(batch, header=header, body_bytes_max=header.body_length)
    except BadBatch as error:
        _note_unreadable(opened, batch, header, which, error)
        return opened
    for index in which:
        try:
            record = body.record(index)
        except BadBatch as error:
            _note_unreadable(opened, batch, header, [index], error)
            continue
        if (opened.records or not one) and opened.size + size_of(record) > bytes_max:
            break
        opened.records.append((index, record))
        opened.size += size_of(record)
        opened.done += 1
    return opened


def _note_unreadable(opened: _Opened, batch: bytes, header: BatchHeader, which: Sequence[int], error: BadBatch) -> None:
    """So they came from their producer, compressed: who sends such a thing keeps nobody else's back. Raises BadBatch
    when it is not as it came."""
    check_body(memoryview(batch), 0, header)
    opened.unreadable += which
    opened.done += len(which)
    opened.why = f"producer {header.producer_id} sent what nobody can open: {error}"


def _priority(header: BatchHeader, batch: bytes) -> int:
    try:
        return attributes_of(header, batch).priority
    except BadBatch:
        return 0  # what a newer software says is not known here; delivered without, too
