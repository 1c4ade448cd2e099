"""Inspection: rows of a log and of a table joined by queue offset, and what differs as ranges.

For few rows: of buckets that are known to differ. Offsets that follow one another and differ alike become one range in
the tasks already, so that a million missing rows are one line on their way to the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from mirrorlog.spark.checks.differences import Difference, Kind
from mirrorlog.spark.checks.fingerprints import column_hash


def inspect(log: DataFrame, table: DataFrame, columns: Sequence[str], number: Column, limit: int) -> list[Difference]:
    """The first `limit` ranges in which they differ. `number`: of the bucket of a row; no range is wider than one."""
    mine = _by_offset(log, columns, "log")
    its = _by_offset(table, columns, "table")
    both = mine.join(its, "offset", "full_outer")
    rows = f.coalesce(f.col("table_rows"), f.lit(0))
    kind = (
        f.when(f.col("log_rows").isNull(), f.lit(Kind.MISSING_IN_LOG.name))
        .when(rows == 0, f.lit(Kind.MISSING_IN_TABLE.name))
        .when(rows > 1, f.lit(Kind.TWICE.name))
        .when(_any_differs(columns), f.lit(Kind.CONTENT.name))
    )
    differing = f.when(f.col("log_rows").isNull() | (rows == 0), f.lit("")).otherwise(_names(columns))
    odd = both.select(
        "offset", number.alias("number"), kind.alias("kind"), differing.alias("columns"), rows.alias("rows")
    )
    return [_difference(row) for row in _ranges(odd.where(f.col("kind").isNotNull()), limit)]


def _by_offset(rows: DataFrame, columns: Sequence[str], side: str) -> DataFrame:
    """A row per offset: how many there are, and of each column the smallest and the largest hash."""
    hashed = rows.select("offset", *(column_hash(name).alias(f"hash_{name}") for name in columns))
    ends = [
        end(f"hash_{name}").alias(f"{side}_{word}_{name}")
        for name in columns
        for word, end in (("min", f.min), ("max", f.max))
    ]
    return hashed.groupBy("offset").agg(f.count("*").alias(f"{side}_rows"), *ends)


def _differs(name: str) -> Column:
    """Whether any row of the table has another content there than the log's."""
    log, low, high = (f.col(each) for each in (f"log_min_{name}", f"table_min_{name}", f"table_max_{name}"))
    return ~(low.eqNullSafe(log) & high.eqNullSafe(log))


def _any_differs(columns: Sequence[str]) -> Column:
    return reduce(Column.__or__, map(_differs, columns), f.lit(False))


def _names(columns: Sequence[str]) -> Column:
    """Those that differ, commas between."""
    return f.concat_ws(",", *(f.when(_differs(name), f.lit(name)) for name in columns))


def _ranges(odd: DataFrame, limit: int) -> list[dict[str, object]]:
    alike = ("number", "kind", "columns")
    place = f.row_number().over(Window.partitionBy(*alike).orderBy("offset"))
    runs = odd.withColumn("run", f.col("offset") - place).groupBy(*alike, "run")
    ranges = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.sum("rows").alias("rows"))
    found: list[dict[str, object]] = ranges.orderBy("first").limit(limit).toArrow().to_pylist()
    return found


def _difference(row: dict[str, object]) -> Difference:
    first, last, rows = (int(str(row[name])) for name in ("first", "last", "rows"))
    columns = tuple(name for name in str(row["columns"]).split(",") if name)
    return Difference(Kind[str(row["kind"])], first, last + 1, rows, columns)
