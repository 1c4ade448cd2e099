"""Whether each table says exactly what its segment holds: it is made again from the batches and compared.

The same batches make the same bytes, so one comparison proves every row. Where the segment itself is damaged, or has
too many batches to hold, only the table's own checksums are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.format.rows import ROW_BYTES, pack_row
from mirrorlog.commitlog.index.table import SegmentTable
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.segments.scan import BlockReader, walk
from mirrorlog.errors import IndexDoubtful, LogCorrupt
from mirrorlog.tools.offline.log_directory import FILES, LogDirectory, SegmentFile

ROWS_MAX: Final = 4_000_000
"""Batches of a segment that are held to make its table again: 160 MB."""


@dataclass(frozen=True, slots=True)
class BadTable:
    """A table that must be made again. `segment`: where its segment begins."""

    segment: int
    what: str

    def __str__(self) -> str:
        return f"table of segment {self.segment}: {self.what}"


@dataclass(slots=True)
class TableCheck:
    """Follows a walk over a log. `names`: of the tables, by segment.

    `ends`: where the segments end whose tables are right. `compared`, `checked`: how many were compared with their
    batches, and of how many only the checksums were.
    """

    log: LogDirectory
    names: Mapping[int, str]
    ends: dict[int, int] = field(default_factory=dict)
    bad: list[BadTable] = field(default_factory=list)
    compared: int = 0
    checked: int = 0
    _rows: bytearray = field(default_factory=bytearray)
    _segment: int | None = None
    _next: int = 0

    def begin(self) -> None:
        """Before the walk."""
        self._enter(0)

    def batch(self, header: BatchHeader) -> None:
        """The next good batch."""
        if self._segment is not None and len(self._rows) < ROWS_MAX * ROW_BYTES:
            self._rows += pack_row(header)

    def segment(self, segment: SegmentFile, end: int, whole: bool) -> None:
        """An OnSegment."""
        if self._segment == segment.start:
            try:
                self._check(segment, end, whole)
            except FileNotFoundError:
                pass  # a running node has freed the segment meanwhile
            except (IndexDoubtful, LogCorrupt) as error:
                now = self.log.read_checkpoint()
                if now is None or now.begin <= max(segment.start, self.log.begin):  # else a running node frees it
                    self.bad.append(BadTable(segment.start, error.message))
            except OSError as error:
                raise disk_error(error, "read", self.log.path / self.names[segment.start]) from None
        self._enter(self._next)

    # --- inside ---

    def _enter(self, number: int) -> None:
        """The walk goes on with the segment of that number."""
        self._rows = bytearray()
        holding = self.log.holding
        self._next = number + 1
        start = holding[number].start if number < len(holding) else None
        self._segment = start if start in self.names else None

    def _check(self, segment: SegmentFile, end: int, whole: bool) -> None:
        path = self.log.path / self.names[segment.start]
        seed = self.log.rules.seed
        with SegmentTable.open(FILES, path, start=segment.start, end=end, seed=seed) as table:
            table.verify()
            if not whole or len(self._rows) >= ROWS_MAX * ROW_BYTES:
                self.checked += 1
            elif self._same(segment, end, table):
                self.compared += 1
            else:
                raise IndexDoubtful("its checksums match, but it does not say what the segment holds")
            self.ends[segment.start] = end

    def _same(self, segment: SegmentFile, end: int, table: SegmentTable) -> bool:
        with closing(FILES.open(self.log.path / self.names[segment.start])) as file:
            stored = memoryview(bytearray(file.size()))
            file.pread(stored, 0)
        if self._made_of(self._rows, segment, end) == stored:
            return True
        if segment.start >= self.log.begin:
            return False
        # The log begins within it: the table may tell of batches below, which were there when it was made.
        rows = self._rows_from_first(segment, end, table)
        return rows is None or self._made_of(rows, segment, end) == stored

    def _made_of(self, rows: bytearray, segment: SegmentFile, end: int) -> memoryview:
        with memoryview(rows) as view:
            return memoryview(build_table([view.toreadonly()], start=segment.start, end=end, seed=self.log.rules.seed))

    def _rows_from_first(self, segment: SegmentFile, end: int, table: SegmentTable) -> bytearray | None:
        """The rows from the table's first batch on; None where what stood below the begin is no longer whole."""
        rows = bytearray()

        def keep(header: BatchHeader, batch: memoryview) -> None:
            if rows or table.is_border(header.log_offset):
                rows.extend(pack_row(header))

        with closing(FILES.open(segment.path)) as file:
            stop = walk(
                BlockReader(file),
                start=segment.start, at=0, until=end - segment.start, rules=self.log.rules, on_batch=keep,
            )  # fmt: skip
        return None if stop.reason else rows
