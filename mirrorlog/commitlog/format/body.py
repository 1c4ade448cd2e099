"""The body of a batch: columns in Arrow's layout, so that a reader wraps bytes and touches no record.

Columns stand in this order, each part padded with zeros to a multiple of 8, absent ones take no space:

    values      [validity bitmap]  int32 offsets[n + 1]  bytes
    keys        [validity bitmap]  int32 offsets[n + 1]  bytes                      if Column.KEYS
    headers     int32 list_offsets[n + 1], m = list_offsets[n]                      if Column.HEADERS
                  names   int32 offsets[m + 1]  UTF-8 bytes
                  values  [validity bitmap]  int32 offsets[m + 1]  bytes
    timestamps  [validity bitmap]  int64 µs UTC [n]                                 if Column.TIMESTAMPS

A validity bitmap (bit i of byte i // 8, least significant first, 1 = present) is there when the column's
`*_VALIDITY` bit is set. Absent is not empty: an absent value is a tombstone, an empty one is zero bytes.

Before it may stand a block of attributes (`commitlog.attributes`), which is no part of it.

Nothing says how long a column is: the last offset does. So one pass with a handful of vectorised checks finds
every column and proves that no record can reach outside the body (`parse_body`).

Source: Arrow columnar format, variable-size binary and list layouts. Rejected: Arrow IPC (its flatbuffer metadata
would be parsed and checked per batch, and its alignment rules would own our bytes on disk).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mirrorlog.commitlog.format.header import ATTRIBUTES_SIZE, HEADER_SIZE, Buffer, Codec, Column, aligned, read_header
from mirrorlog.errors import BadBatch, RecordTooLarge

Header = tuple[str, bytes | None]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


FEW_RECORDS: Final = 16
FEW_OFFSETS: Final = tuple(struct.Struct(f"<{count + 1}i") for count in range(FEW_RECORDS + 1))


# Plain numbers: an operation with a member of an enum takes a microsecond, and a body is parsed for every batch.
VALUES_VALIDITY: Final = int(Column.VALUES_VALIDITY)
KEYS: Final = int(Column.KEYS)
KEYS_VALIDITY: Final = int(Column.KEYS_VALIDITY)
HEADERS: Final = int(Column.HEADERS)
HEADER_VALUES_VALIDITY: Final = int(Column.HEADER_VALUES_VALIDITY)
TIMESTAMPS: Final = int(Column.TIMESTAMPS)
TIMESTAMPS_VALIDITY: Final = int(Column.TIMESTAMPS_VALIDITY)
ATTRIBUTES: Final = int(Column.ATTRIBUTES)


class Record(NamedTuple):
    """One message as a producer gives it. `timestamp_us`: event time, µs UTC."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_us: int | None = None


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Variable-size bytes: `data[offsets[i]:offsets[i + 1]]`, absent where the validity bit is 0."""

    validity: memoryview | None
    offsets: Int32s
    offsets_view: memoryview
    data: memoryview

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> memoryview | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def size_max(self) -> int:
        """Bytes of the largest entry."""
        return int(np.diff(self.offsets).max(initial=0))


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """Record i has the entries `list_offsets[i]` up to `list_offsets[i + 1]` of `names` and `values`."""

    list_offsets: Int32s
    list_offsets_view: memoryview
    names: BinaryColumn
    values: BinaryColumn

    def __getitem__(self, index: int) -> list[Header]:
        entries = range(int(self.list_offsets[index]), int(self.list_offsets[index + 1]))
        return [(_text(self.names[entry]), _bytes(self.values[entry])) for entry in entries]


@dataclass(frozen=True, slots=True)
class TimestampsColumn:
    """Event times, int64 µs UTC; absent where the validity bit is 0."""

    validity: memoryview | None
    values: Int64s
    values_view: memoryview

    def __getitem__(self, index: int) -> int | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return int(self.values[index])


@dataclass(frozen=True, slots=True)
class Body:
    """The columns of one batch, as views into its bytes."""

    values: BinaryColumn
    keys: BinaryColumn | None = None
    headers: HeadersColumn | None = None
    timestamps: TimestampsColumn | None = None

    def __len__(self) -> int:
        return len(self.values)

    def record(self, index: int) -> Record:
        """Record `index` as objects of its own (copies its bytes)."""
        return Record(
            _bytes(self.values[index]),
            _bytes(self.keys[index]) if self.keys is not None else None,
            self.headers[index] if self.headers is not None else (),
            self.timestamps[index] if self.timestamps is not None else None,
        )

    def records(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _text(view: memoryview | None) -> str:
    try:
        return "" if view is None else str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None


# --- Reading ------------------------------------------------------------------------------------------------------


def parse_batch_body(batch: Buffer) -> Body:
    """The body of an uncompressed batch. Raises BadBatch, for a compressed one too."""
    header = read_header(batch)
    if header.codec != Codec.NONE:
        raise BadBatch(f"the body is compressed by codec {header.codec}; decompress it first")
    view = memoryview(batch)[header.body_at : header.length]
    return parse_body(view, record_count=header.record_count, columns=header.columns)


def parse_body(body: memoryview, *, record_count: int, columns: int) -> Body:
    """Find and check all columns. `body` is the body without header and attributes, padding included.

    Raises BadBatch when an offset array does not begin at 0, decreases, or reaches outside the body, when bytes
    are missing, or when bytes are left over.
    """
    if not columns & ~ATTRIBUTES and (alone := _values_alone(body, record_count)) is not None:
        return Body(alone, None, None, None)
    cursor = _Cursor(body)
    values = cursor.binary(record_count, bool(columns & VALUES_VALIDITY), "value")
    keys = None
    if columns & KEYS:
        keys = cursor.binary(record_count, bool(columns & KEYS_VALIDITY), "key")
    headers = None
    if columns & HEADERS:
        headers = cursor.headers(record_count, bool(columns & HEADER_VALUES_VALIDITY))
    timestamps = None
    if columns & TIMESTAMPS:
        timestamps = cursor.timestamps(record_count, bool(columns & TIMESTAMPS_VALIDITY))
    if cursor.at != len(body):
        raise BadBatch(f"the columns end at byte {cursor.at}, the body at {len(body)}")
    return Body(values, keys, headers, timestamps)


def _values_alone(body: memoryview, count: int) -> BinaryColumn | None:
    """The column of a body that has no other, and no absent value: the usual one, in half the steps. None when it is
    not surely sound, and `parse_body` is to say why."""
    begin = aligned(4 * (count + 1))
    if len(body) < begin:
        return None
    view = body[: 4 * (count + 1)]
    offsets: Int32s = np.frombuffer(view, dtype="<i4")
    end = begin + int(offsets[-1])
    sound = (
        offsets[0] == 0
        and begin <= end <= len(body) <= aligned(end)
        and not np.count_nonzero(offsets[1:] < offsets[:-1])
        and not (count % 2 == 0 and any(body[begin - 4 : begin]))
        and (end == len(body) or not any(body[end:]))
    )
    return BinaryColumn(None, offsets, view, body[begin:end]) if sound else None


def check_uncompressed(batch: memoryview, *, record_count: int, columns: int, max_record_bytes: int) -> None:
    """The broker's check of a producer's body: its columns are sound, its names are text, no value is above the limit.

    Raises BadBatch or RecordTooLarge. `batch` is all of it; attributes are passed over.
    """
    at = HEADER_SIZE + ATTRIBUTES_SIZE if columns & ATTRIBUTES else HEADER_SIZE
    plain = not columns & ~ATTRIBUTES
    if plain and record_count <= FEW_RECORDS and _few_values_fit(batch, at, record_count, max_record_bytes):
        return
    check_columns(parse_body(batch[at:], record_count=record_count, columns=columns), max_record_bytes=max_record_bytes)


def check_columns(body: Body, *, max_record_bytes: int) -> None:
    """No value is above the limit, and every name is text. Raises RecordTooLarge, BadBatch."""
    # A value can be above the limit only if all values together are.
    if len(body.values.data) > max_record_bytes and (largest := body.values.size_max()) > max_record_bytes:
        raise RecordTooLarge(f"a value of {largest} bytes is above max_record_bytes ({max_record_bytes})")
    if body.headers is not None:
        check_names(body)


def check_names(body: Body) -> None:
    """Every header's name is UTF-8. Raises BadBatch."""
    if body.headers is not None:
        _check_text(body.headers.names)


def _few_values_fit(batch: memoryview, at: int, count: int, max_record_bytes: int) -> bool:
    """Whether a body of a few values, and nothing else, is surely sound and no value above the limit; the usual case
    of a producer that does not wait. In numpy it costs ten times as much. What is not sound is `parse_body`'s to say.
    `at`: where the body begins.
    """
    begin = at + aligned(4 * (count + 1))
    if len(batch) < begin:
        return False
    offsets = FEW_OFFSETS[count].unpack_from(batch, at)
    end = begin + offsets[-1]
    return (
        offsets[0] == 0
        and aligned(end) == len(batch)
        and end - begin <= max_record_bytes
        and list(offsets) == sorted(offsets)
        and not (count % 2 == 0 and any(batch[begin - 4 : begin]))
        and not any(batch[end:])
    )


def _check_text(names: BinaryColumn) -> None:
    """Every name is UTF-8, so that no stored record fails its readers. One pass over all of them at once."""
    try:
        characters = len(str(names.data, "utf-8"))
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None
    if characters == len(names.data):
        return
    data = np.frombuffer(names.data, dtype=np.uint8)
    begins = names.offsets[names.offsets < len(data)]
    if (data[begins] & 0xC0 == 0x80).any():  # a continuation byte: the offset is inside a character
        raise BadBatch("a header's name is not UTF-8: it begins within a character")


class _Cursor:
    """Walks a body part by part; every step checks before it slices."""

    __slots__ = ("at", "body")

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.at = 0

    def take(self, size: int, what: str) -> memoryview:
        end = self.at + size
        if end > len(self.body):
            raise BadBatch(f"the {what} column needs bytes up to {end}, the body has {len(self.body)}")
        part = self.body[self.at : end]
        # The last column of a compressed body may stand without its padding.
        self.at = min((end + 7) & -8, len(self.body))
        # Bytes between columns belong to no record: something there is a count or an offset that is too small.
        if bytes(self.body[end : self.at]).strip(b"\0"):
            raise BadBatch(f"the {what} column is followed by bytes that are no padding")
        return part

    def offsets(self, count: int, what: str) -> tuple[Int32s, memoryview]:
        view = self.take(4 * (count + 1), f"{what} offsets")
        offsets: Int32s = np.frombuffer(view, dtype="<i4")
        if offsets[0] != 0 or np.count_nonzero(offsets[1:] < offsets[:-1]):
            raise BadBatch(f"the {what} offsets do not begin at 0 or overlap")
        return offsets, view

    def binary(self, count: int, has_validity: bool, what: str) -> BinaryColumn:
        validity = self.take((count + 7) // 8, f"{what} validity") if has_validity else None
        offsets, view = self.offsets(count, what)
        return BinaryColumn(validity, offsets, view, self.take(int(offsets[-1]), what))

    def headers(self, count: int, has_validity: bool) -> HeadersColumn:
        list_offsets, view = self.offsets(count, "header list")
        entries = int(list_offsets[-1])
        names = self.binary(entries, False, "header name")
        return HeadersColumn(list_offsets, view, names, self.binary(entries, has_validity, "header value"))

    def timestamps(self, count: int, has_validity: bool) -> TimestampsColumn:
        validity = self.take((count + 7) // 8, "timestamp validity") if has_validity else None
        view = self.take(8 * count, "timestamp")
        return TimestampsColumn(validity, np.frombuffer(view, dtype="<i8"), view)
