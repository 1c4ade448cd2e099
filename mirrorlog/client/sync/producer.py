"""The producer that blocks, and what becomes of a record that was handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Self, TypeVar, cast

from mirrorlog.attempts import outcome_of
from mirrorlog.client.arguments import checked, refuse
from mirrorlog.client.producer.batch import Receipt, Receipts
from mirrorlog.client.producer.deliveries import BulkDelivery
from mirrorlog.client.producer.pipeline import ProducerStats
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.producer.record import as_headers, as_timestamp_us, check_record, record_size
from mirrorlog.client.properties import SendOptions, as_bytes, parted
from mirrorlog.client.serializers import Serializer, serialized, serialized_all
from mirrorlog.client.sync.blocking import MARGIN_S, Calls, ClosedFace, options_of, seconds
from mirrorlog.client.sync.record_buffer import Bunch, RecordBuffer
from mirrorlog.commitlog.format.attributes import RecordOptions, asked_attributes
from mirrorlog.errors import Closed, MirrorlogError, OutcomeUnknown, Overloaded
from mirrorlog.wire.messages.handshake import NodeLimits

_T = TypeVar("_T")


@checked()
class BlockingDelivery:
    """A record that was handed over."""

    __slots__ = ("_bunch", "_index", "_producer")

    def __init__(self, producer: BlockingProducer, bunch: Bunch, index: int) -> None:
        self._producer = producer
        self._bunch = bunch
        self._index = index

    def __repr__(self) -> str:
        return f"sync.Delivery({'ended' if self.done() else 'under way'})"

    def done(self) -> bool:
        return self._bunch.has_ended(self._index)

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt; at most `timeout` seconds, by default until the record has ended at its deadline.

        Raises what its batch ended with; RequestTimeout when `timeout` is up: then it is still on its way.
        """
        bunch, index = self._bunch, self._index
        return bunch.outcome(index) or self._producer.wait(bunch, index, timeout)


@checked()
class BlockingBulkDelivery:
    """Records that were handed over together; as `mirrorlog.client.BulkDelivery`."""

    __slots__ = ("_awaited", "_producer")

    def __init__(self, producer: BlockingProducer, awaited: BulkDelivery) -> None:
        self._producer = producer
        self._awaited = awaited

    def __repr__(self) -> str:
        return f"sync.{self._awaited!r}"

    def __len__(self) -> int:
        """Records."""
        return len(self._awaited)

    def done(self) -> bool:
        return self._awaited.done()

    def failures(self) -> list[tuple[range, MirrorlogError]]:
        """What has failed so far: the records' numbers in the call, and why."""
        return self._awaited.failures()

    def result(self, timeout: float | None = None) -> Receipts:
        """Wait for the receipts; at most `timeout` seconds, by default until all have ended at their deadlines.

        Raises the first error among them; RequestTimeout when `timeout` is up: then some are still on their way.
        """
        return self._awaited.result() if self._awaited.done() else self._producer.wait_for_all(self._awaited, timeout)


@checked(but=("send", "send_nowait"), internal=("wait", "wait_for_all"))
class BlockingProducer(ClosedFace[Producer]):
    """Sends records to one queue. Made by `Client.producer`; use it with `with`, from any number of threads. One that
    is let go without `close` sends what it was given, with a ResourceWarning."""

    def __init__(self, client: Calls, queue: str, options: Mapping[str, Any]) -> None:
        """Use `Client.producer`. Raises BadRequest for a wrong option."""
        self.queue = queue
        self._delivery_s = seconds(options, "delivery_timeout_ms", 30_000)
        self._thread = client.thread
        options = dict(options)
        self._serializer: Serializer | None = options.pop("serializer", None)
        if not (self._serializer is None or callable(self._serializer)):
            raise refuse("serializer", self._serializer, "a callable or None")
        of = client.made(lambda: client.awaited.producer(queue, **options), what="producer")
        self._buffer = RecordBuffer(of, self._thread, patience_s=self._delivery_s)
        self._limits: NodeLimits | None = None
        self._record_bytes_max = 0
        super().__init__(client, of)
        of.kept = True

    @property
    def stats(self) -> ProducerStats:
        return self._of.stats

    @property
    def producer_id(self) -> int:
        return self._of.producer_id

    # --- life ---

    def start(self) -> Self:
        """Find the queue and connect to its master. Raises NoSuchQueue or ConnectionLost."""
        self._limits = self._client.call(self._start, what=f"producer for {self.queue!r}")
        self._record_bytes_max = self._limits.max_record_bytes
        return self

    def close(self) -> None:
        """Flush: wait until every record has ended, at most the delivery timeout. Idempotent. Raises as `flush`."""
        if not self._closed and not self._thread.elsewhere:
            self._closed = True
            self._flush_and(self._of.close, what="close")

    def _unfinished(self) -> tuple[str, Callable[[], Coroutine[Any, Any, None]], str]:
        close = partial(_flushed, self._buffer, self._of.close)
        return f"a producer for queue {self.queue!r}", close, self._of.unended(self._buffer.waiting)

    # --- sending ---

    @options_of(Producer.send)
    def send(self, value: Any, **options: Any) -> Receipt:
        """Send one record and wait for its confirm, behind all that was handed over before.

        `timestamp`: event time, datetime with a zone or µs UTC; `priority`, `ttl_ms` and `delay_ms` as of
        `mirrorlog.client.Producer.send`. Raises Refused, OutcomeUnknown or BadInput.
        """
        return self.send_nowait(value, **options).result()

    @options_of(Producer.send_nowait)
    def send_nowait(
        self, value: Any, *, key: Any = None, headers: Any = None, timestamp: Any = None, **asked: Any
    ) -> BlockingDelivery:
        """Hand one record over; its Delivery has the `result`. While the window is full it waits for room.

        Raises RecordTooLarge, BadInput; Overloaded when no room comes within the delivery timeout; Closed.
        """
        options: RecordOptions = {}
        if self._serializer is not None:  # by who sends, not on the loop's thread
            value = serialized(self._serializer, value, f"queue {self.queue!r}")
        if asked:
            options, headers = parted(cast(SendOptions, asked), headers)
        if type(value) is not bytes or type(key) is str:
            value, key = as_bytes(value), as_bytes(key)
        pairs = as_headers(headers)
        timestamp_us = as_timestamp_us(timestamp)
        size = record_size(value, key, pairs)
        attributes = asked_attributes(**options) if options else None
        if size > self._record_bytes_max:
            check_record(value, size, self._started_limits())
        if self._closed:
            raise Closed("the producer is closed")
        self._thread.check_open()
        return BlockingDelivery(self, *self._buffer.put((value, key, pairs, timestamp_us, attributes), size))

    @options_of(Producer.send_many_nowait)
    def send_many_nowait(self, values: Any, **columns: Any) -> BlockingBulkDelivery:
        """Hand over many records as columns, all or none of them; as `mirrorlog.client.Producer.send_many_nowait`.

        While the window has no room for all of them it waits, as `send_nowait`. Their bytes are copied when it returns.
        """
        values = self._columns(values)
        taken = self._in_turn(lambda: self._take_many(values, **columns), what="send_many_nowait")
        return BlockingBulkDelivery(self, taken)

    @options_of(Producer.send_many)
    def send_many(self, values: Any, **columns: Any) -> Receipts:
        """Send many records as columns and wait for their confirms; as `mirrorlog.client.Producer.send_many`."""
        values = self._columns(values)
        self._thread.check_open()

        async def in_turn() -> Receipts:
            await self._buffer.taken()
            return await self._of.send_many(values, **columns)

        return self._told(in_turn, timeout_s=None, what="send_many")

    def flush(self) -> None:
        """Wait until every record handed over so far has ended, well or not.

        Raises the first error since the last flush that nobody has heard of.
        """
        self._flush_and(self._of.flush, what="flush")

    def wait(self, bunch: Bunch, index: int, timeout_s: float | None) -> Receipt:
        """For its deliveries: wait until a record has ended."""
        patience_s = self._delivery_s + MARGIN_S
        return self._told(
            lambda: bunch.ended(index, patience_s=patience_s), timeout_s=timeout_s, what="the record's confirm"
        )

    def wait_for_all(self, delivery: BulkDelivery, timeout_s: float | None) -> Receipts:
        """For its bulk deliveries: wait until all of one has ended."""

        async def ended() -> Receipts:
            try:
                async with asyncio.timeout(self._delivery_s + MARGIN_S):
                    return await delivery
            except TimeoutError:
                raise OutcomeUnknown("the records have not ended behind their deadline; they may be stored") from None

        return self._told(ended, timeout_s=timeout_s, what="the records' confirms")

    # --- inside ---

    def _told(self, make: Callable[[], Coroutine[Any, Any, _T]], *, timeout_s: float | None, what: str) -> _T:
        """What became of records that were handed over. When the thread has ended, or ends meanwhile, nobody knows."""

        async def ended() -> _T | MirrorlogError:
            try:
                return await make()
            except MirrorlogError as error:
                return error

        try:
            outcome = self._thread.run(ended, timeout_s=timeout_s, what=what)
        except Closed as error:
            raise outcome_of(error, in_doubt=True) from None
        if isinstance(outcome, MirrorlogError):
            raise outcome
        return outcome

    async def _take_many(self, values: Any, **columns: Any) -> BulkDelivery:
        """Once there is room. Raises Overloaded when none comes within the delivery timeout."""
        give_up_at = asyncio.get_running_loop().time() + self._delivery_s
        while True:
            try:
                return self._of.send_many_nowait(values, **columns)
            except Overloaded as full:
                try:
                    async with asyncio.timeout_at(give_up_at):
                        await self._of.room()
                except TimeoutError:
                    raise full from None

    async def _start(self) -> NodeLimits:
        return (await self._of.start()).limits

    def _columns(self, values: Any) -> Any:
        """Made by who sends, as single values are. Raises BadInput; Closed before the start."""
        self._started_limits()
        return serialized_all(self._serializer, values, f"queue {self.queue!r}")

    def _started_limits(self) -> NodeLimits:
        # The producer behind this one would say how it is started itself.
        if self._limits is None:
            raise Closed("the producer is not started; use it with `with`, or call start()")
        return self._limits

    def _in_turn(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str) -> _T:
        """Behind what was handed over before.

        Without a time limit: how long it takes depends on how much that is, and each record ends at its own deadline,
        which begins when the window lets it in.
        """

        async def in_turn() -> _T:
            await self._buffer.taken()
            return await make()

        return self._thread.run(in_turn, timeout_s=None, what=what)

    def _flush_and(self, make: Callable[[], Coroutine[Any, Any, None]], *, what: str) -> None:
        self._thread.run(lambda: _flushed(self._buffer, make), timeout_s=None, what=what)


async def _flushed(buffer: RecordBuffer, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """`make`, a flush, behind what was handed over before. Raises what a record of that was refused with, if nothing
    else, and nobody has heard."""
    await buffer.taken()
    await make()
    if (refused := buffer.take_refused()) is not None:
        raise refused
