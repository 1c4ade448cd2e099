"""A consumed batch as Arrow: what its records say, over the memory that it came in."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.client.connection.buffers import BufferPool
from mirrorlog.client.consumer.arrow import SCHEMA
from mirrorlog.client.consumer.records import ConsumedBatch, checked_batches
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import log_seed, stamp
from mirrorlog.errors import BadBatch

LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
BASE = 1_000
APPEND_TIME_US = 1_700_000_000_123_456

absent_or_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), absent_or_bytes), max_size=3
)
timestamps = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)
records = st.lists(st.builds(Record, absent_or_bytes, absent_or_bytes, headers, timestamps), min_size=1, max_size=20)


def stored(given_records: list[Record]) -> bytearray:
    batch = encode_batch(given_records, queue_id=1)
    seed = log_seed(UUID(LOG_ID))
    stamp(batch, log_offset=0, base_queue_offset=BASE, append_time_us=APPEND_TIME_US, epoch=2, flags=0, seed=seed)
    return batch


def consumed(content: bytes | memoryview) -> ConsumedBatch:
    (batch,) = checked_batches(content, 1, queue="q", log_id=LOG_ID)
    return batch


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    # Times as integers: not every int64 of µs is a datetime.
    for name in ("timestamp", "append_time"):
        index = batch.schema.get_field_index(name)
        batch = batch.set_column(index, name, batch.column(name).cast(pa.int64()))
    return list(batch.to_pylist())


@settings(deadline=None)  # the first call loads pyarrow's parts
@given(records, st.data())
def test_any_stretch_of_any_batch_has_its_records(given_records: list[Record], data: st.DataObject) -> None:
    """Arrow says what the records say; by random batches, columns there or absent, cut anywhere."""
    first = data.draw(st.integers(0, len(given_records)), label="first")
    last = data.draw(st.integers(first, len(given_records)), label="last")
    batch = consumed(bytes(stored(given_records))).after(BASE + first).before(BASE + last).to_arrow()
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert rows(batch) == [
        {
            "queue_offset": BASE + row,
            "value": record.value,
            "key": record.key,
            "headers": [{"name": name, "value": value} for name, value in record.headers],
            "timestamp": record.timestamp_us,
            "append_time": APPEND_TIME_US,
        }
        for row, record in list(enumerate(given_records))[first:last]
    ]


def test_values_are_views_that_keep_the_memory_they_came_in() -> None:
    """No record is copied, and no buffer is used again under an array; by the addresses, and by what the pool gives."""
    content = stored([Record(b"value" * 1000, b"key", [("name", b"h")], 5)] * 50)
    pool = BufferPool()
    room = pool.take(len(content))
    room[:] = content
    inside = pa.py_buffer(room)
    address, size = inside.address, inside.size
    batch = consumed(room).to_arrow()
    del room, inside
    columns = [batch.column("value"), batch.column("key"), batch.column("timestamp")]
    columns += [batch.column("headers").flatten().field(0), batch.column("headers").flatten().field(1)]
    for column in columns:
        for buffer in column.buffers():
            assert buffer is None or address <= buffer.address < address + size
    del buffer, column, columns
    value = batch.column("value")[49]
    del batch
    pool.take(len(content))[:] = bytes(len(content))
    assert value.as_py() == b"value" * 1000


def test_a_header_name_that_is_no_utf8_is_refused() -> None:
    """Arrow's strings are UTF-8; by a name that is not, under checksums that are right."""
    good = stored([Record(b"v", headers=[("name", b"x")])])
    batch = consumed(bytes(good))
    damaged = bytearray(good)
    at = good.index(b"name")
    damaged[at : at + 4] = b"\xff\xfe\xfd\xfc"
    with pytest.raises(BadBatch, match="header's name is not UTF-8"):
        ConsumedBatch("q", LOG_ID, batch.header, parse_batch_body(damaged), batch.raw, BASE, BASE + 1).to_arrow()


def test_reading_does_not_need_pyarrow() -> None:
    """It is loaded by `to_arrow` alone; by the modules of a process that imported the client."""
    code = "import sys, mirrorlog.client.sync.client; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
