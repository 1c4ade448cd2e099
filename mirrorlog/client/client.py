"""Client: the way in. Knows some servers, finds the rest by metadata, keeps one connection per node.

async with Client("127.0.0.1:7401") as client:
    await client.admin.declare("flights")
    async with client.producer("flights", confirm="all") as producer:
        receipt = await producer.send(b"value", key=b"key")
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

from mirrorlog.client.admin import Admin
from mirrorlog.client.connection import Connection
from mirrorlog.client.consumer import Consumer
from mirrorlog.client.joining import JoinPool
from mirrorlog.client.options import (
    check_timeout,
    parse_compression,
    parse_durability,
    parse_level,
    parse_server,
)
from mirrorlog.client.producer import Producer
from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NoSuchQueue, RequestTimeout
from mirrorlog.wire.messages import GetMetadata, Metadata, NodeInfo, Position, QueueInfo

_KIB: Final = 1024
_MIB: Final = 1024 * 1024


class Client:
    """A client of one cluster. `servers`: `host:port` of one or more nodes, each an argument, tried in order.

    `connect_timeout_ms`: for a connection, greeting included; `request_timeout_ms`: for one answer. Raises BadRequest.
    """

    def __init__(
        self,
        *servers: str,
        cluster_id: str | None = None,
        role: str = "client",
        connect_timeout_ms: int = 5_000,
        request_timeout_ms: int = 10_000,
    ) -> None:
        check_timeout("connect_timeout_ms", connect_timeout_ms)
        check_timeout("request_timeout_ms", request_timeout_ms)
        self.servers = [parse_server(server) for server in servers] or [f"127.0.0.1:{CLIENT_PORT}"]
        self.request_timeout_ms = request_timeout_ms
        self._cluster_id = cluster_id
        self._role = role
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._producers: WeakSet[Producer] = WeakSet()
        self._consumers: WeakSet[Consumer] = WeakSet()
        self._pool = JoinPool()
        self._closed = False

    # --- life ---

    async def connect(self) -> Self:
        """Reach one of the servers, also again after `close`. Raises ConnectionLost naming what each said."""
        self._closed = False
        await self.any_connection()
        return self

    async def close(self) -> None:
        """Close producers that are still open (they flush first), then consumers and all connections. Idempotent.

        Afterwards every call raises ConnectionLost, until `connect`. Raises the first error that a producer's flush
        raises, once all are closed.
        """
        failures: list[MirrorlogError] = []
        try:
            for producer in list(self._producers):
                try:
                    await producer.close()
                except MirrorlogError as error:
                    failures.append(error)
        finally:
            self._closed = True
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
            for producer in list(self._producers):
                producer.abandon()
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
        delivery_timeout_ms: int = 30_000,
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
    ) -> Consumer:
        """A reader of `queue`; use it with `async with`. Only confirmed records are seen.

        `start`: earliest, latest, committed (the default with a group; earliest where it has committed nothing), a
        queue offset, a Position, or a datetime (append time). `until`: a queue offset to stop before, or "confirmed",
        what is confirmed at the start; by default it waits for new records for ever. `read_from`: master, mirror or a
        node id. `max_bytes`: of one fetch, nodes may answer with less; `prefetch_bytes`: no further fetch leaves while
        so much waits to be read; `max_wait_ms`: how long a node holds a fetch that has nothing yet.
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
        )
        self._consumers.add(consumer)
        return consumer

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
        failures: list[MirrorlogError] = []
        for address in self.addresses():
            try:
                return await self.connection_to(address)
            except MirrorlogError as error:
                failures.append(error)
        raise _no_answer(failures)

    async def node_address(self, node_id: str) -> str:
        """The client address of a node. Raises BadRequest for an unknown one."""
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
        answer: Metadata | None = None
        failures: list[MirrorlogError] = []
        for address in self.addresses():
            try:
                connection = await self.connection_to(address)
                asked = GetMetadata(queues=queues)
                answer = await connection.request(asked, Metadata, timeout_ms=self.request_timeout_ms)
            except MirrorlogError as error:
                failures.append(error)
                continue
            self._nodes = {node.node_id: node for node in answer.nodes}
            if not answer.missing:
                return answer
        if answer is None:
            raise _no_answer(failures)
        return answer

    async def queue_info(self, queue: str) -> QueueInfo:
        """Raises NoSuchQueue or ConnectionLost."""
        answer = await self.metadata([queue])
        if answer.missing:
            raise NoSuchQueue(f"no queue {queue!r}; make it with: mqtool declare {queue}", queue=queue)
        return answer.queues[0]

    async def master_of(self, queue: str) -> tuple[Connection, QueueInfo]:
        """The connection to the queue's master. Raises NoSuchQueue or ConnectionLost."""
        info = await self.queue_info(queue)
        return await self.connection_to(await self.node_address(info.master)), info

    # --- inside ---

    def addresses(self) -> list[str]:
        """Connected ones first, then those given, then those heard of; each once."""
        usable = [address for address, connection in self._connections.items() if connection.usable]
        return list(dict.fromkeys([*usable, *self.servers, *(node.client for node in self._nodes.values())]))

    async def _disconnect(self) -> None:
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
                address, role=self._role, cluster_id=self._cluster_id, timeout_ms=self._connect_timeout_ms
            )
            self._connections[address] = connection
            return connection
        finally:
            self._opening.pop(address, None)


def _no_answer(failures: list[MirrorlogError]) -> MirrorlogError:
    """What to raise when every node failed: the first that did answer, with its reason, tells most."""
    for failure in failures:
        if not isinstance(failure, ConnectionLost | RequestTimeout):
            return failure
    return ConnectionLost(f"no node answers: {'; '.join(map(str, failures))}")
