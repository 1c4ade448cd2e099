"""Reads one queue over the native door: finds where to begin, fetches, and goes on over another connection. Thin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import DamagedRange, refused
from mirrorlog.client.connection.liveness import SILENCE_S, StallWatch
from mirrorlog.client.connection.queue_metadata import is_known, not_known
from mirrorlog.client.consumer.replica_choice import ReplicaChoice
from mirrorlog.doors.grpc.consume_options import AppendTime, ConsumeOptions, Edge, GroupPosition, Start
from mirrorlog.doors.grpc.fetched import Fetched, FetchSource, read_fetched
from mirrorlog.errors import BadBatch, BadRequest, LogCorrupt, NotCurrent, OffsetOutOfRange
from mirrorlog.wire.messages.queues import Position, QueueInfo

# Beyond what the node may hold a fetch.
_ANSWER_TIMEOUT_MS: Final = 10_000

_T = TypeVar("_T")


class ConsumeReader:
    """Stands nowhere: whoever fetches says where. `open` comes first."""

    def __init__(self, client: Client, subscription: ConsumeOptions) -> None:
        self._client = client
        self.subscription = subscription
        self._copies = Copies(client, subscription.queue)
        read_from = subscription.node_id or ("mirror" if subscription.from_mirror else "master")
        self._choice = ReplicaChoice(client, subscription.queue, self._copies, read_from=read_from, turn=0)
        self._until: int | None = None
        self._read_in = ""

    async def open(self) -> Fetched:
        """Settle where to begin and to end; nothing is fetched yet. Raises NoSuchQueue, BadRequest, ConnectionLost;
        NotCurrent as of `Consumer.start`."""
        info, node_id = await self._insist(self._own_info)
        self._until = info.next if isinstance(self.subscription.until, Edge) else self.subscription.until
        start = await self._insist(lambda: self._start(self.subscription.start, info, node_id))
        at = start.queue_offset
        return Fetched(self._source(node_id), (), at, at, start.epoch, info.begin, info.next)

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
        self._choice.aim(queue_offset)
        connection = await self._choice.connected()
        try:
            return await self._fetch_from(connection, queue_offset, epoch)
        except (BadBatch, LogCorrupt) as error:
            node_id = connection.welcome.node_id
            if not self._choice.has_others(node_id):
                raise
            bad = self._bad_there(queue_offset, error)
            self._copies.met_bad(bad, node_id, error)
        return await self._copies.whole(bad, await self._choice.others(), partial(self._fetch_sound, bad, epoch))

    def _bad_there(self, queue_offset: int, error: BadBatch | LogCorrupt) -> DamagedRange:
        queue, size = self.subscription.queue, self.subscription.max_bytes
        if isinstance(error, LogCorrupt):
            return refused(queue, queue_offset, error, size=size)
        return DamagedRange(queue, queue_offset, size, error.details.get("log_offset", 0), str(error))

    async def _fetch_sound(self, bad: DamagedRange, epoch: int, node_id: str) -> Fetched:
        connection = await self._client.reach(await self._client.node_address(node_id))
        fetched = await self._fetch_from(connection, bad.queue_offset, epoch)
        if not fetched.batches:
            raise NotCurrent(f"node {node_id} does not show queue offset {bad.queue_offset} yet")
        return fetched

    async def _fetch_from(self, connection: Connection, queue_offset: int, epoch: int) -> Fetched:
        info, node_id = self._choice.info, connection.welcome.node_id
        watch = StallWatch(
            partial(self._choice.is_misplaced, connection),
            after_s=self.subscription.max_wait_ms / 1000 + SILENCE_S,
            reason=f"{connection.address} answers nothing; queue {info.name!r} is read elsewhere",
        )
        try:
            async with watch:
                facts, content = await connection.fetch(
                    queue_id=info.queue_id,
                    epoch=epoch if self._read_in == info.log_id else 0,
                    queue_offset=queue_offset,
                    max_bytes=self.subscription.max_bytes,
                    wait_ms=self.subscription.max_wait_ms,
                    timeout_ms=_ANSWER_TIMEOUT_MS,
                )
        except OffsetOutOfRange as error:
            raise await self._copies.judged(error, info, node_id, queue_offset) from None
        self._read_in = info.log_id
        return read_fetched(
            facts,
            content,
            self._source(node_id),
            queue_offset=queue_offset,
            epoch=epoch,
            until=self._until,
            body_bytes_max=connection.welcome.limits.max_batch_bytes,
        )

    def _source(self, node_id: str) -> FetchSource:
        return FetchSource(self.subscription.queue, self._choice.info.log_id, node_id)

    async def _insist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        return await self._choice.insist(ask, timeout_ms=self.subscription.outage_timeout_ms, waits_for_start=True)

    async def _own_info(self) -> tuple[QueueInfo, str]:
        """The queue as the node that is read from knows it, and that node: another one may know of later confirms."""
        info, node_id = await self._choice.ask()
        wants_end = self.subscription.start is Edge.LATEST or isinstance(self.subscription.until, Edge)
        from_master = not (self.subscription.from_mirror or self.subscription.node_id)
        if wants_end and from_master and not is_known(info, told_by=node_id):
            raise not_known(info, told_by=node_id)
        return info, node_id

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
        if not info.was_in(start.log_id):
            raise BadRequest(f"a position of log {start.log_id}, but queue {info.name!r} is in {info.log_id}")
        self._read_in = start.log_id
        return start

    async def _earliest(self, info: QueueInfo, node_id: str) -> int:
        """Whoever named a node wants what that one has; from any mirror, what the queue has."""
        return await self._copies.earliest(info, node_id) if self.subscription.from_mirror else info.begin
