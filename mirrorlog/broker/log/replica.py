"""This node's copy of one log, with everything that is derived from it.

Index, queues and producers are fed by each batch once, wherever it comes from: recovery, a producer, the master. The
derived state can be thrown away; the log is the truth (invariant 10).

A copy with bad bytes below its flushed offset is *damaged*: it ends, for now, where they begin. It says what it holds
to masters and to promotions, and serves nothing. Once there is a master that has what is to be cut, or the cluster has
declared the loss, what stands from there on is set aside and cut, and fetched again (docs/decisions/0028).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, cast
from uuid import UUID

from mirrorlog.broker.log.counters import LogCounters
from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.files import OS_FILES, Files, disk_named
from mirrorlog.commitlog.format.envelope import EnvelopePart
from mirrorlog.commitlog.format.header import BatchHeader, Column, Kind, read_header
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import Past, PastIndex
from mirrorlog.commitlog.index.past import delete as delete_index
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.quarantine import (
    find_quarantined_tail,
    next_quarantine,
    quarantine_damage,
    quarantine_tail,
    quarantined_copies,
    unfinished_quarantine,
)
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import Claim
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.commitlog.segments.scan import ignore_batch, without_advice
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import (
    BadBatch,
    DiskFailed,
    FileRefused,
    IndexDoubtful,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
)
from mirrorlog.queues.changes import Change, OffsetsJumped, decode_changes, encode_change
from mirrorlog.queues.checkpoint import CheckpointTracker
from mirrorlog.queues.checkpoint_states import GapsState, QueueState, decode_checkpoint
from mirrorlog.queues.dead_letters.forwarding import ForwardingTable
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunTable
from mirrorlog.queues.limits.holds import HoldTable
from mirrorlog.queues.log_state import DerivedState, LogStartTracker
from mirrorlog.queues.producers import ProducerTable
from mirrorlog.queues.registry import QueueRegistry, id_base_of

logger = logging.getLogger(__name__)

# Plain numbers: comparing with a member of an enum takes a microsecond.
_NUMBERED: Final = frozenset({int(Kind.DATA), int(Kind.TRANSACTION)})
_CHECKPOINT: Final = int(Kind.CHECKPOINT)
_CONTROL: Final = int(Kind.CONTROL)
_QUEUE_STATE: Final = int(Kind.QUEUE_STATE)
_CHANGES: Final = frozenset({_CONTROL, _QUEUE_STATE})
_DATA: Final = int(Kind.DATA)
_ATTRIBUTES: Final = int(Column.ATTRIBUTES)

_LEAP_BITS: Final = 32
_QUEUE_OFFSETS: Final = 1 << 63


class Replica:
    """One log on one node. Offsets are log offsets; `assignment` says who is its master."""

    def __init__(self, assignment: LogAssignment, log_id: UUID, settings: Settings, *, files: Files = OS_FILES) -> None:
        self.assignment = assignment
        self.log_id = log_id
        self.counters = LogCounters()
        self._settings = settings
        self._files = files
        self._log: CommitLog | None = None
        self.log: CommitLog = _no_log(assignment.name)
        """Every use raises LogUnavailable before the log is open, and while the copy begins anew. A plain attribute: it
        is looked up a dozen times per batch."""
        self._forget_derived()
        self.is_master = assignment.master == settings.node.id
        self.on_stored: list[Callable[[], None]] = []
        """Called when bytes stand in the log, before anything is derived from them: other nodes wait for them."""
        self.on_appended: list[Callable[[], None]] = []
        """Called when all that this node derives from new batches is known."""
        self.on_flush_wanted: list[Callable[[], None]] = []
        self.on_confirmed: list[Callable[[Set[int]], None]] = []
        self.on_lengths: list[Callable[[Set[int]], None]] = []
        """Called with the ids of the queues that gained confirmed records; `on_lengths` while a queue has a limit."""
        self.on_deleted: list[Callable[[Set[int]], None]] = []
        """Called with the ids of the queues whose deletion is confirmed."""
        self.on_anew: list[Callable[[], None]] = []
        """Called when the copy begins anew: nothing that was known of it holds any more."""
        self.on_broken: Callable[[MirrorlogError], None] = _raise
        self.on_bad: Callable[[LogCorrupt], None] = _leave_to_reader
        """Told of bad bytes that a read of the past met, on the thread that reads."""
        self.damage: LogCorrupt | None = None
        """Where the copy is bad, and why; None for a sound one."""
        self.repairing: Range | None = None
        """What was bad, was cut, and is being fetched again."""
        self._state_left: int | None = None

    def _forget_derived(self) -> None:
        settings = self._settings
        self.index = QueueIndex()
        self.index.partial = True
        self.queues = QueueRegistry(
            queues_max=settings.limits.max_queues,
            groups_max=settings.limits.max_groups_per_queue,
            id_base=id_base_of(self.assignment.log_number),
            acking=lambda queue_id, group: self.groups.get(queue_id, group) is not None,
        )
        self.groups = GroupTable(per_queue_max=settings.limits.max_groups_per_queue)
        self.forwardings = ForwardingTable()
        self.runs = RunTable(runs_max=settings.limits.attribute_runs_max, floors=self.groups.whole_floors)
        self.holds = HoldTable(per_queue_max=settings.limits.max_holds_per_queue)
        self.producers = self._no_producers()
        self._producers_left: ProducerTable | None = None
        self._attributes_unknown = False
        self.checkpoints = CheckpointTracker()
        self.begins = LogStartTracker()
        self._states: tuple[DerivedState, ...] = (
            *(self.queues, self.holds, self.groups, self.forwardings, self.checkpoints, self.begins),
        )
        # Of which of them something is not confirmed, and up to where in the log.
        self._unconfirmed: dict[DerivedState | RunTable, int] = {}
        self.start_decided = 0
        """Where the log begins by what is logged and confirmed; it follows when the index is ready for it."""
        self.past: Past | None = None

    def assign(self, assignment: LogAssignment, *, is_master: bool) -> None:
        """Who masters the log from now on, and who mirrors it; `is_master`: this node writes it."""
        self.assignment, self.is_master = assignment, is_master
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        # A mirror cannot leave data out and keep control, so it has no use for more than this: the check, before
        # a next file is made for data, of what is to be kept free on its disk.
        self._opened.keep_reserve(self._settings.log.reserve if self.is_master else 1)

    def _no_producers(self) -> ProducerTable:
        limits = self._settings.limits
        return ProducerTable(producers_max=limits.max_producers, expiry_us=limits.producer_expiry_ms * 1000)

    def open(self, directory: Path, *, begin: int = 0, epochs: Sequence[Epoch] = ()) -> None:
        """Recover the copy, or make one that begins at `begin` under `epochs`; blocking. One with bad bytes is open and
        not usable: `damage` says where.

        Raises LogCorrupt when nothing of it can be used, ForeignDirectory, DiskFull or DiskFailed.
        """
        self._directory = directory
        try:
            self._log = self._open_log(begin, epochs, None)
        except LogCorrupt as error:
            if "first" not in error.details:
                raise
            self._open_damaged(error)
            return
        self._log.on_bad = self._read_bad
        if not self.is_master:
            self._keep_reserve()
        self._confirm_derived(self._log.confirmed)
        self._forget_queues(frozenset(self.queues.take_deleted()))
        self.log = self._log
        if self.index.partial and self.past is not None:
            # Of queues whose begin is not logged yet, too: it may come, and be below what is missing here.
            for queue_id, jump in self.past.index.last_jumps().items():
                self.index.set_jump(queue_id, jump)
        if self.log.begin > self.log.first_segment:
            # The begin is within a segment (a mirror's files may end elsewhere than its master's).
            self.start_moved(self.log.begin, self.starts_behind(self.log.begin))

    def _open_log(self, begin: int, epochs: Sequence[Epoch], corrupt: LogCorrupt | None) -> CommitLog:
        """`corrupt`: see `CommitLog.open`; nothing is derived from the copy then."""
        return CommitLog.open(
            self._directory,
            log_id=self.log_id,
            cluster_id=self._settings.cluster.cluster_id,
            name=self.assignment.name,
            settings=self._settings.log,
            max_batch_bytes=self._settings.limits.max_batch_bytes,
            number=self.assignment.log_number,
            begin=begin,
            first_epochs=epochs,
            on_past=self._open_past if corrupt is None else _no_past,
            on_batch=self._apply if corrupt is None else ignore_batch,
            on_recorded=self._recorded,
            write_through=self.assignment.flush == "disk",
            files=self._files,
            corrupt=corrupt,
        )

    def _recorded(self, log_offset: int) -> None:
        """What was confirmed when the copy was closed, or died; before its batches come."""
        self.groups.confirm(log_offset)
        self.forwardings.confirm(log_offset)
        self.runs.confirm(log_offset)

    def _open_damaged(self, error: LogCorrupt) -> None:
        self._close_past()
        self._forget_derived()
        self._log = self._open_log(0, (), error)
        try:
            self._state_left = self._state_below(self._log.end)
        except LogCorrupt as lower:  # in what a table vouched for
            self._log.close()
            self._open_damaged(lower)
            return
        except LogUnavailable:
            self._state_left = None
        self.damage = LogCorrupt(
            f"this copy of log {self.assignment.name} is damaged: {without_advice(error)}; it is good up to log offset "
            f"{self._log.end}, and is repaired from a master that has the rest",
            **error.details,
        )
        self._show_damaged()

    def _show_damaged(self) -> None:
        assert self.damage is not None
        self.log = cast(CommitLog, _DamagedLog(self._opened, self.damage))

    def _read_bad(self, error: LogCorrupt) -> None:
        self.on_bad(error)

    def doubt(self) -> None:
        """Bad bytes were met: the next start reads all of the copy; blocking. Raises DiskFull, DiskFailed."""
        self._opened.doubt()

    @property
    def tells_queues(self) -> bool:
        """Whether what a damaged copy holds says what its queues are: without that it can only be filled anew."""
        return self.damage is None or self._state_left is not None

    @property
    def lossy(self) -> bool:
        """Whether this start may have lost something of the copy."""
        return self._opened.lossy

    @property
    def claim(self) -> Claim:
        """What the copy held by its own record: more than it holds when it is damaged."""
        return self.log.claim

    def _open_past(self, tables: Tables) -> None:
        """What the tables of the sealed segments say, before the batches behind them come."""
        self.past = Past(PastIndex.open(self._directory / INDEX_NAME, tables), tables)
        for start, head in sorted(tables.heads.items()):
            self.index.set_past(
                first=start, end=head.end, first_append_time_us=head.first_append_time_us, records=head.records
            )
        for queue_id, (begin, following) in self.past.index.queues().items():
            self.index.set_queue(queue_id, begin=begin, next_offset=following)

    @property
    def _opened(self) -> CommitLog:
        assert self._log is not None, "the replica is not open"
        return self._log

    # --- what ha and the doors read ---

    @property
    def begin(self) -> int:
        return self.log.begin

    @property
    def end(self) -> int:
        return self.log.end

    @property
    def flushed(self) -> int:
        return self.log.flushed

    @property
    def confirmed(self) -> int:
        return self.log.confirmed

    @property
    def epochs(self) -> EpochList:
        return self.log.epochs

    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins or the log ends there."""
        return self.log.is_border(log_offset)

    @property
    def begin_ahead(self) -> int:
        """Where the log begins or will begin, by the newest decision that it holds, confirmed or not."""
        return max(self.log.begin, self.begins.newest)

    @property
    def last_start(self) -> int:
        """Where a copy may begin that wants no more than the newest records."""
        return self.log.last_start

    def read(self, log_offset: int, max_bytes: int, *, until: int) -> memoryview | None:
        return self.log.read(log_offset, max_bytes, until=until)

    def read_cold(self, log_offset: int, max_bytes: int, *, until: int) -> ColdRead:
        return self.log.read_cold(log_offset, max_bytes, until=until)

    # --- what changes it ---

    def append(
        self, batch: memoryview, header: BatchHeader, now_us: int, changes: Sequence[Change] | None = None
    ) -> BatchHeader:
        """Master: append one checked batch; gives its header as stamped. `changes`: what it says, if that is known.
        Raises DiskFull, or DiskFailed, which ends the node as a flush that failed does."""
        base = self.index.next_appended(header.queue_id) if header.kind in _NUMBERED else 0
        try:
            stamped = self.log.append(batch, base_queue_offset=base, append_time_us=now_us)
        except DiskFailed as error:
            self.on_broken(error)
            raise
        self._stored([stamped], batch, changes)
        return stamped

    def append_copied(self, batch: memoryview) -> BatchHeader:
        """Master: append a batch that stands in the log once more; see `CommitLog.append_copied`, and as `append`."""
        try:
            stamped = self.log.append_copied(batch)
        except DiskFailed as error:
            self.on_broken(error)
            raise
        self._stored([stamped], batch)
        return stamped

    def append_transaction(self, batches: Sequence[memoryview], now_us: int, *, flags: int = 0) -> list[BatchHeader]:
        """Master: append checked batches, of one or more queues, as one; their headers as stamped. `flags`: of those
        with records. As `append`."""
        bases: dict[int, int] = {}
        parts: list[EnvelopePart] = []
        for batch in batches:
            header = read_header(batch)
            base = part_flags = 0
            if header.kind in _NUMBERED:
                part_flags = flags
                base = bases.get(header.queue_id, self.index.next_appended(header.queue_id))
                bases[header.queue_id] = base + header.record_count
            parts.append(EnvelopePart(batch, base, part_flags))
        try:
            stamped, envelope = self.log.append_transaction(parts, append_time_us=now_us)
        except DiskFailed as error:
            self.on_broken(error)
            raise
        self._stored(stamped, memoryview(envelope))
        return stamped[1:]

    def append_change(self, batch: bytearray, now_us: int, changes: Sequence[Change] | None = None) -> BatchHeader:
        """Master: append a control or queue-state batch. `changes`: see `append`."""
        return self.append(memoryview(batch), read_header(batch), now_us, changes)

    def jump_batch(self, *, lost_from: int, queue_ids: int = 0) -> bytearray:
        """Master: the change by which all queue offsets jump, to be appended in an epoch that follows a loss before any
        record of that epoch; see `OffsetsJumped`. `lost_from`: the first log offset of what may be lost;
        `queue_ids`: see `ClusterState.queue_ids`, all numbers of queues that may have been given out.

        By 2^32 times the epoch: above the jump of an earlier epoch too, should that be what was lost. Near the end of
        the numbers half of what is left.
        """
        epoch, highest = self.log.epochs.current, self.index.next_highest()
        go_on_at = highest + min(epoch << _LEAP_BITS, (_QUEUE_OFFSETS - highest) // 2)
        past = self.queues.id_past(queue_ids)
        return encode_change(OffsetsJumped(epoch=epoch, lost_from=lost_from, go_on_at=go_on_at, queue_id_max=past))

    def append_run(self, run: memoryview, *, log_offset: int) -> None:
        """Mirror: append whole batches as the master stamped them. Raises BadBatch, DiskFull or DiskFailed."""
        try:
            headers = self.log.append_run(run, log_offset=log_offset)
        except DiskFailed as error:
            self.on_broken(error)
            raise
        self.counters.received_bytes += len(run)
        self._stored(headers, run)

    def place_for(self, length: int) -> memoryview | None:
        """Mirror: memory at the log's end to receive a run in; see `CommitLog.place_for`."""
        return self.log.place_for(length)

    def keep_placed(self, run: memoryview, *, log_offset: int) -> None:
        """Mirror: append the run that was received at the log's end. Raises BadBatch."""
        headers = self.log.keep_placed(run, log_offset=log_offset)
        self.counters.received_bytes += len(run)
        self._stored(headers, run)

    def drop_placed(self, run: memoryview) -> None:
        """Mirror: the run will not be completed."""
        self.log.drop_placed(run)

    def set_confirmed(self, log_offset: int) -> None:
        """Everything below is confirmed; wakes who waits for records."""
        log = self.log
        before = log.confirmed
        if log_offset <= before:
            return
        log.set_confirmed(log_offset)
        if log.confirmed > before:
            gained = self._confirm_derived(log.confirmed)
            for tell in (*self.on_confirmed, *self.on_lengths) if self.queues.lengths else self.on_confirmed:
                tell(gained)
            if self.queues.deleted:
                self._forget_queues(frozenset(self.queues.take_deleted()))

    def _forget_queues(self, deleted: Set[int]) -> None:
        """Nothing brings them back any more."""
        for queue_id in deleted:
            self.counters.queues.pop(queue_id, None)
        self.index.forget_queues(deleted)
        self.holds.forget_queues(deleted)
        self.runs.forget_queues(deleted)
        for queue_id in deleted:
            self.groups.forget_queue(queue_id)
            self.forwardings.forget_queue(queue_id)
        for tell in self.on_deleted:
            tell(deleted)

    def check_aside(self) -> None:
        """Mirror: whether this copy may be set aside; blocking. Raises LogUnavailable, or DiskFailed."""
        if self._opened.claim.end > self._opened.begin:
            self._check_aside("begin anew")

    def _check_aside(self, what: str) -> None:
        with disk_named("list the copies beside", self._directory):
            found = quarantined_copies(self._directory)
        if len(found) >= self._settings.log.copies_aside_max:
            raise LogUnavailable(
                f"this copy of log {self.assignment.name} must {what}, but {len(found)} former ones are set aside "
                f"already (log.copies_aside_max), the oldest {found[0]}; remove those that nobody wants"
            )

    def quarantine_tail(self, log_offset: int) -> Path:
        """Mirror: keep what stands from `log_offset` on in a directory beside this copy; blocking, the path. Raises
        LogUnavailable, LogCorrupt, DiskFull or DiskFailed."""
        log = self._opened
        with disk_named("set aside a part of", self._directory):
            if (found := find_quarantined_tail(self._files, log, log_offset)) is not None:
                return found
            self._check_aside("be cut")
            self._state_below(log_offset)
            names = {queue.queue_id: queue.name for queue in self.queues}
            return quarantine_tail(self._files, log, log_offset, queues=names)

    def begin_anew(self) -> None:
        """Mirror: `align` is about to make this copy anew; until `aligned` nobody can use it."""
        self.log = _no_log(self.assignment.name)
        for tell in self.on_anew:
            tell()

    @property
    def usable(self) -> bool:
        """Whether there is a log to work on; not while the copy begins anew."""
        return isinstance(self.log, CommitLog)

    def align(self, log_offset: int, epochs: Sequence[Epoch], *, anew: bool = False, lost: bool = False) -> None:
        """Mirror: cut at `log_offset` if the copy reaches beyond, take over `epochs`; blocking, on disk afterwards.

        `anew`: set the copy aside instead, and begin an empty one at `log_offset`. `lost`: also what is confirmed is
        cut, because the cluster says that it is lost. What is bad of a damaged copy is cut before, with all behind it.
        """
        if self.damage is not None and not anew:
            self.cut_damage()
        if anew:
            self._open_anew(log_offset, epochs)
        elif lost and log_offset < self._opened.end:
            self._cut_lost(log_offset, epochs)
        elif log_offset < self._opened.end:
            left = self._producers_below(log_offset)
            self._opened.truncate(log_offset, epochs)
            self._producers_left = left
        else:
            self._opened.adopt_epochs(epochs)
        if not anew:
            # What it lost it will be sent again: all that it acks from here on it has.
            self._opened.settle_loss()

    def cut_damage(self) -> None:
        """Set aside what stands from the first bad byte on, cut it, and open what is left, as lossy; blocking. Then
        `aligned`, on the loop. Only when somebody has what is cut, or when it is declared lost.

        Where what is left does not say what the queues were, the whole copy is set aside, and is empty. Raises
        LogUnavailable, LogCorrupt, DiskFull or DiskFailed.
        """
        log = self._opened
        corrupt, claim = log.recovery.corrupt, log.claim
        assert corrupt is not None
        with disk_named("set aside a part of", self._directory):
            if unfinished_quarantine(self._files, log) is None:
                self._check_aside("be cut where it is bad")
            if self._state_left is None:
                self._open_anew(0, ())
                return
            path = quarantine_damage(self._files, log, queues={})
        log.cut_damage(state=self._state_left)
        self._reopen()
        self.repairing = Range(log.end, claim.end, corrupt.reason)
        logger.error(
            "damage_set_aside log=%s bad=%s..%s first=%s last=%s bytes=%s path=%s",
            self.assignment.name, corrupt.first, corrupt.last, log.end, claim.end, claim.end - log.end, path,
        )  # fmt: skip

    def note_repaired(self) -> None:
        """After a flush: whether all that was cut is here again."""
        repairing = self.repairing
        if repairing is not None and self.usable and self.log.flushed >= repairing.last:
            self.repairing = None
            logger.info(
                "copy_repaired log=%s first=%s last=%s bytes=%s",
                self.assignment.name, repairing.first, repairing.last, repairing.last - repairing.first,
            )  # fmt: skip

    def _cut_lost(self, log_offset: int, epochs: Sequence[Epoch]) -> None:
        """What was derived from what is confirmed cannot be cut, so it is derived anew, as a start does."""
        log = self._opened
        state = self._state_below(log_offset)
        flush = log.start_flush()
        flush.run()
        log.complete_flush(flush)
        log.truncate(log_offset, epochs, lost=True, state=state)
        self._reopen()

    def _reopen(self) -> None:
        self.close()
        self.damage = None
        self._forget_derived()
        self.open(self._directory)

    def _state_below(self, log_offset: int) -> int:
        """Where the newest state checkpoint begins that is complete below `log_offset`; 0 when none is, and none is
        needed. Blocking. Raises LogUnavailable when none is and the log's first bytes are gone."""
        log = self._opened
        for first in (max(log.state_from, log.begin), log.begin):
            found = CheckpointTracker()

            def follow(header: BatchHeader, batch: memoryview, found: CheckpointTracker = found) -> None:
                found.apply(header, batch)

            if first < log_offset:
                log.scan(first, follow, until=log_offset)
            found.confirm(log_offset)
            if found.state_from or log.begin == 0:
                return found.state_from
        raise LogUnavailable(
            f"this copy of log {self.assignment.name} must be cut at {log_offset}, and nothing below says what its "
            f"queues were; stop the node and move {self._directory} away: it is copied anew"
        )

    def _producers_below(self, log_offset: int) -> ProducerTable:
        """As a start finds them in a log that ends there; blocking.

        They cannot be cut as the rest can: a batch makes others forgotten. And a batch that is cut must be, or this
        copy, once it is the master, answers its retry as one that landed.
        """
        producers = self._no_producers()

        def follow(header: BatchHeader, batch: memoryview) -> None:
            if header.kind == _CHECKPOINT:
                producers.restore(header, decode_checkpoint(batch))
                return
            if header.kind == _CONTROL:
                producers.follow(decode_changes(batch))
            producers.apply(header)

        self._opened.scan_state(follow, until=log_offset)
        return producers

    def _open_anew(self, log_offset: int, epochs: Sequence[Epoch]) -> None:
        """An empty copy in the place of this one."""
        with suppress(MirrorlogError):  # its bytes are of no use here; what of them is on disk is enough
            self.close()
        with disk_named("begin anew in", self._directory):
            # Renamed first in any case: a directory that is half removed when the process is killed is nobody's log.
            former = next_quarantine(self._directory)
            self._directory.rename(former)
            if self._opened.claim.end == self._opened.begin:
                shutil.rmtree(former)
        self.damage = None
        self._forget_derived()
        self.open(self._directory, begin=log_offset, epochs=epochs)

    def aligned(self) -> None:
        """After `align`, back on the loop: what was derived from cut bytes goes too."""
        self.log = self._opened
        self.index.cut(self.log.end)
        for state in self._states:
            state.cut(self.log.end)
        self.runs.cut(self.log.end, self.index.next_appended)
        if self._producers_left is not None:
            self.producers, self._producers_left = self._producers_left, None

    def align_failed(self, error: Exception) -> None:
        """After `align` raised, back on the loop: a disk that failed in it ends the node too, and so does a copy that
        could not begin anew: a start tries again. What was refused before anything was cut can be tried again here."""
        if isinstance(error, DiskFailed):
            self.on_broken(error)
        elif self.damage is not None:
            self._show_damaged()  # as it was, or more of it is set aside: another attempt goes on
        elif isinstance(error, FileRefused) and self._opened.state is LogCondition.OPEN:
            self.log = self._opened
        elif not self.usable:
            self.on_broken(
                error if isinstance(error, MirrorlogError) else MirrorlogError(f"cannot begin anew: {error}")
            )

    def ask_flush(self) -> None:
        """A confirm waits for this disk."""
        for tell in self.on_flush_wanted:
            tell()

    # --- the past, on the helper that has it for itself ---

    def add_to_past(self, start: int) -> None:
        """The segment whose table was stored; blocking. Raises LogCorrupt, DiskFull, DiskFailed."""
        with disk_named("index", self._directory):
            try:
                self._open_index().add(start)
            except IndexDoubtful:
                self.rebuild_past()

    def starts_behind(self, begin: int) -> dict[int, int]:
        """See `Past.begins_behind`; blocking."""
        with disk_named("index", self._directory):
            try:
                return self._open_index().starts_behind(begin)
            except IndexDoubtful:
                self.rebuild_past()
                return self._open_index().starts_behind(begin)

    def start_moved(self, begin: int, begins: dict[int, int]) -> None:
        """Log and index begin there from now on, at once, so that nobody is told of what cannot be read. `begins`: as
        `starts_behind` gives them; the other queues begin in memory."""
        self.log.move_start(begin)
        index = self.index
        # First what is forgotten, then who begins behind it.
        index.evict(begin)
        for queue_id in index.queue_ids():
            if queue_id not in begins:
                begins[queue_id] = index.hot_first(queue_id)
        index.start_moved(begin, begins)
        if not index.partial:
            # Not `begins`: what was appended once more may stand behind what is first in memory. And a copy that is
            # partial shows less than there is.
            self.runs.start_moved({queue_id: index.begin(queue_id) for queue_id in begins})

    def drop_past(self, begin: int) -> None:
        """Forget the segments that end at or below `begin`; blocking."""
        with disk_named("index", self._directory):
            past = self._open_index()
            try:
                for start in [start for start, head in past.tables.heads.items() if head.end <= begin]:
                    past.drop(start)
            except IndexDoubtful:
                self.rebuild_past()

    def rebuild_past(self) -> None:
        """Make the index anew from the tables, and tables that are damaged from their segments; blocking."""
        past = self._open_index()
        with disk_named("rebuild the index of", self._directory):
            with suppress(MirrorlogError):
                past.close()
            for start in sorted(past.tables.heads):
                self.log.check_table(start)
            delete_index(self._directory / INDEX_NAME)
            past.index = PastIndex.open(self._directory / INDEX_NAME, past.tables)

    def _open_index(self) -> Past:
        assert self.past is not None
        return self.past

    def close(self) -> None:
        """Flush and write the checkpoint; blocking."""
        if self._log is not None:
            self._log.close()
        self._close_past()

    def _close_past(self) -> None:
        if self.past is not None:
            try:
                self.past.close()
            except MirrorlogError as error:
                # It is derived: without its mark it is made anew at the next start, and this stop is as good as any.
                logger.warning("index_not_closed log=%s reason=%r", self.assignment.name, str(error))

    # --- inside ---

    def _stored(self, headers: Sequence[BatchHeader], run: memoryview, changes: Sequence[Change] | None = None) -> None:
        """What was just appended reaches others, and the derived state, or the node must not go on: that and the log
        would part for ever."""
        try:
            for tell in self.on_stored:
                tell()
        finally:
            # Whatever became of telling others: a log that knows more than its index would number records twice.
            first = headers[0].log_offset
            for header in headers:
                at = header.log_offset - first
                try:
                    self._apply(header, run[at : at + header.length], changes)
                except Exception as error:
                    raise self._not_followed(header, error) from error
        for tell in self.on_appended:
            tell()

    def _not_followed(self, header: BatchHeader, error: Exception) -> LogCorrupt:
        broken = LogCorrupt(
            f"log {self.assignment.name}: batch {header.log_offset} is stored but cannot be followed: {error}",
            first=header.log_offset,
            last=header.next_log_offset,
        )
        self.on_broken(broken)
        return broken

    def _apply(self, header: BatchHeader, batch: memoryview, changes: Sequence[Change] | None = None) -> None:
        self.index.add(header)
        kind = header.kind
        if kind == _DATA:
            if header.columns & _ATTRIBUTES or header.queue_id in self.queues.ttls:
                self._apply_attributes(header, batch)
        elif kind == _CHECKPOINT:
            self._apply_checkpoint(header, batch)
        elif kind in _CHANGES:
            # Decoded once: there may be thousands of ranges in it.
            self._apply_changes(header, decode_changes(batch) if changes is None else changes)
        self.producers.apply(header)

    def _apply_attributes(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            self.runs.apply(header, batch, queue_ttl_ms=self.queues.ttls.get(header.queue_id))
        except BadBatch as error:
            # A newer software took it, and knows what it says; a copy must not end for that.
            if not self._attributes_unknown:
                self._attributes_unknown = True
                logger.warning(
                    "attributes_not_known log=%s offset=%s reason=%r; its records are delivered without",
                    self.assignment.name, header.log_offset, str(error),
                )  # fmt: skip

    def _apply_changes(self, header: BatchHeader, changes: Sequence[Change]) -> None:
        kinds = set(map(type, changes))
        for state in self._states:
            if not state.follows.isdisjoint(kinds):
                state.follow(header, changes)
                self._unconfirmed[state] = header.log_offset + header.length
        if header.kind == _CONTROL:
            self.producers.follow(changes)
        if header.kind == _CONTROL or self.runs.total:
            self.runs.follow(header)
            self._unconfirmed[self.runs] = header.log_offset + header.length
        if OffsetsJumped in kinds:
            self._apply_jumps(header, changes)

    def _apply_jumps(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, OffsetsJumped):
                # Also of queues that only records tell of: a start, or a copy that begins late, may come to the
                # checkpoint that declares them behind the jump.
                queue_ids = {*self.queues.queue_ids(), *self.index.queue_ids()}
                self.index.jump(header.log_offset, queue_ids, change.go_on_at)

    def _apply_checkpoint(self, header: BatchHeader, batch: memoryview) -> None:
        states = decode_checkpoint(batch)
        told: tuple[DerivedState | RunTable, ...] = (*self._states, self.runs)
        for each in told:
            each.restore(header, states)
            self._unconfirmed[each] = header.log_offset + header.length
        self.producers.restore(header, states)
        for state in states:
            # All its records are gone, or the last of them, and only the checkpoint knows that there were some.
            if isinstance(state, QueueState) and state.next_queue_offset > self.index.next_appended(state.queue_id):
                self.index.set_next(state.queue_id, state.next_queue_offset)
            elif isinstance(state, GapsState):
                for queue_id, gap in state.each():
                    self.index.set_gap(queue_id, gap)

    def _confirm_derived(self, log_offset: int) -> Set[int]:
        """The ids of the queues that gained confirmed records."""
        begins = self._confirm_states(log_offset) if self._unconfirmed else {}
        gained = self.index.confirm(log_offset)
        for queue_id, queue_begin in begins.items():
            self.index.set_start(queue_id, queue_begin)
        if self.index.partial and self.start_decided >= self._opened.begin:
            # Before that decision all that is alive below was appended once more.
            self.index.partial = False
        return gained

    def _confirm_states(self, log_offset: int) -> dict[int, int]:
        """Of what something is not confirmed; the logged begins of queues that became true by it, by queue id."""
        for state, until in list(self._unconfirmed.items()):
            state.confirm(log_offset)
            if until <= log_offset:
                del self._unconfirmed[state]
        begins = self.queues.take_moved() if self.queues.moved else {}
        if begins:
            self.runs.start_moved(begins)
        self._opened.set_state_from(self.checkpoints.state_from)
        self.start_decided = max(self.start_decided, self.begins.confirmed)
        return begins


class _NoLog:
    """Stands where a log will be."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise LogUnavailable(f"this copy of log {self._name} begins anew; ask again")


class _DamagedLog:
    """Stands where the log of a damaged copy is: says what it holds, and refuses everything else by what is wrong."""

    _FACTS: Final = frozenset({"begin", "end", "flushed", "confirmed", "epochs", "claim", "recovery"})

    def __init__(self, log: CommitLog, error: LogCorrupt) -> None:
        self._log = log
        self._error = error

    def __getattr__(self, attribute: str) -> Any:
        if attribute in self._FACTS:
            return getattr(self._log, attribute)
        raise self._error.with_traceback(None)  # shared: it must not collect its raisers' frames


def _no_past(tables: Tables) -> None:
    """Nothing is derived from a damaged copy."""


def _leave_to_reader(error: LogCorrupt) -> None:
    """Whoever reads gets the error."""


def _no_log(name: str) -> CommitLog:
    return cast(CommitLog, _NoLog(name))


def _raise(error: MirrorlogError) -> None:
    raise error
