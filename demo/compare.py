"""A landed table against the records that were published: do they say the same?

The source is hashed here, the table in Spark, and both are joined by queue offset: so a row that is missing, twice,
in another place or different by one bit shows in a number. Values that are JSON objects are counted and summed by a
field of theirs too, which a person can check by other means.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.table import Table
from rich.text import Text

from mirrorlog.errors import BadInput
from mirrorlog.spark.errors import SPARK_ERRORS, from_spark

_SHA256_BITS: Final = 256
_DECODE: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Line:
    """One number, as the source has it and as the table has it."""

    what: str
    source: int
    table: int

    @property
    def equal(self) -> bool:
        return self.source == self.table


@dataclass(frozen=True, slots=True)
class Comparison:
    """All lines; equal when each of them is."""

    lines: tuple[Line, ...]

    @property
    def equal(self) -> bool:
        return all(line.equal for line in self.lines)

    def table(self, title: str = "") -> Table:
        """Both numbers of each line and whether they are equal, for a terminal."""
        shown = Table(title=title or None, box=None, pad_edge=False, padding=(0, 2, 0, 0), title_justify="left")
        shown.add_column("")
        for column in ("source", "table"):
            shown.add_column(column, justify="right", no_wrap=True)
        shown.add_column("")
        for line in self.lines:
            # As text, never as markup: what was counted comes from the data.
            shown.add_row(Text(line.what), f"{line.source:,}", f"{line.table:,}", _verdict(line.equal))
        shown.add_row("all of it", "", "", _verdict(self.equal))
        return shown


@dataclass(frozen=True, slots=True)
class _Numbers:
    """`groups`: rows per value of the counted field; `total`: of the summed field."""

    groups: Counter[str]
    total: int

    @property
    def rows(self) -> int:
        return self.groups.total()


def compare(
    spark: SparkSession,
    table: str | PathLike[str],
    source: Iterable[tuple[int, bytes | None]],
    *,
    queue: str | None = None,
    sum_of: str = "distance",
    count_by: str = "carrier",
) -> Comparison:
    """The Delta table at path `table` against `source`, pairs of queue offset and value.

    `queue`: only its rows of the table; needed where several queues land in one table. `sum_of` names a whole-number
    field of the JSON values, `count_by` one that is counted per value. Raises BadInput when the source names a queue
    offset twice, SparkFailed when the table cannot be read.
    """
    hashes, expected = _source_numbers(source, sum_of, count_by)
    try:
        landed = spark.read.format("delta").load(fspath(table))
        if queue is not None:
            landed = landed.where(f.col("topic") == queue)
        found = _table_numbers(landed, sum_of, count_by)
        same, different = _same_rows(landed, spark.createDataFrame(hashes))
    except SPARK_ERRORS as error:
        raise from_spark(error) from error
    groups = sorted(expected.groups.keys() | found.groups.keys())
    return Comparison(
        (
            Line("rows", expected.rows, found.rows),
            Line(f"sum of {sum_of}", expected.total, found.total),
            *(Line(f"rows with {count_by} {group}", expected.groups[group], found.groups[group]) for group in groups),
            Line("offsets with the same SHA-256 of the value", hashes.num_rows, same),
            Line("offsets that differ, or are on one side only", 0, different),
        )
    )


def _source_numbers(
    source: Iterable[tuple[int, bytes | None]], sum_of: str, count_by: str
) -> tuple[pa.Table, _Numbers]:
    offsets: list[int] = []
    digests: list[str | None] = []
    groups: Counter[str] = Counter()
    total = 0
    for offset, value in source:
        offsets.append(offset)
        digests.append(None if value is None else hashlib.sha256(value).hexdigest())
        fields = _fields(value)
        groups[str(fields.get(count_by))] += 1
        total += fields.get(sum_of) or 0
    if len(set(offsets)) < len(offsets):
        raise BadInput("the source to compare with names a queue offset twice")
    columns = {"offset": pa.array(offsets, pa.int64()), "source_sha": pa.array(digests, pa.string())}
    return pa.table(columns), _Numbers(groups, total)


def _fields(value: bytes | None) -> dict[str, Any]:
    """Of a JSON object; anything else has none."""
    try:
        fields = _DECODE(value or b"null")
    except msgspec.DecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _table_numbers(landed: DataFrame, sum_of: str, count_by: str) -> _Numbers:
    text = f.col("value").cast("string")
    fields = landed.select(
        f.coalesce(f.get_json_object(text, f"$.{count_by}"), f.lit("None")).alias("named"),
        f.get_json_object(text, f"$.{sum_of}").cast("bigint").alias("amount"),
    )
    rows = fields.groupBy("named").agg(f.count("*").alias("rows"), f.sum("amount").alias("total")).collect()
    groups = Counter({row["named"]: row["rows"] for row in rows})
    return _Numbers(groups, sum(row["total"] or 0 for row in rows))


def _same_rows(landed: DataFrame, source: DataFrame) -> tuple[int, int]:
    """How many offsets have the same value on both sides, exactly once in the table, and how many have not."""
    digest = f.sha2("value", _SHA256_BITS)
    rows = landed.select("offset", digest.alias("sha")).groupBy("offset")
    # With one row the least digest is its digest; with several the offset counts as different anyway.
    table = rows.agg(f.count("*").alias("rows"), f.min("sha").alias("sha"))
    joined = table.join(source.withColumn("known", f.lit(True)), "offset", "full_outer")
    same = (
        (f.coalesce("rows", f.lit(0)) == 1)
        & f.coalesce("known", f.lit(False))
        & f.col("sha").eqNullSafe(f.col("source_sha"))
    )
    counted = joined.agg(f.count_if(same).alias("same"), f.count_if(~same).alias("different")).collect()[0]
    return counted["same"], counted["different"]


def _verdict(equal: bool) -> Text:
    return Text("equal" if equal else "NOT EQUAL", style="green" if equal else "bold red")
