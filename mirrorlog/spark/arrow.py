"""A batch as a pyarrow RecordBatch with the columns of Spark's Kafka source, without a step per record.

The arrays are those of `mirrorlog.client.arrow`, over the batch's own bytes. Made here is what only Spark wants: topic,
partition, a timestamp that is the append time where a record has none of its own, and null for no headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from mirrorlog.client.arrow import (
    BINARY,
    TIMESTAMP,
    append_times,
    binary_array,
    event_times,
    headers_array,
    queue_offsets,
    reader_rows,
    timestamps_array,
)
from mirrorlog.commitlog.body import Body, TimestampsColumn
from mirrorlog.commitlog.format import BatchHeader

CREATE_TIME: Final = 0
"""timestampType of a record whose timestamp is its event time."""
APPEND_TIME: Final = 1
"""timestampType of a record without event time: the timestamp is its batch's append time."""

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_RECORD: Final = pa.schema(
    [
        ("key", BINARY),
        ("value", BINARY),
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
    count = len(body)
    timestamps, timestamp_types = _timestamps(header, body.timestamps, count)
    columns = [
        binary_array(body.keys, count),
        binary_array(body.values, count),
        pa.repeat(pa.scalar(queue, pa.string()), count),
        pa.array(np.zeros(count, dtype=np.int32)),
        queue_offsets(header, count),
        timestamps,
        timestamp_types,
    ]
    if include_headers:
        columns.append(headers_array(body.headers, count, HEADERS, null_when_none=True))
    whole = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(include_headers=include_headers))
    return reader_rows(whole, header, first=first, following=following)


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


def _timestamps(header: BatchHeader, column: TimestampsColumn | None, count: int) -> tuple[pa.Array, pa.Array]:
    """Timestamps and their types."""
    if column is None:
        return append_times(header, count), pa.array(np.full(count, APPEND_TIME, dtype=np.int32))
    if column.validity is None:
        return event_times(column, count), pa.array(np.full(count, CREATE_TIME, dtype=np.int32))
    bits = np.unpackbits(np.frombuffer(column.validity, dtype=np.uint8), count=count, bitorder="little")
    times = np.where(bits, column.values, header.append_time_us).astype(np.int64)
    return timestamps_array(times.data, count), pa.array(np.where(bits, CREATE_TIME, APPEND_TIME).astype(np.int32))
