"""Columns of many records, as callers have them: lists, numpy arrays and pyarrow's.

Each becomes sizes, presence and bytes that can be cut anywhere, without a Python step per record. Pure. pyarrow is
imported only when it is used; an array's own buffers are cut, and nothing is copied before the batch is made, but for
entries that hide bytes under an absence, which are written anew without them.

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

from mirrorlog.client.producer.record import Header, as_headers, as_timestamp_us, headers_size
from mirrorlog.client.properties import as_bytes
from mirrorlog.commitlog.format.body import Bools, Int32s, Int64s
from mirrorlog.commitlog.format.drafts import Part
from mirrorlog.commitlog.format.header import NO_TIMESTAMP
from mirrorlog.errors import BadRequest

# Units of datetime64 in which a time may be beyond 64 bits of µs.
_COARSE_UNITS: Final = frozenset({"Y", "M", "W", "D", "h", "m", "s", "ms"})
# Entries that are looked at together: their types and sizes are in the cache for the second look.
_BLOCK: Final = 2048
_NOTHING: Final = memoryview(b"")
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
    """Values or keys (`what`: for messages). Raises BadRequest for what is none of the kinds that a column may be."""
    if isinstance(given, list | tuple):
        return _from_list(given, what)
    if isinstance(given, np.ndarray):
        return _from_numpy(given, what)
    if _is_arrow(given):
        return _from_arrow(given, what)
    raise BadRequest(
        f"{what} are {type(given).__name__}; give a list of bytes, text or None, a numpy or a pyarrow array"
    )


def timestamp_entries(given: Any) -> TimestampEntries:
    """A list of what `send` takes, numpy int64 (µs) or datetime64 (UTC, as numpy has it), or an Arrow array of
    timestamps with a zone. Raises BadRequest."""
    if isinstance(given, list | tuple):
        return _timestamp_list(given)
    if isinstance(given, np.ndarray):
        return _timestamp_array(given)
    if _is_arrow(given):
        return _timestamp_arrow(given)
    raise BadRequest(f"timestamps are {type(given).__name__}; give a list, a numpy array or a pyarrow array")


def header_entries(given: Any, also: Sequence[Header] = ()) -> SharedHeaders | HeaderLists:
    """A mapping is for every record; else there is one mapping, list of pairs, or None for each. `also`: of every
    record, behind them. Raises BadRequest."""
    if isinstance(given, list | tuple):
        lists: list[Sequence[Header]] = [(*as_headers(each), *also) for each in given]
        sizes = np.fromiter(map(headers_size, lists), dtype=np.int64, count=len(lists))
        return HeaderLists(lists, sizes)
    if given is not None and not hasattr(given, "items"):
        raise BadRequest("headers are a mapping for all records, or a list with a mapping, pairs or None for each")
    pairs = [*as_headers(given), *also]
    size = headers_size(pairs)
    return SharedHeaders([name.encode() for name, _ in pairs], [value for _, value in pairs], size)


def datetimes_us(times: npt.NDArray[Any]) -> TimestampEntries:
    """datetime64 of any unit in µs, rounded down. Raises BadRequest for a time beyond 64 bits of µs."""
    stamps = times.astype("datetime64[us]")
    unit, _ = np.datetime_data(times.dtype)
    if unit in _COARSE_UNITS and (stamps.astype(times.dtype) != times)[~np.isnat(times)].any():
        raise BadRequest("a timestamp is beyond 64 bits of µs")
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
            kinds = set(map(type, block))
            if strange := kinds - {bytes, str, type(None)}:
                _refuse(what, " and ".join(sorted(kind.__name__ for kind in strange)))
            if type(None) in kinds:
                present = np.ones(len(entries), dtype=bool) if present is None else present
                present[first : first + _BLOCK] = [entry is not None for entry in block]
            entries[first : first + _BLOCK] = block = [as_bytes(entry) or b"" for entry in block]
        # Often all have one size, and to find that out takes less time than an array of sizes.
        even = even and countOf(map(len, block), len(block[0])) == len(block)
        sizes[first : first + _BLOCK] = (
            len(block[0]) if even else np.fromiter(map(len, block), dtype=np.int64, count=len(block))
        )
    return BinaryEntries(_offsets_of(sizes), ByteList(entries), present)


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
    return BinaryEntries(_offsets_of(sizes.astype(np.int64)), Chunks([kept.data]))


def _offsets_of(sizes: Int64s) -> Int64s:
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
        raise BadRequest(f"timestamps are a numpy array of {given.dtype}; give int64 (µs UTC) or datetime64 (UTC)")
    if (given == NO_TIMESTAMP).any():
        raise BadRequest(f"timestamp {NO_TIMESTAMP} is beyond 64 bits of µs")
    return TimestampEntries(np.ascontiguousarray(given))


def _from_arrow(given: Any, what: str) -> BinaryEntries:
    """Values or keys from an Array or ChunkedArray of any binary or string type. Raises BadRequest."""
    chunks = [_readable(chunk, what) for chunk in _chunks(given, what)]
    present = _valid(chunks)
    dense = [_dense(chunk) for chunk in chunks]
    sizes = np.concatenate([np.zeros(0, dtype=np.int64), *(sizes for sizes, _ in dense)])
    return BinaryEntries(_offsets_of(sizes), Chunks([data for _, data in dense]), present)


def _timestamp_arrow(given: Any) -> TimestampEntries:
    """Timestamps with a zone, of any unit, or int64 in µs UTC. Raises BadRequest."""
    import pyarrow as pa

    chunks = _chunks(given, "timestamps")
    kind = given.type
    if pa.types.is_int64(kind):
        unit = "us"
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        unit = kind.unit
    elif pa.types.is_timestamp(kind):
        raise BadRequest(f'timestamps are {kind} without a time zone; cast them to pa.timestamp("{kind.unit}", "UTC")')
    else:
        raise BadRequest(f"timestamps are {kind}; give timestamps with a zone, or int64 (µs UTC)")
    present = _valid(chunks)
    whole = [chunk.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for chunk in chunks]
    found = datetimes_us(np.concatenate([np.zeros(0, dtype=np.int64), *whole]).view(f"datetime64[{unit}]"))
    if found.present is not None:
        raise BadRequest("a timestamp is beyond 64 bits of µs")
    return TimestampEntries(found.stamps_us, present)


def _chunks(given: Any, what: str) -> list[Any]:
    import pyarrow as pa

    if isinstance(given, pa.ChunkedArray):
        return list(given.chunks)
    if isinstance(given, pa.Array):
        return [given]
    raise BadRequest(f"{what} are a pyarrow {type(given).__name__}; give an Array or a ChunkedArray")


def _valid(chunks: list[Any]) -> Bools | None:
    """None when nothing is absent."""
    if not any(chunk.null_count for chunk in chunks):
        return None
    return np.concatenate([chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks])


def _readable(array: Any, what: str) -> Any:
    """The array as one of the types whose buffers are read here; its absences stay."""
    import pyarrow as pa

    kind = array.type
    if kind in _arrow_offsets() or (pa.types.is_fixed_size_binary(kind) and not array.null_count):
        return array
    views = (pa.types.is_binary_view(kind), pa.types.is_string_view(kind), pa.types.is_null(kind))
    if pa.types.is_fixed_size_binary(kind) or any(views):
        return array.cast(pa.large_binary())
    raise BadRequest(f"{what} are a pyarrow array of {kind}; give binary, string or fixed-size binary")


def _dense(array: Any) -> tuple[Int64s, memoryview]:
    """Sizes of the entries, and their bytes back to back; of a `_readable` array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        sizes = np.full(len(array), width, dtype=np.int64)
        return sizes, _buffer(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    if not len(array):
        return np.zeros(0, dtype=np.int64), _NOTHING
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(b"", pa.binary()).cast(array.type))
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=_arrow_offsets()[array.type])
    offsets = offsets[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(offsets).astype(np.int64)
    return sizes, _buffer(data_buffer)[int(offsets[0]) : int(offsets[-1])]


def _buffer(buffer: Any) -> memoryview:
    return _NOTHING if buffer is None else memoryview(buffer).cast("B")


def _arrow_offsets() -> dict[Any, str]:
    """The dtype of the offsets, by the types whose buffers are read here."""
    import pyarrow as pa

    return {pa.binary(): "<i4", pa.string(): "<i4", pa.large_binary(): "<i8", pa.large_string(): "<i8"}


def _refuse(what: str, found: str) -> NoReturn:
    raise BadRequest(
        f"{what} are {found}; give bytes, text or None in a list, a numpy array of one dimension and dtype S, V or "
        "object, rows of uint8, or a pyarrow array of binary or string"
    )
