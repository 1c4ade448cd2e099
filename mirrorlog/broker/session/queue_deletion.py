"""Deleting queues, on the node that masters their log: what is asked, in which order, and what waits for it.

Three steps, each confirmed before the next one begins, and each of which may be done twice:

1. The cluster takes all bindings to the queue away, and waits for every node that is up: no publish is routed there.
2. The log says `QueueDeleted`. From its append on nobody publishes to the queue, reads it or takes from it; once it is
   confirmed on all copies its records are dead, and the queue is nowhere any more.
3. The cluster takes the queue's place away, so that its name may go to any log.

A node that dies in between, or a log that takes nothing then, leaves a queue without bindings, or a place without a
queue: who asks again goes on from there. A place without a queue is taken away by the log's next master, when it begins
(`finish`); a queue without bindings looks like any other, and stays. What is asked for in an epoch that is over by then
is refused: users who came back to the next master keep their bindings. Queues that go by themselves (`queue_lifetimes`)
go together: two decisions of the cluster, however many they are. While a deletion is under way declarations of its name
wait here: the place that is taken away must not be that of a new queue. What the cluster is asked names the epoch and
how often places of the log were taken away before, so no late repetition is taken for it.

What a deletion depends on is decided once, when it begins. To be deleted only when empty, the queue takes no publishes
from then on: a record that came in between would be lost.

Rejected: the place first (a new queue of that name in another log, while the old one is there); bindings last (what is
routed meanwhile is refused by a queue that is gone, and not called unroutable).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from mirrorlog import versions
from mirrorlog.attempts import outcome_of
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.errors import InUse, LogUnavailable, MirrorlogError, NoSuchQueue, UnsupportedVersion
from mirrorlog.queues.dead_letters.forwarding import NUMBERS
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.queue_table import Queue, no_such_queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import Deleted, DeleteQueue

logger = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""How long a declaration, or another deletion, waits for one that is under way."""
RETRY_S: Final = 0.1
AT_ONCE_MAX: Final = 1_000
"""Queues in one decision of the cluster: some 250 KiB of names at most."""

_Respond = Callable[[Message | MirrorlogError], None]
_Done = Callable[[MirrorlogError | None], None]


class Deletions:
    """Those that this node is asked for."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._under_way: dict[str, asyncio.Event] = {}
        # A log's places are taken away one after another: each names how many were before.
        self._removing: defaultdict[UUID, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.on_deleted: Callable[[Queue], None] = _nobody_cares
        """Told of a queue that is found no more."""

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
        it cannot be done now; OutcomeUnknown when a part of it is done."""
        name = message.name
        await self.ended(name)
        with self._begun([name]):
            records = await self._delete_from(log, message)
            with _in_part(f"queue {name!r} is deleted, and its name is not free yet; ask again"):
                await self._remove(log, [name])
        respond(Deleted(records=records))

    async def delete_all(self, log: HostedLog, names: Sequence[str], *, held_too: bool = False) -> None:
        """Queues of a log that this node masters, whatever uses them, but for those that landings hold (unless
        `held_too`: they are over, and nobody can land them any more) and those that are being deleted. Raises
        NotMaster, or why it cannot be done now."""
        for at in range(0, len(names), AT_ONCE_MAX):
            some = [name for name in names[at : at + AT_ONCE_MAX] if not self.is_under_way(name)]
            with self._begun(some):
                await self._delete_some(log, some, held_too=held_too)

    async def finish(self, log: HostedLog) -> None:
        """When a mastership begins: places whose queues were deleted before, by a master that died then, are taken
        away. Not once a loss was declared of the log, for then it may have been the declaration that was lost. Raises
        as `delete_all`."""
        if self._cluster.lost_from(log.log_id):
            return
        # What was logged by a deletion whose end nobody was told may be cut yet: its place stays until it cannot.
        await confirmed(publisher_of(log, self._cluster).when_confirmed)
        queues = log.replica.queues
        left = [name for name in self._cluster.placed_in(log.log_id) if queues.get(name) is None]
        # One that has left, or has arrived and is not open yet, was not deleted.
        left = [name for name in left if not self.is_under_way(name) and queues.moves.refusal_of(name) is None]
        with self._begun(left):
            for at in range(0, len(left), AT_ONCE_MAX):
                logger.info("places_without_queues log=%s count=%s", log.name, len(left[at : at + AT_ONCE_MAX]))
                await self._remove(log, left[at : at + AT_ONCE_MAX])

    async def give_back(self, log: HostedLog, name: str) -> None:
        """A place in a log that this node masters, of a queue that was never declared there, and is to be in another
        log. Of any other log nothing is done: whoever masters it will be asked. Raises as `delete`."""
        await self.ended(name)
        if log.knows_confirmed and log.replica.queues.named(name) is None and self._cluster.placed(name) == log.log_id:
            with self._begun([name]):
                await self._remove(log, [name])

    @contextmanager
    def _begun(self, names: Sequence[str]) -> Iterator[None]:
        ends = asyncio.Event()
        self._under_way.update(dict.fromkeys(names, ends))
        try:
            yield
        finally:
            for name in names:
                del self._under_way[name]
            ends.set()

    async def _delete_some(self, log: HostedLog, names: Sequence[str], *, held_too: bool) -> None:
        await confirmed(publisher_of(log, self._cluster).when_confirmed)
        found = [queue for name in names if (queue := log.replica.queues.get(name)) is not None]
        free = [queue for queue in found if held_too or not _landings(log, queue)]
        # One that is not placed here any more has no bindings: what leads to its name leads to another queue.
        placed = [queue.name for queue in free if self._cluster.placed(queue.name) == log.log_id]
        if placed:
            await self._cluster.unbind_queues(placed, log.log_id, log.replica.log.epochs.current)
        await self._log_deletions(log, free)
        await self._remove(log, placed)

    async def _delete_from(self, log: HostedLog, message: DeleteQueue) -> int:
        """Steps 1 and 2; how many records its own group had not settled."""
        # Where nothing can be confirmed nothing is begun. And what was logged by a deletion whose end nobody was told
        # may be cut yet: its place stays until it cannot.
        await confirmed(publisher_of(log, self._cluster).when_confirmed)
        publisher_of(log, self._cluster)
        queue = log.replica.queues.get(message.name)
        if queue is None:
            if (moving := log.replica.queues.moves.refusal_of(message.name)) is not None:
                raise moving
            if self._cluster.placed(message.name) != log.log_id:
                raise no_such_queue(message.name)
            return 0
        check_conditions(log, queue, message)
        with self._closed(log, queue, message.if_empty):
            await self._cluster.unbind_queues([message.name], log.log_id, log.replica.log.epochs.current)
            log.replica.queues.moves.check_name(message.name)  # it may have left meanwhile
            with _in_part(f"queue {message.name!r} has lost its bindings, and may be deleted or not; ask again"):
                return await self._log_deletions(log, [queue])

    @contextmanager
    def _closed(self, log: HostedLog, queue: Queue, closed: bool) -> Iterator[None]:
        publisher = publisher_of(log, self._cluster)
        if closed:
            publisher.closed_queues.add(queue.queue_id)
        try:
            yield
        finally:
            publisher.closed_queues.discard(queue.queue_id)

    async def _log_deletions(self, log: HostedLog, queues: Iterable[Queue]) -> int:
        """How many records the own groups of all of them had not settled."""
        queues = [queue for queue in queues if log.replica.queues.has_id(queue.queue_id)]
        records = [unsettled_of(log, queue) for queue in queues]

        def append(done: _Done) -> None:
            """The last one's confirm is that of all of them."""
            for queue in queues[:-1]:
                self._append_deletion(log, queue, _nobody_waits)
            self._append_deletion(log, queues[-1], done)

        if queues:
            await confirmed(append)
        for queue, unsettled in zip(queues, records, strict=True):
            logger.info(
                "queue_deleted log=%s queue=%r id=%s incarnation=%s unsettled=%s",
                log.name, queue.name, queue.queue_id, queue.incarnation, unsettled,
            )  # fmt: skip
        return sum(records)

    def _append_deletion(self, log: HostedLog, queue: Queue, done: _Done) -> None:
        """Raises NotMaster: while its bindings were taken away another one may have become that."""
        publisher, deliverer = publisher_of(log, self._cluster), log.deliverer
        if deliverer is None:
            raise not_master(log.name, self._cluster.master(log.log_id))
        batch = log.replica.queues.delete(queue.queue_id)
        deliverer.flush_queue(queue.queue_id)
        publisher.append_change(batch, done)
        gone = NoSuchQueue(f"queue {queue.name!r} was deleted", queue=queue.name)
        deliverer.end_queue(queue.queue_id, gone)
        self.on_deleted(queue)

    async def _remove(self, log: HostedLog, names: Sequence[str]) -> None:
        """Step 3, as long as this is the master. Whatever comes of one attempt, the next one is told it; only then may
        others have the name."""
        epoch = log.replica.log.epochs.current
        async with self._removing[log.log_id]:
            while left := [name for name in names if self._cluster.placed(name) == log.log_id]:
                if log.replica.log.epochs.current != epoch:
                    raise not_master(log.name, self._cluster.master(log.log_id))
                publisher_of(log, self._cluster)
                try:
                    await self._cluster.remove_queues(left, log.log_id, epoch)
                    if any(self._cluster.placed(name) == log.log_id for name in left):
                        await asyncio.sleep(RETRY_S)  # of one that was to move: until that is cancelled
                except UnsupportedVersion:
                    raise  # so it stays until the last node is updated
                except MirrorlogError as error:
                    logger.debug("queues_not_removed log=%s queues=%s reason=%r", log.name, len(left), str(error))
                    await asyncio.sleep(RETRY_S)


def publisher_of(log: HostedLog, cluster: ClusterView) -> LogPublisher:
    """That of a log which this node masters. Raises NotMaster."""
    publisher = log.publisher
    if not isinstance(publisher, LogPublisher) or publisher.stopping:
        raise not_master(log.name, cluster.master(log.log_id))
    return publisher


async def confirmed(act: Callable[[_Done], None]) -> None:
    """Until what `act` was told to call is called. Raises the error that it is called with."""
    told: asyncio.Future[MirrorlogError | None] = asyncio.get_running_loop().create_future()

    def done(error: MirrorlogError | None) -> None:
        if not told.done():
            told.set_result(error)

    act(done)
    if (error := await told) is not None:
        raise error


@contextmanager
def _in_part(message: str) -> Iterator[None]:
    """Around what follows something that is done: it is no refusal of the whole."""
    try:
        yield
    except MirrorlogError as error:
        raise outcome_of(error, in_doubt=True, message=message) from None


def check_conditions(log: HostedLog, queue: Queue, message: DeleteQueue) -> None:
    """Raises InUse naming what keeps the queue."""
    name, queue_id = queue.name, queue.queue_id
    held = _landings(log, queue)
    if held and not message.force:
        raise InUse(
            f"landing {held[0]!r} holds records of queue {name!r}; end it with mqtool landing-end, or force it",
            landing=held[0],
        )
    if message.if_unused and (users := _users_of(log, queue_id)):
        raise InUse(f"queue {name!r} is used: {users} subscribers, readers that wait, or leases", users=users)
    if message.if_empty and (records := _needed(log, queue)):
        raise InUse(f"queue {name!r} is not empty: {records} records are not settled", records=records)


def _landings(log: HostedLog, queue: Queue) -> list[str]:
    """Those that hold records of a queue."""
    return sorted(each.name for each in log.replica.holds.newest(queue.queue_id).values() if each.live)


def _nobody_cares(queue: Queue) -> None:
    """Nothing else is known of it."""


def _nobody_waits(error: MirrorlogError | None) -> None:
    """What comes of it shows in what is appended behind it."""


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
    lost = (min(until, following) - max(first, begin) for first, until in index.gaps_of(queue_id))
    return max(0, following - begin - sum(each for each in lost if each > 0))


def _users_of(log: HostedLog, queue_id: int) -> int:
    """Who takes from a queue, or has something of it for a time: its holder may yet settle that. Leases below 2^32 are
    records that leave for other queues: those are nobody's."""
    deliverer = log.deliverer
    taking = deliverer.consumer_count(queue_id) if deliverer is not None else 0
    ledgers = log.replica.groups.groups(queue_id).values()
    leases = sum(1 for ledger in ledgers for lease in ledger.leases if lease >= NUMBERS)
    return taking + leases + log.fetcher.waiting(queue_id)
