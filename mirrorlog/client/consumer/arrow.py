"""A batch as a pyarrow RecordBatch, without a step per record.

The log's columns already have Arrow's layout, so keys, values, headers and event times are arrays over the batch's own
bytes, which they keep alive. Only what a batch does not store is made: numbers, and append times, one for all.

Rejected: rows of Python objects (0.2 GiB/s where this is bound by memory), and columns only where a batch has them:
what a record looks like must not depend on the batch that it travelled in.

Imported only by those who want it: pyarrow is not needed to read or write.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from mirrorlog.commitlog.format.arrow import BINARY, TIMESTAMP, binary_array, headers_array, timestamps_array
from mirrorlog.commitlog.format.body import Body, TimestampsColumn
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadBatch

HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

SCHEMA: Final = pa.schema(
    [
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("value", BINARY),
        pa.field("key", BINARY),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("timestamp", TIMESTAMP),
        pa.field("append_time", TIMESTAMP, nullable=False),
    ]
)
"""`timestamp`: event time, null where a record has none; `headers`: empty where it has none; `append_time`: of its
batch."""


def record_batch(header: BatchHeader, body: Body, *, first: int, following: int) -> pa.RecordBatch:
    """The records with queue offsets `first` up to `following` (exclusive) of the batch, under SCHEMA.

    Raises BadBatch when the batch does not hold that range, or a header's name is not UTF-8.
    """
    count = len(body)
    columns = [
        queue_offsets(header, count),
        binary_array(body.values, count),
        binary_array(body.keys, count),
        headers_array(body.headers, count, HEADERS),
        event_times(body.timestamps, count),
        append_times(header, count),
    ]
    return reader_rows(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), header, first=first, following=following)


def reader_rows(whole: pa.RecordBatch, header: BatchHeader, *, first: int, following: int) -> pa.RecordBatch:
    """Of all the batch's records those with queue offsets `first` up to `following` (exclusive). Raises BadBatch."""
    base, end = header.base_queue_offset, header.base_queue_offset + whole.num_rows
    if not base <= first <= following <= end:
        raise BadBatch(f"queue offsets {first} up to {following} are not within a batch of {base} up to {end}")
    return whole.slice(first - base, following - first)


# --- Columns, of all `count` records --------------------------------------------------------------------------------


def queue_offsets(header: BatchHeader, count: int) -> pa.Array:
    """int64."""
    return pa.array(np.arange(header.base_queue_offset, header.base_queue_offset + count, dtype=np.int64))


def append_times(header: BatchHeader, count: int) -> pa.Array:
    """TIMESTAMP: the batch's, once per record."""
    return timestamps_array(np.full(count, header.append_time_us, dtype=np.int64).data, count)


def event_times(column: TimestampsColumn | None, count: int) -> pa.Array:
    """TIMESTAMP; null where a record has none."""
    if column is None:
        return pa.nulls(count, TIMESTAMP)
    return timestamps_array(column.values_view, count, column.validity)
