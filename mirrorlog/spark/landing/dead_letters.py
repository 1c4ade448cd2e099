"""The table of records that could not be decoded: each with its reason and its bytes, once.

Its files are committed before the landing's own, each with a position of its own (decision 0031). A step that has dead
letters makes three commits:

    announce_dead   the landing's table: there may be dead letters up to `next` (id `…:dead`); a compare-and-set without
                    files, so a landing that was overtaken ends here and leaves none
    commit_dead     the table of dead letters: its files, and its own position
    the landing's   the landing's table: its files, and that it has the queue up to `next`

A driver that dies in between leaves one of the first two ahead of what is landed. Nobody knows then what the next run
will make of those records: the schema may be another one. So the next run takes them out again before it begins
(`take_back`), of which each commit may be the last one before another death:

    1. the table of dead letters: a higher fence. No dead letters that were announced before come any more.
    2. the landing's table: a higher fence. What was announced before cannot be landed any more; if it has been, this
       one is a conflict, and nothing is deleted. If 1 found no dead letters `…:dead` is set back here, and that is all.
    3. the table of dead letters: delete what is ahead, unless somebody has raised its fence since: then he does it.
    4. the table of dead letters: its position set back.
    5. the landing's table: `…:dead` set back. Until then all others see it ahead, and do the same.

Wherever `…:dead` goes back the fence goes up, so no two states of a table look alike: who has seen it ahead before it
went back must not take it for ahead after the next announcement.

Rejected: 2 before 1, which would set `…:dead` back while dead letters can still come; 5 with 2, after which a landing
that has no dead letters sees nothing to wait for; a delete without the fence, which a landing that stalls before it
would do to the dead letters of one that began later.

Several landings may share one such table: positions and rows carry the name of the table that they belong to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from mirrorlog.commitlog.format.arrow import BINARY, TIMESTAMP
from mirrorlog.spark.errors import SPARK_ERRORS, LandingConflict, TableOutOfStep, TableRefused, from_spark
from mirrorlog.spark.landing.commit.delta_log import (
    TableShape,
    TableState,
    commit,
    is_conflict,
    own_session,
    table_state,
)
from mirrorlog.spark.landing.commit.durable import sync_commits
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.tables import DEAD_LETTERS, refuse_shape, same_type
from mirrorlog.spark.landing.upsert.positions import UpsertIds
from mirrorlog.spark.landing.upsert.table import shut_out
from mirrorlog.spark.landing.write.files import DataFile, FileWriter
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.arrow import APPEND_TIME, HEADERS
from mirrorlog.spark.reading.rows import Missing


@dataclass(frozen=True, slots=True)
class DeadIds:
    """The application ids of a queue's dead letters that belong to one table; iterating gives all of them."""

    offset: str
    fence: str

    def __iter__(self) -> Iterator[str]:
        return iter((self.offset, self.fence))


def ids_of(facts: QueueFacts, table: str) -> DeadIds:
    """Of the queue's dead letters that belong to `table`."""
    digest = hashlib.sha256(table.encode()).hexdigest()[:16]
    name = f"mirrorlog:{facts.cluster_id}:{facts.incarnation}:dead:{digest}"
    return DeadIds(name, f"{name}:fence")


def dead_state(spark: SparkSession, dead: str, table: str, queues: Sequence[QueueFacts]) -> TableState:
    """The table of dead letters as it is now. Raises TableRefused, SparkFailed."""
    names = [name for facts in queues for name in ids_of(facts, table)]
    state = table_state(spark, dead, names)
    if state.version is not None:
        _refuse(dead, state.shape)
    return state


def ahead_of(state: TableState, dead: TableState, table: str, queues: Sequence[QueueFacts]) -> list[QueueFacts]:
    """The queues of which there are, or may come, dead letters behind what the table has."""
    announced = set(_announced_ahead(state, queues))
    return [
        facts
        for facts in queues
        if facts in announced or (dead.versions[ids_of(facts, table).offset] or 0) > _landed(state, facts)
    ]


def refuse_ahead(state: TableState, table: str, queues: Sequence[QueueFacts]) -> None:
    """For a landing without dead letters: raise TableOutOfStep when another one has announced some and not landed."""
    for facts in _announced_ahead(state, queues):
        raise TableOutOfStep(
            f"{table}: a landing of queue {facts.name!r} has announced dead letters and not finished; land once with "
            "the same dead_letters as it, so that they are taken back"
        )


def _announced_ahead(state: TableState, queues: Sequence[QueueFacts]) -> list[QueueFacts]:
    return [facts for facts in queues if (state.versions[QueueIds(facts).dead] or 0) > _landed(state, facts)]


def _landed(state: TableState, facts: QueueFacts) -> int:
    return state.versions[QueueIds(facts).offset] or 0


def take_back(
    spark: SparkSession, dead: str, table: str, facts: QueueFacts, *, seen: TableState, dead_seen: TableState
) -> None:
    """Delete the queue's dead letters that are ahead of the table, and let nobody bring them back.

    `dead_seen`: read after `seen`. Raises LandingConflict when another landing of the queue is at work, SparkFailed.
    """
    ids, main = ids_of(facts, table), QueueIds(facts)
    landed = _landed(seen, facts)
    note = {"why": "dead letters ahead of their table", "queue": facts.name, "from": landed}
    fence = _next_fence(dead_seen.versions[ids.fence])
    fenced = commit_dead(spark, dead, (), seen=dead_seen, sets={ids.fence: fence}, note=note)
    there = (dead_seen.versions[ids.offset] or 0) > landed
    back = {main.dead: landed}
    shut = _shut_out(spark, table, facts, seen, sets={} if there else back, note=note)
    if not there:
        return
    _delete(spark, dead, table, facts, landed=landed, fence=fence)
    now = table_state(spark, dead, dead_seen.versions)
    if now.versions[ids.fence] not in {fence, fence + 1} or now.version is None:
        raise LandingConflict(f"another landing of queue {facts.name!r} takes its dead letters back, run again")
    sync_commits(dead, above=fenced, up_to=now.version)
    commit(spark, dead, seen=now, sets={ids.offset: landed}, note=note)
    if shut is not None:
        commit(spark, table, seen=shut, sets={**back, **_raised(shut, main)}, note=note)


def _next_fence(fence: int | None) -> int:
    """Even; the odd one above it is that of the delete, so that no two landings give out the same number."""
    return ((fence or 0) // 2 + 1) * 2


def _raised(state: TableState, ids: QueueIds) -> dict[str, int]:
    return {ids.fence: (state.versions[ids.fence] or 0) + 1}


def _shut_out(
    spark: SparkSession,
    table: str,
    facts: QueueFacts,
    seen: TableState,
    *,
    sets: Mapping[str, int],
    note: Mapping[str, Any],
) -> TableState | None:
    """What was announced before is not landed any more. The table as this left it, None when there is none."""
    if seen.version is None:
        # Dead letters of a table that was removed. Whoever makes it anew meanwhile may have had time to write his own.
        if table_state(spark, table, ()).version is not None:
            raise LandingConflict(f"another landing of queue {facts.name!r} has made {table} meanwhile, run again")
        return None
    upsert = UpsertIds(facts)
    shut = shut_out(spark, table, seen, upsert) if upsert.staging in seen.versions else {}
    sets = {**sets, **shut, **_raised(seen, QueueIds(facts))}
    commit(spark, table, seen=seen, sets=sets, note=note)
    return replace(seen, versions={**seen.versions, **sets})


def announce_dead(
    spark: SparkSession,
    table: str,
    ends: Mapping[QueueFacts, int],
    *,
    seen: TableState,
    note: Mapping[str, Any],
    shape: TableShape | None = None,
) -> TableState:
    """Say in the landing's table that there may be dead letters of these queues up to their `ends` (exclusive).

    Comes before `commit_dead`. `shape`: what a table becomes that is not there yet. What the step's last commit has to
    see in place of `seen`, which has the announcement. Raises LandingConflict, SparkFailed.
    """
    sets = {QueueIds(facts).dead: following for facts, following in ends.items()}
    commit(spark, table, seen=seen, sets=sets, note=note, shape=shape if seen.version is None else None)
    now = table_state(spark, table, ()) if seen.version is None else seen
    return replace(now, versions={**seen.versions, **sets})


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


@dataclass(frozen=True, slots=True)
class DeadLettersOf:
    """What dead letters say of where they are from: the table, the queues' incarnations by name, the schema's hash."""

    table: str
    incarnations: Mapping[str, str]
    schema_version: str = ""


class DeadLetterWriter:
    """Takes the dead letters of a task."""

    def __init__(self, writer: FileWriter, of: DeadLettersOf) -> None:
        self._writer = writer
        self._of = of

    def bury(self, raw: pa.RecordBatch, reasons: pa.Array) -> None:
        """Raw rows of one queue, and why each is here."""
        incarnation = self._of.incarnations[raw.column("topic")[0].as_py()]
        self._writer.write(
            dead_rows(
                raw, reasons, table=self._of.table, incarnation=incarnation, schema_version=self._of.schema_version
            )
        )

    def bury_unreadable(self, queue: str, missing: Missing) -> None:
        """Records of a batch that nobody can open: that they were there, and why nothing else is known of them."""
        rows = unreadable_rows(queue, missing)
        self.bury(rows, _same(missing.why, rows.num_rows))


def unreadable_rows(queue: str, missing: Missing) -> pa.RecordBatch:
    """Raw rows without anything that stood in their batch."""
    count = missing.next - missing.first
    appended = pa.repeat(pa.scalar(missing.append_time_us, pa.int64()), count).cast(TIMESTAMP)
    columns = {
        "topic": _same(queue, count),
        "offset": pa.array(range(missing.first, missing.next), pa.int64()),
        "key": pa.nulls(count, BINARY),
        "value": pa.nulls(count, BINARY),
        "headers": pa.nulls(count, HEADERS),
        "timestamp": appended,
        "timestampType": pa.repeat(pa.scalar(APPEND_TIME, pa.int32()), count),
        "appendTime": appended,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


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


def _delete(spark: SparkSession, dead: str, table: str, facts: QueueFacts, *, landed: int, fence: int) -> None:
    """Delta itself leaves it undone when the fence is above `fence`, and refuses it when that is raised meanwhile."""
    from delta.tables import DeltaTable

    theirs = (f.col("incarnation") == facts.incarnation) & (f.col("landedIn") == table)
    settings = {
        "spark.databricks.delta.write.txnAppId": ids_of(facts, table).fence,
        "spark.databricks.delta.write.txnVersion": str(fence + 1),
    }
    try:
        session = own_session(spark, settings)
        DeltaTable.forPath(session, dead).delete(theirs & (f.col("offset") >= landed))
    except SPARK_ERRORS as error:
        if is_conflict(error):
            raise LandingConflict(f"another landing committed to {dead} meanwhile, run again") from error
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
