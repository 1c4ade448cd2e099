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
ConnectionLost: make clients after a fork. What is let go without `close` says so with a ResourceWarning; what it was
given is sent all the same, and a client that is let go ends its thread behind that. A program that ends without `close`
leaves what is not confirmed to its luck.

The loop runs in a thread of this process. So a program that computes in Python all the time takes turns with it, five
milliseconds at a time (`sys.setswitchinterval`).
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar
from weakref import WeakSet

from mirrorlog.attempts import outcome_of
from mirrorlog.client import client as awaited
from mirrorlog.client.connection.let_go import warn_unclosed
from mirrorlog.client.consumer.tier import TierChoice
from mirrorlog.client.sync.admin import Admin
from mirrorlog.client.sync.caller import options_of
from mirrorlog.client.sync.consumer import Consumer
from mirrorlog.client.sync.leases import Leased
from mirrorlog.client.sync.loop_thread import LoopThread
from mirrorlog.client.sync.producer import Producer
from mirrorlog.client.sync.publisher import Publisher
from mirrorlog.client.sync.subscription import Subscription
from mirrorlog.client.sync.transaction import Transaction
from mirrorlog.errors import ConnectionLost, MirrorlogError

# Behind the deadlines of the calls themselves: they say more about what is wrong.
_MARGIN_S: Final = 5.0

_T = TypeVar("_T")
_P = ParamSpec("_P")


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
        self._awaited.kept = True
        # A call may ask one node after the other, and find more nodes than were named.
        tries = 2 + 2 * len(self._awaited.servers)
        self._patience_s = tries * (connect_timeout_ms + request_timeout_ms) / 1000 + _MARGIN_S
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._closed = False
        self._producers: WeakSet[Producer] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()

    # --- life ---

    def connect(self) -> Self:
        """Reach one of the servers. Raises ConnectionLost naming what each said."""
        self.call(self._awaited.connect, what="connect")
        return self

    def close(self) -> None:
        """Close producers that are still open (they flush first), wait for what goes on for those that were let go,
        then close all connections. Idempotent.

        Raises the first error that a producer's flush raises, once all are closed.
        """
        self._end(None)

    def __del__(self) -> None:
        """Nobody has it any more, nor anything that it made: it is closed, as of `close`, without waiting."""
        thread: LoopThread | None = self.__dict__.get("_thread")  # unless options were refused
        if thread is None or self._closed or thread.elsewhere:
            return
        thread.end_behind(self._awaited.close)
        warn_unclosed(self, f"a client of {', '.join(self._awaited.servers)}")

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

    @options_of(awaited.Client.producer)
    def producer(self, queue: str, **options: Any) -> Producer:
        """A producer for `queue`; use it with `with`.

        Options as of `mirrorlog.client.Client.producer`.
        """
        producer = Producer(self, queue, options)
        self._producers.add(producer)
        return producer

    def publisher(self, exchange: str, **options: Any) -> Publisher:
        """A publisher to `exchange`; use it with `with`. Options as of `mirrorlog.client.Client.publisher`."""
        return Publisher(self, lambda: self._awaited.publisher(exchange, **options), options)

    @options_of(awaited.Client.consumer)
    def consumer(self, queue: str, **options: Any) -> Consumer:
        """A reader of `queue`; use it with `with`. Options as of `mirrorlog.client.Client.consumer`."""
        return Consumer(self, queue, options)

    @options_of(awaited.Client.subscribe)
    def subscribe(self, queue: str, group: str = "", **options: Any) -> Subscription:
        """Records of `queue` that are pushed here, each to be settled; use it with `with`.

        Options as of `mirrorlog.client.Client.subscribe`.
        """
        subscription = Subscription(self, queue, group, options)
        self._subscriptions.add(subscription)
        return subscription

    @options_of(awaited.Client.transaction)
    def transaction(self, **options: Any) -> Transaction:
        """Records and acknowledgements that count together; as `mirrorlog.client.Client.transaction`, with `with`."""
        timeout_s = options.get("timeout_ms", awaited.DELIVERY_TIMEOUT_MS) / 1000
        return Transaction(self, self._awaited.transaction(**options), timeout_s=timeout_s)

    @options_of(awaited.Client.lease)
    def lease(self, queue: str, group: str = "", **options: Any) -> list[Leased]:
        """Records that are the caller's for a time; as `mirrorlog.client.Client.lease`."""
        wait_s = options.get("wait_ms", 0) / 1000
        found = self.change(lambda: self._awaited.lease(queue, group, **options), what="lease", more_s=wait_s)
        return [Leased(self, each) for each in found]

    @options_of(awaited.Client.settle_receipt)
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
            interrupted = error is not None and not isinstance(error, Exception)
            flushed: list[Subscription | Producer] = [] if interrupted else [*self._subscriptions, *self._producers]
            for each in flushed:
                _collect(failures, each.close)
            if not interrupted:
                _collect(failures, lambda: thread.run(self._awaited.let_go.ended, timeout_s=None, what="close"))
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
