"""A machine: one disk that outlives its programs, a clock, and the process that runs on it now, if any.

What ends a program decides what the next one finds: a kill keeps what the kernel was given, a loss of power only what
was synced, and a part of the rest. Both may come while helpers are at work; then of each such job nothing is done, or
all of it, or what it does up to some operation of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from sim.disk import DiskModel, Moment, SimulatedFiles
from sim.helpers import JobState
from sim.loop import VirtualLoop
from sim.processes import Process
from sim.sockets import SocketNetwork

ROOT: Final = Path("/sim")
"""The directory that every machine's disk has from the start. No such directory need be anywhere."""
_OPERATIONS_MAX: Final = 8
"""A job that is hit comes to an end within so many operations, or is not hit."""

Main = Callable[["Machine"], Coroutine[Any, Any, None]]
"""A program: runs until it returns, or is killed."""


class Killed(BaseException):
    """The process ended within an operation of its disk. No Exception: nobody may take it for a disk that failed."""


@dataclass(slots=True)
class DiskPace:
    """How long jobs of helpers take: `job_s` from the shortest to the longest; the share of `slow` ones up to `slow_s`
    longer."""

    job_s: tuple[float, float] = (0.00005, 0.002)
    slow: float = 0.0
    slow_s: float = 0.5


class Machine:
    """`files`: the disk, as the running program has it. `seed`: of everything that this machine decides."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        network: SocketNetwork,
        *,
        seed: str,
        disk: DiskModel | None = None,
    ) -> None:
        self.name = name
        self.files = SimulatedFiles(ROOT, seed=f"{seed} {name} disk", model=disk)
        self.pace = DiskPace()
        self.process: Process | None = None
        self.task: asyncio.Task[None] | None = None
        self.runs = 0
        self.boots = 1
        """Page caches that it has had; each loss of power ends one."""
        self.disks = 1
        """That it has had, each blank or restored at first."""
        self.wall_skew_ns = 0
        self._loop = loop
        self._network = network
        self._random = Random(f"{seed} {name}")

    @property
    def up(self) -> bool:
        """Whether a program runs, or is paused."""
        return self.process is not None and self.process.alive

    @property
    def paused(self) -> bool:
        return self.process is not None and self.process.paused

    # --- programs ---

    def start(self, main: Main) -> None:
        """The next run of a program; the machine has power again if it had none."""
        assert not self.up, f"{self.name} runs already"
        self._network.lighten(self.name)
        self.runs += 1
        process = self.process = Process(self.name, machine=self.name, run=self.runs, job_s=self._job_s)
        process.wall_skew_ns = self.wall_skew_ns
        self._note("started")
        self.task = self._loop.begin(process, main(self))
        self.task.add_done_callback(lambda ended: self._returned(process, ended))

    def _returned(self, process: Process, ended: asyncio.Task[None]) -> None:
        if not process.alive:
            return
        self._note("returned")
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._loop.fail(error, f"the program of {self.name} failed")
        self._let_go(process)
        self.files = self._left(self.files.after_kill())

    def kill(self) -> None:
        """As SIGKILL does. Idempotent."""
        if self.process is not None and self.up:
            self._note("killed")
            self._tear(self.process)
            self._let_go(self.process)
            self.files = self._left(self.files.after_kill())

    def lose_power(self) -> None:
        """The machine goes down, whether a program runs or not, and is silent until `start`."""
        self._note("lost power")
        self.boots += 1
        self._network.darken(self.name)
        if self.process is not None and self.up:
            self._tear(self.process)
            self._let_go(self.process)
        self.files = self._left(self.files.after_power_loss())

    def ask_to_stop(self, how: Callable[[], None]) -> None:
        """As SIGTERM does: its handler runs in the program."""
        if self.process is not None:
            self._note("asked to stop")
            self._loop.enter(self.process, self.process.context.copy(), how)

    def have(self, what: Callable[[], None]) -> None:
        """Done by the program, of its own accord, if it runs."""
        if self.process is not None and self.up:
            self._loop.enter(self.process, self.process.context.copy(), what)

    def pause(self) -> None:
        """As SIGSTOP does. Idempotent."""
        if self.process is not None and self.up:
            self._note("paused")
            self._loop.pause(self.process)

    def resume(self) -> None:
        """As SIGCONT does. Idempotent."""
        if self.process is not None and self.paused:
            self._note("resumed")
            self._loop.resume(self.process, timers_first=self._random.random() < 0.5)

    # --- the disk and the clock, from outside ---

    def wipe(self) -> None:
        """A blank disk in its place."""
        assert not self.up
        self._note("was given a blank disk")
        self.disks += 1
        self.files = SimulatedFiles(ROOT, seed=self._random.getrandbits(64), model=self.files.model)

    def image(self) -> SimulatedFiles:
        """The disk as a snapshot of the machine has it, which `restore` takes: what a loss of power would leave."""
        return self.files.after_power_loss()

    def restore(self, image: SimulatedFiles) -> None:
        """The disk is what it was."""
        assert not self.up
        self._note("was restored from a snapshot")
        self.disks += 1
        self.files = self._left(image.after_kill())

    def set_clock(self, skew_ns: int) -> None:
        """Its wall clock is off by so much, from now on."""
        self._note("has a clock that is off by %.3f s", skew_ns / 1e9)
        self.wall_skew_ns = skew_ns
        if self.process is not None:
            self.process.wall_skew_ns = skew_ns

    # --- inside ---

    def _job_s(self) -> tuple[float, float]:
        pace, random = self.pace, self._random
        low, high = pace.job_s
        seconds = low + (high - low) * random.random()
        if pace.slow and random.random() < pace.slow:
            seconds += pace.slow_s * random.random()
        # What is done early covers less of what comes meanwhile; what is done late, more.
        return (seconds, 0.0) if random.random() < 0.5 else (0.0, seconds)

    def _tear(self, process: Process) -> None:
        """What becomes of the jobs that are under way."""
        for job in [each for each in process.jobs if each.state is JobState.BEGUN]:
            if self._random.random() < 0.5:
                continue
            left = self._random.randrange(_OPERATIONS_MAX)

            def crash(_: Moment) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed

            self.files.observer = crash
            try:
                process.context.copy().run(job.do)
            except Killed:
                self._note("ended within a job of a helper")
            finally:
                self.files.observer = None

    def _let_go(self, process: Process) -> None:
        self._loop.kill(process)
        self.files.observer = _refuse  # for whatever of the program is still to be let go

    def _left(self, files: SimulatedFiles) -> SimulatedFiles:
        files.faults = self.files.faults  # what fails goes on failing, until somebody heals it
        return files

    def _note(self, what: str, *facts: object) -> None:
        self._loop.trace.note(self._loop.now, self.name, what, *facts)


def _refuse(_: Moment) -> None:
    raise Killed
