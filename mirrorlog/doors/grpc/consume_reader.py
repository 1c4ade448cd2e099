"""Reads one queue over the native door: finds where to begin, fetches, and goes on over another connection. Thin."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import DamagedRange, is_elsewhere, refused
from mirrorlog.client.connection.liveness import SILENCE_S, StallWatch
from mirrorlog.client.connection.queue_metadata import FoundQueue, check_same, is_another, is_known, not_known
from mirrorlog.doors.grpc.consume_options import AppendTime, ConsumeOptions, Edge, GroupPosition, Start, Until
from mirrorlog.doors.grpc.fetched import Fetched, FetchSource, read_fetched
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    ConnectionLost,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotCurrent,
    OffsetOutOfRange,
)
from mirrorlog.wire.messages.handshake import NodeLimits
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, Position, QueueInfo

_RETRY_S: Final = 0.1
# Beyond what the node may hold a fetch; also how long it may take to describe a queue.
_ANSWER_TIMEOUT_MS: Final = 10_000

_T = TypeVar("_T")


class ConsumeReader:
    """Stands nowhere: whoever fetches says where. `open` comes first."""

    def __init__(self, client: Client, subscription: ConsumeOptions) -> None:
        self._client = client
        self.subscription = subscription
        self._copies = Copies(client, subscription.queue)
        self._connection: Connection | None = None
        self._found: FoundQueue | None = None
        self._info: QueueInfo | None = None
        self._failed_node = ""
        self._until: int | None = None
        self._limits: NodeLimits | None = None

    @property
    def limits(self) -> NodeLimits:
        """Of the node that was reached last."""
        assert self._limits is not None, "the reader is not open"
        return self._limits

    async def open(self) -> Fetched:
        """Settle where to begin and to end; nothing is fetched yet. Raises NoSuchQueue, BadRequest, ConnectionLost;
        NotCurrent as of `Consumer.start`."""
        connection, info = await self._insist(self._own_info)
        self._until = _until(self.subscription.until, info)
        node_id = connection.welcome.node_id
        start = await self._insist(lambda: self._start(self.subscription.start, info, node_id))
        at = start.queue_offset
        return Fetched(self._source(connection, info), memoryview(b""), (), at, at, start.epoch, info.begin, info.next)

    def done(self, queue_offset: int) -> bool:
        """Whether a reader that stands here has everything that it asked for."""
        return self._until is not None and queue_offset >= self._until

    async def fetch(self, queue_offset: int, epoch: int) -> Fetched:
        """What is there from `queue_offset` on; without batches when `max_wait_ms` passed.

        `epoch`: of what was read before. What is bad on a node is asked of another one, unless one was named. Raises
        BadBatch when no copy is whole there, OffsetOutOfRange when the records are gone; when nobody has served within
        `outage_timeout_ms` ConnectionLost, what the nodes answer, or OffsetOutOfRange with the `node` that lacks the
        records in its details.
        """
        return await self._insist(lambda: self._fetch_once(queue_offset, epoch))

    # --- inside ---

    async def _fetch_once(self, queue_offset: int, epoch: int) -> Fetched:
        connection = await self._connected()
        try:
            return await self._fetch_from(connection, queue_offset, epoch)
        except (BadBatch, LogCorrupt) as error:
            node_id = connection.welcome.node_id
            if self.subscription.node_id or not self._others(node_id):
                raise
            bad = self._bad_there(queue_offset, error)
            self._copies.met_bad(bad, node_id, error)
        return await self._copies.whole(bad, self._others(node_id), partial(self._fetch_sound, bad, epoch))

    def _others(self, node_id: str) -> list[str]:
        assert self._info is not None
        return [each for each in (*self._info.mirrors, self._info.master) if each not in ("", node_id)]

    def _bad_there(self, queue_offset: int, error: BadBatch | LogCorrupt) -> DamagedRange:
        queue, size = self.subscription.queue, self.subscription.max_bytes
        if isinstance(error, LogCorrupt):
            return refused(queue, queue_offset, error, size=size)
        return DamagedRange(queue, queue_offset, size, error.details.get("log_offset", 0), str(error))

    async def _fetch_sound(self, bad: DamagedRange, epoch: int, node_id: str) -> Fetched:
        connection = await self._client.reach(await self._client.node_address(node_id))
        fetched = await self._fetch_from(connection, bad.queue_offset, epoch)
        if not fetched.places:
            raise NotCurrent(f"node {node_id} does not show queue offset {bad.queue_offset} yet")
        return fetched

    async def _fetch_from(self, connection: Connection, queue_offset: int, epoch: int) -> Fetched:
        info = self._info
        assert info is not None
        try:
            async with self._silence(connection):
                facts, content = await connection.fetch(
                    queue_id=info.queue_id,
                    epoch=epoch,
                    queue_offset=queue_offset,
                    max_bytes=self.subscription.max_bytes,
                    wait_ms=self.subscription.max_wait_ms,
                    timeout_ms=_ANSWER_TIMEOUT_MS,
                )
        except OffsetOutOfRange as error:
            raise await self._copies.judged(error, info, connection.welcome.node_id, queue_offset) from None
        source = self._source(connection, info)
        return read_fetched(facts, content, source, queue_offset=queue_offset, epoch=epoch, until=self._until)

    def _silence(self, connection: Connection) -> StallWatch:
        """Around a fetch: a master that hangs keeps its connection open, and its successor has long been promoted."""

        async def moved() -> bool:
            assert self._found is not None
            from_master = not (self.subscription.from_mirror or self.subscription.node_id)
            return from_master and await self._client.has_moved(self._found)

        after_s = self.subscription.max_wait_ms / 1000 + SILENCE_S
        return StallWatch(moved, after_s=after_s, reason=f"{connection.address} answers nothing, and is not the master")

    def _source(self, connection: Connection, info: QueueInfo) -> FetchSource:
        return FetchSource(self.subscription.queue, info.log_id, connection.welcome.node_id)

    async def _insist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask again, over another connection, until `outage_timeout_ms` have passed since the first failure."""
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        while True:
            try:
                return await ask()
            except MirrorlogError as error:
                if self._connection is not None:
                    self._failed_node, self._connection = self._connection.welcome.node_id, None
                give_up_at = give_up_at or loop.time() + self.subscription.outage_timeout_ms / 1000
                # A mirror may not have heard yet of a queue that others know.
                passing = error.retriable or (isinstance(error, NoSuchQueue) and self._info is not None)
                # A copy that its node refuses to serve is not the only one.
                passing = passing or is_elsewhere(error) or isinstance(error, LogUnavailable)
                if not passing or is_another(error) or loop.time() >= give_up_at:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _own_info(self) -> tuple[Connection, QueueInfo]:
        """The node that is read from, and the queue as it knows that: another one may know more to be confirmed."""
        connection = await self._connected()
        asked = GetMetadata(queues=[self.subscription.queue])
        answer = await connection.request(asked, Metadata, timeout_ms=_ANSWER_TIMEOUT_MS)
        if not answer.queues:
            queue = self.subscription.queue
            raise NoSuchQueue(f"no queue {queue!r} on node {answer.node_id}", queue=queue)
        info, subscription = answer.queues[0], self.subscription
        wants_end = subscription.start is Edge.LATEST or isinstance(subscription.until, Edge)
        from_master = not (subscription.from_mirror or subscription.node_id)
        if wants_end and from_master and not is_known(info, told_by=answer.node_id):
            raise not_known(info, told_by=answer.node_id)
        return connection, info

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.usable:
            self._connection = await self._connect()
        return self._connection

    async def _connect(self) -> Connection:
        """To the node that shall be read from. Raises ConnectionLost, BadRequest for a node without this queue."""
        queue, found = self.subscription.queue, await self._client.find(self.subscription.queue)
        check_same(queue, self._info, found.info)
        self._found = found
        info = self._info = found.info
        failures: list[str] = []
        for node_id in sorted(_wanted(self.subscription, info), key=self._rank):
            try:
                connection = await self._client.connection_to(await self._client.node_address(node_id))
            except ConnectionLost as error:
                failures.append(str(error))
            else:
                self._limits = connection.welcome.limits
                return connection
        raise ConnectionLost("; ".join(failures))

    def _rank(self, node_id: str) -> tuple[bool, bool, bool]:
        """Whom to read from, the best first: who lacks nothing, has not failed, is a mirror if one was asked for."""
        is_master = self._info is not None and node_id == self._info.master
        return self._copies.lacks(node_id), node_id == self._failed_node, is_master

    async def _start(self, start: Start, info: QueueInfo, node_id: str) -> Position:
        """`info`: as the node knows it that was reached."""
        if isinstance(start, GroupPosition):
            start = await self._client.admin.position(info.name, start.group) or Edge.EARLIEST
        elif isinstance(start, AppendTime):
            start = await self._copies.first_at(start.us)
        if start is Edge.LATEST:
            start = info.next
        elif start is Edge.EARLIEST:
            start = await self._earliest(info, node_id)
        if isinstance(start, int):
            start = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=start)
        if start.log_id != info.log_id:
            raise BadRequest(f"a position of log {start.log_id}, but queue {info.name!r} is in {info.log_id}")
        return start

    async def _earliest(self, info: QueueInfo, node_id: str) -> int:
        """Whoever named a node wants what that one has; from any mirror, what the queue has."""
        return await self._copies.earliest(info, node_id) if self.subscription.from_mirror else info.begin


def _wanted(subscription: ConsumeOptions, info: QueueInfo) -> list[str]:
    """The nodes to read from, the first that answers. Raises BadRequest when there are none."""
    holders = [info.master, *info.mirrors]
    if subscription.node_id:
        if subscription.node_id not in holders:
            raise BadRequest(f"queue {info.name!r} is on {', '.join(holders)}; not on {subscription.node_id!r}")
        return [subscription.node_id]
    if subscription.from_mirror and not info.mirrors:
        raise BadRequest(f"queue {info.name!r} has no mirror; read from its master, {info.master}")
    # The master before a mirror that began late, and behind those that have all.
    return [*info.mirrors, info.master] if subscription.from_mirror else [info.master]


def _until(until: Until, info: QueueInfo) -> int | None:
    return info.next if isinstance(until, Edge) else until
