"""Producer: `send` for one record and its receipt, `send_nowait` for many in flight. Thin over batching and pipeline.

Idempotent by default: a random 63-bit producer id, and every batch keeps its sequence through retries, reconnects and
restarts of the master, so none lands twice. Several tasks may send through one producer; records of one producer keep
their order.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from mirrorlog.client.batching import (
    BATCH_OVERHEAD_BYTES,
    Delivery,
    Headers,
    PendingBatch,
    Receipt,
    as_headers,
    as_timestamp_us,
    record_size,
)
from mirrorlog.client.connection import Connection
from mirrorlog.client.pipeline import BACKOFF_S_MAX, BACKOFF_S_MIN, Pipeline, ProducerStats
from mirrorlog.commitlog.body import Record
from mirrorlog.commitlog.format import NO_PRODUCER
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    ConnectionLost,
    MirrorlogError,
    NotMaster,
    Overloaded,
    RecordTooLarge,
    Refused,
    RequestTimeout,
)
from mirrorlog.wire.frames import Confirm, Durability, Level
from mirrorlog.wire.messages import Limits

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

__all__ = ["Delivery", "Producer", "ProducerStats", "Receipt"]

# Above it stand `majority` and `all` on the wire.
_COPIES_MAX: Final = Level.MAJORITY - 1
_RETRYING: Final = (ConnectionLost, RequestTimeout, NotMaster)


class Producer:
    """Sends records to one queue. Made by `Client.producer`; use it with `async with`."""

    def __init__(
        self,
        client: Client,
        queue: str,
        *,
        level: int,
        durability: Durability,
        batch_bytes: int,
        linger_ms: int,
        window_bytes: int,
        max_in_flight: int,
        delivery_timeout_ms: int,
        idempotent: bool,
    ) -> None:
        if not 1 <= max_in_flight <= 32:
            raise BadRequest(f"max_in_flight {max_in_flight} is not within 1 and 32, what a node remembers for retries")
        _check_least(window_bytes=window_bytes, batch_bytes=batch_bytes, delivery_timeout_ms=delivery_timeout_ms)
        if linger_ms < 0:
            raise BadRequest(f"linger_ms {linger_ms} is below 0")
        self.queue = queue
        self.stats = ProducerStats()
        self.producer_id = (secrets.randbits(63) or 1) if idempotent else NO_PRODUCER
        self._client = client
        self._level = level
        self._durability = durability
        self._batch_bytes = batch_bytes
        self._linger_s = linger_ms / 1000
        self._window_bytes = window_bytes
        self._delivery_s = delivery_timeout_ms / 1000
        self._pipeline = Pipeline(
            idempotent=idempotent, max_in_flight=max_in_flight, stats=self.stats, jitter=random.random
        )
        self._open: PendingBatch | None = None
        self._pending_bytes = 0
        self._refused_bytes = 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue_id = 0
        self._limits = Limits(max_record_bytes=0, max_batch_bytes=0)
        self._timer: asyncio.TimerHandle | None = None
        self._flush_due: asyncio.Handle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        Delivery.make_waiter = _make_waiter

    # --- life ---

    async def start(self) -> Self:
        """Find the queue and connect to its master. Raises NoSuchQueue or ConnectionLost."""
        await self._connect_once()
        return self

    async def close(self) -> None:
        """Flush: wait until every record has ended, at most the delivery timeout."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without waiting: what was sent ends as OutcomeUnknown, what was not as Refused. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._take_open()
        self._cancel_timer()
        if self._connecting is not None:
            self._connecting.cancel()
        self._pipeline.fail_all(Refused("the producer was closed before this was sent; nothing was stored"))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            await self.close()
        else:
            self.abandon()  # cancelled or interrupted: whoever did that is not to wait for confirms

    # --- sending ---

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Receipt:
        """Send one record and await its confirm. Waits for room in the window first.

        `timestamp`: event time, datetime with a zone or µs UTC. Raises Refused, OutcomeUnknown or BadInput.
        """
        while True:
            try:
                return await self.send_nowait(value, key=key, headers=headers, timestamp=timestamp)
            except Overloaded as error:
                if error.details.get("limit") != "window_bytes":
                    raise
            await self.room()

    def send_nowait(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
    ) -> Delivery:
        """Hand one record over; await the Delivery for its receipt. Batches leave when the loop turns.

        Raises Overloaded while the window is full (`await room()`), RecordTooLarge, BadInput; ConnectionLost if closed.
        """
        pairs = as_headers(headers)
        timestamp_us = as_timestamp_us(timestamp)
        size = record_size(value, key, pairs)
        if value is not None and len(value) > self._limits.max_record_bytes:
            raise self._too_large(value)
        if BATCH_OVERHEAD_BYTES + size > self._limits.max_batch_bytes:
            raise RecordTooLarge(f"a record of {size} bytes is above max_batch_bytes ({self._limits.max_batch_bytes})")
        self._check_room(size)
        batch = self._open
        if batch is not None and batch.size_bytes + size > self._batch_bytes:
            self._close_batch()
            batch = None
        if batch is None:
            batch = self._open = PendingBatch(self._loop.time() + self._delivery_s)
            self._schedule_flush()
        self._pending_bytes += size
        self.stats.sent += 1
        self.stats.sent_bytes += size
        return batch.add(value, key, pairs, timestamp_us, size)

    def send_batch_nowait(self, records: Sequence[Record]) -> Delivery:
        """Hand over records that are stored as one batch, with nothing else in it; the Delivery is the first one's.

        Raises as `send_nowait`, and BatchTooLarge, BadBatch for none.
        """
        if not records:
            raise BadBatch("a batch has at least one record")
        batch = PendingBatch(self._loop.time() + self._delivery_s)
        for value, key, headers, timestamp_us in records:
            size = record_size(value, key, headers)
            if value is not None and len(value) > self._limits.max_record_bytes:
                raise self._too_large(value)
            batch.add(value, key, headers, as_timestamp_us(timestamp_us), size)
        size = batch.size_bytes
        if BATCH_OVERHEAD_BYTES + size > self._limits.max_batch_bytes:
            raise BatchTooLarge(f"a batch of {size} bytes is above max_batch_bytes ({self._limits.max_batch_bytes})")
        self._check_room(size)
        self._close_batch()
        self._pending_bytes += size
        self.stats.sent += len(batch)
        self.stats.sent_bytes += size
        self._open = batch
        self._close_batch()
        return Delivery(batch, 0)

    async def room(self) -> None:
        """Wait until the window has room again: half of it, and enough for the record that was refused last."""
        while self._pending_bytes > self._window_bytes // 2 or not self._fits(self._refused_bytes):
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Wait until every record handed over so far has ended, well or not."""
        self._close_batch()
        for batch in self._pipeline.unresolved():
            if batch.outcome is None:
                waiter: asyncio.Future[None] = self._loop.create_future()
                batch.wait(waiter)
                await waiter

    def _fits(self, size: int) -> bool:
        # What is larger than the window goes alone.
        return not self._pending_bytes or self._pending_bytes + size <= self._window_bytes

    def _check_room(self, size: int) -> None:
        if self._closed:
            raise ConnectionLost("the producer is closed")
        if not self._fits(size):
            self._refused_bytes = size
            raise Overloaded(f"{self._window_bytes} bytes wait for their confirm (window_bytes)", limit="window_bytes")

    def _too_large(self, value: bytes) -> RecordTooLarge:
        return RecordTooLarge(
            f"a value of {len(value)} bytes is above the node's max_record_bytes ({self._limits.max_record_bytes})"
        )

    # --- batches on their way ---

    def _schedule_flush(self) -> None:
        # A batch leaves at once while none of its queue is in flight: "at once" is when the loop turns, so that records
        # handed over together leave together.
        if not len(self._pipeline):
            self._flush_due = self._loop.call_soon(self._close_batch)
        else:
            self._flush_due = self._loop.call_later(self._linger_s, self._close_batch)

    def _close_batch(self) -> None:
        if self._take_open():
            self._pump()

    def _take_open(self) -> bool:
        """Move the open batch, if there is one, to the pipeline."""
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None
        batch, self._open = self._open, None
        if batch is None:
            return False
        self._pipeline.add(batch)
        self.stats.batches += 1
        batch.wait(_Ended(self, batch.size_bytes))
        return True

    def _ended(self, size: int) -> None:
        self._pending_bytes -= size
        if self._room and self._pending_bytes <= self._window_bytes // 2:
            waiters, self._room = self._room, deque()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _pump(self) -> None:
        """Send what may be sent, and be woken when more may."""
        now = self._loop.time()
        self._pipeline.expire(now)
        connection = self._connection
        try:
            if connection is None or not connection.usable:
                self._reconnect()
            else:
                while (batch := self._pipeline.next_to_send(now)) is not None:
                    self._send(connection, batch, now)
        finally:
            # Whatever went wrong, every batch keeps its deadline.
            self._set_timer(now)
        if self._open is not None and not len(self._pipeline):
            self._close_batch()

    def _send(self, connection: Connection, batch: PendingBatch, now: float) -> None:
        def done(result: Confirm | MirrorlogError) -> None:
            self._answered(connection, batch, result)

        try:
            connection.produce(
                batch.encoded(self._queue_id, self.producer_id),
                level=self._level,
                durability=self._durability,
                deadline_ms=max(1, int((batch.deadline - now) * 1000)),
                done=done,
            )
        except ConnectionLost as error:
            self._pipeline.failed(batch, error, now)

    def _answered(self, connection: Connection, batch: PendingBatch, result: Confirm | MirrorlogError) -> None:
        now = self._loop.time()
        if isinstance(result, MirrorlogError):
            if isinstance(result, _RETRYING) and connection is self._connection:
                self._connection = None
            self._pipeline.failed(batch, result, now)
        else:
            self._pipeline.confirmed(batch, result, now)
        if not self._closed:
            self._pump()

    def _set_timer(self, now: float) -> None:
        self._cancel_timer()
        due = [at for at in (self._pipeline.next_deadline(), self._pipeline.resume_at()) if at is not None and at > now]
        if due:
            self._timer = self._loop.call_at(min(due) + 0.001, self._pump)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- connecting ---

    def _reconnect(self) -> None:
        if self._connecting is None and not self._closed and len(self._pipeline):
            self._connecting = asyncio.ensure_future(self._connect_until_done())

    async def _connect_until_done(self) -> None:
        pause_s = BACKOFF_S_MIN
        try:
            while len(self._pipeline):
                try:
                    await self._connect_once()
                    break
                except MirrorlogError as error:
                    # Why it fails is the batches' to tell, at their deadline. No such queue is no exception: while
                    # the master is away, a mirror may answer that has not heard of it yet.
                    self._pipeline.not_connected(error)
                    await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
                    pause_s = min(2 * pause_s, BACKOFF_S_MAX)
                    self._pipeline.expire(self._loop.time())
        finally:
            self._connecting = None
        self._pump()

    async def _connect_once(self) -> None:
        connection, queue = await self._client.master_of(self.queue)
        self._connection = connection
        self._queue_id = queue.queue_id
        self._limits = connection.welcome.limits
        self._batch_bytes = min(self._batch_bytes, self._limits.max_batch_bytes - BATCH_OVERHEAD_BYTES)


class _Ended:
    """Tells the producer that a batch has ended; shaped as a batch's waiter."""

    __slots__ = ("_producer", "_size")

    def __init__(self, producer: Producer, size: int) -> None:
        self._producer = producer
        self._size = size

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None:
        self._producer._ended(self._size)


def _make_waiter() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def parse_durability(durability: str) -> Durability:
    """`memory` or `disk`. Raises BadRequest."""
    try:
        return Durability[durability.upper()]
    except KeyError:
        raise BadRequest(f"durability {durability!r} is neither memory nor disk") from None


def parse_level(confirm: str | int) -> int:
    """Raises BadRequest. A number means so many copies; those that stand for names on the wire are none."""
    level = Level.parse(confirm)
    if level > _COPIES_MAX and confirm not in Level.NAMES:
        raise BadRequest(f"confirm {confirm!r}: at most {_COPIES_MAX} copies can be asked for")
    return level


def _check_least(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise BadRequest(f"{name} {value} is below 1")
