"""The client of a cluster: makes producers, consumers, publishers and subscriptions, which share its connections.

async with Client("127.0.0.1:7401") as client:
    await client.admin.declare("flights")
    async with client.producer("flights", confirm="all") as producer:
        receipt = await producer.send(b"value", key=b"key")
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack
from weakref import WeakSet

from mirrorlog.client.arguments import check_known, checked
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.unclosed import on_loop, warn_unclosed
from mirrorlog.client.consumer.tier import TierChoice, TierOptions
from mirrorlog.client.events import OnEvent
from mirrorlog.client.options import (
    ConsumerOptions,
    ProducerOptions,
    check_timeout,
    parse_compression,
    parse_durability,
    parse_level,
)
from mirrorlog.client.producer.join_pool import JoinPool
from mirrorlog.client.properties import Headers, RecordProperties, SendOptions
from mirrorlog.client.serializers import Deserializer, Serializer
from mirrorlog.client.subscription.lease_receipts import LeaseReceipt
from mirrorlog.errors import MirrorlogError, MissingDependency
from mirrorlog.wire.messages.groups import Subscribe
from mirrorlog.wire.messages.queues import Position
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

if TYPE_CHECKING:  # each is loaded when one is made: no program needs all of them
    from mirrorlog.client.admin import Admin
    from mirrorlog.client.consumer.consumer import Consumer
    from mirrorlog.client.consumer.records import ConsumedRecord
    from mirrorlog.client.producer.producer import Producer
    from mirrorlog.client.publisher.publisher import Publisher
    from mirrorlog.client.requests import ClientRequests
    from mirrorlog.client.subscription.leases import ClientLeases, Leased
    from mirrorlog.client.subscription.subscription import Subscription
    from mirrorlog.client.transaction.commit import Transactor
    from mirrorlog.client.transaction.transaction import Transaction

_T = TypeVar("_T")

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
DELIVERY_TIMEOUT_MS: Final = 30_000
_USERS: Final = {"servers", "closed", "connected", "connect_timeout_ms", "request_timeout_ms"}
_INTERNAL: Final = frozenset(
    {*dir(ClusterClient), "background", "events", "kept", "leasing", "traced"} - {*_USERS, *dir(object)}
)


@checked(made=True, internal=_INTERNAL)
class Client(ClusterClient):
    """A client of one cluster. `servers`: `host:port` of one or more nodes, each an argument, tried in order: the next
    one when the one before has failed, or has said nothing for a quarter of a second.

    `connect_timeout_ms`: for a connection, greeting included; `request_timeout_ms`: for one answer.
    `allow_stale_reads`: nodes that are cut off from the others answer with what they know to be confirmed; by default
    they refuse, for more may be. `tls`: for nodes whose client port speaks TLS, as of `ssl.create_default_context`.

    `tiers`: consumers read what a queue's log has no more from the Delta table that a tiered landing has named, if it
    is at one of these places: `["s3://bucket/lake"]`; a mapping says where they are from here: `{"s3://lake/":
    "/mnt/lake/"}`. True: wherever it is; False: they read the log alone. By default wherever it is for a client without
    a login, and nowhere for one with: then records that are there alone are TierNotAllowed. `tier_options`: of their
    storage, as the package deltalake takes them.

    `user`, `password`: for a cluster that has users; sent over TLS, or to this machine. `on_event`: called with what
    happens between calls (`mirrorlog.client.events`), on the client's loop. `tracing`: spans of OpenTelemetry
    (`mirrorlog.client.tracing`, needs `mirrorlog[otel]`). Raises BadRequest, MissingDependency.

    One that is let go without `close`, with all that it made, closes its connections, with a ResourceWarning.
    """

    kept = False
    """By another object, which says for both when they were not closed."""
    _closed = True  # for one whose options were refused

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
        on_event: OnEvent | None = None,
        tracing: bool = False,
    ) -> None:
        super().__init__(
            *servers,
            cluster_id=cluster_id,
            role=role,
            connect_timeout_ms=connect_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            stale_reads=allow_stale_reads,
            tls=tls,
            login=None if user is None else (user, password),
            on_event=on_event,
        )
        self.traced = _tracing() if tracing else None
        """The kinds of what it makes that have spans; None without."""
        self._tiers = TierOptions.of(tiers, tier_options, has_login=user is not None)
        self._producers: WeakSet[Producer] = WeakSet()
        self._publishers: WeakSet[Publisher] = WeakSet()
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._leasing: ClientLeases | None = None
        self._transactor: Transactor | None = None
        self._requests: ClientRequests | None = None
        self._pool = JoinPool()

    # --- life ---

    async def connect(self) -> Self:
        """Reach one of the servers, also again after `close`. Raises ConnectionLost naming what each said."""
        self._closed = False
        await self.any_connection()
        return self

    async def close(self) -> None:
        """Close producers and subscriptions that are still open (they flush first), then consumers and all
        connections. What goes on for producers that were let go is waited for. Idempotent.

        Afterwards every call raises Closed, until `connect`. Raises the first error that a producer's or
        subscription's flush raises, once all are closed.
        """
        failures: list[MirrorlogError] = []
        try:
            for flush in (*(each.close for each in self._flushed_at_close()), self.background.ended):
                try:
                    await flush()
                except MirrorlogError as error:
                    failures.append(error)
        finally:
            self._closed = True
            if self._leasing is not None:
                await self._leasing.close()
            for consumer in list(self._consumers):
                await consumer.abandon()
            await self._disconnect()
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, Exception):
            # Cancelled or interrupted: whoever did that is not to wait for confirms.
            for each in self._flushed_at_close():
                each.abandon()
            self.background.cancel()
        try:
            await self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    def __del__(self) -> None:
        """Nobody has it any more, nor anything that it made: nobody uses its connections."""
        if self._closed or not self._connections:
            return
        for connection in self._connections.values():
            on_loop(connection.loop, connection.close)
        if not self.kept:
            warn_unclosed(self, f"a client of {', '.join(self.servers)}")

    def __repr__(self) -> str:
        return f"Client({', '.join(map(repr, self.servers))}{', closed' if self._closed else ''})"

    # --- what it is for ---

    @property
    def admin(self) -> Admin:
        """Queues, offsets, positions, status."""
        from mirrorlog.client.admin import Admin

        return Admin(self)

    def producer(
        self,
        queue: str,
        *,
        confirm: str | int | None = None,
        durability: str = "memory",
        batch_bytes: int = 256 * _KIB,
        linger_ms: int = 5,
        window_bytes: int = 32 * _MIB,
        max_in_flight: int = 16,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        idempotent: bool = True,
        compression: str = "none",
        serializer: Serializer | None = None,
        retry_full: bool = True,
    ) -> Producer:
        """A producer for `queue`; use it with `async with`.

        `confirm`: none, master, one, majority, all, or a number of copies; None: what policies say of the queue
        (`confirm`) whenever it is found, else all. `durability`: memory or disk, of each copy.

        `batch_bytes`: a batch that would become larger is closed first; a larger record goes alone, and the last batch
        of `send_many` may be an eighth larger instead of a small one behind it. `linger_ms`: how long a batch stays
        open for more records while others are on their way; while none is, it leaves when the loop turns.
        `max_in_flight`: batches sent and not answered, 1 to 32. `window_bytes`: records handed over that have not
        ended, uncompressed, and what each batch takes besides; beyond it `send` waits and `send_nowait` raises
        Overloaded.

        `delivery_timeout_ms`: by then a record that was handed over has ended: confirmed, refused (nothing was
        stored) or OutcomeUnknown (stored perhaps). Until then the producer tries again by itself; without `retry_full`
        not what a full queue refuses: QueueFull at once. It also bounds how long `send` waits for room.

        `idempotent`: batches are numbered, so one that is sent again lands once, in order. Without it nothing is sent
        again that may have been stored, and what was refused lands behind what was in flight with it.

        `compression`: none, lz4 or zstd, of each batch as a whole; one that gets no smaller leaves as it is.
        `serializer`: what makes bytes or text of each value, as `json.dumps`; `send_many` takes a list of values then.

        Raises BadRequest naming the option that is wrong.
        """
        options = ProducerOptions(
            level=None if confirm is None else parse_level(confirm), durability=parse_durability(durability),
            batch_bytes=batch_bytes, linger_ms=linger_ms, window_bytes=window_bytes, max_in_flight=max_in_flight,
            delivery_timeout_ms=delivery_timeout_ms, idempotent=idempotent, codec=parse_compression(compression),
            serializer=serializer, retry_full=retry_full,
        )  # fmt: skip
        from mirrorlog.client.producer.producer import Producer

        producer = self._kind(Producer)(self, queue, options, pool=self._pool)
        self._producers.add(producer)
        return producer

    def publisher(
        self,
        exchange: str,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        mandatory: bool = False,
        serializer: Serializer | None = None,
        **options: Any,
    ) -> Publisher:
        """A publisher to `exchange`, empty for the default one; use it with `async with`. It routes here, and confirms
        a message when every queue that it leads to has it.

        `mandatory`: a message that leads to no queue raises Unroutable; else it is dropped and counted. `options`: as
        of `producer`; each queue has one of its own. Raises BadRequest naming the option that is wrong.
        """
        check_known(options, "Client.publisher", self.producer)
        from mirrorlog.client.publisher.publisher import Publisher

        publisher = self._kind(Publisher)(
            self, exchange, virtual_host=virtual_host, mandatory=mandatory, serializer=serializer,
            delivery_timeout_ms=options.get("delivery_timeout_ms", DELIVERY_TIMEOUT_MS),
            make_producer=partial(self.producer, **options),
        )  # fmt: skip
        self.producer("", **options).abandon()  # a wrong option is told now, and not with the first message
        self._publishers.add(publisher)
        return publisher

    def transaction(
        self,
        *,
        confirm: str | int = "all",
        durability: str = "memory",
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
        serializer: Serializer | None = None,
    ) -> Transaction:
        """Records for several queues, and acknowledgements, that count together or not at all; use it with `async
        with`: it commits at the end, and rolls back on an exception. All queues must be in one log: `x-log-group`.

        `confirm`, `durability`: as of `producer`; no policy says anything of them here. `timeout_ms`: by then a commit
        has ended. `serializer`: as of `producer`, of each value. Raises BadRequest naming the option that is wrong.
        """
        from mirrorlog.client.transaction.commit import Transactor
        from mirrorlog.client.transaction.transaction import Transaction

        check_timeout("timeout_ms", timeout_ms)
        self._transactor = self._transactor or Transactor(self)
        return Transaction(
            self._transactor, level=parse_level(confirm), durability=parse_durability(durability),
            timeout_ms=timeout_ms, serializer=serializer,
        )  # fmt: skip

    def consumer(
        self,
        queue: str,
        *,
        start: str | int | Position | datetime | None = None,
        until: int | str | None = None,
        group: str | None = None,
        read_from: str = "master",
        max_bytes: int = 4 * _MIB,
        max_wait_ms: int = 500,
        prefetch_bytes: int = 4 * _MIB,
        turn: int = 0,
        tiers: TierChoice = None,
        outage_timeout_ms: int | None = None,
        deserializer: Deserializer | None = None,
    ) -> Consumer:
        """A reader of `queue`; use it with `async with`. Only confirmed records are seen.

        `start`: earliest, latest, committed (the default with a group; earliest where it has committed nothing), a
        queue offset, a Position, or a datetime (append time). `until`: a queue offset to stop before, or "confirmed",
        what is confirmed at the start; by default it waits for new records for ever. `read_from`: master, mirror,
        nearest (a copy on this host, else any mirror, else the master) or a node id. `turn`: readers that each give
        another number are spread over the mirrors. `max_bytes`: of one fetch, nodes may answer with less;
        `prefetch_bytes`: no further fetch leaves while so much waits to be read; `max_wait_ms`: how long a node holds
        a fetch that has nothing yet. `tiers`: as of the client, whose it is by default. `outage_timeout_ms`: an
        iteration goes on through an outage for so long, by default of any length; `read` says what keeps it.
        `deserializer`: makes `record.data` of a value when it is asked for, as `json.loads`.
        """
        options = ConsumerOptions(
            start=start, until=until, group=group, read_from=read_from, turn=turn, max_bytes=max_bytes,
            max_wait_ms=max_wait_ms, prefetch_bytes=prefetch_bytes, outage_timeout_ms=outage_timeout_ms,
            deserializer=deserializer,
        )  # fmt: skip
        from mirrorlog.client.consumer.consumer import Consumer

        consumer = self._kind(Consumer)(
            self, queue, options, self._tiers if tiers is None else TierOptions.of(tiers, self._tiers.storage)
        )
        self._consumers.add(consumer)
        return consumer

    def subscribe(
        self,
        queue: str,
        group: str = "",
        *,
        prefetch: int = 1_000,
        prefetch_bytes: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        name: str | None = None,
        create: bool = True,
        ordered_by: str | None = None,
        cancel_on_failover: bool = False,
        read_from: str = "master",
        confirm: str | int = "all",
        settle_timeout_ms: int = 30_000,
        outage_timeout_ms: int | None = None,
        retry_delays_ms: Sequence[int] = (),
        deserializer: Deserializer | None = None,
    ) -> Subscription:
        """Records of `queue` that are pushed here, each to one of the group's subscribers, until it is settled; use it
        with `async with`. The queue's own group has the empty name.

        `prefetch`, `prefetch_bytes` (16 MiB): so much at most is with this subscription and not settled; 0: the node's
        limit. `auto_ack`: settled as it is sent: what is on its way when something dies is lost. There the prefetch
        (256 KiB) is what is sent and not read here yet; at times it is up to twice as much, or one batch. `exclusive`:
        nobody else may subscribe to the group meanwhile. `priority`: higher ones are served first. `name`: for people.
        `create`: make a group that is not there; else that is NoSuchGroup. The queue's own is made always.
        `ordered_by`: "key": of each key one record at a time is with any of the group's consumers, in the order of the
        queue; who wants that and who does not are never consumers of one group together: ExclusiveTaken.

        `cancel_on_failover`: reading raises SubscriptionCancelled when the queue has another master, or the same one in
        a later epoch; by default the subscription goes on there, as both do after a connection that was lost.
        `read_from`: where bytes come from that did not come with the grants, as of `consumer`. `confirm`: what `await
        ack()` waits for, as of `producer`; `settle_timeout_ms`: by then a settlement has ended, with OutcomeUnknown if
        it may count or not. `outage_timeout_ms`, `deserializer`: as of `consumer`.
        `retry_delays_ms`: what `nack` without a delay waits for, by how often the record came back before: [1_000,
        10_000] for 1 s, then 10 s each time.

        Raises BadRequest naming the option that is wrong.
        """
        if prefetch_bytes is None:
            prefetch_bytes = 256 * _KIB if auto_ack else 16 * _MIB  # with auto-ack it is lost when the program dies
        message = Subscribe(
            queue=queue, group=group, prefetch_records=prefetch, prefetch_bytes=prefetch_bytes, auto_ack=auto_ack,
            exclusive=exclusive, priority=priority, name=name or "", create=create, ordered_by=ordered_by or "",
        )  # fmt: skip
        from mirrorlog.client.subscription.subscription import Subscription

        subscription = self._kind(Subscription)(
            self, message, make_consumer=self.consumer, reply=self._reply, level=parse_level(confirm),
            settle_timeout_ms=settle_timeout_ms, cancel_on_failover=cancel_on_failover, read_from=read_from,
            outage_timeout_ms=outage_timeout_ms, retry_delays_ms=retry_delays_ms, deserializer=deserializer,
        )  # fmt: skip
        self._subscriptions.add(subscription)
        return subscription

    async def lease(
        self,
        queue: str,
        group: str = "",
        *,
        max_records: int = 10,
        lease_ms: int = 30_000,
        wait_ms: int = 0,
        holder: str = "",
        ordered_by: str | None = None,
        read_from: str = "master",
        apart: bool = False,
    ) -> list[Leased]:
        """Up to `max_records` records that are the caller's for `lease_ms`; none after `wait_ms` if there are none.

        `holder`: for people; `ordered_by`: as of `subscribe`; `apart`: each is a lease of its own, 25 at most. Raises
        NoSuchQueue, Refused, ConnectionLost, and what a consumer raises about bytes; or OutcomeUnknown: some may be
        leased that nobody was told of, and come again behind the end of their lease.
        """
        return await self.leasing.lease(
            queue, group, max_records=max_records, lease_ms=lease_ms, wait_ms=wait_ms, holder=holder,
            ordered_by=ordered_by or "", read_from=read_from, apart=apart,
        )  # fmt: skip

    async def request(
        self,
        queue: str,
        value: bytes | str | None,
        *,
        exchange: str = "",
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
        headers: Headers | None = None,
        **asked: Unpack[SendOptions],
    ) -> ConsumedRecord:
        """Send a request to `queue`, or with that routing key to `exchange`, and await its answer: what its subscriber
        gives to `reply`. Options as of `Producer.send`. Raises Unroutable when it leads to no queue; RequestTimeout, or
        OutcomeUnknown when the reply queue went with its node: it may have been handled."""
        return await self._asking().request(
            queue, value, exchange=exchange, timeout_ms=timeout_ms, headers=headers, options=asked
        )

    @property
    def leasing(self) -> ClientLeases:
        """For what `lease` gives out."""
        from mirrorlog.client.subscription.leases import ClientLeases

        self._leasing = self._leasing or ClientLeases(self, self.consumer)
        return self._leasing

    async def settle_receipt(
        self,
        queue: str,
        receipt: str,
        *,
        group: str = "",
        how: str = "ack",
        delay_ms: int = 0,
        confirm: str | int = "all",
    ) -> bool:
        """Settle a leased record by the text of its receipt; whether that changed anything.

        `how`: ack, return (it comes again, counted), release (uncounted) or reject; `delay_ms`: before it may come
        again. The receipt of a lease that is over still acks as long as nobody else has got the record (ReceiptStale),
        and returns nothing; what somebody has settled as something else stays so (SettledOtherwise). Raises BadRequest
        for what is no receipt of that queue and group; NoSuchQueue, Refused, or ConnectionLost when no node was
        reached: nothing was settled; or OutcomeUnknown: to settle it once more in the same way counts once.
        """
        level = parse_level(confirm)
        parsed = LeaseReceipt.parse(receipt, queue=queue, group=group)
        return await self.leasing.settle_as(parsed, how, delay_ms=delay_ms, level=level)

    async def extend_receipt(self, queue: str, receipt: str, lease_ms: int, *, group: str = "") -> None:
        """Let a lease run for `lease_ms` from now on, with all records that the same `lease()` gave out, by the text of
        the receipt of any of them. Raises NotGranted when it is over, and else as `settle_receipt`."""
        await self.leasing.extend_lease(LeaseReceipt.parse(receipt, queue=queue, group=group), lease_ms)

    # --- inside ---

    def _asking(self) -> ClientRequests:
        from mirrorlog.client.requests import ClientRequests

        if self._requests is None:
            self._requests = ClientRequests(self, make_publisher=self.publisher, make_subscription=self.subscribe)
        return self._requests

    async def _reply(self, to: RecordProperties, value: bytes | str | None, **asked: Unpack[SendOptions]) -> None:
        await self._asking().reply(to, value, **asked)

    def _kind(self, kind: type[_T]) -> type[_T]:
        """The same with spans, where this client traces."""
        return kind if self.traced is None else getattr(self.traced, f"Traced{kind.__name__}")

    def _flushed_at_close(self) -> list[Subscription | Publisher | Producer]:
        return [*self._subscriptions, *self._publishers, *self._producers]


def _tracing() -> Any:
    try:
        from mirrorlog.client import tracing
    except ModuleNotFoundError as error:
        raise MissingDependency(f"tracing needs {error.name}: pip install 'mirrorlog[otel]'") from None
    return tracing
