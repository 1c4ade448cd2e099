"""Publishes the records and measures: every record's time from send to receipt, with and without the outage."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from mirrorlog.client import Client, Delivery, Producer, ProducerStats
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import Overloaded

# The loop must turn for batches to leave; so many records are handed over between two turns.
_BURST: Final = 256
_DELIVERY_TIMEOUT_MS: Final = 60_000


@dataclass(slots=True)
class Publication:
    """What a run measured. Times in s of one monotonic clock; `sent[i]` and `confirmed[i]` are of record i.

    `epoch`: the newest in which a record was confirmed; `epoch_began`: when the first was.
    """

    started: float = 0.0
    ended: float = 0.0
    sent: list[float] = field(default_factory=list)
    confirmed: list[float] = field(default_factory=list)
    queue_offsets: list[int] = field(default_factory=list)
    copies_min: int = 2**31
    epoch: int = 0
    epoch_began: float = 0.0
    stats: ProducerStats = field(default_factory=ProducerStats)

    def latencies_ms(self) -> npt.NDArray[np.float64]:
        latencies: npt.NDArray[np.float64] = (np.array(self.confirmed) - np.array(self.sent)) * 1000
        return latencies

    def outside(self, first: float, last: float) -> npt.NDArray[np.bool_]:
        """The records that were confirmed before `first` or sent after `last`."""
        chosen: npt.NDArray[np.bool_] = (np.array(self.confirmed) < first) | (np.array(self.sent) > last)
        return chosen


class Publishing:
    """One run: all records through one producer, confirmed by every copy that is in sync."""

    def __init__(self, servers: Sequence[str], queue: str, progress: Callable[[int], None]) -> None:
        self.result = Publication()
        self._servers = servers
        self._queue = queue
        self._progress = progress
        self._pending: deque[Delivery] = deque()
        self._more = asyncio.Event()

    async def run(self, records: Sequence[Record]) -> Publication:
        """Raises what a send raised."""
        async with (
            Client(*self._servers) as client,
            client.producer(self._queue, confirm="all", delivery_timeout_ms=_DELIVERY_TIMEOUT_MS) as producer,
        ):
            self.result.stats = producer.stats
            self.result.started = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(producer, records))
                tasks.create_task(self._receive(len(records)))
            self.result.ended = time.perf_counter()
        return self.result

    async def _send(self, producer: Producer, records: Sequence[Record]) -> None:
        for number, record in enumerate(records):
            delivery = await self._hand_over(producer, record)
            self.result.sent.append(time.perf_counter())
            self._pending.append(delivery)
            if number % _BURST == 0:
                self._more.set()
                await asyncio.sleep(0)
        self._more.set()

    async def _hand_over(self, producer: Producer, record: Record) -> Delivery:
        while True:
            try:
                return producer.send_nowait(
                    record.value, key=record.key, headers=record.headers, timestamp=record.timestamp_us
                )
            except Overloaded:
                self._more.set()
                await producer.room()

    async def _receive(self, total: int) -> None:
        """Await the deliveries in order, as receipts of one producer and queue come."""
        result = self.result
        while len(result.confirmed) < total:
            if not self._pending:
                self._more.clear()
                await self._more.wait()
                continue
            receipt = await self._pending.popleft()
            result.confirmed.append(time.perf_counter())
            if receipt.epoch > result.epoch:
                result.epoch, result.epoch_began = receipt.epoch, result.confirmed[-1]
            result.queue_offsets.append(receipt.queue_offset)
            result.copies_min = min(result.copies_min, receipt.copies)
            if len(result.confirmed) % 4096 == 0:
                self._progress(len(result.confirmed))
        self._progress(total)
