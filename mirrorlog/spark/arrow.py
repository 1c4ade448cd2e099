"""A batch as a pyarrow RecordBatch with the columns of Spark's Kafka source, without a step per record.

The log's columns already have Arrow's layout, so keys, values, headers and timestamps are arrays over the batch's own
bytes. Only what a batch does not store is made: topic, partition, offset, and the bitmap of records without headers.

Rejected: rows of Python objects (0.2 GiB/s where this is bound by memory), and null headers only where a whole batch
has none: what a record looks like must not depend on the batch that it travelled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mirrorlog.commitlog.body import BinaryColumn, Body, HeadersColumn, TimestampsColumn
from mirrorlog.commitlog.format import BatchHeader
from mirrorlog.errors import BadBatch

CREATE_TIME: Final = 0
"""timestampType of a record whose timestamp is its event time."""
APPEND_TIME: Final = 1
"""timestampType of a record without event time: the timestamp is its batch's append time."""

BINARY: Final = pa.binary()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_RECORD: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
_RECORD_WITH_HEADERS: Final = _RECORD.append(pa.field("headers", HEADERS))

# Below this Spark's cost per Arrow batch (about 1 ms) outweighs that of joining small ones.
ROWS_MIN: Final = 4096
BYTES_MIN: Final = 1024 * 1024


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Exactly what Spark makes of the source's columns; it refuses any other."""
    return _RECORD_WITH_HEADERS if include_headers else _RECORD


def record_batch(
    queue: str, header: BatchHeader, body: Body, *, first: int, following: int, include_headers: bool
) -> pa.RecordBatch:
    """The records with queue offsets `first` up to `following` (exclusive) of the batch. Holds on to its bytes.

    Raises BadBatch when the batch does not hold that range, or a header's name is not UTF-8.
    """
    base = header.base_queue_offset
    count = len(body)
    if not base <= first <= following <= base + count:
        raise BadBatch(f"queue offsets {first} up to {following} are not within a batch of {base} up to {base + count}")
    timestamps, timestamp_types = _timestamps(body.timestamps, count, header.append_time_us)
    columns = [
        _binary(body.keys, count),
        _binary(body.values, count),
        pa.repeat(pa.scalar(queue, pa.string()), count),
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(np.arange(base, base + count, dtype=np.int64)),
        timestamps,
        timestamp_types,
    ]
    if include_headers:
        columns.append(_headers(body.headers, count))
    whole = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers=include_headers))
    return whole.slice(first - base, following - first)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least ROWS_MIN rows or BYTES_MIN bytes, but for the last one."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _binary(column: BinaryColumn | None, count: int, kind: Any = BINARY) -> pa.Array:
    if column is None:
        return pa.nulls(count, kind)
    buffers = [_buffer(column.validity), _buffer(column.offsets_view), _buffer(column.data)]
    return pa.Array.from_buffers(kind, count, buffers)


def _timestamps(column: TimestampsColumn | None, count: int, append_time_us: int) -> tuple[pa.Array, pa.Array]:
    """Timestamps and their types."""
    if column is None:
        times = np.full(count, append_time_us, dtype=np.int64)
        return _as_timestamps(times.data, count), pa.array(np.full(count, APPEND_TIME, dtype=np.int32))
    if column.validity is None:
        return _as_timestamps(column.values_view, count), pa.array(np.full(count, CREATE_TIME, dtype=np.int32))
    bits = np.unpackbits(np.frombuffer(column.validity, dtype=np.uint8), count=count, bitorder="little")
    times = np.where(bits, column.values, append_time_us).astype(np.int64)
    return _as_timestamps(times.data, count), pa.array(np.where(bits, CREATE_TIME, APPEND_TIME).astype(np.int32))


def _as_timestamps(micros: memoryview, count: int) -> pa.Array:
    return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(micros)])


def _headers(column: HeadersColumn | None, count: int) -> pa.Array:
    """Null where a record has none, as in the Kafka source."""
    if column is None:
        return pa.nulls(count, HEADERS)
    entries = len(column.names)
    names = _binary(column.names, entries, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None
    entry = HEADERS.value_type
    pairs = pa.Array.from_buffers(entry, entries, [None], children=[names, _binary(column.values, entries)])
    present = np.packbits(np.diff(column.list_offsets) > 0, bitorder="little")
    buffers = [pa.py_buffer(present.data), _buffer(column.list_offsets_view)]
    return pa.Array.from_buffers(HEADERS, count, buffers, children=[pairs])


def _buffer(view: memoryview | None) -> pa.Buffer | None:
    return None if view is None else pa.py_buffer(view)
