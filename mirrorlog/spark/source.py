"""`spark.read.format("mirrorlog")` and `spark.readStream`: queues as a DataFrame, from nodes or from log files.

    register(spark)
    spark.read.format("mirrorlog").option("servers", "127.0.0.1:7401").option("subscribe", "flights").load()

Options are those of `mirrorlog.spark.options`, columns those of Spark's Kafka source: key, value (binary), topic (the
queue), partition (always 0), offset (the queue offset), timestamp (event time, or append time where a record has
none), timestampType (0 event time, 1 append time), and with includeHeaders=true headers; with includePosition=true
logId, epoch and appendTime. `.schema(…)` with some of them, in any order, reads these alone.

A job is planned once as ranges of queue offsets below the confirmed end; each task reads its range from a node and
gives Arrow batches over the received bytes. A task that did not get every queue offset exactly once fails.
With pushdown=true, conditions on topic and offset narrow the plan, those on timestamp choose rows in the task
(`filters`); that is not the default, see `options`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.options import COLUMNS, Mode, SourceOptions, parse_options
from mirrorlog.spark.reading.filters import ALL_ROWS, Conditions, pushed
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.planning import QueuePartition, planned
from mirrorlog.spark.reading.rows import record_batches, spare_modules

FORMAT: Final = "mirrorlog"

_TYPES: Final[Mapping[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
    "logId": StringType(),
    "epoch": IntegerType(),
    "appendTime": TimestampType(),
}


def register(spark: SparkSession) -> None:
    """Make the format known to the session. Workers must be able to import this package."""
    spark.dataSource.register(QueueSource)


def spark_schema(columns: Iterable[str] | None = None, *, include_headers: bool = False) -> StructType:
    """Columns of the source, all nullable, by default the Kafka source's; `arrow.schema_of` says the same to Arrow.

    Made from types: to parse their names Spark would need a JVM, which the process that plans does not have.
    """
    schema = StructType()
    for name in SourceOptions(include_headers=include_headers).column_names if columns is None else columns:
        schema.add(name, _TYPES[name])
    return schema


class QueueSource(DataSource):
    """The format. Its errors reach the driver inside what Spark raises (`mirrorlog.spark.errors.from_spark`)."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Raises BadOption: the first thing that Spark asks for, so a bad option fails at `load`."""
        return spark_schema(parse_options(self.options, "either").column_names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises BadOption, for other columns than the source's own too."""
        options = self._options("batch", schema)
        return FilteringReader(options) if options.pushdown else QueueBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises as `reader`."""
        from mirrorlog.spark.reading.stream import QueueStreamReader

        return QueueStreamReader(self._options("stream", schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises BadOption, NoSuchQueue, ConnectionLost."""
        from mirrorlog.spark.writing.writer import batch_writer, parse_writer_options

        return batch_writer(parse_writer_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises as `writer`."""
        from mirrorlog.spark.writing.writer import parse_writer_options, stream_writer

        return stream_writer(parse_writer_options(self.options), schema, overwrite=overwrite)

    def _options(self, mode: Mode, schema: StructType) -> SourceOptions:
        return with_columns(parse_options(self.options, mode), schema)


def with_columns(options: SourceOptions, schema: StructType) -> SourceOptions:
    """The options for the columns of a schema that somebody asked for. Raises BadOption for one that is not the
    source's."""
    for wanted in schema.fields:
        own = _TYPES.get(wanted.name)
        if own is None:
            raise BadOption(f"there is no column {wanted.name!r}; there are {', '.join(COLUMNS)}")
        if wanted.dataType.simpleString() != own.simpleString() or not wanted.nullable:
            kind = wanted.dataType.simpleString() + ("" if wanted.nullable else " not null")
            raise BadOption(
                f"column {wanted.name!r} is {own.simpleString()}, not {kind}; leave the schema out, or cast afterwards"
            )
    names = tuple(schema.fieldNames())
    if options.columns and set(names) != set(options.columns):
        raise BadOption(f"the schema has the columns {', '.join(names)}, option 'columns' {', '.join(options.columns)}")
    if not names or len(set(names)) < len(names):
        raise BadOption("the schema must have a column, and each only once")
    return replace(options, columns=names)


class QueueBatchReader(DataSourceReader):
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.conditions: Conditions = ALL_ROWS

    def partitions(self) -> list[InputPartition]:
        """Asks the nodes, or the files. Raises ConnectionLost, NoSuchQueue, RecordsMissing, PositionLost,
        HistoryChanged, BeginUnknown, NotCurrent, BadOption, ConfigError."""
        with open_lookup(self.options) as lookup:
            return [QueuePartition(wanted) for wanted in planned(self.options, lookup, self.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of exactly the partition's records, in order. Raises RangeNotDense, or what the client does."""
        if not isinstance(partition, QueuePartition):
            return iter(())  # Spark makes one of its own when nothing is planned
        spare_modules()
        return record_batches(self.options, partition.wanted, self.conditions.times)


class FilteringReader(QueueBatchReader):
    """Takes conditions over from Spark, which refuses a reader that can do so unless that is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Takes over what it can; the rest is Spark's."""
        self.conditions, left = pushed(filters)
        return left
