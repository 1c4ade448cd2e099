"""`spark.read.format("mirrorlog")`: queues of running nodes as a DataFrame.

    register(spark)
    spark.read.format("mirrorlog").option("servers", "127.0.0.1:7401").option("subscribe", "flights").load()

Options are those of `mirrorlog.spark.options`, columns those of Spark's Kafka source: key, value (binary), topic (the
queue), partition (always 0), offset (the queue offset), timestamp (event time, or append time where a record has
none), timestampType (0 event time, 1 append time), and with includeHeaders=true headers.

A job is planned once as ranges of queue offsets below the confirmed end; each task reads its range from a node and
gives Arrow batches over the received bytes. A task that did not get every queue offset exactly once fails.

Batch reads only; `streamReader` is not there yet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from mirrorlog.client import Client, ConsumedBatch
from mirrorlog.spark.arrow import merged, record_batch
from mirrorlog.spark.errors import BadOption, RangeNotDense
from mirrorlog.spark.nodes import ask_nodes
from mirrorlog.spark.options import SourceOptions, parse_options
from mirrorlog.spark.plan import QueueRange, dense, plan
from mirrorlog.spark.pump import Pump

FORMAT: Final = "mirrorlog"

_FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
# Well above the client's own deadlines, which end in an error that says more.
_PATIENCE_S: Final = 60.0


def register(spark: SparkSession) -> None:
    """Make the format known to the session. Workers must be able to import this package."""
    spark.dataSource.register(QueueSource)


def spark_schema(*, include_headers: bool) -> StructType:
    """The source's columns, all nullable; `arrow.arrow_schema` says the same to Arrow.

    Made from types: to parse their names Spark would need a JVM, which the process that plans does not have.
    """
    columns = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if include_headers:
        columns.add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    return columns


class QueueSource(DataSource):
    """The format. Its errors reach the driver inside what Spark raises (`mirrorlog.spark.errors.from_spark`)."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Raises BadOption: the first thing that Spark asks for, so a bad option fails at `load`."""
        return spark_schema(include_headers=parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises BadOption for other columns than the source's own."""
        options = parse_options(self.options)
        own = spark_schema(include_headers=options.include_headers)
        if schema.simpleString() != own.simpleString():
            raise BadOption(f"the columns are fixed, leave the schema out: {own.simpleString()}")
        return QueueReader(options)


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class QueueReader(DataSourceReader):
    """Plans on the driver, reads in tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Asks the nodes. Raises ConnectionLost, NoSuchQueue, RecordsMissing, BeginUnknown, BadOption, ConfigError."""
        queues = ask_nodes(self.options.servers, self.options.queues, self.options.tls)
        return [QueuePartition(wanted) for wanted in plan(self.options, queues)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of exactly the partition's records, in order. Raises RangeNotDense, or what the client does."""
        if not isinstance(partition, QueuePartition):
            return iter(())  # Spark makes one of its own when nothing is planned
        return merged(self._batches(partition.wanted))

    def _batches(self, wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        with Pump(lambda: _consume(self.options, wanted), patience_s=_PATIENCE_S, what=str(wanted)) as batches:
            for batch in dense(wanted, batches):
                _check_identity(wanted, batch)
                yield record_batch(
                    wanted.queue,
                    batch.header,
                    batch.body,
                    first=batch.first,
                    following=batch.next,
                    include_headers=self.options.include_headers,
                )


async def _consume(options: SourceOptions, wanted: QueueRange) -> AsyncGenerator[ConsumedBatch]:
    async with (
        Client(*options.servers, cluster_id=wanted.cluster_id, tls=options.tls.context()) as client,
        client.consumer(
            wanted.queue,
            start=wanted.first,
            until=wanted.next,
            read_from=options.read_from,
            max_bytes=_FETCH_BYTES_MAX,
        ) as consumer,
    ):
        async for batch in consumer.batches():
            yield batch


def _check_identity(wanted: QueueRange, batch: ConsumedBatch) -> None:
    """A queue may have been deleted and made again under its name since the job was planned."""
    planned, found = (wanted.log_id, wanted.queue_id), (batch.log_id, batch.header.queue_id)
    if found != planned:
        raise RangeNotDense(
            f"{wanted}: planned for queue id {planned[1]} of log {planned[0]}, read from {found[1]} of {found[0]}; "
            "run the job again"
        )
