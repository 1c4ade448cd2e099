"""End-to-end latency: percentiles from event time to append time, and from event time to the commit in the table."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from mirrorlog.spark.analysis.rows import ACCURACY, EVERY, seconds_between, stretch

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
