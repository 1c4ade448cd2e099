"""The jobs by name: from a landed table to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput
from mirrorlog.spark.analysis.lag import lag
from mirrorlog.spark.analysis.landings import landings, steps, with_landed
from mirrorlog.spark.analysis.latency import latency
from mirrorlog.spark.analysis.redeliveries import redeliveries
from mirrorlog.spark.analysis.report import Report
from mirrorlog.spark.analysis.rows import EVERY, records
from mirrorlog.spark.analysis.throughput import throughput
from mirrorlog.spark.checks.landed_table import LandedTable, Shape
from mirrorlog.spark.errors import SPARK_ERRORS, from_spark


@dataclass(frozen=True, slots=True)
class Asked:
    """`queues`: none for all of the table. `every`: as Spark writes intervals. `by_key`: see `redeliveries`."""

    queues: tuple[str, ...] = ()
    every: str = EVERY
    by_key: bool = False


def report(spark: SparkSession, table: LandedTable, job: str, asked: Asked) -> Report:
    """Run one job of JOBS. Raises BadInput for a table that lacks what it needs or a bad interval, else SparkFailed."""
    try:
        return JOBS[job](spark, table, asked)
    except SPARK_ERRORS as error:
        if "CalendarInterval" in str(error) or "INTERVAL" in str(error):
            raise BadInput(f"{asked.every!r} is no interval; give one like '1 minute' or '10 seconds'") from error
        raise from_spark(error) from error


def _throughput(spark: SparkSession, table: LandedTable, asked: Asked) -> Report:
    rows = records(table, asked.queues)
    notes = ["the first and the last stretch of time may be cut: their rates are too low"]
    if table.shape is Shape.DECODED:
        notes.append("the table holds decoded values, whose bytes in the log are not known: bytes are of keys alone")
    return _made("throughput", "Throughput", throughput(rows, asked.every), asked, notes)


def _lag(spark: SparkSession, table: LandedTable, asked: Asked) -> Report:
    rows = _landed(spark, table, asked)
    notes = _timing_notes(rows)
    return _made("lag", "Lag: event to log, log to table", lag(rows, asked.every), asked, notes)


def _latency(spark: SparkSession, table: LandedTable, asked: Asked) -> Report:
    rows = _landed(spark, table, asked)
    found = _made("latency", "End-to-end latency", latency(rows, asked.every), asked, _timing_notes(rows))
    below = sum(row["below_zero"] for row in found.rows.to_pylist() if row["time"] is None)
    if not below:
        return found
    note = f"{below:,} latencies are below zero: the clocks of producers and nodes disagree"
    return Report(found.job, found.title, found.rows, (*found.notes, note))


def _redeliveries(spark: SparkSession, table: LandedTable, asked: Asked) -> Report:
    rows = records(table, asked.queues)
    missing = {"headers", "key"} - set(rows.columns)
    if missing:
        raise BadInput(f"{table.path} has no column for {', '.join(sorted(missing))}")
    notes = [
        "the log keeps no redelivery data of its own yet: counted are headers in which producers say so, and "
        "identities in headers that are there twice" + (", or keys" if asked.by_key else "")
    ]
    found = redeliveries(rows, asked.every, by_key=asked.by_key)
    return _made("redeliveries", "Redeliveries and duplicates", found, asked, notes)


JOBS: Final[Mapping[str, Callable[[SparkSession, LandedTable, Asked], Report]]] = {
    "throughput": _throughput,
    "lag": _lag,
    "redeliveries": _redeliveries,
    "latency": _latency,
}


def _landed(spark: SparkSession, table: LandedTable, asked: Asked) -> DataFrame:
    return with_landed(records(table, asked.queues), landings(steps(spark, table)))


def _timing_notes(rows: DataFrame) -> list[str]:
    counts = rows.agg(
        f.count("*").alias("rows"),
        f.count_if(~f.col("commit")).alias("by_file"),
        f.count_if(f.col("event_time").isNull()).alias("without"),
    ).collect()[0]
    notes = []
    if counts["by_file"]:
        notes.append(
            f"of {counts['by_file']:,} of {counts['rows']:,} records the commit is not known any more: the time of "
            "their file stands in, which a compaction makes later"
        )
    if counts["without"]:
        notes.append(f"{counts['without']:,} of {counts['rows']:,} records have no event time")
    return notes


def _made(job: str, title: str, found: DataFrame, asked: Asked, notes: Sequence[str]) -> Report:
    return Report(job, f"{title}, by {asked.every.removeprefix('1 ')}", found.toArrow(), tuple(notes))
