"""How many streams of a kind are open at once, and how much of one stream is unanswered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from mirrorlog.client import Receipt
from mirrorlog.errors import NodeStopping, Overloaded


class StreamWindow:
    """The unanswered batches of one stream: how many bytes, how many, and when there is room for another. One reader
    waits on it. A batch's size is known once it was read, so one batch may reach beyond the window."""

    __slots__ = ("_batches", "_batches_max", "_bytes", "_bytes_max", "_changed")

    def __init__(self, *, bytes_max: int, batches_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches_max = batches_max
        self._bytes = 0
        self._batches = 0
        self._changed = asyncio.Event()

    def add(self, size: int) -> None:
        """A batch of `size` bytes came."""
        self._bytes += size
        self._batches += 1

    def remove(self, size: int) -> None:
        """A batch of `size` bytes was answered."""
        self._bytes -= size
        self._batches -= 1
        self._changed.set()

    async def room(self) -> None:
        """Until another batch may come."""
        await self._until(lambda: self._bytes < self._bytes_max and self._batches < self._batches_max)

    async def empty(self) -> None:
        """Until everything is answered."""
        await self._until(lambda: self._batches == 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class SentBatch(NamedTuple):
    """A batch that was sent to a node. `outcome`: the receipt of the batch's first record, or what it raises.
    `idempotent`: the client may repeat it."""

    outcome: Awaitable[Receipt]
    idempotent: bool


class Admission:
    """Bounds how many streams of one kind are open at once. `kind`: of the streams, for people."""

    def __init__(self, kind: str, *, streams_max: int) -> None:
        self._kind = kind
        self._streams_max = streams_max
        self._open = 0
        self.stopping = False

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place for one stream while the block runs. Raises Overloaded, or NodeStopping once `stopping` is set."""
        if self.stopping:
            raise node_stopping()
        if self._open >= self._streams_max:
            raise Overloaded(f"{self._streams_max} {self._kind} streams are open", limit="streams_max")
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


def node_stopping() -> NodeStopping:
    """What a stream of a door that stops ends with."""
    return NodeStopping("this door is stopping; open the stream again")
