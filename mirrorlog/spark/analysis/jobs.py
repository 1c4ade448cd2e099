"""The jobs by name: from a landed table to a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput
from mirrorlog.spark.analysis.landings import landings, steps, with_landed
from mirrorlog.spark.analysis.report import AnalysisReport
from mirrorlog.spark.checks.landed_table import LandedTable, Shape
from mirrorlog.spark.errors import SPARK_ERRORS, from_spark
from mirrorlog.spark.reading.arrow import CREATE_TIME

EVERY: Final = "1 minute"
"""How long the stretches of time are that results are told by."""

ACCURACY: Final = 100_000
"""Of percentiles: the rank is off by one in so many at most, so those of fewer rows are exact."""


def records(table: LandedTable, queues: Sequence[str] = ()) -> DataFrame:
    """A row per record of these queues, of all when none is named.

    Columns: queue, offset, size (bytes of key and value; of a decoded table of the key alone), key and headers as far
    as the table has them, event_time (null where the record has none), append_time, file_name, file_time. Raises
    BadInput for a table without append times.
    """
    if "appendTime" not in table.columns:
        raise BadInput(f"{table.path} has no column appendTime: it was landed by a version that did not write it")
    rows = table.rows if not queues else table.rows.where(f.col("queue").isin(list(queues)))
    own = f.col("timestampType") == CREATE_TIME
    return rows.select(
        "queue",
        "offset",
        _size(table).alias("size"),
        *(name for name in ("key", "headers") if name in table.columns),
        f.when(own, f.col("timestamp")).alias("event_time"),
        f.col("appendTime").alias("append_time"),
        "file_name",
        "file_time",
    )


def stretch(time: str, every: str) -> Column:
    """The begin of the stretch of time in which `time` lies, as `time`."""
    return f.window(time, every)["start"].alias("time")


def seconds_between(start: str, end: str) -> Column:
    """Null when one of them is."""
    return (f.unix_micros(end) - f.unix_micros(start)) / f.lit(1e6)


def _size(table: LandedTable) -> Column:
    lengths = [f.coalesce(f.octet_length(name), f.lit(0)) for name in ("key", "value") if name in table.columns]
    return sum(lengths, start=f.lit(0)).cast("bigint")


# Throughput: how many records and bytes were appended to each queue, by append time.


def throughput(rows: DataFrame, every: str = EVERY) -> DataFrame:
    """A row per queue and stretch of time with records: time (its start), queue, records, bytes, records_per_s and
    bytes_per_s (over the whole stretch, so the first and the last one may be too low). In order of time."""
    window = f.window("append_time", every)
    seconds = f.unix_seconds("window.end") - f.unix_seconds("window.start")
    found = rows.groupBy(window.alias("window"), "queue").agg(
        f.count("*").alias("records"), f.sum("size").alias("bytes")
    )
    return found.select(
        f.col("window.start").alias("time"),
        "queue",
        "records",
        "bytes",
        (f.col("records") / seconds).alias("records_per_s"),
        (f.col("bytes") / seconds).alias("bytes_per_s"),
    ).orderBy("time", "queue")


# Redeliveries: records that say of themselves that they were delivered before, and records that came twice.
#
# The log has no redelivery data of its own yet: it does not count deliveries to consumers, so nothing here is about
# them. What can be seen is what producers wrote into headers when they sent a message on, and an identity that is
# there twice. Header names are compared without regard to case:
#
#     x-death                                        present: dead-lettered before, as RabbitMQ writes it
#     redelivered, x-redelivered                     true, 1 or yes
#     x-delivery-count, x-retry-count, x-retries     a number from 1: earlier deliveries
#     attempts, x-attempts, x-attempt, x-delivery-attempt    a number from 2: this one counts
#     idempotency-key, x-idempotency-key, message-id, x-message-id, x-deduplication-id    an identity
#
# Two records of a queue with the same identity are one and its duplicate. A key is none, for many records may have it;
# who knows better asks for keys as identities.


DEATHS: Final = ("x-death",)
FLAGS: Final = ("redelivered", "x-redelivered")
EARLIER: Final = ("x-delivery-count", "x-retry-count", "x-retries")
ATTEMPTS: Final = ("attempts", "x-attempts", "x-attempt", "x-delivery-attempt")
IDENTITIES: Final = ("idempotency-key", "x-idempotency-key", "message-id", "x-message-id", "x-deduplication-id")
_TRUE: Final = ("true", "1", "yes")


def redeliveries(rows: DataFrame, every: str = EVERY, *, by_key: bool = False) -> DataFrame:
    """A row per queue and stretch of append time: time, queue, records, redelivered, duplicates (of a record with a
    smaller queue offset), and their shares of all, 0 to 1. `by_key`: a record without an identity has its key for one.
    In order of time."""
    identity = f.coalesce(_first_value(IDENTITIES), f.col("key") if by_key else f.lit(None))
    marked = rows.select(
        "queue",
        "offset",
        stretch("append_time", every),
        _redelivered().alias("redelivered"),
        identity.alias("identity"),
    )
    before = f.row_number().over(Window.partitionBy("queue", "identity").orderBy("offset"))
    identified = marked.where(f.col("identity").isNotNull()).withColumn("duplicate", before > 1)
    plain = marked.where(f.col("identity").isNull()).withColumn("duplicate", f.lit(False))
    found = identified.unionByName(plain).groupBy("time", "queue")
    counts = found.agg(
        f.count("*").alias("records"),
        f.count_if("redelivered").alias("redelivered"),
        f.count_if("duplicate").alias("duplicates"),
    )
    shares = [(f.col(name) / f.col("records")).alias(f"{name}_share") for name in ("redelivered", "duplicates")]
    return counts.select("*", *shares).orderBy("time", "queue")


def _redelivered() -> Column:
    said = [
        _any(DEATHS, lambda value: f.lit(True)),
        _any(FLAGS, lambda value: f.lower(f.trim(value)).isin(*_TRUE)),
        _any(EARLIER, lambda value: _number(value) >= 1),
        _any(ATTEMPTS, lambda value: _number(value) >= 2),
    ]
    return f.coalesce(said[0] | said[1] | said[2] | said[3], f.lit(False))


def _any(names: Sequence[str], holds: Callable[[Column], Column]) -> Column:
    """Whether any header of these names has a value, as text, for which it holds. No header is False."""

    def one(header: Column) -> Column:
        value = header["value"].cast("string")
        return f.lower(header["key"]).isin(*names) & f.coalesce(holds(value), f.lit(False))

    return f.coalesce(f.exists("headers", one), f.lit(False))


def _first_value(names: Sequence[str]) -> Column:
    """The value of the first header of these names that has one; null without."""
    named = f.filter("headers", lambda header: f.lower(header["key"]).isin(*names) & header["value"].isNotNull())
    return f.try_element_at(named, f.lit(1))["value"]


def _number(value: Column) -> Column:
    """Null for what is none."""
    return f.trim(value).try_cast("double")


# End-to-end latency: percentiles from event time to append time, and from event time to the commit in the table.


PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
PATHS: Final = {"event to append": "append_time", "event to landed": "landed_at"}


def latency(rows: DataFrame, every: str = EVERY) -> DataFrame:
    """Of rows with landed_at (`landings.with_landed`) and an event time: time (of append; null: overall), queue, path,
    records, p50, p90, p99, p99_9, max in seconds, and below_zero: records whose event is later than what followed it,
    which says that two clocks disagree. They count in the percentiles as they are."""
    timed = rows.where(f.col("event_time").isNotNull())
    paths = [
        f.struct(f.lit(name).alias("path"), seconds_between("event_time", end).alias("seconds"))
        for name, end in PATHS.items()
    ]
    long = timed.select(stretch("append_time", every), "queue", f.explode(f.array(*paths)).alias("each"))
    long = long.select("time", "queue", "each.path", "each.seconds")
    by_time = long.groupBy("time", "queue", "path").agg(*_measures())
    overall = long.groupBy("queue", "path").agg(*_measures()).withColumn("time", f.lit(None).cast("timestamp"))
    ranks = [f.col("percentiles")[at].alias(name) for at, name in enumerate(PERCENTILES)]
    both = overall.unionByName(by_time)
    columns = both.select("time", "queue", "path", "records", *ranks, "max", "below_zero")
    return columns.orderBy(f.col("time").asc_nulls_first(), "queue", "path")


def _measures() -> list[Column]:
    return [
        f.count("*").alias("records"),
        f.percentile_approx("seconds", list(PERCENTILES.values()), ACCURACY).alias("percentiles"),
        f.max("seconds").alias("max"),
        f.count_if(f.col("seconds") < 0).alias("below_zero"),
    ]


# Lag: how long records waited, from their event to the log and from the log to the table, by append time.


_MIDDLE_AND_TAIL: Final = (0.5, 0.9)


def lag(rows: DataFrame, every: str = EVERY) -> DataFrame:
    """Of rows with landed_at (`landings.with_landed`), a row per queue and stretch of time: time, queue, records,
    with_event_time, and in seconds landed_p50, landed_p90, landed_max (append to landed), event_p50, event_p90,
    event_max (event to append; null where no record has an event time). In order of time."""
    waited = rows.select(
        stretch("append_time", every),
        "queue",
        seconds_between("append_time", "landed_at").alias("landed"),
        seconds_between("event_time", "append_time").alias("event"),
    )
    found = waited.groupBy("time", "queue").agg(
        f.count("*").alias("records"), f.count("event").alias("with_event_time"), *_of("landed"), *_of("event")
    )
    ends = [
        column
        for name in ("landed", "event")
        for column in (f.col(name)[0].alias(f"{name}_p50"), f.col(name)[1].alias(f"{name}_p90"), f.col(f"{name}_max"))
    ]
    return found.select("time", "queue", "records", "with_event_time", *ends).orderBy("time", "queue")


def _of(name: str) -> list[Column]:
    return [f.percentile_approx(name, list(_MIDDLE_AND_TAIL), ACCURACY).alias(name), f.max(name).alias(f"{name}_max")]


@dataclass(frozen=True, slots=True)
class AnalysisRequest:
    """`queues`: none for all of the table. `every`: as Spark writes intervals. `by_key`: see `redeliveries`."""

    queues: tuple[str, ...] = ()
    every: str = EVERY
    by_key: bool = False


def report(spark: SparkSession, table: LandedTable, job: str, asked: AnalysisRequest) -> AnalysisReport:
    """Run one job of JOBS. Raises BadInput for a table that lacks what it needs or a bad interval, else SparkFailed."""
    try:
        return JOBS[job](spark, table, asked)
    except SPARK_ERRORS as error:
        if "CalendarInterval" in str(error) or "INTERVAL" in str(error):
            raise BadInput(f"{asked.every!r} is no interval; give one like '1 minute' or '10 seconds'") from error
        raise from_spark(error) from error


def _throughput(spark: SparkSession, table: LandedTable, asked: AnalysisRequest) -> AnalysisReport:
    rows = records(table, asked.queues)
    notes = ["the first and the last stretch of time may be cut: their rates are too low"]
    if table.shape is Shape.DECODED:
        notes.append("the table holds decoded values, whose bytes in the log are not known: bytes are of keys alone")
    return _made("throughput", "Throughput", throughput(rows, asked.every), asked, notes)


def _lag(spark: SparkSession, table: LandedTable, asked: AnalysisRequest) -> AnalysisReport:
    rows = _landed(spark, table, asked)
    notes = _timing_notes(rows)
    return _made("lag", "Lag: event to log, log to table", lag(rows, asked.every), asked, notes)


def _latency(spark: SparkSession, table: LandedTable, asked: AnalysisRequest) -> AnalysisReport:
    rows = _landed(spark, table, asked)
    found = _made("latency", "End-to-end latency", latency(rows, asked.every), asked, _timing_notes(rows))
    below = sum(row["below_zero"] for row in found.rows.to_pylist() if row["time"] is None)
    if not below:
        return found
    note = f"{below:,} latencies are below zero: the clocks of producers and nodes disagree"
    return AnalysisReport(found.job, found.title, found.rows, (*found.notes, note))


def _redeliveries(spark: SparkSession, table: LandedTable, asked: AnalysisRequest) -> AnalysisReport:
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


JOBS: Final[Mapping[str, Callable[[SparkSession, LandedTable, AnalysisRequest], AnalysisReport]]] = {
    "throughput": _throughput,
    "lag": _lag,
    "redeliveries": _redeliveries,
    "latency": _latency,
}


def _landed(spark: SparkSession, table: LandedTable, asked: AnalysisRequest) -> DataFrame:
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


def _made(job: str, title: str, found: DataFrame, asked: AnalysisRequest, notes: Sequence[str]) -> AnalysisReport:
    return AnalysisReport(job, f"{title}, by {asked.every.removeprefix('1 ')}", found.toArrow(), tuple(notes))
