"""The window: bytes that were handed over and have not ended, and whoever waits for room among them.

A waiter is woken as soon as a batch's worth of room is there, not when the window is nearly empty: so one who fills
the window goes on while the nodes work. They are woken in their order, as many at a time as fit, and asked again on
the next turn of the loop, since one who was woken need not take the room: nobody waits beside room, and a thousand
waiters are not woken for one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirrorlog.errors import Overloaded


class SendWindow:
    """Bounds the bytes under way: at most `limit_bytes` at a time, but for what is larger by itself: that goes alone.

    `step_bytes`: the room that is worth waking somebody for. `open_bytes()`: what is in the batch that is still open,
    counted here until `take` is told of it.
    """

    def __init__(self, limit_bytes: int, *, step_bytes: int, open_bytes: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self._step_bytes = min(step_bytes, limit_bytes // 2)
        self._open_bytes = open_bytes
        self._taken = 0
        self._refused = 0
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def left_for_open(self) -> int:
        """How large the open batch may become."""
        return self.limit_bytes - self._taken

    @property
    def contended(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiting)

    @property
    def free(self) -> bool:
        """Whether nothing that is closed is under way, and nobody waits for room."""
        return not (self._taken or self._waiting)

    def check(self, size: int) -> None:
        """Raises Overloaded when `size` more bytes do not fit; they are what `room` waits for then."""
        if not self.fits(size):
            self._refused = size
            raise Overloaded(f"{self.limit_bytes} bytes wait for their confirm (window_bytes)", limit="window_bytes")

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes have room."""
        return self._fits(self._pending(), size)

    def take(self, size: int) -> None:
        """`size` bytes are closed and on their way."""
        self._taken += size

    def release(self, size: int) -> None:
        """`size` of the bytes taken have ended."""
        self._taken -= size
        if self._waiting:
            self._wake()

    async def room(self, size: int | None = None) -> None:
        """Wait for a step of room and for `size` bytes, by default those that `check` refused last.

        Whoever was woken may still find that others took the room; then wait again.
        """
        wanted = self._refused if size is None else size
        if not self._waiting and self._has_step(self._pending(), wanted):
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waiter] = wanted
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def _pending(self) -> int:
        return self._taken + self._open_bytes()

    def _fits(self, pending: int, size: int) -> bool:
        return not pending or pending + size <= self.limit_bytes

    def _has_step(self, pending: int, size: int) -> bool:
        return self._fits(pending, max(size, self._step_bytes))

    def _wake(self) -> None:
        """Wake the first ones, as many as fit once there is a step of room."""
        pending, fits, woken = self._pending(), self._has_step, False
        while self._waiting:
            waiter, size = next(iter(self._waiting.items()))
            if not fits(pending, size):
                break
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
                pending, fits, woken = pending + size, self._fits, True
        if woken and self._waiting:
            # Who was woken need not take the room; behind their turns it is seen what is left for the others.
            self._loop.call_soon(self._wake)
