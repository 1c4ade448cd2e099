"""Batches as pyarrow RecordBatches with the columns of Spark's Kafka source, without a step per record.

Keys, values and headers are arrays over the batches' own bytes (`commitlog.format.arrow`). Made here is what
only Spark wants: topic, partition, a timestamp that is the append time where a record has none of its own, and null for
no headers; only columns that are asked for.

Spark takes a tenth of a millisecond per RecordBatch, whatever is in it, so small batches are joined: their bytes are
copied once, column by column, and what is the same in every row is cut from an array that is made once. Rejected:
joining RecordBatches, which copies those columns too; dictionary arrays for them, which Spark refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mirrorlog.commitlog.format.arrow import BINARY, TIMESTAMP, binary_array, headers_array, timestamps_array
from mirrorlog.commitlog.format.body import Body
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadBatch
from mirrorlog.spark.options import COLUMNS, KAFKA_COLUMNS
from mirrorlog.spark.reading.filters import EVERY_TIME, TimeRange

CREATE_TIME: Final = 0
"""timestampType of a record whose timestamp is its event time."""
APPEND_TIME: Final = 1
"""timestampType of a record without event time: the timestamp is its batch's append time."""

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

ROWS_MIN: Final = 4096
BYTES_MIN: Final = 2 * 1024 * 1024
"""A RecordBatch has at least so many rows, or bytes as they stand in the log, but for the last one. More bytes do not
stay in a core's cache from the joining until they are sent."""

_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": BINARY,
    "value": BINARY,
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
    "logId": pa.string(),
    "epoch": pa.int32(),
    "appendTime": TIMESTAMP,
}
# Rows of an array that is made once and cut from then on.
_SAME_ROWS: Final = 64 * 1024


class QueueBatch(Protocol):
    """A checked batch of `queue`, of a node (`client.ConsumedBatch`) or of a file (`offline.LogBatch`). Of its records
    those with queue offsets `first` up to `next` (exclusive) are the reader's; `raw`: header and body as stored."""

    @property
    def queue(self) -> str: ...
    @property
    def log_id(self) -> str: ...
    @property
    def header(self) -> BatchHeader: ...
    @property
    def body(self) -> Body: ...
    @property
    def raw(self) -> memoryview: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...
    def __len__(self) -> int: ...


_Batches = Sequence[QueueBatch]
_Int64s = npt.NDArray[np.int64]


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """Exactly what Spark makes of the source's columns; it refuses any other."""
    return pa.schema([(name, _TYPES[name]) for name in columns])


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """Of the columns that the Kafka source has."""
    return schema_of((*KAFKA_COLUMNS, "headers") if include_headers else KAFKA_COLUMNS)


def record_batch(batches: _Batches, columns: Sequence[str] = COLUMNS, times: TimeRange = EVERY_TIME) -> pa.RecordBatch:
    """The reader's records of the batches, all of one queue, whose timestamp is within `times`.

    Over one batch the bytes of its columns are not copied. Raises BadBatch when a header's name is not UTF-8.
    """
    for batch in batches:
        _check_rows(batch)
    made = [_MAKERS[name](batches) for name in columns]
    rows = pa.RecordBatch.from_arrays(made, schema=schema_of(columns))
    if times == EVERY_TIME:
        return rows
    return rows.filter(pa.array(times.mask(_stamps(batches))))


def merged(
    batches: Iterable[QueueBatch], columns: Sequence[str] = COLUMNS, times: TimeRange = EVERY_TIME
) -> Iterator[pa.RecordBatch]:
    """All their rows within `times`, in order, in RecordBatches of at least ROWS_MIN rows or BYTES_MIN bytes before
    the choice, but for the last one. Batches without such a row are left out whole; there are no empty RecordBatches.
    """
    for held in grouped(batch for batch in batches if _may_have(batch, times)):
        yield from _some(held, columns, times)


def grouped(batches: Iterable[QueueBatch]) -> Iterator[list[QueueBatch]]:
    """Of at least ROWS_MIN rows or BYTES_MIN bytes as they stand in the log, but for the last group."""
    held: list[QueueBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        size += len(batch.raw)
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield held
            held, rows, size = [], 0, 0
    if held:
        yield held


def is_small(batches: _Batches) -> bool:
    """Whether they are less than a RecordBatch is made of, if more can come."""
    return sum(map(len, batches)) < ROWS_MIN and sum(len(batch.raw) for batch in batches) < BYTES_MIN


def _some(batches: _Batches, columns: Sequence[str], times: TimeRange) -> Iterator[pa.RecordBatch]:
    if times != EVERY_TIME and all(time in times for batch in batches for time in _span(batch)):
        times = EVERY_TIME
    found = record_batch(batches, columns, times)
    if found.num_rows:
        yield found


def _check_rows(batch: QueueBatch) -> None:
    base, count = batch.header.base_queue_offset, len(batch.body)
    if not base <= batch.first <= batch.next <= base + count:
        raise BadBatch(
            f"queue offsets {batch.first} up to {batch.next} are not within a batch of {base} up to {base + count}"
        )


# --- Times ----------------------------------------------------------------------------------------------------------


def _may_have(batch: QueueBatch, times: TimeRange) -> bool:
    """False when surely no row is within."""
    if times == EVERY_TIME:
        return True
    earliest, latest = _span(batch)
    return earliest < times.next_us and latest >= times.first_us


def _span(batch: QueueBatch) -> tuple[int, int]:
    """Times, µs UTC, that no row is before and none is after. By the times themselves: the header's latest one is the
    producer's word."""
    append_time_us, column = batch.header.append_time_us, batch.body.timestamps
    if column is None:
        return append_time_us, append_time_us
    earliest, latest = int(column.values.min()), int(column.values.max())
    if column.validity is None:
        return earliest, latest
    return min(earliest, append_time_us), max(latest, append_time_us)


def _stamps(batches: _Batches) -> _Int64s:
    """µs UTC of every row: event time, else append time."""
    found: _Int64s = np.empty(sum(map(len, batches)), dtype=np.int64)
    at = 0
    for batch in batches:
        column, part = batch.body.timestamps, found[at : at + len(batch)]
        rows = _rows(batch)
        if column is None:
            part[:] = batch.header.append_time_us
        else:
            part[:] = column.values[rows]
            if column.validity is not None:
                part[~_bits(column.validity, len(batch.body))[rows]] = batch.header.append_time_us
        at += len(batch)
    return found


def _bits(validity: memoryview, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(validity, dtype=np.uint8), count=count, bitorder="little").astype(np.bool_)


def _rows(batch: QueueBatch) -> slice:
    base = batch.header.base_queue_offset
    return slice(batch.first - base, batch.next - base)


# --- Columns, of the reader's rows ----------------------------------------------------------------------------------


def _keys(batches: _Batches) -> pa.Array:
    if all(batch.body.keys is None for batch in batches):
        return pa.nulls(sum(map(len, batches)), BINARY)
    return _joined(batches, lambda batch: binary_array(batch.body.keys, len(batch.body)))


def _headers(batches: _Batches) -> pa.Array:
    return _joined(
        batches, lambda batch: headers_array(batch.body.headers, len(batch.body), HEADERS, null_when_none=True)
    )


def _joined(batches: _Batches, column: Callable[[QueueBatch], pa.Array]) -> pa.Array:
    parts = [column(batch)[_rows(batch)] for batch in batches]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _offsets(batches: _Batches) -> pa.Array:
    runs = [np.arange(batch.first, batch.next, dtype=np.int64) for batch in batches]
    return pa.array(runs[0] if len(runs) == 1 else np.concatenate(runs))


def _timestamps(batches: _Batches) -> pa.Array:
    stamps = _stamps(batches)
    return timestamps_array(stamps.data, len(stamps))


def _timestamp_types(batches: _Batches) -> pa.Array:
    kinds = {_timestamp_type(batch) for batch in batches}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return _same(kind, pa.int32(), sum(map(len, batches)))
    return pa.array(np.concatenate([_mixed_types(batch) for batch in batches]))


def _timestamp_type(batch: QueueBatch) -> int | None:
    """Of all its records; None when they differ."""
    column = batch.body.timestamps
    if column is None:
        return APPEND_TIME
    return CREATE_TIME if column.validity is None else None


def _mixed_types(batch: QueueBatch) -> npt.NDArray[np.int32]:
    column, kind = batch.body.timestamps, _timestamp_type(batch)
    if kind is not None or column is None or column.validity is None:
        return np.full(len(batch), kind, dtype=np.int32)
    present = _bits(column.validity, len(batch.body))[_rows(batch)]
    return np.where(present, CREATE_TIME, APPEND_TIME).astype(np.int32)


def _epochs(batches: _Batches) -> pa.Array:
    return pa.array(_each(batches, [batch.header.epoch for batch in batches], np.int32))


def _append_times(batches: _Batches) -> pa.Array:
    times = _each(batches, [batch.header.append_time_us for batch in batches], np.int64)
    return timestamps_array(times.data, len(times))


def _each(batches: _Batches, of_batch: Sequence[int], kind: Any) -> npt.NDArray[Any]:
    """What each batch has, once per row."""
    return np.repeat(np.array(of_batch, dtype=kind), [len(batch) for batch in batches])


def _same(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """The value in every row."""
    if rows <= _SAME_ROWS:
        return _many(value, kind)[:rows]
    return pa.repeat(pa.scalar(value, kind), rows)


@lru_cache(maxsize=64)
def _many(value: str | int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), _SAME_ROWS)


_MAKERS: Final[Mapping[str, Callable[[_Batches], pa.Array]]] = {
    "key": _keys,
    "value": lambda batches: _joined(batches, lambda batch: binary_array(batch.body.values, len(batch.body))),
    "topic": lambda batches: _same(batches[0].queue, pa.string(), sum(map(len, batches))),
    "partition": lambda batches: _same(0, pa.int32(), sum(map(len, batches))),
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
    "logId": lambda batches: _same(batches[0].log_id, pa.string(), sum(map(len, batches))),
    "epoch": _epochs,
    "appendTime": _append_times,
}
