"""An asyncio event loop in virtual time, on which whole programs run side by side in one thread.

Time jumps to the next timer when nothing is ready; what is ready at one moment runs in the order in which it became so,
and timers of one moment in the order in which they were set, or in one that `shuffle` draws. Code takes no time.

A process (`sim.processes`) that is killed never runs again, not even a `finally`: what it holds is kept until the run
is over. One that is paused finds everything that came meanwhile when it goes on.

Blocking work is `sim.helpers`', sockets are `sim.sockets`', clocks and chance are `sim.patches`'. What asyncio has
beyond that (signals, pipes, child processes, readers of file descriptors) is not there: NotImplementedError.

Rejected: asyncio's own base loop with a selector that knows no sockets. Its handles, timers and debug checks cost half
of a run's time.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sim.helpers import Helpers
from sim.processes import Process, current_process, process_of
from sim.trace import Trace

if TYPE_CHECKING:
    from sim.sockets import SocketNetwork

_T = TypeVar("_T")

START_S: Final = 100.0
"""The clock at the start: a machine that runs for a while, so that nothing takes 0 for now."""
AT_ONCE_MAX: Final = 100_000
"""Callbacks at one moment; more of them are taken for a loop that time does not get out of."""


class _Handle(asyncio.TimerHandle):
    """As asyncio's, without what is for debugging. `_scheduled`: a timer."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object] | None,
        args: Sequence[Any],
        context: Context,
        process: Process | None,
        *,
        timer: bool,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False
        self._scheduled = timer
        self.process = process

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def __repr__(self) -> str:
        return f"<{getattr(self._callback, '__qualname__', self._callback)} of {self.process} at {self._when}>"


class _Task(asyncio.Task[Any]):
    """Sets of tasks are walked in an order that their hashes decide; an address would differ from run to run."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """`shuffle`: draws the order of timers of one moment. `network`: what sockets are made of.

    `now`: s. `steps`: callbacks that ran.
    """

    def __init__(self, trace: Trace | None = None, *, shuffle: Random | None = None) -> None:
        self.now = START_S
        self.steps = 0
        self.trace = trace or Trace()
        self.network: SocketNetwork | None = None
        self.helpers = Helpers(self)
        self._processes: list[Process] = []
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, float, int, _Handle]] = []
        self._serial = count()
        self._tasks_made = count()
        self._shuffle = shuffle
        self._failure: BaseException | None = None
        self._stopping = False
        self._running = False
        self._closed = False

    # --- running ---

    def run_until_complete(self, future: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> _T:  # type: ignore[override]
        """Raises what it raises, what ended a callback or a task of a process unheard, and AssertionError when nothing
        is left to happen or time stands still."""
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        assert task.done(), "stopped before it was done"
        result = task.result()
        for process in self._processes:
            if (error := process.unheard()) is not None:
                raise error
        return result

    def run_forever(self) -> None:
        """Until `stop`. Raises as `run_until_complete`."""
        assert not self._running, "runs already"
        before = events._get_running_loop()
        self._running, self._stopping = True, False
        events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=_ignore)
        try:
            self._run()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)
            self._running = False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self) -> None:
        ready, timers, trace = self._ready, self._timers, self.trace
        at_once = 0
        while not self._stopping:
            if ready:
                handle = ready.popleft()
                at_once += 1
                assert at_once < AT_ONCE_MAX, f"time stands still at {self.now}: {handle}"
            elif timers:
                when, _, _, handle = heappop(timers)
                if when > self.now and not handle._cancelled:
                    self.now, at_once = when, 0
            else:
                raise AssertionError("nothing is left to happen")
            process = handle.process
            if handle._cancelled or (process is not None and not process.alive):
                continue
            if process is not None and process.paused:
                process.waiting.append(handle)
                continue
            self.steps += 1
            trace.digest = hash((trace.digest, self.now, 0 if process is None else process.number))
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[arg-type]
            except Exception as error:
                self.fail(error, f"callback {handle} failed")

    def fail(self, error: BaseException, what: str) -> None:
        """End the run: something happened that nobody expected."""
        self.trace.note(self.now, _name(current_process()), "%s: %s: %s", what, type(error).__name__, error)
        self._failure = self._failure or error
        self._stopping = True

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let everything go: what was never finished ends now, and reaches nobody. Idempotent."""
        if self._closed:
            return
        self._closed = self.trace.over = True
        for process in self._processes:
            process.alive = False
        self._ready.clear()
        self._timers.clear()
        hook, sys.unraisablehook = sys.unraisablehook, _ignore
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for process in self._processes:
                process.end_tasks()
        finally:
            events._set_running_loop(before)
            sys.unraisablehook = hook

    # --- time and callbacks ---

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            handle = _Handle(self.now, callback, args, copy_context(), current_process(), timer=False)
        else:
            handle = _Handle(self.now, callback, args, context, process_of(context), timer=False)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            handle = _Handle(when, callback, args, copy_context(), current_process(), timer=True)
        else:
            handle = _Handle(when, callback, args, context, process_of(context), timer=True)
        if not self._closed:
            tie = 0.0 if self._shuffle is None else self._shuffle.random()
            heappush(self._timers, (when, tie, next(self._serial), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[_T]:
        number = next(self._tasks_made)
        name = f"task {number}" if name is None else str(name)
        task = _Task(coro, number=number, loop=self, name=name, context=context)
        process = current_process() if context is None else process_of(context)
        if process is not None:
            process.keep(task)
        return task

    # --- processes ---

    def begin(self, process: Process, main: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Let a new process run `main`."""
        self._processes.append(process)
        process.number = len(self._processes)
        return self.create_task(main, context=process.context.copy())

    def enter(self, process: Process, context: Context, callback: Callable[[], object]) -> None:
        """Code of a process, set off by the world: now, or when it goes on; a dead one runs nothing. `context`: one of
        its own that nobody is in."""
        if process.paused:
            process.waiting.append(_Handle(self.now, callback, (), context, process, timer=False))
        elif process.alive:
            self.trace.mix(self.now, process.number)
            try:
                context.run(callback)
            except Exception as error:
                self.fail(error, f"{callback!r} of {process} failed")

    def kill(self, process: Process) -> None:
        """Nothing of it runs any more; the kernel takes back what it held. Idempotent."""
        if not process.alive:
            return
        process.alive = process.paused = False
        process.waiting.clear()
        held, process.held = process.held, {}
        for each in held:
            each.process_ended()

    def pause(self, process: Process) -> None:
        """As SIGSTOP does. Idempotent."""
        process.paused = process.alive

    def resume(self, process: Process, *, timers_first: bool = False) -> None:
        """As SIGCONT does: what came meanwhile is there now, sockets before timers or the other way round, each in
        their order. Idempotent."""
        process.paused = False
        waiting, process.waiting = process.waiting, []
        waiting.sort(key=lambda handle: handle._scheduled != timers_first)  # type: ignore[attr-defined]
        self._ready.extend(waiting)  # type: ignore[arg-type]

    # --- what asyncio's users ask for ---

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        return self.helpers.submit(executor, partial(func, *args) if args else func)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> asyncio.AbstractServer:
        assert self.network is not None
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: Any = None, port: Any = None, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert self.network is not None
        return await self.network.connect(protocol_factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.fail(context.get("exception") or AssertionError(context["message"]), context["message"])

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: `close` ends what was not finished."""

    async def shutdown_default_executor(self) -> None:
        """Nothing to do: no thread runs."""


def _name(process: Process | None) -> str:
    return "" if process is None else repr(process)


def _ignore(_: object) -> None:
    """What nobody holds any more, and what a killed program complains of when it is let go."""
