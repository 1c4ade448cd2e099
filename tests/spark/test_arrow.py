"""A batch becomes Arrow columns: what its records say, with the schema that Spark wants. No JVM."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadBatch
from mirrorlog.spark.options import COLUMNS, KAFKA_COLUMNS
from mirrorlog.spark.reading.arrow import (
    APPEND_TIME,
    BYTES_MIN,
    CREATE_TIME,
    ROWS_MIN,
    arrow_schema,
    merged,
    record_batch,
    schema_of,
)
from mirrorlog.spark.source import spark_schema
from tests.spark.batches import (
    APPEND_TIME_US,
    BASE,
    EPOCH,
    LOG_ID,
    QUEUE,
    consumed,
    given_out,
    record_lists,
    stamped,
)

records = record_lists()


def row(record: Record, offset: int) -> dict[str, object]:
    given_headers = [{"key": name, "value": value} for name, value in record.headers]
    has_time = record.timestamp_us is not None
    return {
        "key": record.key,
        "value": record.value,
        "topic": QUEUE,
        "partition": 0,
        "offset": offset,
        "timestamp": record.timestamp_us if has_time else APPEND_TIME_US,
        "timestampType": CREATE_TIME if has_time else APPEND_TIME,
        "headers": given_headers or None,
        "logId": LOG_ID,
        "epoch": EPOCH,
        "appendTime": APPEND_TIME_US,
    }


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    # As integers: datetimes would hide a wrong unit behind their own arithmetic.
    for name in {"timestamp", "appendTime"} & set(batch.schema.names):
        numbers = batch.column(name).cast(pa.int64())
        batch = batch.set_column(batch.schema.get_field_index(name), name, numbers)
    return list(batch.to_pylist())


@settings(deadline=None)  # the first call loads pyarrow's parts
@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_any_rows_of_any_batches_are_their_records(lists: list[list[Record]], data: st.DataObject) -> None:
    """Goal: Arrow says what the records say. Random batches, all columns present or absent, a random range of each,
    joined or alone."""
    batches, expected = [], []
    base = BASE
    for given_records in lists:
        first = data.draw(st.integers(0, len(given_records)), label="first")
        end = data.draw(st.integers(first, len(given_records)), label="end")
        batches.append(consumed(given_records, base + first, base + end, base=base))
        expected += [row(given_records[index], base + index) for index in range(first, end)]
        base += len(given_records)
    converted = record_batch(batches)
    converted.validate(full=True)
    assert converted.schema.equals(schema_of(COLUMNS), check_metadata=True)
    assert rows(converted) == expected


@settings(deadline=None)
@given(records, st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_chosen_columns_are_those_of_all_columns(given_records: list[Record], columns: list[str]) -> None:
    """Goal: a choice changes no value and keeps its order. Method: random columns in a random order."""
    batch = consumed(given_records)
    chosen = record_batch([batch], columns)
    assert chosen.schema.names == columns
    assert chosen.equals(record_batch([batch]).select(columns))


def test_joined_batches_keep_their_own_epoch_and_append_time() -> None:
    """Goal: what belongs to a batch stays with its rows. Method: two batches that differ in both."""
    first = consumed([Record(b"a")] * 2, epoch=1, append_time_us=10)
    second = consumed([Record(b"b")], epoch=2, append_time_us=20, base=BASE + 2)
    joined = record_batch([first, second], ["epoch", "appendTime", "timestamp", "offset"])
    assert [tuple(each.values()) for each in rows(joined)] == [
        (1, 10, 10, BASE),
        (1, 10, 10, BASE + 1),
        (2, 20, 20, BASE + 2),
    ]


@pytest.mark.parametrize("columns", [KAFKA_COLUMNS, (*KAFKA_COLUMNS, "headers"), COLUMNS, ("value", "key")])
def test_the_schema_is_the_one_that_spark_expects(columns: tuple[str, ...]) -> None:
    """Goal: Spark takes the batches. Compare with Spark's own conversion of the columns that the source names."""
    expected: StructType = spark_schema(columns)
    assert schema_of(columns).equals(to_arrow_schema(expected, timezone="UTC"))


def test_the_kafka_columns_have_the_kafka_source_s_names_and_types() -> None:
    """Goal: a Kafka job fits. Method: its documented schema, with and without headers."""
    known = (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
    )
    assert spark_schema().simpleString() == f"{known}>"
    headers = ",headers:array<struct<key:string,value:binary>>>"
    assert spark_schema(include_headers=True).simpleString() == f"{known}{headers}"
    assert arrow_schema(include_headers=True).names == spark_schema(include_headers=True).names


def test_values_are_views_into_the_batch() -> None:
    """Goal: no record is copied. The addresses of keys and values lie inside the batch's memory."""
    batch = stamped([Record(b"value" * 100, b"key", [("name", b"h")], 5)] * 50)
    inside = pa.py_buffer(batch)
    converted = record_batch([given_out(batch)])
    for name in ("key", "value"):
        for buffer in converted.column(name).buffers()[1:]:
            assert inside.address <= buffer.address < inside.address + inside.size, name


def test_what_is_the_same_in_every_row_is_not_made_for_every_batch() -> None:
    """Goal: constant columns cost nothing. Method: two batches' topic columns are cut from one array."""
    one, other = (record_batch([consumed([Record(b"v")] * 10)], ["topic", "partition"]) for _ in range(2))
    for name in ("topic", "partition"):
        assert one.column(name).buffers()[1].address == other.column(name).buffers()[1].address


def test_more_rows_than_are_kept_of_what_is_the_same() -> None:
    """Goal: a batch of any size is whole. Method: more rows than the array that is made once."""
    batch = record_batch([consumed([Record(b"")] * 70_000)], ["topic", "partition", "timestampType"])
    assert batch.num_rows == 70_000
    assert {tuple(each.values()) for each in batch.to_pylist()} == {(QUEUE, 0, APPEND_TIME)}


@pytest.mark.parametrize(("first", "end"), [(BASE - 1, BASE + 1), (BASE, BASE + 3), (BASE + 2, BASE + 1)])
def test_a_range_that_the_batch_does_not_hold_is_refused(first: int, end: int) -> None:
    """Goal: no neighbour's records, silently. Ask beyond either end, and backwards."""
    batch = replace(consumed([Record(b"a"), Record(b"b")]), first=first, next=end)
    with pytest.raises(BadBatch, match=rf"{first} up to {end} are not within a batch of {BASE} up to {BASE + 2}"):
        record_batch([batch])


def test_a_header_name_that_is_no_utf8_is_refused() -> None:
    """Goal: Spark's strings are UTF-8. A batch whose header's name is not."""
    batch = stamped([Record(b"v", headers=[("name", b"x")])])
    at = bytes(batch).index(b"name")
    batch[at : at + 4] = b"\xff\xfe\xfd\xfc"
    with pytest.raises(BadBatch, match="header's name is not UTF-8"):
        record_batch([given_out(batch)])


def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    """Goal: Spark's cost per Arrow batch is shared by many rows. 2.5 times ROWS_MIN batches of one row, a large one."""
    single = consumed([Record(b"v")])
    large = consumed([Record(b"x" * BYTES_MIN)])
    joined = list(merged([*[single] * (ROWS_MIN * 5 // 2), large]))
    assert [batch.num_rows for batch in joined] == [ROWS_MIN, ROWS_MIN, ROWS_MIN // 2 + 1]
    (alone,) = merged([large])
    assert alone.column("value").buffers()[2].address == pa.py_buffer(large.body.values.data).address
    assert list(merged([])) == []
