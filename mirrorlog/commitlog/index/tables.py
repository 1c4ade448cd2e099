"""The tables of a log's sealed segments: making one, and which there are, of which a few are open.

Blocking, for one helper thread at a time. A table is made from the rows of its batches, by whole columns. For a helper
thread beside a busy loop: no step runs Python per batch, and nearly all of the time is spent in calls that give the
interpreter lock away (tried on each of them with six million rows).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from mirrorlog.commitlog.files import Files, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.header import ALIGNMENT
from mirrorlog.commitlog.format.rows import ENVELOPE, ROW, RowCollector
from mirrorlog.commitlog.index.blocks import BLOCK_BYTES, Rows, blocks_for, place_rows, seal_blocks
from mirrorlog.commitlog.index.table import (
    BATCH,
    BORDER,
    STATE_ROW,
    STRETCH,
    SegmentTable,
    TableHead,
    table_name,
    table_salt,
)
from mirrorlog.commitlog.segments.scan import BatchRules, scan_file
from mirrorlog.errors import LogCorrupt

Column = NDArray[Any]


def build_table(pieces: Sequence[memoryview], *, start: int, end: int, seed: int) -> memoryview:
    """The bytes of a table's file: of the segment [start, end) whose batches are `pieces`, `ROW`s in log order, all of
    them.

    For a helper thread: 1,000,000 batches take a quarter of a second, nearly all of it without the interpreter lock,
    and 120 MB while it lasts. Raises LogCorrupt when batches of a queue overlap or the rows leave a gap.
    """
    rows = _joined(pieces)
    positions = _positions(rows, start, end)
    borders = positions[rows["inner"] == 0]
    sections = [*_queue_sections(rows, positions), _state_section(rows, positions), borders]
    head = _head(rows, sections, start=start, end=end, seed=seed)
    del rows, positions
    return _assemble(head, sections)


def _head(rows: Rows, sections: Sequence[Rows], *, start: int, end: int, seed: int) -> TableHead:
    """Without the checksum of the content."""
    stretches, batches, states, borders = sections
    times = rows["append_time"]
    return TableHead(
        start,
        end,
        seed,
        0,
        len(stretches),
        len(batches),
        len(states),
        len(borders),
        int(batches["records"].sum(dtype=np.uint64)),
        int(times.min()) if len(times) else 0,
        int(times.max()) if len(times) else 0,
    )


def _joined(pieces: Sequence[memoryview]) -> Rows:
    """One array of `ROW`, by copies of one piece each: they hold the interpreter lock for 30 µs. Joining with numpy
    would give it away and wait for it for each piece and column, 5 ms each time while the loop is busy."""
    joined = np.empty(sum(map(len, pieces)), np.uint8)
    view = joined.data
    at = 0
    for piece in pieces:
        view[at : at + len(piece)] = piece
        at += len(piece)
    return joined.view(ROW)


def _positions(rows: Rows, start: int, end: int) -> Column:
    """Where each batch begins, in units of 8 from the segment's start. Raises LogCorrupt when one is missing."""
    log_offsets = rows["log_offset"]
    ends = log_offsets + rows["length"]
    gap = np.flatnonzero(log_offsets[1:] != ends[:-1])
    if len(gap) or (len(ends) and (int(ends[-1]) != end or int(log_offsets[0]) < start)):
        at = int(ends[gap[0]]) if len(gap) else end
        raise LogCorrupt(f"the batches of segment {start} are not known at log offset {at}", first=at, last=end)
    return ((log_offsets - np.uint64(start)) // np.uint64(ALIGNMENT)).astype(BORDER)


def _queue_sections(rows: Rows, positions: Column) -> tuple[Rows, Rows]:
    """(stretches, batches)."""
    numbers = np.flatnonzero(rows["records"])
    queue_ids = rows["queue_id"][numbers]
    bases = rows["base"][numbers]
    # Stable, so of two batches with the same records the later one comes last; it is the one that is kept.
    order = np.lexsort((bases, queue_ids))
    queue_ids, bases, numbers = queue_ids[order], bases[order], numbers[order]
    superseded = (queue_ids[:-1] == queue_ids[1:]) & (bases[:-1] == bases[1:])
    if superseded.any():
        kept = np.append(~superseded, True)
        queue_ids, bases, numbers = queue_ids[kept], bases[kept], numbers[kept]
    batches = np.empty(len(numbers), BATCH)
    batches["base"] = bases
    batches["append_time"] = rows["append_time"][numbers]
    batches["position"] = positions[numbers]
    batches["length"] = rows["length"][numbers]
    batches["records"] = rows["records"][numbers]
    return _stretches(queue_ids, batches, rows["copied"][numbers]), batches


def _stretches(queue_ids: Column, batches: Rows, copied: Column) -> Rows:
    """One row per dense stretch. Raises LogCorrupt when batches of a queue overlap."""
    if not len(batches):
        return np.empty(0, STRETCH)
    bases = batches["base"]
    following = bases + batches["records"]
    same_queue = queue_ids[1:] == queue_ids[:-1]
    overlap = np.flatnonzero(same_queue & (bases[1:] < following[:-1]))
    if len(overlap):
        queue_id, base = int(queue_ids[overlap[0] + 1]), int(bases[overlap[0] + 1])
        raise LogCorrupt(f"queue {queue_id}: two batches of one segment hold queue offset {base}")
    first = np.flatnonzero(np.append(True, ~same_queue | (bases[1:] != following[:-1])))
    last = np.append(first[1:], len(batches)) - 1
    stretches = np.empty(len(first), STRETCH)
    stretches["queue_id"] = queue_ids[first]
    stretches["first_row"] = first
    stretches["batches"] = last - first + 1
    stretches["copied"] = np.add.reduceat(copied, first, dtype=np.uint32)
    stretches["base"] = bases[first]
    stretches["next"] = following[last]
    stretches["first_time"] = batches["append_time"][first]
    stretches["last_time"] = batches["append_time"][last]
    return stretches


def _state_section(rows: Rows, positions: Column) -> Rows:
    numbers = np.flatnonzero((rows["records"] == 0) & (rows["kind"] != ENVELOPE))
    states = np.zeros(len(numbers), STATE_ROW)
    states["position"] = positions[numbers]
    for name in ("length", "queue_id", "kind"):
        states[name] = rows[name][numbers]
    return states


def _assemble(head: TableHead, sections: list[Rows]) -> memoryview:
    """The whole file. Empties `sections`: of a large segment each copy counts."""
    blocks = np.zeros((head.blocks, BLOCK_BYTES), np.uint8)
    at = 1
    while sections:
        rows = sections.pop(0)
        size = blocks_for(len(rows), rows.dtype.itemsize)
        place_rows(blocks[at : at + size], rows)
        at += size
        del rows
    salt = table_salt(head.start, head.end, head.seed)
    crcs = seal_blocks(blocks[1:], first=1, salt=salt)
    packed = head._replace(content=crc32c(crcs.tobytes())).encode()
    blocks[0, : len(packed)] = np.frombuffer(packed, np.uint8)
    seal_blocks(blocks[:1], first=0, salt=salt)
    return blocks.reshape(-1).data  # no bytes: the copy would hold the interpreter lock for 20 ms


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


def table_from_segment(files: Files, path: Path, *, start: int, first: int, end: int, rules: BatchRules) -> memoryview:
    """A table made by walking its segment, every checksum checked: when there is none, or a doubtful one.

    `first`: where the log begins within the segment, its start else. Raises LogCorrupt and OSError.
    """
    rows = RowCollector()
    scan_file(files, path, start=start, first=first, last=end, rules=rules, on_batch=rows)
    return build_table(rows.rows(), start=start, end=end, seed=rules.seed)
