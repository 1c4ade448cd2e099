"""Publishing: a batch from a connection to the log, and its answer back. The hot path.

Per batch, never per record: one CRC pass, one vectorised look at the offsets, a sequence check, one stamp, one copy.
All that can be refused is refused before the append, so that a refusal means that nothing was stored (invariant 9).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Final, NamedTuple, cast

from mirrorlog import versions
from mirrorlog.broker.log.refusals import node_stopping, sent_to_dead_letters, timed_out
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import ClusterView, Refusing, Reply
from mirrorlog.commitlog.format.attributes import attributes_of
from mirrorlog.commitlog.format.body_reader import check_uncompressed
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
from mirrorlog.config import HaSettings, LimitSettings
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    BatchTooLarge,
    DiskFull,
    InSyncReplicasNotEnough,
    LogUnavailable,
    MirrorlogError,
    Overloaded,
    QueueFull,
    StaleRouting,
)
from mirrorlog.ha.accept import MasteredLog
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.mastership import Mastership
from mirrorlog.queues.changes import Change
from mirrorlog.queues.dead_letters.message import ADDED_BYTES_MAX
from mirrorlog.queues.limits.credit import Credits, CreditUpdate, Key
from mirrorlog.queues.producers import Landed, landed_of
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, PRODUCE, Credit, Durability, Level, confirm_frame, read_produce
from mirrorlog.wire.names import split
from mirrorlog.wire.routing import is_stale
from mirrorlog.wire.transaction_frames import Transact

logger = logging.getLogger(__name__)

_PRODUCERS_TOLD_MAX: Final = 100

_DURABILITIES = frozenset(map(int, Durability))
_DATA = int(Kind.DATA)
_ATTRIBUTES = int(Column.ATTRIBUTES)
_WHAT = "attributes of batches (priority, time to live, delay)"


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
        self.replica = replica
        self.counters = replica.counters
        self.mastership = mastership
        self._limits = limits
        self._ha = ha
        self.now = now
        self.now_us = now_us
        self._view = view
        self._memory = memory
        self.credits = Credits(
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
        self._why: Callable[[], MirrorlogError] = node_stopping
        self.data_refused = ""
        """Why the disk takes no data, while it takes none; what is no data goes on."""
        self.closed_queues: set[int] = set()
        """Queues that take no publishes for a moment: they are about to be deleted if they are empty."""
        self.cut_off = False
        """Out of touch with a majority of the cluster: another node may master the log by now."""

    def publish(self, payload: memoryview, reply: Reply, correlation_id: int, *, own: bool = False) -> None:
        """One PRODUCE payload: append its batch and wait for its level. `own`: it is the nodes' own. A compressed body
        was opened before (`unpacking`). Raises MirrorlogError: nothing was stored."""
        now = self.now()
        request = read_produce(payload)
        batch = payload[PRODUCE.size :]
        header = check_producer_part(batch, max_batch_bytes=self._limits.max_batch_bytes)
        self._check(header, batch, own=own)
        if request.durability not in _DURABILITIES:
            raise BadRequest(f"durability {request.durability} is none of 0 (memory) and 1 (disk)")
        copies = self.mastership.progress.copies_for(request.level)
        durability = max(request.durability, self.mastership.durability)
        landed = self.replica.producers.check(header)
        if landed is None:
            flags, log = 0, self.replica.log
            self.check_admitted()
            if request.routing:
                self.check_routing(header.queue_id, request.routing)
            self.check_room()
            account = Key(reply, header.producer_id, header.queue_id)
            self.credits.check(account, distance=log.end - log.confirmed, now=now)
            landed = self._append(batch, header, durability)
            self.credits.appended(
                account,
                end=landed.next_log_offset,
                size=len(batch),
                quiet=request.level == Level.ALL,
                distance=log.end - log.confirmed,
                now=now,
            )
            if not landed.refused:
                self.counters.published(header.record_count, len(batch))
                self.counters.queue(header.queue_id).published.add(header.record_count, now)
        else:
            # Stored already: whatever has happened since, it is wrong to say that nothing was.
            flags = CONFIRM_DUPLICATE
            if not self.mastership.progress.holds(landed.next_log_offset, copies, durability):
                self.mastership.check_room()
        since = now if copies != Level.NONE and not flags else None
        token = PendingPublish(
            reply, correlation_id, landed.log_offset, landed.base_queue_offset, landed.epoch, durability, flags, since,
            landed.refused,
        )  # fmt: skip
        answers = self.mastership.appended(self.replica.log.end)
        answers += self._wait(
            token, landed.next_log_offset, copies, durability, now=now, deadline_ms=request.deadline_ms
        )
        self._progressed(answers)

    def _append(self, batch: memoryview, header: BatchHeader, durability: int) -> Landed:
        """Append it; what a full queue refuses and sends on, in one with what says so. Raises MirrorlogError: nothing
        was stored."""
        queues, queue_id, change = self.replica.queues, header.queue_id, None
        if header.columns & _ATTRIBUTES or queue_id in queues.ttls or queue_id in queues.lengths:
            change = self._admitted(batch, header)
        if durability > self.mastership.durability:
            size = len(batch) if change is None else envelope_bytes([batch, change])
            self.mastership.want_flush(self.replica.log.end + size)  # told with the batch itself
        if change is None:
            return landed_of(self.replica.append(batch, header, self.now_us()))
        both = self.replica.append_transaction([batch, memoryview(change)], self.now_us(), flags=Flag.REFUSED)
        return landed_of(both[0])

    def _admitted(self, batch: memoryview, header: BatchHeader) -> bytearray | None:
        """None: it is appended as it is. The change, if its records leave at once. Raises QueueFull, Overloaded."""
        try:
            self.admit((header,))
        except QueueFull:
            limit = self._limits.max_batch_bytes
            if header.body_at + header.body_length + ADDED_BYTES_MAX > limit:
                raise  # its dead letter might be more than any queue takes
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
        if again and not self.mastership.progress.holds(end, copies, durability):
            self.mastership.check_room()
        token = TogetherWaiting(done, None if again or copies == Level.NONE else came_at)
        answers = self.mastership.appended(self.replica.log.end)
        answers += self._wait(token, end, copies, durability, now=self.now(), deadline_ms=request.deadline_ms)
        self._progressed(answers)

    def check_level(self, request: Transact) -> tuple[int, int]:
        """Copies, and the durability of each. Raises BadRequest."""
        if request.durability not in _DURABILITIES:
            raise BadRequest(f"durability {request.durability} is none of 0 (memory) and 1 (disk)")
        copies = self.mastership.progress.copies_for(request.level)
        return copies, max(request.durability, self.mastership.durability)

    # --- credit ---

    @property
    def distance(self) -> int:
        return self.replica.log.end - self.replica.log.confirmed

    def tell_credit(self, _: Set[int]) -> None:
        """The log's confirmed offset has moved."""
        log, given = self.replica.log, self.credits
        if not given.open and not given.held:
            return
        if told := given.confirmed(log.confirmed, distance=log.end - log.confirmed, now=self.now()):
            self._tell_all(told)

    def _tell_all(self, all_told: Sequence[CreditUpdate]) -> None:
        for told in all_told:
            reply, producer_id, queue_id = told.key
            cast(Reply, reply).credited(
                Credit(producer_id, told.confirmed, told.granted, queue_id, self._limits.credit_batches)
            )

    def forget(self, reply: Reply) -> None:
        """Its connection is gone."""
        self.credits.forget(reply)

    # --- changes of the node's own ---

    def append_change(self, batch: bytearray, done: Callable[[MirrorlogError | None], None]) -> None:
        """Append a control or queue-state batch; `done` is called at its confirm by all, or at the deadline.

        Raises MirrorlogError: nothing was stored.
        """
        self.check_admitted()
        stamped = self.replica.append_change(batch, self.now_us())
        self._wait_for_all(stamped.next_log_offset, done)

    def append_control(self, batch: bytearray) -> None:
        """Append a change of the node's own that nobody waits for (a checkpoint, where the log begins): it goes on when
        data is refused for overload (invariant 14). Raises MirrorlogError: nothing was stored."""
        self.check_running()
        self.mastership.check_writable()
        self.replica.append_change(batch, self.now_us())
        self._progressed(self.mastership.appended(self.replica.log.end))

    def append_settlement(self, batch: bytearray, changes: Sequence[Change] | None = None) -> int:
        """Append a change of an acking group; where it ends. `changes`: see `Replica.append`. It goes on when data is
        refused for overload, and is awaited with `wait_at`, if anybody waits. Raises MirrorlogError: nothing was
        stored."""
        self.check_running()
        self.check_in_touch()
        self.replica.queues.find_id(queue_of(batch))  # deleted, perhaps, while this waited: nothing of it comes behind
        self.mastership.check_writable()
        stamped = self.replica.append_change(batch, self.now_us(), changes)
        self._progressed(self.mastership.appended(self.replica.log.end))
        return stamped.log_offset + stamped.length

    def wait_at(self, end: int, copies: int, done: Callable[[MirrorlogError | None], None]) -> None:
        """Call `done`, as `append_change` does, when so many copies (`copies_for`) hold everything below `end`, which
        was appended before."""
        durability = self.mastership.durability
        if answers := self._wait(ChangeWaiting(done), end, copies, durability, now=self.now(), deadline_ms=0):
            self._progressed(answers)

    def copies_for(self, level: int) -> int:
        """Raises BadRequest for a confirm level of more copies than there are."""
        return self.mastership.progress.copies_for(level)

    def when_confirmed(self, done: Callable[[MirrorlogError | None], None], *, on_disk: bool = False) -> None:
        """Call `done`, as `append_change` does, when everything that is in the log now is confirmed by all; `on_disk`:
        also when the log confirms in memory. Raises MirrorlogError when nothing can be confirmed."""
        self.check_admitted()
        self._wait_for_all(self.replica.log.end, done, on_disk=on_disk)
        for link in list(self.log.links) if on_disk and self.log is not None else ():
            link.pump(announce=False)  # nothing else may follow that takes the wish to the mirrors

    def _wait_for_all(self, end: int, done: Callable[[MirrorlogError | None], None], *, on_disk: bool = False) -> None:
        answers = self.mastership.appended(self.replica.log.end)
        durability = Durability.DISK if on_disk else self.mastership.durability
        answers += self._wait(ChangeWaiting(done), end, ALL_MEMBERS, durability, now=self.now(), deadline_ms=0)
        self._progressed(answers)

    def stop(self, why: Callable[[], MirrorlogError] | None = None) -> None:
        """Take nothing from now on, for the reason that `why` makes anew for each; by default, the node stops."""
        self._why = why or self._why
        self.stopping = True

    def abandon(self, unknown: Callable[[], MirrorlogError]) -> None:
        """Tell all who wait that no confirm will come, and all whose credit counts here that it does not any more: who
        is held by it may wait for nothing else. After `stop`."""
        for token in self.mastership.abandon():
            self._tell(token, unknown())
        self._tell_all(self.credits.ended())

    def answer(self, answer: Answer) -> None:
        """A wait has ended: tell its owner."""
        token = answer.token
        if answer.status is not PutStatus.PUT_OK:
            self._tell(token, timed_out(answer, self.mastership))
            return
        if isinstance(token, ChangeWaiting):
            token.done(None)
            return
        assert isinstance(token, PendingPublish | TogetherWaiting)
        if token.since is not None:
            self.counters.confirms.note(self.now() - token.since)
        if isinstance(token, TogetherWaiting):
            token.done(None, answer.copies)
            return
        if token.refused:
            token.reply.refuse(sent_to_dead_letters(), token.correlation_id)
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
            self.counters.unknown[error.code] += 1
            token.done(error, 0)
        else:
            assert isinstance(token, PendingPublish)
            self.counters.unknown[error.code] += 1
            token.reply.refuse(error, token.correlation_id)

    def _check(self, header: BatchHeader, batch: memoryview, *, own: bool = False) -> None:
        if header.kind != _DATA:
            raise BadBatch(f"a producer sends kind {Kind.DATA}, not {header.kind}")
        if header.producer_id >= OWN_PRODUCERS and not own:
            raise BadRequest(f"producer ids from {OWN_PRODUCERS} on are the nodes' own; draw one of 63 bits")
        self.replica.queues.find_id(header.queue_id)
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

    def check_routing(self, queue_id: int, stamped: int) -> None:
        """Not of what has landed already: sent again, it is what it was."""
        virtual_host = split(self.replica.queues.find_id(queue_id).name)[0]
        version = self._view.routing_version(virtual_host)
        if version and is_stale(stamped, version):
            raise StaleRouting(
                f"bindings of virtual host {virtual_host} have changed since this was routed; nothing was stored, "
                "route it again",
                version=version,
            )

    def check_admitted(self) -> None:
        if self.stopping or self.cut_off:
            self.check_running()
            self.check_in_touch()
        self.mastership.admit()

    def check_room(self) -> None:
        """Data is refused for want of room; what is no data goes on. Raises DiskFull, Overloaded."""
        if self.data_refused:
            raise DiskFull(self.data_refused)
        if self._memory.refusal:
            raise Overloaded(self._memory.refusal, limit="memory_high_percent")

    def check_in_touch(self) -> None:
        if self.cut_off:
            raise InSyncReplicasNotEnough(
                f"log {self.replica.assignment.name}: this node is not in touch with a majority of its cluster, and "
                "may have been replaced; nothing was stored"
            )

    def check_running(self) -> None:
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
        answers = self.mastership.wait(token, end=end, copies=copies, durability=durability, deadline=deadline)
        if durability > self.mastership.durability and end > self.replica.log.flushed:
            self.replica.ask_flush()
        return answers

    def _progressed(self, answers: list[Answer]) -> None:
        """What was appended may have its copies already: the log has one alone."""
        assert self.log is not None
        if answers or self.mastership.progress.confirmed > self.replica.log.confirmed:
            self.log.progressed(answers)
