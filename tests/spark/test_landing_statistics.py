"""A file's bounds are never too narrow, and are left out where no reader could hold them."""

from __future__ import annotations

import json
import math
import random
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from mirrorlog.spark.landing.write.statistics import TEXT_MAX, FileStatistics

TIMESTAMP = pa.timestamp("us", "UTC")
DECIMALS = [Decimal("-0.01"), Decimal("12345678901234567890.12")]


def stats(values: list[Any], kind: pa.DataType, groups: int = 1) -> dict[str, Any]:
    table = pa.table({"c": pa.array(values, kind)})
    found = FileStatistics(table.schema)
    step = max(1, -(-len(values) // groups))
    for start in range(0, len(values), step):
        found.add(table.slice(start, step))
    return dict(json.loads(found.json(), parse_float=Decimal))


def bounds(values: list[Any], kind: pa.DataType, groups: int = 1) -> tuple[Any, Any]:
    found = stats(values, kind, groups)
    return found["minValues"].get("c"), found["maxValues"].get("c")


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("values", "kind", "least", "greatest"),
    [
        ([5, None, -3, 9], pa.int64(), -3, 9),
        ([2**63 - 1, -(2**63)], pa.int64(), -(2**63), 2**63 - 1),
        ([1.5, -2.25], pa.float64(), Decimal("-2.25"), Decimal("1.5")),
        ([1.0, math.nan, 2.0], pa.float64(), None, None),
        ([math.inf, 1.0], pa.float64(), Decimal("1.0"), None),
        ([-math.inf, 1.0], pa.float64(), None, Decimal("1.0")),
        (DECIMALS[::-1], pa.decimal128(38, 2), *DECIMALS),
        (["b", "ä", "a"], pa.string(), "a", "ä"),
        ([date(2026, 1, 2), date(1969, 12, 31)], pa.date32(), "1969-12-31", "2026-01-02"),
        ([1_001, 2_999], TIMESTAMP, "1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.003Z"),
        ([-1, -1_000], TIMESTAMP, "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"),
        ([253_402_300_799_999_999, 0], TIMESTAMP, "1970-01-01T00:00:00.000Z", None),
        ([-(2**62)], TIMESTAMP, None, None),
        ([datetime(2026, 1, 1, 1, 2, 3)], pa.timestamp("us"), *["2026-01-01T01:02:03.000"] * 2),
        ([None, None], pa.int64(), None, None),
        ([True, False], pa.bool_(), None, None),
        ([b"a", b"b"], pa.binary(), None, None),
    ],
)  # fmt: skip
def test_bounds_are_what_delta_takes(
    values: list[Any], kind: pa.DataType, least: Any, greatest: Any, groups: int
) -> None:
    assert bounds(values, kind, groups) == (least, greatest)


def test_a_year_before_1000_has_four_digits() -> None:
    assert bounds([-62_135_596_800_000_000], TIMESTAMP)[0] == "0001-01-01T00:00:00.000Z"


def test_rows_and_nulls_are_counted() -> None:
    found = stats([1, None, None], pa.int64(), groups=3)
    assert (found["numRecords"], found["nullCount"]) == (3, {"c": 2})
    assert stats([[1], None], pa.list_(pa.int64()))["nullCount"] == {"c": 1}


def test_a_long_text_is_cut_so_that_it_still_bounds() -> None:
    """Goal: least <= every value <= greatest, in the order of UTF-8. Method: random texts with
    first and last characters of all planes, seed printed."""
    seed = 11
    print(f"seed {seed}")
    chosen = random.Random(seed)
    alphabet = ["a", "z", "\x7f", "ä", "\uffff", "\U00010000", "\U0010ffff"]
    for _ in range(300):
        values = ["".join(chosen.choices(alphabet, k=chosen.choice([0, 31, 32, 33, 60]))) for _ in range(4)]
        least, greatest = bounds(values, pa.string())
        assert len(least) <= TEXT_MAX
        for value in values:
            assert least.encode() <= value.encode() <= greatest.encode()
    assert bounds(["x" * 100], pa.string()) == ("x" * 32, "x" * 32 + "\U0010ffff")


def test_only_the_first_columns_have_bounds_and_those_that_always_do() -> None:
    table = pa.table({f"c{number}": pa.array([number]) for number in range(40)})
    found = FileStatistics(table.schema, always=["c39", "elsewhere"])
    found.add(table)
    assert sorted(json.loads(found.json())["minValues"]) == sorted([*(f"c{number}" for number in range(32)), "c39"])


def test_a_struct_does_not_cost_another_reader_all_statistics_of_a_file(tmp_path: Path) -> None:
    """Goal: where Delta has an object there is no number. A table with a struct, an array and a map, made of one file;
    delta-rs must see the rows, nulls and bounds of its other columns."""
    kinds = {"struct<x:bigint>": pa.struct([("x", pa.int64())]), "array<bigint>": pa.list_(pa.int64())}
    rows = pa.table(
        {
            "n": pa.array([1, None], pa.int64()),
            "s": pa.array([{"x": 1}, None], kinds["struct<x:bigint>"]),
            "a": pa.array([[1], None], kinds["array<bigint>"]),
        }
    )
    found = FileStatistics(rows.schema)
    found.add(rows)
    DeltaTable.create(tmp_path, rows.schema)
    log = tmp_path / "_delta_log" / f"{1:020d}.json"
    add = {"path": "f.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    log.write_text(json.dumps({"add": {**add, "stats": found.json()}}))
    (seen,) = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert (seen["num_records"], seen["null_count.n"], seen["min.n"], seen["max.n"]) == (2, 1, 1, 1)
