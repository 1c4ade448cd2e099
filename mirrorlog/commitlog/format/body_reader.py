"""Columns of a body, found and checked: no record reaches outside, and no name is other than text (`body` has the
layout). Pure."""

from __future__ import annotations

import numpy as np

from mirrorlog.commitlog.format.body import (
    ATTRIBUTES,
    FEW_OFFSETS,
    FEW_RECORDS,
    HEADER_VALUES_VALIDITY,
    HEADERS,
    KEYS,
    KEYS_VALIDITY,
    TIMESTAMPS,
    TIMESTAMPS_VALIDITY,
    VALUES_VALIDITY,
    BinaryColumn,
    Body,
    HeadersColumn,
    Int32s,
    TimestampsColumn,
)
from mirrorlog.commitlog.format.header import ATTRIBUTES_SIZE, HEADER_SIZE, Buffer, Codec, aligned, read_header
from mirrorlog.errors import BadBatch, RecordTooLarge


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
