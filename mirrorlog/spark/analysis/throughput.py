"""Throughput: how many records and bytes were appended to each queue, by append time."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mirrorlog.spark.analysis.rows import EVERY


def throughput(rows: DataFrame, every: str = EVERY) -> DataFrame:
    """A row per queue and stretch of time with records: time (its begin), queue, records, bytes, records_per_s and
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
