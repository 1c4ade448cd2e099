"""Opening a log: walk every batch, tell a torn tail from corruption, and put the files in order.

Where no batch stands at the place at which the next one must begin:

- zeros in place of a header, and nothing valid behind them: the log ends here;
- below the flushed offset: corruption. LogCorrupt, and nothing on disk is changed;
- above it, and nothing valid follows: a torn tail, cut;
- above it, and valid batches follow: cut too, but this start is `lossy`, since those batches were whole once.

A file that is missing or misnamed, a batch that reaches past its file and an epoch that the list does not give are
all "no batch stands here". Running it again finds nothing left to report.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.checkpoint import Checkpoint
from mirrorlog.commitlog.damage import Damage, Range, Stretch, assess, next_valid
from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.format import ALIGNMENT, HEADER_SIZE, BatchHeader
from mirrorlog.commitlog.prepare import SPARE_PREFIX
from mirrorlog.commitlog.scan import BlockReader, OnBatch, Rules, bad_bytes, nonzero_end, walk, zero_out
from mirrorlog.commitlog.segment import Segment, segment_name, segment_start
from mirrorlog.commitlog.table import TableHead, table_start
from mirrorlog.commitlog.tables import Tables, table_from_segment
from mirrorlog.errors import BadBatch, IndexDoubtful

_REPLACEMENT_SUFFIX: Final = ".new"


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log found and did.

    `torn`: bytes that were cut because they are no batches. `cut_valid`: from the first to the end of the last whole
    batch that stood behind them and was cut with them. `recorded`: the checkpoint as it was found.
    """

    begin: int
    end: int
    batches: int
    recorded: Checkpoint
    torn: Range | None = None
    cut_valid: Range | None = None
    warnings: tuple[str, ...] = ()

    @property
    def lossy(self) -> bool:
        """Bytes are gone that were whole, or confirmed, here once: this copy must not count as complete."""
        return self.cut_valid is not None or self.end < self.recorded.confirmed

    @property
    def clean(self) -> bool:
        """Nothing to report."""
        return not (self.lossy or self.torn or self.warnings)


@dataclass(slots=True)
class Recovery:
    """One pass over a log's directory: `scan` only reads, `repair` writes. Both raise OSError.

    `segments` are the log's afterwards, none of them mapped; `end` is the log's end.
    """

    files: Files
    directory: Path
    rules: Rules
    recorded: Checkpoint
    tables: Tables
    segments: list[Segment] = field(default_factory=list)
    end: int = 0
    batches: int = 0
    last_append_time_us: int = 0
    damage: Damage | None = None
    _waiting: list[Stretch] = field(default_factory=list)
    _leftover: list[Path] = field(default_factory=list)

    def take_sealed(self) -> None:
        """Take in the segments of the past by their tables, and make those that are missing or doubtful anew.

        The past is what is flushed, confirmed, and not needed for the state of the queues. The last file may be
        appended to, and is walked. Raises LogCorrupt naming range and file.
        """
        self.end = self.recorded.begin
        self._waiting = self._list_files()
        past = min(self.recorded.flushed, self.recorded.confirmed, self.recorded.state)
        while len(self._waiting) > 1 and self._waiting[0].start <= self.end < self._waiting[1].start <= past:
            stretch, end = self._waiting.pop(0), self._waiting[0].start
            head = self._table(stretch, end)
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

    def scan(self, on_batch: OnBatch) -> None:
        """Give every batch behind the sealed segments to `on_batch`. Raises LogCorrupt naming range and file."""
        while self._waiting and self.damage is None:
            self._next_file(on_batch)
        if self.end < self.recorded.flushed and self.damage is None:
            raise bad_bytes(self.end, self.recorded.flushed, self.directory, "the log ends too early")
        self._drop_empty()

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
        for path in (*self._leftover, *(stretch.path for stretch in self._waiting)):
            self.files.unlink(path)
            changed = True
        if changed:
            self.files.fsync_directory(self.directory)
        return changed

    def report(self, warnings: tuple[str, ...]) -> RecoveryReport:
        bad, valid = self.damage or (None, None)
        return RecoveryReport(self.recorded.begin, self.end, self.batches, self.recorded, bad, valid, warnings)

    def _table(self, stretch: Stretch, end: int) -> TableHead:
        try:
            return self.tables.load(stretch.start, end)
        except (IndexDoubtful, FileNotFoundError):
            content = table_from_segment(
                self.files, stretch.path, start=stretch.start, first=self.end, end=end, rules=self.rules
            )
            return self.tables.store(stretch.start, end, content)

    # --- Which files ----------------------------------------------------------------------------------------------

    def _list_files(self) -> list[Stretch]:
        """The files that hold the log from its begin on, in order; leftovers are put aside."""
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
            # the bytes may be there and not the name.
            start = self._first_batch(path)
            if start is None or start < begin or found.setdefault(start, path) != path:
                self._leftover.append(path)
        return [Stretch(start, found[start], 0) for start in sorted(found)]

    @staticmethod
    def _is_orphan(name: str, starts: Container[int]) -> bool:
        """Whether it is the table of a segment that is gone."""
        start = table_start(name)
        return start is not None and start not in starts

    def _first_batch(self, path: Path) -> int | None:
        """The log offset of the batch that a file begins with, if it is one of this log."""
        with closing(self.files.open(path)) as file:
            reader = BlockReader(file)
            start = int.from_bytes(reader.view(0, 8), "little")
            try:
                return self.rules.check(reader, start, 0)[0].log_offset
            except BadBatch:
                return None

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
            segment = Segment(stretch.start, stretch.path, reader.size, self.end)
            self.segments.append(segment)
            reason = self._walk(reader, segment, on_batch)
            self.end = segment.end
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
            segment.append_border(header.length)
            self.batches += 1
            self.last_append_time_us = max(self.last_append_time_us, header.append_time_us)
            segment.last_append_time_us = self.last_append_time_us
            on_batch(header, batch)

        at = segment.end - segment.start
        return walk(reader, start=segment.start, at=at, until=reader.size, rules=self.rules, on_batch=keep).reason

    def _valid_behind(self, segment: Segment) -> bool:
        """Whether the zeros at the end of `segment` are a hole in the log.

        Behind them stands what a recycled file held, or what a crash left of an append: no batch of this place, unless
        it was persisted out of order.
        """
        if self._waiting and self._waiting[0].start == segment.end:
            return False
        rest = Stretch(segment.start, segment.path, segment.end - segment.start + ALIGNMENT)
        return next_valid(self.files, self.rules, rest) is not None

    def _missing_file(self) -> None:
        path = self.directory / segment_name(self.end)
        reason = f"file {path.name} is missing"
        if self.end < self.recorded.flushed:
            raise bad_bytes(self.end, max(self.end, self._waiting[0].start), path, reason)
        self.damage = assess(self.files, self.rules, place=self.end, reason=reason, stretches=self._waiting)

    def _bad_bytes(self, segment: Segment, reason: str) -> None:
        rest = Stretch(segment.start, segment.path, segment.end - segment.start + ALIGNMENT)
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
