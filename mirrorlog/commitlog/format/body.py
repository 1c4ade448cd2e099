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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mirrorlog.commitlog.format.attributes import Attributes, encode_attributes
from mirrorlog.commitlog.format.header import (
    ATTRIBUTES_SIZE,
    HEADER_SIZE,
    NO_PRODUCER,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    Column,
    Kind,
    aligned,
    read_header,
    write_producer_part,
)
from mirrorlog.errors import BadBatch, RecordTooLarge

Header = tuple[str, bytes | None]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Part = bytes | bytearray | memoryview
"""Bytes on their way into a body."""
Join = Callable[[Sequence[Part]], bytearray | memoryview]
"""Makes one piece of memory, that may be written to, of parts in their order."""

_NO_HEADER: Final = bytes(HEADER_SIZE)

_FEW_RECORDS: Final = 16
_FEW_OFFSETS: Final = tuple(struct.Struct(f"<{count + 1}i") for count in range(_FEW_RECORDS + 1))
_ONE_SIZE: Final = _FEW_OFFSETS[1]
# What fills a part of n bytes up to a multiple of 8, at n % 8.
_ZEROS: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


# Plain numbers: an operation with a member of an enum takes a microsecond, and a body is parsed for every batch.
_VALUES_VALIDITY: Final = int(Column.VALUES_VALIDITY)
_KEYS: Final = int(Column.KEYS)
_KEYS_VALIDITY: Final = int(Column.KEYS_VALIDITY)
_HEADERS: Final = int(Column.HEADERS)
_HEADER_VALUES_VALIDITY: Final = int(Column.HEADER_VALUES_VALIDITY)
_TIMESTAMPS: Final = int(Column.TIMESTAMPS)
_TIMESTAMPS_VALIDITY: Final = int(Column.TIMESTAMPS_VALIDITY)
_ATTRIBUTES: Final = int(Column.ATTRIBUTES)


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


def parse_batch_body(batch: Buffer, at: int = 0) -> Body:
    """The body of the uncompressed batch at `at`. Raises BadBatch, for a compressed one too."""
    header = read_header(batch, at)
    if header.codec != Codec.NONE:
        raise BadBatch(f"the body is compressed by codec {header.codec}; decompress it first")
    view = memoryview(batch)[at + header.body_at : at + header.length]
    return parse_body(view, record_count=header.record_count, columns=header.columns)


def parse_body(body: memoryview, *, record_count: int, columns: int) -> Body:
    """Find and check all columns. `body` is the body without header and attributes, padding included.

    Raises BadBatch when an offset array does not begin at 0, decreases, or reaches outside the body, when bytes
    are missing, or when bytes are left over.
    """
    if not columns & ~_ATTRIBUTES and (alone := _values_alone(body, record_count)) is not None:
        return Body(alone, None, None, None)
    cursor = _Cursor(body)
    values = cursor.binary(record_count, bool(columns & _VALUES_VALIDITY), "value")
    keys = None
    if columns & _KEYS:
        keys = cursor.binary(record_count, bool(columns & _KEYS_VALIDITY), "key")
    headers = None
    if columns & _HEADERS:
        headers = cursor.headers(record_count, bool(columns & _HEADER_VALUES_VALIDITY))
    timestamps = None
    if columns & _TIMESTAMPS:
        timestamps = cursor.timestamps(record_count, bool(columns & _TIMESTAMPS_VALIDITY))
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
    at = HEADER_SIZE + ATTRIBUTES_SIZE if columns & _ATTRIBUTES else HEADER_SIZE
    plain = not columns & ~_ATTRIBUTES
    if plain and record_count <= _FEW_RECORDS and _few_values_fit(batch, at, record_count, max_record_bytes):
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
    offsets = _FEW_OFFSETS[count].unpack_from(batch, at)
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


# --- Writing ------------------------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """A batch whose body is in place and whose header is still zeros. A named tuple because one is made per batch.

    `data`: all of the batch, its attributes in place too. `padding`: its last bytes that belong to no column.
    `body_length`: before the codec, attributes and padding excluded.
    """

    data: bytearray | memoryview
    record_count: int
    columns: int
    max_timestamp_us: int
    codec: Codec
    padding: int
    body_length: int

    def seal(
        self,
        *,
        queue_id: int,
        kind: Kind = Kind.DATA,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = 0,
        sequence: int = 0,
    ) -> bytearray | memoryview:
        """Write the producer's part of the header, with the CRC of everything, into `data`, and give it."""
        write_producer_part(
            self.data,
            kind=kind,
            queue_id=queue_id,
            record_count=self.record_count,
            columns=self.columns,
            padding=self.padding,
            codec=self.codec,
            body_length=self.body_length,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            max_timestamp_us=self.max_timestamp_us,
        )
        return self.data


class BodyWriter:
    """Collects columns in the order of the layout; `draft` joins all their bytes once, into the batch itself.

    The entries stay where they are until then: each is copied one time, and nothing is allocated but the batch.
    """

    __slots__ = ("_columns", "_max_timestamp_us", "_parts", "_record_count")

    def __init__(self, record_count: int, attributes: Attributes | None = None) -> None:
        self._record_count = record_count
        self._columns = 0 if attributes is None else _ATTRIBUTES
        self._max_timestamp_us = NO_TIMESTAMP
        self._parts: list[Part] = [_head(attributes)]

    def add_values(self, offsets: Int32s, data: Iterable[Part], present: Bools | None) -> None:
        """`data`: the entries' bytes, in as many pieces as they have. `present`: None when none is absent."""
        self._add_binary(offsets, data, present, _VALUES_VALIDITY)

    def add_keys(self, offsets: Int32s, data: Iterable[Part], present: Bools | None) -> None:
        self._columns |= _KEYS
        self._add_binary(offsets, data, present, _KEYS_VALIDITY)

    def add_headers(self, counts: Iterable[int], names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """`counts`: entries of each record; the entries of all records follow one another."""
        self._columns |= _HEADERS
        self._add((_offsets(counts, self._record_count).data,), 4 * (self._record_count + 1))
        self._add_binary(*_binary(names), 0)
        self._add_binary(*_binary(values), _HEADER_VALUES_VALIDITY)

    def add_timestamps(self, stamps_us: Int64s, present: Bools | None) -> None:
        """`stamps_us`: 0 where absent; at least one is there."""
        self._columns |= _TIMESTAMPS
        there = stamps_us if present is None else stamps_us[present]
        self._max_timestamp_us = int(there.max())
        self._add_validity(present, _TIMESTAMPS_VALIDITY)
        self._add((stamps_us.astype("<i8", copy=False).data,), 8 * len(stamps_us))

    def draft(self, join: Join | None = None) -> Draft:
        """The batch, but for its header. `join`: None takes new memory."""
        return _joined(self._parts, self._record_count, self._columns, self._max_timestamp_us, join)

    def _add_binary(self, offsets: Int32s, data: Iterable[Part], present: Bools | None, validity_bit: int) -> None:
        if present is not None:
            self._add_validity(present, validity_bit)
        parts = self._parts
        parts += (offsets.data, _ZEROS[4 * len(offsets) % 8])
        parts += data
        parts.append(_ZEROS[int(offsets[-1]) % 8])

    def _add_validity(self, present: Bools | None, bit: int) -> None:
        """A bitmap, only if something is absent."""
        if present is not None:
            self._columns |= bit
            bitmap = np.packbits(present, bitorder="little")
            self._add((bitmap.data,), len(bitmap))

    def _add(self, pieces: Iterable[Part], size: int) -> None:
        self._parts.extend(pieces)
        self._parts.append(_ZEROS[size % 8])


def _joined(
    parts: Sequence[Part],
    record_count: int,
    columns: int,
    max_timestamp_us: int = NO_TIMESTAMP,
    join: Join | None = None,
) -> Draft:
    """`parts`: all of the batch, in order."""
    data = bytearray().join(parts) if join is None else join(parts)
    return Draft(data, record_count, columns, max_timestamp_us, Codec.NONE, 0, len(data) - len(parts[0]))


def _head(attributes: Attributes | None) -> bytes:
    """What stands before the body, its first part: the header to be, and the attributes."""
    return _NO_HEADER if attributes is None else _NO_HEADER + encode_attributes(attributes)


def _offsets(sizes: Iterable[int], count: int) -> Int32s:
    offsets: Int32s = np.fromiter(accumulate(sizes, initial=0), dtype="<i4", count=count + 1)
    return offsets


def _presence(entries: Sequence[object | None]) -> Bools | None:
    """None when nothing is absent."""
    if None not in entries:
        return None
    return np.fromiter((entry is not None for entry in entries), dtype=bool, count=len(entries))


def _binary(entries: Sequence[bytes | None]) -> tuple[Int32s, Sequence[bytes], Bools | None]:
    present = _presence(entries)
    filled = entries if present is None else [entry or b"" for entry in entries]
    # Nothing in `filled` is absent: `_presence` gives None for entries without an absence.
    return _offsets(map(len, filled), len(filled)), filled, present  # type: ignore[arg-type, return-value]


def encode_batch(
    records: Sequence[Record],
    *,
    queue_id: int,
    kind: Kind = Kind.DATA,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = 0,
    sequence: int = 0,
    attributes: Attributes | None = None,
) -> bytearray:
    """A batch of 1..n records as a producer sends it: header with the broker's part still zero, and body."""
    draft = draft_columns(
        [record.value for record in records],
        [record.key for record in records],
        [record.headers for record in records],
        [record.timestamp_us for record in records],
        attributes,
    )
    batch = draft.seal(
        queue_id=queue_id, kind=kind, producer_id=producer_id, producer_epoch=producer_epoch, sequence=sequence
    )
    assert isinstance(batch, bytearray)  # no other memory was asked for
    return batch


def draft_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] = (),
    headers: Sequence[Sequence[Header]] = (),
    timestamps_us: Sequence[int | None] = (),
    attributes: Attributes | None = None,
) -> Draft:
    """A batch from columns of the values' length; one that is empty, or has nothing but absent entries, takes no
    space."""
    has_keys, has_headers = len(keys) > keys.count(None), any(headers)
    has_timestamps = len(timestamps_us) > timestamps_us.count(None)
    absences = None in values or (has_keys and None in keys)
    if len(values) <= _FEW_RECORDS and not (has_headers or has_timestamps or absences):
        return _draft_few(values, keys if has_keys else (), attributes)  # type: ignore[arg-type]  # without an absence
    writer = BodyWriter(len(values), attributes)
    writer.add_values(*_binary(values))
    if has_keys:
        writer.add_keys(*_binary(keys))
    if has_headers:
        entries = [entry for entries in headers for entry in entries]
        names, contents = [name.encode() for name, _ in entries], [content for _, content in entries]
        writer.add_headers(map(len, headers), names, contents)
    if has_timestamps:
        stamps = np.fromiter((stamp or 0 for stamp in timestamps_us), dtype=np.int64, count=len(values))
        writer.add_timestamps(stamps, _presence(timestamps_us))
    return writer.draft()


def draft_record(value: bytes, key: bytes | None = None) -> Draft:
    """A batch of one record that has a value, and no headers and no time."""
    size = len(value)
    parts = [_NO_HEADER, _ONE_SIZE.pack(0, size), value, _ZEROS[size % 8]]
    if key is not None:
        size = len(key)
        parts += (_ONE_SIZE.pack(0, size), key, _ZEROS[size % 8])
    return _joined(parts, 1, 0 if key is None else _KEYS)


def _draft_few(values: Sequence[bytes], keys: Sequence[bytes], attributes: Attributes | None) -> Draft:
    """As `draft_columns`, of few records without an absence: without numpy, at a third of the cost."""
    parts: list[Part] = [_head(attributes), *_few(values)]
    if keys:
        parts += _few(keys)
    columns = 0 if attributes is None else _ATTRIBUTES
    return _joined(parts, len(values), columns | _KEYS if keys else columns)


def _few(entries: Sequence[bytes]) -> list[Part]:
    """The parts of a column of a few entries, all of them there."""
    offsets = tuple(accumulate(map(len, entries), initial=0))
    packed = _FEW_OFFSETS[len(entries)].pack(*offsets)
    return [packed, _ZEROS[len(packed) % 8], *entries, _ZEROS[offsets[-1] % 8]]
