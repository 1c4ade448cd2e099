"""Whether a node that says nothing is still there, and still the one to ask.

A node that hangs, or is cut off, keeps its connections open and says nothing; so does one that is busy. Being
unanswered proves nothing, and a request that is given up and sent again may cost more than waiting. So the request goes
on while others are asked, and ends early only when they say that it is asked of the wrong one.

A connection has a `KeepAlive`, which is pure. A node that owes an answer is asked soon, so that its requests move on
well before producers' and readers' deadlines; an idle connection is only kept from being closed as idle. A node that
holds a user to his limits says that it lives, and does not read what comes; how long is its matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ClassVar, Final, Self

from msgspec import Struct

from mirrorlog.errors import ConnectionLost, MirrorlogError

SILENCE_S: Final = 0.5
"""So long an answer may take before anybody asks, and between two times of asking."""


class StallWatch:
    """Watches one request that may be asked of the wrong node, by `async with`: from `after_s` on `misplaced` is asked
    again and again; once it says so, the request ends with ConnectionLost(`reason`). After `broken` nothing is asked
    any more."""

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


_PING_IDLE_S: Final = 15.0
_QUIET_S: Final = 0.5
_HELD_S: Final = 5.0


class KeepAlive(Struct):
    """Decides when a silent node is pinged, and given up. Times are of one monotonic clock, s. `last_read`: when the
    node said something; `pinged_at`: when it was asked for a sign of life that has not come; `held_until`: so long it
    holds its user to his limits, as far as is known."""

    tick_s: ClassVar[float] = 5.0
    """Between two looks."""
    silence_s_max: ClassVar[float] = 20.0

    last_read: float
    pinged_at: float | None = None
    held_until: float | None = None

    def owes(self, now: float, *, is_asked: bool) -> bool:
        """Whether something is asked of the node while it has said nothing for half a second: it may hang."""
        if self.pinged_at is not None and now - self.pinged_at > _QUIET_S:
            return True
        return is_asked and now - self.last_read > _QUIET_S

    def is_lost(self, now: float) -> bool:
        """Whether it was asked in vain for too long."""
        return self.pinged_at is not None and now - self.pinged_at >= self.silence_s_max - self.tick_s

    def holds(self) -> bool:
        """A PONG came that nobody asked for: it is held. Whether that begins now."""
        begins = self.held_until is None
        self.held_until = self.last_read + _HELD_S
        return begins

    def is_released(self, now: float) -> bool:
        """Whether a hold has ended since the last look."""
        released = self.held_until is not None and now >= self.held_until
        if released:
            self.held_until = None
        return released

    def wants_ping(self, now: float, *, is_busy: bool) -> bool:
        """Whether it is to be asked for a sign of life now. `is_busy`: something is waited for: who is subscribed waits
        for what may come any time, and cannot tell a node that hangs from an empty queue."""
        wanted = self.pinged_at is None and now - self.last_read >= (self.tick_s if is_busy else _PING_IDLE_S)
        if wanted:
            self.pinged_at = now
        return wanted
