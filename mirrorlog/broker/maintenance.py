"""Flushing and warming one log, on helper threads, so that the loop never waits for a disk.

One flush is under way at a time; all that is appended meanwhile shares the next one (group commit). A log is flushed at
once when a confirm waits for the disk (always on a disk log; on a memory log for the producers that ask for it), else
every `flush_interval_ms` or `flush_bytes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeVar

from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.prepare import PrepareJob
from mirrorlog.errors import DiskFailed, FileRefused, MirrorlogError

logger = logging.getLogger(__name__)

_LOOK_BYTES: Final = 256 * 1024


class _Runnable(Protocol):
    def run(self) -> None: ...


_Job = TypeVar("_Job", bound=_Runnable)


class Maintenance:
    """The background work of one replica. `failed` is called once when the disk can no longer be trusted, or
    when nothing flushes any more. `checks` are made after each recorded flush, every `flush_interval_ms` or so."""

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
        self._failed = failed
        self._due = asyncio.Event()
        self._recorded_at = 0.0
        # Where the log ended when it was last looked at: it is idle while it still does.
        self._noted_at = 0.0
        self._refused = ""
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
        if self._eager or log.end - log.flushed >= self._flush_bytes:
            self._due.set()
        # The windows ahead are some MiB: there is no need to look at them with every small batch of a segment.
        start = log.active_start
        if start != self._looked_in or not self._looked_at <= log.end < self._looked_at + _LOOK_BYTES:
            self._looked_in, self._looked_at = start, log.end
            self._warm()

    async def _flush_for_ever(self) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._due.wait()
                self._due.clear()
                self._note_growth()
                try:
                    await self._flush()
                except FileRefused as error:  # the next one does it, in a moment
                    self._tell_refused(error)
                else:
                    self._refused = ""
        except DiskFailed as error:
            logger.critical("disk_failed log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed(error)
        except Exception as error:
            # A node that flushes no more must not live on: under flush=disk every publish would end as unknown.
            logger.critical("flush_loop_failed log=%s", self._replica.assignment.name, exc_info=error)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def _tell_refused(self, error: FileRefused) -> None:
        """Once, however often it is tried."""
        if self._refused != str(error):
            self._refused = str(error)
            logger.error("flush_refused log=%s reason=%r", self._replica.assignment.name, str(error))

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
        record = loop.time() - self._recorded_at >= self._interval_s
        if record:
            self._recorded_at = loop.time()
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
            for check in self._checks:
                check()
            # A file that was freed may be waiting to become the next spare.
            self._warm()

    def _warm(self) -> None:
        if not self._replica.usable:
            return
        log = self._replica.log
        if self._warming is None or self._warming.done():
            self._warming = self._run_jobs(self._warm_helper, log.start_warm, log.complete_warm)
        if self._preparing is None or self._preparing.done():
            self._preparing = self._run_jobs(
                self._prepare_helper, partial(self._next_to_prepare, log), log.complete_prepare
            )

    def _next_to_prepare(self, log: CommitLog) -> PrepareJob | None:
        return log.start_prepare(idle=log.end == self._end_before)

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
