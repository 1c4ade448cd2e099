"""Which rows of a table are replayed, and as what: any landed table, or one of dead letters, as records with a source.

A record's source is the queue and the queue offset that it had when it was landed. It gives the order, and it is how a
second run knows what the first one did.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from mirrorlog.errors import BadInput
from mirrorlog.spark.errors import translated
from mirrorlog.spark.writing.columns_out import HEADERS_TYPE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# A partition is sorted by a task, and its rows come to the driver one after the other.
_PARTITION_BYTES: Final = 64 * 1024 * 1024
_PARTITION_ROWS: Final = 250_000
_BLOB_BYTES: Final = 8 * 1024 * 1024
_PARTITIONS_MAX: Final = 10_000
_QUEUE_COLUMNS: Final = ("topic", "queue")
_EVENT_TIME: Final = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records: of `queue` (None: all that are there) those with queue offsets `first` up to `until` (exclusive),
    appended from `from_time` on and before `until_time`; None: without that bound. Times have a zone."""

    queue: str | None = None
    first: int | None = None
    until: int | None = None
    from_time: datetime | None = None
    until_time: datetime | None = None

    def check(self) -> None:
        """Raises BadInput for bounds that cannot be meant."""
        if self.queue is None and (self.first is not None or self.until is not None):
            raise BadInput("queue offsets are those of one queue: name it")
        if self.first is not None and self.until is not None and self.first > self.until:
            raise BadInput(f"the first queue offset {self.first} is above the last one, {self.until}")
        for time in (self.from_time, self.until_time):
            if time is not None and time.tzinfo is None:
                raise BadInput(f"time {time} has no zone; write it as 2026-01-31T12:00:00+00:00")


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """What is selected of one queue: queue offsets from `first` up to `next` (exclusive), not necessarily all."""

    queue: str
    first: int
    next: int
    records: int
    bytes: int


def replay_name(table_id: str, selection: Selection, to_queue: str) -> str:
    """A name for this replay: the same for the same selection of the same table, to the same queue."""
    said = json.dumps([table_id, to_queue, asdict(selection)], default=str, sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def table_id(spark: SparkSession, table: str) -> str:
    """Delta's own id of the table at a path. Raises SparkFailed when there is none."""
    from delta.tables import DeltaTable

    with translated():
        return str(DeltaTable.forPath(spark, table).detail().select("id").collect()[0]["id"])


def replay_rows(frame: DataFrame, selection: Selection) -> DataFrame:
    """The selected rows with the columns source, offset, value, key, headers, timestamp (null: no event time).

    Raises BadInput for a frame that lacks a column which is needed.
    """
    from pyspark.sql import functions as f

    selection.check()
    names = set(frame.columns)
    for name in ("value", "offset"):
        if name not in names:
            raise BadInput(
                f"there is no column {name!r} among {', '.join(sorted(names))}; a table of decoded columns is replayed "
                "by a DataFrame that makes value and offset of them"
            )
    source = next((f.col(name) for name in _QUEUE_COLUMNS if name in names), None)
    if source is None:
        if selection.queue is None:
            raise BadInput("no column topic or queue says where the records came from; name the queue")
        source = f.lit(selection.queue)
    rows = frame.where(_condition(selection, source, names))
    return rows.select(
        source.cast("string").alias("source"),
        f.col("offset").cast("bigint").alias("offset"),
        f.col("value").cast("binary").alias("value"),
        _or_null(names, "key", "binary"),
        _or_null(names, "headers", HEADERS_TYPE),
        _event_time(names),
    )


def sources(rows: DataFrame) -> list[ReplaySource]:
    """What is selected of each queue, in order of name. Raises BadInput for a queue offset that is there twice."""
    from pyspark.sql import functions as f

    size = f.coalesce(f.octet_length("value"), f.lit(0)) + f.coalesce(f.octet_length("key"), f.lit(0))
    counted = rows.groupBy("source").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("records"),
        f.count_distinct("offset").alias("offsets"),
        f.sum(size).alias("bytes"),
    )
    with translated():
        found = sorted(counted.collect(), key=lambda row: str(row["source"]))
    for row in found:
        if row["source"] is None or row["offsets"] != row["records"]:
            raise BadInput(
                f"queue {row['source']!r}: {row['records']} rows have {row['offsets']} queue offsets; each record must "
                "be there once, and name its queue (two queues of one name in a table are told apart by time)"
            )
    return [ReplaySource(row["source"], row["first"], row["last"] + 1, row["records"], row["bytes"]) for row in found]


def in_order(rows: DataFrame, source: ReplaySource, *, first: int) -> Iterator[pa.RecordBatch]:
    """The rows of one queue from the queue offset `first` on, in order, as Arrow batches of some megabytes.

    Tasks sort; the driver holds a partition at a time. Raises as Spark's reading does, as an error of ours.
    """
    parts = max(source.bytes // _PARTITION_BYTES, source.records // _PARTITION_ROWS) + 1
    chosen = _of(rows, source, first).drop("source")
    ordered = chosen.repartitionByRange(min(parts, _PARTITIONS_MAX), "offset").sortWithinPartitions("offset")
    with warnings.catch_warnings():
        # Comes from a check inside PySpark; nothing here uses pandas.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        packed = ordered.mapInArrow(pack, "blob binary")
    with translated():
        for row in packed.toLocalIterator(prefetchPartitions=parts > 1):
            yield from pa.ipc.open_stream(bytes(row["blob"]))


def count_from(rows: DataFrame, source: ReplaySource, first: int) -> int:
    """How many records of one queue there are from the queue offset `first` on."""
    if first >= source.next:
        return 0
    with translated():
        return _of(rows, source, first).count()


def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each batch, in pieces of some megabytes, as one row of bytes: so Spark brings them to the driver as they are, and
    no row becomes an object on the way."""
    for batch in batches:
        count = max(1, batch.num_rows * _BLOB_BYTES // max(1, batch.nbytes))
        for first in range(0, batch.num_rows, count):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch.slice(first, count))
            yield pa.record_batch({"blob": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


# --- Inside ---------------------------------------------------------------------------------------------------------


def _of(rows: DataFrame, source: ReplaySource, first: int) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.where((f.col("source") == source.queue) & (f.col("offset") >= first))


def _condition(selection: Selection, source: Column, names: set[str]) -> Column:
    from pyspark.sql import functions as f

    found = f.lit(True)
    if selection.queue is not None:
        found &= source == selection.queue
    if selection.first is not None:
        found &= f.col("offset") >= selection.first
    if selection.until is not None:
        found &= f.col("offset") < selection.until
    if selection.from_time is None and selection.until_time is None:
        return found
    if "appendTime" not in names:
        raise BadInput("the table has no column appendTime, so records cannot be chosen by time; use queue offsets")
    if selection.from_time is not None:
        found &= f.col("appendTime") >= f.lit(selection.from_time)
    if selection.until_time is not None:
        found &= f.col("appendTime") < f.lit(selection.until_time)
    return found


def _or_null(names: set[str], name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    column: Column = f.col(name) if name in names else f.lit(None)
    return column.cast(kind).alias(name)


def _event_time(names: set[str]) -> Column:
    """A record that had none was landed with its batch's append time, and is published without one again."""
    from pyspark.sql import functions as f

    if "timestamp" not in names:
        return f.lit(None).cast("timestamp").alias("timestamp")
    own: Column = f.col("timestamp").cast("timestamp")
    if "timestampType" in names:
        own = f.when(f.col("timestampType") == _EVENT_TIME, own)
    return own.alias("timestamp")
