"""Opening a log: walk every batch, tell a torn tail from corruption, and put the files in order.

Where no batch stands at the place at which the next one must begin:

- zeros in place of a header, and nothing valid behind them: the log ends here;
- below the flushed offset: corruption. LogCorrupt, and nothing on disk is changed, but for tables that were missing.
  What stands before it can be had by a second pass that stops there (`stop_at`), and changes nothing either;
- above it, and nothing valid follows: a torn tail, cut;
- above it, and valid batches follow: cut too, but this start is `lossy`, since those batches were whole once.

A file that is missing or misnamed, a batch that reaches past its file and an epoch that the list does not give are
all "no batch stands here". Running it again finds nothing left to report.

A recovery that finds whole batches behind bad ones cuts them, and the next start would look complete. So before
anything is cut the loss is written down, and a start counts as lossy as long as the note is there (invariant 7). What
further starts lose is added: a recovery that is interrupted finds less the next time.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Container
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from mirrorlog.commitlog.files import File, Files, disk_error, read_file, replace_file
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.format.header import ALIGNMENT, HEADER_SIZE, BatchHeader, is_inner
from mirrorlog.commitlog.index.table import TableHead, table_start
from mirrorlog.commitlog.index.tables import Tables, table_from_segment
from mirrorlog.commitlog.recovery.damage import Damage, FileStretch, Range, assess, next_valid
from mirrorlog.commitlog.segments.preallocation import SPARE_PREFIX
from mirrorlog.commitlog.segments.scan import (
    BatchRules,
    BlockReader,
    OnBatch,
    bad_bytes,
    find_starts,
    nonzero_end,
    walk,
    zero_out,
)
from mirrorlog.commitlog.segments.segment import Segment, segment_name, segment_start
from mirrorlog.errors import DiskFull, IndexDoubtful

_REPLACEMENT_SUFFIX: Final = ".new"


class Claim(NamedTuple):
    """Up to where a copy held the log, and up to where it knew it to be confirmed, in log offsets."""

    end: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log found and did.

    `torn`: bytes that were cut because they are no batches. `cut_valid`: from the first to the end of the last whole
    batch that stood behind them and was cut with them. `recorded`: the checkpoint as it was found. `doubtful`: what was
    wrong with tables that were made anew.
    """

    begin: int
    end: int
    batches: int
    recorded: Checkpoint
    torn: Range | None = None
    cut_valid: Range | None = None
    warnings: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    corrupt: Range | None = None
    """Bad bytes below the flushed offset: for now the log ends where they begin."""
    held: int = 0
    """Of such a log, where the last valid batch behind the flushed offset ends."""

    @property
    def claim(self) -> Claim:
        """What the copy held by its own record, and by what stands behind that: it may be more than what it holds."""
        recorded = self.recorded
        end = max(self.end, recorded.flushed, recorded.confirmed, self.held)
        return Claim(end, max(recorded.confirmed, self.begin))

    @property
    def lossy(self) -> bool:
        """Bytes are gone that were whole, or confirmed, here once: this copy must not count as complete."""
        return self.cut_valid is not None or self.corrupt is not None or self.end < self.recorded.confirmed

    @property
    def clean(self) -> bool:
        """Nothing to report."""
        return not (self.lossy or self.torn or self.warnings)


@dataclass(slots=True)
class Recovery:
    """One pass over a log's directory: `scan` only reads, `repair` writes. Both raise OSError.

    `segments` are the log's afterwards, none of them mapped; `end` is the log's end. `stop_at`: where the bad bytes
    begin that a pass before this one met; `check_past`: read what the tables vouch for, too.
    """

    files: Files
    directory: Path
    rules: BatchRules
    recorded: Checkpoint
    tables: Tables
    stop_at: int | None = None
    check_past: bool = False
    segments: list[Segment] = field(default_factory=list)
    end: int = 0
    batches: int = 0
    last_append_time_us: int = 0
    damage: Damage | None = None
    held: int = 0
    _waiting: list[FileStretch] = field(default_factory=list)
    _leftover: list[Path] = field(default_factory=list)
    _unnamed: set[Path] = field(default_factory=set)
    _doubtful: list[str] = field(default_factory=list)

    def take_sealed(self) -> None:
        """Take in the segments of the past by their tables, and make those that are missing or doubtful anew.

        The past is what is flushed, confirmed, and not needed for the state of the queues. The last file may be
        appended to, and is walked. Raises LogCorrupt naming range and file.
        """
        self.end = self.recorded.begin
        self._waiting = self._list_files()
        past = min(self.recorded.flushed, self.recorded.confirmed, self.recorded.state)
        if self.stop_at is not None:
            past = min(past, self.stop_at)
        while len(self._waiting) > 1 and self._waiting[0].start <= self.end < self._waiting[1].start <= past:
            if self._waiting[1].path in self._unnamed:
                return  # where it belongs is not certain
            stretch, end = self._waiting[0], self._waiting[1].start
            head = self._table(stretch, end)
            if head is None:
                return  # no space for a table: what is left is walked
            del self._waiting[0]
            with closing(self.files.open(stretch.path)) as file:
                capacity = file.size()
            self.segments.append(
                Segment(
                    stretch.start, stretch.path, capacity, end, sealed=True,
                    last_append_time_us=head.last_append_time_us,
                )
            )  # fmt: skip
            self.batches += head.borders
            self.last_append_time_us = max(self.last_append_time_us, head.last_append_time_us)
            self.end = end

    def check_tables(self) -> None:
        """Read the tables as a whole and make damaged ones anew; blocking. Raises LogCorrupt."""
        for segment in self.segments:
            try:
                self.tables.get(segment.start).verify()
            except IndexDoubtful as error:
                self._doubtful.append(str(error))
                self.tables.store(segment.start, segment.end, self._made_anew(segment.path, segment.start, segment.end))

    def scan(self, on_batch: OnBatch) -> None:
        """Give every batch behind the sealed segments to `on_batch`. Raises LogCorrupt naming range and file."""
        while self._waiting and self.damage is None and not self._stopped:
            self._next_file(on_batch)
            self._drop_elsewhere()
        if self.end < self.recorded.flushed and self.damage is None and not self._stopped:
            raise bad_bytes(self.end, self.recorded.flushed, self.directory, "the log ends too early")
        if self._stopped:
            self.held = self._held_behind(self.recorded.flushed)
        self._drop_empty()

    def _held_behind(self, flushed: int) -> int:
        """Where the last valid batch behind the flushed offset ends; that, when there is none."""
        files = [FileStretch(segment.start, segment.path, 0) for segment in self.segments]
        files += [stretch for stretch in self._waiting if stretch.start > (self.segments[-1].start if files else -1)]
        holder = max((each.start for each in files if each.start <= flushed), default=0)
        rest = [
            FileStretch(each.start, each.path, max(0, flushed - each.start)) for each in files if each.start >= holder
        ]
        valid = assess(self.files, self.rules, place=flushed, reason="", stretches=rest).valid
        return flushed if valid is None else valid.last

    @property
    def _stopped(self) -> bool:
        return self.stop_at is not None and self.end >= self.stop_at

    def repair(self) -> bool:
        """Cut what `scan` found bad and remove leftovers; on disk when this returns. True when anything changed.

        From the front to the back: a crash in between leaves in sight what makes this start lossy.
        """
        changed = self._zero_bad_bytes()
        for segment in self.segments:
            path = self.directory / segment_name(segment.start)
            if segment.path != path:
                self.files.rename(segment.path, path)
                segment.path = path
                changed = True
        kept = {segment.path for segment in self.segments}
        unnamed = [path for path in self._unnamed if path not in kept]
        for path in sorted({*self._leftover, *unnamed, *(stretch.path for stretch in self._waiting)}):
            with suppress(FileNotFoundError):  # a half-made table was made anew under the same name
                self.files.unlink(path)
            changed = True
        self._rewrite_unflushed()
        if changed:
            self.files.fsync_directory(self.directory)
        return changed

    def _rewrite_unflushed(self) -> None:
        """Make the kernel write what it may have given up: after a failed sync it can call pages clean that are not on
        disk, and the next sync passes them over, and memory may let them go. So what was checked is written again, and
        what cannot be read a second time ends this start."""
        for segment in self.segments:
            first = max(self.recorded.flushed, self.recorded.begin, segment.start)
            if first >= segment.end:
                continue
            with closing(self.files.open(segment.path)) as file:
                self._rewrite(file, segment, first)

    def _rewrite(self, file: File, segment: Segment, first: int) -> None:
        start = segment.start

        def rewrite(header: BatchHeader, batch: memoryview) -> None:
            file.pwrite(batch, header.log_offset - start)

        stop = walk(
            BlockReader(file), start=start, at=first - start, until=segment.end - start, rules=self.rules,
            on_batch=rewrite,
        )  # fmt: skip
        if stop.reason:
            raise OSError(errno.EIO, f"log offset {start + stop.at} reads differently each time")

    def report(self, warnings: tuple[str, ...], corrupt: Range | None = None) -> RecoveryReport:
        """`corrupt`: the bad bytes at `stop_at`."""
        bad, valid = self.damage or (None, None)
        return RecoveryReport(
            self.recorded.begin, self.end, self.batches, self.recorded, bad, valid, warnings, tuple(self._doubtful),
            corrupt, self.held,
        )  # fmt: skip

    def _table(self, stretch: FileStretch, end: int) -> TableHead | None:
        """The table of a segment, made if need be; None when there is no space for it."""
        if self.check_past:
            self._made_anew(stretch.path, stretch.start, end)
        try:
            return self.tables.load(stretch.start, end)
        except FileNotFoundError:
            pass  # the last start came to its end before it was made
        except IndexDoubtful as error:
            self._doubtful.append(str(error))
        content = self._made_anew(stretch.path, stretch.start, end)
        try:
            return self.tables.store(stretch.start, end, content)
        except OSError as error:
            if isinstance(disk_error(error, "store a table in", self.directory), DiskFull):
                return None
            raise

    def _made_anew(self, path: Path, start: int, end: int) -> memoryview:
        first = max(start, self.recorded.begin)
        return table_from_segment(self.files, path, start=start, first=first, end=end, rules=self.rules)

    # --- Which files ----------------------------------------------------------------------------------------------

    def _list_files(self) -> list[FileStretch]:
        """The files that hold the log from its start offset on, in order; leftovers are put aside."""
        found: dict[int, Path] = {}
        spares: list[Path] = []
        begin = self.recorded.begin
        starts = {
            start: name for name in self.files.listdir(self.directory) if (start := segment_start(name)) is not None
        }
        first = max((start for start in starts if start <= begin), default=0)
        for name in self.files.listdir(self.directory):
            if (start := segment_start(name)) is not None and start >= first:
                found[start] = self.directory / name
            elif start is not None or name.startswith(SPARE_PREFIX):
                spares.append(self.directory / name)
            elif name.endswith(_REPLACEMENT_SUFFIX) or self._is_orphan(name, starts):
                self._leftover.append(self.directory / name)
        for path in spares:
            # A spare, which may be a segment that was freed, is renamed before its first byte; but after a power loss
            # the bytes may be there and not the name. Of what is flushed the name is there.
            self._unnamed.add(path)
            for start in self._starts_of(path, lowest=max(begin, self.recorded.flushed)):
                found.setdefault(start, path)
        return [FileStretch(start, found[start], 0) for start in sorted(found)]

    @staticmethod
    def _is_orphan(name: str, starts: Container[int]) -> bool:
        """Whether it is the table of a segment that is gone."""
        start = table_start(name)
        return start is not None and start not in starts

    def _starts_of(self, path: Path, *, lowest: int) -> list[int]:
        """The log offsets at which a file may begin, by the batches of this log that stand in it."""
        with closing(self.files.open(path)) as file:
            return find_starts(BlockReader(file), self.rules, lowest=lowest)

    def _drop_elsewhere(self) -> None:
        """Pass over places at which a file without a name could have stood, and does not."""
        taken = {segment.path for segment in self.segments}
        self._waiting = [
            each
            for each in self._waiting
            if each.path not in self._unnamed or (each.start >= self.end and each.path not in taken)
        ]

    def _drop_empty(self) -> None:
        """See `chain`: a file without batches is not kept behind another."""
        while len(self.segments) > 1 and self.segments[-1].end == self.segments[-1].start:
            self._leftover.append(self.segments.pop().path)

    # --- What they hold -------------------------------------------------------------------------------------------

    def _next_file(self, on_batch: OnBatch) -> None:
        stretch = self._waiting[0]
        holds_begin = not self.segments and stretch.start <= self.end
        if stretch.start != self.end and not holds_begin:
            self._missing_file()
            return
        del self._waiting[0]
        with closing(self.files.open(stretch.path)) as file:
            reader = BlockReader(file)
            if not reader.size:
                self._leftover.append(stretch.path)
                return
            segment = Segment(stretch.start, stretch.path, reader.size, self.end)
            self.segments.append(segment)
            reason = self._walk(reader, segment, on_batch)
            self.end = segment.end
            if self._stopped:
                return
            at = segment.end - segment.start
            follows = nonzero_end(reader, at) > at
            ended = not any(reader.view(at, HEADER_SIZE))
        if follows and ended and not self._valid_behind(segment):
            segment.recycled = True
        elif follows:
            self._bad_bytes(segment, reason)

    def _walk(self, reader: BlockReader, segment: Segment, on_batch: OnBatch) -> str:
        """Why the walk ended."""

        def keep(header: BatchHeader, batch: memoryview) -> None:
            if is_inner(header):
                segment.inside.append(header.log_offset)
            else:
                segment.append_border(header.length)
                self.batches += 1
            self.last_append_time_us = max(self.last_append_time_us, header.append_time_us)
            segment.last_append_time_us = self.last_append_time_us
            on_batch(header, batch)

        at = segment.end - segment.start
        until = reader.size if self.stop_at is None else min(reader.size, self.stop_at - segment.start)
        return walk(reader, start=segment.start, at=at, until=until, rules=self.rules, on_batch=keep).reason

    def _valid_behind(self, segment: Segment) -> bool:
        """Whether the zeros at the end of `segment` are a hole in the log.

        Behind them stands what a recycled file held, or what a crash left of an append: no batch of this place, unless
        it was persisted out of order.
        """
        if self._waiting and self._waiting[0].start == segment.end:
            return False
        rest = FileStretch(segment.start, segment.path, segment.end - segment.start + ALIGNMENT)
        return next_valid(self.files, self.rules, rest) is not None

    def _missing_file(self) -> None:
        path = self.directory / segment_name(self.end)
        reason = f"file {path.name} is missing"
        if self.end < self.recorded.flushed:
            raise bad_bytes(self.end, max(self.end, self._waiting[0].start), path, reason)
        self.damage = assess(self.files, self.rules, place=self.end, reason=reason, stretches=self._waiting)

    def _bad_bytes(self, segment: Segment, reason: str) -> None:
        rest = FileStretch(segment.start, segment.path, segment.end - segment.start + ALIGNMENT)
        if self.end < self.recorded.flushed:
            file_end = segment.start + segment.capacity
            last = next_valid(self.files, self.rules, rest) or file_end
            raise bad_bytes(self.end, last, segment.path, reason)
        self.damage = assess(self.files, self.rules, place=self.end, reason=reason, stretches=[rest, *self._waiting])

    def _zero_bad_bytes(self) -> bool:
        if self.damage is None or not self.segments:
            return False
        segment = self.segments[-1]
        at = segment.end - segment.start
        with closing(self.files.open(segment.path)) as file:
            if self.damage.valid is None:
                # Zeros in the place of a header end a log: the rest, perhaps a gigabyte of an old file, may stay.
                zero_out(file, at, min(at + HEADER_SIZE, file.size()))
                segment.recycled = True
            else:
                zero_out(file, at, file.size())
            file.fdatasync()
        return True


FILE_NAME: Final = "lossy"
EARLIER: Final = "lost by an earlier start"
_BYTES_MAX: Final = 64 * 1024


class LossNote:
    """The note in a log's directory. Reading it and every method raise OSError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME
        self._noted = files.exists(self._path)
        self._earlier = self._read() if self._noted else None

    def note(self, report: RecoveryReport) -> None:
        """Write down what a start loses, with what earlier ones lost; on disk when this returns."""
        lost = _joined(_lost(report), self._earlier)
        content = {"first": lost.first, "last": lost.last}
        replace_file(self._files, self._path, (json.dumps(content) + "\n").encode())

    def told(self, report: RecoveryReport) -> RecoveryReport:
        """The report of a start, with what earlier ones lost and nobody has acted on."""
        if not self._noted:
            return report
        lost = self._earlier or Range(report.end, report.end, f"{EARLIER}, whose note cannot be read")
        return replace(report, cut_valid=_joined(_lost(report), lost) if report.lossy else lost)

    def settle(self) -> None:
        """The loss was acted on: this copy has been compared with the others."""
        if self._files.exists(self._path):
            self._files.unlink(self._path)
        # Always: an unlink whose sync failed was not seen to be on disk.
        self._files.fsync_directory(self._path.parent)

    def _read(self) -> Range | None:
        """None when what was lost cannot be read any more; that something was, is known."""
        try:
            content = json.loads(read_file(self._files, self._path, max_bytes=_BYTES_MAX))
            return Range(int(content["first"]), int(content["last"]), EARLIER)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None


def _lost(report: RecoveryReport) -> Range:
    """All that a lossy start lost: what it cut, and what was confirmed and is not there."""
    gone = report.recorded.confirmed
    missing = Range(report.end, gone, "confirmed and not there") if report.end < gone else None
    return _joined(missing, report.cut_valid) if missing else report.cut_valid or Range(report.end, report.end, "")


def _joined(one: Range, other: Range | None) -> Range:
    """From the first to the last that is in either."""
    if other is None:
        return one
    return Range(min(one.first, other.first), max(one.last, other.last), other.reason)
