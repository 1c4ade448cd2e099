"""Columns of many records, as callers have them: lists and numpy arrays (pyarrow's are in `arrow_columns`).

Each becomes sizes, presence and bytes that can be cut anywhere, without a Python step per record. Pure.

A numpy array of dtype `S<n>` means what numpy means by it: zeros at the end of an entry are not part of it. `V<n>` and
rows of uint8 are taken whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, repeat
from operator import countOf
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from mirrorlog.client.batching import as_headers, as_timestamp_us, headers_size
from mirrorlog.commitlog.body import Bools, Int32s, Int64s, Part
from mirrorlog.commitlog.format import NO_TIMESTAMP
from mirrorlog.errors import BadInput

# Units of datetime64 in which a time may be beyond 64 bits of µs.
_COARSE_UNITS: Final = frozenset({"Y", "M", "W", "D", "h", "m", "s", "ms"})
# Entries that are looked at together: their types and sizes are in the cache for the second look.
_BLOCK: Final = 2048
_INT32: Final = np.dtype("<i4")


class BinarySlice(NamedTuple):
    """Some entries as a body has them. `present`: None when none is absent."""

    offsets: Int32s
    data: Iterable[Part]
    present: Bools | None


class Bytes(Protocol):
    """Where the bytes of entries are."""

    def pieces(self, start: int, end: int, first_byte: int, end_byte: int) -> Sequence[Part]:
        """Of the entries `start` up to `end`, which are the bytes `first_byte` up to `end_byte` of all."""


@dataclass(frozen=True, slots=True)
class ByteList:
    """Entries as objects."""

    entries: list[bytes]

    def pieces(self, start: int, end: int, first_byte: int, end_byte: int) -> Sequence[Part]:
        return self.entries[start:end]


class Chunks:
    """Entries back to back in a few stretches of memory; an entry never lies in two."""

    __slots__ = ("_chunks", "_ends")

    def __init__(self, chunks: Sequence[memoryview]) -> None:
        """`chunks`: of bytes, one dimension."""
        self._chunks = [chunk for chunk in chunks if len(chunk)]
        self._ends = list(accumulate(map(len, self._chunks)))

    def pieces(self, start: int, end: int, first_byte: int, end_byte: int) -> Sequence[Part]:
        found = []
        at = bisect_right(self._ends, first_byte)
        while at < len(self._chunks) and (begin := self._ends[at] - len(self._chunks[at])) < end_byte:
            found.append(self._chunks[at][max(0, first_byte - begin) : end_byte - begin])
            at += 1
        return found


@dataclass(frozen=True, slots=True)
class BinaryEntries:
    """Values or keys. `offsets`: int64 [n + 1], in all bytes back to back; `present`: None when none is absent."""

    offsets: Int64s
    data: Bytes
    present: Bools | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sizes(self) -> Int64s:
        return np.diff(self.offsets)

    def any_present(self, start: int, end: int) -> bool:
        """Whether not all of the entries `start` up to `end` are absent."""
        return self.present is None or bool(self.present[start:end].any())

    def cut(self, start: int, end: int) -> BinarySlice:
        """The entries `start` up to `end`."""
        offsets = self.offsets[start : end + 1]
        first_byte, end_byte = int(offsets[0]), int(offsets[-1])
        data = self.data.pieces(start, end, first_byte, end_byte)
        # A batch is far below 2 GiB; what lies before it may be more.
        within = (offsets - first_byte).astype(_INT32)
        return BinarySlice(within, data, _absences(self.present, start, end))


@dataclass(frozen=True, slots=True)
class TimestampEntries:
    """Event times, int64 µs UTC, 0 where absent."""

    stamps_us: Int64s
    present: Bools | None = None

    def __len__(self) -> int:
        return len(self.stamps_us)

    def any_present(self, start: int, end: int) -> bool:
        """Whether not all of the entries `start` up to `end` are absent."""
        return self.present is None or bool(self.present[start:end].any())

    def cut(self, start: int, end: int) -> tuple[Int64s, Bools | None]:
        """The entries `start` up to `end`."""
        return self.stamps_us[start:end], _absences(self.present, start, end)


class HeaderEntries(NamedTuple):
    """Headers of some records: how many each has, and all of them in a row."""

    counts: Iterable[int]
    names: Sequence[bytes]
    values: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class SharedHeaders:
    """The same headers for every record."""

    names: list[bytes]
    values: list[bytes | None]
    sizes: int
    """Bytes that they take in each record."""

    def any_present(self, start: int, end: int) -> bool:
        return bool(self.names)

    def cut(self, start: int, end: int) -> HeaderEntries:
        count = end - start
        return HeaderEntries(repeat(len(self.names), count), self.names * count, self.values * count)


@dataclass(frozen=True, slots=True)
class HeaderLists:
    """Headers of their own for each record: the one column that costs a Python step per record."""

    lists: list[Sequence[tuple[str, bytes | None]]]
    sizes: Int64s

    def any_present(self, start: int, end: int) -> bool:
        return any(self.lists[start:end])

    def cut(self, start: int, end: int) -> HeaderEntries:
        lists = self.lists[start:end]
        pairs = [pair for each in lists for pair in each]
        return HeaderEntries(map(len, lists), [name.encode() for name, _ in pairs], [value for _, value in pairs])


def binary_entries(given: Any, what: str) -> BinaryEntries:
    """Values or keys (`what`: for messages). Raises BadInput for what is none of the kinds that a column may be."""
    if isinstance(given, list | tuple):
        return _from_list(given, what)
    if isinstance(given, np.ndarray):
        return _from_numpy(given, what)
    if _is_arrow(given):
        from mirrorlog.client.arrow_columns import arrow_binary

        return arrow_binary(given, what)
    raise BadInput(f"{what} are {type(given).__name__}; give a list of bytes or None, a numpy or a pyarrow array")


def timestamp_entries(given: Any) -> TimestampEntries:
    """A list of what `send` takes, numpy int64 (µs) or datetime64 (UTC, as numpy has it), or an Arrow array of
    timestamps with a zone. Raises BadInput."""
    if isinstance(given, list | tuple):
        return _timestamp_list(given)
    if isinstance(given, np.ndarray):
        return _timestamp_array(given)
    if _is_arrow(given):
        from mirrorlog.client.arrow_columns import arrow_timestamps

        return arrow_timestamps(given)
    raise BadInput(f"timestamps are {type(given).__name__}; give a list, a numpy array or a pyarrow array")


def header_entries(given: Any) -> SharedHeaders | HeaderLists:
    """A mapping is for every record; else there is one mapping, list of pairs, or None for each. Raises BadInput."""
    if isinstance(given, list | tuple):
        lists = [as_headers(each) for each in given]
        sizes = np.fromiter(map(headers_size, lists), dtype=np.int64, count=len(lists))
        return HeaderLists(lists, sizes)
    if not hasattr(given, "items"):
        raise BadInput("headers are a mapping for all records, or a list with a mapping, pairs or None for each")
    pairs = as_headers(given)
    size = headers_size(pairs)
    return SharedHeaders([name.encode() for name, _ in pairs], [value for _, value in pairs], size)


def datetimes_us(times: npt.NDArray[Any]) -> TimestampEntries:
    """datetime64 of any unit in µs, rounded down. Raises BadInput for a time beyond 64 bits of µs."""
    stamps = times.astype("datetime64[us]")
    unit, _ = np.datetime_data(times.dtype)
    if unit in _COARSE_UNITS and (stamps.astype(times.dtype) != times)[~np.isnat(times)].any():
        raise BadInput("a timestamp is beyond 64 bits of µs")
    absent = np.isnat(stamps)
    stamps_us: Int64s = np.where(absent, 0, stamps.view(np.int64))
    return TimestampEntries(stamps_us, ~absent if absent.any() else None)


def _absences(present: Bools | None, start: int, end: int) -> Bools | None:
    """Presence of the entries `start` up to `end`, None when none of them is absent."""
    if present is None or present[start:end].all():
        return None
    return present[start:end]


def _is_arrow(given: object) -> bool:
    # By name, so that pyarrow is imported only for those who use it.
    return type(given).__module__.partition(".")[0] == "pyarrow"


def _from_list(given: Sequence[bytes | None], what: str) -> BinaryEntries:
    # A list of its own: the caller may go on using his.
    entries: list[Any] = list(given)
    sizes = np.zeros(len(entries), dtype=np.int64)
    present = None
    even = True
    for first in range(0, len(entries), _BLOCK):
        block = entries[first : first + _BLOCK]
        if countOf(map(type, block), bytes) != len(block):
            if strange := set(map(type, block)) - {bytes, type(None)}:
                _refuse(what, " and ".join(sorted(kind.__name__ for kind in strange)))
            present = np.ones(len(entries), dtype=bool) if present is None else present
            present[first : first + _BLOCK] = [entry is not None for entry in block]
            entries[first : first + _BLOCK] = block = [entry or b"" for entry in block]
        # Often all have one size, and to find that out takes less time than an array of sizes.
        even = even and countOf(map(len, block), len(block[0])) == len(block)
        sizes[first : first + _BLOCK] = (
            len(block[0]) if even else np.fromiter(map(len, block), dtype=np.int64, count=len(block))
        )
    return BinaryEntries(offsets_of(sizes), ByteList(entries), present)


def _from_numpy(given: npt.NDArray[Any], what: str) -> BinaryEntries:
    if isinstance(given, np.ma.MaskedArray):
        _refuse(what, "a masked array")
    if given.ndim == 2 and given.dtype == np.uint8:
        return _rows(np.ascontiguousarray(given))
    if given.ndim == 1 and given.dtype.kind == "O":
        return _from_list(given.tolist(), what)
    if given.ndim != 1 or given.dtype.kind not in "SV" or given.dtype.hasobject:
        _refuse(what, f"a numpy array of {given.dtype} in {given.ndim} dimensions")
    rows = np.ascontiguousarray(given).view(np.uint8).reshape(len(given), given.dtype.itemsize)
    return _trimmed(rows, np.strings.str_len(given)) if given.dtype.kind == "S" else _rows(rows)


def _rows(rows: npt.NDArray[np.uint8]) -> BinaryEntries:
    count, width = rows.shape
    return BinaryEntries(np.arange(count + 1, dtype=np.int64) * width, Chunks([rows.reshape(-1).data]))


def _trimmed(rows: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int_]) -> BinaryEntries:
    width = rows.shape[1]
    if (sizes == width).all():
        return _rows(rows)
    kept = rows[np.arange(width) < sizes[:, np.newaxis]]
    return BinaryEntries(offsets_of(sizes.astype(np.int64)), Chunks([kept.data]))


def offsets_of(sizes: Int64s) -> Int64s:
    """Where entries of these sizes begin, back to back, and where the last one ends."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _timestamp_list(given: Sequence[datetime | int | None]) -> TimestampEntries:
    stamps = [as_timestamp_us(each) for each in given]
    present = None
    if None in stamps:
        present = np.fromiter((stamp is not None for stamp in stamps), dtype=bool, count=len(stamps))
    return TimestampEntries(np.fromiter((stamp or 0 for stamp in stamps), dtype=np.int64, count=len(stamps)), present)


def _timestamp_array(given: npt.NDArray[Any]) -> TimestampEntries:
    if given.ndim == 1 and given.dtype.kind == "M" and not isinstance(given, np.ma.MaskedArray):
        return datetimes_us(given)
    if given.ndim != 1 or given.dtype != np.int64 or isinstance(given, np.ma.MaskedArray):
        raise BadInput(f"timestamps are a numpy array of {given.dtype}; give int64 (µs UTC) or datetime64 (UTC)")
    if (given == NO_TIMESTAMP).any():
        raise BadInput(f"timestamp {NO_TIMESTAMP} is beyond 64 bits of µs")
    return TimestampEntries(np.ascontiguousarray(given))


def _refuse(what: str, found: str) -> NoReturn:
    raise BadInput(
        f"{what} are {found}; give bytes or None in a list, a one-dimensional numpy array of dtype S, V or object, "
        "rows of uint8, or a pyarrow array of binary or string"
    )
