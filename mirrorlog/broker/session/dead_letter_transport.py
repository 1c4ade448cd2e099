"""How records that leave a queue come to others: which queues those are, who masters them, and the way there.

Nodes ask each other over the links that members of a cluster have, which prove by the nodes' own credentials who they
are. Rejected: the client port, where they would need a user, and a right to write everywhere. Those links have the
heartbeats and Raft in them, so no more than a part of what they take is ever on its way.

What leads nowhere is gone for good, so it is routed by all that was decided before: a binding or a queue that somebody
was told to be there is. That asks the cluster's leader once for a piece. Rejected: to ask only when something would be
dropped; a record that leads to one queue would not come to the other one that was bound a moment ago.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar
from uuid import UUID

from mirrorlog.broker.dead_letters.reader import BatchLookup
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.peers import FRAME_BYTES_MAX
from mirrorlog.cluster.requests import (
    AnyAnswer,
    AskBatch,
    AskQueue,
    AskTake,
    BatchTold,
    Noted,
    QueueFound,
    decode_answer,
    encode,
)
from mirrorlog.cluster.state.topology import VirtualHost
from mirrorlog.commitlog.format.header import queue_of
from mirrorlog.errors import (
    BadBatch,
    BatchTooLarge,
    ConnectionLost,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    Overloaded,
    RequestTimeout,
    SentToDeadLetters,
)
from mirrorlog.wire.frames import PRODUCE, Credit, Durability, Level
from mirrorlog.wire.names import shown
from mirrorlog.wire.routing import RoutingTable

# The way to one node: how much may be on it at once, and who waits for room, in the order in which they came.
#
# The links that members of a cluster have to each other carry heartbeats and Raft, too: what records that leave their
# queues put on them is bounded here, before it is sent.


ON_THE_WAY_MAX: Final = 16
"""Batches that may be on their way to one node."""
ON_THE_WAY_BYTES: Final = 8 * 1024 * 1024
"""Of them; a larger one goes alone."""


class NodeWay:
    """To one node."""

    def __init__(self) -> None:
        self._count = 0
        self._size = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def unused(self) -> bool:
        return not self._count and not self._line

    async def enter(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, turn))
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._go_on()
            else:
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._count -= 1
        self._size -= size
        self._go_on()

    def _go_on(self) -> None:
        while self._line and (self._line[0][1].cancelled() or self._has_room(self._line[0][0])):
            size, turn = self._line.popleft()
            if not turn.cancelled():
                self._count += 1
                self._size += size
                turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return not self._count or (self._count < ON_THE_WAY_MAX and self._size + size <= ON_THE_WAY_BYTES)


_TABLES_MAX: Final = 64
_CORRELATION: Final = 1
_BATCH_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024
"""Beside it in the frame: the log's id, and names of fields. A larger frame would end the link that it comes by."""
TAKEN_MAX: Final = 256
"""Batches from others that are taken here at once: who gave up waiting for one may have sent the next."""

_NOBODY: Final = (ConnectionLost, LogUnavailable, NotMaster, RequestTimeout)
"""What is said where a log has no master, or one that is away."""

_A = TypeVar("_A", QueueFound, Noted, BatchTold)


class DeadLetterLinks:
    """Of one node. `batch_bytes_max`: as it takes them; `helper`: where tables of many bindings are made, and disks are
    read; `past_helper`: where the index of the past is asked."""

    def __init__(
        self,
        own: str,
        logs: HostedLogs,
        places: ClusterView,
        *,
        batch_bytes_max: int,
        helper: Executor,
        past_helper: Executor,
    ) -> None:
        self._past_helper = past_helper
        self._own = own
        self._batch_bytes_max = batch_bytes_max
        self._logs = logs
        self._places = places
        self._helper = helper
        self._tables: dict[str, tuple[VirtualHost, RoutingTable]] = {}
        self._ways: dict[str, NodeWay] = {}
        self._taken = 0

    async def table(self, virtual_host: str) -> RoutingTable:
        """With all that was decided before this was asked; `find` knows it then, too. Raises LogUnavailable for a
        virtual host that is not known, MirrorlogError while nobody can say what is decided."""
        await self._places.up_to_date()
        host = self._places.virtual_host(virtual_host)
        if host is None:
            raise LogUnavailable(f"nothing is known here of virtual host {virtual_host[:64]!r}")
        kept = self._tables.get(virtual_host)
        if kept is None or kept[0] is not host:
            made = await asyncio.get_running_loop().run_in_executor(self._helper, _table, host)
            if len(self._tables) >= _TABLES_MAX:
                del self._tables[next(iter(self._tables))]
            kept = self._tables[virtual_host] = host, made
        return kept[1]

    async def find(self, name: str) -> tuple[str, int] | None:
        """The log's id and the queue's, of a qualified name; None when there is no such queue. Raises MirrorlogError
        while nobody can say."""
        log_id = self._places.placed(name)
        if log_id is None:
            return None
        found = await self._ask(AskQueue(name=name, log_id=str(log_id)), QueueFound)
        return (str(log_id), found.queue_id) if found.queue_id else None

    async def hand_over(self, log_id: str, batch: bytes, *, name: str = "") -> None:
        """Have the batch of a producer appended, by whoever masters the log, or the one that the queue has moved to,
        and wait until all copies have it. `name`: of the queue, qualified. Raises what a publish is refused with,
        NoSuchQueue when it is for a queue that is gone, or MirrorlogError when nobody knows."""
        if name and (place := self._places.placed(name)) is not None:
            log_id = str(place)
        try:
            await self._ask(AskTake(log_id=log_id, batch=batch), Noted)
        except _NOBODY as error:
            if name and await self._is_gone(name):
                raise NoSuchQueue(f"queue {shown(name)!r} is gone") from error
            raise

    async def read_former(self, name: str, queue_id: int, queue_offset: int) -> bytes | None:
        """The batch with a record that a queue, qualified `name`, has left in a former log; None when it is freed, or
        lost. Raises LogUnavailable while nobody can say, and what reading is refused with."""
        span = next((each for each in reversed(self._places.spans(name)) if each.first <= queue_offset), None)
        if span is None:
            raise LogUnavailable(f"nothing is known here of the logs that queue {shown(name)!r} was in; ask again")
        told = await self._ask(AskBatch(log_id=span.log_id, queue_id=queue_id, queue_offset=queue_offset), BatchTold)
        return told.batch or None

    async def _batch(self, log: HostedLog, asked: AskBatch) -> BatchTold:
        replica, at = log.replica, asked.queue_offset
        if not replica.queues.keeps(asked.queue_id):
            raise LogUnavailable(f"log {log.name} keeps no records of queue {asked.queue_id}; ask again")
        found = await BatchLookup(replica, helper=self._helper, past_helper=self._past_helper).at(asked.queue_id, at)
        index = replica.index
        if found is None and at >= index.begin(asked.queue_id) and index.gap_end(asked.queue_id, at) is None:
            raise LogUnavailable(f"record {at} of queue {asked.queue_id} is not found in log {log.name}; ask again")
        if found is not None and len(found[1]) > _BATCH_BYTES_MAX:
            raise BatchTooLarge(f"a batch of {len(found[1])} bytes is above what nodes send each other at once")
        return BatchTold(batch=found[1] if found is not None else b"")

    async def asked(self, question: AskQueue | AskTake | AskBatch) -> AnyAnswer:
        """Answer for a log that this node masters. Raises NotMaster, or what it is refused with."""
        log = self._logs.get(question.log_id)
        if log is None or not log.knows_confirmed:
            raise not_master(question.log_id if log is None else log.name, self._places.master(UUID(question.log_id)))
        if isinstance(question, AskQueue):
            return _found(log, question.name)
        if isinstance(question, AskBatch):
            return await self._batch(log, question)
        if len(question.batch) < PRODUCE.size or queue_of(memoryview(question.batch)) == 0:
            raise BadBatch("records that leave a queue come in a batch for another one")
        if len(question.batch) > self._batch_bytes_max:
            raise BatchTooLarge(f"a batch of {len(question.batch)} bytes is above max_batch_bytes here")
        if self._taken >= TAKEN_MAX:
            raise Overloaded(f"{TAKEN_MAX} batches of other queues are being taken; ask again", limit="batches at once")
        self._taken += 1
        try:
            with suppress(SentToDeadLetters):  # full, and it sends on what it refuses: that is where they come to
                await _take(log, question.batch)
        finally:
            self._taken -= 1
        return Noted()

    async def _is_gone(self, name: str) -> bool:
        """A log that nobody masters may never have a master again: then the cluster has taken the queue's place away,
        and nobody else would ever say that it is gone. One that has a place in another log by now has moved, or is
        another one: that log says which."""
        try:
            await self._places.up_to_date()
        except MirrorlogError:
            return False  # a place that is not known here yet is none that was taken away
        return self._places.placed(name) is None

    async def _ask(self, question: AskQueue | AskTake | AskBatch, kind: type[_A]) -> _A:
        master = self._places.master(UUID(question.log_id))
        if master is None:
            what = f"the log of queue {shown(question.name)!r}" if isinstance(question, AskQueue) else "its log"
            raise LogUnavailable(f"nobody masters {what} at the moment")
        if master.id == self._own:
            answer = await self.asked(question)
            assert isinstance(answer, kind)
            return answer
        if not isinstance(question, AskTake):
            return decode_answer(await self._places.ask(master.id, encode(question)), kind)
        if len(question.batch) > _BATCH_BYTES_MAX:
            raise BatchTooLarge(f"a batch of {len(question.batch)} bytes is above what nodes send each other at once")
        async with self._way(master.id, len(question.batch)):
            return decode_answer(await self._places.ask(master.id, encode(question)), kind)

    @asynccontextmanager
    async def _way(self, node: str, size: int) -> AsyncIterator[None]:
        """While a batch of so many bytes is on its way to a node."""
        way = self._ways.setdefault(node, NodeWay())
        await way.enter(size)
        try:
            yield
        finally:
            way.leave(size)
            if way.unused:
                self._ways.pop(node, None)


def _table(host: VirtualHost) -> RoutingTable:
    return RoutingTable(dict(host.exchanges), list(host.all_bindings()), version=host.version)


def _found(log: HostedLog, name: str) -> QueueFound:
    """Raises LogUnavailable for one whose declaration may not stay, QueueMoving for one that is on its way."""
    queue = log.replica.queues.get(name)
    if queue is None and (moving := log.replica.queues.moves.refusal_of(name)) is not None:
        raise moving
    if queue is not None and queue.declared_at >= log.replica.log.confirmed:
        raise LogUnavailable("that queue is being declared; ask again")
    return QueueFound(queue_id=0 if queue is None else queue.queue_id)


async def _take(log: HostedLog, batch: bytes) -> None:
    """As a publish of somebody who asks for all copies."""
    answer = _Answer()
    payload = PRODUCE.pack(Level.ALL, int(Durability.MEMORY), 0, 0) + batch
    try:
        log.publisher.publish(memoryview(payload), answer, _CORRELATION, own=True)
        await answer.done
    finally:
        log.publisher.forget(answer)


class _Answer:
    """Who waits for one batch; see `publish.Reply`."""

    peer = "another queue"

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(self, frame_: bytes) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def credited(self, credit: Credit) -> None:
        """It sends one batch."""
