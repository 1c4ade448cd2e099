"""The tables of a log's sealed segments: which there are, and the few that are open.

Blocking, for one helper thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from mirrorlog.commitlog.files import Files, replace_file
from mirrorlog.commitlog.format.rows import RowCollector
from mirrorlog.commitlog.index.table import SegmentTable, TableHead, table_name
from mirrorlog.commitlog.index.table_builder import build_table
from mirrorlog.commitlog.segments.scan import Rules, scan_file

_OPEN_MAX: Final = 16


class Tables:
    """`heads`: the head of every table that counts, by the segment's start; all that is kept in memory of most."""

    __slots__ = ("_directory", "_files", "_open", "_seed", "heads")

    def __init__(self, files: Files, directory: Path, *, seed: int) -> None:
        self.heads: dict[int, TableHead] = {}
        self._files = files
        self._directory = directory
        self._seed = seed
        self._open: OrderedDict[int, SegmentTable] = OrderedDict()

    def load(self, start: int, end: int) -> TableHead:
        """Take in the table of the segment [start, end). Raises IndexDoubtful when there is none that can be trusted as
        far as its head tells (then `store` a new one), OSError (FileNotFoundError when there is none)."""
        path = self._directory / table_name(start)
        with SegmentTable.open(self._files, path, start=start, end=end, seed=self._seed) as table:
            self.heads[start] = table.head
        return self.heads[start]

    def store(self, start: int, end: int, content: memoryview) -> TableHead:
        """Write the table that `build_table` made and take it in; on disk when this returns. Raises OSError."""
        self._close(start)
        # A view is written as bytes are; see `build_table` for why it is none.
        replace_file(self._files, self._directory / table_name(start), cast(bytes, content))
        return self.load(start, end)

    def get(self, start: int) -> SegmentTable:
        """An open table, to be used at once and not closed. KeyError when it was not taken in; raises as `load`."""
        table = self._open.get(start)
        if table is None:
            path = self._directory / table_name(start)
            end = self.heads[start].end
            table = self._open[start] = SegmentTable.open(self._files, path, start=start, end=end, seed=self._seed)
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(start)
        return table

    def remove(self, start: int) -> None:
        """The segment is dropped, or its table was found damaged: the file goes. Raises OSError."""
        self._close(start)
        self.heads.pop(start, None)
        with suppress(FileNotFoundError):
            self._files.unlink(self._directory / table_name(start))

    def close(self) -> None:
        """Close the open ones. Idempotent."""
        for start in list(self._open):
            self._close(start)

    def _close(self, start: int) -> None:
        if (table := self._open.pop(start, None)) is not None:
            table.close()


def table_from_segment(files: Files, path: Path, *, start: int, first: int, end: int, rules: Rules) -> memoryview:
    """A table made by walking its segment, every checksum checked: when there is none, or a doubtful one.

    `first`: where the log begins within the segment, its start else. Raises LogCorrupt and OSError.
    """
    rows = RowCollector()
    scan_file(files, path, start=start, first=first, last=end, rules=rules, on_batch=rows)
    return build_table(rows.rows(), start=start, end=end, seed=rules.seed)
