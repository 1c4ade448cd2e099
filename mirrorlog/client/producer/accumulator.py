"""The accumulator: the open batch, which records join until it is full, or due and free to leave.

Records with attributes have open batches of their own, one for each set of attributes; they are few, and leave all
together with the other one. So what has the same attributes keeps its order.

A batch leaves when the loop turns while none of its queue is on its way, else when its linger is over. While nothing
may be sent (as many in flight as may be, an outage) it stays open beyond that: after an outage there are a few full
batches to send, not one for each linger. It leaves as soon as something may be sent, and ends at its deadline.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mirrorlog.client.options import ProducerOptions
from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES
from mirrorlog.client.producer.sender import Sender
from mirrorlog.client.producer.window import SendWindow
from mirrorlog.commitlog.format.attributes import Attributes

_OPEN_MAX: Final = 64
"""Batches that are open at a time: those of more sets of attributes than that leave earlier."""


class Accumulator:
    """Collects records in open batches, closes these and hands them to `sender`; what is in them has its place in
    `window`.

    `batch`: the open one of records without attributes, if there is one. `unchecked_bytes`: up to this size it takes
    records without another look at limits and window.
    """

    __slots__ = (
        "_batch_bytes", "_codec", "_delivery_s", "_due", "_linger_s", "_lingered", "_loop", "_sender",
        "_window", "batch", "open", "unchecked_bytes",
    )  # fmt: skip

    def __init__(self, sender: Sender, window: SendWindow, options: ProducerOptions) -> None:
        self.batch: PendingBatch | None = None
        self.unchecked_bytes = 0
        self.open: dict[Attributes | None, PendingBatch] = {}
        """All open ones, in the order in which they were opened."""
        self._sender = sender
        self._window = window
        self._batch_bytes = options.batch_bytes
        self._linger_s = options.linger_ms / 1000
        self._delivery_s = options.delivery_timeout_ms / 1000
        self._codec = options.codec
        self._due: asyncio.Handle | None = None
        self._lingered = False
        self._loop = asyncio.get_running_loop()

    @property
    def open_bytes(self) -> int:
        """What the open batches take of the window."""
        if self.batch is not None and len(self.open) == 1:
            return self.batch.window_bytes
        return sum(batch.window_bytes for batch in self.open.values())

    @property
    def open_records(self) -> int:
        """How many are in the open batches; may be asked by any thread."""
        return sum(map(len, list(self.open.values())))

    def room_for(self, size: int, attributes: Attributes | None = None) -> int:
        """What a record of `size` bytes takes of the window: also a batch, unless it joins an open one."""
        batch = self.open.get(attributes)
        return size if batch is not None and self._fits(batch, size) else size + BATCH_OVERHEAD_BYTES

    @property
    def batch_bytes_max(self) -> int:
        """How large a batch may become: so its body is within max_batch_bytes also when it is opened again after
        compression."""
        return min(self._batch_bytes, self._node_limit)

    @property
    def last_batch_bytes_max(self) -> int:
        """The same for the last one of a bulk: a few records more cost less than a batch of their own."""
        return min(self._batch_bytes + self._batch_bytes // 8, self._node_limit)

    @property
    def _node_limit(self) -> int:
        return self._sender.limits.max_batch_bytes - BATCH_OVERHEAD_BYTES

    def deadline(self) -> float:
        """Of a batch that begins now."""
        return self._loop.time() + self._delivery_s

    def batch_for(self, size: int, attributes: Attributes | None = None) -> PendingBatch:
        """The batch that a record of `size` bytes joins, for which there is room in the window."""
        batch = self.open.get(attributes)
        if batch is None:
            if len(self.open) >= _OPEN_MAX:
                self.close()
            batch = self._begin(attributes)
        elif not self._fits(batch, size):
            self.close()
            batch = self._begin(attributes)
        self.unchecked_bytes = 0 if attributes is not None else min(
            self.batch_bytes_max,
            self._window.left_for_open - self.open_bytes + batch.size_bytes,
            # A record that is within it is within max_record_bytes, too.
            batch.size_bytes + self._sender.limits.max_record_bytes,
        )  # fmt: skip
        return batch

    def close(self) -> None:
        """Send the open batches."""
        for batch in self.take():
            self._sender.add(batch)

    def close_if_idle(self) -> None:
        """Send the open batches now if none of the queue is on its way."""
        if self.open and self._sender.idle:
            self.close()

    def take(self) -> list[PendingBatch]:
        """The open batches, closed."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        batches = list(self.open.values())
        self.open.clear()
        self._sender.turned = None
        self.batch = None
        for batch in batches:
            batch.close()
        return batches

    def turned(self) -> None:
        """Batches have moved on: see whether the open ones may follow."""
        self.unchecked_bytes = 0  # there may be another node now, with other limits
        if self.open and (self._sender.idle or (self._lingered and self._sender.ready)):
            self.close()

    def _fits(self, batch: PendingBatch, size: int) -> bool:
        return batch.size_bytes + size <= self.batch_bytes_max

    def _begin(self, attributes: Attributes | None) -> PendingBatch:
        batch = PendingBatch(self.deadline(), codec=self._codec, attributes=attributes)
        self.open[attributes] = batch
        if attributes is None:
            self.batch = batch
        if len(self.open) == 1:
            self._sender.turned = self.turned
            self._schedule()
        return batch

    def _schedule(self) -> None:
        # "At once" is when the loop turns, so that records handed over together leave together.
        self._lingered = False
        if self._sender.idle:
            self._due = self._loop.call_soon(self.close)
        else:
            self._due = self._loop.call_later(self._linger_s, self._linger_over)

    def _linger_over(self) -> None:
        oldest = next(iter(self.open.values()))
        self._lingered = True
        self._due = self._loop.call_at(oldest.deadline, self.close)
        self.turned()
