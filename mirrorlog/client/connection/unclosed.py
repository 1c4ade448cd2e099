"""Objects that were not closed and that nobody has any more: they warn, and what they began ends in the background.

It is told, as a file tells it: a ResourceWarning names it, and what of what it had accepted has not ended. What it held
goes back, and what it had accepted goes on, on its loop: a finalizer comes in any thread, in the midst of anything, or
when the interpreter ends, so it waits for nothing and takes no lock. Whoever closes the client waits for what goes on,
and hears of what failed.

So that somebody can have let go of it at all, none of its parts may lead to it from the loop: no timer, no task, no
callback of a connection.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from mirrorlog.errors import MirrorlogError

logger = logging.getLogger(__name__)


def warn_unclosed(source: object, what: str, more: str = "") -> None:
    """By the finalizer of `source`, as its last act: a filter may make an error of it. `what`: it, by its name; `more`:
    what of it has not ended."""
    warnings.warn(f"{what} was not closed{'; ' if more else ''}{more}", ResourceWarning, stacklevel=3, source=source)


def on_loop(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    """Have the loop call it, from any thread; not at all when it is closed."""
    with suppress(RuntimeError):  # it may be closed right now
        if not loop.is_closed():
            loop.call_soon_threadsafe(act)


def unended_text(waiting: int, failed: int, *, loop: asyncio.AbstractEventLoop) -> str:
    """What to say of so many records that have not ended, and of so many that failed unheard; empty for none."""
    told = []
    if waiting:
        fate = ", and may be stored or not" if loop.is_closed() else " yet"
        told.append(f"{waiting} record{'s have' if waiting > 1 else ' has'} not ended{fate}")
    if failed:
        told.append(f"{failed} record{'s' * (failed > 1)} failed, and nobody was told")
    return ", ".join(told)


class Background:
    """Tasks for the objects of one client that nobody has any more. Used on its loop."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._failure: MirrorlogError | None = None

    def run(self, what: str, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that `make` gives, for `what`. It has deadlines of its own. How it fails is logged: there
        may be nobody to close the client."""
        task = asyncio.ensure_future(make())
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, what))

    async def ended(self) -> None:
        """Wait until all of it has ended. Raises the first error since the last call."""
        await asyncio.sleep(0)  # what was let go just now
        while self._tasks:
            await asyncio.wait(self._tasks)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def cancel(self) -> None:
        """Whoever closes the client is not to wait."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, what: str, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None or task.cancelled():
            reason = "cancelled" if error is None else str(error)
            logger.warning("let_go_failed what=%r reason=%r", what, reason)
        if isinstance(error, MirrorlogError):
            self._failure = self._failure or error
