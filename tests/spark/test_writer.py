"""Rows written from Spark are records of queues, confirmed, in order, with all that their columns say.

Method: options and columns without anything else; a task's work against a real node, without a JVM; then a few jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from mirrorlog.client.producer.batch import ReceiptRange, Receipts
from mirrorlog.client.sync import Client
from mirrorlog.errors import BadInput, MirrorlogError, NoSuchQueue, OutcomeUnknown, RecordTooLarge, Refused
from mirrorlog.spark.errors import SPARK_ERRORS, BadOption, WriteUnproven, from_spark
from mirrorlog.spark.source import FORMAT, register
from mirrorlog.spark.writing.columns_out import check_columns, header_lists, per_queue
from mirrorlog.spark.writing.writer import (
    QueueWritten,
    WriterOptions,
    WrittenRows,
    check_written,
    parse_writer_options,
    write_rows,
)
from mirrorlog.testing import Cluster
from tests.spark.offline_logs import Row, rows_of
from tests.spark.queues import every_kind_of_record

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
ARROW_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


def schema(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found.add(name, kind)
    return found


def read(servers: Sequence[str], queue: str) -> list[Row]:
    with Client(*servers) as client, client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return rows_of(consumer.batches())


def declare(servers: Sequence[str], *queues: str) -> None:
    with Client(*servers) as client:
        for queue in queues:
            client.admin.declare(queue)


# --- Options ----------------------------------------------------------------------------------------------------------


def test_options_have_names_of_their_own_and_kafkas() -> None:
    assert parse_writer_options({"servers": "a:1, b:2", "queue": "q"}) == WriterOptions(("a:1", "b:2"), "q")
    found = parse_writer_options(
        {
            "kafka.bootstrap.servers": "a:1",
            "topic": "q",
            "CONFIRM": "2",
            "durability": "disk",
            "compression": "LZ4",
            "declare": "True",
            "delivery_timeout_ms": "5",
            "checkpointLocation": "/c",
        }
    )
    assert found == WriterOptions(("a:1",), "q", "2", "disk", "lz4", True, 5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"queue": "q"}, "servers"),
        ({"servers": "a:1", "queue": "q", "topic": "q"}, "'queue' and 'topic'"),
        ({"servers": "a:1", "kafka.bootstrap.servers": "a:1"}, "mean the same"),
        ({"servers": "a:1", "queue": " "}, "'queue' is empty"),
        ({"servers": "a:1", "confirm": "most"}, "confirm level 'most'"),
        ({"servers": "a:1", "confirm": "none"}, "master at least"),
        ({"servers": "a:1", "durability": "paper"}, "durability 'paper'"),
        ({"servers": "a:1", "compression": "gzip"}, "compression 'gzip'"),
        ({"servers": "a:1", "declare": "perhaps"}, "'declare' is true or false"),
        ({"servers": "a:1", "delivery_timeout_ms": "-1"}, "delivery_timeout_ms"),
        ({"servers": "a:1", "delivery_timeout_ms": "0"}, "delivery_timeout_ms"),
        ({"servers": "a:1", "subscribe": "q"}, "'subscribe' is not one of the writer's"),
        ({"servers": "a:1", "path": "/x"}, r"save\(\) alone"),
        ({"servers": "a:1", "tls_cert": "x"}, "needed together"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        parse_writer_options(options)


# --- Columns ----------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_kafkas_sink() -> None:
    everything = schema(
        value=BinaryType(),
        key=StringType(),
        headers=HEADERS,
        topic=StringType(),
        timestamp=TimestampType(),
        partition=IntegerType(),
    )
    check_columns(everything, queue=None)
    check_columns(schema(value=StringType()), queue="q")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"key": BinaryType()}, "'value' is missing"),
        ({"value": BinaryType(), "offset": IntegerType()}, "'offset' cannot be written"),
        ({"value": IntegerType()}, "'value' is int; it must be binary or string"),
        ({"value": BinaryType(), "headers": MapType(StringType(), BinaryType())}, "'headers' is map<string,binary>"),
        ({"value": BinaryType(), "timestamp": TimestampNTZType()}, "'timestamp' is timestamp_ntz"),
    ],
)
def test_a_column_that_cannot_be_written_is_named(columns: dict[str, DataType], told: str) -> None:
    with pytest.raises(BadOption, match=told):
        check_columns(schema(**columns), queue="q")


def test_rows_must_say_their_queue_when_no_option_does() -> None:
    with pytest.raises(BadOption, match="no column 'topic'"):
        check_columns(schema(value=BinaryType()), queue=None)
    rows = pa.record_batch({"value": ["a", "b"], "topic": ["q", None]})
    with pytest.raises(BadInput, match="no topic"):
        list(per_queue(rows, queue=None))


def test_rows_go_to_the_queue_of_the_option_else_to_their_own_in_their_order() -> None:
    rows = pa.record_batch({"value": ["1", "2", "3", "4"], "topic": ["x", "y", "x", "x"]})
    found = [(name, columns.values.to_pylist()) for name, columns in per_queue(rows, queue=None)]
    assert found == [("x", ["1", "3", "4"]), ("y", ["2"])]
    assert [(name, len(columns)) for name, columns in per_queue(rows, queue="z")] == [("z", 4)]
    assert list(per_queue(rows.slice(0, 0), queue="z")) == []
    assert list(per_queue(rows.slice(0, 0), queue=None)) == []


@pytest.mark.parametrize("partition", [1, -1])
def test_a_queue_has_partition_0_alone(partition: int) -> None:
    rows = pa.record_batch({"value": ["1", "2"], "partition": pa.array([0, None], pa.int32())})
    assert len(list(per_queue(rows, queue="q"))) == 1
    rows = pa.record_batch({"value": ["1", "2"], "partition": pa.array([0, partition], pa.int32())})
    with pytest.raises(BadInput, match=f"partition {partition}"):
        list(per_queue(rows, queue="q"))


def test_large_rows_are_handed_over_in_pieces() -> None:
    rows = pa.record_batch({"value": [bytes([number]) * 2**20 for number in range(20)]})
    pieces = [columns.values.to_pylist() for _, columns in per_queue(rows, queue="q")]
    assert len(pieces) > 2
    assert [value for piece in pieces for value in piece] == rows.column("value").to_pylist()


def test_headers_are_lists_of_pairs_also_of_a_slice() -> None:
    given: list[Any] = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [],
        [{"key": "b", "value": b""}],
    ]
    column = pa.array(given, ARROW_HEADERS)
    expected: list[Any] = [[("a", b"1"), ("a", None)], [], [], [("b", b"")]]
    assert header_lists(column) == expected
    assert header_lists(column.slice(2)) == expected[2:]
    assert header_lists(column.slice(1, 2)) is None
    with pytest.raises(BadInput, match="no key"):
        header_lists(pa.array([[{"key": None, "value": b""}]], ARROW_HEADERS))


# --- What tasks say ---------------------------------------------------------------------------------------------------


def receipts(*ranges: tuple[int, int]) -> Receipts:
    return Receipts([ReceiptRange(range(*each), 0, 1, 1, 0, False) for each in ranges])


def test_confirms_of_all_tasks_must_fit_together() -> None:
    one, other = QueueWritten(5), QueueWritten(3)
    one.add(receipts((0, 2), (2, 4), (7, 8)))
    other.add(receipts((4, 7)))
    assert one.ranges == [(0, 4), (7, 8)]
    total = check_written([WrittenRows({"q": one}), WrittenRows({"q": other}), WrittenRows()])
    assert (total["q"].records, total["q"].ranges) == (8, [(0, 4), (4, 7), (7, 8)])


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([WrittenRows(), None], "did not say"),
        ([WrittenRows({"q": QueueWritten(3, [(0, 2)])})], "3 records were sent and 2 are confirmed"),
        (
            [WrittenRows({"q": QueueWritten(2, [(0, 2)])}), WrittenRows({"q": QueueWritten(2, [(1, 3)])})],
            "offset 1 was given",
        ),
    ],
)
def test_what_does_not_fit_is_no_success(messages: list[Any], told: str) -> None:
    with pytest.raises(WriteUnproven, match=told):
        check_written(messages)


# --- A task against a node --------------------------------------------------------------------------------------------


def arrow_rows(count: int) -> tuple[pa.RecordBatch, list[Any]]:
    """Every kind of record as Spark would give it, and the same as (value, key, headers, timestamp)."""
    records = every_kind_of_record(count)
    headers: list[Any] = [
        [{"key": name, "value": value} for name, value in each.headers] if each.headers else None for each in records
    ]
    batch = pa.record_batch(
        {
            "key": pa.array([each.key for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "headers": pa.array(headers, ARROW_HEADERS),
            "timestamp": pa.array([each.timestamp_us for each in records], pa.timestamp("us", "Europe/Berlin")),
        }
    )
    return batch, [(each.value, each.key, tuple(each.headers), each.timestamp_us) for each in records]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_task_writes_all_columns_in_order(servers: list[str], queue: str, compression: str) -> None:
    declare(servers, queue)
    batch, expected = arrow_rows(1000)
    options = WriterOptions(tuple(servers), queue, compression=compression)
    written = write_rows(options, [batch.slice(0, 300), batch.slice(300, 0), batch.slice(300)])
    assert written == WrittenRows({queue: QueueWritten(1000, [(0, 1000)])})
    found = read(servers, queue)
    assert [(row.value, row.key, row.headers, row.timestamp) for row in found] == expected
    assert [row.offset for row in found] == list(range(1000))


def test_a_task_writes_to_several_queues_and_may_make_them(servers: list[str], queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(3)]
    rows = pa.record_batch({"value": [str(number) for number in range(30)], "topic": names * 10})
    with pytest.raises(NoSuchQueue, match=names[0]):
        write_rows(WriterOptions(tuple(servers)), [rows])
    written = write_rows(WriterOptions(tuple(servers), declare=True), [rows, rows])
    assert {name: each.records for name, each in written.queues.items()} == dict.fromkeys(names, 20)
    for number, name in enumerate(names):
        assert [row.value for row in read(servers, name)] == [b"%d" % each for each in range(number, 30, 3)] * 2


def test_a_task_without_rows_asks_nobody() -> None:
    assert write_rows(WriterOptions(("127.0.0.1:1",), "q"), []) == WrittenRows()
    assert write_rows(WriterOptions(("127.0.0.1:1",), "q"), [arrow_rows(0)[0]]) == WrittenRows()


def test_a_record_that_no_node_takes_ends_the_task(servers: list[str], queue: str) -> None:
    declare(servers, queue)
    rows = pa.record_batch({"value": [b"small", bytes(5 * 2**20)]})
    with pytest.raises(RecordTooLarge, match="max_record_bytes"):
        write_rows(WriterOptions(tuple(servers), queue), [rows])


def test_a_task_ends_with_refused_or_unknown_when_the_confirm_does_not_come() -> None:
    with Cluster(2, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        declare(cluster.servers, "q")
        for mirror in cluster.mirrors:
            mirror.pause()
        try:
            rows = pa.record_batch({"value": [b"v"] * 10})
            with pytest.raises((Refused, OutcomeUnknown)):
                write_rows(WriterOptions((cluster.master.client,), "q", delivery_timeout_ms=1000), [rows])
        finally:
            for mirror in cluster.nodes.values():
                mirror.resume()


def test_within_an_attempt_nothing_lands_twice_when_the_node_is_killed(tmp_path: Path) -> None:
    with Cluster(1, data_dir=tmp_path) as cluster:
        declare(cluster.servers, "q")
        node = cluster.nodes["n1"]

        def batches() -> Iterator[pa.RecordBatch]:
            for number in range(40):
                if number in (10, 25):
                    node.kill()
                    node.start()
                yield pa.record_batch({"value": [b"%d-%d" % (number, row) + bytes(1000) for row in range(500)]})

        written = write_rows(WriterOptions(tuple(cluster.servers), "q"), batches())
        assert written.queues["q"].records == 20_000
        values = [(row.value or b"").rstrip(b"\0") for row in read(cluster.servers, "q")]
        assert values == [b"%d-%d" % (number, row) for number in range(40) for row in range(500)]


# --- Jobs -------------------------------------------------------------------------------------------------------------


def save(rows: DataFrame, servers: Sequence[str], mode: str = "append", **options: str) -> None:
    """Raises what the job ended with, as an error of ours."""
    try:
        rows.write.format(FORMAT).options(servers=",".join(servers), **options).mode(mode).save()
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def test_a_batch_job_writes_what_a_reader_finds(spark: SparkSession, servers: list[str], queue: str) -> None:
    register(spark)
    declare(servers, queue)
    rows = spark.range(1000, numPartitions=3).selectExpr(
        "cast(id as string) value",
        "cast(cast(id % 7 as string) as binary) key",
        "case when id % 2 = 0 then array(named_struct('key', 'n', 'value', cast('h' as binary))) end headers",
        "case when id % 3 = 0 then timestamp_micros(id * 1000000) end timestamp",
    )
    save(rows, servers, queue=queue)
    found = read(servers, queue)
    assert sorted(int(row.value or b"") for row in found) == list(range(1000))
    for row in found:
        number = int(row.value or b"")
        assert row.key == b"%d" % (number % 7)
        assert row.headers == ((("n", b"h"),) if number % 2 == 0 else ())
        assert row.timestamp == (number * 1_000_000 if number % 3 == 0 else None)


def test_a_job_that_cannot_end_well_fails_before_a_task_runs(
    spark: SparkSession, servers: list[str], queue: str
) -> None:
    register(spark)
    rows = spark.range(3).selectExpr("cast(id as string) value")
    cases: list[tuple[DataFrame, dict[str, str], type[MirrorlogError], str]] = [
        (rows, {"queue": queue}, NoSuchQueue, "declare"),
        (rows, {"queue": queue, "mode": "overwrite"}, BadOption, "mode append"),
    ]
    for frame, options, kind, told in cases:
        with pytest.raises(kind, match=told):
            save(frame, servers, **options)


def test_a_stream_writes_each_row_once_over_restarts(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    register(spark)
    declare(servers, queue)
    (tmp_path / "in").mkdir()
    expected: list[bytes] = []
    for number in range(2):
        lines = [f"{number}-{line}" for line in range(50)]
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(lines))
        expected += [line.encode() for line in lines]
        query = (
            spark.readStream.text(str(tmp_path / "in"))
            .writeStream.format(FORMAT)
            .options(servers=",".join(servers), queue=queue, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None
        assert sorted(row.value or b"" for row in read(servers, queue)) == sorted(expected)
