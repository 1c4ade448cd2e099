"""Looks at something once in a while, until it is stopped: what the watches of the disk and of memory share. Thin."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0


class Looking:
    """`look`: once now, when it starts, and then every `interval_s`. What it raises later than at the start ends
    nothing: whatever it found last stays true. `name`: of the watch, in log lines."""

    def __init__(self, name: str, look: Callable[[], Awaitable[None]], *, interval_s: float = INTERVAL_S) -> None:
        self._name = name
        self._look = look
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it has looked once."""
        await self._look()
        self._task = asyncio.ensure_future(self._look_for_ever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._look()
            except Exception:
                logger.exception("%s_watch_failed", self._name)
