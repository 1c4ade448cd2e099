"""Executors in virtual time: functions that block run inline, some time after they were handed over.

An executor works on as many jobs at a time as it has workers, in order. A process says how long each of its jobs takes,
before it is done and after; what a job does, it does at one moment in between. Jobs that a kill finds under way are in
`Process.jobs`: whoever kills says what became of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from mirrorlog.broker.log.disk_threads import DiskLane
from sim.processes import current_process

if TYPE_CHECKING:
    from sim.loop import VirtualLoop

_DEFAULT_WORKERS: Final = 8
_NOBODY: Final = Context()


class JobState(Enum):
    QUEUED = "queued"
    BEGUN = "begun"
    DONE = "done"
    """Its effects are there, the answer is on the way."""


class Job:
    """A function on a helper."""

    __slots__ = ("_error", "_function", "_result", "future", "process", "state", "workers")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any], workers: _Workers) -> None:
        self.future = future
        self.process = current_process()
        self.workers = workers
        self.state = JobState.QUEUED
        self._function = function
        self._result: Any = None
        self._error: Exception | None = None

    def do(self) -> None:
        """Here and now, in the process's context."""
        self.state = JobState.DONE
        try:
            self._result = self._function()
        except Exception as error:
            self._error = error

    def answer(self) -> None:
        if self.future.done():
            return
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(self._result)


class _Workers:
    """Those of one executor, which is kept so that its id stays its own."""

    __slots__ = ("executor", "free", "queue")

    def __init__(self, executor: Executor | None) -> None:
        self.executor = executor
        # A log's lane does one thing after the other.
        self.free: int = 1 if isinstance(executor, DiskLane) else getattr(executor, "_max_workers", _DEFAULT_WORKERS)
        self.queue: deque[Job] = deque()


class Helpers:
    """All executors of a run."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._workers: dict[int, _Workers] = {}

    def submit(self, executor: Executor | None, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """The answer comes when the job's turn has come and its time has passed."""
        workers = self._workers.get(id(executor))
        if workers is None:
            workers = self._workers[id(executor)] = _Workers(executor)
        future: asyncio.Future[Any] = self._loop.create_future()
        job = Job(function, future, workers)
        if workers.free:
            self._begin(job)
        else:
            workers.queue.append(job)
        return future

    def finish(self, executor: Executor) -> None:
        """What it has begun is done when this returns; what waits for it is dropped. For a shutdown that waits."""
        workers, process = self._workers.get(id(executor)), current_process()
        if workers is None or process is None:
            return
        for job in workers.queue:
            job.future.cancel()
        workers.queue.clear()
        for job in process.jobs:
            if job.workers is workers and job.state is JobState.BEGUN:
                job.do()

    def _begin(self, job: Job) -> None:
        job.state = JobState.BEGUN
        job.workers.free -= 1
        process = job.process
        before_s, after_s = (0.0, 0.0) if process is None else process.job_s()
        if process is not None:
            process.jobs[job] = None
        context = _NOBODY if process is None else process.context
        self._loop.call_later(before_s, self._do, job, after_s, context=context.copy())

    def _do(self, job: Job, after_s: float) -> None:
        if job.state is JobState.BEGUN:
            job.do()
        self._loop.call_later(after_s, self._end, job)

    def _end(self, job: Job) -> None:
        if job.process is not None:
            job.process.jobs.pop(job, None)
        workers = job.workers
        workers.free += 1
        while workers.queue and workers.free:
            following = workers.queue.popleft()
            if not following.future.cancelled():
                self._begin(following)
        job.answer()
