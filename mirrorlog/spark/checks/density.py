"""Density: whether a table by itself has every queue offset of a range once.

For what the log has no more. Rows become a count per offset and a line per bucket (the smallest, the largest, how many,
how many more than once); holes between buckets are seen in the lines, and only buckets with a hole or a row too many
are looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from mirrorlog.spark.checks.differences import Difference, Kind, joined
from mirrorlog.spark.checks.fingerprints import bucket_number


@dataclass(frozen=True, slots=True)
class Density:
    """`rows`: of the table in the range; `more`: there are more differences than these."""

    rows: int
    differences: tuple[Difference, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Bucket `number`: queue offsets `first` up to `last` (inclusive), so many `distinct` ones, on so many `rows`."""

    number: int
    first: int
    last: int
    distinct: int
    rows: int

    @property
    def is_dense(self) -> bool:
        return self.distinct == self.rows == self.last + 1 - self.first


def density(rows: DataFrame, first: int, following: int, bucket_offsets: int, ranges_max: int) -> Density:
    """Of `rows` (column `offset`), which should have `first` up to `following` (exclusive) once each."""
    counted = rows.groupBy(bucket_number(bucket_offsets).alias("number"), "offset").agg(f.count("*").alias("rows"))
    lines = counted.groupBy("number").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.count("*").alias("distinct"),
        f.sum("rows").alias("rows"),
    )
    found = sorted((Line(**line) for line in lines.toArrow().to_pylist()), key=lambda line: line.first)
    suspects = [line.number for line in found if not line.is_dense]
    inside = list(_inside(counted, suspects[:ranges_max], ranges_max + 1)) if suspects else []
    differences = joined([*holes_between(found, first, following), *inside])
    more = len(suspects) > ranges_max or len(inside) > ranges_max
    return Density(sum(line.rows for line in found), tuple(differences), more)


def holes_between(lines: Sequence[Line], first: int, following: int) -> Iterator[Difference]:
    """What lies before, between and behind the buckets' rows. `lines` in order."""
    at = first
    for line in lines:
        if line.first > at:
            yield Difference(Kind.MISSING_IN_TABLE, at, line.first, 0)
        at = line.last + 1
    if at < following:
        yield Difference(Kind.MISSING_IN_TABLE, at, following, 0)


def _inside(counted: DataFrame, numbers: Sequence[int], limit: int) -> Iterator[Difference]:
    """Holes and repetitions within these buckets, the first ones."""
    suspects = counted.where(f.col("number").isin(list(numbers)))
    before = f.lag("offset").over(Window.partitionBy("number").orderBy("offset"))
    stepped = suspects.withColumn("before", before)
    odd = stepped.where((f.col("rows") > 1) | (f.col("offset") - f.col("before") > 1))
    for row in odd.orderBy("offset").limit(limit).toArrow().to_pylist():
        if row["before"] is not None and row["offset"] - row["before"] > 1:
            yield Difference(Kind.MISSING_IN_TABLE, row["before"] + 1, row["offset"], 0)
        if row["rows"] > 1:
            yield Difference(Kind.TWICE, row["offset"], row["offset"] + 1, row["rows"])
