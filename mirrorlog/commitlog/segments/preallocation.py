"""Files and pages that are made ready ahead of a log's tail, so that an append waits for neither. By helper threads.

A page of a file that was never written is dear, and not only because memory must be found for it (0.4 GB/s where a
virtual machine gets its memory at the first touch, 10 GB/s for a cached page): its block is marked as written
in the file system's journal, so a fault on it waits while the journal commits, and a flush has a commit to write. So,
while there is time, the pages of the active segment and of a spare file are touched and synced ahead of the tail: four
times what the log has taken of late, up to `prepare_bytes`, so a log that takes little has little ready. Files are
sized by the same rule, up to a segment and by what the disk has left; those that have become much too large go back to
it, the active one when it was rolled out of. Touched, not
written: the kernel brings in zeros and marks the page dirty, so nothing that the loop stores meanwhile can be
overwritten. Figures: decision 0007.

A spare is allocated under the name `spare-<n>` and renamed by a roll before its first byte is stored in it. The best
spare is a segment that retention has freed: its pages are there, its blocks are written.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Files, disk_error
from mirrorlog.commitlog.segments.segment import FreedFile, Segment, SpareFile, make_spare_file, recycle_file
from mirrorlog.errors import DiskFull

SPARE_PREFIX: Final = "spare-"
STEP_BYTES: Final = 16 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
RECYCLED_MAX: Final = 2
"""How many recycled files are kept beside the next one."""
BUSY_BYTES: Final = 96 * 1024 * 1024
"""How far ahead is prepared while the log grows: two steps beyond a segment of 64 MiB, so that its next one is complete
before the roll, and no sync of it falls on that moment."""

FIRST_BYTES: Final = 16 * 1024 * 1024
"""Of the first file of a log, where segments are larger: a log that holds little takes little."""
AHEAD_TIMES: Final = 4
"""There is prepared at most so many times what a log has taken of late, beside its share; a file has as many, too."""
LATE_S: Final = 120.0
"""In such a time half of what a log has taken is forgotten: what it made ready for a burst is given back some minutes
later."""
OUTGROWN_TIMES: Final = 4
"""A file so many times larger than one that would be made now is too large."""
DISK_SHARE: Final = 8
"""A new file takes this part of what the disk has left at most, unless that is less than the first file has: on a small
disk a segment would be all of it."""


def share_of(size: int, sharers: int) -> int:
    """What one of so many logs of a node may have ready while nobody writes to it: together they have no more than one
    alone would, in whole pages."""
    return size // max(1, sharers) & -mmap.PAGESIZE


class RecentGrowth:
    """How many bytes a log has taken of late: all of it, while it is new, and half of it `LATE_S` later. Pure."""

    __slots__ = ("_at", "_bytes", "_end")

    def __init__(self, end: int) -> None:
        self._end, self._at, self._bytes = end, 0.0, 0.0

    def look(self, end: int, now: float) -> None:
        """The log ends there now (s, any clock that never goes back); one that was cut has taken nothing."""
        self._bytes = self._bytes * 0.5 ** ((now - self._at) / LATE_S) + max(0, end - self._end)
        self._end, self._at = end, now

    def to(self, end: int) -> int:
        """With what came since the last look."""
        return int(self._bytes) + max(0, end - self._end)


def first_file_bytes(segment_bytes: int, max_batch_bytes: int) -> int:
    """Of a log's first file: at least one batch fits in any case, since a segment begins where no other one does."""
    return min(segment_bytes, max(FIRST_BYTES, 2 * max_batch_bytes))


# Never the same name twice in a process: a job of a log that was closed meanwhile cannot touch its successor's file.
_numbers = itertools.count(1)


def spare_path(directory: Path) -> Path:
    return directory / f"{SPARE_PREFIX}{next(_numbers)}"


class PrepareJob:
    """One step: a spare file, new or recycled, the end of a file that nobody wants (`dropped`: one that was never
    used), or pages of a file.

    `run` belongs on a helper thread.
    """

    __slots__ = (
        "_files", "_spare_wanted", "_sync_failed", "dropped", "error", "freed", "pages", "prepared", "spare",
        "supported", "to",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        *,
        spare: tuple[Path, int] | None = None,
        freed: FreedFile | None = None,
        dropped: SpareFile | None = None,
        prepared: Segment | SpareFile | None = None,
        pages: memoryview | None = None,
        to: int = 0,
        sync_failed: Callable[[OSError], object] = lambda error: None,
    ) -> None:
        self._files = files
        self._sync_failed = sync_failed
        self._spare_wanted = spare
        self.freed = freed
        self.dropped = dropped
        self.prepared = prepared
        self.pages = pages
        self.to = to
        self.supported = True
        self.spare: SpareFile | None = None
        self.error: OSError | None = None

    @property
    def new_bytes(self) -> int:
        """What of the disk it takes that was free before."""
        return self._spare_wanted[1] if self._spare_wanted is not None and self.freed is None else 0

    def run(self) -> None:
        """Raises nothing: a disk that is full now is told to the loop, and met again only if a roll needs the file."""
        try:
            if self._spare_wanted is not None and self.freed is not None:
                self.spare = recycle_file(self._files, self.freed, self._spare_wanted[0])
            elif self.freed is not None:
                self._files.unlink(self.freed.path)
            elif self.dropped is not None:
                # With its map, which takes its time to go: nobody else has it any more.
                dropped, self.dropped = self.dropped, None
                dropped.file.close()
                self._files.unlink(dropped.path)
            elif self._spare_wanted is not None:
                self.spare = make_spare_file(self._files, *self._spare_wanted)
            elif self.pages is not None and self.prepared is not None:
                self._touch(self.pages, self.prepared.path)
        except OSError as error:
            self.error = error

    def _touch(self, pages: memoryview, path: Path) -> None:
        # In pieces, because the kernel holds the process's memory map for the length of one call.
        for at in range(0, len(pages), PIECE_BYTES):
            self.supported = self.supported and self._files.populate(pages[at : at + PIECE_BYTES])
        # By an open file of its own: the kernel tells each of them once of a write that failed, and a flush of the same
        # segment must hear of it too. A spare that was rolled into meanwhile has another name, and is left to flushes.
        with suppress(FileNotFoundError), closing(self._files.open(path)) as file:
            try:
                file.fdatasync()
            except OSError as error:
                self._sync_failed(error)
                raise


class Preparer:
    """Decides what to prepare next; one job at a time. Used on the loop only.

    A file that the log gives up becomes a spare once no reader has a view of it any more. A few are kept, so that a log
    in its steady state makes no new file, whatever order rolls and frees come in; more are removed.
    """

    __slots__ = (
        "_at_rest_bytes", "_files", "_freed", "_pending", "_recycled", "_refused", "_system_refused", "allowed_bytes",
        "directory", "first_bytes", "growth", "on_sync_failed", "prepare_bytes", "refusal", "segment_bytes", "spare",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        segment_bytes: int,
        prepare_bytes: int,
        at_rest_bytes: int | None = None,
        first_bytes: int | None = None,
    ) -> None:
        """`at_rest_bytes`: ready in any case, `prepare_bytes` by default; `first_bytes`: of the first file of an empty
        log, a segment's by default."""
        self._files = files
        self._at_rest_bytes = prepare_bytes if at_rest_bytes is None else min(at_rest_bytes, prepare_bytes)
        self._freed: list[FreedFile] = []
        self._recycled: list[SpareFile] = []
        self._pending: PrepareJob | None = None
        self._refused = False
        self.allowed_bytes: int | None = None
        """How much of the disk new files for data may still take, as it was last measured; None: all that there is."""
        self.refusal = ""
        """Why data that needed a file got none; empty once there is one, or there was space when it was measured."""
        self._system_refused = False
        self.directory = directory
        self.on_sync_failed: Callable[[OSError], object] = lambda error: None
        """Told on a helper of a sync that failed: no byte that was stored before it is believed any more."""
        self.segment_bytes = segment_bytes
        self.prepare_bytes = prepare_bytes
        self.first_bytes = first_bytes or segment_bytes
        self.spare: SpareFile | None = None
        self.growth = RecentGrowth(0)

    def start(self, active: Segment, *, idle: bool, grown: int = 0, sharers: int = 1) -> PrepareJob | None:
        """The next job, or None when all is prepared or one is out already.

        While the log grows (not `idle`) only what will be needed at once: first touches would take the core, and the
        memory's bandwidth, that the publishes need. `grown`: bytes that it has taken of late.
        """
        if self._pending is None:
            ahead = min(self.prepare_bytes, max(share_of(self._at_rest_bytes, sharers), AHEAD_TIMES * grown))
            if not idle:
                ahead = min(BUSY_BYTES, ahead)
            # Of several logs only one that has grown is worth a file of the disk: a segment is much for one at rest.
            reach = ahead if sharers == 1 else min(ahead, AHEAD_TIMES * grown)
            self._pending = self._next_job(active, ahead, reach)
            return self._pending
        return None

    def complete(self, job: PrepareJob) -> None:
        """Take over what `job` prepared."""
        if job is not self._pending:
            self.discard(job.spare)
            return
        self._pending = None
        if not job.supported:
            self.prepare_bytes = 0
        if job.prepared is not None:
            job.prepared.prepared_to = max(job.prepared.prepared_to, job.to)
        self._refused = job.error is not None
        if job.spare is not None:
            self._has_file()
        if job.freed is not None and job.error is not None and not isinstance(job.error, FileNotFoundError):
            self._freed.append(job.freed)
        if job.spare is not None and self.spare is None:
            self.spare = job.spare
        elif job.spare is not None and job.freed is not None and self._keeps_recycled():
            self._recycled.append(job.spare)
        else:
            self.discard(job.spare)  # the loop could not wait for it
            self._spent(-job.new_bytes)

    def offer(self, freed: FreedFile) -> None:
        """The log has no use for this file any more, and its new start offset is on disk."""
        self._freed.append(freed)

    def file_bytes(self, end: int) -> int:
        """Of the next file of a log that ends there."""
        wanted = max(self.first_bytes, self._at_rest_bytes, AHEAD_TIMES * self.growth.to(end))
        if self.allowed_bytes is not None:
            wanted = min(wanted, max(self.first_bytes, self.allowed_bytes // DISK_SHARE))
        return min(self.segment_bytes, wanted)

    def is_outgrown(self, active: Segment) -> bool:
        """Whether the next file, which is there and is not too large, had better be begun."""
        end, spare = active.end, self.spare
        return spare is not None and end > active.start and spare.capacity < self._too_large(end) <= active.capacity

    def take(self) -> SpareFile | None:
        """The spare file, which is the caller's from here on."""
        spare, self.spare = self.spare, self._recycled.pop() if self._recycled else None
        return spare

    def check_allowed(self) -> None:
        """Raises DiskFull when a further file for data would take more of the disk than is allowed."""
        if not self._is_allowed():
            self.refusal = self.refusal or (
                f"cannot make the next segment of {self.directory}: its disk has no room for {self.first_bytes} "
                "bytes beside what log.disk_full_percent and log.disk_full_bytes keep; free space on its disk"
            )
            raise DiskFull(self.refusal, path=str(self.directory))

    def make(self, size: int | None = None) -> SpareFile:
        """A file, made here and now, a segment's by default. Raises OSError; data is not to ask again until the disk
        was measured anew."""
        size = size or self.segment_bytes
        try:
            spare = make_spare_file(self._files, spare_path(self.directory), size)
        except OSError as error:
            if self.allowed_bytes is not None:
                self.allowed_bytes = 0
            refused = disk_error(error, "make the next segment in", self.directory)
            if type(refused) is DiskFull:
                self.refusal, self._system_refused = refused.message, True
            raise
        self._has_file()
        self._spent(size)
        return spare

    def allow(self, size: int) -> None:
        """The disk was measured: new files may take so much of it. A file that is being made is in that, or not yet."""
        self.allowed_bytes = size - (self._pending.new_bytes if self._pending is not None else 0)
        self._refused = False
        if self._is_allowed() and not self._system_refused:
            self.refusal = ""

    def ask_later(self) -> None:
        """No spare is made before `ask_again`: the last one could not be used."""
        self._refused = True

    def ask_again(self) -> None:
        """A spare that was refused may be asked for again."""
        self._refused = False

    def close(self) -> None:
        """Remove the spares and the files that were given up. A job that is still out removes its own when it is
        completed."""
        self._pending = None
        while (spare := self.take()) is not None:
            self.discard(spare)
        for freed in self._freed:
            self._unlink(freed.path)
        self._freed.clear()

    def discard(self, spare: SpareFile | None) -> None:
        """Remove a spare that will not be used."""
        if spare is not None:
            spare.file.close()
            self._unlink(spare.path)

    def _unlink(self, path: Path) -> None:
        with suppress(OSError):  # recovery removes it
            self._files.unlink(path)

    def _next_job(self, active: Segment, ahead: int, reach: int) -> PrepareJob | None:
        """`ahead`: how far pages are prepared; `reach`: how far the log may get before the next look."""
        too_large = self._too_large(active.end)
        if (self.spare or self._recycled) and (job := self._dropped_job(too_large)) is not None:
            return job
        if self._freed and not self._refused and (job := self._freed_job(too_large)) is not None:
            return job
        tail = active.end - active.start
        urgent = active.room * 2 <= active.capacity or active.capacity >= too_large
        if urgent and self._wants_spare():
            return self._spare_job(active)
        job = self._pages_job(active, tail, min(active.capacity, tail + ahead))
        if job is None and self._wants_spare() and reach > active.room:
            job = self._spare_job(active)
        if job is None and self.spare is not None:
            job = self._pages_job(self.spare, 0, min(self.spare.capacity, ahead - active.room))
        return job

    def _too_large(self, end: int) -> int:
        """From so many bytes on a file keeps more of the disk than it will be of use."""
        return OUTGROWN_TIMES * self.file_bytes(end)

    def _dropped_job(self, too_large: int) -> PrepareJob | None:
        for spare in (self.spare, *self._recycled):
            if spare is not None and spare.capacity >= too_large:
                if spare is self.spare:
                    self.take()
                else:
                    self._recycled.remove(spare)
                self._spent(-spare.capacity)
                return PrepareJob(self._files, dropped=spare)
        return None

    def _freed_job(self, too_large: int) -> PrepareJob | None:
        for freed in self._freed:
            fits = freed.capacity == self.segment_bytes < too_large
            recycle = fits and (self.spare is None or self._keeps_recycled())
            if recycle and freed.pin() is not None:
                continue  # a reader is slow: bytes that it was promised must not change under it
            self._freed.remove(freed)
            spare = (spare_path(self.directory), freed.capacity) if recycle else None
            return PrepareJob(self._files, spare=spare, freed=freed)
        return None

    def _keeps_recycled(self) -> bool:
        return len(self._recycled) < RECYCLED_MAX and self._is_allowed()

    def _wants_spare(self) -> bool:
        return self.spare is None and not self._refused and self._is_allowed()

    def _is_allowed(self) -> bool:
        return self.allowed_bytes is None or self.allowed_bytes >= self.first_bytes

    def _has_file(self) -> None:
        self.refusal, self._system_refused = "", False

    def _spent(self, size: int) -> None:
        if self.allowed_bytes is not None:
            self.allowed_bytes -= size

    def _spare_job(self, active: Segment) -> PrepareJob:
        size = self.file_bytes(active.end)
        # Now, and not when it is there: a roll may make one of its own meanwhile.
        self._spent(size)
        return PrepareJob(self._files, spare=(spare_path(self.directory), size))

    def _pages_job(self, prepared: Segment | SpareFile, tail: int, to: int) -> PrepareJob | None:
        """The next step of `prepared` from its tail on; None when it is prepared up to `to`."""
        done = max(prepared.prepared_to, tail)
        first = done // PIECE_BYTES * PIECE_BYTES
        # Small remains wait until they are a step, or the end of the file.
        if prepared.view is None or done >= to or (to - first < STEP_BYTES and to < prepared.capacity):
            return None
        end = min(first + STEP_BYTES, to)
        return PrepareJob(
            self._files, prepared=prepared, pages=prepared.view[first:end], to=end, sync_failed=self.on_sync_failed
        )
