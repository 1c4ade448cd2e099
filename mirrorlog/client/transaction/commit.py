"""The commit of a transaction: one frame, sent again, the identical bytes, until an answer says what became of it or
its time is up. Its batches are numbered, as a producer's are, and a node that has them answers as the first time.

Messages to exchanges are routed here, by a routing that a node has vouched for lately; it is said with the batches, and
a node that knows a newer one stores nothing. Then they are routed anew, as long as no attempt may have landed: whatever
may be stored is sent as it was. What leads nowhere is only called so by a word that is younger than the commit.

After an outcome that nobody knows its queues go on under a new producer epoch: what of it is still under way then is
refused. A return is said once: when nothing of the commit is numbered, and its answer was lost, the same consumer may
have the record again, and would be counted twice.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from mirrorlog.attempts import leaves_doubt, outcome_of
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.liveness import StallWatch
from mirrorlog.client.connection.masters import MOVED
from mirrorlog.client.connection.queue_metadata import FoundQueue, check_same, is_outage
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.publisher.routes import PublishRoutes
from mirrorlog.client.subscription.unacked import flat
from mirrorlog.client.transaction.contents import RecordGroup, SentRecord, SettledPart, grouped, receipts_of, routed_by
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.errors import (
    BadRequest,
    BatchTooLarge,
    ConnectionLost,
    CrossLogTransaction,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NoSuchSubscription,
    NotGranted,
    OutcomeUnknown,
    OutOfSequence,
    Refused,
    StaleProducerEpoch,
    StaleRouting,
)
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, How
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.names import qualified, shown, split
from mirrorlog.wire.transaction_frames import BatchReceipt, Transacted, settle_part, transact_payload

if TYPE_CHECKING:
    from mirrorlog.client.connection.connection import Connection

# What a client keeps for its transactions: producer ids, where their queues are, and the routing of virtual hosts.
#
# Commits have producer ids of their own, so that they mix with the client's producers in no queue's sequence. An id is
# in use by one commit at a time.


AT_WORK_MAX: Final = 10_000
"""Of so many queues it is known that commits to them ended well."""


@dataclass(slots=True)
class Numbers:
    """The numbers of one producer id: what comes next, by queue id: (producer epoch, sequence)."""

    producer_id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    following: dict[int, tuple[int, int]] = field(default_factory=dict)


class NumbersInUse:
    """A producer id for one commit; by `async with`."""

    def __init__(self, idle: list[Numbers]) -> None:
        self._idle = idle
        self._numbers = idle.pop() if idle else Numbers()

    async def __aenter__(self) -> Numbers:
        return self._numbers

    async def __aexit__(self, *_: object) -> None:
        self._idle.append(self._numbers)


class Transactor:
    """What a client keeps for its transactions: as many producer ids as commits were under way at once; where the
    queues of commits that ended well are, so that the next one need not ask all nodes for them; and the routing that
    messages to exchanges went by. An error makes it forget where a queue is, and not that somebody is at work with it.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self.found: dict[str, FoundQueue] = {}
        self._idle: list[Numbers] = []
        self._committed: dict[str, None] = {}
        self._routes: dict[str, PublishRoutes] = {}

    def committed(self, queues: Iterable[str]) -> None:
        """A commit to these has ended well."""
        for queue in queues:
            self._committed.pop(queue, None)
            self._committed[queue] = None
        for queue in list(islice(self._committed, max(0, len(self._committed) - AT_WORK_MAX))):
            del self._committed[queue]

    def at_work(self, queues: Iterable[str]) -> bool:
        """Whether a commit to one of these has ended well."""
        return any(queue in self._committed for queue in queues)

    def numbers(self) -> NumbersInUse:
        """A producer id for one commit; with `async with`."""
        return NumbersInUse(self._idle)

    def routes(self, virtual_host: str) -> PublishRoutes:
        """Its exchanges and bindings, as far as they are known."""
        if virtual_host not in self._routes:
            self._routes[virtual_host] = PublishRoutes(self.client, virtual_host, closed=lambda: self.client.closed)
        return self._routes[virtual_host]


_UNKNOWN: Final = (OutcomeUnknown, *MOVED)
"""After these the transaction may be stored."""
_AGAIN: Final = (Refused, NoSuchSubscription)
"""After these it is tried again: nothing was stored."""
_RENUMBERED: Final = (StaleProducerEpoch, OutOfSequence)
_MOVED_QUEUES: Final = (NoSuchQueue, CrossLogTransaction)
"""After these, of queues that were looked for earlier, they are looked for again: one may have been declared anew."""
_WHOLE: Final = "the transaction is stored as a whole, or not at all"
_ATTEMPT_MS_MAX: Final = 5_000
_ANSWER_MS: Final = 2_000
"""Longer than the node waits for its copies; the commit's own end comes before it."""


class Commit:
    """One commit, from its first attempt to its end."""

    def __init__(
        self,
        transactor: Transactor,
        sent: Sequence[SentRecord],
        taken: Sequence[SettledPart],
        numbers: Numbers,
        virtual_host: str,
    ) -> None:
        """`virtual_host`: of the exchanges that it publishes to, and of all of its queues then; empty when it does
        not. Raises BadRequest for a queue of another one."""
        self._client = transactor.client
        self._transactor = transactor
        self._found = transactor.found
        self._sent = sent
        self._taken = taken
        self._numbers = numbers
        self._named = {each.queue for each in sent if each.routed is None}
        self._named.update(each.subscription.queue for each in taken)
        self._routes: PublishRoutes | None = transactor.routes(virtual_host) if virtual_host else None
        if self._routes is not None:
            _check_host(virtual_host, self._named)
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._groups: list[RecordGroup] = []
        self._queues: list[str] = []
        # The version of the routing that the groups are made by, and what the batches say of it.
        self._routed_at = -1
        self._stamp = 0
        # At least this version is needed: a node knows it, or a queue is not where a binding leads.
        self._routing_wanted = 0
        self._infos: dict[str, QueueInfo] = {}
        self._batches: list[bytearray] = []
        self._following: dict[int, tuple[int, int]] = {}
        # An attempt ended without an answer that says that nothing was stored.
        self._unknown = False
        # Some of the queues of the last attempt were looked for by a commit before.
        self._remembered = False
        if self._routes is None:
            self._group_by(lambda sent: ())

    async def run(self, level: int, durability: int, timeout_ms: int) -> list[Receipt]:
        try:
            return await self._insist(level, durability, timeout_ms)
        except BaseException as error:
            if self._unknown:
                self._forget_numbers()
            if self._unknown and isinstance(error, MirrorlogError):
                raise outcome_of(error, in_doubt=True, message=_WHOLE) from None
            if isinstance(error, _UNKNOWN):
                raise Refused(f"the transaction was not sent, nothing of it counts; last: {error}") from None
            raise

    async def _insist(self, level: int, durability: int, timeout_ms: int) -> list[Receipt]:
        """Until an answer says what became of it, or the time is up, or the client is closed: then the last error is
        raised."""
        give_up_at = self._loop.time() + timeout_ms / 1000
        backoff = Backoff(random.random)
        last: MirrorlogError = ConnectionLost(f"no node has answered within {timeout_ms} ms")
        while True:
            left_ms = int((give_up_at - self._loop.time()) * 1000)
            try:
                async with asyncio.timeout_at(give_up_at):
                    return await self._attempt(level, durability, max(1, min(left_ms, _ATTEMPT_MS_MAX)))
            except TimeoutError:
                self._forget_places()
                raise last from None
            except MirrorlogError as error:
                last = error
                self._forget_places()
                pause_s = backoff.next_s()
                in_time = self._loop.time() + pause_s < give_up_at and not self._client.closed
                goes_on = (in_time and not self._is_in_vain(error)) and (
                    self._routes_again(error) or self._looks_again(error) or self._tries_again(error)
                )
                if not goes_on:
                    raise
            await asyncio.sleep(pause_s)

    def _is_in_vain(self, error: MirrorlogError) -> bool:
        """Whether to wait helps only when somebody starts a node. Who has committed there before, or has records of it
        unacknowledged, waits on: it may be a restart; and who may have sent something, for its answer."""
        at_work = bool(self._taken) or self._transactor.at_work(self._queues)
        return is_outage(error) and not self._unknown and not at_work

    def _routes_again(self, error: MirrorlogError) -> bool:
        """Whether it is said of bindings that have changed since messages were routed by them; may be, since they are
        known by a word from before; or of a queue that is bound and not found: its node may be down, or it was deleted,
        and its bindings with it."""
        if self._unknown or self._routes is None:
            return False
        if isinstance(error, StaleRouting):
            version = error.details.get("version", 0)
            self._routing_wanted = version if isinstance(version, int) else 0
            return True
        bound = isinstance(error, LogUnavailable | NoSuchQueue) and error.details.get("queue") not in self._named
        crosses = isinstance(error, CrossLogTransaction) and self._routes.vouched_at < self._began_at
        if bound or crosses:
            self._routing_wanted = self._routes.table.version
            self._infos.clear()
            self._batches.clear()
        return bound or crosses

    def _looks_again(self, error: MirrorlogError) -> bool:
        """Whether that may be said of queues that are not where they were when they were looked for."""
        if self._unknown or not self._remembered or not isinstance(error, _MOVED_QUEUES):
            return False
        self._infos.clear()
        self._batches.clear()
        return True

    def _tries_again(self, error: MirrorlogError) -> bool:
        """Raises the error when it may be about this transaction itself."""
        if isinstance(error, _RENUMBERED):
            self._number_anew(error)
            return True
        return isinstance(error, (*_UNKNOWN, *_AGAIN)) and (not isinstance(error, Refused) or error.retriable)

    def _forget_places(self) -> None:
        """Look for the queues anew; the next commit, too."""
        for queue in self._queues:
            self._found.pop(queue, None)

    # --- an attempt ---

    async def _attempt(self, level: int, durability: int, timeout_ms: int) -> list[Receipt]:
        await self._route()
        if not self._queues:
            return self._landed([])
        connection, found = await self._place()
        payload = transact_payload(
            self._settlements(connection),
            self._batches,
            level=level,
            durability=durability,
            deadline_ms=max(1, timeout_ms * 9 // 10),  # so that its answer comes before the commit's end
            routing=self._stamp,
        )
        limit = connection.welcome.limits.max_batch_bytes
        if len(payload) > limit:
            raise BatchTooLarge(f"a transaction of {len(payload)} bytes is above max_batch_bytes ({limit}) of the node")
        before, self._unknown = self._unknown, True
        try:
            async with StallWatch(partial(self._client.has_moved, found), reason=f"{connection.address} was replaced"):
                facts, receipts = await connection.transact(payload, timeout_ms=timeout_ms + _ANSWER_MS)
        except MirrorlogError as error:
            self._unknown = before or leaves_doubt(error)
            raise
        self._count_on()
        self._transactor.committed(self._queues)
        return self._landed([partial(_receipt, facts, each) for each in receipts])

    # --- routing ---

    async def _route(self) -> None:
        """Have the groups by bindings that may be used. Raises Unroutable, NoSuchExchange, AccessRefused, or why no
        node tells them."""
        routes = self._routes
        if routes is None or self._unknown:
            return  # the identical bytes
        if routes.is_old or self._routing_wanted:
            await routes.refresh(max(self._routing_wanted, routes.table.version))
            self._routing_wanted = 0
        if self._routed_at == routes.table.version:
            return
        routed = [each for each in self._sent if each.routed is not None]
        # Nothing is called unroutable by a word from before.
        if routes.vouched_at < self._began_at and not all(routed_by(routes.table, each) for each in routed):
            newest = await routes.newest()
            if newest > routes.table.version:
                await routes.refresh(newest)
        for exchange in dict.fromkeys(each.routed.exchange for each in self._sent if each.routed is not None):
            routes.check(exchange)
        self._routed_at, self._stamp = routes.table.version, routes.stamp
        self._group_by(partial(self._routed, routes))

    def _routed(self, routes: PublishRoutes, sent: SentRecord) -> list[str]:
        """Raises Unroutable."""
        queues = routed_by(routes.table, sent)
        if not queues and sent.routed is not None and sent.routed.mandatory:
            raise sent.routed.unroutable()
        return [qualified(routes.virtual_host, queue) for queue in queues]

    def _group_by(self, route: Callable[[SentRecord], Sequence[str]]) -> None:
        self._groups = grouped(self._sent, route)
        taken_from = [each.subscription.queue for each in self._taken]
        self._queues = list(dict.fromkeys([*(group.queue for group in self._groups), *taken_from]))
        self._infos.clear()
        self._batches.clear()

    # --- where ---

    async def _place(self) -> tuple[Connection, FoundQueue]:
        """The connection to the one master of all of it; numbers the batches. Raises CrossLogTransaction, NoSuchQueue,
        NotMaster, ConnectionLost, BadRequest."""
        places = await self._places()
        first = places[self._queues[0]]
        for found in places.values():
            self._check_together(first, found)
        self._check_same(places)
        if not self._batches:
            self._encode(places)
        connection = await self._client.reach_master(first)
        self._found.update(places)
        return connection, first

    async def _places(self) -> dict[str, FoundQueue]:
        """All nodes are asked, once for all queues; no node for those of the commit before. Raises BadRequest while the
        cluster takes no transactions: software that does not know them would close the connection."""
        known = {queue: self._found[queue] for queue in self._queues if queue in self._found}
        self._remembered = bool(known)
        wanted = [queue for queue in self._queues if queue not in known]
        looked_for = await asyncio.gather(*map(self._find, wanted))
        for found in {found.address: found for found in looked_for}.values():
            if not (await self._client.vouched(found)).info.attributes:  # they came with the same version
                raise BadRequest(
                    f"the cluster of queue {found.queue!r} takes no transactions before all its nodes are updated"
                )
        return {**known, **dict(zip(wanted, looked_for, strict=True))}

    async def _find(self, queue: str) -> FoundQueue:
        """As of the client. One that is bound is there: LogUnavailable while no node has it."""
        try:
            return await self._client.find(queue)
        except NoSuchQueue:
            if queue in self._named:
                raise
            raise LogUnavailable(
                f"{self._shown(queue)} is there, and no node that answers has it; is the node down that does?",
                queue=queue,
            ) from None

    def _check_together(self, one: FoundQueue, other: FoundQueue) -> None:
        if one.info.log_id != other.info.log_id:
            first, second = self._shown(one.queue), self._shown(other.queue)
            raise CrossLogTransaction(
                f"{first} is in log {one.info.log_id}, {second} in log {other.info.log_id}, and a transaction is of "
                "one log; declare them with the same x-log-group to have them in one",
                queues=[one.queue, other.queue],
                logs=[one.info.log_id, other.info.log_id],
            )

    def _shown(self, queue: str) -> str:
        """A queue for people, with what leads there when nobody named it."""
        if queue in self._named:
            return f"queue {queue!r}"
        sent = (each for group in self._groups if group.queue == queue for each in group.sent)
        exchange = next((each.routed.exchange for each in sent if each.routed is not None), "")
        return f"queue {queue!r} (to which exchange {exchange!r} leads)"

    def _check_same(self, places: dict[str, FoundQueue]) -> None:
        """A queue that was deleted and declared anew is another one."""
        for queue, found in places.items():
            check_same(queue, self._infos.setdefault(queue, found.info), found.info)

    def _encode(self, places: dict[str, FoundQueue]) -> None:
        following = dict(self._numbers.following)
        for group in self._groups:
            found = places[group.queue]
            epoch, sequence = following.get(found.queue_id, (found.producer_epoch, 0))
            batch = encode_batch(
                group.records,
                queue_id=found.queue_id,
                producer_id=self._numbers.producer_id,
                producer_epoch=epoch,
                sequence=sequence,
                attributes=group.attributes,
            )
            following[found.queue_id] = epoch, sequence + len(group.sent)
            self._batches.append(batch)
        self._following = following

    def _settlements(self, connection: Connection) -> list[bytes]:
        """Raises ConnectionLost while a subscription has no session there: then it is tried again. NotGranted when it
        is closed: no session comes any more, and the node has given the records to others."""
        found: list[bytes] = []
        for each in self._taken:
            session = each.subscription.session
            if session is None or session.connection is not connection:
                if each.subscription.closed:
                    raise NotGranted(
                        f"the subscription to queue {each.subscription.queue!r} is closed, and its records have gone "
                        "back; commit before it is closed"
                    )
                raise ConnectionLost(f"the subscription to queue {each.subscription.queue!r} is being resumed")
            again = each.session != each.subscription.unacked.session
            if self._unknown and each.how == How.RETURN and not again and not self._batches:
                raise NotGranted("returns that may count are not said twice")
            found.append(
                settle_part(
                    flat(each.ranges),
                    subscription=session.number,
                    epoch=each.epoch,
                    how=each.how,
                    delay_ms=each.delay_ms,
                    again=again,
                )
            )
        return found

    # --- numbers ---

    def _count_on(self) -> None:
        if self._groups:
            self._numbers.following = self._following

    def _number_anew(self, error: MirrorlogError) -> None:
        """The node does not know this producer, or knows a later epoch of it. Raises it when that may be about this
        transaction."""
        if self._unknown:
            raise error
        ended = error.details.get("producer_epoch", -1)
        for queue in {group.queue for group in self._groups}:
            queue_id = self._infos[queue].queue_id
            epoch, _ = self._following[queue_id]
            self._numbers.following[queue_id] = max(epoch, ended) + 1, 0
        self._batches.clear()

    def _forget_numbers(self) -> None:
        """Nobody knows whether these sequences are in use: the next commit goes on under another producer epoch."""
        for queue in {group.queue for group in self._groups}:
            info = self._infos.get(queue)
            if info is not None:
                epoch = self._following[info.queue_id][0]
                self._numbers.following[info.queue_id] = epoch + 1, 0

    def _landed(self, ranges: Sequence[Callable[[int], Receipt]]) -> list[Receipt]:
        """It is committed; tells messages where they are. `ranges`: of each batch, its receipts."""
        receipts, messages = receipts_of(self._sent, self._groups, ranges)
        for message, by_queue in messages.items():
            message.landed({split(queue)[1]: receipt for queue, receipt in by_queue.items()})
        return receipts


def _receipt(facts: Transacted, batch: BatchReceipt, index: int) -> Receipt:
    """Of one record of a batch."""
    duplicate = facts.flags & CONFIRM_DUPLICATE != 0
    offset = batch.base_queue_offset + index
    return Receipt(offset, batch.log_offset, facts.epoch, facts.copies, facts.durability, duplicate)


def _check_host(virtual_host: str, queues: Iterable[str]) -> None:
    for queue in queues:
        if split(queue)[0] != virtual_host:
            raise BadRequest(
                f"queue {shown(queue)} is not in virtual host {virtual_host}: a transaction that publishes to an "
                "exchange is of one virtual host"
            )
