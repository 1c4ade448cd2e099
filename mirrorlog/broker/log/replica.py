"""This node's copy of one log, with everything that is derived from it.

Index, queues and producers are fed by each batch once, wherever it comes from: recovery, a producer, the master. The
derived state can be thrown away; the log is the truth (invariant 10).

A copy with bad bytes below its flushed offset is *damaged*: it ends, for now, where they begin. It says what it holds
to masters and to promotions, and serves nothing. Once there is a master that has what is to be cut, or the cluster has
declared the loss, what stands from there on is set aside and cut, and fetched again (decision 0028).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, cast
from uuid import UUID

from mirrorlog.broker.log.counters import LogCounters
from mirrorlog.broker.log.derived import DerivedTables, PastUpkeep
from mirrorlog.broker.log.repair import CopyRepair, DamagedLog, NoLog
from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.format.envelope import EnvelopePart
from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.commitlog.index.past import Past
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import Claim
from mirrorlog.commitlog.segments.scan import ignore_batch, without_advice
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import DiskFailed, FileRefused, LogCorrupt, LogUnavailable, MirrorlogError
from mirrorlog.queues.changes import Change, OffsetsJumped, encode_change
from mirrorlog.queues.producers import ProducerTable

logger = logging.getLogger(__name__)

# Plain numbers: comparing with a member of an enum takes a microsecond.
_NUMBERED: Final = frozenset({int(Kind.DATA), int(Kind.TRANSACTION)})

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
        self.log: CommitLog = cast(CommitLog, NoLog(assignment.name))
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
        self.on_governed: list[Callable[[int], None]] = []  # with the id of a queue for which something else holds
        self.on_anew: list[Callable[[], None]] = []
        """Called when the copy begins anew: nothing that was known of it holds any more."""
        self.on_broken: Callable[[MirrorlogError], None] = _raise
        self.on_bad: Callable[[LogCorrupt], None] = _leave_to_reader
        """Told of bad bytes that a read of the past met, on the thread that reads."""
        self.damage: LogCorrupt | None = None
        self.repairing: Range | None = None
        """Where the copy is bad, and why, None for a sound one; and what was bad, was cut, and is fetched again."""
        self._state_left: int | None = None

    def _forget_derived(self) -> None:
        self.derived = it = DerivedTables(self.assignment.name, self.assignment.log_number, self._settings.limits)
        self.index, self.queues, self.groups, self.forwardings = it.index, it.queues, it.groups, it.forwardings
        self.runs, self.holds, self.checkpoints, self.begins = it.runs, it.holds, it.checkpoints, it.begins
        self.producers = it.producers
        self._producers_left: ProducerTable | None = None
        self.past: Past | None = None
        self.past_upkeep: PastUpkeep | None = None

    def assign(self, assignment: LogAssignment, *, is_master: bool) -> None:
        """Who masters the log from now on, and who mirrors it; `is_master`: this node writes it."""
        self.assignment, self.is_master = assignment, is_master
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        # A mirror cannot leave data out and keep control, so it has no use for more than this: the check, before
        # a next file is made for data, of what is to be kept free on its disk.
        self._opened.keep_reserve(self._settings.log.reserve if self.is_master else 1)

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
        self._log.on_bad = self.on_bad
        if not self.is_master:
            self._keep_reserve()
        self.derived.confirm(self._log, self._log.confirmed)
        self._forget_queues()
        self.log = self._log
        if self.index.partial and self.past is not None:
            # Of queues whose begin is not logged yet, too: it may come, and be below what is missing here.
            for queue_id, jump in self.past.index.last_jumps().items():
                self.index.set_jump(queue_id, jump)
        if self.log.begin > self.log.first_segment:
            # The begin is within a segment (a mirror's files may end elsewhere than its master's).
            assert self.past_upkeep is not None
            self.start_moved(self.log.begin, self.past_upkeep.starts_behind(self.log.begin, self.log))

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
            on_batch=self.derived.apply if corrupt is None else ignore_batch,
            on_recorded=self.derived.confirm_recorded,
            write_through=self.assignment.flush == "disk",
            files=self._files,
            corrupt=corrupt,
        )

    def _open_damaged(self, error: LogCorrupt) -> None:
        if self.past_upkeep is not None:
            self.past_upkeep.close()
        self._forget_derived()
        self._log = self._open_log(0, (), error)
        try:
            self._state_left = self._repair.state_below(self._log, self._log.end)
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
        self.log = cast(CommitLog, DamagedLog(self._opened, self.damage))

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
        self.past_upkeep = PastUpkeep(self.assignment.name, self._directory, tables)
        self.past = self.past_upkeep.past
        self.derived.read_tables(self.past.index, tables)

    @property
    def _repair(self) -> CopyRepair:
        aside_max = self._settings.log.copies_aside_max
        return CopyRepair(self.assignment.name, self._directory, self._files, aside_max=aside_max)

    @property
    def _opened(self) -> CommitLog:
        assert self._log is not None, "the replica is not open"
        return self._log

    # --- what ha and the doors read ---

    @property
    def begin_ahead(self) -> int:
        """Where the log begins or will begin, by the newest decision that it holds, confirmed or not."""
        return max(self.log.begin, self.begins.newest)

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

    def jump_batch(self, *, lost_from: int, queue_ids: int = 0, losses: Iterable[int] = ()) -> bytearray:
        """Master: the change by which all queue offsets jump, to be appended in an epoch that follows a loss before any
        record of that epoch; see `OffsetsJumped`. `lost_from`: the first log offset of what may be lost;
        `queue_ids`: see `ClusterState.queue_ids`, all numbers of queues that may have been given out.

        By 2^32 times the epoch, and the epochs of all `losses` that are not in this copy's history: above all jumps
        that may be lost. Near the end of the numbers half of what is left."""
        epoch, highest = self.log.epochs.current, self.index.next_highest()
        *former, opened = self.log.epochs.entries
        held = {each.epoch for each in former if each.start < opened.start}
        jumped = epoch + sum({each for each in losses if each < epoch} - held)
        go_on_at = highest + min(jumped << _LEAP_BITS, (_QUEUE_OFFSETS - highest) // 2)
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

    def keep_placed(self, run: memoryview, *, log_offset: int) -> None:
        """Mirror: append the run that was received at the log's end. Raises BadBatch."""
        headers = self.log.keep_placed(run, log_offset=log_offset)
        self.counters.received_bytes += len(run)
        self._stored(headers, run)

    def set_confirmed(self, log_offset: int) -> None:
        """Everything below is confirmed; wakes who waits for records."""
        log = self.log
        before = log.confirmed
        if log_offset <= before:
            return
        log.set_confirmed(log_offset)
        if log.confirmed > before:
            gained = self.derived.confirm(log, log.confirmed)
            lengths = self.on_lengths if self.queues.lengths else ()
            for tell in (*self.on_confirmed, *lengths):
                tell(gained)
            if self.queues.deleted:
                self._forget_queues()

    def _forget_queues(self) -> None:
        """Nothing brings those back any more whose deletion is confirmed."""
        deleted = frozenset(self.queues.take_deleted())
        self.counters.forget(deleted)
        self.derived.forget_queues(deleted)
        for tell in self.on_deleted:
            tell(deleted)

    def check_aside(self) -> None:
        """Mirror: whether this copy may be set aside; blocking. Raises LogUnavailable, or DiskFailed."""
        if self._opened.claim.end > self._opened.begin:
            self._repair.check_aside("begin anew")

    def quarantine_tail(self, log_offset: int) -> Path:
        """Mirror: keep what stands from `log_offset` on in a directory beside this copy; blocking, the path. Raises
        LogUnavailable, LogCorrupt, DiskFull or DiskFailed."""
        return self._repair.keep_tail(self._opened, log_offset, {queue.queue_id: queue.name for queue in self.queues})

    def begin_anew(self) -> None:
        """Mirror: `align` is about to make this copy anew; until `aligned` nobody can use it."""
        self.log = cast(CommitLog, NoLog(self.assignment.name))
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
            left = self.derived.producers_below(self._opened, log_offset)
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
        path = self._repair.keep_damaged(log, whole=self._state_left is None)
        if self._state_left is None:
            self._open_anew(0, ())
            return
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
        state = self._repair.state_below(log, log_offset)
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

    def _open_anew(self, log_offset: int, epochs: Sequence[Epoch]) -> None:
        """An empty copy in the place of this one."""
        with suppress(MirrorlogError):  # its bytes are of no use here; what of them is on disk is enough
            self.close()
        self._repair.keep_whole(empty=self._opened.claim.end == self._opened.begin)
        self.damage = None
        self._forget_derived()
        self.open(self._directory, begin=log_offset, epochs=epochs)

    def aligned(self) -> None:
        """After `align`, back on the loop: what was derived from cut bytes goes too."""
        self.log = self._opened
        self.derived.cut(self.log.end, self._producers_left)
        self.producers, self._producers_left = self.derived.producers, None

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

    def start_moved(self, begin: int, begins: dict[int, int]) -> None:
        """Log and index begin there from now on, at once, so that nobody is told of what cannot be read. `begins`: see
        `DerivedTables.start_moved`."""
        self.log.move_start(begin)
        self.derived.start_moved(begin, begins)

    def close(self) -> None:
        """Flush and write the checkpoint; blocking."""
        if self._log is not None:
            self._log.close()
        if self.past_upkeep is not None:
            self.past_upkeep.close()

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
                    self.derived.apply(header, run[at : at + header.length], changes)
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


def _no_past(tables: Tables) -> None:
    """Nothing is derived from a damaged copy."""


def _leave_to_reader(error: LogCorrupt) -> None:
    """Whoever reads gets the error."""


def _raise(error: MirrorlogError) -> None:
    raise error
