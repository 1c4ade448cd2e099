"""Rows of a raw table over the log's own batches, with their values where they were received.

A Parquet writer takes a column in chunks as well as in one piece, so the values, nearly all of the bytes, need not be
joined as Spark's data source has to (`mirrorlog.spark.reading.arrow.merged`). What is made for the rows is made for
some thousand at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from mirrorlog.commitlog.format.arrow import BINARY, binary_array
from mirrorlog.spark.options import KAFKA_COLUMNS
from mirrorlog.spark.reading.arrow import BYTES_MIN, ROWS_MIN, QueueBatch, record_batch

RAW_COLUMNS: Final = (*KAFKA_COLUMNS, "headers", "appendTime")

_VALUE: Final = RAW_COLUMNS.index("value")
_OTHERS: Final = tuple(name for name in RAW_COLUMNS if name != "value")


def raw_tables(batches: Iterable[QueueBatch]) -> Iterator[pa.Table]:
    """All their rows with RAW_COLUMNS, in order; the values in a chunk for each batch. Raises BadBatch.

    A table has at least ROWS_MIN rows or BYTES_MIN bytes as they stand in the log, but for the last one; there are no
    empty ones. It keeps alive what its batches were received in, so what is little of that is copied out of it: the
    last table, and one with a batch that is cut. Else a few records of many queues would keep megabytes each.
    """
    held: list[QueueBatch] = []
    rows = size = 0
    for batch in filter(len, batches):
        held.append(batch)
        rows += len(batch)
        size += len(batch.raw)
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield _table(held, copied=any(len(each) < len(each.body) for each in held))
            held, rows, size = [], 0, 0
    if held:
        yield _table(held, copied=True)


def _table(batches: Sequence[QueueBatch], *, copied: bool) -> pa.Table:
    values = [_values(batch) for batch in batches]
    if copied:
        # A lone array would be given back as it is.
        values = [pa.concat_arrays([*values, values[0][:0]])]
    others = pa.Table.from_batches([record_batch(batches, _OTHERS)])
    return others.add_column(_VALUE, pa.field("value", BINARY), pa.chunked_array(values, BINARY))


def _values(batch: QueueBatch) -> pa.Array:
    base = batch.header.base_queue_offset
    return binary_array(batch.body.values, len(batch.body))[batch.first - base : batch.next - base]
