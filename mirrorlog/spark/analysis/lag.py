"""Lag: how long records waited, from their event to the log and from the log to the table, by append time."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from mirrorlog.spark.analysis.rows import ACCURACY, EVERY, seconds_between, stretch

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
    return [
        f.percentile_approx(name, list(_MIDDLE_AND_TAIL), ACCURACY).alias(name),
        f.max(name).alias(f"{name}_max"),
    ]
