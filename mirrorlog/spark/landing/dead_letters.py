"""The table of records that could not be decoded: each with its reason and its bytes, once.

Its files are committed before the landing's own, with a position of its own in its log (decision 0031). A driver that
dies between the two commits leaves it ahead of its table. Nobody knows then what the next run will make of those
records: the schema may be another one. So the next run takes them out again before it begins: it raises the fence of
the table, so that a driver that is only slow cannot commit any more, then that of the dead letters, deletes what is
ahead, and sets the position back. Each of the three can be done again by whoever comes after a death in between.

Several landings may share one such table: positions and rows carry the name of the table that they belong to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mirrorlog.spark.errors import SPARK_ERRORS, LandingConflict, TableRefused, from_spark
from mirrorlog.spark.landing.delta_log import TableShape, TableState, commit, table_state
from mirrorlog.spark.landing.files import DataFile, FileWriter
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.tables import DEAD_LETTERS, refuse_shape, same_type
from mirrorlog.spark.landing.upsert import shut_out
from mirrorlog.spark.landing.upsert_positions import UpsertIds
from mirrorlog.spark.plan import QueueFacts


def ids_of(facts: QueueFacts, table: str) -> QueueIds:
    """The application ids of a queue's dead letters that belong to `table`."""
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    name = f"mirrorlog:{facts.cluster_id}:{facts.incarnation}:dead:{digest}"
    return QueueIds(name, f"{name}:log:{facts.log_id}", f"{name}:fence")


def dead_state(spark: SparkSession, dead: str, table: str, queues: Sequence[QueueFacts]) -> TableState:
    """The table of dead letters as it is now. Raises TableRefused, SparkFailed."""
    names = [name for facts in queues for name in ids_of(facts, table)]
    state = table_state(spark, dead, names)
    if state.version is not None:
        _refuse(dead, state.shape)
    return state


def ahead_of(state: TableState, dead: TableState, table: str, queues: Sequence[QueueFacts]) -> list[QueueFacts]:
    """The queues of which there are dead letters behind what the table has."""
    found = []
    for facts in queues:
        there = dead.versions[ids_of(facts, table).offset]
        landed = state.versions[QueueIds.of(facts).offset]
        if there is not None and (landed is None or there > landed):
            found.append(facts)
    return found


def take_back(
    spark: SparkSession, dead: str, table: str, facts: QueueFacts, *, seen: TableState, dead_seen: TableState
) -> None:
    """Delete the queue's dead letters that are ahead of the table, and let nobody bring them back.

    Raises LandingConflict when another landing of the queue is at work, SparkFailed.
    """
    ids, dead_ids = QueueIds.of(facts), ids_of(facts, table)
    landed = seen.versions[ids.offset] or 0
    note = {"why": "dead letters ahead of their table", "queue": facts.name, "from": landed}
    if seen.version is not None:
        upsert = UpsertIds.of(facts)
        shut = shut_out(spark, table, seen, upsert) if upsert.staging in seen.versions else {}
        raised = (seen.versions[ids.fence] or 0) + 1
        commit(spark, table, seen=seen, sets={ids.fence: raised, **shut}, note=note)
    fence = (dead_seen.versions[dead_ids.fence] or 0) + 1
    commit(spark, dead, seen=dead_seen, sets={dead_ids.fence: fence}, note=note)
    _delete(spark, dead, table, facts, landed)
    now = table_state(spark, dead, dead_seen.versions)
    if now.versions[dead_ids.fence] != fence:
        raise LandingConflict(f"another landing of queue {facts.name!r} takes its dead letters back, run again")
    commit(spark, dead, seen=now, sets={dead_ids.offset: landed}, note=note)


def commit_dead(
    spark: SparkSession,
    dead: str,
    files: Sequence[DataFile],
    *,
    seen: TableState,
    sets: Mapping[str, int],
    note: Mapping[str, Any],
) -> int:
    """As `delta_log.commit`; makes the table when there is none."""
    shape = TableShape(DEAD_LETTERS) if seen.version is None else None
    return commit(spark, dead, files, seen=seen, sets=sets, note=note, shape=shape)


def refuse_moved(spark: SparkSession, dead: str, *, seen: TableState) -> None:
    """For who has none to commit: another landing, of another schema, may just have made some of the same records."""
    if table_state(spark, dead, seen.versions).versions != seen.versions:
        raise LandingConflict(f"another landing committed to {dead} meanwhile; nothing was added, run again")


@dataclass(frozen=True, slots=True)
class DeadLettersOf:
    """What dead letters say of where they are from: the table, the queues' incarnations by name, the schema's hash."""

    table: str
    incarnations: Mapping[str, str]
    schema_version: str = ""


class DeadLetters:
    """Takes the dead letters of a task."""

    def __init__(self, writer: FileWriter, of: DeadLettersOf) -> None:
        self._writer = writer
        self._of = of

    def bury(self, raw: pa.RecordBatch, reasons: pa.Array) -> None:
        """Raw rows of one queue, and why each is here."""
        incarnation = self._of.incarnations[raw.column("topic")[0].as_py()]
        self._writer.write(
            dead_rows(
                raw,
                reasons,
                table=self._of.table,
                incarnation=incarnation,
                schema_version=self._of.schema_version,
            )
        )


def dead_rows(
    raw: pa.RecordBatch, reasons: pa.Array, *, table: str, incarnation: str, schema_version: str
) -> pa.RecordBatch:
    """Rows of the table, of raw rows that could not be decoded and why."""
    count = raw.num_rows
    columns = {
        "queue": raw.column("topic"),
        "offset": raw.column("offset"),
        "reason": reasons.cast(pa.string()),
        "key": raw.column("key"),
        "value": raw.column("value"),
        "headers": raw.column("headers"),
        "timestamp": raw.column("timestamp"),
        "timestampType": raw.column("timestampType"),
        "appendTime": raw.column("appendTime"),
        "schemaVersion": _same(schema_version, count),
        "incarnation": _same(incarnation, count),
        "landedIn": _same(table, count),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _delete(spark: SparkSession, dead: str, table: str, facts: QueueFacts, landed: int) -> None:
    from delta.tables import DeltaTable

    theirs = (f.col("incarnation") == facts.incarnation) & (f.col("landedIn") == table)
    try:
        DeltaTable.forPath(spark, dead).delete(theirs & (f.col("offset") >= landed))
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def _refuse(dead: str, shape: TableShape) -> None:
    refuse_shape(dead, shape, written=DEAD_LETTERS.names)
    if shape.partition_columns:
        raise TableRefused(f"{dead} has partitions; a table of dead letters has none, use another one")
    there = {column.name: column.dataType for column in shape.schema}
    for column in DEAD_LETTERS:
        if column.name not in there or not same_type(there[column.name], column.dataType):
            raise TableRefused(
                f"{dead} has no column {column.name} {column.dataType.simpleString()}: use another table"
            )
