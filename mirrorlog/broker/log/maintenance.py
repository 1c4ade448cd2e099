"""Flushing and warming one log, on helper threads, so that the loop never waits for a disk.

One flush is under way at a time; all that is appended meanwhile shares the next one (group commit). A log is flushed at
once when a confirm waits for the disk (always on a disk log; on a memory log for the producers that ask for it), else
every `flush_interval_ms` or `flush_bytes`.

A log in which nothing happened has nothing to flush: its checks are made, and a helper looks only now and then whether
its files are still there. After a while it is *at rest*: until the next append it is looked at as seldom as that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeVar

from mirrorlog.broker.log.derived import PastUpkeep
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.index.past import Past
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.preallocation import PrepareJob
from mirrorlog.commitlog.segments.warming import WarmJob
from mirrorlog.errors import DiskFailed, DiskFull, IndexDoubtful, LogUnavailable, MirrorlogError, Overloaded
from mirrorlog.queues.checkpoint import CheckpointWriter

logger = logging.getLogger(__name__)

_LOOK_BYTES: Final = 256 * 1024
LOOK_S: Final = 10.0
"""How often a log that has nothing to flush is flushed nevertheless: files that were removed are noticed by that."""
REST_S: Final = 5.0
"""After so long without anything to flush, a log of one segment is at rest."""


class _Runnable(Protocol):
    def run(self) -> None: ...


_Job = TypeVar("_Job", bound=_Runnable)


class Maintenance:
    """The background work of one replica. `failed` is called once when the disk can no longer be trusted, or
    when nothing flushes any more. `checks` are made after each recorded flush, every `flush_interval_ms` or so; at rest
    every `LOOK_S`. `sharers`: how many logs have a share of what the node makes ready ahead of its logs."""

    def __init__(
        self,
        replica: Replica,
        *,
        flush_interval_ms: int,
        flush_bytes: int,
        flush_helper: Executor,
        warm_helper: Executor,
        prepare_helper: Executor,
        flushed: Callable[[], None],
        checks: Sequence[Callable[[], None]],
        sharers: Callable[[], int],
        failed: Callable[[MirrorlogError], None],
    ) -> None:
        self._replica = replica
        self._interval_s = flush_interval_ms / 1000
        self._flush_bytes = flush_bytes
        self._eager = replica.assignment.flush == "disk"
        self._flush_helper = flush_helper
        self._warm_helper = warm_helper
        self._prepare_helper = prepare_helper
        self._flushed = flushed
        self._checks = checks
        self._sharers = sharers
        self._failed = failed
        self._due = asyncio.Event()
        self._recorded_at = 0.0
        self._looked_s = 0.0
        self._worked_at = 0.0
        self._at_rest = False
        # Where the log ended when it was last looked at: it is idle while it still does.
        self._noted_at = 0.0
        self._end_before = -1
        self._looked_in = self._looked_at = -1
        self._stopped = False
        self._resting = False
        self._task: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._replica.on_appended.append(self._appended)
        self._replica.on_flush_wanted.append(self._due.set)
        # What stands in the log already, from recovery or as the epoch's first batch, waits for no further append.
        self._due.set()
        self._task = asyncio.ensure_future(self._flush_for_ever())
        self._warm()

    @property
    def replica(self) -> Replica:
        return self._replica

    async def rest(self) -> None:
        """Wait for the pages and files that are being prepared; more follow when the log grows again."""
        self._resting = True
        try:
            for task in (self._warming, self._preparing):
                if task is not None:
                    await task
        finally:
            self._resting = False

    async def stop(self) -> None:
        """Wait for what is under way, of which nobody is told any more; the log's close, or the next maintenance, does
        the last flush."""
        for hooks, hook in (
            (self._replica.on_appended, self._appended),
            (self._replica.on_flush_wanted, self._due.set),
        ):
            if hook in hooks:
                hooks.remove(hook)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._stopped = True
        for task in (self._warming, self._preparing):
            if task is not None:
                await task

    def _appended(self) -> None:
        log = self._replica.log
        if self._eager or self._at_rest or log.end - log.flushed >= self._flush_bytes:
            self._due.set()
        # The windows ahead are some MiB: there is no need to look at them with every small batch of a segment.
        if log.active_start != self._looked_in or not self._looked_at <= log.end < self._looked_at + _LOOK_BYTES:
            self._warm()

    async def _flush_for_ever(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if self._at_rest else self._interval_s):
                        await self._due.wait()
                self._due.clear()
                self._at_rest = False
                self._note_growth()
                await self._flush()
        except DiskFailed as error:
            logger.critical("disk_failed log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed(error)
        except Exception as error:
            # A node that flushes no more must not live on: under flush=disk every publish would end as unknown.
            logger.critical("flush_loop_failed log=%s", self._replica.assignment.name, exc_info=error)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def _note_growth(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._noted_at + self._interval_s and self._replica.usable:
            self._noted_at, self._end_before = now, self._replica.log.end

    async def _flush(self) -> None:
        if not self._replica.usable:
            return
        log = self._replica.log
        loop = asyncio.get_running_loop()
        # The checkpoint is a second sync: no confirm waits for it, so it is not written with every group.
        now = loop.time()
        record = now - self._recorded_at >= self._interval_s
        if record:
            self._recorded_at = now
        if log.owes_disk:
            self._worked_at = now
        elif now - self._looked_s < LOOK_S:
            self._at_rest = now - self._worked_at >= REST_S and log.is_one_segment
            if record:
                self._check()
            return
        self._looked_s = now
        job = log.start_flush(record=record)
        run = loop.run_in_executor(self._flush_helper, job.run)
        try:
            # A stop must not leave a job half done behind: the helper finishes it first.
            await asyncio.shield(run)
        except asyncio.CancelledError:
            await run
            raise
        before = log.flushed
        gained = log.complete_flush(job) > before
        if not self._replica.usable or self._replica.log is not log:
            return  # the copy began anew meanwhile
        if gained:
            self._replica.counters.flushed(log.flushed - before)
            self._looked_at = -_LOOK_BYTES  # a flush undoes what was warm
            self._flushed()
        if record:
            self._check()

    def _check(self) -> None:
        for check in self._checks:
            check()
        # A file that was freed may be waiting to become the next spare.
        self._warm()

    def _warm(self) -> None:
        if not self._replica.usable:
            return
        log = self._replica.log
        self._looked_in, self._looked_at = log.active_start, log.end
        if self._warming is None or self._warming.done():
            self._warming = self._run_jobs(self._warm_helper, partial(self._next_to_warm, log), log.complete_warm)
        if self._preparing is None or self._preparing.done():
            self._preparing = self._run_jobs(
                self._prepare_helper, partial(self._next_to_prepare, log), log.complete_prepare
            )

    def _next_to_prepare(self, log: CommitLog) -> PrepareJob | None:
        now = asyncio.get_running_loop().time()
        return log.start_prepare(idle=log.end == self._end_before, now=now, sharers=self._sharers())

    def _next_to_warm(self, log: CommitLog) -> WarmJob | None:
        return log.start_warm(sharers=self._sharers())

    def _run_jobs(
        self, helper: Executor, start: Callable[[], _Job | None], complete: Callable[[_Job], None]
    ) -> asyncio.Task[None] | None:
        """Run one job after the other until none is due."""
        job = start()
        return asyncio.ensure_future(self._run(job, helper, start, complete)) if job is not None else None

    async def _run(
        self, job: _Job | None, helper: Executor, start: Callable[[], _Job | None], complete: Callable[[_Job], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            while job is not None:
                await loop.run_in_executor(helper, job.run)
                complete(job)
                job = None if self._stopped or self._resting else start()
        except Exception:
            # Without it appends are slower, not wrong.
            logger.exception("warming_failed log=%s", self._replica.assignment.name)


# What is far behind leaves the memory: sealed segments get their tables, freed ones lose their entries. Thin.
#
# All work on tables and on the index of the past is done on one helper, one job after the other, so that LMDB has one
# thread.


QUESTIONS_MAX: Final = 1_000
"""Look-ups in the past of one log that may wait for its helper."""

_T = TypeVar("_T")


class PastKeeper:
    """The past of one replica. `failed` is called with what makes this node's copy untrustworthy."""

    def __init__(self, replica: Replica, *, helper: Executor, failed: Callable[[MirrorlogError], None]) -> None:
        self._replica = replica
        self._helper = helper
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._rebuilding: asyncio.Task[None] | None = None
        self._questions = 0
        self._resting: CommitLog | None = None
        self._paused = False
        self._waits_for_space = False

    def wake(self) -> None:
        """There may be something to do: after a flush, or when the begin has moved."""
        if (self._task is None or self._task.done()) and self._due():
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Wait for the job that is under way; nothing more is done on this log."""
        self._resting = self._replica.log if self._replica.usable else self._resting
        if self._task is not None:
            await self._task

    async def pause(self) -> None:
        """Wait for the job that is under way; no other is begun until `resume`. Look-ups go on."""
        self._paused = True
        if self._task is not None:
            await self._task

    def resume(self) -> None:
        """After `pause`: the next `wake` may begin a job."""
        self._paused = False

    async def entries(self, queue_id: int, queue_offset: int, max_bytes: int, *, until: int) -> list[QueuedBatch]:
        """See `Past.entries`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.entries(queue_id, queue_offset, max_bytes, until=until))

    async def find_time(self, queue_id: int, append_time_us: int) -> int | None:
        """See `Past.find_time`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.find_time(queue_id, append_time_us))

    async def entries_before(self, queue_id: int, until: int, max_bytes: int) -> list[QueuedBatch]:
        """See `Past.entries_before`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.entries_before(queue_id, until, max_bytes))

    async def size(self, queue_id: int, first: int, until: int) -> int:
        """See `Past.size`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.size(queue_id, first, until))

    # --- inside ---

    @property
    def _upkeep(self) -> PastUpkeep:
        assert self._replica.past_upkeep is not None
        return self._replica.past_upkeep

    def _due(self) -> bool:
        if self._paused or not self._replica.usable or self._replica.log is self._resting:
            return False
        return self._replica.log.next_to_seal() is not None or self._begin_due()

    async def _work(self) -> None:
        try:
            while self._due():
                if self._begin_due():
                    await self._move_begin(self._replica.derived.start_decided)
                if (segment := self._replica.log.next_to_seal()) is not None:
                    await self._seal(*segment)
                self._waits_for_space = False
        except DiskFull as error:
            # The memory keeps what it has, and the next flush wakes this again.
            if not self._waits_for_space:
                logger.warning("past_waits_for_space log=%s reason=%r", self._replica.assignment.name, str(error))
            self._waits_for_space = True
        except MirrorlogError as error:
            logger.critical("past_failed log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed(error)
        except Exception as error:
            logger.critical("past_failed log=%s", self._replica.assignment.name, exc_info=error)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    async def _seal(self, start: int, end: int) -> None:
        replica = self._replica
        pieces = replica.index.rows(max(start, replica.log.begin), end)

        def make_table() -> None:
            content = build_table(pieces, start=start, end=end, seed=replica.log.seed)
            try:
                replica.log.tables.store(start, end, content)
                replica.log.shorten(end)
            except OSError as error:
                raise disk_error(error, "write a table in", replica.log.directory) from None

        await self._run(make_table)
        await self._run(partial(self._upkeep.add, start, replica.log))
        replica.log.seal(end)
        replica.index.evict(end)
        logger.info("segment_sealed log=%s start=%s end=%s", replica.assignment.name, start, end)

    def _begin_due(self) -> bool:
        replica = self._replica
        return replica.log.begin < replica.derived.start_decided <= replica.log.state_from

    async def _move_begin(self, begin: int) -> None:
        replica = self._replica
        begins = await self._run(partial(self._upkeep.starts_behind, begin, replica.log))
        if not replica.usable:
            return
        replica.start_moved(begin, begins)
        await self._run(partial(self._upkeep.drop, begin, replica.log))
        logger.info("begin_moved log=%s begin=%s", replica.assignment.name, begin)

    async def _ask(self, question: Callable[[Past], _T]) -> _T:
        past = self._replica.past
        name = self._replica.assignment.name
        if past is None or not self._replica.usable:
            raise LogUnavailable(f"this copy of log {name} begins anew; ask again")
        if self._questions >= QUESTIONS_MAX:
            raise Overloaded(f"{QUESTIONS_MAX} look-ups in the past of log {name} wait", limit="past_lookups")
        self._questions += 1
        try:
            return await self._run(partial(question, past))
        except IndexDoubtful as error:
            await self._rebuild(str(error))
            raise LogUnavailable(f"the index of log {name} was rebuilt; ask again") from None
        except OSError as error:
            raise disk_error(error, "look into the past of", self._replica.log.directory) from None
        finally:
            self._questions -= 1

    async def _rebuild(self, reason: str) -> None:
        """Once for all who found it damaged."""
        if self._rebuilding is None or self._rebuilding.done():
            logger.warning("index_rebuilt log=%s reason=%r", self._replica.assignment.name, reason)
            self._rebuilding = asyncio.ensure_future(self._run(partial(self._upkeep.rebuild, self._replica.log)))
        await asyncio.shield(self._rebuilding)

    async def _run(self, job: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, job)


# Writes the checkpoint of the queues' state at the start of each segment: what stands before can be freed then, and
# need not be read at the next start. In turns of the loop of about a millisecond, so that thousands of queues hold
# nobody up; a little after the roll, when the record that began the segment has its confirm.


DELAY_S: Final = 0.01
TURN_S: Final = 0.0005
"""After so much no further batch is made in a turn; one takes about a millisecond at most."""


class StateKeeper:
    """One log that this node masters. `batch_bytes_max`: what every copy takes."""

    def __init__(self, replica: Replica, publisher: LogPublisher, *, batch_bytes_max: int) -> None:
        self._replica = replica
        self._publisher = publisher
        self._batch_bytes_max = batch_bytes_max
        self._writer: CheckpointWriter | None = None
        self._began_at = replica.checkpoints.state_from
        # The log grows by a checkpoint's own size at least before the next one: one that fills segments would make the
        # log roll, and so bring about the next.
        self._size = 0
        self._not_before = 0
        replica.on_appended.append(self.wake)

    def stop(self) -> None:
        """The log grows under another mastership from now on. After `LogPublisher.stop`."""
        self._replica.on_appended.remove(self.wake)

    def wake(self) -> None:
        """Begin a checkpoint if the log has rolled since the last one: after an append, and among the checks of
        `Maintenance`, since a log that takes no data may wait for just this to free space."""
        log = self._replica.log
        if log.active_start <= self._began_at:
            return
        if log.end >= self._not_before and self._writer is None and not self._publisher.stopping:
            replica = self._replica
            if replica.queues.moves.arriving and replica.queues.moves.any_incomplete:
                return
            self._began_at, self._size = replica.log.end, 0
            self._writer = CheckpointWriter(
                replica.queues,
                replica.producers,
                replica.index.next_appended,
                log_start=lambda: replica.begins.newest,
                batch_bytes_max=self._batch_bytes_max,
                gaps=replica.index.gaps,
                holds=replica.holds,
                groups=replica.groups,
                runs=replica.runs,
                forwardings=replica.forwardings,
            )
            asyncio.get_running_loop().call_later(DELAY_S, self._turn)

    def _turn(self) -> None:
        """A small checkpoint is written in one, so that the mirrors get it in a frame or two."""
        loop = asyncio.get_running_loop()
        until = loop.time() + TURN_S
        while self._write_next():
            if loop.time() >= until:
                loop.call_soon(self._turn)
                return

    def _write_next(self) -> bool:
        """The next batch. Whether there may be another one."""
        writer = self._writer
        if writer is None or self._publisher.stopping:
            return False
        moves = self._replica.queues.moves
        if not self._size and moves.arriving and moves.any_incomplete:
            # It would not count; see `CheckpointTracker`. The next append tries again.
            self._writer, self._began_at = None, self._replica.checkpoints.state_from
            return False
        try:
            batch = writer.next_batch(self._replica.log.end)
            if batch is not None:
                self._publisher.append_control(batch)
                self._size += len(batch)
        except Exception as error:
            # The next check tries again: without it the log only keeps more than it must.
            expected = isinstance(error, MirrorlogError)
            logger.warning(
                "state_not_written log=%s reason=%r", self._replica.assignment.name, str(error),
                exc_info=None if expected else error,
            )  # fmt: skip
            self._writer, self._began_at = None, self._replica.checkpoints.state_from
            return False
        if batch is None:
            logger.info("state_written log=%s from=%s", self._replica.assignment.name, self._began_at)
            self._writer = None
            self._not_before = self._replica.log.end + self._size
        return batch is not None
