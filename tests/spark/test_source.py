"""`spark.read.format("mirrorlog")` on real nodes gives exactly what was published."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.commitlog.body import Record
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NoSuchQueue
from mirrorlog.spark.errors import BadOption, RecordsMissing, from_spark
from mirrorlog.spark.options import offsets_json
from mirrorlog.testing import Cluster
from tests.spark.queues import append_times_us, every_kind_of_record, publish

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def read(spark: SparkSession, servers: list[str], queues: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("mirrorlog")
        .options(servers=",".join(servers), subscribe=queues, **{name: str(value) for name, value in options.items()})
        .load()
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """In offset order; timestamps as µs, for datetimes would bring the time zone of this machine in."""
    ordered = frame.withColumn("timestamp", f.unix_micros("timestamp")).orderBy("topic", "offset")
    return [tuple(row) for row in ordered.collect()]


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def expected_row(queue: str, offset: int, record: Record, append_time_us: int) -> tuple[Any, ...]:
    has_time = record.timestamp_us is not None
    time_us = record.timestamp_us if has_time else append_time_us
    return (record.key, record.value, queue, 0, offset, time_us, 0 if has_time else 1, list(record.headers) or None)


def error_of(action: Any) -> MirrorlogError:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark's classes; what counts is what is inside
        action()
    return from_spark(raised.value)


def test_a_read_gives_every_column_of_every_record(spark: SparkSession, servers: list[str], queue: str) -> None:
    """Goal: key, value, offset, times and headers arrive as published, empty and absent told apart.

    Records of every kind in batches of 7, so that columns are absent in some batches and partly absent in others.
    """
    records = every_kind_of_record(400)
    publish(servers, queue, records, batch_records=7)
    times = append_times_us(servers, queue)
    expected = [expected_row(queue, offset, record, times[offset]) for offset, record in enumerate(records)]
    frame = read(spark, servers, queue, includeHeaders="true")
    assert frame.columns == [*KAFKA_COLUMNS, "headers"]
    assert rows(frame) == expected
    in_parts = read(spark, servers, queue, includeHeaders="true", minPartitions=5)
    assert in_parts.rdd.getNumPartitions() == 5
    assert rows(in_parts) == expected


def test_offsets_choose_the_records_and_queues_stay_apart(spark: SparkSession, servers: list[str], queue: str) -> None:
    """Goal: each queue's range is its own, from the middle of one batch to the middle of another.

    Two queues, JSON offsets for both, more partitions than queues.
    """
    other = f"{queue}-other"
    publish(servers, queue, [Record(b"a%d" % number) for number in range(250)])
    publish(servers, other, [Record(b"b%d" % number) for number in range(30)])
    starting = f'{{"{queue}": {{"0": 42}}, "{other}": {{"0": -2}}}}'
    ending = f'{{"{queue}": {{"0": 207}}, "{other}": {{"0": -1}}}}'
    frame = read(spark, servers, f"{queue},{other}", startingOffsets=starting, endingOffsets=ending, minPartitions=4)
    assert frame.columns == KAFKA_COLUMNS
    found = {(row.topic, row.offset): bytes(row.value) for row in frame.collect()}
    assert found == {
        **{(queue, offset): b"a%d" % offset for offset in range(42, 207)},
        **{(other, offset): b"b%d" % offset for offset in range(30)},
    }


def test_records_that_come_later_belong_to_the_next_read(spark: SparkSession, servers: list[str], queue: str) -> None:
    """Goal: a plan is fixed. Read an empty queue, then one with a record, then one with two."""
    publish(servers, queue, [])
    assert offsets(read(spark, servers, queue)) == []
    publish(servers, queue, [Record(b"x")])
    planned = read(spark, servers, queue)
    assert planned.rdd.getNumPartitions() == 1
    publish(servers, queue, [Record(b"y")])
    assert [row.offset for row in planned.rdd.collect()] == [0]
    assert offsets(read(spark, servers, queue)) == [0, 1]


def test_offsets_that_the_queue_does_not_have_are_an_error_or_left_out(
    spark: SparkSession, servers: list[str], queue: str
) -> None:
    """Goal: nothing is missing silently. Ask from and up to beyond the end, with failOnDataLoss true and false."""
    publish(servers, queue, [Record(b"x")] * 10)
    beyond = {"startingOffsets": offsets_json(queue, 5), "endingOffsets": offsets_json(queue, 11)}
    error = error_of(lambda: read(spark, servers, queue, **beyond).collect())
    assert isinstance(error, RecordsMissing), error
    assert "failOnDataLoss" in error.message
    assert offsets(read(spark, servers, queue, **beyond, failOnDataLoss="false")) == [5, 6, 7, 8, 9]


def test_what_cannot_be_read_is_said_by_name(spark: SparkSession, servers: list[str], queue: str) -> None:
    """Goal: errors of planning reach the driver as what they are. Each wrong thing by itself."""
    publish(servers, queue, [Record(b"x")])
    error = error_of(lambda: read(spark, servers, queue, startingOfsets="earliest"))
    assert isinstance(error, BadOption)
    assert "startingofsets" in error.message
    error = error_of(lambda: spark.read.format("mirrorlog").schema("value string").options(
        servers=servers[0], subscribe=queue).load().collect())  # fmt: skip
    assert isinstance(error, BadOption), error
    assert isinstance(error_of(lambda: read(spark, servers, "nobody's").collect()), NoSuchQueue)
    assert isinstance(error_of(lambda: read(spark, ["127.0.0.1:1"], queue).collect()), ConnectionLost)
    error = error_of(lambda: read(spark, servers, queue, read_from="n9").collect())
    assert isinstance(error, BadRequest), error


def test_a_mirror_serves_the_same_records_when_its_master_is_gone(spark: SparkSession, queue: str) -> None:
    """Goal: `read_from=mirror` needs no master. Two copies, publish, kill the master, read."""
    with Cluster(2, min_in_sync=2) as cluster:
        master = cluster.master
        cluster.wait_in_sync()
        publish(cluster.servers, queue, [Record(b"%d" % number) for number in range(300)])
        cluster.wait_confirmed()
        master.kill()
        frame = read(spark, cluster.servers, queue, read_from="mirror", minPartitions=2)
        assert [(row.offset, bytes(row.value)) for row in frame.orderBy("offset").collect()] == [
            (number, b"%d" % number) for number in range(300)
        ]
