"""Reads the records of a queue that leave it, wherever they stand: in memory, in a segment, in the past. Thin.

What takes a step per record is done on a helper thread, a batch at a time. What retention has freed, or a loss has
taken, is told as gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.attributes import attributes_of
from mirrorlog.commitlog.body import Record
from mirrorlog.commitlog.codec import open_body
from mirrorlog.commitlog.format import read_header
from mirrorlog.commitlog.index import Run
from mirrorlog.errors import BadBatch, OffsetOutOfRange
from mirrorlog.queues.letter_body import size_of
from mirrorlog.queues.subscriber import Range

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of batches that are read for one piece: scattered records may each stand in another."""


@dataclass(slots=True)
class Leaving:
    """What was read: by queue offset, all of one priority; `gone`: ranges that are not there any more."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    gone: list[Range] = field(default_factory=list)
    priority: int = 0
    size: int = 0
    read: int = 0

    def has_room(self, room: Room) -> bool:
        return len(self.records) < room.records and self.size < room.size and self.read < READ_BYTES_MAX


class Room(NamedTuple):
    """What one read may have."""

    records: int
    size: int


class LetterReader:
    """Of one log. `helper`: for disks and records; `past_helper`: where the index of the past is asked."""

    def __init__(self, replica: Replica, *, helper: Executor, past_helper: Executor, body_bytes_max: int) -> None:
        self._replica = replica
        self._helper = helper
        self._past_helper = past_helper
        self._body_bytes_max = body_bytes_max

    async def read(self, queue_id: int, ranges: Iterable[Range], room: Room) -> Leaving:
        """The first of these, ascending: as many as are of one priority and within the limits, one at least. Raises
        MirrorlogError."""
        found = Leaving()
        for first, until in ranges:
            at = first
            while at < until:
                if not found.has_room(room):
                    return found
                reached = await self._read_at(queue_id, (at, until), found, room)
                if reached is None:
                    return found
                at = reached
        return found

    async def _read_at(self, queue_id: int, run_: Range, found: Leaving, room: Room) -> int | None:
        """Where to go on; None when what comes is of another priority, or too large beside the others."""
        at, until = run_
        there = await self._batch_at(queue_id, at)
        if there is None:
            end = self._gone_until(queue_id, at, until)
            found.gone.append((at, end))
            return end
        run, batch = there
        found.read += run.length
        end = min(until, run.next_queue_offset, at + room.records - len(found.records))
        offsets = range(at - run.base_queue_offset, end - run.base_queue_offset)
        loop = asyncio.get_running_loop()
        work = partial(
            _records,
            batch,
            offsets,
            body_bytes_max=self._body_bytes_max,
            bytes_max=room.size - found.size,
            one=not found.records,
        )
        priority, records, size = await loop.run_in_executor(self._helper, work)
        if found.records and (priority != found.priority or not records):
            return None
        found.priority = priority
        found.records += zip(range(at, at + len(records)), records, strict=True)
        found.size += size
        return at + len(records)

    async def _batch_at(self, queue_id: int, at: int) -> tuple[Run, bytes] | None:
        run = await self._run_at(queue_id, at)
        if run is None or not run.base_queue_offset <= at < run.next_queue_offset:
            return None
        end = run.log_offset + run.length
        view = self._replica.read(run.log_offset, run.length, until=end)
        if view is not None and len(view) == run.length:
            return run, bytes(view)
        job = self._replica.read_cold(run.log_offset, run.length, until=end)
        content = await asyncio.get_running_loop().run_in_executor(self._helper, job.run)
        return run, bytes(content)

    async def _run_at(self, queue_id: int, at: int) -> Run | None:
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

    def _gone_until(self, queue_id: int, at: int, until: int) -> int:
        index = self._replica.index
        behind = index.gap_end(queue_id, at) or max(at + 1, index.begin(queue_id))
        return min(until, behind)


def _records(
    batch: bytes, which: range, *, body_bytes_max: int, bytes_max: int, one: bool
) -> tuple[int, list[Record], int]:
    """Priority, records and their bytes: those that fit; `one`: one at least. Raises BadBatch."""
    header = read_header(batch)
    try:
        priority = attributes_of(header, batch).priority
    except BadBatch:
        priority = 0  # what a newer software says is not known here; delivered without, too
    body = open_body(batch, header=header, body_bytes_max=body_bytes_max)
    records, size = list[Record](), 0
    for index in which:
        record = body.record(index)
        if (records or not one) and size + size_of(record) > bytes_max:
            break
        records.append(record)
        size += size_of(record)
    return priority, records, size
