"""When each record was landed: the time of the commit that first brought its queue offset.

A landing's offsets only go forward, so the table's log tells it: for each commit that added data, its time and the
largest queue offset among the files that it added, from their statistics. A record was landed by the first commit whose
offset is not below its own. So what a compaction or an upsert rewrote later keeps its time.

Where the table's log no longer goes back so far, or has no statistics, the time of the record's file stands in: it is
the landing's own until a compaction writes the file anew, and never too early.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.spark.checks.landed_table import LandedTable, Shape

_COMMITS: Final = (
    "commitInfo struct<timestamp: bigint, inCommitTimestamp: bigint>, "
    "add struct<path: string, dataChange: boolean, stats: string>"
)
_OFFSET: Final = {Shape.RAW: "offset", Shape.DECODED: "_offset", Shape.DEAD_LETTERS: "offset"}
_QUEUE: Final = {Shape.RAW: "topic", Shape.DECODED: "_queue", Shape.DEAD_LETTERS: "queue"}


@dataclass(frozen=True, slots=True)
class LandedCommit:
    """A commit at `time_us` (µs UTC) brought queue offsets `first` up to `last` (inclusive), not all perhaps."""

    queue: str
    time_us: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Landings:
    """Of one queue. `lasts` rise: a record whose offset is at most `lasts[i]`, and above the one before, came at
    `times_us[i]`. Of those below `first` nothing is known."""

    first: int
    lasts: tuple[int, ...]
    times_us: tuple[int, ...]


def steps(spark: SparkSession, table: LandedTable) -> list[LandedCommit]:
    """What the table's log still tells, in order of its commits. One small job."""
    offset, queue = _OFFSET[table.shape], _QUEUE[table.shape]
    ends = f"struct<{offset}: bigint, {queue}: string>"
    source = spark.read.schema(_COMMITS).json(table.commits)
    actions = source.select(f.col("_metadata.file_name").alias("commit"), "commitInfo", "add")
    stats = f.from_json("add.stats", f"minValues {ends}, maxValues {ends}")
    times = actions.groupBy("commit").agg(
        f.max(f.coalesce("commitInfo.inCommitTimestamp", "commitInfo.timestamp")).alias("time")
    )
    added = actions.where(f.col("add.dataChange")).select("commit", stats.alias("stats"))
    found = (
        added.join(times, "commit")
        .where(f.col(f"stats.minValues.{queue}") == f.col(f"stats.maxValues.{queue}"))
        .groupBy("commit", f.col(f"stats.minValues.{queue}").alias("queue"))
        .agg(
            f.max("time").alias("time"),
            f.min(f"stats.minValues.{offset}").alias("first"),
            f.max(f"stats.maxValues.{offset}").alias("last"),
        )
        .orderBy("commit")
    )
    return [
        LandedCommit(row["queue"], row["time"] * 1000, row["first"], row["last"])
        for row in found.toArrow().to_pylist()
        if None not in row.values()
    ]


def landings(found: Sequence[LandedCommit]) -> dict[str, Landings]:
    """By queue. Commits that brought nothing newer, as rewrites do, are passed over."""
    lasts: dict[str, list[int]] = {}
    times: dict[str, list[int]] = {}
    firsts: dict[str, int] = {}
    for step in found:
        firsts.setdefault(step.queue, step.first)
        mine = lasts.setdefault(step.queue, [])
        if not mine or step.last > mine[-1]:
            mine.append(step.last)
            times.setdefault(step.queue, []).append(step.time_us)
    return {queue: Landings(firsts[queue], tuple(lasts[queue]), tuple(times[queue])) for queue in lasts}


def with_landed(rows: DataFrame, known: Mapping[str, Landings]) -> DataFrame:
    """The rows' queue, offset, event_time and append_time, with `landed_at` and whether that is of a `commit`."""
    wanted = rows.select("queue", "offset", "event_time", "append_time", "file_time")
    schema = (
        "queue string, offset bigint, event_time timestamp, append_time timestamp, landed_at timestamp, commit boolean"
    )

    def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _placed(batch, known)

    return wanted.mapInArrow(placed, schema)


def _placed(batch: pa.RecordBatch, known: Mapping[str, Landings]) -> pa.RecordBatch:
    offsets = batch["offset"].to_numpy(zero_copy_only=False)
    queues = batch["queue"].dictionary_encode()
    landed = batch["file_time"].cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    by_commit = np.zeros(len(offsets), dtype=bool)
    codes = queues.indices.to_numpy(zero_copy_only=False)
    for code, queue in enumerate(queues.dictionary.to_pylist()):
        mine = known.get(queue)
        if mine is None:
            continue
        place = np.searchsorted(np.array(mine.lasts), offsets)
        told = (codes == code) & (offsets >= mine.first) & (place < len(mine.lasts))
        landed[told] = np.array(mine.times_us)[place[told]]
        by_commit |= told
    time = pa.timestamp("us", tz="UTC")
    columns = [
        batch["queue"],
        batch["offset"],
        batch["event_time"].cast(time),
        batch["append_time"].cast(time),
        pa.array(landed).cast(time),
        pa.array(by_commit),
    ]
    names = ["queue", "offset", "event_time", "append_time", "landed_at", "commit"]
    return pa.RecordBatch.from_arrays(columns, names=names)
