"""`spark.read.format("mirrorlog")` on real nodes gives exactly what was published; what is planned, without a JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThanOrEqual, In, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NoSuchQueue, PositionLost
from mirrorlog.spark.errors import BadOption, HistoryChanged, RecordsMissing, from_spark
from mirrorlog.spark.options import offsets_json, parse_options
from mirrorlog.spark.plan import QueueRange
from mirrorlog.spark.positions import QueuePosition
from mirrorlog.spark.reading.filters import pushed
from mirrorlog.spark.reading.stream import QueueStreamReader
from mirrorlog.spark.source import FilteringReader, QueueBatchReader, QueuePartition, QueueSource, planned
from mirrorlog.testing import Cluster
from tests.spark.fake_log import FakeLog
from tests.spark.queues import append_times_us, every_kind_of_record, publish
from tests.tools.logs import LogMaker

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
LEAST = {"servers": "a:1", "subscribe": "q"}
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def plan_of(log: FakeLog, *conditions: Filter, **options: str) -> list[tuple[str, int, int]]:
    given = {"servers": "a:1", **({} if "subscribePattern" in options else {"subscribe": "q"}), **options}
    taken, _ = pushed(conditions)
    return [(each.queue, each.first, each.next) for each in planned(parse_options(given), log, taken)]


# --- Plans, without a JVM -------------------------------------------------------------------------------------------


def test_a_condition_on_topic_or_offset_narrows_what_is_asked_for_and_read() -> None:
    """Goal: pushdown reads fewer ranges, and asks for no queue that cannot be chosen. Two queues, each condition."""
    log = FakeLog()
    log.add("q", 100)
    log.add("r", 100)
    both = {"subscribe": "q,r"}
    assert plan_of(log, **both) == [("q", 0, 100), ("r", 0, 100)]
    log.looks.clear()
    assert plan_of(log, EqualTo(("topic",), "r"), **both) == [("r", 0, 100)]
    assert {queue for queue, _ in log.looks} == {"r"}
    assert plan_of(log, GreaterThanOrEqual(("offset",), 90), **both) == [("q", 90, 100), ("r", 90, 100)]
    assert plan_of(log, In(("offset",), (1, 5)), In(("topic",), ("q", "other")), **both) == [("q", 1, 2), ("q", 5, 6)]
    assert plan_of(log, EqualTo(("topic",), "other"), **both) == []
    assert plan_of(log, EqualTo(("topic",), "r"), subscribePattern=".") == [("r", 0, 100)]


def test_queues_are_found_by_a_pattern() -> None:
    """Goal: subscribePattern. Method: names that match whole, in part, and not; none that do is an empty read."""
    log = FakeLog()
    for name in ("q-1", "q-2", "my-q-1", "other"):
        log.add(name, 3)
    assert plan_of(log, subscribePattern="q-[0-9]") == [("q-1", 0, 3), ("q-2", 0, 3)]
    assert plan_of(log, subscribePattern="nothing") == []
    with pytest.raises(NoSuchQueue, match="'nothing'"):
        plan_of(log, subscribe="q-1,nothing")


def test_times_are_looked_up_in_the_log() -> None:
    """Goal: startingTimestamp and the others are of append times. Method: a log whose records are 1 ms apart."""
    log = FakeLog()
    log.add("q", 100_000)
    assert plan_of(log, startingTimestamp="10", endingTimestamp="20") == [("q", 10_000, 20_000)]
    assert plan_of(log, startingOffsetsByTimestamp='{"q":{"0":10}}', endingOffsetsByTimestamp='{"q":{"0":999}}') == [
        ("q", 10_000, 100_000)
    ]


def test_a_batch_may_start_at_a_position_and_its_history_is_looked_at() -> None:
    """Goal: a log that lost its tail is noticed by a batch, too. Method: records of two epochs, both positions; then
    allowed."""
    log = FakeLog()
    queue = log.add("q", 10)
    queue.publish(10, epoch=2)
    good, bad = (offsets_json("q", QueuePosition(15, epoch, queue.log_id, "first")) for epoch in (2, 1))
    assert plan_of(log, startingOffsets=good) == [("q", 15, 20)]
    with pytest.raises(HistoryChanged, match="record 14 was of epoch 1, now it is one of epoch 2"):
        plan_of(log, startingOffsets=bad)
    assert plan_of(log, startingOffsets=bad, failOnDataLoss="false") == [("q", 15, 20)]


def test_a_declared_loss_in_the_range_is_named_or_passed_over() -> None:
    """Goal: no task lies in a gap, and none is planned over it in silence. Method: from before it to behind it, up to
    it, behind it, and narrowed to before it."""
    log = FakeLog()
    queue = log.add("q", 10)
    queue.lose_from(8)
    queue.publish(5)
    go_on_at = 10 + 2**33
    with pytest.raises(PositionLost, match=rf"8 up to {go_on_at} are lost.*go on at {go_on_at}") as lost:
        plan_of(log)
    assert lost.value.details["go_on_at"] == go_on_at
    assert plan_of(log, failOnDataLoss="false") == [("q", 0, 8), ("q", go_on_at, go_on_at + 5)]
    parts = plan_of(log, failOnDataLoss="false", minPartitions="5")
    offsets_planned = [offset for _, first, following in parts for offset in range(first, following)]
    assert offsets_planned == [*range(8), *range(go_on_at, go_on_at + 5)]
    assert 5 <= len(parts) <= 7
    assert plan_of(log, endingOffsets=offsets_json("q", 8)) == [("q", 0, 8)]
    assert plan_of(log, startingOffsets=offsets_json("q", go_on_at)) == [("q", go_on_at, go_on_at + 5)]
    assert plan_of(log, In(("offset",), (2,))) == [("q", 2, 3)]


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (StructType().add("offset", LongType()).add("value", BinaryType()), ("offset", "value")),
        (StructType().add("logId", StringType()), ("logId",)),
    ],
)
def test_a_schema_with_some_of_the_columns_chooses_them(schema: StructType, columns: tuple[str, ...]) -> None:
    """Goal: columns that nobody needs are not made. Method: schemas in another order, for batch and stream, without
    and with a matching option."""
    reader = QueueSource(LEAST).reader(schema)
    assert isinstance(reader, QueueBatchReader)
    assert reader.options.column_names == columns
    stream = QueueSource({**LEAST, "columns": ",".join(reversed(columns))}).streamReader(schema)
    assert isinstance(stream, QueueStreamReader)
    assert stream.options.column_names == columns


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        pytest.param(StructType().add("value", StringType()), "column 'value' is binary, not string", id="type"),
        pytest.param(StructType().add("valeu", BinaryType()), "no column 'valeu'; there are key", id="name"),
        pytest.param(StructType().add("value", BinaryType(), False), "is binary, not binary not null", id="nullable"),
        pytest.param(StructType().add("value", BinaryType()).add("value", BinaryType()), "each only once", id="twice"),
        pytest.param(StructType(), "must have a column", id="empty"),
    ],
)
def test_another_schema_is_refused(schema: StructType, message: str) -> None:
    """Goal: nothing is cast in silence. Each wrong thing by itself; and one that contradicts `columns`."""
    with pytest.raises(BadOption, match=message):
        QueueSource(LEAST).reader(schema)
    with pytest.raises(BadOption, match="option 'columns' key"):
        QueueSource({**LEAST, "columns": "key"}).reader(StructType().add("value", BinaryType()))


def test_conditions_are_taken_over_only_when_asked_to() -> None:
    """Goal: Spark does not refuse the format where pushdown is off, and no DataFrame keeps another query's conditions
    unasked. Method: who overrides what, and what is handed back."""
    schema = StructType().add("offset", LongType())
    plain = QueueSource(LEAST).reader(schema)
    assert type(plain).pushFilters is DataSourceReader.pushFilters
    filtering = QueueSource({**LEAST, "pushdown": "true"}).reader(schema)
    assert isinstance(filtering, FilteringReader)
    left = EqualTo(("key",), b"k")
    assert list(filtering.pushFilters([EqualTo(("offset",), 5), left])) == [left]
    assert filtering.conditions.offsets == ((5, 6),)


def test_readers_and_partitions_travel_to_workers() -> None:
    """Goal: what Spark sends is whole. Method: through pickle, both readers and a partition."""
    schema = StructType().add("offset", LongType())
    for reader in (QueueSource(LEAST).reader(schema), QueueSource(LEAST).streamReader(schema)):
        assert pickle.loads(pickle.dumps(reader)).options == reader.options
    wanted = QueueRange("c", "q", "l", 7, 10, 20, turn=3)
    assert pickle.loads(pickle.dumps(QueuePartition(wanted))).wanted == wanted
    assert list(QueueSource(LEAST).reader(schema).read(InputPartition(None))) == [], "as Spark does for an empty plan"


# --- With Spark -----------------------------------------------------------------------------------------------------


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


@pytest.mark.long
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


def test_chosen_columns_positions_and_conditions(spark: SparkSession, servers: list[str], queue: str) -> None:
    """Goal: the columns of a position, a schema with a few of them, and conditions, each over a load of its own. With
    pushdown the plan has a task for what is chosen only, and Spark checks what was not taken over."""
    publish(servers, queue, [Record(b"%d" % number, key=b"%d" % (number % 2)) for number in range(100)])
    times = append_times_us(servers, queue)
    frame = read(spark, servers, queue, includePosition="true", columns="appendTime,epoch,logId,offset")
    found = frame.orderBy("offset").select(f.unix_micros("appendTime"), "epoch", "logId", "offset").collect()
    assert [(row[0], row.offset) for row in found] == list(zip(times, range(100), strict=True))
    assert len({(row.epoch, row.logId) for row in found}) == 1
    few = spark.read.format("mirrorlog").schema("offset long, value binary").options(
        servers=servers[0], subscribe=queue, pushdown="true", maxRecordsPerPartition="10")  # fmt: skip
    spark.conf.set(PUSHDOWN, "true")
    try:
        chosen = few.load().where("offset >= 45 and offset < 55 and value <> '50'")
        assert chosen.rdd.getNumPartitions() == 1
        assert [tuple(row) for row in chosen.orderBy("offset").collect()] == [
            (number, b"%d" % number) for number in range(45, 55) if number != 50
        ]
        some = read(spark, servers, queue, pushdown="true").where(
            f.col("timestamp") > f.timestamp_micros(f.lit(times[-1]))
        )
        assert some.count() == 0
        # Spark keeps what one query pushed for the next one over the same load; so by default nothing is.
        shared = read(spark, servers, queue)
        both = shared.where("offset < 10").unionAll(shared.where("offset >= 45 and key = '1'"))
        assert both.count() == 10 + 28
    finally:
        spark.conf.unset(PUSHDOWN)


def test_log_files_are_read_like_nodes(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: `path` needs no node. Method: a log on disk, two of its queues by `load(path)` and a pattern."""
    log = LogMaker(tmp_path / "logs" / "log", queues=3)
    for queue_id in (1, 2, 3):
        log.data(queue_id, records=7)
    log.close()
    frame = spark.read.format("mirrorlog").option("subscribePattern", "q[12]").load(str(tmp_path))
    assert {(row.topic, row.offset) for row in frame.collect()} == {(f"q{q}", n) for q in (1, 2) for n in range(7)}


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


@pytest.mark.long
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


@pytest.mark.long
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
