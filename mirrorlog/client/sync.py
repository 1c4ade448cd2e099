"""The client without `await`: the same names, over one event loop in a background thread.

    from mirrorlog.client.sync import Client

    with Client("127.0.0.1:7401") as client:
        client.admin.declare("flights")
        with client.producer("flights", confirm="all") as producer:
            print(producer.send(b"value", key=b"key"))
            deliveries = [producer.send_nowait(b"%d" % number) for number in range(1000)]
            print(deliveries[-1].result().queue_offset)
        with client.consumer("flights", until="confirmed") as consumer:
            for record in consumer:
                print(record.queue_offset, record.value)

A client, its producers and its admin may be used from any number of threads; of a consumer's records each goes to
exactly one of the threads that read it. Every call ends: by its own deadlines, those of the client's and producer's
options, or with RequestTimeout well behind them, which a publish never ends with. Only reading on waits for as long as
no record comes; Ctrl-C ends that and every other call. After `close`, and in a forked child, calls raise
ConnectionLost: make clients after a fork. A program that ends without `close` leaves what is not confirmed to its luck.

The loop runs in a thread of this process. So a program that computes in Python all the time takes turns with it, five
milliseconds at a time (`sys.setswitchinterval`).
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast
from weakref import WeakSet

from mirrorlog.attempts import outcome_of
from mirrorlog.client import admin as awaited_admin
from mirrorlog.client import client as awaited
from mirrorlog.client.batching import (
    BATCH_OVERHEAD_BYTES,
    Headers,
    as_headers,
    as_timestamp_us,
    record_size,
)
from mirrorlog.client.consumed import ConsumedBatch, ConsumedRecord
from mirrorlog.client.consumer import enough
from mirrorlog.client.cursor import Cursor, Preview
from mirrorlog.client.deliveries import BulkDelivery as AwaitedBulkDelivery
from mirrorlog.client.handover import Bunch, Handover
from mirrorlog.client.loop_thread import LoopThread
from mirrorlog.client.pipeline import ProducerStats
from mirrorlog.client.receipts import Receipt, Receipts
from mirrorlog.client.sync_leases import Leased
from mirrorlog.client.sync_publisher import Publisher, Topology
from mirrorlog.client.sync_subscription import Delivered, DeliveredBatch, Subscription
from mirrorlog.client.sync_transaction import Transaction
from mirrorlog.client.sync_with_block import SyncWithBlock
from mirrorlog.client.tier import TierChoice
from mirrorlog.commitlog.attributes import Asked, asked_attributes
from mirrorlog.errors import ConnectionLost, MirrorlogError, OutcomeUnknown, Overloaded, RecordTooLarge
from mirrorlog.wire.messages import (
    REDRIVE_MAX,
    CopyPromoted,
    Events,
    GroupsFound,
    GroupsReset,
    HoldInfo,
    Metadata,
    Position,
    QueueInfo,
    Rebalanced,
    Status,
)

__all__ = [
    "Admin",
    "BulkDelivery",
    "Client",
    "Consumer",
    "Delivered",
    "DeliveredBatch",
    "Delivery",
    "Leased",
    "Producer",
    "Subscription",
    "Transaction",
]

# Behind the deadlines of the calls themselves: they say more about what is wrong.
_MARGIN_S: Final = 5.0

_T = TypeVar("_T")
_P = ParamSpec("_P")


def _options_of(
    method: Callable[Concatenate[Any, _P], object],
) -> Callable[[Callable[..., _T]], Callable[Concatenate[Any, _P], _T]]:
    """Says to type checkers that a method takes what `method` takes, so that options are listed once."""
    return lambda same: cast(Callable[Concatenate[Any, _P], _T], same)


class Client:
    """A client of one cluster; arguments as of `mirrorlog.client.Client`. The thread begins with the first call."""

    def __init__(
        self,
        *servers: str,
        cluster_id: str | None = None,
        role: str = "client",
        connect_timeout_ms: int = 5_000,
        request_timeout_ms: int = 10_000,
        allow_stale_reads: bool = False,
        tls: ssl.SSLContext | None = None,
        tiers: TierChoice = None,
        tier_options: Mapping[str, str] | None = None,
        user: str | None = None,
        password: str = "",
    ) -> None:
        self._awaited = awaited.Client(
            *servers,
            cluster_id=cluster_id,
            role=role,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            allow_stale_reads=allow_stale_reads,
            tls=tls,
            tiers=tiers,
            tier_options=tier_options,
            user=user,
            password=password,
        )
        # A call may ask one node after the other, and find more nodes than were named.
        tries = 2 + 2 * len(self._awaited.servers)
        self._patience_s = tries * (connect_timeout_ms + request_timeout_ms) / 1000 + _MARGIN_S
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False
        # Until they are closed: what was handed to one that its maker has forgotten is flushed all the same.
        self._producers: set[Producer] = set()
        self._subscriptions: WeakSet[Subscription] = WeakSet()

    # --- life ---

    def connect(self) -> Self:
        """Reach one of the servers. Raises ConnectionLost naming what each said."""
        self.call(self._awaited.connect, what="connect")
        return self

    def close(self) -> None:
        """Close producers that are still open (they flush first), then all connections. Idempotent.

        Raises the first error that a producer's flush raises, once all are closed.
        """
        self._end(None)

    def __enter__(self) -> Self:
        try:
            return self.connect()
        except BaseException:
            self.close()  # there is no __exit__ to end the thread
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(error)
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    # --- what it is for ---

    @property
    def admin(self) -> Admin:
        """Queues, offsets, positions, status."""
        return Admin(self)

    @_options_of(awaited.Client.producer)
    def producer(self, queue: str, **options: Any) -> Producer:
        """A producer for `queue`; use it with `with`, it is kept until it is closed or this client is.

        Options as of `mirrorlog.client.Client.producer`.
        """
        producer = Producer(self, queue, options)
        self._producers.add(producer)
        return producer

    def publisher(self, exchange: str, **options: Any) -> Publisher:
        """A publisher to `exchange`; use it with `with`. Options as of `mirrorlog.client.Client.publisher`."""
        return Publisher(self, lambda: self._awaited.publisher(exchange, **options), options)

    @_options_of(awaited.Client.consumer)
    def consumer(self, queue: str, **options: Any) -> Consumer:
        """A reader of `queue`; use it with `with`. Options as of `mirrorlog.client.Client.consumer`."""
        return Consumer(self, queue, options)

    @_options_of(awaited.Client.subscribe)
    def subscribe(self, queue: str, group: str = "", **options: Any) -> Subscription:
        """Records of `queue` that are pushed here, each to be settled; use it with `with`.

        Options as of `mirrorlog.client.Client.subscribe`.
        """
        subscription = Subscription(self, queue, group, options)
        self._subscriptions.add(subscription)
        return subscription

    @_options_of(awaited.Client.transaction)
    def transaction(self, **options: Any) -> Transaction:
        """Records and acknowledgements that count together; as `mirrorlog.client.Client.transaction`, with `with`."""
        timeout_s = options.get("timeout_ms", awaited.DELIVERY_TIMEOUT_MS) / 1000
        return Transaction(self, self._awaited.transaction(**options), timeout_s=timeout_s)

    @_options_of(awaited.Client.lease)
    def lease(self, queue: str, group: str = "", **options: Any) -> list[Leased]:
        """Records that are the caller's for a time; as `mirrorlog.client.Client.lease`."""
        wait_s = options.get("wait_ms", 0) / 1000
        found = self.change(lambda: self._awaited.lease(queue, group, **options), what="lease", more_s=wait_s)
        return [Leased(self, each) for each in found]

    @_options_of(awaited.Client.settle_receipt)
    def settle_receipt(self, queue: str, receipt: str, **options: Any) -> bool:
        """Settle a leased record by its receipt; as `mirrorlog.client.Client.settle_receipt`."""
        return self.change(lambda: self._awaited.settle_receipt(queue, receipt, **options), what="settle_receipt")

    def extend_receipt(self, queue: str, receipt: str, lease_ms: int, *, group: str = "") -> None:
        """Let a lease run for `lease_ms` from now on, with all records that the same `lease()` gave out, by the receipt
        of any of them. Raises NotGranted when it is over."""
        self.change(lambda: self._awaited.extend_receipt(queue, receipt, lease_ms, group=group), what="extend_receipt")

    # --- for its parts ---

    @property
    def awaited(self) -> awaited.Client:
        """The client behind it, to be used on `thread` only."""
        return self._awaited

    @property
    def thread(self) -> LoopThread:
        """Begun when first asked for. Raises ConnectionLost after `close` and in a forked child."""
        thread = self._thread
        if thread is None:
            with self._lock:
                if self._closed:
                    raise ConnectionLost("the client is closed")
                thread = self._thread = self._thread or LoopThread("mirrorlog-client")
        return thread

    def forget(self, producer: Producer) -> None:
        """It was closed or abandoned: nothing is left to flush."""
        self._producers.discard(producer)

    def call(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T:
        """Run a coroutine that asks nodes on the thread; its result or error. `more_s`: how long a node may keep its
        answer."""
        return self.thread.run(make, timeout_s=self._patience_s + more_s, what=what)

    def change(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str, more_s: float = 0.0) -> _T:
        """As `call`, of what changes something: when the thread is waited for in vain, or closed meanwhile, it may
        count or not."""
        under_way = False

        async def noted() -> _T:
            nonlocal under_way
            under_way = True
            try:
                return await make()
            except MirrorlogError:
                under_way = False
                raise

        try:
            return self.call(noted, what=what, more_s=more_s)
        except MirrorlogError as error:
            outcome = outcome_of(error, in_doubt=under_way)
            if outcome is error:
                raise
            raise outcome from None

    def _end(self, error: BaseException | None) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            thread = self._thread
        if closed or thread is None or thread.elsewhere:
            return
        failures: list[MirrorlogError] = []
        try:
            # Who was interrupted is not to wait for confirms: the client abandons its producers then.
            flushed: list[Subscription | Producer] = [*self._subscriptions, *self._producers]
            if error is not None and not isinstance(error, Exception):
                flushed = []
            for each in flushed:
                _collect(failures, each.close)
            kind = type(error) if error is not None else None
            _collect(failures, lambda: self.call(lambda: self._awaited.__aexit__(kind, error, None), what="close"))
        finally:
            thread.close()
        if failures:
            raise failures[0]


def _collect(failures: list[MirrorlogError], act: Callable[[], object]) -> None:
    try:
        act()
    except MirrorlogError as error:
        failures.append(error)


class Delivery:
    """A record that was handed over."""

    __slots__ = ("_bunch", "_index", "_producer")

    def __init__(self, producer: Producer, bunch: Bunch, index: int) -> None:
        self._producer = producer
        self._bunch = bunch
        self._index = index

    def done(self) -> bool:
        return self._bunch.has_ended(self._index)

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt; at most `timeout` seconds, by default until the record has ended at its deadline.

        Raises what its batch ended with; RequestTimeout when `timeout` is up: then it is still on its way.
        """
        bunch, index = self._bunch, self._index
        return bunch.outcome(index) or self._producer.wait(bunch, index, timeout)


class BulkDelivery:
    """Records that were handed over together; as `mirrorlog.client.BulkDelivery`."""

    __slots__ = ("_awaited", "_producer")

    def __init__(self, producer: Producer, awaited: AwaitedBulkDelivery) -> None:
        self._producer = producer
        self._awaited = awaited

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


class Producer(SyncWithBlock):
    """Sends records to one queue. Made by `Client.producer`; use it with `with`, from any number of threads."""

    def __init__(self, client: Client, queue: str, options: Mapping[str, Any]) -> None:
        """Use `Client.producer`. Raises BadRequest for a wrong option."""
        self.queue = queue
        self._client = client
        self._delivery_s = options.get("delivery_timeout_ms", 30_000) / 1000
        self._thread = client.thread
        self._awaited = client.call(lambda: _made(lambda: client.awaited.producer(queue, **options)), what="producer")
        self._handover = Handover(self._awaited, self._thread, patience_s=self._delivery_s)
        self._record_bytes_max = self._batch_bytes_max = 0
        self._closed = False

    @property
    def stats(self) -> ProducerStats:
        return self._awaited.stats

    @property
    def producer_id(self) -> int:
        return self._awaited.producer_id

    # --- life ---

    def start(self) -> Self:
        """Find the queue and connect to its master. Raises NoSuchQueue or ConnectionLost."""
        limits = self._client.call(self._start, what=f"producer for {self.queue!r}")
        self._record_bytes_max, self._batch_bytes_max = limits.max_record_bytes, limits.max_batch_bytes
        return self

    def close(self) -> None:
        """Flush: wait until every record has ended, at most the delivery timeout. Idempotent. Raises as `flush`."""
        if not self._closed and not self._thread.elsewhere:
            self._closed = True
            try:
                self._flush_and(self._awaited.close, what="close")
            finally:
                self._client.forget(self)

    def abandon(self) -> None:
        """Close without waiting: what was sent ends as OutcomeUnknown, what was not as Refused. Idempotent."""
        self._closed = True
        self._thread.call_soon(self._awaited.abandon)
        self._client.forget(self)

    # --- sending ---

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[Asked],
    ) -> Receipt:
        """Send one record and wait for its confirm, behind all that was handed over before.

        `timestamp`: event time, datetime with a zone or µs UTC; `priority`, `ttl_ms` and `delay_ms` as of
        `mirrorlog.client.Producer.send`. Raises Refused, OutcomeUnknown or BadInput.
        """
        return self.send_nowait(value, key=key, headers=headers, timestamp=timestamp, **asked).result()

    def send_nowait(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[Asked],
    ) -> Delivery:
        """Hand one record over; its Delivery has the `result`. While the window is full it waits for room.

        Raises RecordTooLarge, BadInput; Overloaded when no room comes within the delivery timeout; ConnectionLost if
        closed.
        """
        pairs = as_headers(headers)
        timestamp_us = as_timestamp_us(timestamp)
        size = record_size(value, key, pairs)
        attributes = asked_attributes(**asked) if asked else None
        if size > self._record_bytes_max:
            self._check_size(value, size)
        if self._closed:
            raise ConnectionLost("the producer is closed")
        self._thread.check_open()
        return Delivery(self, *self._handover.put((value, key, pairs, timestamp_us, attributes), size))

    def send_many_nowait(
        self, values: Any, *, keys: Any = None, headers: Any = None, timestamps: Any = None, **asked: Unpack[Asked]
    ) -> BulkDelivery:
        """Hand over many records as columns, all or none of them; as `mirrorlog.client.Producer.send_many_nowait`.

        While the window has no room for all of them it waits, as `send_nowait`. Their bytes are copied when it returns.
        """
        self._check_started()
        taken = self._in_turn(
            lambda: self._take_many(values, keys=keys, headers=headers, timestamps=timestamps, **asked),
            what="send_many_nowait",
        )
        return BulkDelivery(self, taken)

    def send_many(
        self, values: Any, *, keys: Any = None, headers: Any = None, timestamps: Any = None, **asked: Unpack[Asked]
    ) -> Receipts:
        """Send many records as columns and wait for their confirms; as `mirrorlog.client.Producer.send_many`."""
        self._check_started()
        return self._in_turn(
            lambda: self._awaited.send_many(values, keys=keys, headers=headers, timestamps=timestamps, **asked),
            what="send_many",
        )

    def flush(self) -> None:
        """Wait until every record handed over so far has ended, well or not.

        Raises the first error since the last flush that nobody has heard of.
        """
        self._flush_and(self._awaited.flush, what="flush")

    def wait(self, bunch: Bunch, index: int, timeout_s: float | None) -> Receipt:
        """For its deliveries: wait until a record has ended."""
        patience_s = self._delivery_s + _MARGIN_S
        return self._thread.run(
            lambda: bunch.ended(index, patience_s=patience_s), timeout_s=timeout_s, what="the record's confirm"
        )

    def wait_for_all(self, delivery: AwaitedBulkDelivery, timeout_s: float | None) -> Receipts:
        """For its bulk deliveries: wait until all of one has ended."""

        async def ended() -> Receipts:
            try:
                async with asyncio.timeout(self._delivery_s + _MARGIN_S):
                    return await delivery
            except TimeoutError:
                raise OutcomeUnknown("the records have not ended behind their deadline; they may be stored") from None

        return self._thread.run(ended, timeout_s=timeout_s, what="the records' confirms")

    # --- inside ---

    async def _take_many(self, values: Any, **columns: Any) -> AwaitedBulkDelivery:
        """Once there is room. Raises Overloaded when none comes within the delivery timeout."""
        give_up_at = asyncio.get_running_loop().time() + self._delivery_s
        while True:
            try:
                return self._awaited.send_many_nowait(values, **columns)
            except Overloaded as full:
                try:
                    async with asyncio.timeout_at(give_up_at):
                        await self._awaited.room()
                except TimeoutError:
                    raise full from None

    async def _start(self) -> Any:
        await self._awaited.start()
        connection, _ = await self._client.awaited.master_of(self.queue)
        return connection.welcome.limits

    def _check_started(self) -> None:
        # The producer behind this one would say how it is started itself.
        if not self._batch_bytes_max:
            raise ConnectionLost("the producer is not started; use it with `with`, or call start()")

    def _check_size(self, value: bytes | None, size: int) -> None:
        self._check_started()
        if value is not None and len(value) > self._record_bytes_max:
            raise RecordTooLarge(
                f"a value of {len(value)} bytes is above the node's max_record_bytes ({self._record_bytes_max})"
            )
        if BATCH_OVERHEAD_BYTES + size > self._batch_bytes_max:
            raise RecordTooLarge(f"a record of {size} bytes is above max_batch_bytes ({self._batch_bytes_max})")

    def _in_turn(self, make: Callable[[], Coroutine[Any, Any, _T]], *, what: str) -> _T:
        """Behind what was handed over before.

        Without a time limit: how long it takes depends on how much that is, and each record ends at its own deadline,
        which begins when the window lets it in.
        """

        async def in_turn() -> _T:
            await self._handover.taken()
            return await make()

        return self._thread.run(in_turn, timeout_s=None, what=what)

    def _flush_and(self, make: Callable[[], Coroutine[Any, Any, None]], *, what: str) -> None:
        """In turn. Raises what a record handed over before was refused with, if nothing else and nobody has heard."""

        async def then_refused() -> None:
            await make()
            if (refused := self._handover.take_refused()) is not None:
                raise refused

        self._in_turn(then_refused, what=what)


class Consumer:
    """Reads one queue. Made by `Client.consumer`; use it with `with`."""

    def __init__(self, client: Client, queue: str, options: Mapping[str, Any]) -> None:
        """Use `Client.consumer`. Raises BadRequest for a wrong option."""
        self.queue = queue
        self._client = client
        self._awaited = client.awaited.consumer(queue, **options)
        # Held while the cursor moves, never while somebody waits for records.
        self._lock = threading.Lock()

    @property
    def group(self) -> str | None:
        return self._awaited.group

    # --- life ---

    def start(self) -> Self:
        """Find the queue and where to begin. Raises NoSuchQueue, BadRequest, ConnectionLost."""
        self._client.call(self._awaited.start, what=f"consumer of {self.queue!r}")
        return self

    def close(self) -> None:
        """End reading, in other threads too: who waits for records there gets ConnectionLost.

        Idempotent. Commits nothing.
        """
        with self._lock, suppress(ConnectionLost):  # the client is closed, and this with it
            self._client.call(self._awaited.close, what="close")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- reading ---

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records in queue order, as `batches`. Leave it and come back: it goes on behind the last one given out."""
        cursor, lock = self._awaited.cursor, self._lock
        while (found := self._current(cursor)) is not None:
            batch, at = found
            cursor.epoch = batch.header.epoch
            for following, record in enumerate(batch.records(), batch.first + 1):
                with lock:
                    if cursor.next != at:
                        break  # moved on from elsewhere meanwhile
                    cursor.next = at = following
                yield record

    def batches(self) -> Iterator[ConsumedBatch]:
        """Batches in queue order. Ends at `until`; otherwise it waits for new records.

        Raises OffsetOutOfRange when the position is gone, BadBatch naming queue and log offset, ConnectionLost after
        `request_timeout_ms` without any node that answers.
        """
        while (batch := self._claim()) is not None:
            yield batch

    def read(self, max_records: int | None = None, *, timeout_ms: int) -> list[ConsumedRecord]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up or `until` is reached first.

        Without `max_records`: what comes first, as soon as it is there. Raises as `batches`, but only when nothing was
        found before the error; the next call meets it then. An interrupted read leaves the position as it was.
        """
        until_s = time.monotonic() + timeout_ms / 1000
        while True:
            with self._lock:
                preview = Preview(self._awaited.cursor)
            found = self._collect(preview, max_records, until_s)
            with self._lock:
                if preview.claim():
                    return found

    @property
    def position(self) -> Position:
        """Behind the last record, or the last batch, that was given out."""
        with self._lock:
            return self._awaited.position

    @property
    def served_by(self) -> str | None:
        """The node that answered last."""
        return self._awaited.served_by

    def seek(self, queue_offset: int) -> None:
        """Go on at `queue_offset`, an iteration that is under way too. Raises BadRequest for one that cannot be."""
        with self._lock:
            self._client.call(lambda: self._awaited.seek(queue_offset), what="seek")

    def commit(self) -> None:
        """Store the position for the group. Raises BadRequest without a group, Refused or OutcomeUnknown."""
        self._client.change(self._awaited.commit, what="commit")

    # --- inside ---

    def _claim(self) -> ConsumedBatch | None:
        """The next batch, for the caller alone."""
        cursor = self._awaited.cursor
        while (found := self._current(cursor)) is not None:
            batch, at = found
            with self._lock:
                if cursor.next == at:
                    cursor.passed(batch)
                    return batch
        return None

    def _collect(self, preview: Preview, max_records: int | None, until_s: float) -> list[ConsumedRecord]:
        """Records for one `read`, as many as come in time."""
        found: list[ConsumedRecord] = []
        try:
            while not enough(found, max_records) and (at_place := self._current(preview, until_s)) is not None:
                batch, _ = at_place
                if max_records is not None:
                    batch = batch.before(batch.first + max_records - len(found))
                found += batch.records()
                preview.passed(batch)
        except MirrorlogError:
            if not found:
                raise
        return found

    def _current(self, place: Cursor | Preview, until_s: float | None = None) -> tuple[ConsumedBatch, int] | None:
        """The batch at `place`, and the cursor's position; None at `until` or when the time is up."""
        thread = self._client.thread
        while True:
            thread.check_open()
            with self._lock:
                if (batch := place.current()) is not None:
                    return batch, self._awaited.cursor.next
                if place.ended:
                    return None
            if not self._wait(thread, place, until_s):
                return None

    def _wait(self, thread: LoopThread, place: Cursor | Preview, until_s: float | None) -> bool:
        """For more batches; False when the time is up. A fetch leaves even if it is up already."""
        if until_s is None:
            thread.run(lambda: self._more(place), timeout_s=None, what=f"records of {self.queue!r}")
            return True
        left_s = max(0.0, until_s - time.monotonic())
        return thread.run(
            lambda: _in_time(lambda: self._more(place), left_s), timeout_s=left_s + _MARGIN_S, what="read"
        )

    async def _more(self, place: Cursor | Preview) -> None:
        """Let the cursor hold more; on the loop, the only place where it comes to hold something."""
        if not self._lock.acquire(blocking=False):
            return  # somebody moves the cursor: look again
        try:
            # Another thread's wait may have brought it meanwhile, and perhaps the end: then nothing would come.
            if not place.lacks:
                return
        finally:
            self._lock.release()
        await self._awaited.take()


class Admin:
    """Made by `Client.admin`; as `mirrorlog.client.admin.Admin`, whose methods say what each raises."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._awaited = client.awaited.admin

    @property
    def topology(self) -> Topology:
        """Exchanges, bindings, virtual hosts, users."""
        return Topology(self._client, self._awaited.topology)

    def declare(self, name: str, arguments: Mapping[str, Any] | None = None) -> QueueInfo:
        """Make a queue, or find it with the same arguments."""
        return self._client.change(lambda: self._awaited.declare(name, arguments), what="declare")

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False, force: bool = False) -> int:
        """Delete a queue with all that belongs to it; how many records its own group had not settled."""
        return self._client.change(
            lambda: self._awaited.delete_queue(name, if_unused=if_unused, if_empty=if_empty, force=force),
            what="delete_queue",
        )

    def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes, and all queues or those named."""
        return self._client.call(lambda: self._awaited.metadata(queues), what="metadata")

    def queues(self) -> list[QueueInfo]:
        return self._client.call(self._awaited.queues, what="queues")

    def status(self, node_id: str | None = None) -> Status:
        """What a node knows of its logs; of any node when none is named."""
        return self._client.call(lambda: self._awaited.status(node_id), what="status")

    def find_offset(self, queue: str, time: datetime | int, *, any_copy: bool = True) -> int:
        """The first confirmed queue offset whose batch was appended at or after `time` (datetime or µs UTC)."""
        return self._client.call(lambda: self._awaited.find_offset(queue, time, any_copy=any_copy), what="find_offset")

    def position(self, queue: str, group: str) -> Position | None:
        """Where a group stands; None when it has never committed."""
        return self._client.call(lambda: self._awaited.position(queue, group), what="position")

    def commit_position(self, queue: str, group: str, position: Position) -> None:
        """Store where a group stands; returns when it is confirmed by all copies."""
        self._client.change(lambda: self._awaited.commit_position(queue, group, position), what="commit_position")

    @_options_of(awaited_admin.Admin.set_hold)
    def set_hold(self, queue: str, name: str, **options: Any) -> HoldInfo:
        """Have a queue's records kept for a landing, or renew that; as `mirrorlog.client.admin.Admin.set_hold`."""
        return self._client.change(lambda: self._awaited.set_hold(queue, name, **options), what="set_hold")

    def end_hold(self, queue: str, name: str, *, holder: str = "") -> None:
        """Forget a landing's hold, if there is one."""
        self._client.change(lambda: self._awaited.end_hold(queue, name, holder=holder), what="end_hold")

    def holds(self, queue: str) -> list[HoldInfo]:
        """The holds of a queue, as its master knows them."""
        return self._client.call(lambda: self._awaited.holds(queue), what="holds")

    def groups(self, queue: str) -> GroupsFound:
        """The groups of a queue, of either kind, as its master knows them."""
        return self._client.call(lambda: self._awaited.groups(queue), what="groups")

    def purge(self, queue: str, group: str = "") -> int:
        """Settle every record of an acking group that is in nobody's hands; how many those were."""
        return self._client.change(lambda: self._awaited.purge(queue, group), what="purge")

    def redrive(self, queue: str, *, to: str = "", records_max: int = REDRIVE_MAX) -> int:
        """Send ready records back to where they died; as `mirrorlog.client.admin.Admin.redrive`."""
        return self._client.change(lambda: self._awaited.redrive(queue, to=to, records_max=records_max), what="redrive")

    @_options_of(awaited_admin.Admin.reset_groups)
    def reset_groups(self, queue: str, groups: Sequence[str] | None = None, **options: Any) -> GroupsReset:
        """Have groups of a queue stand somewhere else; as `mirrorlog.client.admin.Admin.reset_groups`."""
        return self._client.change(lambda: self._awaited.reset_groups(queue, groups, **options), what="reset_groups")

    def delete_group(self, queue: str, group: str) -> None:
        """Forget a group of either kind, if there is one."""
        self._client.change(lambda: self._awaited.delete_group(queue, group), what="delete_group")

    def drain(self, node_id: str = "", *, draining: bool = True) -> str:
        """Let a node hand over what it masters, or let it master again; which node it was."""
        return self._client.change(lambda: self._awaited.drain(node_id, draining=draining), what="drain")

    def forget_node(self, node_id: str, *, force: bool = False) -> None:
        """Take a node out of the cluster for good."""
        self._client.change(lambda: self._awaited.forget_node(node_id, force=force), what="forget_node")

    def rebalance(self, *, dry_run: bool = False) -> Rebalanced:
        """Let every log be mastered by its home, as far as that can take it over."""
        return self._client.change(lambda: self._awaited.rebalance(dry_run=dry_run), what="rebalance")

    def promote(self, log: str, *, to: str = "", accept_loss: bool = False) -> CopyPromoted:
        """Master a log from a copy that may lack what was confirmed."""
        return self._client.change(lambda: self._awaited.promote(log, to=to, accept_loss=accept_loss), what="promote")

    def events(self, *, after: int = 0, wait_ms: int = 0, limit: int = 1_000, node_id: str | None = None) -> Events:
        """What happened in the cluster behind event number `after`, as a node came to know it."""
        return self._client.call(
            lambda: self._awaited.events(after=after, wait_ms=wait_ms, limit=limit, node_id=node_id),
            what="events",
            more_s=wait_ms / 1000,
        )


async def _made(make: Callable[[], _T]) -> _T:
    """What must be made on the loop."""
    return make()


async def _in_time(act: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> bool:
    """Whether it ended within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await act()
    except TimeoutError:
        return False
    return True
