"""The way to one node: how much may be on it at once, and who waits for room, in the order in which they came.

The links that members of a cluster have to each other carry heartbeats and Raft, too: what records that leave their
queues put on them is bounded here, before it is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

ON_THE_WAY_MAX: Final = 16
"""Batches that may be on their way to one node."""
ON_THE_WAY_BYTES: Final = 8 * 1024 * 1024
"""Of them; a larger one goes alone."""


class NodeWay:
    """To one node."""

    def __init__(self) -> None:
        self._count = 0
        self._size = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def unused(self) -> bool:
        return not self._count and not self._line

    async def enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, turn))
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._go_on()
            else:
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._count -= 1
        self._size -= size
        self._go_on()

    def _go_on(self) -> None:
        while self._line and (self._line[0][1].cancelled() or self._has_room(self._line[0][0])):
            size, turn = self._line.popleft()
            if not turn.cancelled():
                self._count += 1
                self._size += size
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return not self._count or (self._count < ON_THE_WAY_MAX and self._size + size <= ON_THE_WAY_BYTES)
