"""Clients in processes of their own, as users' are, started together: all are ready before any begins.

A client is a function at the top of a module: `client(pace, job)`, which prepares, calls `pace.begin()`, does what is
measured and returns what can be pickled. The clock is its own: CLOCK_MONOTONIC is the same one in every process.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Final, Generic, Self, TypeVar

from bench.workload import WorkloadFailed

READY_SECONDS: Final = 60.0
RESULT_SECONDS: Final = 120.0

_GO: Final = "go"
_STOP: Final = "stop"
_END_SECONDS: Final = 5.0

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Pace:
    """What a client hears of the others."""

    def __init__(self, pipe: Connection, ready_seconds: float) -> None:
        self._pipe = pipe
        self._ready_seconds = ready_seconds
        self._stopped = False

    def begin(self) -> float:
        """Wait until all are ready; the time then, as `time.perf_counter` gives it."""
        self._pipe.send(None)
        if not self._pipe.poll(self._ready_seconds) or self._pipe.recv() != _GO:
            raise WorkloadFailed(f"the other clients were not ready within {self._ready_seconds:g} s")
        return time.perf_counter()

    @property
    def stopped(self) -> bool:
        """Whether this client shall come to its end."""
        if not self._stopped and self._pipe.poll():
            self._stopped = self._pipe.recv() == _STOP
        return self._stopped


class Clients(Generic[_Result]):
    """One process per job. For `with`, whose begin returns when all are ready and whose end kills what is left."""

    def __init__(
        self,
        client: Callable[[Pace, _Job], _Result],
        jobs: Sequence[_Job],
        *,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        # Not forked: a child shall have none of this process's memory, threads and sockets.
        context = multiprocessing.get_context("spawn")
        self._name = client.__name__
        self._ready_seconds = ready_seconds
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        for job in jobs:
            pipe, theirs = context.Pipe()
            process = context.Process(target=_run, args=(theirs, client, job, ready_seconds), daemon=True)
            process.start()
            theirs.close()  # so that its end is the end of the pipe
            self._pipes.append(pipe)
            self._processes.append(process)

    def __enter__(self) -> Self:
        try:
            for pipe in self._pipes:
                self._receive(pipe, time.monotonic() + self._ready_seconds)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def go(self) -> None:
        """Let all begin."""
        for pipe in self._pipes:
            pipe.send(_GO)

    def stop(self) -> None:
        """Ask all to come to their end."""
        for pipe in self._pipes:
            pipe.send(_STOP)

    def results(self, timeout: float = RESULT_SECONDS) -> list[_Result]:
        """What each returned, in the order of the jobs. Raises WorkloadFailed with the reason of the first failure."""
        deadline = time.monotonic() + timeout
        return [self._receive(pipe, deadline) for pipe in self._pipes]

    def _receive(self, pipe: Connection, deadline: float) -> Any:
        try:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise WorkloadFailed(f"{self._name} was not done in time")
            answer = pipe.recv()
        except (EOFError, ConnectionError):
            raise WorkloadFailed(f"{self._name}: its process ended without a result") from None
        if isinstance(answer, _Failure):
            raise WorkloadFailed(f"{self._name}: {answer.reason}")
        return answer

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join(_END_SECONDS)
            pipe.close()


class _Failure:
    def __init__(self, reason: str) -> None:
        self.reason = reason


def run_clients(client: Callable[[Pace, _Job], _Result], jobs: Sequence[_Job]) -> list[_Result]:
    """Start one client per job, let all begin at once, and give their results. Raises WorkloadFailed."""
    with Clients(client, jobs) as clients:
        clients.go()
        return clients.results()


def _run(pipe: Connection, client: Callable[[Pace, Any], Any], job: Any, ready_seconds: float) -> None:
    try:
        pipe.send(client(Pace(pipe, ready_seconds), job))
    except Exception as error:
        traceback.print_exc()
        pipe.send(_Failure(f"{type(error).__name__}: {error}"))
