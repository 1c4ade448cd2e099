"""An upserted table: the latest record of each key, none of a key whose latest record is a tombstone.

    staging = Staging.new()                             # tasks write files below staging.root(table)
    result = merge_step(spark, table, staging, files, seen=state, moves=[move], columns=columns, note=note)

It takes the place of the one commit of a landing that appends, with the same promise: each record counts once,
whenever a driver dies, and of two landings at once one goes on and the other gets LandingConflict. For each queue:

    commit: "going to merge [first, next)"    compare-and-set, no files (`upsert_positions`)
    MERGE, version of the queue's id = next   Delta skips it when the table has that version or a newer one

The merge takes a record only where its queue offset is above that of the row. That no older record comes back:

- over a row, because of that condition;
- after a delete, which leaves no row to compare with, because a range always begins at the queue's landed offset, or
  below it. What is merged is the latest record of each key in the range: for a key that was deleted at or behind the
  range's begin that is the tombstone or something newer, and a key deleted before it has no record in the range at
  all.

Keys are told apart per queue: offsets of two queues say nothing about each other. Rows of a queue that was deleted and
made again carry offsets that the new one will only reach later, so such a table is refused (TableOutOfStep).

Delta takes the transaction id from the session, so each merge has a session of its own. Rejected: a merge alone,
without the commit before it: the epoch of the last record would have no place, and two landings no way to shut each
other out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, StructField, StructType

from mirrorlog.spark.errors import (
    SPARK_ERRORS,
    LandingConflict,
    RecordWithoutKey,
    TableOutOfStep,
    from_spark,
    translated,
)
from mirrorlog.spark.landing.commit.delta_log import (
    TableShape,
    TableState,
    commit,
    is_conflict,
    own_session,
    table_state,
)
from mirrorlog.spark.landing.commit.durable import sync_commits
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.planning import QueuePlan
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.upsert.positions import UpsertIds, announced_folder, announcement, landed_epoch, passage
from mirrorlog.spark.landing.upsert.staging import Staging
from mirrorlog.spark.landing.write.files import DataFile
from mirrorlog.spark.plan import QueueFacts

PROPERTIES: Final[Mapping[str, str]] = {"delta.enableChangeDataFeed": "true"}
"""What an upserted table is made with."""

_SETTINGS: Final[Mapping[str, str]] = {
    # A file that is gone must end the merge, not shorten it; and columns are added by the commit before, or not at all.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}


class MergeMoment(StrEnum):
    """The places of a step between which a driver may die."""

    ANNOUNCED = "announced"
    MERGED = "merged"
    CLEANED = "cleaned"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMove:
    """What a step lands of one queue: offsets `first` up to `next` (exclusive). `epoch`: of the record `next - 1`, None
    when there is none (the range was skipped, or ends in a gap)."""

    queue: str
    ids: UpsertIds
    first: int
    next: int
    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """Which columns of the table are what. `key`: together, within a queue, the row's key."""

    queue: str = "topic"
    offset: str = "offset"
    key: tuple[str, ...] = ("key",)

    @property
    def all(self) -> tuple[str, ...]:
        """What two records of one row have in common."""
        return (self.queue, *self.key)


RAW_COLUMNS: Final = RowColumns()
DECODED_COLUMNS: Final = RowColumns(queue="_queue", offset="_offset", key=("_key",))


@dataclass(frozen=True, slots=True)
class MergeResult:
    """`table_version`: after the step. Rows that were `inserted`, `updated`, `deleted`; a record that is not its key's
    latest, or deletes what is not there, is none of them."""

    table_version: int
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


def merge_step(
    spark: SparkSession,
    table: str,
    staging: Staging,
    files: Sequence[DataFile],
    *,
    seen: TableState,
    moves: Sequence[QueueMove],
    columns: RowColumns,
    note: Mapping[str, Any],
    shape: TableShape | None = None,
    on_moment: Callable[[MergeMoment], None] = lambda moment: None,
) -> MergeResult:
    """Merge the staged `files` (paths below the staging folder) of all `moves`, one queue after the other.

    `seen`: what the step was planned from, with all ids of each move. `shape`: what the table becomes with the first
    commit. A driver that dies in between leaves whole queues. The staging folder is removed, whatever happens. Raises
    LandingConflict, TableOutOfStep, SparkFailed.
    """
    step = _Step(spark, table, staging, files, columns, note, on_moment)
    result = MergeResult(-1 if seen.version is None else seen.version)
    try:
        for number, move in enumerate(moves):
            expected = seen if not number else _with_shape_of_now(spark, table, seen)
            result = _sum(result, step.land(move, _of(expected, move), None if number else shape))
    finally:
        staging.remove(spark, table)
    on_moment(MergeMoment.CLEANED)
    return result


def shut_out(spark: SparkSession, table: str, seen: TableState, ids: UpsertIds) -> dict[str, int]:
    """What a commit must set besides, so that no merge announced before it can happen after it.

    For those who raise a fence: `commit(…, seen=seen, sets={ids.fence: n, **shut_out(…)})`. Raises SparkFailed.
    """
    folder = announced_folder(seen.versions, ids)
    if folder is not None:
        Staging(folder).remove(spark, table)
    landed = seen.versions[ids.offset]
    return {} if landed is None else {ids.offset: landed}


@dataclass(frozen=True, slots=True)
class _Step:
    spark: SparkSession
    table: str
    staging: Staging
    files: Sequence[DataFile]
    columns: RowColumns
    note: Mapping[str, Any]
    on_moment: Callable[[MergeMoment], None]

    def land(self, move: QueueMove, seen: TableState, shape: TableShape | None) -> MergeResult:
        _refuse_moved(self.spark, self.table, seen, move)
        if seen.version is not None and seen.versions[move.ids.offset] is None:
            self._refuse_older_queue(move)
        shut_out(self.spark, self.table, seen, move.ids)
        if not self.files:
            sets = passage(seen.versions, move.ids, first=move.first, following=move.next, epoch=move.epoch)
            return MergeResult(self._commit(seen, sets, shape))
        sets = announcement(
            seen.versions,
            move.ids,
            first=move.first,
            following=move.next,
            epoch=move.epoch,
            staging=self.staging.number,
        )
        version = self._commit(seen, sets, shape)
        self.on_moment(MergeMoment.ANNOUNCED)
        merged = self._merge(move, (shape or seen.shape).schema)
        self.on_moment(MergeMoment.MERGED)
        return replace(merged, table_version=_made_durable(self.spark, self.table, version))

    def _commit(self, seen: TableState, sets: Mapping[str, int], shape: TableShape | None) -> int:
        return commit(self.spark, self.table, (), seen=seen, sets=sets, note=self.note, shape=shape)

    def _merge(self, move: QueueMove, schema: StructType) -> MergeResult:
        session = own_session(self.spark, {**_SETTINGS, **_identity(move, self.note)})
        try:
            counts = _merge(session, self.table, self._latest(session, move, schema), schema.names, self.columns)
        except SPARK_ERRORS as error:
            if is_conflict(error):
                raise _conflict(self.table, move, "its log has another commit") from error
            if not self.staging.exists(self.spark, self.table):
                raise _conflict(self.table, move, "it took the staged rows away") from error
            raise from_spark(error) from error
        if counts is None:
            raise _conflict(self.table, move, "the table has the records already")
        return counts

    def _latest(self, session: SparkSession, move: QueueMove, schema: StructType) -> DataFrame:
        """Of each key of the queue its latest staged row. Columns that a file lacks are null."""
        paths = [f"{self.staging.root(self.table)}/{file.path}" for file in self.files]
        staged = StructType([*schema.fields, StructField(TOMBSTONE, BooleanType())])
        rows = session.read.schema(staged).parquet(*paths)
        return latest_per_key(rows.where(f.col(_quoted(self.columns.queue)) == move.queue), self.columns)

    def _refuse_older_queue(self, move: QueueMove) -> None:
        with translated():
            table = self.spark.read.format("delta").load(self.table)
            if not table.where(f.col(_quoted(self.columns.queue)) == move.queue).limit(1).count():
                return
        raise TableOutOfStep(
            f"{self.table} has rows of another queue {move.queue!r}, whose offsets say nothing about this one's; "
            "delete them, or land into a new table"
        )


def latest_per_key(rows: DataFrame, columns: RowColumns) -> DataFrame:
    """Of the rows with the same queue and key the one with the greatest queue offset, tombstones too."""
    keys = [_present(name) for name in columns.all]
    latest = f.max_by(f.struct("*"), f.col(_quoted(columns.offset)))
    return rows.groupBy(*keys).agg(latest.alias("_latest")).select("_latest.*")


def _present(name: str) -> Any:
    # A key that is null matches nothing, not even itself: it would be inserted again with every merge.
    column = f.col(_quoted(name))
    why = f"an upsert was given a row without {name}"
    return f.when(column.isNull(), f.raise_error(f.lit(why))).otherwise(column).alias(f"_of_{name}")


def _merge(
    session: SparkSession, table: str, source: DataFrame, names: Sequence[str], columns: RowColumns
) -> MergeResult | None:
    """None when Delta skipped it: the table has this version of the queue's id, or a newer one."""
    from delta.tables import DeltaTable

    same = " AND ".join(f"s.{_quoted(name)} = t.{_quoted(name)}" for name in columns.all)
    newer = f"s.{_quoted(columns.offset)} > t.{_quoted(columns.offset)}"
    values: dict[str, str | Column] = {_quoted(name): f"s.{_quoted(name)}" for name in names}
    merge = DeltaTable.forPath(session, table).alias("t").merge(source.alias("s"), same)
    merge = merge.whenMatchedDelete(f"{newer} AND s.{TOMBSTONE}").whenMatchedUpdate(newer, values)
    done: Any = merge.whenNotMatchedInsert(f"NOT s.{TOMBSTONE}", values).execute()
    rows = done.collect()
    if not rows:
        return None
    (row,) = rows
    return MergeResult(-1, row.num_inserted_rows, row.num_updated_rows, row.num_deleted_rows)


def _identity(move: QueueMove, note: Mapping[str, Any]) -> dict[str, str]:
    return {
        "spark.databricks.delta.write.txnAppId": move.ids.offset,
        "spark.databricks.delta.write.txnVersion": str(move.next),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(note),
    }


def _of(state: TableState, move: QueueMove) -> TableState:
    return replace(state, versions={name: state.versions[name] for name in move.ids})


def _with_shape_of_now(spark: SparkSession, table: str, seen: TableState) -> TableState:
    """The positions as seen, of the table that the step's own first commit made or changed."""
    now = table_state(spark, table, ())
    return replace(now, versions=seen.versions)


def _refuse_moved(spark: SparkSession, table: str, seen: TableState, move: QueueMove) -> None:
    """Before another landing's folder is removed: who is late must not hurt one that is ahead."""
    if table_state(spark, table, move.ids).versions != seen.versions:
        raise _conflict(table, move, "its positions have moved")


def _conflict(table: str, move: QueueMove, why: str) -> LandingConflict:
    return LandingConflict(
        f"another landing of queue {move.queue!r} committed to {table} meanwhile ({why}); nothing was added, run again"
    )


def _made_durable(spark: SparkSession, table: str, announced: int) -> int:
    """The table's version. On a local path all that the merge wrote is on the disk: its records may be freed next."""
    latest = table_state(spark, table, ()).version
    assert latest is not None
    sync_commits(table, above=announced, up_to=latest)
    return latest


def _sum(one: MergeResult, other: MergeResult) -> MergeResult:
    return MergeResult(
        other.table_version, one.inserted + other.inserted, one.updated + other.updated, one.deleted + other.deleted
    )


def _quoted(name: str) -> str:
    return f"`{name}`"


TOMBSTONE: Final = "_tombstone"
"""Column of staged rows, not of the table."""
NO_KEY: Final = "no key"
"""The reason of a dead letter."""


def staged_rows(rows: pa.RecordBatch, values: pa.Array, key: Sequence[str]) -> tuple[pa.RecordBatch, pa.BooleanArray]:
    """The rows to stage, and for each of the given ones whether it has a key.

    `rows`: as the table has them; `values`: the records' values, null in a tombstone; `key`: columns of `rows`, all of
    which must be there for a row to count.
    """
    with_key = reduce(pc.and_, (rows.column(name).is_valid() for name in key))
    flagged = rows.append_column(pa.field(TOMBSTONE, pa.bool_()), values.is_null())
    return flagged if with_key.true_count == len(with_key) else flagged.filter(with_key), with_key


def refuse_keyless(rows: pa.RecordBatch, with_key: pa.BooleanArray, *, queue: str, offset: str) -> None:
    """Raise RecordWithoutKey naming the first one. `offset`: the column with queue offsets."""
    if with_key.true_count < len(with_key):
        place = pc.index(with_key, False).as_py()
        raise RecordWithoutKey(
            f"queue {queue!r}: record {rows.column(offset)[place]} has no key, so an upsert cannot place it; set "
            "dead_letters to keep such records there"
        )


# The runner's side: where an appending landing commits its files, this one stages them and merges them in.


def ids_for(landing: Landing, facts: QueueFacts) -> QueueIds:
    """The application ids that the landing keeps of a queue."""
    return UpsertIds(facts) if landing.write == "upsert" else QueueIds(facts)


def resumed(landing: Landing, queues: Sequence[QueueFacts], state: TableState) -> TableState:
    """The state as an appending landing would have left it: with the epoch of the last record that is landed."""
    if landing.write != "upsert":
        return state
    stands = {ids: state.versions[ids.offset] for ids in map(UpsertIds, queues)}
    epochs = {
        ids.epoch(landed): landed_epoch(state.versions, ids) for ids, landed in stands.items() if landed is not None
    }
    return replace(state, versions={**state.versions, **epochs})


def row_columns(landing: Landing) -> RowColumns:
    """Which columns of the table are what."""
    columns = DECODED_COLUMNS if landing.decoded else RAW_COLUMNS
    return replace(columns, key=landing.key) if landing.key else columns


def with_properties(shape: TableShape | None, state: TableState) -> TableShape | None:
    """What an upserted table is made with; one that is there keeps what it has."""
    if shape is None or state.version is not None:
        return shape
    return replace(shape, properties={**PROPERTIES, **shape.properties})


def move_of(plan: QueuePlan, epochs: Mapping[tuple[str, int], int]) -> QueueMove:
    """What a plan lands, with the epoch of its last record."""
    queue, ids = plan.facts.name, UpsertIds(plan.facts)
    return QueueMove(queue=queue, ids=ids, first=plan.first, next=plan.next, epoch=epochs.get((queue, plan.next)))
