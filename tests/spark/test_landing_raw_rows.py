"""Rows that a raw landing writes are those that every other reader of the same batches gets."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.commitlog.format.body import Record
from mirrorlog.spark.landing.tasks import RAW_COLUMNS, raw_tables
from mirrorlog.spark.reading.arrow import BYTES_MIN, ROWS_MIN, merged
from tests.spark.batches import BASE, consumed, record_lists

ROWS_PART = ROWS_MIN // 4


@settings(deadline=None)
@given(st.lists(record_lists(), max_size=5))
def test_they_are_the_rows_that_the_source_gives(parts: list[list[Record]]) -> None:
    """Goal: no other table because of the way that the bytes took. Any batches, whole."""
    bases = [BASE + sum(map(len, parts[:number])) for number in range(len(parts))]
    batches = [consumed(part, base=base) for part, base in zip(parts, bases, strict=True)]
    found, expected = list(raw_tables(batches)), list(merged(batches, RAW_COLUMNS))
    assert [table.combine_chunks().to_batches() for table in found] == [[batch] for batch in expected]


def test_a_batch_that_is_cut_gives_the_readers_rows_alone() -> None:
    batches = [
        consumed([Record(b"%d" % number) for number in range(10)], BASE + 7, BASE + 9),
        consumed([Record(b"none of them")], BASE + 10, BASE + 10, base=BASE + 10),
    ]
    (table,) = raw_tables(batches)
    assert table["value"].to_pylist() == [b"7", b"8"]
    assert table["offset"].to_pylist() == [BASE + 7, BASE + 8]
    assert list(raw_tables(batches[1:])) == []


def addresses(table: pa.Table) -> list[int]:
    return [chunk.buffers()[2].address for chunk in table["value"].chunks]


def test_values_stay_where_they_were_received() -> None:
    batches = [consumed([Record(b"x" * 100)] * ROWS_PART, base=BASE + ROWS_PART * number) for number in range(4)]
    (table,) = raw_tables(batches)
    assert table.schema.names == list(RAW_COLUMNS)
    assert addresses(table) == [pa.py_buffer(each.body.values.data).address for each in batches if each.body.values]


@pytest.mark.parametrize(("rows", "cut"), [(10, 0), (ROWS_MIN, 1)], ids=["few", "cut"])
def test_a_few_rows_do_not_keep_what_they_were_received_in(rows: int, cut: int) -> None:
    """Goal: memory is bounded by the rows, not by the answers that they came in: values of a small rest, or of
    a batch that is cut, stand elsewhere."""
    batch = consumed([Record(b"x")] * (rows + cut), BASE, BASE + rows)
    (table,) = raw_tables([batch])
    assert batch.body.values is not None
    assert addresses(table) != [pa.py_buffer(batch.body.values.data).address]
    assert table["value"].to_pylist() == [b"x"] * rows


def test_tables_are_bounded_by_rows_and_by_bytes() -> None:
    many = [consumed([Record(b"x")] * (ROWS_MIN // 2), base=BASE + number * (ROWS_MIN // 2)) for number in range(5)]
    assert [table.num_rows for table in raw_tables(many)] == [ROWS_MIN, ROWS_MIN, ROWS_MIN // 2]
    large = [consumed([Record(b"x" * BYTES_MIN)], base=BASE + number) for number in range(2)]
    assert [table.num_rows for table in raw_tables(large)] == [1, 1]
