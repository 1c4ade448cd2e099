"""A transaction: records for several queues, and acknowledgements, that count together or not at all. All queues are in
one log (`x-log-group`), since one node has to decide.

Nothing leaves before the commit: until then a transaction is a list, and its end without a commit costs nothing. The
commit is one frame, and one envelope in the log. It is sent again, the identical bytes, until an answer says what
became of it or its time is up: its batches are numbered, as a producer's are, and a node that has them answers as it
did the first time.

Commits have producer ids of their own, so that they mix with the client's producers in no queue's sequence. An id is in
use by one commit at a time. After an outcome that nobody knows its queues go on under a new producer epoch: what of it
is still under way then is refused.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from mirrorlog.client.backoff import Backoff
from mirrorlog.client.batching import Headers, as_headers, as_timestamp_us
from mirrorlog.client.delivered import Settleable
from mirrorlog.client.in_hand import Granted
from mirrorlog.client.masters import MOVED
from mirrorlog.client.ranges import Range, flat, joined
from mirrorlog.client.receipts import Receipt
from mirrorlog.client.sightings import Sighting
from mirrorlog.client.silence import Silence
from mirrorlog.client.subscription import Subscription
from mirrorlog.commitlog.attributes import Asked, Attributes, asked_attributes
from mirrorlog.commitlog.body import Record, encode_batch
from mirrorlog.errors import (
    BadRequest,
    BatchTooLarge,
    ConnectionLost,
    CrossLogTransaction,
    MirrorlogError,
    NoSuchQueue,
    NoSuchSubscription,
    NotGranted,
    OutcomeUnknown,
    OutOfSequence,
    Refused,
    StaleProducerEpoch,
)
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, BatchReceipt, How, Transacted, settle_part, transact_payload

if TYPE_CHECKING:
    from mirrorlog.client.client import Client
    from mirrorlog.client.connection import Connection

_UNKNOWN: Final = (OutcomeUnknown, *MOVED)
"""After these the transaction may be stored."""
_AGAIN: Final = (Refused, NoSuchSubscription)
"""After these it is tried again: nothing was stored."""
_RENUMBERED: Final = (StaleProducerEpoch, OutOfSequence)
_MOVED_QUEUES: Final = (NoSuchQueue, CrossLogTransaction)
"""After these, of queues that were looked for earlier, they are looked for again: one may have been declared anew."""
_ATTEMPT_MS_MAX: Final = 5_000
_ANSWER_MS: Final = 2_000
"""Longer than the node waits for its copies; the commit's own end comes before it."""


@dataclass(slots=True)
class _Numbers:
    """Of one producer id: what comes next, by queue id: (producer epoch, sequence)."""

    producer_id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    following: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Group:
    """Records of one queue that ask for the same: a batch. `places`: which of the transaction's records they are."""

    queue: str
    attributes: Attributes | None
    records: list[Record] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Taken:
    """What is acknowledged of a subscription's grants of one session. Hashed by what it is: it keeps back its records
    while it is under way."""

    subscription: Subscription
    session: int
    epoch: int
    parts: list[tuple[Granted, int, int]] = field(default_factory=list)

    __hash__ = object.__hash__

    @property
    def ranges(self) -> list[Range]:
        return joined((first, following) for _, first, following in self.parts)


class Transaction:
    """Made by `Client.transaction`. Committed at the end of its `async with` block, rolled back by an exception in it;
    used once."""

    def __init__(self, transactor: Transactor, *, level: int, durability: int, timeout_ms: int) -> None:
        self._transactor = transactor
        self._level = level
        self._durability = durability
        self._timeout_ms = timeout_ms
        self._groups: dict[tuple[str, Attributes | None], _Group] = {}
        self._taken: dict[tuple[int, int, int], _Taken] = {}
        self._count = 0
        self._over = ""

    # --- what it is of ---

    def send(
        self,
        queue: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[Asked],
    ) -> int:
        """A record for `queue`; which of the receipts will be its. Options as of `Producer.send`. Raises BadInput."""
        self._check_open()
        record = Record(value, key, list(as_headers(headers)), as_timestamp_us(timestamp))
        attributes = asked_attributes(**asked) if asked else None
        group = self._groups.setdefault((queue, attributes), _Group(queue, attributes))
        group.records.append(record)
        group.places.append(self._count)
        self._count += 1
        return self._count - 1

    def ack(self, delivery: Settleable) -> None:
        """Acknowledge a record, or a stretch of a batch, that a subscription of this client has given out. Raises
        BadRequest for one of another client."""
        self._check_open()
        subscription, granted, first, following = delivery.taken
        assert isinstance(subscription, Subscription), "only these give out"
        if subscription.client is not self._transactor.client:
            raise BadRequest(
                f"this record of queue {subscription.queue!r} was given out by another client; acknowledge it in a "
                "transaction of that one"
            )
        key = id(subscription), granted.session, granted.epoch
        taken = self._taken.setdefault(key, _Taken(subscription, granted.session, granted.epoch))
        taken.parts.append((granted, first, following))

    # --- its end ---

    async def commit(self) -> list[Receipt]:
        """Store all of it; receipts in the order in which records were sent. Nothing to store: none.

        Raises Refused or BadInput (CrossLogTransaction, BatchTooLarge, NotGranted, …): nothing of it counts; or
        OutcomeUnknown: all of it may count, or nothing.
        """
        self._check_open()
        self._over = "was committed"
        if not self._groups and not self._taken:
            return []
        taken = list(self._taken.values())
        _settle(taken)
        settled = False
        try:
            async with self._transactor.numbers() as numbers:
                commit = _Commit(self._transactor, list(self._groups.values()), taken, numbers)
                receipts = await commit.run(self._level, self._durability, self._timeout_ms)
            settled = True
        finally:
            _release(taken, settled=settled)
        return receipts

    async def rollback(self) -> None:
        """Nothing of it counts; what it acknowledged is in hand as before."""
        self._check_open()
        self._over = "was rolled back"

    @property
    def over(self) -> bool:
        """Whether it was committed or rolled back."""
        return bool(self._over)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._over:
            return
        if error is None:
            await self.commit()
        else:
            await self.rollback()

    def _check_open(self) -> None:
        if self._over:
            raise BadRequest(f"this transaction {self._over}; make another one")


class _NumbersInUse:
    def __init__(self, idle: list[_Numbers]) -> None:
        self._idle = idle
        self._numbers = idle.pop() if idle else _Numbers()

    async def __aenter__(self) -> _Numbers:
        return self._numbers

    async def __aexit__(self, *_: object) -> None:
        self._idle.append(self._numbers)


class Transactor:
    """What a client keeps for its transactions: as many producer ids as commits were under way at once, and where the
    queues of commits that ended well are, so that the next one need not ask all nodes for them."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.found: dict[str, Sighting] = {}
        self._idle: list[_Numbers] = []

    def numbers(self) -> _NumbersInUse:
        """A producer id for one commit; with `async with`."""
        return _NumbersInUse(self._idle)


class _Commit:
    """One commit, from its first attempt to its end."""

    def __init__(
        self, transactor: Transactor, groups: Sequence[_Group], taken: Sequence[_Taken], numbers: _Numbers
    ) -> None:
        self._client = transactor.client
        self._found = transactor.found
        self._groups = groups
        self._taken = taken
        self._numbers = numbers
        taken_from = [each.subscription.queue for each in taken]
        self._queues = list(dict.fromkeys([*(group.queue for group in groups), *taken_from]))
        self._loop = asyncio.get_running_loop()
        self._queue_ids: dict[str, int] = {}
        self._batches: list[bytearray] = []
        self._following: dict[int, tuple[int, int]] = {}
        # An attempt ended without an answer that says that nothing was stored.
        self._unknown = False
        # Some of the queues were looked for by a commit before.
        self._remembered = False

    async def run(self, level: int, durability: int, timeout_ms: int) -> list[Receipt]:
        try:
            return await self._insist(level, durability, timeout_ms)
        except BaseException as error:
            if self._unknown:
                self._forget_numbers()
            if self._unknown and isinstance(error, MirrorlogError):
                raise OutcomeUnknown(f"the transaction is stored as a whole, or not at all; last: {error}") from None
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
                if not in_time or not (self._looks_again(error) or self._tries_again(error)):
                    raise
            await asyncio.sleep(pause_s)

    def _looks_again(self, error: MirrorlogError) -> bool:
        """Whether that may be said of queues that are not where they were when they were looked for."""
        if self._unknown or not self._remembered or not isinstance(error, _MOVED_QUEUES):
            return False
        self._queue_ids.clear()
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
        connection, found = await self._place()
        payload = transact_payload(
            self._settlements(connection),
            self._batches,
            level=level,
            durability=durability,
            deadline_ms=max(1, timeout_ms * 9 // 10),  # so that its answer comes before the commit's end
        )
        limit = connection.welcome.limits.max_batch_bytes
        if len(payload) > limit:
            raise BatchTooLarge(f"a transaction of {len(payload)} bytes is above max_batch_bytes ({limit}) of the node")
        before, self._unknown = self._unknown, True
        try:
            async with Silence(partial(self._client.has_moved, found), reason=f"{connection.address} was replaced"):
                facts, receipts = await connection.transact(payload, timeout_ms=timeout_ms + _ANSWER_MS)
        except _UNKNOWN as error:
            self._unknown = before or not isinstance(error, Refused)
            raise
        except MirrorlogError:
            self._unknown = before
            raise
        self._count_on()
        return self._receipts(facts, receipts)

    async def _place(self) -> tuple[Connection, Sighting]:
        """The connection to the one master of all of it; numbers the batches. Raises CrossLogTransaction, NoSuchQueue,
        NotMaster, ConnectionLost, BadRequest."""
        sightings = await self._sightings()
        first = sightings[self._queues[0]]
        for found in sightings.values():
            _check_together(first, found)
        self._check_ids(sightings)
        if not self._batches:
            self._encode(sightings)
        connection = await self._client.reach_master(first)
        self._found.update(sightings)
        return connection, first

    async def _sightings(self) -> dict[str, Sighting]:
        """All nodes are asked, once for all queues; no node for those of the commit before. Raises BadRequest while the
        cluster takes no transactions: software that does not know them would close the connection."""
        known = {queue: self._found[queue] for queue in self._queues if queue in self._found}
        self._remembered = bool(known)
        wanted = [queue for queue in self._queues if queue not in known]
        looked_for = await asyncio.gather(*map(self._client.find, wanted))
        for found in looked_for:
            if not found.info.attributes:  # they came with the same version
                raise BadRequest(
                    f"the cluster of queue {found.queue!r} takes no transactions before all its nodes are updated"
                )
        return {**known, **dict(zip(wanted, looked_for, strict=True))}

    def _check_ids(self, sightings: dict[str, Sighting]) -> None:
        """A queue that was deleted and declared anew is another one."""
        for queue, found in sightings.items():
            if self._queue_ids.setdefault(queue, found.queue_id) != found.queue_id:
                raise NoSuchQueue(f"queue {queue!r} was deleted while the transaction was under way", queue=queue)

    def _encode(self, sightings: dict[str, Sighting]) -> None:
        following = dict(self._numbers.following)
        for group in self._groups:
            found = sightings[group.queue]
            epoch, sequence = following.get(found.queue_id, (found.producer_epoch, 0))
            batch = encode_batch(
                group.records,
                queue_id=found.queue_id,
                producer_id=self._numbers.producer_id,
                producer_epoch=epoch,
                sequence=sequence,
                attributes=group.attributes,
            )
            following[found.queue_id] = epoch, sequence + len(group.records)
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
            again = each.session != each.subscription.hand.session
            found.append(
                settle_part(flat(each.ranges), subscription=session.number, epoch=each.epoch, how=How.ACK, again=again)
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
            queue_id = self._queue_ids[queue]
            epoch, _ = self._numbers.following.get(queue_id, (-1, 0))
            self._numbers.following[queue_id] = max(epoch, ended) + 1, 0
        self._batches.clear()

    def _forget_numbers(self) -> None:
        """Nobody knows whether these sequences are in use: the next commit goes on under another producer epoch."""
        for queue in {group.queue for group in self._groups}:
            queue_id = self._queue_ids.get(queue)
            if queue_id is not None:
                epoch = self._following[queue_id][0]
                self._numbers.following[queue_id] = epoch + 1, 0

    def _receipts(self, facts: Transacted, receipts: Sequence[BatchReceipt]) -> list[Receipt]:
        found: dict[int, Receipt] = {}
        duplicate = facts.flags & CONFIRM_DUPLICATE != 0
        for group, (log_offset, base) in zip(self._groups, receipts, strict=True):
            for index, place in enumerate(group.places):
                found[place] = Receipt(base + index, log_offset, facts.epoch, facts.copies, facts.durability, duplicate)
        return [found[place] for place in range(len(found))]


def _check_together(one: Sighting, other: Sighting) -> None:
    if one.info.log_id != other.info.log_id:
        raise CrossLogTransaction(
            f"queue {one.queue!r} is in log {one.info.log_id}, queue {other.queue!r} in log {other.info.log_id}, and a "
            "transaction is of one log; declare them with the same x-log-group to have them in one",
            queues=[one.queue, other.queue],
            logs=[one.info.log_id, other.info.log_id],
        )


def _settle(taken: Sequence[_Taken]) -> None:
    """Nobody else settles them meanwhile, and nothing of them is given out again. Raises NotGranted, and nothing has
    changed then."""
    done: list[_Taken] = []
    marked: list[tuple[Subscription, Granted, int, int]] = []
    try:
        for each in taken:
            for granted, first, following in each.parts:
                each.subscription.hand.settle(granted, first, following)
                marked.append((each.subscription, granted, first, following))
            each.subscription.hand.withhold(each, each.ranges)
            done.append(each)
    except NotGranted:
        for each in done:
            if each.subscription.hand.release(each, settled=False):
                each.subscription.wake()
        for subscription, granted, first, following in marked:
            subscription.hand.reopen(granted, first, following)
        raise


def _release(taken: Sequence[_Taken], *, settled: bool) -> None:
    for each in taken:
        if not settled:
            for part in each.parts:
                each.subscription.hand.reopen(*part)
        if each.subscription.hand.release(each, settled=settled) and not settled:
            each.subscription.wake()
