"""Publishing: a batch from a connection to the log, and its answer back. The hot path.

Per batch, never per record: one CRC pass, one vectorised look at the offsets, a sequence check, one stamp, one copy.
All that can be refused is refused before the append, so that a refusal means that nothing was stored (invariant 9).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence, Set
from itertools import islice
from typing import Final, NamedTuple, Protocol, cast

from mirrorlog import versions
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import ClusterView, Refusing
from mirrorlog.commitlog.format.attributes import attributes_of
from mirrorlog.commitlog.format.body import check_uncompressed
from mirrorlog.commitlog.format.envelope import envelope_bytes
from mirrorlog.commitlog.format.header import (
    OWN_PRODUCERS,
    BatchHeader,
    Column,
    Flag,
    Kind,
    check_producer_part,
    queue_of,
)
from mirrorlog.config import HaSettings, LimitSettings, Member
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    DiskFull,
    FlushDiskTimeout,
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
    LogUnavailable,
    MasterChanged,
    MirrorlogError,
    NodeStopping,
    NoSuchQueue,
    NotMaster,
    OutcomeUnknown,
    Overloaded,
    QueueFull,
    SentToDeadLetters,
    SlaveNotAvailable,
    StaleRouting,
)
from mirrorlog.ha.accept import MasteredLog
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.mastership import Mastership
from mirrorlog.queues.changes import Change
from mirrorlog.queues.dead_letters.message import ADDED_BYTES_MAX
from mirrorlog.queues.limits.credit import Account, Credits, CreditUpdate, Key
from mirrorlog.queues.producers import Landed, landed_of
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, PRODUCE, Credit, Durability, Level, confirm_frame, read_produce
from mirrorlog.wire.messages.status import ProducerStatus
from mirrorlog.wire.names import split
from mirrorlog.wire.routing import is_stale
from mirrorlog.wire.transaction_frames import Transact

logger = logging.getLogger(__name__)

_PRODUCERS_TOLD_MAX: Final = 100

_DURABILITIES = frozenset(map(int, Durability))
_DATA = int(Kind.DATA)
_ATTRIBUTES = int(Column.ATTRIBUTES)
_WHAT = "attributes of batches (priority, time to live, delay)"
_TIMEOUTS: dict[PutStatus, type[OutcomeUnknown]] = {
    PutStatus.FLUSH_SLAVE_TIMEOUT: FlushSlaveTimeout,
    PutStatus.FLUSH_DISK_TIMEOUT: FlushDiskTimeout,
    PutStatus.SLAVE_NOT_AVAILABLE: SlaveNotAvailable,
}


class Reply(Protocol):
    """Where an answer goes; the connection may be gone by then."""

    def answer(self, frame_: bytes) -> None: ...

    def refuse(self, error: MirrorlogError, correlation_id: int) -> None: ...

    def credited(self, credit: Credit) -> None:
        """Say so, if that is asked for."""

    @property
    def peer(self) -> str:
        """Of whom, for people."""


class PendingPublish(NamedTuple):
    """A publish that waits for its copies: whom to answer, and with what.

    `since`: when it came, if it counts among the confirms whose time is told (s, the clock of `now`). Not at level
    none, which waits for nothing, and not when it was sent again: nobody knows here how long its producer has waited.
    `refused`: what it is answered with is that it leaves for dead letters.
    """

    reply: Reply
    correlation_id: int
    log_offset: int
    base_queue_offset: int
    epoch: int
    durability: int
    flags: int
    since: float | None
    refused: bool = False


class ChangeWaiting(NamedTuple):
    """A change of the node's own (a declare, a position) that waits; `done` gets the error, or None for a confirm."""

    done: Callable[[MirrorlogError | None], None]


class TogetherWaiting(NamedTuple):
    """A transaction that waits; `done` gets the error, or None, and how many copies have it.

    `since`: see `PendingPublish`."""

    done: Callable[[MirrorlogError | None, int], None]
    since: float | None


def _admit_all(headers: Sequence[BatchHeader]) -> None:
    """No queue has a limit."""


def _nothing_leaves(header: BatchHeader) -> bytearray | None:
    """No queue sends on what it refuses."""
    return None


class LogPublisher:
    """Takes the publishes of one log that this node masters."""

    def __init__(
        self,
        replica: Replica,
        mastership: Mastership,
        *,
        limits: LimitSettings,
        ha: HaSettings,
        now: Callable[[], float],
        now_us: Callable[[], int],
        view: ClusterView,
        memory: Refusing,
    ) -> None:
        """`now`: s of the loop's clock, as fine as the machine has it. `view`, `memory`: see `Host`."""
        self._replica = replica
        self._counters = replica.counters
        self._mastership = mastership
        self._limits = limits
        self._ha = ha
        self._now = now
        self._now_us = now_us
        self._view = view
        self._memory = memory
        self._credits = Credits(
            bytes_max=limits.credit_bytes,
            batches_max=limits.credit_batches,
            log_bytes_max=limits.max_unconfirmed_bytes,
            line_max=limits.max_waiting_confirms,
        )
        self.log: MasteredLog | None = None
        self.admit: Callable[[Sequence[BatchHeader]], None] = _admit_all
        """Asked of batches that are about to be appended, when nothing else stands against them: see `QueueLengths`."""
        self.leaving: Callable[[BatchHeader], bytearray | None] = _nothing_leaves
        """Asked of a batch that a full queue refuses: the change by which its records leave as they come, if they do;
        see `QueueLengths`."""
        self.stopping = False
        self._why: Callable[[], MirrorlogError] = _node_stopping
        self.data_refused = ""
        """Why the disk takes no data, while it takes none; what is no data goes on."""
        self.closed_queues: set[int] = set()
        """Queues that take no publishes for a moment: they are about to be deleted if they are empty."""
        self.cut_off = False
        """Out of touch with a majority of the cluster: another node may master the log by now."""

    def publish(self, payload: memoryview, reply: Reply, correlation_id: int, *, own: bool = False) -> None:
        """One PRODUCE payload: append its batch and wait for its level. `own`: it is the nodes' own. A compressed body
        was opened before (`unpacking`). Raises MirrorlogError: nothing was stored."""
        now = self._now()
        request = read_produce(payload)
        batch = payload[PRODUCE.size :]
        header = check_producer_part(batch, max_batch_bytes=self._limits.max_batch_bytes)
        self._check(header, batch, own=own)
        if request.durability not in _DURABILITIES:
            raise BadRequest(f"durability {request.durability} is none of 0 (memory) and 1 (disk)")
        copies = self._mastership.progress.copies_for(request.level)
        durability = max(request.durability, self._mastership.durability)
        landed = self._replica.producers.check(header)
        if landed is None:
            flags, log = 0, self._replica.log
            self._admit()
            if request.routing:
                self._check_routing(header.queue_id, request.routing)
            self._check_room()
            account = Key(reply, header.producer_id, header.queue_id)
            self._credits.check(account, distance=log.end - log.confirmed, now=now)
            landed = self._append(batch, header, durability)
            self._credits.appended(
                account,
                end=landed.next_log_offset,
                size=len(batch),
                quiet=request.level == Level.ALL,
                distance=log.end - log.confirmed,
                now=now,
            )
            if not landed.refused:
                self._counters.published(header.record_count, len(batch))
                self._counters.queue(header.queue_id).published.add(header.record_count, now)
        else:
            # Stored already: whatever has happened since, it is wrong to say that nothing was.
            flags = CONFIRM_DUPLICATE
            if not self._mastership.progress.holds(landed.next_log_offset, copies, durability):
                self._mastership.check_room()
        since = now if copies != Level.NONE and not flags else None
        token = PendingPublish(
            reply, correlation_id, landed.log_offset, landed.base_queue_offset, landed.epoch, durability, flags, since,
            landed.refused,
        )  # fmt: skip
        answers = self._mastership.appended(self._replica.log.end)
        answers += self._wait(
            token, landed.next_log_offset, copies, durability, now=now, deadline_ms=request.deadline_ms
        )
        self._progressed(answers)

    def _append(self, batch: memoryview, header: BatchHeader, durability: int) -> Landed:
        """Append it; what a full queue refuses and sends on, in one with what says so. Raises MirrorlogError: nothing
        was stored."""
        queues, queue_id, change = self._replica.queues, header.queue_id, None
        if header.columns & _ATTRIBUTES or queue_id in queues.ttls or queue_id in queues.lengths:
            change = self._admitted(batch, header)
        if durability > self._mastership.durability:
            size = len(batch) if change is None else envelope_bytes([batch, change])
            self._mastership.want_flush(self._replica.log.end + size)  # told with the batch itself
        if change is None:
            return landed_of(self._replica.append(batch, header, self._now_us()))
        both = self._replica.append_transaction([batch, memoryview(change)], self._now_us(), flags=Flag.REFUSED)
        return landed_of(both[0])

    def _admitted(self, batch: memoryview, header: BatchHeader) -> bytearray | None:
        """None: it is appended as it is. The change, if its records leave at once. Raises QueueFull, Overloaded."""
        try:
            self.admit((header,))
        except QueueFull:
            limit = self._limits.max_batch_bytes
            if header.body_at + header.body_length + ADDED_BYTES_MAX > limit:
                raise  # its letter might be more than any queue takes
            change = self.leaving(header)
            if change is None or envelope_bytes([batch, change]) > limit:
                raise
            return change
        return None

    # --- transactions ---

    def checked(self, batch: memoryview) -> BatchHeader:
        """The header of a batch that is to be appended with others, checked as it would be alone. Raises
        MirrorlogError."""
        header = check_producer_part(batch, max_batch_bytes=self._limits.max_batch_bytes)
        self._check(header, batch)
        return header

    def append_together(
        self,
        batches: Sequence[memoryview],
        headers: Sequence[BatchHeader],
        changes: Sequence[memoryview],
        request: Transact,
        reply: Reply,
    ) -> list[BatchHeader]:
        """Append batches of producers, which were `checked`, and changes of acking groups in one envelope; the headers
        of the batches as stamped, then those of the changes. Raises MirrorlogError: nothing was stored."""
        now = self._now()
        if headers:
            self._admit()
        else:  # it goes on when data is refused for overload, as settlements do
            self._check_running()
            self._check_in_touch()
            self._mastership.check_writable()
        _, durability = self.check_level(request)
        accounts = [Key(reply, header.producer_id, header.queue_id) for header in headers]
        for header, account in zip(headers, accounts, strict=True):
            if request.routing:
                self._check_routing(header.queue_id, request.routing)
            self._credits.check(account, distance=self._distance, now=now)
        if headers:
            self._check_room()
        for change in changes:
            self._replica.queues.find_id(queue_of(change))
        self.admit(headers)
        if durability > self._mastership.durability:
            self._mastership.want_flush(
                self._replica.log.end + envelope_bytes([*batches, *changes])
            )  # as `publish` does
        stamped = self._replica.append_transaction([*batches, *changes], self._now_us())
        for header, account in zip(headers, accounts, strict=True):
            self._credits.appended(
                account, end=stamped[-1].next_log_offset, size=header.length, quiet=request.level == Level.ALL,
                distance=self._distance, now=now,
            )  # fmt: skip
            self._counters.published(header.record_count, header.length)
            self._counters.queue(header.queue_id).published.add(header.record_count, now)
        return stamped

    def wait_together(
        self,
        end: int,
        request: Transact,
        done: Callable[[MirrorlogError | None, int], None],
        *,
        again: bool,
        came_at: float,
    ) -> None:
        """Call `done` when everything below `end` is as `request` wants it; `again`: it was stored before; `came_at`: s
        of the clock of `now`. Raises MirrorlogError for a request that cannot be waited for; to be asked before
        anything is stored: `check_level`."""
        copies, durability = self.check_level(request)
        if again and not self._mastership.progress.holds(end, copies, durability):
            self._mastership.check_room()
        token = TogetherWaiting(done, None if again or copies == Level.NONE else came_at)
        answers = self._mastership.appended(self._replica.log.end)
        answers += self._wait(token, end, copies, durability, now=self._now(), deadline_ms=request.deadline_ms)
        self._progressed(answers)

    def clock(self) -> float:
        """What time it is: s of the clock of `now`."""
        return self._now()

    def check_level(self, request: Transact) -> tuple[int, int]:
        """Copies, and the durability of each. Raises BadRequest."""
        if request.durability not in _DURABILITIES:
            raise BadRequest(f"durability {request.durability} is none of 0 (memory) and 1 (disk)")
        copies = self._mastership.progress.copies_for(request.level)
        return copies, max(request.durability, self._mastership.durability)

    # --- credit ---

    @property
    def _distance(self) -> int:
        return self._replica.log.end - self._replica.log.confirmed

    def tell_credit(self, _: Set[int]) -> None:
        """The log's confirmed offset has moved."""
        log, given = self._replica.log, self._credits
        if not given.open and not given.held:
            return
        if told := given.confirmed(log.confirmed, distance=log.end - log.confirmed, now=self._now()):
            self._tell_all(told)

    def _tell_all(self, all_told: Sequence[CreditUpdate]) -> None:
        for told in all_told:
            reply, producer_id, queue_id = told.key
            cast(Reply, reply).credited(
                Credit(producer_id, told.confirmed, told.granted, queue_id, self._limits.credit_batches)
            )

    def tick(self, now: float) -> None:
        """Time passes (s, the clock of `now`): tell of producers that a limit has held for a while."""
        for account in self._credits.blocked_long(now):
            status = self._producer(account, now)
            logger.warning(
                "producer_blocked log=%s queue=%s producer=%s peer=%s limit=%s unconfirmed_bytes=%s blocked_ms=%s",
                self._replica.assignment.name, status.queue, status.producer_id, status.peer, status.blocked_by,
                status.unconfirmed_bytes, status.blocked_ms,
            )  # fmt: skip

    def forget(self, reply: Reply) -> None:
        """Its connection is gone."""
        self._credits.forget(reply)

    @property
    def producers_blocked(self) -> int:
        return self._credits.blocked

    def producers(self) -> list[ProducerStatus]:
        """Those with something that is not confirmed, or held by a limit; these first, and at most 100."""
        now = self._now()
        return [self._producer(account, now) for account in islice(self._credits.told(), _PRODUCERS_TOLD_MAX)]

    def _producer(self, account: Account, now: float) -> ProducerStatus:
        reply, producer_id, queue_id = account.key
        return ProducerStatus(
            queue=self._replica.queues.find_id(queue_id).name if self._replica.queues.has_id(queue_id) else "",
            producer_id=producer_id,
            peer=cast(Reply, reply).peer,
            unconfirmed_bytes=account.size,
            unconfirmed_batches=account.batches,
            blocked_by=account.blocked_by,
            blocked_ms=int((now - account.blocked_at) * 1000) if account.blocked_by else 0,
            refused=account.refused,
        )

    # --- changes of the node's own ---

    def append_change(self, batch: bytearray, done: Callable[[MirrorlogError | None], None]) -> None:
        """Append a control or queue-state batch; `done` is called at its confirm by all, or at the deadline.

        Raises MirrorlogError: nothing was stored.
        """
        self._admit()
        stamped = self._replica.append_change(batch, self._now_us())
        self._wait_for_all(stamped.next_log_offset, done)

    def append_control(self, batch: bytearray) -> None:
        """Append a change of the node's own that nobody waits for (a checkpoint, where the log begins): it goes on when
        data is refused for overload (invariant 14). Raises MirrorlogError: nothing was stored."""
        self._check_running()
        self._mastership.check_writable()
        self._replica.append_change(batch, self._now_us())
        self._progressed(self._mastership.appended(self._replica.log.end))

    def append_settlement(self, batch: bytearray, changes: Sequence[Change] | None = None) -> int:
        """Append a change of an acking group; where it ends. `changes`: see `Replica.append`. It goes on when data is
        refused for overload, and is awaited with `wait_at`, if anybody waits. Raises MirrorlogError: nothing was
        stored."""
        self._check_running()
        self._check_in_touch()
        self._replica.queues.find_id(queue_of(batch))  # deleted, perhaps, while this waited: nothing of it comes behind
        self._mastership.check_writable()
        stamped = self._replica.append_change(batch, self._now_us(), changes)
        self._progressed(self._mastership.appended(self._replica.log.end))
        return stamped.log_offset + stamped.length

    def wait_at(self, end: int, copies: int, done: Callable[[MirrorlogError | None], None]) -> None:
        """Call `done`, as `append_change` does, when so many copies (`copies_for`) hold everything below `end`, which
        was appended before."""
        durability = self._mastership.durability
        if answers := self._wait(ChangeWaiting(done), end, copies, durability, now=self._now(), deadline_ms=0):
            self._progressed(answers)

    def copies_for(self, level: int) -> int:
        """Raises BadRequest for a confirm level of more copies than there are."""
        return self._mastership.progress.copies_for(level)

    def when_confirmed(self, done: Callable[[MirrorlogError | None], None]) -> None:
        """Call `done`, as `append_change` does, when everything that is in the log now is confirmed by all.

        Raises MirrorlogError when nothing can be confirmed.
        """
        self._admit()
        self._wait_for_all(self._replica.log.end, done)

    def _wait_for_all(self, end: int, done: Callable[[MirrorlogError | None], None]) -> None:
        answers, durability = self._mastership.appended(self._replica.log.end), self._mastership.durability
        answers += self._wait(ChangeWaiting(done), end, ALL_MEMBERS, durability, now=self._now(), deadline_ms=0)
        self._progressed(answers)

    def stop(self, why: Callable[[], MirrorlogError] | None = None) -> None:
        """Take nothing from now on, for the reason that `why` makes anew for each; by default, the node stops."""
        self._why = why or self._why
        self.stopping = True

    def abandon(self, unknown: Callable[[], MirrorlogError]) -> None:
        """Tell all who wait that no confirm will come, and all whose credit counts here that it does not any more: who
        is held by it may wait for nothing else. After `stop`."""
        for token in self._mastership.abandon():
            self._tell(token, unknown())
        self._tell_all(self._credits.ended())

    def answer(self, answer: Answer) -> None:
        """A wait has ended: tell its owner."""
        token = answer.token
        if answer.status is not PutStatus.PUT_OK:
            self._tell(token, _timeout(answer, self._mastership))
            return
        if isinstance(token, ChangeWaiting):
            token.done(None)
            return
        assert isinstance(token, PendingPublish | TogetherWaiting)
        if token.since is not None:
            self._counters.confirms.note(self._now() - token.since)
        if isinstance(token, TogetherWaiting):
            token.done(None, answer.copies)
            return
        if token.refused:
            token.reply.refuse(_sent_on(), token.correlation_id)
            return
        token.reply.answer(
            confirm_frame(
                log_offset=token.log_offset,
                base_queue_offset=token.base_queue_offset,
                epoch=token.epoch,
                copies=answer.copies,
                durability=token.durability,
                flags=token.flags,
                correlation_id=token.correlation_id,
            )
        )

    def _tell(self, token: Hashable, error: MirrorlogError) -> None:
        if isinstance(token, ChangeWaiting):
            token.done(error)
        elif isinstance(token, TogetherWaiting):
            self._counters.unknown[error.code] += 1
            token.done(error, 0)
        else:
            assert isinstance(token, PendingPublish)
            self._counters.unknown[error.code] += 1
            token.reply.refuse(error, token.correlation_id)

    def _check(self, header: BatchHeader, batch: memoryview, *, own: bool = False) -> None:
        if header.kind != _DATA:
            raise BadBatch(f"a producer sends kind {Kind.DATA}, not {header.kind}")
        if header.producer_id >= OWN_PRODUCERS and not own:
            raise BadRequest(f"producer ids from {OWN_PRODUCERS} on are the nodes' own; draw one of 63 bits")
        if not self._replica.queues.has_id(header.queue_id):
            raise NoSuchQueue(f"no queue has the id {header.queue_id}; ask for the queue's metadata again")
        if header.queue_id in self.closed_queues:
            raise LogUnavailable("this queue is being deleted if it is empty; nothing was stored, send it again")
        if header.columns & _ATTRIBUTES:
            self._check_attributes(header, batch)
        if header.codec:
            self._check_compressed(header)
            return
        if header.body_length != header.length - header.body_at - header.padding:
            raise BadBatch(f"a body of {header.body_length} bytes does not fit a batch of {header.length}")
        check_uncompressed(
            batch,
            record_count=header.record_count,
            columns=header.columns,
            # A value that somebody's compressed batch brought is opened when it leaves: the cluster has taken it.
            max_record_bytes=self._limits.max_batch_bytes if own else self._limits.max_record_bytes,
        )

    def _check_attributes(self, header: BatchHeader, batch: memoryview) -> None:
        """They are within their limits, and every copy's software knows them."""
        if (older := versions.too_old(self._view.cluster_version(), versions.ATTRIBUTES, _WHAT)) is not None:
            raise BadRequest(older.message, **older.details)  # the connection stays
        attributes_of(header, batch)

    def _check_compressed(self, header: BatchHeader) -> None:
        """What its header says of the body is held against the limits: nobody unpacks more than that. Every record has
        an offset of 4 bytes at least; so a count that the body cannot hold, which would use up queue offsets, is
        seen."""
        limit = self._limits.max_batch_bytes
        if header.body_length > limit:
            raise BatchTooLarge(f"an unpacked body of {header.body_length} bytes is above max_batch_bytes ({limit})")
        if 4 * (header.record_count + 1) > header.body_length:
            raise BadBatch(f"{header.record_count} records do not fit a body of {header.body_length} bytes")

    def _check_routing(self, queue_id: int, stamped: int) -> None:
        """Not of what has landed already: sent again, it is what it was."""
        virtual_host = split(self._replica.queues.find_id(queue_id).name)[0]
        version = self._view.routing_version(virtual_host)
        if version and is_stale(stamped, version):
            raise StaleRouting(
                f"bindings of virtual host {virtual_host} have changed since this was routed; nothing was stored, "
                "route it again",
                version=version,
            )

    def _admit(self) -> None:
        if self.stopping or self.cut_off:
            self._check_running()
            self._check_in_touch()
        self._mastership.admit()

    def _check_room(self) -> None:
        """Data is refused for want of room; what is no data goes on. Raises DiskFull, Overloaded."""
        if self.data_refused:
            raise DiskFull(self.data_refused)
        if self._memory.refusal:
            raise Overloaded(self._memory.refusal, limit="memory_high_percent")

    def _check_in_touch(self) -> None:
        if self.cut_off:
            raise InSyncReplicasNotEnough(
                f"log {self._replica.assignment.name}: this node is not in touch with a majority of its cluster, and "
                "may have been replaced; nothing was stored",
            )

    def _check_running(self) -> None:
        if self.stopping:
            raise self._why()

    def _wait(
        self,
        token: PendingPublish | ChangeWaiting | TogetherWaiting,
        end: int,
        copies: int,
        durability: int,
        *,
        now: float,
        deadline_ms: int,
    ) -> list[Answer]:
        """Have it wait; its answer, if that is known at once."""
        timeout_ms = self._ha.sync_flush_timeout_ms
        if deadline_ms:
            timeout_ms = min(timeout_ms, deadline_ms)
        deadline = now + timeout_ms / 1000
        answers = self._mastership.wait(token, end=end, copies=copies, durability=durability, deadline=deadline)
        if durability > self._mastership.durability and end > self._replica.log.flushed:
            self._replica.ask_flush()
        return answers

    def _progressed(self, answers: list[Answer]) -> None:
        """What was appended may have its copies already: the log has one alone."""
        assert self.log is not None
        if answers or self._mastership.progress.confirmed > self._replica.log.confirmed:
            self.log.progressed(answers)


class ElsewhereLog:
    """Stands where a Publisher stands, on a node that does not master the log: it refuses and names who does, if that
    is known."""

    def __init__(self, name: str, master: Member | None) -> None:
        self._name = name
        self._master = master

    def publish(self, payload: memoryview, reply: Reply, correlation_id: int, *, own: bool = False) -> None:
        raise self.refusal()

    def forget(self, reply: Reply) -> None:
        """It has nothing here."""

    def append_change(self, batch: bytearray, done: Callable[[MirrorlogError | None], None]) -> None:
        raise self.refusal()

    def when_confirmed(self, done: Callable[[MirrorlogError | None], None]) -> None:
        raise self.refusal()

    def refusal(self) -> NotMaster:
        """A new one each time: an exception keeps the frames of everybody who ever raised it, and what they hold."""
        return not_master(self._name, self._master)

    def unknown(self) -> MasterChanged:
        """What is said of a batch that waited here when the log left; a new one each time."""
        again = "the batch is stored perhaps; send the identical one"
        if self._master is None:
            return MasterChanged(f"this node does not write log {self._name} any more: {again} to its next master")
        return MasterChanged(
            f"log {self._name} is now written by node {self._master.id} at {self._master.client}: {again} there",
            **_place_of(self._master),
        )


def not_master(log: str, master: Member | None) -> NotMaster:
    """The refusal of a node that does not write the log, with the address of the one that does."""
    if master is None:
        return NotMaster(f"log {log} is not written by this node, and by which is not decided; ask again")
    return NotMaster(f"log {log} is written by node {master.id} at {master.client}", **_place_of(master))


def _place_of(master: Member) -> dict[str, str]:
    return {"master": master.client, "node": master.id}


def _node_stopping() -> NodeStopping:
    return NodeStopping("this node is stopping; nothing was stored")


def _sent_on() -> SentToDeadLetters:
    return SentToDeadLetters(
        "the queue was full (x-max-length, x-max-length-bytes): this is not in it, and goes to its dead letter "
        "exchange; do not send it again"
    )


def _timeout(answer: Answer, mastership: Mastership) -> OutcomeUnknown:
    kind = _TIMEOUTS[answer.status]
    return kind(
        f"stored on the master, {answer.copies} of {mastership.progress.copies} copies have it, "
        f"{mastership.copies_up} are up; send the identical batch again",
        copies=answer.copies,
        copies_up=mastership.copies_up,
    )
