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
Closed: make clients after a fork. What is let go without `close` says so with a ResourceWarning; what it was
given is sent all the same, and a client that is let go ends its thread behind that. A program that ends without `close`
leaves what is not confirmed to its luck.

The loop runs in a thread of this process. So a program that computes in Python all the time takes turns with it, five
milliseconds at a time (`sys.setswitchinterval`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

from mirrorlog.client import client as awaited
from mirrorlog.client.sync.blocking import Calls, options_of, seconds
from mirrorlog.errors import MirrorlogError

if TYPE_CHECKING:  # each is loaded when one is made, as by the awaited client
    from mirrorlog.client.consumer.records import ConsumedRecord
    from mirrorlog.client.sync.admin import BlockingAdmin
    from mirrorlog.client.sync.consumer import BlockingConsumer
    from mirrorlog.client.sync.leases import BlockingLeased
    from mirrorlog.client.sync.producer import BlockingProducer
    from mirrorlog.client.sync.publisher import BlockingPublisher
    from mirrorlog.client.sync.subscription import BlockingSubscription
    from mirrorlog.client.sync.transaction import BlockingTransaction

_T = TypeVar("_T")


class BlockingClient:
    """A client of one cluster; arguments as of `mirrorlog.client.Client`. The thread begins with the first call."""

    @options_of(awaited.Client.__init__)
    def __init__(self, *servers: str, **options: Any) -> None:
        self._calls = Calls(awaited.Client(*servers, **options))
        self._awaited = self._calls.awaited
        self._producers: WeakSet[BlockingProducer] = WeakSet()
        self._subscriptions: WeakSet[BlockingSubscription] = WeakSet()

    # --- life ---

    def connect(self) -> Self:
        """Reach one of the servers. Raises ConnectionLost naming what each said."""
        self._calls.call(self._awaited.connect, what="connect")
        return self

    def close(self) -> None:
        """Close producers that are still open (they flush first), wait for what goes on for those that were let go,
        then close all connections. Idempotent.

        Raises the first error that a producer's flush raises, once all are closed.
        """
        self._end(None)

    def __enter__(self) -> Self:
        try:
            return self.connect()
        except BaseException:
            self.close()  # there is no __exit__ to end the thread
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._end(error)
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    def __repr__(self) -> str:
        return f"sync.{self._awaited!r}"

    # --- what it is for ---

    @property
    def admin(self) -> BlockingAdmin:
        """Queues, offsets, positions, status."""
        from mirrorlog.client.sync.admin import BlockingAdmin

        return BlockingAdmin(self._calls, self._awaited.admin)

    @options_of(awaited.Client.producer)
    def producer(self, queue: str, **options: Any) -> BlockingProducer:
        """A producer for `queue`; use it with `with`.

        Options as of `mirrorlog.client.Client.producer`.
        """
        from mirrorlog.client.sync.producer import BlockingProducer

        producer = self._kind(BlockingProducer)(self._calls, queue, options)
        self._producers.add(producer)
        return producer

    def publisher(self, exchange: str, **options: Any) -> BlockingPublisher:
        """A publisher to `exchange`; use it with `with`. Options as of `mirrorlog.client.Client.publisher`."""
        from mirrorlog.client.sync.publisher import BlockingPublisher

        return BlockingPublisher(self._calls, exchange, options)

    @options_of(awaited.Client.consumer)
    def consumer(self, queue: str, **options: Any) -> BlockingConsumer:
        """A reader of `queue`; use it with `with`. Options as of `mirrorlog.client.Client.consumer`."""
        from mirrorlog.client.sync.consumer import BlockingConsumer

        return self._kind(BlockingConsumer)(self._calls, self._awaited.consumer(queue, **options))

    @options_of(awaited.Client.subscribe)
    def subscribe(self, queue: str, group: str = "", **options: Any) -> BlockingSubscription:
        """Records of `queue` that are pushed here, each to be settled; use it with `with`.

        Options as of `mirrorlog.client.Client.subscribe`.
        """
        from mirrorlog.client.sync.subscription import BlockingSubscription

        subscription = self._kind(BlockingSubscription)(self._calls, queue, group, options)
        self._subscriptions.add(subscription)
        return subscription

    @options_of(awaited.Client.transaction)
    def transaction(self, **options: Any) -> BlockingTransaction:
        """Records and acknowledgements that count together; as `mirrorlog.client.Client.transaction`, with `with`."""
        timeout_s = seconds(options, "timeout_ms", awaited.DELIVERY_TIMEOUT_MS)
        from mirrorlog.client.sync.transaction import BlockingTransaction

        return BlockingTransaction(self._calls, self._awaited.transaction(**options), longer_s=timeout_s)

    @options_of(awaited.Client.lease)
    def lease(self, queue: str, group: str = "", **options: Any) -> list[BlockingLeased]:
        """Records that are the caller's for a time; as `mirrorlog.client.Client.lease`."""
        wait_s = seconds(options, "wait_ms", 0)
        from mirrorlog.client.sync.leases import TOLD, BlockingLeased, BlockingLeasing

        found = self._calls.change(lambda: self._awaited.lease(queue, group, **options), what="lease", more_s=wait_s)
        leasing = BlockingLeasing(self._calls, self._awaited.leasing)
        return [
            BlockingLeased(leasing, each.lease_receipt, each.record, **{name: getattr(each, name) for name in TOLD})
            for each in found
        ]

    @options_of(awaited.Client.request)
    def request(self, queue: str, value: Any, **options: Any) -> ConsumedRecord:
        """Send a request and wait for its answer; as `mirrorlog.client.Client.request`."""
        more_s = seconds(options, "timeout_ms", awaited.DELIVERY_TIMEOUT_MS)
        return self._calls.change(lambda: self._awaited.request(queue, value, **options), what="request", more_s=more_s)

    @options_of(awaited.Client.settle_receipt)
    def settle_receipt(self, *lease: Any, **options: Any) -> bool:
        """Settle a leased record by its receipt; as `mirrorlog.client.Client.settle_receipt`."""
        return self._calls.change(lambda: self._awaited.settle_receipt(*lease, **options), what="settle_receipt")

    @options_of(awaited.Client.extend_receipt)
    def extend_receipt(self, *lease: Any, **options: Any) -> None:
        """Let a lease run on, by the receipt of any of its records; as `mirrorlog.client.Client.extend_receipt`."""
        self._calls.change(lambda: self._awaited.extend_receipt(*lease, **options), what="extend_receipt")

    # --- inside ---

    def _kind(self, kind: type[_T]) -> type[_T]:
        """The same with spans, where the client traces."""
        if self._awaited.traced is None:
            return kind
        from mirrorlog.client.sync import tracing

        traced: type[_T] = getattr(tracing, f"Traced{kind.__name__}")
        return traced

    def _end(self, error: BaseException | None) -> None:
        thread = self._calls.end()
        if thread is None:
            return
        failures: list[MirrorlogError] = []
        try:
            # Who was interrupted is not to wait for confirms: the client abandons its producers then.
            interrupted = error is not None and not isinstance(error, Exception)
            if not interrupted:
                flushed: list[BlockingSubscription | BlockingProducer] = [*self._subscriptions, *self._producers]
                for each in flushed:
                    _collect(failures, each.close)
                _collect(failures, lambda: thread.run(self._awaited.background.ended, timeout_s=None, what="close"))
            kind = type(error) if error is not None else None
            _collect(
                failures, lambda: self._calls.call(lambda: self._awaited.__aexit__(kind, error, None), what="close")
            )
        finally:
            thread.close()
        if failures:
            raise failures[0]


def _collect(failures: list[MirrorlogError], act: Callable[[], object]) -> None:
    try:
        act()
    except MirrorlogError as error:
        failures.append(error)
