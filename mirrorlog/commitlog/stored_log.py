"""A log as one copy of it is kept on a node: what it holds, reading it, and the work that its files need.

One thread, the node's loop, owns a log. What would wait for a disk is a job: made on the loop, run on a helper thread,
completed on the loop (`start_flush`, `start_warm`, `read_cold`). The methods that say "blocking" are for start-up, and
for the moments at which a copy changes hands: they belong on a helper while the loop leaves the log alone. Rejected: a
lock around every method (it would be taken for each batch, to guard what happens twice a second).
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.flush import Checkpoint, FlushJob
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, log_seed, read_header
from mirrorlog.commitlog.index.table import SegmentTable, table_name
from mirrorlog.commitlog.index.tables import table_from_segment
from mirrorlog.commitlog.recovery.opening import OpenedLog
from mirrorlog.commitlog.recovery.recovery import Claim, RecoveryReport
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.commitlog.segments.preallocation import PrepareJob, RecentGrowth
from mirrorlog.commitlog.segments.scan import BatchRules, OnBatch, scan_file
from mirrorlog.commitlog.segments.segment import Segment
from mirrorlog.commitlog.segments.warming import WarmJob
from mirrorlog.errors import (
    BadRequest,
    IndexDoubtful,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
    OffsetOutOfRange,
)

_EMPTY: Final = memoryview(b"")


class LogCondition(Enum):
    """`FAILED`: a write or a sync failed; what is there stays readable, nothing is appended any more. `DAMAGED`: opened
    up to its first bad byte, to be read and compared; it takes nothing before `cut_damage`."""

    OPEN = "open"
    DAMAGED = "damaged"
    FAILED = "failed"
    CLOSED = "closed"


class SegmentInfo(NamedTuple):
    """Log offsets, and µs UTC."""

    start: int
    end: int
    last_append_time_us: int


class StoredLog:
    """All offsets are log offsets: byte positions, the same on every node that holds the log.

    `begin` ≤ `confirmed` ≤ `end` and `flushed` ≤ `end`. Bytes below `flushed` are on this node's disk.
    """

    def __init__(self, opened: OpenedLog, *, log_id: UUID, name: str, max_batch_bytes: int, files: Files) -> None:
        """Use `CommitLog.open`."""
        self.log_id = log_id
        self.name = name
        self.seed = log_seed(log_id)
        self.max_batch_bytes = max_batch_bytes
        self.recovery: RecoveryReport = opened.report
        self.lossy = opened.report.lossy
        """Whether what a recovery lost is still to be compared with other copies (`settle_loss`)."""
        self.on_bad: Callable[[LogCorrupt], None] = lambda error: None
        """Told of bad bytes that a cold read meets, on the thread that reads."""
        self.begin = opened.report.begin
        self.epochs = opened.epochs
        self.last_append_time_us = opened.last_append_time_us
        self._files = files
        self._chain = opened.chain
        self._flusher = opened.flusher
        self._warmer = opened.warmer
        self._preparer = opened.preparer
        self.tables = opened.tables
        self._loss = opened.loss
        self._doubt = opened.doubt
        self.end = opened.chain.end
        self._growth = self._preparer.growth = RecentGrowth(self.end)
        """Where the next batch will stand. A plain attribute, as the next three: they are looked up a dozen times per
        batch."""
        self.active_start = opened.chain.active.start
        """Where the segment begins that is appended to."""
        self.confirmed = opened.confirmed
        """See `set_confirmed`."""
        self.flushed = opened.flusher.flushed
        self._state_from = opened.state_from
        self._closed = False

    @property
    def state(self) -> LogCondition:
        if self._closed:
            return LogCondition.CLOSED
        if self.recovery.corrupt is not None:
            return LogCondition.DAMAGED
        return LogCondition.OPEN if self._flusher.failure is None else LogCondition.FAILED

    @property
    def claim(self) -> Claim:
        """What the copy held before bytes of it went bad; of a sound one, what it holds."""
        if self.recovery.corrupt is not None:
            return self.recovery.claim
        return Claim(self.end, self.confirmed)

    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins or the log ends there. Not denied below and within sealed segments: that is confirmed,
        and only the disk knows its borders."""
        below = log_offset < self.first_segment
        return below or self._chain.is_sealed(log_offset) or self._chain.is_border(log_offset)

    @property
    def directory(self) -> Path:
        return self._chain.directory

    @property
    def stalls(self) -> int:
        """How often a new segment had to be made on the loop because no spare file was ready."""
        return self._chain.stalls

    @property
    def state_from(self) -> int:
        """From here on the log tells the state of its queues; the start offset does not pass it."""
        return self._state_from

    @property
    def has_spare(self) -> bool:
        """Whether the next segment's file is there already, made ahead or recycled."""
        return self._preparer.spare is not None

    @property
    def first_segment(self) -> int:
        """Where the first segment begins: at the start offset, or below it."""
        return self._chain.segments[0].start

    @property
    def is_one_segment(self) -> bool:
        """Whether there is none that could be sealed or freed."""
        return len(self._chain.segments) == 1

    @property
    def last_start(self) -> int:
        """The start of the last segment that is not above `state_from`; the start offset when there is none."""
        starts = [each.start for each in self._chain.segments if self.begin <= each.start <= self._state_from]
        return max(starts, default=self.begin)

    def segments(self) -> list[SegmentInfo]:
        """What retention decides on: every segment but the last."""
        return [SegmentInfo(each.start, each.end, each.last_append_time_us) for each in self._chain.segments[:-1]]

    def set_state_from(self, log_offset: int) -> None:
        """A complete state checkpoint that begins there is confirmed. It never goes back."""
        self._state_from = max(self._state_from, min(log_offset, self.confirmed))

    def move_start(self, log_offset: int) -> None:
        """What stands below is no longer needed, as was decided, logged and confirmed. Files are freed by the next
        recorded flush, after which the new start offset is on disk. Raises BadRequest above what is confirmed and
        described."""
        if log_offset > min(self.confirmed, self._state_from):
            raise BadRequest(f"the begin cannot move to {log_offset}, above {min(self.confirmed, self._state_from)}")
        self.begin = max(self.begin, log_offset)

    def set_confirmed(self, log_offset: int) -> None:
        """Raise the confirmed offset; it never goes back. Above the end it is the end: a mirror hears of more than it
        holds."""
        self.confirmed = max(self.confirmed, min(log_offset, self.end))

    # --- Read ---------------------------------------------------------------------------------------------------------

    def read(self, log_offset: int, max_bytes: int, *, until: int) -> memoryview | None:
        """Whole batches from `log_offset` on, as a read-only view of mapped memory; None when they are not mapped
        (then `read_cold`).

        At least one batch, at most `max_bytes` unless the first alone is larger, all in one segment and none reaching
        beyond `until`; empty when there is none. Raises OffsetOutOfRange below the start offset, BadRequest where no
        batch begins."""
        found = self._find_run(log_offset, max_bytes, until)
        if found is None:
            return _EMPTY
        segment, end = found
        if segment.view is None or segment.sealed:
            return None
        return segment.view[log_offset - segment.start : end - segment.start].toreadonly()

    def read_cold(self, log_offset: int, max_bytes: int, *, until: int) -> ColdRead:
        """The job that reads the run that `read` has not mapped. Raises as `read`."""
        segment, end = self._find_run(log_offset, max_bytes, until) or (self._chain.active, log_offset)
        return ColdRead(
            self._files,
            segment.path,
            start=segment.start,
            log_offset=log_offset,
            end=end,
            seed=self.seed,
            known_border=not segment.sealed,
            on_bad=self.on_bad,
        )

    def read_batch_at(self, log_offset: int) -> tuple[BatchHeader, bytes]:
        """One batch, by pread; blocking. For tests and tools."""
        batch = bytes(self.read_cold(log_offset, 0, until=self.end).run())
        return read_header(batch), batch

    def scan(self, from_offset: int, on_batch: OnBatch, *, until: int | None = None) -> None:
        """Give every batch in [from_offset, until) to `on_batch`, checked; blocking. `until` is the end by default.

        Raises LogCorrupt, DiskFailed, and as `read`.
        """
        until = self.end if until is None else min(until, self.end)
        rules = BatchRules(self.seed, self.epochs)
        while (found := self._find_run(from_offset, self.end, until)) is not None:
            segment, last = found
            with self._flusher.disk("read"):
                scan_file(
                    self._files, segment.path, start=segment.start, first=from_offset, last=last, rules=rules,
                    on_batch=on_batch,
                )  # fmt: skip
            from_offset = last

    def scan_state(self, on_batch: OnBatch, *, until: int) -> None:
        """Give `on_batch` the batches below `until`, a border, from which the state of the queues follows; blocking.
        The loop may go on with the log meanwhile. Raises BadRequest, LogCorrupt and DiskFailed."""
        first = max(self.begin, self._state_from)
        if until < first or not self.is_border(until):
            raise BadRequest(f"log offset {until} is not where a batch begins, from {first} on")
        rules = BatchRules(self.seed, self.epochs)
        # A list of its own: segments that are freed meanwhile are none of these, but they stand before them.
        for segment in list(self._chain.segments):
            at, last = max(first, segment.start), min(until, segment.end)
            if at < last:
                with self._flusher.disk("read"):
                    scan_file(
                        self._files, segment.path, start=segment.start, first=at, last=last, rules=rules,
                        on_batch=on_batch,
                    )  # fmt: skip

    def _find_run(self, log_offset: int, max_bytes: int, until: int) -> tuple[Segment, int] | None:
        """(segment, end of the run), or None when no whole batch is there."""
        if self._closed:
            raise LogUnavailable(f"log {self.name} is closed")
        if log_offset < self.begin:
            raise OffsetOutOfRange(
                f"log offset {log_offset} is below the begin, {self.begin}", begin=self.begin, next=self.end
            )
        return self._chain.find_run(log_offset, max_bytes, until)

    # --- Disk work ----------------------------------------------------------------------------------------------------

    def start_flush(self, *, record: bool = True) -> FlushJob:
        """A job that brings everything below the present end to disk. More than one may be out. Costs nothing when all
        is there already.

        `record`: write the checkpoint too, a second sync. Without it the bytes are as safe; only the line below which
        damage is corruption, and not a torn tail, stays where it was.
        """
        checkpoint = Checkpoint(self.begin, self.end, self.confirmed, self._state_from)
        return self._flusher.start(self._chain, checkpoint, record=record)

    @property
    def owes_disk(self) -> bool:
        """Whether a recorded flush would write anything: at rest, all is there, and the checkpoint says so."""
        if self.flushed < self.end:
            return True
        return self._flusher.owes(self._chain, Checkpoint(self.begin, self.end, self.confirmed, self._state_from))

    def complete_flush(self, job: FlushJob) -> int:
        """The flushed offset now. Raises DiskFailed when the job failed: the log takes nothing more then."""
        before = self.flushed
        self.flushed = flushed = self._flusher.complete(job)
        if flushed > before:
            self._chain.release(flushed)
            self._cooled()
        for freed in self._chain.drop_below(job.start_on_disk):
            self._preparer.offer(freed)
        return flushed

    def _cooled(self) -> None:
        self._warmer.cooled()
        self._preparer.ask_again()

    def start_warm(self, *, sharers: int = 1) -> WarmJob | None:
        """A short job that makes the pages before the tail writable; None when nothing is due or one is out.

        `sharers`: logs of the node. One that nobody writes to has its share of what one alone would have ready.
        """
        if self.state is not LogCondition.OPEN:
            return None
        return self._warmer.start(
            self._chain.active, self._preparer.spare, grown=self._growth.to(self.end), sharers=sharers
        )

    def complete_warm(self, job: WarmJob) -> None:
        self._warmer.complete(job)

    def start_prepare(self, *, idle: bool = True, now: float = 0.0, sharers: int = 1) -> PrepareJob | None:
        """A job that makes a spare file or brings pages far ahead into memory; None when nothing is due or one is out.

        It may be slow, so it belongs on a helper of its own. `idle`: nothing was appended for a while. `now`: s, a
        clock that never goes back. `sharers`: see `start_warm`.
        """
        if self.state is not LogCondition.OPEN:
            return None
        self._growth.look(self.end, now)
        grown = self._growth.to(self.end)
        self._chain.release(self.flushed, now)
        if self._preparer.spare is not None and not self._chain.lent and self._preparer.is_outgrown(self._chain.active):
            try:
                self._chain.roll()
            except MirrorlogError:  # no append needs it yet; a disk that fails is met by the next flush
                self._preparer.ask_later()
            self.active_start = self._chain.active.start
        return self._preparer.start(self._chain.active, idle=idle, grown=grown, sharers=sharers)

    def complete_prepare(self, job: PrepareJob) -> None:
        self._preparer.complete(job)
        if job.prepared is not None and job.prepared is self._preparer.spare:
            self._warmer.spare_cooled()

    def keep_reserve(self, size: int) -> None:
        """Master: data leaves the last `size` bytes of a segment to other batches while no next segment is there."""
        self._chain.reserve_bytes = size

    def allow_bytes(self, size: int) -> None:
        """How much of the disk may be taken by new files for data, as it was just measured; below a segment's size
        none is made ahead, and data that needs one is refused with DiskFull."""
        self._preparer.allow(size)

    @property
    def disk_refusal(self) -> str:
        """Why the disk gave data no further file; empty while it does, as far as anybody has asked."""
        return self._preparer.refusal

    def doubt(self) -> None:
        """Bad bytes were met: the next opening reads everything; on disk when this returns. Blocking. Raises DiskFull,
        DiskFailed."""
        with self._flusher.disk("mark"):
            self._doubt.raise_()

    def settle_loss(self) -> None:
        """This copy has been compared with the others: it counts as complete again; blocking. Raises DiskFull,
        DiskFailed."""
        with self._flusher.disk("settle the loss of"):
            self._loss.settle()
        self.lossy = False

    # --- Into the past ------------------------------------------------------------------------------------------------

    def next_to_seal(self) -> tuple[int, int] | None:
        """[start, end) of the next segment that can be sealed, or None. Its start offset may be freed already.

        It is on disk, confirmed, and far enough behind that nobody is sent it from memory.
        """
        for segment in self._chain.segments[:-1]:
            if not segment.sealed:
                behind = segment.file is None and segment.view is None and segment.end <= self.confirmed
                return (segment.start, segment.end) if behind and segment.end > self.begin else None
        return None

    def shorten(self, end: int) -> None:
        """Give back to the disk what the file of the segment that ends there has behind its batches, if that is much:
        before `seal`, when nothing maps it any more. Blocking. Raises OSError."""
        for segment in list(self._chain.segments[:-1]):
            if segment.end == end and (size := self._shortened(segment)) < segment.capacity:
                self._files.shorten(segment.path, size)

    def _shortened(self, segment: Segment) -> int:
        """What its file has when that was done; a page behind its batches shows that they have ended."""
        if segment.room < self._preparer.first_bytes:
            return segment.capacity
        return -(-(segment.end - segment.start + HEADER_SIZE) // mmap.PAGESIZE) * mmap.PAGESIZE

    def seal(self, end: int) -> None:
        """The segment that ends there has its table, and whoever keeps an index has it from that; its file was
        shortened. It may have been freed meanwhile."""
        for segment in self._chain.segments[:-1]:
            if segment.end == end:
                segment.sealed = True
                segment.capacity = self._shortened(segment)
                segment.borders, segment.inside = array("Q"), array("Q")

    def check_table(self, start: int) -> None:
        """Make the table of a sealed segment anew if it is damaged, and remove that of one below the start offset;
        blocking. Raises LogCorrupt and OSError."""
        segment = next((each for each in self._chain.segments if each.start == start), None)
        # One made now would be empty, and be believed where a crash takes the start offset back.
        if segment is None or segment.end <= self.begin:
            self.tables.remove(start)
            return
        try:
            with SegmentTable.open(
                self._files, segment.path.with_name(table_name(start)), start=start, end=segment.end, seed=self.seed
            ) as table:
                table.verify()
        except (IndexDoubtful, FileNotFoundError):
            first = max(start, self.begin)
            rules = BatchRules(self.seed, self.epochs)
            content = table_from_segment(
                self._files, segment.path, start=start, first=first, end=segment.end, rules=rules
            )
            self.tables.store(start, segment.end, content)

    def close(self) -> None:
        """Flush, write the checkpoint and let everything go; blocking, idempotent. Raises DiskFailed.

        Views that were given out stay readable. A failed log is closed without a flush.
        """
        if self._closed:
            return
        job = self.start_flush()
        damaged = self.state is LogCondition.DAMAGED
        self._closed = True
        try:
            if self._flusher.failure is None and not damaged:
                job.run()
                self.flushed = self._flusher.complete(job)
        finally:
            self._warmer.close()
            self._preparer.close()
            self._chain.close()
            self._flusher.close()
