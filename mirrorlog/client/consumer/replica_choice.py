"""Which copy of a queue a reader reads from: the master, a mirror, the nearest copy, or that of one node. Thin.

A copy that does not serve is left for another one, unless a node was named: who names a node wants its copy, whatever
that is like.

The nearest is one on the host of whoever reads. An address is one of this host's if a socket can be bound to it: that
needs no list of network interfaces, which each system tells in another way, and it is right behind a name, in a
container and on loopback. Rejected: comparing host names (a node may be advertised under any), measuring round trips
(they change, and readers would flap).
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import is_elsewhere
from mirrorlog.client.connection.liveness import SILENCE_S
from mirrorlog.client.connection.queue_metadata import FoundQueue, check_same, is_another, is_outage
from mirrorlog.config import split_address
from mirrorlog.errors import BadRequest, ConnectionLost, LogUnavailable, MirrorlogError, NoSuchQueue, RequestTimeout
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, QueueInfo

_ANY_MIRROR: Final = ("mirror", "nearest")
# All that is not a node's id.
_NO_NODE: Final = ("master", *_ANY_MIRROR)

_T = TypeVar("_T")


class ReplicaChoice:
    """Chooses the copy for one reader. `read_from`, `turn`: as of `Client.consumer`. `copies`: knows which mirrors
    lacked something."""

    def __init__(self, client: ClusterClient, queue: str, copies: Copies, *, read_from: str, turn: int) -> None:
        self._client = client
        self._queue = queue
        self._copies = copies
        self._read_from = read_from
        self._turn = turn
        self._connection: Connection | None = None
        self._found: FoundQueue | None = None
        # Where the next record is, once that is known.
        self._at: int | None = None
        # The nodes on this host, as far as that was asked.
        self._here: dict[str, bool] = {}
        # The node that failed last: others are tried before it.
        self._failed_node: str | None = None

    @property
    def info(self) -> QueueInfo:
        """The queue as it was found last, with the log and the nodes of what is read next."""
        assert self._found is not None
        info = self._found.info
        return info.at(self._at) if info.spans and self._at is not None else info

    def aim(self, queue_offset: int) -> None:
        """What stands at this offset is read next: of a queue that has moved it may be in another log, on other
        nodes."""
        before = self.info.log_id if self._found is not None else ""
        self._at = queue_offset
        if self._found is not None and self.info.log_id != before:
            self._connection = None

    @property
    def node_id(self) -> str | None:
        """The node that is read from; None between two."""
        return None if self._connection is None else self._connection.welcome.node_id

    @property
    def names_node(self) -> bool:
        """Whether one node's copy is wanted, and no other."""
        return self._read_from not in _NO_NODE

    @property
    def any_mirror(self) -> bool:
        """Whether any mirror will do."""
        return self._read_from in _ANY_MIRROR

    async def insist(
        self, ask: Callable[[], Awaitable[_T]], *, timeout_ms: int | None = None, waits_for_start: bool = False
    ) -> _T:
        """Ask again, over another connection, until `timeout_ms`, by default the client's of a request, have passed
        since the first failure. `waits_for_start`: also while every node of a queue that was never found is down."""
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        backoff = Backoff(random.random)
        while True:
            try:
                return await ask()
            except MirrorlogError as error:
                self.failed()
                known = self._found is not None
                give_up_at = give_up_at or loop.time() + (timeout_ms or self._client.request_timeout_ms) / 1000
                # A mirror may not have heard yet of a queue that others know.
                passing = error.retriable or (isinstance(error, NoSuchQueue) and known)
                # A copy that its node refuses to serve is not the only one.
                passing = passing or is_elsewhere(error) or isinstance(error, LogUnavailable)
                passing = passing and (known or waits_for_start or not is_outage(error))
                if not passing or is_another(error) or loop.time() >= give_up_at or self._client.closed:
                    raise
                await asyncio.sleep(backoff.next_s())

    async def connected(self) -> Connection:
        """To the node that shall be read from. Raises ConnectionLost, NoSuchQueue, BadRequest for a node without this
        queue."""
        if self._connection is None or not self._connection.usable:
            self._connection = await self._connect()
        return self._connection

    async def ask(self) -> tuple[QueueInfo, str]:
        """The queue as that node knows it, and which node it is: what another one has confirmed may be further on. Of a
        former log nodes know no more than its records: one of the log that the queue is in is asked then."""
        if self._reads_former and self.names_node:
            await self._find()
            assert self._found is not None
            return self._found.info, self._found.told_by
        if self._reads_former:
            self._at = self._connection = None
        connection = await self.connected()
        asked = GetMetadata(queues=[self._queue])
        answer = await connection.request(asked, Metadata, timeout_ms=self._client.request_timeout_ms)
        if not answer.queues:
            raise NoSuchQueue(f"no queue {self._queue!r} on node {answer.node_id}", queue=self._queue)
        return answer.queues[0], answer.node_id

    def failed(self, node_id: str | None = None) -> None:
        """That node, by default the one that is read from, does not serve: others are tried before it."""
        if node_id is not None or self._connection is not None:
            self._failed_node, self._connection = node_id or self.node_id, None

    def has_others(self, node_id: str) -> bool:
        """Whether other nodes than that one have copies that may be read."""
        return not self.names_node and bool({self.info.master, *self.info.mirrors} - {"", node_id})

    async def others(self) -> list[str]:
        """All nodes with a copy, the best first. Raises NoSuchQueue, ConnectionLost."""
        info = await self._find()
        return sorted([*self._mirrors(info), info.master], key=lambda node_id: self._rank(node_id, info.master))

    async def logs_now(self) -> list[str]:
        """All logs that the queue is or was in, as nodes say that are asked now. Raises NoSuchQueue, ConnectionLost."""
        await self._find()
        assert self._found is not None
        return [self._found.info.log_id, *self._found.info.former_logs]

    async def is_misplaced(self, connection: Connection) -> bool:
        """Whether a node that is silent is to be left: for a new master, or, of several mirrors, for another one when
        it does not answer a simple question either."""
        assert self._found is not None
        if self._read_from == "master":
            return await self._client.has_moved(self._found)
        if not self.any_mirror or len(self._found.info.mirrors) < 2:
            return False
        return await is_mute(connection)

    async def in_order(self, info: QueueInfo) -> list[str]:
        """The nodes that may be read from, the best first. Raises BadRequest."""
        wanted = self._wanted(info)
        await self._look_nearby(wanted)
        return sorted(wanted, key=lambda node_id: self._rank(node_id, info.master))

    # --- inside ---

    @property
    def _reads_former(self) -> bool:
        """Whether what is read next is in a log that the queue was in before."""
        return self._found is not None and self.info.log_id != self._found.info.log_id

    async def _find(self) -> QueueInfo:
        """The queue as it is now. Raises NoSuchQueue, also when it is another one under the same name."""
        found = await self._client.find(self._queue)
        check_same(self._queue, None if self._found is None else self._found.info, found.info)
        self._found = found
        return self.info

    async def _connect(self) -> Connection:
        reasons: list[str] = []
        for node_id in await self.in_order(await self._find()):
            try:
                return await self._client.reach(await self._client.node_address(node_id))
            except ConnectionLost as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(reasons))

    def _wanted(self, info: QueueInfo) -> list[str]:
        """The nodes that may be read from; of mirrors another one first for each turn. Raises BadRequest."""
        mirrors = self._mirrors(info)
        wanted = {"master": [info.master], "mirror": mirrors, "nearest": mirrors}.get(
            self._read_from, [self._read_from]
        )
        if self.any_mirror and info.master:
            wanted = [*wanted, info.master]  # before a mirror that began late, and behind those that have all
        # What stands in a former log is read where it is.
        no_mirror = self._read_from == "mirror" and not mirrors and not self._reads_former
        if not set(wanted) <= {info.master, *info.mirrors} or not wanted or no_mirror:
            raise BadRequest(
                f"queue {self._queue!r} is on {info.master}, {', '.join(info.mirrors)}; not {self._read_from!r}"
            )
        return wanted

    def _mirrors(self, info: QueueInfo) -> list[str]:
        """Another one first for each turn."""
        start = self._turn % max(1, len(info.mirrors))
        return [*info.mirrors[start:], *info.mirrors[:start]]

    async def _look_nearby(self, node_ids: list[str]) -> None:
        if self._read_from != "nearest":
            return
        for node_id in node_ids:
            if node_id not in self._here:
                self._here[node_id] = await is_here(await self._client.node_address(node_id))

    def _rank(self, node_id: str, master: str) -> tuple[bool, bool, bool, bool]:
        """Whom to read from, the best first: who lacks nothing, has not failed, is on this host if the nearest was
        asked for, is a mirror if one was."""
        far = not self._here.get(node_id, False)
        return self._copies.lacks(node_id), node_id == self._failed_node, far, node_id == master


async def is_mute(connection: Connection) -> bool:
    """Whether a node that is silent does not answer a simple question either."""
    try:
        await connection.request(GetMetadata(queues=[]), Metadata, timeout_ms=int(SILENCE_S * 1000))
    except RequestTimeout:
        return True
    return False


async def is_here(address: str) -> bool:
    """Whether the `host:port` of a node is on this host. A name that cannot be resolved is not."""
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_ours(family, place) for family, _, _, _, place in found)


def _is_ours(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((place[0], 0, *place[2:]))
    except OSError:
        return False
    return True
