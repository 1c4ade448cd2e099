"""The rows of a range of a queue as Arrow batches, from nodes or from files: one contract.

    for rows in record_batches(options, wanted): …

Used by the batch source, the stream source and the landing's tasks. Exactly the records of the range come, in order,
never beyond what is confirmed; a reader that does not get every queue offset once raises RangeNotDense, so a hole is an
error and not a smaller table.

Records that were freed or lost since the range was planned are an error too, and so are bytes of a log directory that
fit no checksum, unless `failOnDataLoss` is false: then what is missing is logged and left out, exactly as far as the
log itself says that it is. Bad bytes on a node are that node's to mend, from another copy; here they stay an error.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import pyarrow as pa
import uvloop

from mirrorlog.errors import LogCorrupt, OffsetOutOfRange, PositionLost, RequestTimeout, UnreadableBatch
from mirrorlog.spark.errors import RangeNotDense, RecordsMissing
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueRange, dense
from mirrorlog.spark.reading.arrow import QueueBatch, merged
from mirrorlog.spark.reading.filters import EVERY_TIME, TimeRange

if TYPE_CHECKING:
    from mirrorlog.spark.offline import BadStretch
    from mirrorlog.wire.messages.queues import QueueInfo


import gc
from functools import cache

from pyspark import TaskContext

# Items of an asynchronous iterator, taken from synchronous code.
#
# The iterator runs on an event loop in a thread of its own, a few items ahead. So the next fetch is under way while
# Spark takes what was read, and the connection's heartbeats go on when Spark takes its time. Rejected: turning a loop
# by hand between two items, which stops both.


PREFETCHED_MAX: Final = 8
"""Items that are read and not yet taken."""
_END_S: Final = 5.0

_T = TypeVar("_T")


class ThreadedIterator(Generic[_T]):
    """Use with `with`; iterate once. `open_items` makes the iterator, on the thread's loop.

    `patience_s`: how long the next item may take to come. Raises RequestTimeout then, and whatever the iterator raises.
    """

    def __init__(self, open_items: Callable[[], AsyncGenerator[_T]], *, patience_s: float, what: str) -> None:
        self._open_items = open_items
        self._patience_s = patience_s
        self._what = what
        self._out: queue.SimpleQueue[_T | _End] = queue.SimpleQueue()
        self._slots: asyncio.Semaphore
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        # A daemon: a worker that Spark ends must not wait for a node.
        self._thread = threading.Thread(target=self._main, name="mirrorlog-pump", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.wait(_END_S)
        if self._loop is not None and self._task is not None:
            self._call(self._task.cancel)
        self._thread.join(_END_S)

    def __iter__(self) -> Iterator[_T]:
        while True:
            try:
                item = self._out.get(timeout=self._patience_s)
            except queue.Empty:
                raise RequestTimeout(f"{self._what}: nothing came for {self._patience_s:g} s") from None
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            self._call(self._slots.release)
            yield item

    def _call(self, function: Callable[[], object]) -> None:
        try:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop has ended by itself
            return

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._pump())
        except asyncio.CancelledError:
            pass
        except BaseException as raised:
            error = raised
        self._started.set()
        self._out.put(_End(error))

    async def _pump(self) -> None:
        self._slots = asyncio.Semaphore(PREFETCHED_MAX)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._started.set()
        async with aclosing(self._open_items()) as items:
            async for item in items:
                await self._slots.acquire()
                self._out.put(item)


class _End:
    """After the last item."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


_FETCH_BYTES: Final = 4 * 1024 * 1024
_GROUP_BYTES: Final = 1024 * 1024
# A task outlives the promotion of a new master; the client tries again that long.
_REQUEST_TIMEOUT_MS: Final = 30_000
# Well above the client's own deadlines, which end in an error that says more.
_PATIENCE_S: Final = 90.0

_ADVICE: Final = (
    "; failOnDataLoss = false leaves it out; a landing has it in dead_letters, or leaves it out by on_data_loss = skip"
)

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """Queue offsets `first` up to `next` (exclusive) that are gone, as the log says, or cannot be read.

    `append_time_us`: of records that are there and that nobody can open, µs UTC; None of others."""

    first: int
    next: int
    why: str
    append_time_us: int | None = None


OnMissing = Callable[[Missing], None]


def record_batches(
    options: SourceOptions, wanted: QueueRange, times: TimeRange = EVERY_TIME
) -> Iterator[pa.RecordBatch]:
    """The records of `wanted` whose timestamp is within `times`, with the columns that the options choose.

    Raises RangeNotDense, PositionLost or RecordsMissing for what is lost or freed unless that is allowed, and what the
    nodes or the files answer. Blocks; not for use on an event loop.
    """
    return merged(consumed_batches(options, wanted), options.column_names, times)


def consumed_batches(
    options: SourceOptions,
    wanted: QueueRange,
    on_missing: OnMissing = lambda missing: None,
    on_unreadable: OnMissing | None = None,
) -> Iterator[QueueBatch]:
    """The same records as the log's own batches, cut to the range. Raises as `record_batches`.

    `on_missing`: hears of what is left out, in order; nothing is without `failOnDataLoss=false`. `on_unreadable`: takes
    what nobody can open, whatever that option says.
    """
    for stretch in dense(wanted, _stretches(options, wanted, takes_unreadable=on_unreadable is not None)):
        if not isinstance(stretch, Missing):
            yield stretch
        elif stretch.append_time_us is not None and on_unreadable is not None:
            on_unreadable(stretch)
        else:
            _tell(wanted, stretch)
            on_missing(stretch)


def _tell(wanted: QueueRange, missing: Missing) -> None:
    logger.warning(
        "records_missing queue=%s first=%d next=%d reason=%r", wanted.queue, missing.first, missing.next, missing.why
    )


def _stretches(options: SourceOptions, wanted: QueueRange, *, takes_unreadable: bool) -> Iterator[QueueBatch | Missing]:
    if options.path is not None:
        yield from _from_files(options, options.path, wanted)
        return
    passes_unreadable = takes_unreadable or not options.fail_on_data_loss
    with ThreadedIterator(
        lambda: _from_nodes(options, wanted, passes_unreadable), patience_s=_PATIENCE_S, what=str(wanted)
    ) as groups:
        for group in groups:
            yield from group


async def _from_nodes(
    options: SourceOptions, wanted: QueueRange, passes_unreadable: bool
) -> AsyncGenerator[list[QueueBatch | Missing]]:
    """In groups: to hand something to another thread costs more than to receive a small batch."""
    # Late: a task that reads files needs no client.
    from mirrorlog.client import Client

    group: list[QueueBatch | Missing]
    client = Client(
        *options.servers,
        cluster_id=wanted.cluster_id,
        **options.access.client_options(),
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
    )
    async with (
        client,
        client.consumer(
            wanted.queue,
            start=wanted.first,
            until=wanted.next,
            read_from=options.read_from,
            max_bytes=_FETCH_BYTES,
            prefetch_bytes=_FETCH_BYTES,
            turn=wanted.turn,
            outage_timeout_ms=client.request_timeout_ms,
        ) as consumer,
    ):
        at, group, size = wanted.first, [], 0
        logs = {wanted.log_id}
        while at < wanted.next:
            try:
                async for batch in consumer.batches():
                    if batch.log_id not in logs:
                        logs |= _logs_of(wanted, await client.queue_info(wanted.queue))
                    _check_identity(wanted, batch, logs)
                    group.append(batch)
                    at, size = batch.next, size + len(batch.raw)
                    if size >= _GROUP_BYTES:
                        yield group
                        group, size = [], 0
                break
            except OffsetOutOfRange as error:
                missing = _missing(options, wanted, at, error)
                group.append(missing)
                at = missing.next
                await consumer.seek(at)
            except UnreadableBatch as error:
                missing = _unreadable(wanted, at, error)
                if not passes_unreadable:
                    raise UnreadableBatch(f"{error.message}{_ADVICE}", **error.details) from error
                group.append(missing)
                at = missing.next
                await consumer.seek(at)
            except LogCorrupt as error:
                # A node knows its log; whose records they are is known here.
                raise LogCorrupt(
                    f"queue {wanted.queue!r}, read from queue offset {at} on: {error.message}", **error.details
                ) from error
        yield group


def _from_files(options: SourceOptions, path: str, wanted: QueueRange) -> Iterator[QueueBatch | Missing]:
    from mirrorlog.spark.offline import LogDirectories

    directories = LogDirectories.open(path)
    at = wanted.first
    bad: list[BadStretch] = []
    while at < wanted.next:
        try:
            on_bad = None if options.fail_on_data_loss else bad.append
            for batch in directories.log_batches(replace(wanted, first=at), on_bad):
                _check_identity(wanted, batch, {wanted.log_id})
                # Without a bad stretch that would explain it a hole is an error, which `dense` raises.
                if batch.first > at and bad:
                    yield Missing(at, batch.first, "; ".join(map(str, bad)))
                bad.clear()
                at = batch.next
                yield batch
            if at < wanted.next and bad:
                yield Missing(at, wanted.next, "; ".join(map(str, bad)))
            return
        except (OffsetOutOfRange, RecordsMissing) as error:
            missing = _missing(options, wanted, at, error)
            yield missing
            at = missing.next


def _unreadable(wanted: QueueRange, at: int, error: UnreadableBatch) -> Missing:
    first, following = error.details["queue_offset"], error.details["go_on_at"]
    return Missing(max(at, first), min(following, wanted.next), error.message, error.details["append_time_us"])


def _missing(options: SourceOptions, wanted: QueueRange, at: int, error: OffsetOutOfRange | RecordsMissing) -> Missing:
    """What of the range is not there any more, from `at` on. Raises the error itself when that is not allowed, or it
    does not say where records are again."""
    if "log" in error.details:  # it is in one whose directory is not there
        if options.fail_on_data_loss:
            raise error
        return Missing(at, wanted.next, error.message)
    lost = isinstance(error, PositionLost)
    go_on_at = error.details.get("go_on_at" if lost else "begin")
    if not isinstance(go_on_at, int) or go_on_at <= at:
        raise error
    why = "lost: a loss of the log's newest records was declared" if lost else "freed by retention"
    missing = Missing(at, min(go_on_at, wanted.next), why)
    if options.fail_on_data_loss:
        raise _refusal(wanted, missing, go_on_at, lost=lost) from error
    return missing


def _refusal(wanted: QueueRange, missing: Missing, go_on_at: int, *, lost: bool) -> PositionLost | RecordsMissing:
    told = (
        f"{wanted}: {missing.first} up to {missing.next} are {missing.why} since it was planned; go on at {go_on_at}, "
        "or set failOnDataLoss to false to go on without them"
    )
    return PositionLost(told, go_on_at=go_on_at) if lost else RecordsMissing(told, begin=go_on_at)


def _logs_of(wanted: QueueRange, info: QueueInfo) -> set[str]:
    """Where its records may be by now: the old ones of a queue that has moved may have been copied to another log since
    it was planned."""
    same = info.queue_id == wanted.queue_id and info.was_in(wanted.log_id)
    return {info.log_id, *info.former_logs} if same else set()


def _check_identity(wanted: QueueRange, batch: QueueBatch, logs: Collection[str]) -> None:
    """A queue may have been deleted and made again under its name since the job was planned. `logs`: of this one."""
    if batch.header.queue_id != wanted.queue_id or batch.log_id not in logs:
        raise RangeNotDense(
            f"{wanted}: planned for queue id {wanted.queue_id} of log {wanted.log_id}, read from "
            f"{batch.header.queue_id} of {batch.log_id}; run the job again"
        )


def spare_modules() -> None:
    """Have later collections pass over what this process has loaded. Only in a task of Spark's; only once."""
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    # What is garbage already would be kept for good.
    gc.collect()
    gc.freeze()
