"""Whether tables and the index of the past say what the log holds: each is made again, and compared.

The same batches make the same bytes of a table, so one comparison proves every row. Where the segment itself is
damaged, or has too many batches to hold, only the table's own checksums are looked at.

Only an index that was closed cleanly, and is what it was then by its checksum, is opened: LMDB takes damaged pages at
their word, and a running node writes without locks. Any other one is thrown away by the next start, so it says nothing.
Nothing in the log's directory is changed: LMDB is opened for reading, without its lock file, and the index is made
again in a temporary place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lmdb

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.format.rows import ROW_BYTES, pack_row
from mirrorlog.commitlog.index.past import DATA_NAME, DIRECTORY_NAME, PLACE_KEY, PastIndex, included_in, unclean
from mirrorlog.commitlog.index.table import SegmentTable
from mirrorlog.commitlog.index.tables import Tables, build_table
from mirrorlog.commitlog.log_directory import FILES, LogDirectory, SegmentFile
from mirrorlog.commitlog.segments.scan import BlockReader, walk
from mirrorlog.errors import DiskFailed, DiskFull, IndexDoubtful, LogCorrupt

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
        """The rows from the table's first batch on; None where what stood below the start offset is no longer whole."""
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


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was found out about the index of the past. `state`: "agrees", "wrong", "unchecked" (there was no room to
    make it again), or what a start makes anew: "missing", "unclean", "outdated" (it speaks of other tables). `places`:
    entries that were compared."""

    state: str
    what: str = ""
    places: int = 0

    @property
    def wrong(self) -> bool:
        """Whether readers would be answered wrongly."""
        return self.state == "wrong"


def check_index(log: LogDirectory, ends: Mapping[int, int]) -> IndexReport:
    """`ends`: where the segments end whose tables are right, by their start. Raises DiskFailed."""
    path = log.path / DIRECTORY_NAME
    try:
        if not (path / DATA_NAME).is_file():
            return IndexReport("missing", "it is made when the node starts")
        if why := unclean(path):
            return IndexReport("unclean", f"{why}; it is made anew when the node starts")
        return _compare(log, path, ends)
    except FileNotFoundError:
        return IndexReport("unclean", "a node has taken it into use meanwhile")
    except OSError as error:
        raise disk_error(error, "read", path) from None


def _compare(log: LogDirectory, path: Path, ends: Mapping[int, int]) -> IndexReport:
    with _Opened(path) as index:
        tables = Tables(FILES, log.path, seed=log.rules.seed)
        for start, stated in sorted(index.included.items()):
            if start not in ends:
                return IndexReport("outdated", f"segment {start} has no table, or none that is right")
            head = tables.load(start, ends[start])
            if (head.end, head.content) != stated:
                return IndexReport("outdated", f"it was made of another table of segment {start}")
        try:
            with tempfile.TemporaryDirectory(prefix="mqtool-index-") as made:
                PastIndex.open(Path(made) / DIRECTORY_NAME, tables).close()
                with _Opened(Path(made) / DIRECTORY_NAME) as right:
                    return _difference(index, right)
        except (DiskFull, OSError) as error:
            return IndexReport("unchecked", f"it cannot be made again for comparison: {error}; set TMPDIR")
        finally:
            tables.close()


def _difference(index: _Opened, right: _Opened) -> IndexReport:
    count = 0
    ours, theirs = index.places(), right.places()
    while True:
        found, expected = next(ours, None), next(theirs, None)
        if found != expected:
            queue_id, base = PLACE_KEY.unpack(min(each[0] for each in (found, expected) if each is not None))
            return IndexReport("wrong", f"queue {queue_id}: what it says of queue offset {base} is not so", count)
        if found is None:
            return IndexReport("agrees", places=count)
        count += 1


class _Opened:
    """An index, for reading. Raises IndexDoubtful for one that LMDB cannot read."""

    def __init__(self, path: Path) -> None:
        try:
            self._env = lmdb.open(
                str(path), readonly=True, lock=False, create=False, max_dbs=2, map_size=_map_bytes(path)
            )
            self._places = self._env.open_db(b"places", create=False)
            self.included = included_in(self._env, self._env.open_db(b"tables", create=False))
        except lmdb.Error as error:
            raise IndexDoubtful(f"the index in {path} cannot be read: {error}") from None

    def places(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry of the database `places`, in order."""
        with self._env.begin(db=self._places) as transaction, transaction.cursor() as cursor:
            yield from cursor

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()


def _map_bytes(path: Path) -> int:
    try:
        return max(1024 * 1024, (path / DATA_NAME).stat().st_size)
    except OSError as error:
        raise DiskFailed(f"cannot read {path}: {error.strerror}; check the disk", path=str(path)) from None
