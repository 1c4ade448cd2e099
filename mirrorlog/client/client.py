"""Client: the way in. Knows some servers, finds the rest by metadata, keeps one connection per node.

async with Client("127.0.0.1:7401") as client:
    await client.admin.declare("flights")
    async with client.producer("flights", confirm="all") as producer:
        receipt = await producer.send(b"value", key=b"key")
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakSet

from msgspec.structs import replace as changed

from mirrorlog.client.admin import Admin
from mirrorlog.client.asking import HEAD_START_S, ask_nodes
from mirrorlog.client.connection import Connection
from mirrorlog.client.consumer import Consumer
from mirrorlog.client.finder import Finder
from mirrorlog.client.joining import JoinPool
from mirrorlog.client.lease_receipts import LeaseReceipt
from mirrorlog.client.leases import Leased, Leasing
from mirrorlog.client.options import (
    check_timeout,
    parse_compression,
    parse_durability,
    parse_level,
    parse_server,
)
from mirrorlog.client.producer import Producer
from mirrorlog.client.publisher import Publisher
from mirrorlog.client.sightings import Sighting
from mirrorlog.client.subscription import Subscription
from mirrorlog.client.tier import TierChoice, TierOptions
from mirrorlog.client.transaction import Transaction
from mirrorlog.client.transactor import Transactor
from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NotMaster
from mirrorlog.wire.frames import How
from mirrorlog.wire.messages import GetMetadata, Metadata, NodeInfo, Position, QueueInfo, Subscribe
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

_KIB: Final = 1024
_MIB: Final = 1024 * 1024
DELIVERY_TIMEOUT_MS: Final = 30_000
# Who waits for a connection looks around after so long: its node may hang and have been replaced. The opening goes on.
_REACH_S: Final = 1.0
# What may be done with a receipt, by its name.
_HOWS: Final = {"ack": How.ACK, "return": How.RETURN, "release": How.RELEASE, "reject": How.DEAD}

_T = TypeVar("_T")


class Client:
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

    `user`, `password`: for a cluster that has users; sent over TLS, or to this machine. Raises BadRequest.
    """

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
        check_timeout("connect_timeout_ms", connect_timeout_ms)
        check_timeout("request_timeout_ms", request_timeout_ms)
        self.servers = [parse_server(server) for server in servers] or [f"127.0.0.1:{CLIENT_PORT}"]
        self.request_timeout_ms = request_timeout_ms
        self._cluster_id = cluster_id
        self._role = role
        self._stale_reads = allow_stale_reads
        self._connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._client_id = secrets.token_hex(16)
        self._login = None if user is None else (user, password)
        self._tiers = TierOptions.of(tiers, tier_options, has_login=user is not None)
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._finder = Finder(self)
        self._producers: WeakSet[Producer] = WeakSet()
        self._publishers: WeakSet[Publisher] = WeakSet()
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._leasing = Leasing(self)
        self._transactor = Transactor(self)
        self._pool = JoinPool()
        self._closed = False

    # --- life ---

    async def connect(self) -> Self:
        """Reach one of the servers, also again after `close`. Raises ConnectionLost naming what each said."""
        self._closed = False
        await self.any_connection()
        return self

    async def close(self) -> None:
        """Close producers and subscriptions that are still open (they flush first), then consumers and all
        connections. Idempotent.

        Afterwards every call raises ConnectionLost, until `connect`. Raises the first error that a producer's or
        subscription's flush raises, once all are closed.
        """
        failures: list[MirrorlogError] = []
        try:
            for each in self._flushed_at_close():
                try:
                    await each.close()
                except MirrorlogError as error:
                    failures.append(error)
        finally:
            self._closed = True
            await self._leasing.close()
            for consumer in list(self._consumers):
                await consumer.abandon()
            await self._disconnect()
        if failures:
            raise failures[0]

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raises ConnectionLost after `close`."""
        if self._closed:
            raise ConnectionLost("the client is closed")

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Exception):
            # Cancelled or interrupted: whoever did that is not to wait for confirms.
            for each in self._flushed_at_close():
                each.abandon()
        try:
            await self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    # --- what it is for ---

    @property
    def admin(self) -> Admin:
        """Queues, offsets, positions, status."""
        return Admin(self)

    def producer(
        self,
        queue: str,
        *,
        confirm: str | int = "all",
        durability: str = "memory",
        batch_bytes: int = 256 * _KIB,
        linger_ms: int = 5,
        window_bytes: int = 32 * _MIB,
        max_in_flight: int = 16,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        idempotent: bool = True,
        compression: str = "none",
    ) -> Producer:
        """A producer for `queue`; use it with `async with`.

        `confirm`: none, master, one, majority, all, or a number of copies. `durability`: memory or disk, of each copy.

        `batch_bytes`: a batch that would become larger is closed first; a larger record goes alone, and the last batch
        of `send_many` may be an eighth larger instead of a small one behind it. `linger_ms`: how long a batch stays
        open for more records while others are on their way; while none is, it leaves when the loop turns.
        `max_in_flight`: batches sent and not answered, 1 to 32. `window_bytes`: records handed over that have not
        ended, uncompressed, and what each batch takes besides; beyond it `send` waits and `send_nowait` raises
        Overloaded.

        `delivery_timeout_ms`: by then a record that was handed over has ended: confirmed, refused (nothing was
        stored) or OutcomeUnknown (stored perhaps). Until then the producer tries again by itself. It also bounds how
        long `send` waits for room, before the record is handed over.

        `idempotent`: batches are numbered, so one that is sent again lands once, in order. Without it nothing is sent
        again that may have been stored, and order is not kept on refusals: a batch that was refused lands behind those
        that were in flight with it.

        `compression`: none, lz4 or zstd, of each batch as a whole; one that gets no smaller leaves as it is.

        Raises BadRequest naming the option that is wrong.
        """
        producer = Producer(
            self,
            queue,
            level=parse_level(confirm),
            durability=parse_durability(durability),
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            window_bytes=window_bytes,
            max_in_flight=max_in_flight,
            delivery_timeout_ms=delivery_timeout_ms,
            idempotent=idempotent,
            codec=parse_compression(compression),
            pool=self._pool,
        )
        self._producers.add(producer)
        return producer

    def publisher(
        self,
        exchange: str,
        *,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        mandatory: bool = False,
        **options: Any,
    ) -> Publisher:
        """A publisher to `exchange`, empty for the default one; use it with `async with`. It routes here, and confirms
        a message when every queue that it leads to has it.

        `mandatory`: a message that leads to no queue raises Unroutable; else it is dropped and counted. `options`: as
        of `producer`; each queue has one of its own. Raises BadRequest naming the option that is wrong.
        """
        publisher = Publisher(
            self,
            exchange,
            virtual_host=virtual_host,
            mandatory=mandatory,
            delivery_timeout_ms=options.get("delivery_timeout_ms", DELIVERY_TIMEOUT_MS),
            make_producer=partial(self.producer, **options),
        )
        self.producer("", **options).abandon()  # a wrong option is told now, and not with the first message
        self._publishers.add(publisher)
        return publisher

    def transaction(
        self, *, confirm: str | int = "all", durability: str = "memory", timeout_ms: int = DELIVERY_TIMEOUT_MS
    ) -> Transaction:
        """Records for several queues, and acknowledgements, that count together or not at all; use it with `async
        with`: it commits at the end, and rolls back on an exception. All queues must be in one log: `x-log-group`.

        `confirm`, `durability`: as of `producer`. `timeout_ms`: by then a commit has ended. Raises BadRequest naming
        the option that is wrong.
        """
        check_timeout("timeout_ms", timeout_ms)
        return Transaction(
            self._transactor,
            level=parse_level(confirm),
            durability=parse_durability(durability),
            timeout_ms=timeout_ms,
        )

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
    ) -> Consumer:
        """A reader of `queue`; use it with `async with`. Only confirmed records are seen.

        `start`: earliest, latest, committed (the default with a group; earliest where it has committed nothing), a
        queue offset, a Position, or a datetime (append time). `until`: a queue offset to stop before, or "confirmed",
        what is confirmed at the start; by default it waits for new records for ever. `read_from`: master, mirror,
        nearest (a copy on this host, else any mirror, else the master) or a node id. `turn`: readers that each give
        another number are spread over the mirrors. `max_bytes`: of one fetch, nodes may answer with less;
        `prefetch_bytes`: no further fetch leaves while so much waits to be read; `max_wait_ms`: how long a node holds
        a fetch that has nothing yet. `tiers`: as of the client, whose it is by default.
        """
        consumer = Consumer(
            self,
            queue,
            start=start,
            until=until,
            group=group,
            read_from=read_from,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            prefetch_bytes=prefetch_bytes,
            turn=turn,
            tiers=self._tiers if tiers is None else TierOptions.of(tiers, self._tiers.storage),
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
        cancel_on_failover: bool = False,
        read_from: str = "master",
        confirm: str | int = "all",
        settle_timeout_ms: int = 30_000,
    ) -> Subscription:
        """Records of `queue` that are pushed here, each to one of the group's subscribers, until it is settled; use it
        with `async with`. The queue's own group has the empty name.

        `prefetch`, `prefetch_bytes` (16 MiB): so much at most is with this subscription and not settled; 0: the node's
        limit. `auto_ack`: settled as it is sent: what is on its way when something dies is lost. There the prefetch
        (256 KiB) is what is sent and not read here yet; at times it is up to twice as much, or one batch. `exclusive`:
        nobody else may subscribe to the group meanwhile. `priority`: higher ones are served first. `name`: for people.
        `create`: make a group that is not there; else that is NoSuchGroup. The queue's own is made always.

        `cancel_on_failover`: reading raises SubscriptionCancelled when the queue has another master, or the same one in
        a later epoch; by default the subscription goes on there, as both do after a connection that was lost.
        `read_from`: where bytes come from that did not come with the grants, as of `consumer`. `confirm`: what `await
        ack()` waits for, as of `producer`; `settle_timeout_ms`: by then a settlement has ended, with OutcomeUnknown if
        it may count or not.

        Raises BadRequest naming the option that is wrong.
        """
        message = Subscribe(
            queue=queue,
            group=group,
            prefetch_records=prefetch,
            prefetch_bytes=_prefetch_bytes(auto_ack) if prefetch_bytes is None else prefetch_bytes,
            auto_ack=auto_ack,
            exclusive=exclusive,
            priority=priority,
            name=name or "",
            create=create,
        )
        subscription = Subscription(
            self,
            message,
            level=parse_level(confirm),
            settle_timeout_ms=settle_timeout_ms,
            cancel_on_failover=cancel_on_failover,
            read_from=read_from,
        )
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
        read_from: str = "master",
    ) -> list[Leased]:
        """Up to `max_records` records that are the caller's for `lease_ms`; none after `wait_ms` if there are none.

        `holder`: for people. Raises NoSuchQueue, Refused, ConnectionLost, and what a consumer raises about bytes; or
        OutcomeUnknown: records may be leased that nobody was told of, as behind any answer that is lost, and these come
        again behind the end of their lease.
        """
        return await self._leasing.lease(
            queue,
            group,
            max_records=max_records,
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            holder=holder,
            read_from=read_from,
        )

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
        reached: nothing was settled; or OutcomeUnknown: it may count or not, and to settle it once more in the same way
        counts once.
        """
        if how not in _HOWS:
            raise BadRequest(f"how {how!r:.32} is none of {', '.join(_HOWS)}")
        parsed = LeaseReceipt.parse(receipt, queue=queue, group=group)
        changed = await self._leasing.settle([parsed], _HOWS[how], delay_ms=delay_ms, level=parse_level(confirm))
        return changed > 0

    async def extend_receipt(self, queue: str, receipt: str, lease_ms: int, *, group: str = "") -> None:
        """Let a lease run for `lease_ms` from now on, with all records that the same `lease()` gave out, by the text of
        the receipt of any of them. Raises NotGranted when it is over, and else as `settle_receipt`."""
        await self._leasing.extend([LeaseReceipt.parse(receipt, queue=queue, group=group)], lease_ms)

    # --- connections ---

    async def connection_to(self, address: str) -> Connection:
        """The connection to a node, made when there is none. Raises ConnectionLost."""
        self.check_open()
        connection = self._connections.get(address)
        if connection is not None and connection.usable:
            return connection
        task = self._opening.get(address)
        if task is None:
            task = asyncio.ensure_future(self._open(address))
            task.add_done_callback(_noted)
            self._opening[address] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not task.cancelled() or (here is not None and here.cancelling()):
                raise
            # It is the opening that was cancelled, by `close`, not who waits for it.
            raise ConnectionLost("the client is closed") from None

    async def any_connection(self) -> Connection:
        """A connection to some node. Raises ConnectionLost naming what each said."""
        self.check_open()
        for connection in self._connections.values():
            if connection.usable:
                return connection
        asks = [partial(self.connection_to, address) for address in self.addresses()]
        heard = await ask_nodes(asks, lambda _: 0.0, head_start_s=HEAD_START_S)
        if not heard.answers:
            raise heard.no_answer()
        return heard.answers[0]

    async def reach(self, address: str) -> Connection:
        """As `connection_to`, but raises ConnectionLost after a second, too, while the opening goes on: whoever comes
        again waits for the same one."""
        try:
            async with asyncio.timeout(_REACH_S):
                return await self.connection_to(address)
        except TimeoutError:
            raise ConnectionLost(f"no answer from {address} yet, it is still waited for") from None

    @property
    def connected(self) -> bool:
        """Whether there is a connection to any node."""
        return any(connection.usable for connection in self._connections.values())

    async def node_address(self, node_id: str) -> str:
        """The client address of a node. Raises BadRequest for an unknown one, NotMaster for "", which stands for a
        master that nobody knows."""
        if not node_id:
            raise NotMaster("no node is known to be the master at the moment; one is promoted if enough copies are up")
        if node_id not in self._nodes:
            await self.metadata([])
        if node_id not in self._nodes:
            known = ", ".join(self._nodes)
            raise BadRequest(f"no node {node_id!r} in this cluster; there are {known}")
        return self._nodes[node_id].client

    async def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes and queues, as the first node that answers knows them; a queue that it misses is asked of the others.

        A mirror may not have heard yet of a queue that was just declared. Raises ConnectionLost.
        """
        self.check_open()
        return await self._ended_by_close(self._finder.metadata(queues))

    async def find(self, queue: str) -> Sighting:
        """The queue, by the node that knows most of the cluster. Raises NoSuchQueue or ConnectionLost."""
        self.check_open()
        return await self._ended_by_close(self._finder.find(queue))

    async def queue_info(self, queue: str) -> QueueInfo:
        """By the node that knows most of the cluster. Raises NoSuchQueue or ConnectionLost."""
        return (await self.find(queue)).info

    async def master_of(self, queue: str) -> tuple[Connection, Sighting]:
        """The connection to the queue's master.

        Raises NoSuchQueue, ConnectionLost, or NotMaster while there is none.
        """
        found = await self.find(queue)
        return await self.reach_master(found), found

    async def reach_master(self, found: Sighting) -> Connection:
        """The connection to the master of a queue that was found. Raises ConnectionLost, NotMaster while there is none,
        or LogUnavailable when there will be none before somebody starts a node."""
        if found.outage is not None:
            raise type(found.outage)(found.outage.message, **found.outage.details)
        if not found.address:
            raise NotMaster(
                f"queue {found.queue!r} has no master at the moment, says {found.told_by}; one is promoted if enough "
                "copies are up"
            )
        return await self.reach(found.address)

    async def vouched(self, found: Sighting) -> Sighting:
        """The same, with the master's own word on what its cluster takes (`QueueInfo.attributes`) where another node
        denies it, or one that has not heard its cluster. Raises as `reach_master`, or what the master answers;
        NotMaster while it has not heard the cluster either."""
        if found.info.attributes or (found.by_master and found.heard):
            return found
        await self.reach_master(found)
        answer = await self.ask(found.address, [found.queue])
        if not answer.heard:
            raise NotMaster(f"{found.address} was started and has not heard its cluster yet; ask again")
        attributes = any(info.attributes for info in answer.queues if info.name == found.queue)
        return replace(found, info=changed(found.info, attributes=attributes))

    async def newer_master(self, than: Sighting) -> Sighting | None:
        """The queue's master, when a node knows of another one that was named after `than`. Raises ConnectionLost when
        the client is closed."""
        self.check_open()
        return await self._ended_by_close(self._finder.newer(than))

    async def has_moved(self, than: Sighting) -> bool:
        """Whether there is a `newer_master`."""
        return await self.newer_master(than) is not None

    # --- what the finder needs ---

    def addresses(self) -> list[str]:
        """Connected ones first, of those the ones that owe no answer, then those given, then those heard of."""
        usable = [connection for connection in self._connections.values() if connection.usable]
        usable.sort(key=lambda connection: connection.owes_answer)
        heard_of = [node.client for node in self._nodes.values()]
        return list(dict.fromkeys([*(each.address for each in usable), *self.servers, *heard_of]))

    async def ask(self, address: str, queues: list[str] | None) -> Metadata:
        """What one node says of nodes and queues. Raises ConnectionLost, RequestTimeout, or what it answers."""
        connection = await self.connection_to(address)
        return await connection.request(GetMetadata(queues=queues), Metadata, timeout_ms=self.request_timeout_ms)

    def learn(self, answer: Metadata) -> None:
        """Which nodes there are."""
        self._nodes = {node.node_id: node for node in answer.nodes}

    # --- inside ---

    def _flushed_at_close(self) -> list[Subscription | Publisher | Producer]:
        return [*self._subscriptions, *self._publishers, *self._producers]

    async def _ended_by_close(self, work: Coroutine[Any, Any, _T]) -> _T:
        """As `work`, which `close` may cancel: then it is the client that is closed, not who waits."""
        try:
            return await work
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._closed or (here is not None and here.cancelling()):
                raise
            raise ConnectionLost("the client is closed") from None

    async def _disconnect(self) -> None:
        await self._finder.close()
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        self._opening.clear()  # one that was ended before it ran could not do so itself
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # let the transports tell that they are closed

    async def _open(self, address: str) -> Connection:
        try:
            connection = await Connection.open(
                address,
                role=self._role,
                cluster_id=self._cluster_id,
                stale_reads=self._stale_reads,
                timeout_ms=self._connect_timeout_ms,
                tls=self._tls,
                login=self._login,
                client_id=self._client_id,
            )
            self._connections[address] = connection
            return connection
        finally:
            self._opening.pop(address, None)


def _noted(opening: asyncio.Task[Connection]) -> None:
    """Whoever waited for it may be gone; its failure is nobody's then."""
    if not opening.cancelled():
        opening.exception()


def _prefetch_bytes(auto_ack: bool) -> int:
    """By default. With auto-ack it is what is lost when the program dies."""
    return 256 * 1024 if auto_ack else 16 * _MIB
