"""Whether the index of the past says what the tables say: it is made again in a temporary place, and compared.

Only an index that was closed cleanly, and is what it was then by its checksum, is opened: LMDB takes damaged pages at
their word, and a running node writes without locks. Any other one is thrown away by the next start, so it says nothing.
Nothing in the log's directory is changed: LMDB is opened for reading, without its lock file.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import lmdb

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.index.past import DIRECTORY_NAME, PastIndex
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.errors import DiskFailed, DiskFull, IndexDoubtful
from mirrorlog.tools.offline.log_directory import FILES, LogDirectory

_DATA_NAME: Final = "data.mdb"
_MARK_NAME: Final = "clean"
_MARK = struct.Struct("<4sIQI")
_MARK_MAGIC: Final = b"MLIX"
_VERSION: Final = 1
_READ_BYTES: Final = 1024 * 1024

_PLACE_KEY = struct.Struct(">IQ")
_TABLE_KEY = struct.Struct(">Q")
_TABLE_VALUE = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class IndexReport:
    """`state`: "agrees", "wrong", "unchecked" (there was no room to make it again), or what a start makes anew:
    "missing", "unclean", "outdated" (it speaks of other tables). `places`: entries that were compared."""

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
        if not (path / _DATA_NAME).is_file():
            return IndexReport("missing", "it is made when the node starts")
        if (unclean := _unclean(path)) is not None:
            return IndexReport("unclean", f"{unclean}; it is made anew when the node starts")
        return _compare(log, path, ends)
    except FileNotFoundError:
        return IndexReport("unclean", "a node has taken it into use meanwhile")
    except OSError as error:
        raise disk_error(error, "read", path) from None


def _unclean(path: Path) -> str | None:
    """Why it cannot be trusted. Raises OSError."""
    try:
        magic, version, *stated = _MARK.unpack((path / _MARK_NAME).read_bytes())
    except FileNotFoundError:
        return "it is in use, or was not closed"
    except struct.error:
        return "its mark is damaged"
    if (magic, version) != (_MARK_MAGIC, _VERSION):
        return "its mark is of another version"
    return None if stated == list(_sum(path / _DATA_NAME)) else "its checksum does not match"


def _sum(path: Path) -> tuple[int, int]:
    """(size, CRC-32C)."""
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            size += len(block)
            crc = crc32c(block, crc)
    return size, crc


def _compare(log: LogDirectory, path: Path, ends: Mapping[int, int]) -> IndexReport:
    with _Opened(path) as index:
        included = dict(index.tables())
        tables = Tables(FILES, log.path, seed=log.rules.seed)
        for start, stated in sorted(included.items()):
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
            queue_id, base = _PLACE_KEY.unpack(min(each[0] for each in (found, expected) if each is not None))
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
            self._tables = self._env.open_db(b"tables", create=False)
        except lmdb.Error as error:
            raise IndexDoubtful(f"the index in {path} cannot be read: {error}") from None

    def tables(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """(segment, (its end, the content of its table))."""
        for key, value in self._entries(self._tables):
            end, content, _ = _TABLE_VALUE.unpack(value)
            yield _TABLE_KEY.unpack(key)[0], (end, content)

    def places(self) -> Iterator[tuple[bytes, bytes]]:
        """Every entry of the database `places`, in order."""
        return self._entries(self._places)

    def _entries(self, database: Any) -> Iterator[tuple[bytes, bytes]]:
        with self._env.begin(db=database) as transaction, transaction.cursor() as cursor:
            yield from cursor

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()


def _map_bytes(path: Path) -> int:
    try:
        return max(1024 * 1024, (path / _DATA_NAME).stat().st_size)
    except OSError as error:
        raise DiskFailed(f"cannot read {path}: {error.strerror}; check the disk", path=str(path)) from None
