"""Producer: `send` for one record and its receipt, `send_nowait` and `send_many` for many in flight.

Here records are checked and handed over. The accumulator makes batches of them, or `bulk` of columns; how batches reach
the node is the sender's and the pipeline's; how much may be under way, the window's.

Idempotent by default: a random 63-bit producer id, and every batch keeps its sequence through retries, reconnects and
restarts of the master, so none lands twice. Several tasks may send through one producer; records of one producer keep
their order, those with attributes (priority, time to live, delay) among those of the same attributes.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.unclosed import on_loop, unended_text, warn_unclosed
from mirrorlog.client.options import ProducerOptions
from mirrorlog.client.producer.accumulator import Accumulator
from mirrorlog.client.producer.batch import PendingBatch, Receipt, Receipts
from mirrorlog.client.producer.deliveries import BulkDelivery, Delivery, wait_for_end
from mirrorlog.client.producer.join_pool import JoinPool
from mirrorlog.client.producer.pipeline import Pipeline, ProducerStats
from mirrorlog.client.producer.record import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    as_headers,
    as_timestamp_us,
    check_record,
    check_value,
    record_size,
)
from mirrorlog.client.producer.sender import Sender
from mirrorlog.client.producer.window import SendWindow
from mirrorlog.client.properties import Headers, SendOptions, as_bytes, parted
from mirrorlog.client.serializers import serialized, serialized_all
from mirrorlog.client.with_block import WithBlock
from mirrorlog.commitlog.format.attributes import Attributes, RecordOptions, asked_attributes
from mirrorlog.commitlog.format.body import Header, Record
from mirrorlog.commitlog.format.drafts import draft_record
from mirrorlog.commitlog.format.header import NO_PRODUCER
from mirrorlog.errors import (
    BadBatch,
    BatchTooLarge,
    Closed,
    MirrorlogError,
    Overloaded,
    Refused,
)
from mirrorlog.wire.messages.handshake import NodeLimits

if TYPE_CHECKING:  # columns need numpy
    from mirrorlog.client.producer.bulk import Bulk

# Batches of a bulk between two turns of the loop, so that confirms are read while the rest is encoded.
_BULK_BURST: Final = 4


@checked(
    but=("send", "send_nowait"),
    internal=("send_batch_nowait", "batch_for", "unended", "routed_by", "kept"),
)
class Producer(WithBlock):
    """Sends records to one queue. Made by `Client.producer`; use it with `async with`. One that is let go without
    `close` sends what it was given, with a ResourceWarning; `Client.close` waits for that, and raises what failed."""

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _closed = True

    def __init__(
        self, client: ClusterClient, queue: str, options: ProducerOptions, *, pool: JoinPool | None = None
    ) -> None:
        """`pool`: where the bytes of bulk batches stand, by default one of its own."""
        self.queue = queue
        self.stats = ProducerStats()
        self.producer_id = (secrets.randbits(63) or 1) if options.idempotent else NO_PRODUCER
        self._codec = options.codec
        self._serializer = options.serializer
        self._pool = JoinPool() if pool is None else pool
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._delivery_s = options.delivery_timeout_ms / 1000
        self._window = SendWindow(
            options.window_bytes, step_bytes=options.batch_bytes, open_bytes=lambda: accumulator.open_bytes
        )
        pipeline = Pipeline(
            idempotent=options.idempotent, max_in_flight=options.max_in_flight, retry_full=options.retry_full,
            stats=self.stats, jitter=random.random,
        )  # fmt: skip
        self._sender = Sender(
            client, queue, options, pipeline=pipeline, producer_id=self.producer_id, window=self._window
        )
        self._accumulator = accumulator = Accumulator(self._sender, self._window, options)
        self._closed = False

    # --- life ---

    async def start(self, *, timeout_ms: int | None = None) -> Self:
        """Find the queue and connect to its master; while there is none, wait for one for `timeout_ms`, by default the
        client's of a request; also while no node answers, if the client has ever reached one.

        Raises NoSuchQueue, ConnectionLost, or NotMaster when no copy was promoted.
        """
        await self._sender.start(timeout_ms)
        return self

    async def close(self) -> None:
        """Flush: wait until every record has ended, at most the delivery timeout. Raises as `flush`."""
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
        _abandon(self._accumulator, self._sender)

    def __del__(self) -> None:
        """Nobody has it any more: what it was given goes on without it."""
        if not self.unclosed:
            return
        what = f"a producer for queue {self.queue!r}"
        unended = self.unended()
        finish = partial(_finish, self._accumulator, self._sender)
        on_loop(self._loop, partial(self._client.background.run, what, finish))
        if not self.kept:
            warn_unclosed(self, what, unended)

    def __repr__(self) -> str:
        return f"Producer(queue={self.queue!r}{', closed' if self._closed else ''})"

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and neither closed nor abandoned."""
        return not self._closed and self._sender.started

    @property
    def limits(self) -> NodeLimits:
        """Of the master that was reached last. Raises Closed before the start."""
        return self._sender.limits

    def unended(self, more: int = 0) -> str:
        """What of the records handed over has not ended, or has failed and nobody was told; in words, if any. `more`:
        records on their way here."""
        waiting = more + self._accumulator.open_records + sum(map(len, self._sender.unresolved()))
        failed = sum(len(batch) for batch in list(self._sender.failed) if batch.failed_unheard)
        return unended_text(waiting, failed, loop=self._loop)

    # --- one record ---

    async def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[SendOptions],
    ) -> Receipt:
        """Send one record and await its confirm. Waits for room in the window first, behind those that wait already,
        at most the delivery timeout; from then on the record has one of its own.

        `value`, `key`, values of `headers`: text is UTF-8. `content_type`, `reply_to`, `message_id`, `app_id`, …: its
        properties (`mirrorlog.client.properties`). `timestamp`: event time, datetime with a zone or µs UTC. What groups
        that ack go by, of a queue read as one: `priority`, from 0, the default, to 255, the highest is given out first;
        `ttl_ms` after its append it is given to nobody any more, None for no end; not before `delay_ms` after it to
        anybody; both up to ten years. Raises
        Refused (Overloaded when there was no room), OutcomeUnknown or BadInput.
        """
        options: RecordOptions = {}
        if asked:
            options, headers = parted(asked, headers)
        attributes = self._asked(options) if options else None
        if self._serializer is not None:
            value = serialized(self._serializer, value, f"queue {self.queue!r}")
        if self._window.free and self._accumulator.batch is None:
            return await self._send_alone(value, key, headers, timestamp, attributes)
        room_by = self._accumulator.deadline()
        if self._window.contended:
            await self._room_by(room_by)
        usual = attributes is None and not headers and self._serializer is None
        while True:
            try:
                delivery = (
                    self.send_nowait(value, key=key, timestamp=timestamp)
                    if usual
                    else self._hand_over(value, key, headers, timestamp, attributes)
                )
                break
            except Overloaded:
                await self._room_by(room_by)
        # Who awaits one record does not wait for the loop to turn: others may join the next batch meanwhile.
        self._accumulator.close_if_idle()
        return await delivery

    def _send_alone(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
        attributes: Attributes | None,
    ) -> Delivery:
        """One record while nothing else is under way: there is room for it, and nothing that it could join."""
        deadline = self._loop.time() + self._delivery_s
        plain = not headers and timestamp is None and attributes is None and (key is None or type(key) is bytes)
        if plain and type(value) is bytes:
            size = RECORD_OVERHEAD_BYTES + len(value) + (0 if key is None else len(key))
            if size > self._sender.alone_bytes_max:
                check_record(value, size, self._sender.limits)
            batch = PendingBatch(deadline, codec=self._codec, draft=draft_record(value, key), size_bytes=size)  # type: ignore[arg-type]  # plain
        else:
            value, key = as_bytes(value), as_bytes(key)
            pairs, timestamp_us, size = self._checked(value, key, headers, timestamp)
            batch = PendingBatch(deadline, codec=self._codec, attributes=attributes)
            batch.add(value, key, pairs, timestamp_us, size)
            batch.close()
        if self._closed:
            raise Closed("the producer is closed")
        if self._accumulator.open:
            self._accumulator.close()
        self._sender.add(batch)
        return Delivery(batch, 0)

    def send_nowait(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[SendOptions],
    ) -> Delivery:
        """Hand one record over; await the Delivery for its receipt. Batches leave when they are full, or when the loop
        turns; records of the same priority, time to live and delay share them.

        Raises Overloaded while the window is full (`await room()`), RecordTooLarge, BadInput; Closed.
        """
        # The usual record joins the open batch here: its type and one bound are all that is to be checked.
        accumulator = self._accumulator
        batch = accumulator.batch
        if self._serializer is not None:
            value = serialized(self._serializer, value, f"queue {self.queue!r}")
        if asked:
            options, headers = parted(asked, headers)
            return self._hand_over(value, key, headers, timestamp, self._asked(options))
        plain = not headers and timestamp is None and (key is None or type(key) is bytes)
        if batch is not None and plain and type(value) is bytes:
            size = RECORD_OVERHEAD_BYTES + len(value) + (0 if key is None else len(key))
            if batch.size_bytes + size <= accumulator.unchecked_bytes:
                return Delivery(batch, batch.add(value, key, (), None, size))  # type: ignore[arg-type]  # plain
        return self._hand_over(value, key, headers, timestamp, None)

    def _checked(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, timestamp: datetime | int | None
    ) -> tuple[Sequence[Header], int | None, int]:
        """(headers, timestamp in µs, size) of a record that the node will take. Raises BadInput, RecordTooLarge."""
        pairs = as_headers(headers)
        timestamp_us = as_timestamp_us(timestamp)
        size = record_size(value, key, pairs)
        check_record(value, size, self._sender.limits)
        return pairs, timestamp_us, size

    def _asked(self, asked: RecordOptions) -> Attributes | None:
        """Raises BadInput; BadRequest where the cluster takes none."""
        attributes = asked_attributes(**asked)
        if attributes is not None:
            self._sender.check_attributes()
        return attributes

    def _hand_over(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
        attributes: Attributes | None,
    ) -> Delivery:
        value, key = as_bytes(value), as_bytes(key)
        pairs, timestamp_us, size = self._checked(value, key, headers, timestamp)
        batch = self.batch_for(size, attributes)
        return Delivery(batch, batch.add(value, key, pairs, timestamp_us, size))

    def batch_for(self, size: int, attributes: Attributes | None) -> PendingBatch:
        """The open batch that a record of that size joins, which is looked at already. Raises as `send_nowait`."""
        self._check_room(self._accumulator.room_for(size, attributes))
        return self._accumulator.batch_for(size, attributes)

    # --- many records ---

    def send_batch_nowait(self, records: Sequence[Record], **asked: Unpack[RecordOptions]) -> Delivery:
        """Hand over records that are stored as one batch, with nothing else in it; the Delivery is the first one's.

        Raises as `send_nowait`, and BatchTooLarge, BadBatch for none.
        """
        if not records:
            raise BadBatch("a batch has at least one record")
        attributes = self._asked(asked)
        batch = PendingBatch(self._accumulator.deadline(), codec=self._codec, attributes=attributes)
        for value, key, headers, timestamp_us in records:
            pairs = as_headers(headers)
            size = record_size(value, key, pairs)
            check_value(value, self._sender.limits)
            batch.add(value, key, pairs, as_timestamp_us(timestamp_us), size)
        size, limit = batch.size_bytes, self._sender.limits.max_batch_bytes
        if BATCH_OVERHEAD_BYTES + size > limit:
            raise BatchTooLarge(f"a batch of {size} bytes is above max_batch_bytes ({limit})")
        self._check_room(batch.window_bytes)
        batch.close()
        self._accumulator.close()
        self._sender.add(batch)
        return Delivery(batch, 0)

    def send_many_nowait(
        self,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        **asked: Unpack[SendOptions],
    ) -> BulkDelivery:
        """Hand over many records as columns, in batches of their own; await the BulkDelivery for their Receipts.

        `values` and `keys`: a list of bytes or None; a numpy array of dtype S, V or object, or rows of uint8; or a
        pyarrow array of binary or string. `headers`: a mapping for every record, or a list with one for each.
        `timestamps`: a list of what `send` takes, numpy int64 (µs UTC) or datetime64 (UTC), or a pyarrow array of
        timestamps with a zone. `priority`, `ttl_ms`, `delay_ms` and the properties: as of `send`, for all of them. With
        a serializer `values` is a list of what it takes. Their bytes are copied now.

        Raises, before any record is taken, Overloaded when the window has no room for all of them, unless it is empty;
        RecordTooLarge, BadInput; Closed.
        """
        bulk, attributes = self._bulk(values, keys, headers, timestamps, asked)
        delivery = BulkDelivery()
        accumulator = self._accumulator
        ends = list(bulk.cuts(accumulator.batch_bytes_max, last_bytes=accumulator.last_batch_bytes_max))
        if ends:
            self._check_room(bulk.size_bytes(0, len(bulk)) + len(ends) * BATCH_OVERHEAD_BYTES)
        for start, end in pairwise([0, *ends]):
            delivery.add(self._take(bulk, start, end, bulk.size_bytes(start, end), attributes))
        return delivery

    async def send_many(
        self,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        **asked: Unpack[SendOptions],
    ) -> Receipts:
        """Send many records and await their confirms; as `send_many_nowait`, but waits for room, batch by batch.

        The columns must not change until it returns. Raises the first error once every batch sent has ended, or
        Overloaded when a batch found no room within the delivery timeout; what was not sent until then is not sent any
        more. Where some batch is confirmed, or may be stored, it is OutcomeUnknown, which says how many records are
        confirmed; `send_many_nowait` tells which records an error was for.
        """
        bulk, attributes = self._bulk(values, keys, headers, timestamps, asked)
        delivery = BulkDelivery()
        failure: MirrorlogError | None = None
        try:
            await self._hand_over_bulk(bulk, delivery, attributes)
        except (Overloaded, Closed) as error:  # no room; it was closed
            failure = error
        try:
            receipts = await delivery
        except MirrorlogError as error:
            failure = error
        if failure is not None:
            raise delivery.whole(failure, len(bulk))
        return receipts

    async def _hand_over_bulk(self, bulk: Bulk, delivery: BulkDelivery, attributes: Attributes | None) -> None:
        """Batch by batch, as room comes, until one has failed. Raises Overloaded."""
        accumulator = self._accumulator
        start = taken = 0
        while start < len(bulk) and not (taken % _BULK_BURST == 0 and delivery.failed()):
            end = bulk.cut(start, accumulator.batch_bytes_max, last_bytes=accumulator.last_batch_bytes_max)
            size = bulk.size_bytes(start, end)
            if self._closed or not self._window.fits(size + BATCH_OVERHEAD_BYTES):
                await self._make_room(size + BATCH_OVERHEAD_BYTES)
                if delivery.failed():
                    return
            delivery.add(self._take(bulk, start, end, size, attributes))
            start, taken = end, taken + 1
            if taken % _BULK_BURST == 0:
                await asyncio.sleep(0)

    def _bulk(
        self, values: Any, keys: Any, headers: Any, timestamps: Any, asked: SendOptions
    ) -> tuple[Bulk, Attributes | None]:
        from mirrorlog.client.producer.bulk import Bulk

        options, properties = parted(asked, ())
        values = serialized_all(self._serializer, values, f"queue {self.queue!r}")
        bulk = Bulk.of(values, keys, headers, timestamps, also=as_headers(properties))
        bulk.check(self._sender.limits)
        return bulk, self._asked(options)

    def _take(self, bulk: Bulk, start: int, end: int, size: int, attributes: Attributes | None) -> PendingBatch:
        """The records `start` up to `end` of `bulk`, of `size` bytes, as one batch."""
        deadline = self._accumulator.deadline()
        draft = bulk.draft(start, end, self._pool.join_for(size + BATCH_OVERHEAD_BYTES), attributes)
        batch = PendingBatch(deadline, codec=self._codec, attributes=attributes, draft=draft, size_bytes=size)
        self._accumulator.close()
        self._sender.add(batch)
        return batch

    # --- waiting ---

    async def room(self) -> None:
        """Wait until the window has room again: for a batch, and for the record that was refused last."""
        await self._window.room()

    async def _make_room(self, size: int) -> None:
        """Wait until `size` bytes fit. Raises Overloaded after the delivery timeout."""
        room_by = self._accumulator.deadline()
        while True:
            try:
                self._check_room(size)
                return
            except Overloaded:
                await self._room_by(room_by)

    async def _room_by(self, deadline: float) -> None:
        """As `room`. Raises Overloaded at `deadline`: others may take all the room that comes."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._window.room()
        except TimeoutError:
            raise Overloaded(
                "no room among the bytes that wait for their confirm (window_bytes) within delivery_timeout_ms",
                limit="window_bytes",
            ) from None

    async def flush(self) -> None:
        """Wait until every record handed over so far has ended, well or not.

        Raises the first error since the last flush that nobody has heard of: of a batch none of whose deliveries
        raised it or is being awaited.
        """
        await _flush(self._accumulator, self._sender)

    def routed_by(self, stamp: int) -> None:
        """What is handed over from now on was routed by the version of that stamp (`wire.routing`): its batches say so,
        and are refused (StaleRouting) where a newer one is known. 0: it was not routed."""
        if stamp != self._sender.routing:
            self._accumulator.close()
            self._sender.routing = stamp

    # --- limits ---

    def _check_room(self, size: int) -> None:
        if self._closed:
            raise Closed("the producer is closed")
        self._window.check(size)


# --- Of its parts alone: none of them leads back to it, so that it can be let go while they are at work ---------------


async def _flush(accumulator: Accumulator, sender: Sender) -> None:
    accumulator.close()
    await wait_for_end(sender.unresolved())
    ended = list(sender.failed)
    sender.failed.clear()
    for batch in ended:
        if batch.failed_unheard:
            batch.receipts()


def _abandon(accumulator: Accumulator, sender: Sender) -> None:
    last = accumulator.take()
    sender.abandon(Refused("the producer was closed before this was sent; nothing was stored"), last)


async def _finish(accumulator: Accumulator, sender: Sender) -> None:
    """As of `close`."""
    try:
        await _flush(accumulator, sender)
    finally:
        _abandon(accumulator, sender)
