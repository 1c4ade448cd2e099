"""An event loop in a thread of its own, and calls into it that block their caller: the blocking client stands on it.

A fork copies no threads: in the child every call fails at once, saying so. A caller that is interrupted (Ctrl-C) takes
its call back with it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, TypeVar

from mirrorlog.errors import Closed, RequestTimeout

_STOP_S: Final = 5.0
# Whoever waits looks so often whether there is still somebody to answer.
_LOOK_S: Final = 5.0

_T = TypeVar("_T")


class LoopThread:
    """A thread with an event loop, from its making until `close`. Every method may be called from any thread but its
    own."""

    forks: ClassVar[int] = 0
    """How many forks lie between this process and the first one that imported this module."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._closed = False
        self._last: asyncio.Task[None] | None = None
        self._forks = LoopThread.forks
        # A daemon: a program that ends without closing must not wait for a node.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def elsewhere(self) -> bool:
        """Whether it runs in the process that this one was forked from."""
        return self._forks != LoopThread.forks

    def run(self, make: Callable[[], Coroutine[Any, Any, _T]], *, timeout_s: float | None, what: str) -> _T:
        """Run the coroutine that `make` gives on the loop; its result or its error.

        `timeout_s`: None waits for as long as it takes. Raises RequestTimeout then; Closed when the thread is
        closed, before or meanwhile, and in a forked child.
        """
        self.check_open()
        future = self._submit(make())
        try:
            return self._wait(future, timeout_s, what)
        except concurrent.futures.CancelledError:
            raise Closed(f"{what}: the client was closed meanwhile") from None
        finally:
            future.cancel()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Have the loop call it; not at all when it is closed."""
        with contextlib.suppress(RuntimeError):  # closed between the check and this
            self._loop.call_soon_threadsafe(function)

    def check_open(self) -> None:
        """Raises Closed when it is closed, or belongs to the process that this one was forked from."""
        if self.elsewhere:
            raise Closed("this client belongs to the parent process; make one after the fork")
        if self._closed:
            raise Closed("the client is closed")

    def end_behind(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that `make` gives, then end the thread. Nobody waits for that, nor hears of it; an
        interpreter that ends meanwhile closes it."""
        self.call_soon(lambda: self._begin_last(make))

    def close(self) -> None:
        """Cancel what is under way and end the thread. Idempotent."""
        if self._closed or self.elsewhere:
            return
        self._closed = True
        atexit.unregister(self.close)
        self.call_soon(self._loop.stop)
        self._thread.join(_STOP_S)

    def _begin_last(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last = asyncio.ensure_future(make())
        self._last.add_done_callback(self._ended_last)

    def _ended_last(self, last: asyncio.Task[None]) -> None:
        if not last.cancelled():
            last.exception()
        atexit.unregister(self.close)
        self._loop.stop()

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Closed("the client is closed") from None

    def _wait(self, future: concurrent.futures.Future[_T], timeout_s: float | None, what: str) -> _T:
        give_up_at = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = give_up_at - time.monotonic()
            try:
                return future.result(max(0.0, min(left_s, _LOOK_S)))
            except TimeoutError:
                if future.done():
                    return future.result()  # what it ended with just now, or a TimeoutError of its own
                if left_s <= 0:
                    raise RequestTimeout(f"{what}: no answer within {timeout_s:g} s") from None
                if not self._thread.is_alive():
                    raise Closed(f"{what}: the client was closed meanwhile") from None

    def _main(self) -> None:
        # The runner cancels what is left at the end, and closes the loop.
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _forked() -> None:
    LoopThread.forks += 1


os.register_at_fork(after_in_child=_forked)
