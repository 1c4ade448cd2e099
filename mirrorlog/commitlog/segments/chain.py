"""The segments of a log in order: where a batch goes, where a run is found, what a cut removes.

Offset-dense: a segment ends where its last batch ends, and the next file is named by that log offset. When the next
batch does not fit into what is left of the file, a new one begins. So log offsets do not depend on a node's segment
size, and two copies with equal sizes have byte-equal files. For that to hold after cuts and restarts too, a file in
which no batch stands is never kept behind another: it is removed, and the segment before it goes on.

Two ways to store a batch, by the log's flush mode (figures: decision 0007). A log in memory is written through
its map: the cheapest append, and pages that are warm before. A log whose confirms wait for the disk (`write_through`)
is written by pwrite: a map must be walked ahead to be warm, which makes every walked page one that the next flush has
to write, and a flush of 3 ms out of one of 0.1 ms. Both are read through the map: there is one page cache.

Rejected: borders at fixed log offsets with filler batches (RocketMQ). Every copy would need the same segment size for
ever, and each reader would have to know about fillers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Directory, File, Files, disk_error
from mirrorlog.commitlog.format.envelope import holds_data
from mirrorlog.commitlog.format.header import HEADER_SIZE, KIND_AT, Kind
from mirrorlog.commitlog.segments.preallocation import Preparer
from mirrorlog.commitlog.segments.scan import zero_out
from mirrorlog.commitlog.segments.segment import FreedFile, Segment, SpareFile, pin_of, segment_name
from mirrorlog.errors import BatchTooLarge, DiskFailed, FileRefused

_END_MARK: Final = bytes(HEADER_SIZE)
# Plain numbers: comparing with a member of an enum takes a microsecond.
_TRANSACTION: Final = int(Kind.TRANSACTION)
_DATA: Final = frozenset({int(Kind.DATA), _TRANSACTION})

KEPT_MAPPED_S: Final = 30.0


def _is_data(kind: int, body: bytes | memoryview) -> bool:
    """A transaction that only acknowledges is none: it goes on where data is refused, as acks alone do."""
    return kind in _DATA and (kind != _TRANSACTION or holds_data(body))


def _end_mark(active: Segment, length: int) -> bytes:
    """What must follow a batch of `length` bytes so that the log ends behind it."""
    return _END_MARK[: max(0, active.room - length)]


class SegmentChain:
    """At least one segment; the last one is active. `stalls`: rolls that found no spare file ready.

    `reserve_bytes`: data is refused rather than stored in the last so many bytes of a segment while no next one is
    there (see decision 0014); 0 for a mirror, which takes what its master has taken.
    A segment stays mapped while it ends within `kept_mapped_bytes` of the log's end, and for `KEPT_MAPPED_S` at most:
    that is where mirrors read. What is let go can be freed, and one that nothing is written to must not wait for more.
    `directory_changes` counts made, renamed and removed names, so that a flush knows whether to sync the directory;
    `names` is the directory, open for that. `lent`: somebody has memory at the end to receive a run in.
    """

    __slots__ = (
        "_files", "_kept_mapped_bytes", "_preparer", "_retired", "_starts", "_write_through", "active", "directory",
        "directory_changes", "lent", "names", "reserve_bytes", "segments", "stalls",
    )  # fmt: skip

    def __init__(
        self,
        files: Files,
        directory: Path,
        segments: Sequence[Segment],
        preparer: Preparer,
        *,
        kept_mapped_bytes: int,
        write_through: bool = False,
    ) -> None:
        self._files = files
        self._kept_mapped_bytes = kept_mapped_bytes
        self._write_through = write_through
        self._preparer = preparer
        self._retired: list[object] = []
        self.directory = directory
        self.directory_changes = 0
        self.names: Directory | None = None
        self.stalls = 0
        self.lent = False
        self.reserve_bytes = 0
        self.segments: list[Segment] = list(segments)
        if segments:
            self.active = segments[-1]
        self._starts = [segment.start for segment in segments]

    @property
    def end(self) -> int:
        return self.active.end

    # --- Writing ------------------------------------------------------------------------------------------------

    def open_files(self, flushed: int) -> None:
        """Open what a flush will have to sync, and map the last segment for writing. Raises OSError."""
        self.names = self.names or self._files.open_directory(self.directory)
        for segment in self.segments:
            if segment.file is None and segment.end > flushed:
                segment.file = self._files.open(segment.path)
        self._open_for_writing(self.active)

    def _open_for_writing(self, segment: Segment) -> None:
        """Its space is reserved again: a file restored by a tool that leaves holes would fault on a full disk."""
        if segment.file is None:
            segment.file = self._files.open(segment.path)
        if segment.view is None:
            segment.file.allocate(segment.capacity)
            segment.view = segment.file.map()

    def place(self, header: bytes | bytearray | memoryview, body: bytes | memoryview) -> None:
        """Store a batch, header and body, at the log's end; rolls when it does not fit.

        Raises BatchTooLarge, DiskFull or DiskFailed; nothing counts as stored then.
        """
        length, active = len(header) + len(body), self.active
        if length + self.reserve_bytes > active.room:
            self._make_room(length, self.reserve_bytes if _is_data(header[KIND_AT], body) else 0)
            active = self.active
        at = active.end - active.start
        mark = _end_mark(active, length) if active.recycled else b""
        if self._write_through:
            self._write(active, (header, body, mark), at)
        else:
            assert active.view is not None
            # The header last: a process that is killed in between leaves zeros where a batch would begin.
            active.view[at + length : at + length + len(mark)] = mark
            active.view[at + len(header) : at + length] = body
            active.view[at : at + len(header)] = header
        active.append_border(length)

    def note_inside(self, log_offsets: Sequence[int]) -> None:
        """Inside of the transactions that were just stored batches begin there; rising."""
        for log_offset in log_offsets:
            self.find(log_offset).inside.append(log_offset)

    def place_run(self, run: memoryview, lengths: Sequence[int]) -> None:
        """Store whole batches of these lengths at the end, one after the other.

        Never in one copy: a large memcpy writes pages out of order, so a process that is killed in it could leave whole
        batches behind bytes that are none, and recovery would have to take that for a loss.

        Raises BatchTooLarge, DiskFull or DiskFailed; batches before a roll may be in place then.
        """
        at = 0
        for length in lengths:
            self.place(run[at : at + HEADER_SIZE], run[at + HEADER_SIZE : at + length])
            at += length

    def room_view(self, length: int) -> memoryview | None:
        """Writable memory at the end for `length` bytes; None when they do not fit, or when no map may be written."""
        active = self.active
        if self._write_through or active.view is None or not 0 < length <= active.room:
            return None
        at = active.end - active.start
        self.lent = True
        return active.view[at : at + length]

    def keep(self, lengths: Sequence[int]) -> None:
        """Count the batches that were received in `room_view`."""
        self.lent = False
        for length in lengths:
            mark = _end_mark(self.active, length) if self.active.recycled else b""
            self.active.append_border(length)
        at = self.active.end - self.active.start
        assert self.active.view is not None
        self.active.view[at : at + len(mark)] = mark

    def _write(self, active: Segment, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        assert active.file is not None
        try:
            active.file.pwritev(parts, at)
        except OSError as error:
            # A full disk is no excuse: the space was allocated.
            failed = disk_error(error, "append to", active.path)
            if isinstance(failed, FileRefused):
                raise failed from None
            raise DiskFailed(failed.message, **failed.details) from None

    def begin_first(self, start: int) -> None:
        """Make the file of an empty log, which is small: many logs never fill it. Raises BatchTooLarge, DiskFull or
        DiskFailed."""
        self._add(start, size=self._preparer.first_bytes)

    def _make_room(self, length: int, reserve: int) -> None:
        """Roll if a batch of `length` bytes does not fit; before it takes of the reserve, have the next file ready.

        So there is always room for a batch that is no data: in the reserve, or in a file that is there already.
        """
        if length > self.active.room:
            if length > self._preparer.segment_bytes:
                raise BatchTooLarge(
                    f"a batch of {length} bytes is above log.segment_bytes ({self._preparer.segment_bytes})"
                )
            self._add(self.end, for_data=reserve > 0)
        if length + reserve > self.active.room and self._preparer.spare is None:
            self._preparer.spare = self._make_file(self.end, for_data=True)

    def _make_file(self, start: int, *, for_data: bool, size: int | None = None) -> SpareFile:
        """Make the next file here and now. Raises DiskFull or DiskFailed."""
        if for_data:
            self._preparer.check_allowed()
        self.stalls += bool(self.segments)
        try:
            return self._preparer.make(size or self._preparer.file_bytes(start))
        except OSError as error:
            raise disk_error(error, "make the next segment", self.directory / segment_name(start)) from None

    def roll(self) -> None:
        """Begin the spare file though the active one has room. Raises DiskFailed."""
        assert not self.lent
        self._add(self.end)

    def _add(self, start: int, *, for_data: bool = False, size: int | None = None) -> None:
        path = self.directory / segment_name(start)
        spare = self._preparer.take() or self._make_file(start, for_data=for_data, size=size)
        try:
            # Named before its first byte is stored: a crash of the process never leaves batches in a spare.
            self._files.rename(spare.path, path)
        except OSError as error:
            self._preparer.discard(spare)
            raise disk_error(error, "name the next segment", path) from None
        self.active = spare.as_segment(start, path)
        self.segments.append(self.active)
        self._starts.append(start)
        self.directory_changes += 1

    # --- Reading ------------------------------------------------------------------------------------------------

    def find(self, log_offset: int) -> Segment:
        """The segment that holds `log_offset`, which is below the end and not below the first segment."""
        return self.segments[bisect_right(self._starts, log_offset) - 1]

    def find_run(self, log_offset: int, max_bytes: int, until: int) -> tuple[Segment, int] | None:
        """(segment, end of the run of whole batches), see `Segment.run_end`; None when there is none below `until`.

        In a sealed segment the end is where the run ends at the latest: whoever reads it finds the border.
        """
        until = min(until, self.active.end)
        if log_offset >= until:
            return None
        segment = self.active if log_offset >= self.active.start else self.find(log_offset)
        if segment.sealed:
            return segment, min(log_offset + max_bytes, segment.end, until)
        end = segment.run_end(log_offset, max_bytes, until)
        return (segment, end) if end > log_offset else None

    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins or the log ends there."""
        if log_offset == self.end:
            return True
        if not self._starts[0] <= log_offset < self.end:
            return False
        segment = self.find(log_offset)
        index = bisect_right(segment.borders, log_offset) - 1
        return index >= 0 and segment.borders[index] == log_offset

    def is_sealed(self, log_offset: int) -> bool:
        """Whether a sealed segment holds it: its batches' borders are not known in memory."""
        return self._starts[0] <= log_offset < self.end and self.find(log_offset).sealed

    # --- Letting go ---------------------------------------------------------------------------------------------

    def unflushed(self, flushed: int) -> list[File]:
        """The files that hold bytes at or above `flushed`."""
        return [segment.file for segment in self.segments if segment.file is not None and segment.end > flushed]

    def release(self, flushed: int, now: float | None = None) -> None:
        """Drop the files of segments that are on disk and the maps of those that are far behind. `now`: s, by a clock
        that never goes back; None: no time has passed."""
        # From the newest on: behind one that has neither nobody has, and logs have thousands.
        for number in range(len(self.segments) - 2, -1, -1):
            segment = self.segments[number]
            if segment.file is None and segment.view is None:
                break
            if now is not None:
                segment.left_at = segment.left_at or now
            if segment.file is not None and segment.end <= flushed:
                self._retired.append(segment.file)
                segment.file = None
            late = now is not None and segment.file is None and now - segment.left_at >= KEPT_MAPPED_S
            if segment.view is not None and (late or segment.end + self._kept_mapped_bytes <= self.end):
                segment.pin = pin_of(segment.view)
                self._retired.append(segment.view)
                segment.view = None

    @property
    def has_retired(self) -> bool:
        """Whether something was dropped that is still to be forgotten."""
        return bool(self._retired)

    def take_retired(self) -> list[object]:
        """What was dropped: to be forgotten on a helper, since unmapping a large file takes its time."""
        retired, self._retired = self._retired, []
        return retired

    def drop_below(self, begin: int) -> list[FreedFile]:
        """Forget the segments that end at or below `begin`; the last one stays. Their files are the caller's."""
        freed: list[FreedFile] = []
        while len(self.segments) > 1 and self.segments[0].end <= begin:
            segment = self.segments.pop(0)
            self._starts.pop(0)
            freed.append(FreedFile(segment.path, segment.capacity, segment.pin or pin_of(segment.view)))
            self._retired += (segment.file, segment.view)
            self.directory_changes += 1
        return freed

    def prepare_cut(self, log_offset: int) -> None:
        """Take all that a cut there has to ask the system for, before anything has changed. Raises OSError."""
        last = next((each for each in reversed(self.segments) if each.start < log_offset), self.segments[0])
        if not last.sealed or last.end > log_offset:
            self._open_for_writing(last)
        elif self._preparer.spare is None:
            self._preparer.spare = self._preparer.make()

    def cut(self, log_offset: int) -> None:
        """Remove every byte from `log_offset` (a border) on; on disk when this returns. Raises OSError.

        From the back to the front, so that a crash in between leaves no batch standing behind a hole. Of a segment
        before the active one that stays: `prepare_cut` first.
        """
        removed = False
        while len(self.segments) > 1 and self.active.start >= log_offset:
            segment = self.segments.pop()
            self.active = self.segments[-1]
            self._starts.pop()
            self._files.unlink(segment.path)
            removed = True
        if removed:
            self.directory_changes += 1
            assert self.names is not None
            self.names.sync()
        if self.active.sealed:
            # It cannot be appended to any more, and what would follow it is cut: an empty file goes on from here.
            self._add(log_offset)
            return
        active = self.active
        self._open_for_writing(active)
        assert active.file is not None
        zero_out(active.file, log_offset - active.start, active.end - active.start)
        active.file.fdatasync()
        active.cut(log_offset)

    def close(self) -> None:
        """Drop all files and maps. Views that were given out stay valid."""
        for segment in self.segments:
            segment.file = segment.view = None
        self.names = None
        self._retired.clear()
