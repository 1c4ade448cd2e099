"""Silence: notices that a request is unanswered for long, and looks whether it is still asked of the right node. Thin.

A node that hangs, or is cut off, keeps its connections open and says nothing; so does one that is busy. Being
unanswered proves nothing, and a request that is given up and sent again may cost more than waiting. So the request goes
on while others are asked, and ends early only when they say that it is asked of the wrong one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from mirrorlog.errors import ConnectionLost, MirrorlogError

SILENCE_S: Final = 0.5
"""So long an answer may take before anybody asks, and between two times of asking."""


class StallWatch:
    """Around one request, by `async with`: from `after_s` on `misplaced` is asked again and again; once it says so,
    the request ends with ConnectionLost(`reason`). After `broken` nothing is asked any more."""

    def __init__(self, misplaced: Callable[[], Awaitable[bool]], *, after_s: float = SILENCE_S, reason: str) -> None:
        self._misplaced = misplaced
        self._after_s = after_s
        self._reason = reason
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def broken(self) -> None:
        """The answer has begun to come."""
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self._timer = asyncio.get_running_loop().call_later(self._after_s, self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broken()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise ConnectionLost(self._reason) from None

    def _begin(self) -> None:
        self._asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        if await self._said():
            self._scope.reschedule(loop.time())
        else:
            self._timer = loop.call_later(SILENCE_S, self._begin)

    async def _said(self) -> bool:
        try:
            return await self._misplaced()
        except MirrorlogError:
            return False  # nobody is there to say
