"""A batch becomes Arrow columns: what its records say, with the schema that Spark wants. No JVM."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mirrorlog.commitlog.body import Record, encode_batch, parse_batch_body
from mirrorlog.commitlog.format import read_header, stamp
from mirrorlog.errors import BadBatch
from mirrorlog.spark.arrow import APPEND_TIME, BYTES_MIN, CREATE_TIME, ROWS_MIN, arrow_schema, merged, record_batch

BASE = 1_000
APPEND_TIME_US = 1_700_000_000_123_456
QUEUE = "flüge"

HEADER_TYPE = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KAFKA_COLUMNS = [
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
    ("headers", ArrayType(HEADER_TYPE)),
]

absent_or_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=8), absent_or_bytes), max_size=3)
# Within what pyarrow can turn into datetimes; the columns themselves hold any int64.
timestamps = st.none() | st.integers(-(2**50), 2**50)
records = st.lists(st.builds(Record, absent_or_bytes, absent_or_bytes, headers, timestamps), min_size=1, max_size=20)


def stamped(given_records: list[Record]) -> bytearray:
    batch = encode_batch(given_records, queue_id=7)
    stamp(batch, log_offset=4096, base_queue_offset=BASE, append_time_us=APPEND_TIME_US, epoch=3, flags=0, seed=1)
    return batch


def converted(batch: bytearray, first: int, end: int, *, include_headers: bool = True) -> pa.RecordBatch:
    return record_batch(
        QUEUE, read_header(batch), parse_batch_body(batch), first=first, following=end, include_headers=include_headers
    )


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
    }


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    # As integers: datetimes would hide a wrong unit behind their own arithmetic.
    numbers = batch.column("timestamp").cast(pa.int64())
    index = batch.schema.get_field_index("timestamp")
    return list(batch.set_column(index, "timestamp", numbers).to_pylist())


@settings(deadline=None)  # the first call loads pyarrow's parts
@given(records, st.data())
def test_any_slice_of_any_batch_has_its_records(given_records: list[Record], data: st.DataObject) -> None:
    """Goal: Arrow says what the records say. Random batches, all columns present or absent, a random range of each."""
    first = data.draw(st.integers(0, len(given_records)), label="first")
    end = data.draw(st.integers(first, len(given_records)), label="end")
    batch = converted(stamped(given_records), BASE + first, BASE + end)
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(include_headers=True), check_metadata=True)
    assert rows(batch) == [row(given_records[index], BASE + index) for index in range(first, end)]


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_schema_is_the_one_that_spark_expects(include_headers: bool) -> None:
    """Goal: Spark takes the batches. Compare with Spark's own conversion of the Kafka source's columns."""
    columns = StructType([StructField(name, kind) for name, kind in KAFKA_COLUMNS[: 8 if include_headers else 7]])
    assert arrow_schema(include_headers=include_headers).equals(to_arrow_schema(columns, timezone="UTC"))


def test_headers_are_left_out_unless_asked_for() -> None:
    """Goal: the Kafka source's default columns. Convert a record with headers without asking for them."""
    batch = converted(stamped([Record(b"v", headers=[("n", b"x")])]), BASE, BASE + 1, include_headers=False)
    assert batch.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_values_are_views_into_the_batch() -> None:
    """Goal: no record is copied. The addresses of keys, values and times lie inside the batch's memory."""
    batch = stamped([Record(b"value" * 100, b"key", [("name", b"h")], 5)] * 50)
    inside = pa.py_buffer(batch)
    converted_batch = converted(batch, BASE, BASE + 50)
    for name in ("key", "value", "timestamp"):
        for buffer in converted_batch.column(name).buffers()[1:]:
            assert inside.address <= buffer.address < inside.address + inside.size, name


@pytest.mark.parametrize(("first", "end"), [(BASE - 1, BASE + 1), (BASE, BASE + 3), (BASE + 2, BASE + 1)])
def test_a_range_that_the_batch_does_not_hold_is_refused(first: int, end: int) -> None:
    """Goal: no neighbour's records, silently. Ask beyond either end, and backwards."""
    with pytest.raises(BadBatch, match=rf"{first} up to {end} are not within a batch of {BASE} up to {BASE + 2}"):
        converted(stamped([Record(b"a"), Record(b"b")]), first, end)


def test_a_header_name_that_is_no_utf8_is_refused() -> None:
    """Goal: Spark's strings are UTF-8. A batch whose header's name is not."""
    batch = stamped([Record(b"v", headers=[("name", b"x")])])
    at = bytes(batch).index(b"name")
    batch[at : at + 4] = b"\xff\xfe\xfd\xfc"
    with pytest.raises(BadBatch, match="header's name is not UTF-8"):
        converted(batch, BASE, BASE + 1)


def test_small_batches_are_joined_and_large_ones_are_not_copied() -> None:
    """Goal: Spark's cost per Arrow batch is shared by many rows. 2.5 times ROWS_MIN batches of one row, a large one."""
    single = converted(stamped([Record(b"v")]), BASE, BASE + 1)
    large = converted(stamped([Record(b"x" * BYTES_MIN)]), BASE, BASE + 1)
    joined = list(merged([*[single] * (ROWS_MIN * 5 // 2), large]))
    assert [batch.num_rows for batch in joined] == [ROWS_MIN, ROWS_MIN, ROWS_MIN // 2 + 1]
    assert next(merged([large])) is large
    assert list(merged([])) == []
