"""The rows of a landed table as the jobs want them: one name for each fact, times as times, no contents but sizes.

A record's time is its event time only where the producer gave one; the append time that the data source shows in its
place would make every latency zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput
from mirrorlog.spark.checks.landed_table import LandedTable
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
