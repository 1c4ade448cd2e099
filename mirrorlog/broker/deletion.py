"""Deleting queues, on the node that masters their log: what is asked, in which order, and what waits for it.

Three steps, each confirmed before the next one begins, and each of which may be done twice:

1. The cluster takes all bindings to the queue away, and waits for every node that is up: no publish is routed there.
2. The log says `QueueDeleted`. From its append on nobody publishes to the queue, reads it or takes from it; once it is
   confirmed on all copies its records are dead, and the queue is nowhere any more.
3. The cluster takes the queue's place away, so that its name may go to any log.

A node that dies in between, or a log that takes nothing then, leaves a queue without bindings, or a place without a
queue: who asks again goes on from there, and a declaration in the last state makes a new queue in the place that there
is. While a deletion is under way declarations of its name wait here: the place that is taken away must not be that of a
new queue. What the cluster is asked names the epoch and how many places of the log were taken away before, so no late
repetition is taken for it.

What a deletion depends on is decided once, when it begins. To be deleted only when empty, the queue takes no publishes
from then on: a record that came in between would be lost.

Rejected: the place first (a new queue of that name in another log, while the old one is there); bindings last (what is
routed meanwhile is refused by a queue that is gone, and not called unroutable).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from mirrorlog import versions
from mirrorlog.broker.hosted import HostedLog
from mirrorlog.broker.publish import Publisher, not_master
from mirrorlog.errors import InUse, LogUnavailable, MirrorlogError, NoSuchQueue
from mirrorlog.queues.groups import OWN_GROUP
from mirrorlog.queues.registry import Queue, no_such_queue
from mirrorlog.wire.messages import Deleted, DeleteQueue, Message

if TYPE_CHECKING:
    from mirrorlog.config import Member

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""How long a declaration, or another deletion, waits for one that is under way."""
RETRY_S: Final = 0.1

_Respond = Callable[[Message | MirrorlogError], None]
_Done = Callable[[MirrorlogError | None], None]


class Cluster(Protocol):
    """What a deletion asks of the cluster."""

    def cluster_version(self) -> int: ...
    def master(self, log_id: UUID) -> Member | None: ...
    def placed(self, queue: str) -> UUID | None: ...

    async def unbind_queue(self, queue: str) -> None:
        """Nothing leads to the queue any more, on every node that is up. Raises MirrorlogError."""

    async def remove_queue(self, queue: str, log_id: UUID, epoch: int) -> None:
        """The queue's place is taken away, if its log is still in that epoch. Raises MirrorlogError: then it may be, or
        may yet be."""


class Deletions:
    """Those that this node is asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._under_way: dict[str, asyncio.Event] = {}
        # A log's places are taken away one after another: each names how many were before.
        self._removing = asyncio.Lock()

    def is_under_way(self, name: str) -> bool:
        return name in self._under_way

    async def ended(self, name: str) -> None:
        """Until no deletion of that name is under way here. Raises LogUnavailable after WAIT_S."""
        give_up_at = asyncio.get_running_loop().time() + WAIT_S
        while (ends := self._under_way.get(name)) is not None:
            try:
                async with asyncio.timeout_at(give_up_at):
                    await ends.wait()
            except TimeoutError:
                raise LogUnavailable(f"queue {name!r} is being deleted; ask again") from None

    def check_version(self) -> MirrorlogError | None:
        """Why nothing is deleted yet. To be answered, not raised: the connection is sound."""
        return versions.too_old(self._cluster.cluster_version(), versions.DELETION, "the deletion of queues")

    async def delete(self, log: HostedLog, message: DeleteQueue, respond: _Respond) -> None:
        """A queue of a log that this node masters, or what is left of it. Raises NoSuchQueue, InUse, NotMaster, or why
        it cannot be done now."""
        name = message.name
        await self.ended(name)
        with self._begun(name):
            records = await self._delete_from(log, message)
            await self._remove(log, name)
        respond(Deleted(records=records))

    @contextmanager
    def _begun(self, name: str) -> Iterator[None]:
        ends = self._under_way[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._under_way[name]
            ends.set()

    async def _delete_from(self, log: HostedLog, message: DeleteQueue) -> int:
        """Steps 1 and 2; how many records its own group had not settled."""
        # Where nothing can be confirmed nothing is begun. And what was logged by a deletion whose end nobody was told
        # may be cut yet: its place stays until it cannot.
        await _confirmed(self._publisher(log).when_confirmed)
        self._publisher(log)
        queue = log.replica.queues.get(message.name)
        if queue is None:
            if self._cluster.placed(message.name) != log.log_id:
                raise no_such_queue(message.name)
            return 0
        check_conditions(log, queue, message)
        with self._closed(log, queue, message.if_empty):
            await self._cluster.unbind_queue(message.name)
            return await self._log_deletion(log, queue)

    @contextmanager
    def _closed(self, log: HostedLog, queue: Queue, closed: bool) -> Iterator[None]:
        publisher = self._publisher(log)
        if closed:
            publisher.closed_queues.add(queue.queue_id)
        try:
            yield
        finally:
            publisher.closed_queues.discard(queue.queue_id)

    async def _log_deletion(self, log: HostedLog, queue: Queue) -> int:
        publisher, queue_id = self._publisher(log), queue.queue_id
        deliverer = log.deliverer
        assert deliverer is not None
        batch, records = log.replica.queues.delete(queue_id), unsettled_of(log, queue)
        deliverer.flush_queue(queue_id)
        gone = NoSuchQueue(f"queue {queue.name!r} was deleted", queue=queue.name)

        def append(done: _Done) -> None:
            publisher.append_change(batch, done)
            deliverer.end_queue(queue_id, gone)

        await _confirmed(append)
        logger.info(
            "queue_deleted log=%s queue=%r id=%s incarnation=%s unsettled=%s",
            log.name, queue.name, queue_id, queue.incarnation, records,
        )  # fmt: skip
        return records

    async def _remove(self, log: HostedLog, name: str) -> None:
        """Step 3, as long as this is the master. Whatever comes of one attempt, the next one is told it; only then may
        others have the name."""
        epoch = log.replica.epochs.current
        async with self._removing:
            while self._cluster.placed(name) == log.log_id:
                if log.replica.epochs.current != epoch:
                    raise not_master(log.name, self._cluster.master(log.log_id))
                self._publisher(log)
                try:
                    await self._cluster.remove_queue(name, log.log_id, epoch)
                except MirrorlogError as error:
                    logger.debug("queue_not_removed log=%s queue=%r reason=%r", log.name, name, str(error))
                    await asyncio.sleep(RETRY_S)

    def _publisher(self, log: HostedLog) -> Publisher:
        """Raises NotMaster."""
        publisher = log.publisher
        if not isinstance(publisher, Publisher) or publisher.stopping:
            raise not_master(log.name, self._cluster.master(log.log_id))
        return publisher


async def _confirmed(act: Callable[[_Done], None]) -> None:
    """Until what `act` was told to call is called. Raises the error that it is called with."""
    told: asyncio.Future[MirrorlogError | None] = asyncio.get_running_loop().create_future()

    def done(error: MirrorlogError | None) -> None:
        if not told.done():
            told.set_result(error)

    act(done)
    if (error := await told) is not None:
        raise error


def check_conditions(log: HostedLog, queue: Queue, message: DeleteQueue) -> None:
    """Raises InUse naming what keeps the queue."""
    name, queue_id = queue.name, queue.queue_id
    held = sorted(each.name for each in log.replica.holds.newest(queue_id).values() if each.live)
    if held and not message.force:
        raise InUse(
            f"landing {held[0]!r} holds records of queue {name!r}; end it with mqtool landing-end, or force it",
            landing=held[0],
        )
    if message.if_unused and (users := _users_of(log, queue_id)):
        raise InUse(f"queue {name!r} is used: {users} subscribers or readers are waiting for records", users=users)
    if message.if_empty and (records := _needed(log, queue)):
        raise InUse(f"queue {name!r} is not empty: {records} records are not settled", records=records)


def unsettled_of(log: HostedLog, queue: Queue) -> int:
    """Of the queue's own group; all records that there are when nobody was ever subscribed to it."""
    ledger = log.replica.groups.get(queue.queue_id, OWN_GROUP)
    if ledger is None:
        return _records(log, queue.queue_id)
    return ledger.unsettled_total(log.replica.index.next_appended(queue.queue_id))


def _needed(log: HostedLog, queue: Queue) -> int:
    """Records that some group has not settled; without a group that acks, all there are."""
    following = log.replica.index.next_appended(queue.queue_id)
    ledgers = log.replica.groups.groups(queue.queue_id).values()
    if not ledgers:
        return _records(log, queue.queue_id)
    return max(ledger.unsettled_total(following) for ledger in ledgers)


def _records(log: HostedLog, queue_id: int) -> int:
    index = log.replica.index
    begin, following = index.begin(queue_id), index.next_appended(queue_id)
    first, until = index.gap(queue_id)
    lost = until - first if begin <= first < until <= following else 0
    return max(0, following - begin - lost)


def _users_of(log: HostedLog, queue_id: int) -> int:
    deliverer = log.deliverer
    taking = deliverer.takers(queue_id) if deliverer is not None else 0
    return taking + log.fetcher.waiting(queue_id)
