"""The comparison of a landed table with its source says equal only when everything is, and otherwise what differs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from demo.compare import Comparison, compare
from mirrorlog.errors import BadInput

Rows = list[tuple[int, bytes | None]]

CARRIERS = ("UA", "AA", "B6")


def source_rows(count: int = 300) -> Rows:
    return [
        (offset, json.dumps({"carrier": CARRIERS[offset % 3], "distance": offset, "note": "ä"}).encode())
        for offset in range(count)
    ]


def write_table(spark: SparkSession, path: Path, rows: Rows) -> Path:
    frame = spark.createDataFrame([("q", *row) for row in rows], "topic string, offset bigint, value binary")
    frame.coalesce(1).write.format("delta").save(str(path))
    return path


def shown(comparison: Comparison) -> str:
    text = io.StringIO()
    Console(width=100, file=text).print(comparison.table())
    return text.getvalue()


@pytest.fixture(scope="module")
def landed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of the source's rows, in another order."""
    return write_table(spark, tmp_path_factory.mktemp("compare") / "table", [*reversed(source_rows())])


@pytest.mark.long
def test_equal_tables_are_equal_line_by_line(spark: SparkSession, landed: Path) -> None:
    """Goal: equal means equal, and the numbers shown are those of the data. Compare a table with its own rows."""
    comparison = compare(spark, landed, source_rows())
    assert comparison.equal
    assert all(line.equal for line in comparison.lines)
    text = shown(comparison)
    assert "NOT" not in text.upper()
    for number in ("300", f"{sum(range(300)):,}", *CARRIERS):
        assert number in text


def changed(rows: Rows, offset: int, value: bytes | None) -> Rows:
    return [(at, value if at == offset else old) for at, old in rows]


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rows: rows[:-1], id="one less"),
        pytest.param(lambda rows: [*rows, (300, rows[7][1])], id="one more"),
        pytest.param(lambda rows: changed(changed(rows, 5, rows[8][1]), 8, rows[5][1]), id="two swapped"),
        pytest.param(lambda rows: changed(rows, 5, rows[5][1].replace(b"note", b"nota")), id="one byte"),
        pytest.param(lambda rows: changed(rows, 5, None), id="one absent"),
        pytest.param(lambda rows: [], id="all"),
    ],
)
def test_any_difference_is_seen(spark: SparkSession, landed: Path, change: Callable[[Rows], Rows]) -> None:
    """Goal: a table that is not the source is never called equal. Each kind of difference by itself."""
    comparison = compare(spark, landed, change(source_rows()))
    assert not comparison.equal
    assert not all(line.equal for line in comparison.lines)
    assert "NOT" in shown(comparison).upper()


@pytest.mark.long
def test_a_row_that_landed_twice_is_seen_when_the_count_is_right(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: the very fault that a landing must not have. One row twice in place of another of the same carrier."""
    rows = source_rows()
    table = write_table(spark, tmp_path / "table", [*rows[:-1], rows[2]])
    comparison = compare(spark, table, rows)
    assert not comparison.equal
    assert all(line.equal for line in comparison.lines if line.what == "rows" or "carrier" in line.what)


@pytest.mark.long
def test_absent_and_empty_values_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a tombstone is not an empty value. Equal with the same kinds, different with them exchanged."""
    rows: Rows = [(0, None), (1, b""), (2, b"no JSON")]
    table = write_table(spark, tmp_path / "table", rows)
    assert compare(spark, table, rows).equal
    assert not compare(spark, table, [(0, b""), (1, None), (2, b"no JSON")]).equal


def test_a_source_with_an_offset_twice_is_refused(spark: SparkSession, landed: Path) -> None:
    """Goal: a wrong source is not blamed on the table. Name an offset twice."""
    with pytest.raises(BadInput, match="twice"):
        compare(spark, landed, [(0, b"a"), (0, b"a")])
