"""Pieces of a log: stretches of one segment file whose batches are all known, each with a table of them.

A sealed segment has its table beside it, made by its node; a piece of it is that table. What has none (the tail, a
damaged or missing table) is walked header by header, and the same kind of table is made of what was found, in memory.
So everything above asks one sort of thing: which batches of a queue stand where.

What was flushed is walked by its headers alone: bodies are checked when they are read. Above that whole batches are
checked, as the node's recovery does, since a power loss leaves bodies torn there.

Rejected: to read all bytes of the tail in each task (a gigabyte, to find a few numbers); an index of our own in another
form (the node's tables are exact, checked, and have the look-ups).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirrorlog.commitlog.files import File
from mirrorlog.commitlog.format.header import (
    ALIGNMENT,
    HEADER_SIZE,
    BatchHeader,
    check_body,
    check_stamped,
    is_envelope,
)
from mirrorlog.commitlog.format.rows import pack_row
from mirrorlog.commitlog.index.table import SegmentTable, table_name
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.log_directory import FILES
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.segments.scan import BatchRules, BlockReader, find_batch
from mirrorlog.errors import BadBatch

_LARGE_BATCH_BYTES: Final = 64 * 1024
_WINDOW_BYTES: Final = 256 * 1024
_LARGE_WINDOW_BYTES: Final = 4 * 1024
_NOTHING: Final = memoryview(b"")


@dataclass(eq=False)
class LogPiece:
    """The batches of [first, end), log offsets, in the file `path` whose first byte is log offset `start`.

    `rows`: of a piece that was walked, a `rows.ROW` for each batch; None: the table beside the segment.
    """

    path: Path
    start: int
    first: int
    end: int
    seed: int
    rows: bytes | None

    @cached_property
    def stretches(self) -> NDArray[Any]:
        """All stretches, an array of `table.STRETCH`. Raises IndexDoubtful, and OSError."""
        with self.table() as table:
            return table.stretches()

    def of_queue(self, queue_id: int) -> NDArray[Any]:
        """The stretches of a queue, in order of queue offset."""
        ids = self.stretches["queue_id"]
        return self.stretches[np.searchsorted(ids, queue_id, "left") : np.searchsorted(ids, queue_id, "right")]

    @contextmanager
    def table(self) -> Iterator[SegmentTable]:
        """Open for a moment: a log of a terabyte has a thousand tables. Raises IndexDoubtful, and OSError."""
        files, path, first = FILES, self.path.with_name(table_name(self.start)), self.start
        if self.rows is not None:
            files, first = self._in_memory, self.first
        with SegmentTable.open(files, path, start=first, end=self.end, seed=self.seed) as table:
            yield table

    def extended(self, other: LogPiece) -> LogPiece:
        """This piece and the one behind it, both walked, as one."""
        assert self.rows is not None
        assert other.rows is not None
        return replace(self, end=other.end, rows=self.rows + other.rows)

    @cached_property
    def _in_memory(self) -> Any:
        assert self.rows is not None
        return _TableInMemory(build_table([memoryview(self.rows)], start=self.first, end=self.end, seed=self.seed))


class _TableInMemory:
    """As a file system with one file, which has the table's bytes. What reads a table asks for no more."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def open(self, path: Path) -> _TableInMemory:
        return self

    def pread(self, into: memoryview, at: int) -> int:
        found = self._content[at : at + len(into)]
        into[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return len(self._content)

    def close(self) -> None: ...


@dataclass(slots=True)
class Walked:
    """`end`: log offset behind the last good batch. `bad`: ranges that hold no batch, and should. `over`: no batch can
    follow in another file."""

    end: int
    pieces: list[LogPiece] = field(default_factory=list)
    bad: list[Range] = field(default_factory=list)
    over: bool = False


def sealed_piece(path: Path, *, start: int, end: int, seed: int) -> LogPiece:
    """The segment [start, end) by its table. Raises IndexDoubtful when it cannot be trusted, OSError."""
    piece = LogPiece(path, start, start, end, seed, None)
    with piece.table():
        return piece


def walk_file(path: Path, *, start: int, first: int, until: int, flushed: int, ends: bool, rules: BatchRules) -> Walked:
    """The batches from `first` up to `until`, log offsets, of the file that begins at `start`.

    `ends`: no other file follows. Below `flushed` there must be batches; above it the first place without one is the
    log's end. Raises OSError.
    """
    with closing(FILES.open(path)) as file:
        return _Walk(file, path, start, flushed, rules).all(first, until, ends=ends)


class _Walk:
    """One pass over a file."""

    def __init__(self, file: File, path: Path, start: int, flushed: int, rules: BatchRules) -> None:
        self._file = file
        self._path = path
        self._start = start
        self._flushed = flushed
        self._rules = rules
        self._size = file.size()
        self._window_at = 0
        self._window = _NOTHING
        self._last_length = 0

    def all(self, at: int, until: int, *, ends: bool) -> Walked:
        found = Walked(at)
        while found.end < until and not found.over:
            self._row_of_batches(found, until)
            if found.end < until and not found.over:
                self._pass_bad(found, until, ends=ends)
        return found

    def _row_of_batches(self, found: Walked, until: int) -> None:
        """As many as follow one another, as one piece."""
        rows, first, at = bytearray(), found.end, found.end
        while at < until:
            try:
                header = self._check(at)
                packed = pack_row(header) + self._rows_inside(header)
            except BadBatch:
                break
            if header.next_log_offset > until:
                found.over = True  # begins in what is confirmed and does not end there
                break
            rows += packed
            at = header.next_log_offset
        if at > first:
            found.pieces.append(LogPiece(self._path, self._start, first, at, self._rules.seed, bytes(rows)))
        found.end = at

    def _rows_inside(self, envelope: BatchHeader) -> bytes:
        """Of the batches inside of a transaction; none of any other batch. Raises BadBatch."""
        rows, at = bytearray(), envelope.log_offset + HEADER_SIZE
        while is_envelope(envelope) and at < envelope.next_log_offset:
            left = envelope.next_log_offset - at
            view = self._view(at - self._start)
            inner = check_stamped(view, 0, log_offset=at, seed=self._rules.seed, max_batch_bytes=left)
            rows += pack_row(inner)
            at = inner.next_log_offset
        return bytes(rows)

    def _pass_bad(self, found: Walked, until: int, *, ends: bool) -> None:
        """No batch stands at `found.end`: go on behind it where that is corruption."""
        at = found.end
        if at >= self._flushed:
            found.over = True
            return
        reader = BlockReader(self._file)
        behind = find_batch(reader, start=self._start, at=at + ALIGNMENT - self._start, rules=self._rules)
        if behind is not None and behind.log_offset < until:
            found.end = behind.log_offset
        else:
            found.end = min(until, self._flushed) if ends else until
            found.over = ends
        found.bad.append(Range(at, found.end, f"no batch in {self._path} where one must be"))

    def _check(self, place: int) -> BatchHeader:
        """The batch at a log offset. Raises BadBatch."""
        at = place - self._start
        header = self._rules.check_header(self._view(at), place, max(0, self._size - at))
        if place >= self._flushed:
            batch = memoryview(bytearray(header.length))
            checked_batch(batch[: self._file.pread(batch, at)], place, self._rules)
        self._last_length = header.length
        return header

    def _view(self, at: int) -> memoryview:
        """The 96 bytes at `at`, fewer at the file's end. Between large batches little is read besides."""
        if not self._window_at <= at <= self._window_at + len(self._window) - HEADER_SIZE:
            size = _LARGE_WINDOW_BYTES if self._last_length > _LARGE_BATCH_BYTES else _WINDOW_BYTES
            buffer = memoryview(bytearray(size))
            self._window = buffer[: self._file.pread(buffer, at)] if at < self._size else _NOTHING
            self._window_at = at
        return self._window[at - self._window_at :][:HEADER_SIZE]


def checked_batch(batch: memoryview, log_offset: int, rules: BatchRules) -> BatchHeader:
    """The header of a whole batch, found at a log offset, if it is one of this log there. Raises BadBatch."""
    header = rules.check_header(batch, log_offset, len(batch))
    check_body(batch, 0, header)
    return header
