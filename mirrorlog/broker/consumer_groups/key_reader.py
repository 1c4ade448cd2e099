"""Reads the keys of records for groups that are ordered by them, each batch once. Thin: `queues.delivery.keys` decides.

What the log has in memory is read where it is asked for. What must be read from a disk or another log, or is compressed
and large, is opened in a task, one for a queue at a time, and its groups are looked at again: delivery waits for no
disk. Nothing of this runs for groups without an order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import BatchHeader, Codec, Column, read_header
from mirrorlog.errors import BadBatch, MirrorlogError, OffsetOutOfRange
from mirrorlog.queues.delivery.keys import KeysRead, numbers_of

logger = logging.getLogger(__name__)

BatchAt = Callable[[int, int], Awaitable[bytes | None]]
"""(queue id, at): the batch that holds a confirmed record, wherever it stands; None when it is freed or lost. Raises
MirrorlogError."""

_AT_ONCE_BYTES: Final = 320 * 1024
"""Of a compressed body that is opened on the loop: as of what is published."""
_RETRY_S: Final = 0.5
_KEYS: Final = int(Column.KEYS)

_Known = tuple[int, list[int | None], float]
"""The first queue offset of a batch, the numbers of its keys, and how many bytes a record has in the mean."""


class KeyReader:
    """Of one mastership. `helper`: opens what is large; `wake`: has the groups of a queue looked at."""

    def __init__(self, replica: Replica, batch_at: BatchAt, helper: Executor, wake: Callable[[int], None]) -> None:
        self._replica = replica
        self._batch_at = batch_at
        self._helper = helper
        self._wake = wake
        # Of each queue the batch that was opened last, and the task that opens the next one.
        self._opened: dict[int, _Known] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def read(self, queue_id: int, at: int, until: int) -> KeysRead | None:
        """See `ReadKeys`."""
        if (opened := self._opened.get(queue_id)) is not None and opened[0] <= at < opened[0] + len(opened[1]):
            return _part(opened, at, until)
        index = self._replica.index
        begin = max(index.begin(queue_id), index.gap_end(queue_id, at) or 0)
        if at < begin:
            return KeysRead(begin)
        known = None if index.past_until(queue_id, at) is not None else self._in_memory(queue_id, at, until)
        if known is None and queue_id not in self._tasks:
            self._tasks[queue_id] = asyncio.ensure_future(self._open_safely(queue_id, at))
        return known

    def forget_queue(self, queue_id: int) -> None:
        """It is there no more, or nobody needs its keys."""
        self._opened.pop(queue_id, None)

    def stop(self) -> None:
        """The mastership ends."""
        for task in self._tasks.values():
            task.cancel()

    # --- inside ---

    def _in_memory(self, queue_id: int, at: int, until: int) -> KeysRead | None:
        index = self._replica.index
        try:
            run = index.find(queue_id, at)
        except OffsetOutOfRange:  # in a jump that no record has followed
            return KeysRead(max(at + 1, index.next_confirmed(queue_id)))
        base, following = run.base_queue_offset, run.next_queue_offset
        if base > at:
            return KeysRead(base)
        view = self._replica.log.read(run.log_offset, run.length, until=run.log_offset + run.length)
        header = read_header(view) if view is not None and len(view) == run.length else None
        if view is None or header is None or (header.codec != Codec.NONE and header.body_length > _AT_ONCE_BYTES):
            return None
        if not header.columns & _KEYS:
            return KeysRead(following)
        if header.codec != Codec.NONE:
            self._opened[queue_id] = base, _numbers(view, 0, header.record_count), _mean(header)
            return _part(self._opened[queue_id], at, until)
        end = min(until, following)
        return KeysRead(end, _numbers(view, at - base, end - base), _mean(header))

    async def _open_safely(self, queue_id: int, at: int) -> None:
        try:
            await self._open(queue_id, at)
        except MirrorlogError as error:
            logger.info("keys_not_read log=%s at=%s reason=%r", self._replica.assignment.name, at, str(error))
            await asyncio.sleep(_RETRY_S)
        except Exception as error:
            logger.exception("keys_failed log=%s", self._replica.assignment.name)
            self._replica.on_broken(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))
        finally:
            self._tasks.pop(queue_id, None)
        self._wake(queue_id)

    async def _open(self, queue_id: int, at: int) -> None:
        batch = await self._batch_at(queue_id, at)
        if batch is None:  # and the index knows so when it is asked again, but for a former log's
            self._opened[queue_id] = at, [None], 0.0
            return
        header = read_header(batch)
        work = partial(_numbers, memoryview(batch), 0, header.record_count)
        numbers = await asyncio.get_running_loop().run_in_executor(self._helper, work)
        self._opened[queue_id] = header.base_queue_offset, numbers, _mean(header)


def _mean(header: BatchHeader) -> float:
    return header.length / max(1, header.record_count)


def _part(known: _Known, at: int, until: int) -> KeysRead:
    base, numbers, record_bytes = known
    end = min(until, base + len(numbers))
    part = numbers[at - base : end - base]
    return KeysRead(end, part if any(number is not None for number in part) else (), record_bytes)


def _numbers(batch: memoryview, first: int, until: int) -> list[int | None]:
    """What nobody can open has no keys: whoever is given it rejects it."""
    header = read_header(batch)
    try:
        keys = open_body(batch, header=header, body_bytes_max=header.body_length).keys
    except BadBatch:
        keys = None
    return [None] * (until - first) if keys is None else numbers_of(keys, first, until)
