"""One run of one program, as its kernel knows it: what belongs to it, and whether it runs.

Whose code runs is told by a context variable. asyncio hands contexts on by itself, so every task, timer and callback
that a program's code sets off is the program's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from sim.helpers import Job

_TASKS_PRUNED_AT: Final = 1000

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
current_process: Final = _PROCESS.get
"""Whose code runs now; None: the world's."""


def process_of(context: Context) -> Process | None:
    """Whose code runs in a context."""
    return context.get(_PROCESS)


class Held(Protocol):
    """Something of a process that the kernel takes back: a connection, a port."""

    def process_ended(self) -> None:
        """Called once, when nothing of the process runs any more."""


class Process:
    """`machine`: where it runs, by name; `run`: the how many-th there.

    `wall_skew_ns`: how far its wall clock is off. `job_s()`: how long the next job of a helper waits before it is done,
    and until it is answered after that; s.
    """

    def __init__(self, name: str, *, machine: str, run: int = 1, job_s: Callable[[], tuple[float, float]]) -> None:
        self.name = name
        self.machine = machine
        self.run = run
        self.number = 0
        self.alive = True
        self.paused = False
        self.wall_skew_ns = 0
        self.job_s = job_s
        self.held: dict[Held, None] = {}
        self.jobs: dict[Job, None] = {}
        """Begun and not answered, in the order in which they were begun."""
        self.waiting: list[asyncio.TimerHandle] = []
        """What would have run while it was paused."""
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = _TASKS_PRUNED_AT

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Until it is done: nothing of a process may end by being forgotten, or a kill would run its last words."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = max(_TASKS_PRUNED_AT, 2 * len(self._tasks))

    def unheard(self) -> BaseException | None:
        """An error that ended one of its tasks, and that nobody has asked for."""
        for task in self._tasks:
            if task.done() and task._log_traceback:
                return task.exception()
        return None

    def end_tasks(self) -> None:
        """Let go of what was never finished: its last words are said now, and reach nobody."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()

    def __repr__(self) -> str:
        return f"{self.name}#{self.run}"
