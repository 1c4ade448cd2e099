"""The cluster as a client sees it: connections to its nodes, who masters what, and what each node says.

Knows some servers, finds the rest by metadata, and keeps one connection per node.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace as changed

from mirrorlog import versions
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.finder import HEAD_START_S, Finder, first_answer, noted
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.connection.unclosed import Background
from mirrorlog.client.events import ClientEvents, Connected, Disconnected, OnEvent
from mirrorlog.client.options import check_timeout, parse_server
from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import Closed, ConnectionLost, MirrorlogError, NotMaster
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, NodeInfo, QueueInfo

# Who waits for a connection looks around after so long: its node may hang and have been replaced. The opening goes on.
_REACH_S: Final = 1.0

_T = TypeVar("_T")


class ClusterClient:
    """Connects to the nodes of one cluster, for a `Client` and all that it makes. `servers`, `connect_timeout_ms`,
    `request_timeout_ms`, `stale_reads`, `tls`: see there. `login`: user and password. Raises BadRequest."""

    def __init__(
        self,
        *servers: str,
        cluster_id: str | None,
        role: str,
        connect_timeout_ms: int,
        request_timeout_ms: int,
        stale_reads: bool,
        tls: ssl.SSLContext | None,
        login: tuple[str, str] | None,
        on_event: OnEvent | None = None,
    ) -> None:
        check_timeout("connect_timeout_ms", connect_timeout_ms)
        check_timeout("request_timeout_ms", request_timeout_ms)
        self.servers = [parse_server(server) for server in servers] or [f"127.0.0.1:{CLIENT_PORT}"]
        self.request_timeout_ms = request_timeout_ms
        self._cluster_id = cluster_id
        self._role = role
        self._stale_reads = stale_reads
        self.connect_timeout_ms = connect_timeout_ms
        self._tls = tls
        self._client_id = os.urandom(16).hex()
        self._login = login
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._finder = Finder(self)
        self.background = Background()
        """What goes on for what it made and nobody has any more."""
        self.events = ClientEvents(on_event)
        self._closed = self._reached = False

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raises Closed after `close`."""
        if self._closed:
            raise Closed("the client is closed")

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
            task.add_done_callback(noted)
            self._opening[address] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not task.cancelled() or (here is not None and here.cancelling()):
                raise
            # It is the opening that was cancelled, by `close`, not who waits for it.
            raise Closed("the client is closed") from None

    async def any_connection(self) -> Connection:
        """A connection to some node. Raises ConnectionLost naming what each said."""
        self.check_open()
        for connection in self._connections.values():
            if connection.usable:
                return connection
        asks = [partial(self.connection_to, address) for address in self.addresses()]
        return await first_answer(asks, head_start_s=HEAD_START_S)

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
        """Whether there is a connection to any node, or one is being opened: a login takes a busy node seconds."""
        return bool(self._opening) or any(connection.usable for connection in self._connections.values())

    @property
    def reached(self) -> bool:
        """Whether there ever was a connection to any node, or one is being opened: then none is an outage, which may
        pass, and not a wrong address."""
        return self._reached or self.connected

    async def node_address(self, node_id: str) -> str:
        """The client address of a node. Raises NoSuchNode for an unknown one, NotMaster for "", which stands for a
        master that nobody knows."""
        if not node_id:
            raise NotMaster("no node is known to be the master at the moment; one is promoted if enough copies are up")
        if node_id not in self._nodes:
            await self.metadata([])
        if node_id not in self._nodes:
            from mirrorlog.wire.messages.operators import NoSuchNode  # who asks for it seldom is alone in that

            known = ", ".join(self._nodes)
            raise NoSuchNode(f"no node {node_id!r} in this cluster; there are {known}")
        return self._nodes[node_id].client

    async def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes and queues: those named, by the first nodes that know them together, or all of the cluster, by all of
        its nodes; one that only nodes have which do not answer is among the outages. Raises ConnectionLost."""
        self.check_open()
        return await self._ended_by_close(self._finder.metadata(queues))

    async def find(self, queue: str) -> FoundQueue:
        """The queue, by the node that knows most of the cluster. Raises NoSuchQueue or ConnectionLost."""
        self.check_open()
        found = await self._ended_by_close(self._finder.find(queue))
        return self._noted(found)

    async def queue_info(self, queue: str) -> QueueInfo:
        """By the node that knows most of the cluster. Raises NoSuchQueue or ConnectionLost."""
        return (await self.find(queue)).info

    async def master_of(self, queue: str) -> tuple[Connection, FoundQueue]:
        """The connection to the queue's master.

        Raises NoSuchQueue, ConnectionLost, or NotMaster while there is none.
        """
        found = await self.find(queue)
        return await self.reach_master(found), found

    async def reach_master(self, found: FoundQueue) -> Connection:
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

    async def vouched(self, found: FoundQueue) -> FoundQueue:
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
        return changed(found, info=changed(found.info, attributes=attributes))

    async def newer_master(self, than: FoundQueue) -> FoundQueue | None:
        """The queue's master, when a node knows of another one that was named after `than`. Raises Closed when
        the client is closed."""
        self.check_open()
        newer = await self._ended_by_close(self._finder.newer(than))
        return None if newer is None else self._noted(newer)

    async def has_moved(self, than: FoundQueue) -> bool:
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

    async def _ended_by_close(self, work: Coroutine[Any, Any, _T]) -> _T:
        """As `work`, which `close` may cancel: then it is the client that is closed, not who waits."""
        try:
            return await work
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if not self._closed or (here is not None and here.cancelling()):
                raise
            raise Closed("the client is closed") from None

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

    def _noted(self, found: FoundQueue) -> FoundQueue:
        info = found.info
        self.events.found(info.name, master=info.master, log_id=info.log_id, epoch=info.epoch)
        return found

    async def _open(self, address: str) -> Connection:
        try:
            connection = await Connection.open(
                address,
                role=self._role,
                cluster_id=self._cluster_id,
                stale_reads=self._stale_reads,
                timeout_ms=self.connect_timeout_ms,
                tls=self._tls,
                login=self._login,
                client_id=self._client_id,
            )
            self._connections[address] = connection
            self._reached = True
            self.events.tell(Connected(address))
            connection.when_lost = partial(_lost, weakref.ref(self), address)
            return connection
        finally:
            self._opening.pop(address, None)


def _lost(client: weakref.ref[ClusterClient], address: str, error: MirrorlogError) -> None:
    """Its connections do not keep a client that nobody has."""
    if (there := client()) is not None and not there._closed:
        there.events.tell(Disconnected(address, str(error)))


def check_software(connection: Connection, needed: int, what: str) -> None:
    """Raises UnsupportedVersion when its node's software has no `what`, which came with version `needed`."""
    older = versions.too_old(versions.version_of(connection.welcome.start_id), needed, what)
    if older is not None:
        raise older
