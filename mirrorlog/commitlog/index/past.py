"""Which segment holds which stretch of a queue, for all that the memory has let go: sparse, in LMDB.

One entry per queue and segment (a few more where copied batches or jumps divide it), made of the directories of the
segments' tables; the table knows the rest. The stretches of a queue never overlap: where a later segment holds copies
of records of an earlier one, the copies take their part of the older stretch, which is cut in two. So a lookup is one
seek in a tree, and dropping a segment drops exactly its own entries.

    database  key                                           value
    places    u32 queue id, u64 base queue offset, both big endian
                                                            u64 segment, u64 next queue offset, i64 last append time
    tables    u64 segment, big endian                       u64 end, u32 content of its table, u32 0

Everything here can be deleted while the node is down: it is rebuilt from the tables. LMDB has no checksums and takes
damaged pages at their word, so a checksum of the whole file is written at a clean end; a file without its right one is
thrown away and built anew, a second per million entries. For the same reason nothing is synced while it is in use.

Rejected: a second tree by time (append times rise with the queue offsets, so bisecting over those finds a time in the
same tree); an entry per 64 KiB of a queue (a lookup would still have to walk headers on disk, the tables do not);
keeping the directories in memory (16 MB per million entries, and all of them read at each start).
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import lmdb

from mirrorlog.commitlog.files import DIRECTORY_MODE, FILE_MODE, OS_FILES, disk_error
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.table import SegmentTable, TableHead
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.errors import DiskFull, IndexDoubtful

DIRECTORY_NAME: Final = "index"
DATA_NAME: Final = "data.mdb"
PLACE_KEY = struct.Struct(">IQ")

_MARK_NAME: Final = "clean"
_MAP_BYTES: Final = 64 * 1024 * 1024
_MAP_BYTES_MAX: Final = 1024 * _MAP_BYTES
# An insertion of many entries holds the interpreter lock: 256 of them for 0.1 ms.
_PUT_AT_ONCE: Final = 256
# A transaction keeps each page that it touches in private memory, and LMDB keeps that memory: 1024 entries for 4 MB.
_WRITTEN_AT_ONCE: Final = 1024
_SEGMENTS_AT_ONCE: Final = 16
_READ_BYTES: Final = 1024 * 1024

_VALUE = struct.Struct("<QQq")
_TABLE_KEY = struct.Struct(">Q")
_TABLE_VALUE = struct.Struct("<QII")
_MARK = struct.Struct("<4sIQI")
_MARK_MAGIC: Final = b"MLIX"
_VERSION: Final = 1
_OFFSET_END: Final = 2**64 - 1


class QueueExtent(NamedTuple):
    """A stretch of a queue, queue offsets [base, next), in the segment that begins at this log offset.

    `last_append_time_us` is not below that of any of its batches.
    """

    base: int
    segment: int
    next: int
    last_append_time_us: int


class PastIndex:
    """The open index. All methods block and belong on one helper thread at a time.

    They raise IndexDoubtful when LMDB fails (close it, delete the directory and open it again: it is rebuilt) and
    DiskFull.
    """

    __slots__ = ("_env", "_path", "_places", "_tables", "_trusted", "included")

    def __init__(self, path: Path) -> None:
        """Use `open`."""
        self._path = path
        self._trusted = True
        with self._named_errors():
            path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
            self._env = lmdb.open(
                str(path), map_size=_map_bytes(path), mode=FILE_MODE, max_dbs=2, lock=False, sync=False, readahead=False
            )
            self._places = self._env.open_db(b"places")
            self._tables = self._env.open_db(b"tables")
            self.included = included_in(self._env, self._tables)
            """By segment: its end and the content of its table."""

    @classmethod
    def open(cls, path: Path, tables: Tables) -> Self:
        """The index in the directory `path` of exactly these tables; rebuilt when it is missing, damaged, was not
        closed, or speaks of others. Raises IndexDoubtful for a damaged table, DiskFull, OSError."""
        if unclean(path):
            delete(path)
        (path / _MARK_NAME).unlink(missing_ok=True)
        index = cls(path)
        if any(index.included[start] != _identity(tables.heads.get(start)) for start in index.included):
            index._env.close()
            delete(path)
            index = cls(path)
        try:
            for start in sorted(tables.heads.keys() - index.included.keys()):
                index.add(tables.get(start))
        except BaseException:
            index._env.close()
            raise
        return index

    def close(self) -> None:
        """To disk, with the mark that it is whole. Idempotent.

        Raises IndexDoubtful or DiskFull when that mark is not there now: it is closed, and made anew at the next start.
        """
        try:
            if self._trusted:
                with self._named_errors():
                    self._env.sync(True)
        finally:
            trusted, self._trusted = self._trusted, False
            self._env.close()
        if trusted:
            self._write_mark()

    # --- Changes --------------------------------------------------------------------------------------------------

    def add(self, table: SegmentTable) -> None:
        """A sealed segment, after all those before it in the log. Adding it twice is adding it once."""
        head = table.head
        if self.included.get(head.start) == _identity(head):
            return
        rows = table.stretches()
        for first in range(0, len(rows), _WRITTEN_AT_ONCE):
            piece = rows[first : first + _WRITTEN_AT_ONCE]
            self._write(partial(self._put_stretches, segment=head.start, rows=piece))
        value = _TABLE_VALUE.pack(head.end, head.content, 0)
        self._write(lambda transaction: transaction.put(_TABLE_KEY.pack(head.start), value, db=self._tables))
        self.included[head.start] = (head.end, head.content)

    def remove(self, table: SegmentTable) -> None:
        """The segment is dropped: the log begins behind it."""
        start, rows = table.start, table.stretches()
        for first in range(0, len(rows), _WRITTEN_AT_ONCE):
            piece = rows[first : first + _WRITTEN_AT_ONCE]
            self._write(partial(self._delete_stretches, segment=start, rows=piece))
        self._write(lambda transaction: transaction.delete(_TABLE_KEY.pack(start), db=self._tables))
        self.included.pop(start, None)

    # --- Lookups --------------------------------------------------------------------------------------------------

    def segment_of(self, queue_id: int, queue_offset: int) -> QueueExtent | None:
        """The stretch that holds a queue offset, or the first one after it; None when there is none."""
        if not 0 <= queue_offset < _OFFSET_END:
            return None
        with self._cursor() as cursor:
            return _place_at(cursor, queue_id, queue_offset)

    def segment_before(self, queue_id: int, queue_offset: int) -> QueueExtent | None:
        """The last stretch that begins below a queue offset; None when there is none."""
        with self._cursor() as cursor:
            return _place_before(cursor, queue_id, queue_offset)

    def segment_at_time(self, queue_id: int, append_time_us: int) -> QueueExtent | None:
        """The first stretch with a batch that was appended at or after a time (µs UTC); None when there is none."""
        with self._cursor() as cursor:
            first, last = _place_at(cursor, queue_id, 0), _last_place(cursor, queue_id)
            if first is None or last is None:
                return None
            low, high, found = first.base, last.next, None
            while low < high:
                middle = (low + high) // 2
                place = _place_at(cursor, queue_id, middle)
                assert place is not None
                if place.last_append_time_us >= append_time_us:
                    found, high = place, min(middle, place.base)
                else:
                    low = place.next
            return found

    def first(self, queue_id: int) -> int | None:
        """The first queue offset of a queue in the past."""
        place = self.segment_of(queue_id, 0)
        return place.base if place is not None else None

    def last_jumps(self) -> dict[int, int]:
        """From where on each queue is without a gap up to its last record in the past, by queue id. A walk over all
        places, a second per million."""
        jumps: dict[int, int] = {}
        last, expected = -1, 0
        with self._cursor() as cursor:
            for key, value in cursor:
                queue_id, base = PLACE_KEY.unpack(key)
                if queue_id != last or base != expected:
                    jumps[queue_id] = base
                last, expected = queue_id, _VALUE.unpack(value)[1]
        return jumps

    def start_offsets(self) -> dict[int, int]:
        """The first queue offset of every queue in the past, by queue id: a seek per queue."""
        return {queue_id: begin for queue_id, (begin, _) in self.queues().items()}

    def queues(self) -> dict[int, tuple[int, int]]:
        """(first, next) queue offset of every queue in the past, by queue id: two seeks per queue."""
        found: dict[int, tuple[int, int]] = {}
        with self._cursor() as cursor:
            more = cursor.first()
            while more:
                queue_id, begin = PLACE_KEY.unpack(cursor.key())
                last = _last_place(cursor, queue_id)
                assert last is not None
                found[queue_id] = (begin, last.next)
                more = cursor.next()
        return found

    # --- Inside ---------------------------------------------------------------------------------------------------

    def _put_stretches(self, transaction: Any, segment: int, rows: Any) -> None:
        columns = (rows[name].tolist() for name in ("queue_id", "base", "next", "last_time", "copied"))
        items: list[tuple[bytes, bytes]] = []
        with transaction.cursor(self._places) as cursor:
            for queue_id, base, following, last_time, copied in zip(*columns, strict=True):
                if copied:
                    # Only copies can hold what an earlier segment holds too.
                    _carve(cursor, queue_id, base, following)
                items.append((PLACE_KEY.pack(queue_id, base), _VALUE.pack(segment, following, last_time)))
            for first in range(0, len(items), _PUT_AT_ONCE):
                cursor.putmulti(items[first : first + _PUT_AT_ONCE])

    def _delete_stretches(self, transaction: Any, segment: int, rows: Any) -> None:
        columns = (rows[name].tolist() for name in ("queue_id", "base", "next"))
        with transaction.cursor(self._places) as cursor:
            for queue_id, base, following in zip(*columns, strict=True):
                _delete_places(cursor, queue_id, base, following, segment)

    def _write_mark(self) -> None:
        path = self._path / _MARK_NAME
        try:
            with closing(OS_FILES.open(path, create=True)) as file:
                file.pwrite(_MARK.pack(_MARK_MAGIC, _VERSION, *_sum(self._path / DATA_NAME)), 0)
        except OSError as error:
            failed = disk_error(error, "write", path)
            if isinstance(failed, DiskFull):
                raise failed from None
            raise IndexDoubtful(
                f"cannot write {path}: {error.strerror}; the index is rebuilt when it is opened"
            ) from None

    def _write(self, change: Callable[[Any], object]) -> None:
        """One transaction; the map grows until it fits."""
        with self._named_errors():
            while True:
                try:
                    with self._env.begin(write=True) as transaction:
                        change(transaction)
                    return
                except lmdb.MapFullError:
                    size = self._env.info()["map_size"] * 2
                    if size > _MAP_BYTES_MAX:
                        raise
                    self._env.set_mapsize(size)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with self._named_errors(), self._env.begin(db=self._places) as transaction, transaction.cursor() as cursor:
            yield cursor

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.DiskError as error:
            self._trusted = False
            raise DiskFull(
                f"cannot write {self._path}: {error}; free space on its disk", path=str(self._path)
            ) from None
        except (lmdb.Error, struct.error) as error:
            self._trusted = False
            raise IndexDoubtful(f"the index in {self._path} failed: {error}; it is rebuilt when it is opened") from None


class Past:
    """What the log holds below the memory: the index and the tables together.

    All methods block and belong on one helper thread at a time; they raise IndexDoubtful (rebuild), DiskFull, OSError
    (FileNotFoundError for a segment that was dropped meanwhile).
    """

    __slots__ = ("index", "tables")

    def __init__(self, index: PastIndex, tables: Tables) -> None:
        self.index = index
        self.tables = tables

    def entries(self, queue_id: int, from_queue_offset: int, max_bytes: int, *, until: int) -> list[QueuedBatch]:
        """Batches in order, from the one that holds `from_queue_offset` or the first after it, of those that begin
        below the queue offset `until`: as many as fit into `max_bytes`, at least one, out of at most 16 stretches; they
        end before a jump. Empty when there is none: then the memory goes on at `until` (`QueueIndex.past_until`)."""
        runs: list[QueuedBatch] = []
        for _ in range(_SEGMENTS_AT_ONCE):
            place = self.index.segment_of(queue_id, from_queue_offset)
            if place is None or place.base >= until or (runs and place.base > from_queue_offset):
                break
            found = self._table(place).entries(
                queue_id, max(from_queue_offset, place.base), max_bytes, until=min(until, place.next)
            )
            if not found:
                raise IndexDoubtful(
                    f"queue {queue_id}: the table of segment {place.segment} does not hold {place.base}"
                )
            if runs and found[0].length > max_bytes:
                break
            runs += found
            max_bytes -= sum(run.length for run in found)
            from_queue_offset = found[-1].next_queue_offset
            if from_queue_offset < place.next or max_bytes <= 0:
                break
        return runs

    def entries_before(self, queue_id: int, until: int, max_bytes: int) -> list[QueuedBatch]:
        """Batches in order, up to the last one that begins below the queue offset `until`, out of its stretch: as many
        as fit into `max_bytes`, at least one. Empty when there is none."""
        at = self.index.segment_before(queue_id, until)
        return self._table(at).entries_before(queue_id, min(until, at.next), max_bytes, first=at.base) if at else []

    def size(self, queue_id: int, first: int, until: int) -> int:
        """Bytes of the batches of a queue in the past that begin in [first, until), queue offsets."""
        size, place = 0, self.index.segment_of(queue_id, first)
        while place is not None and place.base < until:
            size += self._table(place).size(queue_id, max(first, place.base), min(until, place.next))
            place = self.index.segment_of(queue_id, place.next)
        return size

    def find_time(self, queue_id: int, append_time_us: int) -> int | None:
        """The first queue offset in the past whose batch was appended at or after a time (µs UTC); None when there is
        none. See `QueueIndex.is_past_time`."""
        place = self.index.segment_at_time(queue_id, append_time_us)
        return self._table(place).find_time(queue_id, append_time_us) if place is not None else None

    def starts_behind(self, begin: int) -> dict[int, int]:
        """The first queue offset of each queue whose batch stands at or behind the log offset `begin`; queues that have
        none in the past are left out."""
        found: dict[int, int] = {}
        for queue_id, first in self.index.start_offsets().items():
            place = self.index.segment_of(queue_id, first)
            while place is not None:
                table = self._table(place)
                if table.end > begin and (base := _first_behind(table, queue_id, place, begin)) is not None:
                    found[queue_id] = base
                    break
                place = self.index.segment_of(queue_id, place.next)
        return found

    def add(self, start: int) -> None:
        """The segment whose table was stored."""
        self.index.add(self.tables.get(start))

    def drop(self, start: int) -> None:
        """The segment is dropped: its entries go, then its table."""
        if start in self.tables.heads:
            self.index.remove(self.tables.get(start))
        self.tables.remove(start)

    def close(self) -> None:
        """Raises as `PastIndex.close`."""
        self.tables.close()
        self.index.close()

    def _table(self, place: QueueExtent) -> SegmentTable:
        if place.segment not in self.tables.heads:
            raise IndexDoubtful(f"the index speaks of segment {place.segment}, which has no table")
        return self.tables.get(place.segment)


def _first_behind(table: SegmentTable, queue_id: int, place: QueueExtent, begin: int) -> int | None:
    """The first queue offset of a place whose batch stands at or behind a log offset: batches rise with both."""
    if table.start >= begin:
        return place.base
    low, high = place.base, place.next
    while low < high:
        middle = (low + high) // 2
        run = table.find(queue_id, middle)
        if run is None or run.log_offset >= begin:
            high = middle
        else:
            low = min(run.next_queue_offset, high)
    run = table.find(queue_id, low) if low < place.next else None
    return run.base_queue_offset if run is not None else None


def delete(path: Path) -> None:
    """Throw the index in the directory `path` away; nothing happens when there is none. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)


# --- Entries --------------------------------------------------------------------------------------------------------


def _entry(cursor: Any, queue_id: int) -> QueueExtent | None:
    """Where the cursor stands, if that is of the queue."""
    found, base = PLACE_KEY.unpack(cursor.key())
    return QueueExtent(base, *_VALUE.unpack(cursor.value())) if found == queue_id else None


def _place_before(cursor: Any, queue_id: int, queue_offset: int) -> QueueExtent | None:
    """The last place that begins below a queue offset."""
    there = cursor.set_range(PLACE_KEY.pack(queue_id, queue_offset))
    return _entry(cursor, queue_id) if (cursor.prev() if there else cursor.last()) else None


def _last_place(cursor: Any, queue_id: int) -> QueueExtent | None:
    return _place_before(cursor, queue_id, _OFFSET_END)


def _place_at(cursor: Any, queue_id: int, queue_offset: int) -> QueueExtent | None:
    before = _place_before(cursor, queue_id, queue_offset + 1)
    if before is not None and queue_offset < before.next:
        return before
    return _entry(cursor, queue_id) if cursor.set_range(PLACE_KEY.pack(queue_id, queue_offset)) else None


def _carve(cursor: Any, queue_id: int, base: int, following: int) -> None:
    """Take [base, following) out of the places that hold some of it."""
    while (place := _place_before(cursor, queue_id, following)) is not None and place.next > base:
        cursor.delete()
        if place.next > following:
            _put(cursor, queue_id, place._replace(base=following))
        if place.base < base:
            _put(cursor, queue_id, place._replace(next=base))
            return


def _put(cursor: Any, queue_id: int, place: QueueExtent) -> None:
    cursor.put(PLACE_KEY.pack(queue_id, place.base), _VALUE.pack(*place[1:]))


def _delete_places(cursor: Any, queue_id: int, base: int, following: int, segment: int) -> None:
    """Delete what is left of a segment's stretch [base, following)."""
    while cursor.set_range(PLACE_KEY.pack(queue_id, base)):
        place = _entry(cursor, queue_id)
        if place is None or place.base >= following:
            return
        if place.segment == segment:
            cursor.delete()
        base = place.next


# --- The file -------------------------------------------------------------------------------------------------------


def _identity(head: TableHead | None) -> tuple[int, int] | None:
    return (head.end, head.content) if head is not None else None


def _map_bytes(path: Path) -> int:
    """A power of two with room for as much again."""
    size = _MAP_BYTES
    data = path / DATA_NAME
    while data.exists() and size < 2 * data.stat().st_size:
        size *= 2
    return size


def unclean(path: Path) -> str:
    """Why the file in the directory `path` is not the one that was closed; "" when it is. Raises OSError."""
    try:
        magic, version, *stated = _MARK.unpack((path / _MARK_NAME).read_bytes())
        if (magic, version) != (_MARK_MAGIC, _VERSION):
            return "its mark is of another version"
        return "" if tuple(stated) == _sum(path / DATA_NAME) else "its checksum does not match"
    except FileNotFoundError:
        return "it is in use, or was not closed"
    except struct.error:
        return "its mark is damaged"


def included_in(env: Any, tables: Any) -> dict[int, tuple[int, int]]:
    """By segment: its end and the content of its table, of an index that LMDB has opened."""
    with env.begin(db=tables) as transaction, transaction.cursor() as cursor:
        return {_TABLE_KEY.unpack(key)[0]: _TABLE_VALUE.unpack(value)[:2] for key, value in cursor}


def _sum(path: Path) -> tuple[int, int]:
    """(size, CRC-32C)."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            size += len(block)
            crc = crc32c(block, crc)
    return size, crc
