"""A queue as a plain list, landed by upsert without nodes; and what its table must then hold.

python upserts.py TABLE UNTIL MOMENT        lands `sample(2_000)` and dies by SIGKILL at the moment
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.arrow import TIMESTAMP
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState, table_state
from mirrorlog.spark.landing.tables import RAW
from mirrorlog.spark.landing.upsert.positions import UpsertIds
from mirrorlog.spark.landing.upsert.staging import Staging
from mirrorlog.spark.landing.upsert.table import (
    PROPERTIES,
    RAW_COLUMNS,
    MergeMoment,
    MergeResult,
    QueueMove,
    merge_step,
    staged_rows,
)
from mirrorlog.spark.landing.write.files import DataFile, FileFormat, FileWriter
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.arrow import HEADERS

Records = Sequence[tuple[bytes, bytes | None]]
"""Key and value by queue offset; no value: a tombstone."""
EPOCH_RECORDS = 100
"""Records of an epoch: the epoch is the offset divided by it."""
SAMPLE_SEED = 20
_HELD_S = 60
OnMoment = Callable[[MergeMoment], None]


@dataclass(frozen=True)
class ListQueue:
    """The records of a queue, and what nodes would say of it."""

    name: str
    records: Records
    facts: QueueFacts

    @classmethod
    def of(cls, records: Records, name: str = "orders", incarnation: str = "i1") -> ListQueue:
        return cls(name, records, QueueFacts("c1", name, incarnation, "log-1", 1, 0, len(records)))

    @property
    def ids(self) -> UpsertIds:
        return UpsertIds(self.facts)

    def rows(self, first: int, following: int) -> pa.RecordBatch:
        count = following - first
        times = pa.array(range(first, following), pa.int64()).cast(TIMESTAMP)
        columns = {
            "key": pa.array([key for key, _ in self.records[first:following]], pa.binary()),
            "value": pa.array([value for _, value in self.records[first:following]], pa.binary()),
            "topic": pa.array([self.name] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first, following), pa.int64()),
            "timestamp": times,
            "timestampType": pa.array([0] * count, pa.int32()),
            "headers": pa.nulls(count, HEADERS),
            "appendTime": times,
        }
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def sample(count: int, *, keys: int = 40, seed: int = SAMPLE_SEED) -> Records:
    """Few keys, every fourth record a tombstone."""
    chosen = random.Random(seed)
    return [
        (b"k%d" % chosen.randrange(keys), None if chosen.random() < 0.25 else b"v%d" % number)
        for number in range(count)
    ]


def latest(records: Records) -> dict[bytes, tuple[int, bytes]]:
    """The model: offset and value of each key that is there."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for offset, (key, value) in enumerate(records):
        if value is None:
            found.pop(key, None)
        else:
            found[key] = (offset, value)
    return found


def in_table(table: str, queue: str = "orders") -> dict[bytes, tuple[int, bytes]]:
    """Offset and value by key, read by delta-rs; a key that is there twice fails."""
    rows = [row for row in DeltaTable(table).to_pyarrow_table().to_pylist() if row["topic"] == queue]
    found = {row["key"]: (row["offset"], row["value"]) for row in rows}
    assert len(found) == len(rows), "a key is in the table twice"
    return found


def stage(table: str, rows: pa.RecordBatch, staging: Staging) -> list[DataFile]:
    """As a landing's task does it; in two files."""
    files = []
    for number, part in enumerate((rows.slice(0, rows.num_rows // 2), rows.slice(rows.num_rows // 2))):
        with FileWriter(FileFormat(staging.root(table)), number) as writer:
            flagged, with_key = staged_rows(part, part.column("value"), RAW_COLUMNS.key)
            assert with_key.false_count == 0
            writer.write(flagged)
            files += writer.finish()
    return files


def seen_of(spark: SparkSession, table: str, queues: Sequence[ListQueue]) -> TableState:
    return table_state(spark, table, [name for queue in queues for name in queue.ids])


def move(queue: ListQueue, seen: TableState, until: int) -> QueueMove:
    first = seen.versions[queue.ids.offset] or 0
    epoch = (until - 1) // EPOCH_RECORDS
    return QueueMove(queue=queue.name, ids=queue.ids, first=first, next=until, epoch=epoch)


def land(
    spark: SparkSession,
    table: str,
    queue: ListQueue,
    until: int,
    *,
    seen: TableState | None = None,
    on_moment: OnMoment = lambda moment: None,
    staging: Staging | None = None,
) -> MergeResult:
    """One step up to the queue offset `until`, planned from `seen`."""
    seen = seen or seen_of(spark, table, [queue])
    step = move(queue, seen, until)
    staging = staging or Staging.new()
    files = stage(table, queue.rows(step.first, until), staging)
    shape = TableShape(RAW, properties=PROPERTIES) if seen.version is None else None
    return merge_step(
        spark, table, staging, files, seen=seen, moves=[step], columns=RAW_COLUMNS, note={"step": until}, shape=shape,
        on_moment=on_moment,
    )  # fmt: skip


def cuts(count: int, steps: int, chosen: random.Random) -> Iterator[int]:
    """Ends of steps through `count` records; the last one is `count`."""
    yield from sorted(chosen.sample(range(1, count), steps - 1))
    yield count


def held_until(go_on: Path, running: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes batches on once the file `go_on` is there; says by the file `running` that it waits."""

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end = time.monotonic() + _HELD_S
        running.touch()
        while not go_on.exists():
            assert time.monotonic() < end, "nobody let this merge go on"
            time.sleep(0.01)
        yield from batches

    return held


def die_at(wanted: str) -> OnMoment:
    def on_moment(moment: MergeMoment) -> None:
        if moment == wanted:
            os.killpg(0, signal.SIGKILL)

    return on_moment


def main(table: str, until: str, moment: str) -> None:
    from mirrorlog.spark.session import local_session

    # The group is this process and the JVM, so that neither outlives the other.
    os.setpgid(0, 0)
    spark = local_session("upsert that dies", **{"spark.master": "local[2]"})
    queue = ListQueue.of(sample(2_000))
    land(
        spark, table, replace(queue, facts=replace(queue.facts, next=int(until))), int(until), on_moment=die_at(moment)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
