"""The columns of a DataFrame that is written, and what of them goes to which queue. Pure.

    value       binary or string    must be there; null is an absent value (a tombstone)
    key         binary or string
    headers     array of struct(key string, value binary)
    topic       string              the queue, where the option `queue` names none
    timestamp   timestamp           event time; null: the record has none
    partition   int                 0 or null: a queue has no others

Columns stay Arrow's from Spark to the batch that leaves: rows are chosen and cut, never looked at one by one. Headers
are the exception, and only where a row has some (see `client.columns.HeaderLists`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType, TimestampType

from mirrorlog.errors import BadInput
from mirrorlog.spark.errors import BadOption

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_ALLOWED: Final[dict[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "value": ("binary or string", (BinaryType, StringType)),
    "key": ("binary or string", (BinaryType, StringType)),
    "headers": (HEADERS_TYPE, ()),
    "topic": ("string", (StringType,)),
    "timestamp": ("timestamp", (TimestampType,)),
    "partition": ("int", (IntegerType, LongType)),
}
# So much is handed over at a time: below a producer's window, so that batches leave while others are made.
_PIECE_BYTES: Final = 8 * 1024 * 1024

HeaderList = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class OutColumns:
    """Rows for one queue, as `Producer.send_many` takes them."""

    values: pa.Array
    keys: pa.Array | None
    headers: list[HeaderList] | None
    timestamps: pa.Array | None

    def __len__(self) -> int:
        return len(self.values)


def check_columns(schema: StructType, *, queue: str | None) -> None:
    """`queue`: as the option says. Raises BadOption naming the column that is missing, unknown or of a wrong type."""
    for column in schema.fields:
        if column.name not in _ALLOWED:
            raise BadOption(
                f"column {column.name!r} cannot be written; there are {', '.join(_ALLOWED)}: select these, or cast and "
                "name what is meant by them"
            )
        text, types = _ALLOWED[column.name]
        kind = column.dataType
        if not (isinstance(kind, types) if types else kind.simpleString() == HEADERS_TYPE):
            raise BadOption(f"column {column.name!r} is {kind.simpleString()}; it must be {text}, cast it")
    names = schema.fieldNames()
    if len(set(names)) < len(names):
        raise BadOption("a column is there twice")
    if "value" not in names:
        raise BadOption("column 'value' is missing: what is to be written, binary or string")
    if queue is None and "topic" not in names:
        raise BadOption("option 'queue' is missing, and there is no column 'topic' that names a queue for each row")


def per_queue(rows: pa.RecordBatch, *, queue: str | None) -> Iterator[tuple[str, OutColumns]]:
    """The rows of each queue, in their order, in pieces of some megabytes.

    Raises BadInput for a partition that is not 0, a row without a queue, a header without a name.
    """
    _check_partition(rows)
    for name, part in _by_queue(rows, queue):
        for piece in _pieces(part):
            yield name, _columns(piece)


def header_lists(column: pa.Array) -> list[HeaderList] | None:
    """Each row's headers; None when no row has any. Raises BadInput for one without a name."""
    if column.null_count == len(column):
        return None
    if isinstance(column.type, pa.MapType):
        raise BadInput("headers are a map; give an array of struct(key, value)")
    names, values = column.values.flatten()
    offsets = column.offsets.to_pylist()
    if names.slice(offsets[0], offsets[-1] - offsets[0]).null_count:
        raise BadInput("a header has no key")
    pairs: list[Any] = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    lists: list[HeaderList] = [pairs[first:end] for first, end in pairwise(offsets)]
    if column.null_count:
        lists = [each if there else [] for each, there in zip(lists, column.is_valid().to_pylist(), strict=True)]
    return lists if any(lists) else None


def _check_partition(rows: pa.RecordBatch) -> None:
    if "partition" not in rows.schema.names:
        return
    others = pc.filter(rows.column("partition"), pc.not_equal(rows.column("partition"), 0))
    if len(others):
        raise BadInput(f"a row names partition {others[0].as_py()}; a queue has partition 0 alone: drop the column")


def _by_queue(rows: pa.RecordBatch, queue: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if queue is not None or not rows.num_rows:
        if rows.num_rows:
            yield queue or "", rows
        return
    topics = rows.column("topic")
    if topics.null_count:
        raise BadInput("a row has no topic, and option 'queue' names no queue for it")
    names = pc.unique(topics).to_pylist()
    for name in names:
        yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics, name))


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, rows.num_rows * _PIECE_BYTES // max(1, rows.nbytes))
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


def _columns(rows: pa.RecordBatch) -> OutColumns:
    def column(name: str) -> pa.Array | None:
        return rows.column(name) if name in rows.schema.names else None

    headers = column("headers")
    return OutColumns(
        values=rows.column("value"),
        keys=column("key"),
        headers=None if headers is None else header_lists(headers),
        timestamps=column("timestamp"),
    )
