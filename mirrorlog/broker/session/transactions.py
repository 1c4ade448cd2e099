"""Transactions: batches of several queues and settlements of several groups of one log, stored in one envelope. Thin:
who may is the gate's to say, what may be stored the publisher's, what may be settled the deliverer's.

Everything is checked before anything is stored, so a refusal means that nothing was. One append follows, in the same
step of the loop. What was sent before is known by the sequences of its batches, which land together or not at all, and
is answered as the first time, whatever it settled: that is in the same envelope. One that settles and publishes nothing
may be sent again too, since settling twice is settling once; returning twice is not, and clients do not say it twice on
one session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from mirrorlog import versions
from mirrorlog.broker.consumer_groups.active_groups import in_batches, merged
from mirrorlog.broker.consumer_groups.settlement import check_settle
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import ElsewhereLog
from mirrorlog.broker.ports import Receiver, Reply, Within
from mirrorlog.broker.session.authorization import Gate
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.commitlog.format.envelope import envelope_bytes
from mirrorlog.commitlog.format.header import NO_PRODUCER, BatchHeader, batch_length, queue_of
from mirrorlog.config import LimitSettings
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    CrossLogTransaction,
    MirrorlogError,
    NotGranted,
    OutOfSequence,
    SettledOtherwise,
)
from mirrorlog.ha.group_transfer import ALL_MEMBERS
from mirrorlog.queues.changes import Change, encode_changes
from mirrorlog.queues.limits.credit import Key
from mirrorlog.queues.producers import REMEMBERED_BATCHES, Landed, ProducerTable
from mirrorlog.queues.queue_table import log_number_of
from mirrorlog.queues.ranges import RangeSet
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, How, Level, Settle
from mirrorlog.wire.names import shown
from mirrorlog.wire.transaction_frames import BatchReceipt, Transact, Transacted, read_transact, transacted_frame

_WHAT: Final = "transactions"
_HOWS: Final = frozenset({How.ACK, How.RETURN, How.DEAD})


class TransactionConnection(Reply, Receiver, Protocol):
    """The connection that sent it."""

    @property
    def gate(self) -> Gate: ...


class _TransactionRequest(NamedTuple):
    request: Transact
    settlements: Sequence[tuple[Settle, tuple[int, ...]]]
    batches: list[memoryview]


@dataclass(frozen=True, slots=True)
class _Caller:
    """Whom to answer, about what, that came when."""

    connection: TransactionConnection
    correlation_id: int
    request: Transact
    came_at: float

    def answer(
        self, receipts: Sequence[BatchReceipt], epoch: int, flags: int, error: MirrorlogError | None, copies: int
    ) -> None:
        """Its copies have it, or why nobody knows."""
        if error is not None:
            self.connection.refuse(error, self.correlation_id)
            return
        log_offset = receipts[0].log_offset if receipts else 0
        facts = Transacted(log_offset, epoch, copies, self.request.durability, flags, len(receipts), 0)
        self.connection.answer(transacted_frame(facts, receipts, self.correlation_id))


class Transactions:
    """Of all logs of a node. `cluster_version`: what may be written."""

    def __init__(
        self, logs: HostedLogs, book: SubscriptionBook, limits: LimitSettings, cluster_version: Callable[[], int]
    ) -> None:
        self._logs = logs
        self._book = book
        self._limits = limits
        self._cluster_version = cluster_version

    def batches(self, payload: memoryview, connection: TransactionConnection) -> list[memoryview]:
        """Those of a TRANSACT frame, which the connection may publish. Raises MirrorlogError."""
        batches = self._read(payload).batches
        for batch in batches:
            connection.gate.check_publish(queue_of(batch))
        return batches

    def commit(self, payload: memoryview, connection: TransactionConnection, correlation_id: int) -> None:
        """A TRANSACT frame whose batches were opened; answered by TRANSACTED, now or later. Raises MirrorlogError:
        nothing was stored."""
        asked = self._read(payload)
        queue_ids = [queue_of(batch) for batch in asked.batches]
        for queue_id in queue_ids:
            connection.gate.check_publish(queue_id)
        log, publisher = self._log_of(queue_ids or self._taken_from(asked, connection))
        # Of the master alone: who has not heard the cluster yet knows the version of its founding.
        if (older := versions.too_old(self._cluster_version(), versions.TRANSACTIONS, _WHAT)) is not None:
            raise BadRequest(older.message, **older.details)  # the connection stays
        came_at = publisher.now()
        headers = [publisher.checked(batch) for batch in asked.batches]
        publisher.check_level(asked.request)
        landed = _landed(headers, log.replica.producers)
        caller = _Caller(connection, correlation_id, asked.request, came_at)
        if landed:
            self._answer_again(landed, publisher, caller)
        else:
            self._log_of([*queue_ids, *self._taken_from(asked, connection)])
            self._store(asked, headers, log, caller)

    # --- inside ---

    def _read(self, payload: memoryview) -> _TransactionRequest:
        request, settlements, content = read_transact(payload)
        if not request.batch_count and not request.settle_count:
            raise BadRequest("an empty transaction; there is nothing to commit")
        ranges = sum(settle.range_count for settle, _ in settlements)
        if ranges > self._limits.max_ranges_per_settle:
            raise BadRequest(
                f"{ranges} ranges in one transaction are above the limit of {self._limits.max_ranges_per_settle} "
                "(limits.max_ranges_per_settle)"
            )
        return _TransactionRequest(request, settlements, _batches(content, request.batch_count))

    def _taken_from(self, asked: _TransactionRequest, connection: TransactionConnection) -> list[int]:
        """The queues of which records are acknowledged. Raises NoSuchSubscription, AccessRefused."""
        found: list[int] = []
        for settle, _ in asked.settlements:
            deliverer = self._book.deliverer(settle.subscription, connection)
            found.append(deliverer.queue_of(settle.subscription))
            connection.gate.check_fetch(found[-1])
        return found

    def _log_of(self, queue_ids: Sequence[int]) -> tuple[HostedLog, LogPublisher]:
        """The one log that all these queues are in. Raises CrossLogTransaction, NotMaster, or why there is none."""
        first, *others = queue_ids
        place = self._place(first) if others else None
        for other in others:
            if self._place(other) != place:
                raise self._crossing(first, other)
        log = self._logs.of_queue(first)
        publisher = log.publisher
        if isinstance(publisher, ElsewhereLog):
            raise publisher.refusal()
        return log, publisher

    def _place(self, queue_id: int) -> object:
        """The log that has a queue; where this node does not know it, its number."""
        try:
            return self._logs.of_queue(queue_id)
        except MirrorlogError:
            return log_number_of(queue_id)

    def _crossing(self, one: int, other: int) -> CrossLogTransaction:
        queues, logs = zip(*map(self._known_as, (one, other)), strict=True)
        return CrossLogTransaction(
            f"queue {queues[0]} is in log {logs[0]}, queue {queues[1]} in log {logs[1]}, and a transaction is of one "
            "log; declare them with the same x-log-group to have them in one",
            queues=list(queues),
            logs=list(logs),
        )

    def _known_as(self, queue_id: int) -> tuple[str, str]:
        """A queue and its log, for people, as far as this node knows them."""
        try:
            log = self._logs.of_queue(queue_id)
            return shown(log.replica.queues.find_id(queue_id).name), log.name
        except MirrorlogError:
            return f"number {queue_id}", f"number {log_number_of(queue_id)}"

    def _answer_again(self, landed: Sequence[Landed], publisher: LogPublisher, caller: _Caller) -> None:
        receipts = [BatchReceipt(each.log_offset, each.base_queue_offset) for each in landed]
        done = partial(caller.answer, receipts, landed[0].epoch, CONFIRM_DUPLICATE)
        publisher.wait_together(
            max(each.next_log_offset for each in landed), caller.request, done, again=True, came_at=caller.came_at
        )

    def _store(
        self, asked: _TransactionRequest, headers: Sequence[BatchHeader], log: HostedLog, caller: _Caller
    ) -> None:
        if any(header.producer_id == NO_PRODUCER for header in headers):
            raise BadRequest("batches of a transaction are numbered: without a producer id a retry would land twice")
        if headers and max(Counter(header.queue_id for header in headers).values()) > REMEMBERED_BATCHES:
            raise BadRequest(f"a transaction has up to {REMEMBERED_BATCHES} batches of one queue; join some of them")
        publisher = log.publisher
        assert isinstance(publisher, LogPublisher)
        try:
            within = self._settled(asked.settlements, caller.connection, whole=bool(headers))
        except SettledOtherwise as error:
            # What stands is said when that is confirmed: another master may never have heard of it.
            refused = error
            publisher.wait_at(
                log.replica.log.end,
                ALL_MEMBERS,
                lambda unknown: caller.connection.refuse(unknown or refused, caller.correlation_id),
            )
            return
        changes = [memoryview(each) for each in _changes(within)]
        size = envelope_bytes([*asked.batches, *changes])
        if size > self._limits.max_batch_bytes:
            raise BatchTooLarge(
                f"a transaction of {size} bytes is above max_batch_bytes ({self._limits.max_batch_bytes})"
            )
        receipts: list[BatchReceipt] = []
        end = log.replica.log.end
        if headers or changes:
            stamped = _append(publisher, asked, headers, changes, caller)
            receipts = [BatchReceipt(each.log_offset, each.base_queue_offset) for each in stamped[: len(headers)]]
            end = stamped[-1].next_log_offset
        for each in within:
            each.deliverer.logged_within(each)
        done = partial(caller.answer, receipts, log.replica.log.epochs.current, 0)
        publisher.wait_together(end, caller.request, done, again=False, came_at=caller.came_at)

    def _settled(
        self, settlements: Sequence[tuple[Settle, tuple[int, ...]]], connection: TransactionConnection, *, whole: bool
    ) -> list[Within]:
        """`whole`: what is settled already refuses all of it; what only acknowledges may be told twice. Raises
        NotGranted, and as `Deliverer.settle_within`."""
        within: list[Within] = []
        seen: dict[int, RangeSet] = {}
        for settle, ranges in settlements:
            if settle.how not in _HOWS:
                raise BadRequest(
                    f"a transaction acknowledges, returns or rejects records; how {settle.how} is not part of one"
                )
            check_settle(settle.how, settle.delay_ms)
            deliverer = self._book.deliverer(settle.subscription, connection)
            each = deliverer.settle_within(settle, ranges, whole=whole)
            before = seen.setdefault(id(each.work), RangeSet())
            for first, until in each.settlement.ranges:
                if before.meets(first, until):
                    raise NotGranted(f"records {first} to {until} are settled twice in one transaction")
                before.add(first, until)
            within.append(each)
        return within


def _append(
    publisher: LogPublisher,
    asked: _TransactionRequest,
    headers: Sequence[BatchHeader],
    changes: Sequence[memoryview],
    caller: _Caller,
) -> list[BatchHeader]:
    """Append its batches, which were `checked`, and its changes in one envelope; the headers of the batches as stamped,
    then those of the changes. Raises MirrorlogError: nothing was stored."""
    now, request, log = publisher.now(), caller.request, publisher.replica.log
    parts = [*asked.batches, *changes]
    if headers:
        publisher.check_admitted()
    else:  # it goes on when data is refused for overload, as settlements do
        publisher.check_running()
        publisher.check_in_touch()
        publisher.mastership.check_writable()
    _, durability = publisher.check_level(request)
    accounts = [Key(caller.connection, header.producer_id, header.queue_id) for header in headers]
    for header, account in zip(headers, accounts, strict=True):
        if request.routing:
            publisher.check_routing(header.queue_id, request.routing)
        publisher.credits.check(account, distance=publisher.distance, now=now)
    if headers:
        publisher.check_room()
    for change in changes:
        publisher.replica.queues.find_id(queue_of(change))
    publisher.admit(headers)
    if durability > publisher.mastership.durability:
        publisher.mastership.want_flush(log.end + envelope_bytes(parts))  # as `publish` does
    stamped = publisher.replica.append_transaction(parts, publisher.now_us())
    for header, account in zip(headers, accounts, strict=True):
        publisher.credits.appended(
            account, end=stamped[-1].next_log_offset, size=header.length, quiet=request.level == Level.ALL,
            distance=publisher.distance, now=now,
        )  # fmt: skip
        publisher.counters.published(header.record_count, header.length)
        publisher.counters.queue(header.queue_id).published.add(header.record_count, now)
    return stamped


def _batches(content: memoryview, count: int) -> list[memoryview]:
    """Raises BadBatch when it is not so many batches, and nothing else."""
    batches: list[memoryview] = []
    for _ in range(count):
        size = batch_length(content)
        if not 0 < size <= len(content):
            raise BadBatch(f"a batch of {size} bytes where a transaction has {len(content)} left")
        batches.append(content[:size])
        content = content[size:]
    if len(content):
        raise BadBatch(f"a transaction has {len(content)} bytes behind its last batch")
    return batches


def _changes(within: Iterable[Within]) -> Iterable[bytearray]:
    """The settlements as batches, those of a group together."""
    by_group: dict[tuple[int, str], list[Change]] = {}
    for each in within:
        by_group.setdefault(each.work.key, []).extend(each.settlement.changes)
    for (queue_id, group), changes in by_group.items():
        for batch in in_batches(merged(group, changes)):
            yield encode_changes(batch, queue_id=queue_id)


def _landed(headers: Sequence[BatchHeader], producers: ProducerTable) -> list[Landed]:
    """Where its batches stand, if they landed before; none if all of it is new. Raises OutOfSequence or BadBatch, for
    what was in another transaction too or was refused alone, and StaleProducerEpoch."""
    found: list[Landed] = []
    following: dict[tuple[int, int], tuple[int, int]] = {}
    for header in headers:
        key, expected = (header.producer_id, header.queue_id), (header.producer_epoch, header.sequence)
        if following.get(key) == expected:
            landed = None  # behind one that is new, too
        else:
            landed = producers.check(header)
            if landed is None and key in following:
                raise OutOfSequence(f"sequence {header.sequence} does not follow that before it in its transaction")
        if landed is None:
            following[key] = (header.producer_epoch, header.next_sequence)
        else:
            found.append(landed)
    if found and (len(found) < len(headers) or any(map(_apart, found, found[1:]))):
        raise BadBatch("batches of this transaction were sent before, in other ones; a retry sends the identical ones")
    if any(each.refused for each in found):
        raise BadBatch(
            "batches of this transaction were sent before, alone, and went to dead letters, for the queue was full; "
            "nothing of it counts"
        )
    return found


def _apart(one: Landed, other: Landed) -> bool:
    """Whether two batches did not land in one envelope; of those that their queues have brought along nobody knows."""
    return not (one.moved or other.moved) and one.next_log_offset != other.log_offset
