"""One run: a seed, a loop in virtual time, a network, machines. What happens in it is somebody else's to say.

    with World(seed) as world:
        world.run(story(world))

`story` is the world's own code: it starts programs, lets faults happen, looks on from outside and waits. One that fails
ends the run; the last events are told with the reason.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from random import Random
from typing import Any, Final, Self, TypeVar

from sim.disk import DiskModel
from sim.loop import VirtualLoop
from sim.machines import Machine
from sim.patches import patched
from sim.processes import current_process
from sim.sockets import SocketNetwork
from sim.trace import Trace, logs_traced

_T = TypeVar("_T")

_LOOK_S: Final = 0.005


class RunFailed(AssertionError):
    """What must never be, with the events before it."""


class World:
    """`seed` decides everything. `random`: the world's own share of it, for whoever plans what happens."""

    def __init__(self, seed: int | str, *, trace: Trace | None = None) -> None:
        self.seed = seed
        self.random = Random(f"{seed} world")
        self.trace = trace or Trace()
        self.loop = VirtualLoop(self.trace, shuffle=Random(f"{seed} loop"))  # type: ignore[abstract]  # what is not there is not used
        self.network = SocketNetwork(self.loop, Random(f"{seed} network"))
        self.machines: dict[str, Machine] = {}
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        # When the collector runs depends on all that ran before, and with it when something ends by being forgotten.
        if gc.isenabled():
            gc.disable()
            self._undo.callback(gc.enable)
        self._undo.enter_context(patched(self.loop, str(self.seed)))
        self._undo.enter_context(logs_traced(self.trace, self._now))
        self._undo.callback(self.loop.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def machine(self, name: str, disk: DiskModel | None = None) -> Machine:
        """A new one, with a blank disk."""
        assert name not in self.machines
        machine = self.machines[name] = Machine(name, self.loop, self.network, seed=str(self.seed), disk=disk)
        return machine

    @property
    def now(self) -> float:
        """s."""
        return self.loop.now

    def run(self, story: Coroutine[Any, Any, _T]) -> _T:
        """What the story gives. Raises RunFailed, with the last events, for whatever goes wrong anywhere."""
        try:
            told = self.loop.run_until_complete(story)
        except Exception as error:
            raise RunFailed(self._report(f"{type(error).__name__}: {error}")) from error
        if self.trace.failures:
            raise RunFailed(self._report(self.trace.failures[0]))
        return told

    async def until(self, condition: Callable[[], Any], *, within_s: float, otherwise: str) -> None:
        """Wait for what nobody tells of; looks every few milliseconds. Raises AssertionError."""
        end = self.now + within_s
        while not condition():
            assert self.now < end, f"{otherwise} within {within_s} s"
            assert not self.trace.failures, self.trace.failures[0]
            await asyncio.sleep(_LOOK_S)

    def _now(self) -> tuple[float, str]:
        process = current_process()
        return self.loop.now, repr(process) if process is not None else ""

    def _report(self, reason: str) -> str:
        return "\n".join([f"seed {self.seed}: {reason}", *self.trace.lines()])
