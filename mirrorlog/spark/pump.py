"""Items of an asynchronous iterator, taken from synchronous code.

The iterator runs on an event loop in a thread of its own, a few items ahead. So the next fetch is under way while
Spark takes what was read, and the connection's heartbeats go on when Spark takes its time. Rejected: turning a loop
by hand between two items, which stops both.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Final, Generic, Self, TypeVar

import uvloop

from mirrorlog.errors import RequestTimeout

AHEAD_MAX: Final = 8
"""Items that are read and not yet taken."""
_END_S: Final = 5.0

_T = TypeVar("_T")


class Pump(Generic[_T]):
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
        self._slots = asyncio.Semaphore(AHEAD_MAX)
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
