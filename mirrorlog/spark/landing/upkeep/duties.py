"""Compaction, checkpoint and VACUUM of one table, each by Delta itself; what they did as numbers.

- **Compaction** is OPTIMIZE: files below half the target are joined per partition, with Z-order or by the table's
  clusters if it has them. It changes no row (`dataChange` is false), so Delta lets it and appends of others pass each
  other in either order; a merge that removes one of its files makes one of the two fail, and try again. Rejected:
  joining files by Arrow, as landings write them: it would have to keep deletion vectors, row tracking and clusters.
- **Checkpoint** writes Delta's checkpoint of the latest version and then lets Delta remove log files that are older
  than the table's `delta.logRetentionDuration`. Transaction ids are in every checkpoint.
- **VACUUM** with Delta's own check of the retention off, because ours (`upkeep_schedule.safe_keep_s`) knows how long a
  step takes; and staging folders of upserts of the same age, which VACUUM does not see.

A table that no landing committed to is refused, and one that forgets transaction ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.spark.errors import SPARK_ERRORS, TableBusy, TableRefused, from_spark
from mirrorlog.spark.landing.commit.delta_log import is_conflict
from mirrorlog.spark.landing.commit.durable import sync_checkpoints, sync_commits
from mirrorlog.spark.landing.commit.own_session import own_session
from mirrorlog.spark.landing.upkeep.schedule import Duty, FolderFiles, TableFiles, small_below
from mirrorlog.spark.landing.upsert.staging import remove_old

_ATTEMPTS: Final = 3
_FORGETTING: Final = "delta.setTransactionRetentionDuration"
_OURS: Final = "mirrorlog:"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Done:
    """One duty. Files and bytes `before` and `after`: of a compaction the table's data files; of a checkpoint the files
    of its log; of VACUUM all data files below the table's root, its versions' and rubbish. In a dry run `after` is
    what is expected."""

    table: str
    duty: Duty
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    dry_run: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "duty": str(self.duty),
            "files_before": self.files_before,
            "files_after": self.files_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "seconds": round(self.seconds, 3),
            "dry_run": self.dry_run,
        }


def look(spark: SparkSession, table: str, *, target_bytes: int) -> TableFiles:
    """The table's files now; version -1 when there is no table yet. Raises TableRefused when it is no landed table,
    SparkFailed."""
    return _failing_as_ours(lambda: _look(spark, table, target_bytes))


def compact(
    spark: SparkSession,
    table: str,
    *,
    target_bytes: int,
    zorder_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    compression: str = "snappy",
    dry_run: bool = False,
) -> Done:
    """Join small files; order what is joined by `zorder_by`, or make the table one with clusters by `cluster_by`.

    Raises TableRefused, TableBusy when commits of others came in between each time, SparkFailed.
    """
    began = time.perf_counter()
    before = look(spark, table, target_bytes=target_bytes)
    if before.version < 0:
        raise _no_table(table)
    if dry_run:
        expected = before.files_when_joined(target_bytes)
        return Done(table, Duty.COMPACT, before.files, expected, before.bytes, before.bytes, _since(began), True)
    session = own_session(spark, _compaction_settings(target_bytes, compression))
    _again_on_conflict(table, lambda: _optimize(session, table, zorder_by, cluster_by))
    after = look(spark, table, target_bytes=target_bytes)
    sync_commits(table, above=before.version, up_to=after.version)
    return Done(table, Duty.COMPACT, before.files, after.files, before.bytes, after.bytes, _since(began))


def checkpoint(spark: SparkSession, table: str, *, dry_run: bool = False) -> Done:
    """Write a checkpoint of the latest version and remove log files beyond the table's log retention.

    Raises TableRefused, SparkFailed.
    """
    began = time.perf_counter()
    _failing_as_ours(lambda: _refuse(table, _snapshot(spark, table)))
    before = _summary(spark, _log_of(table))
    after = before
    if not dry_run:
        _failing_as_ours(lambda: _checkpoint(spark, table))
        after = _summary(spark, _log_of(table))
    return Done(table, Duty.CHECKPOINT, before[0], after[0], before[1], after[1], _since(began), dry_run)


def vacuum(spark: SparkSession, table: str, *, keep_s: float, dry_run: bool = False) -> Done:
    """Remove files that no version of the last `keep_s` seconds has, and forgotten staging folders.

    `keep_s`: checked by `upkeep_schedule.safe_keep_s`. Raises TableRefused, TableBusy, SparkFailed.
    """
    began = time.perf_counter()
    _failing_as_ours(lambda: _refuse(table, _snapshot(spark, table)))
    before = _data_summary(spark, table)
    session = own_session(spark, _vacuum_settings(spark.sparkContext.defaultParallelism))
    command = f"VACUUM {_quoted(table)} RETAIN {keep_s / 3600:.6f} HOURS{' DRY RUN' if dry_run else ''}"
    _keep_stdout(spark)
    rows = _again_on_conflict(table, lambda: session.sql(command).collect())
    remove_old(spark, table, before_ms=int(time.time() * 1000 - keep_s * 1000), dry_run=dry_run)
    if dry_run:
        return Done(table, Duty.VACUUM, before[0], before[0] - len(rows), before[1], before[1], _since(began), True)
    after = _data_summary(spark, table)
    return Done(table, Duty.VACUUM, before[0], after[0], before[1], after[1], _since(began))


def _keep_stdout(spark: SparkSession) -> None:
    """Delta's VACUUM prints a line, which would stand among the JSON of a service or a command: have it on stderr."""
    jvm: Any = spark._jvm
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    console.setOutDirect(jvm.java.lang.System.err)


def _vacuum_settings(parallelism: int) -> dict[str, str]:
    return {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
        # So many tasks list the files; by default 10,000, which take minutes to do nothing on a small machine.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(8, 2 * parallelism)),
    }


def _compaction_settings(target_bytes: int, compression: str) -> dict[str, str]:
    return {
        "spark.databricks.delta.optimize.maxFileSize": str(target_bytes),
        "spark.databricks.delta.optimize.minFileSize": str(small_below(target_bytes)),
        "spark.sql.parquet.compression.codec": compression,
    }


# --- Spark and the JVM ----------------------------------------------------------------------------------------------


def _look(spark: SparkSession, table: str, target_bytes: int) -> TableFiles:
    snapshot = _snapshot(spark, table)
    if int(snapshot.version()) < 0:
        return TableFiles(-1)
    _refuse(table, snapshot)
    version, checkpointed = int(snapshot.version()), int(snapshot.checkpointProvider().version())
    files = DataFrame(snapshot.allFiles().toDF(), spark)
    small = f.col("size") < small_below(target_bytes)
    counts = (
        f.count("*").alias("files"),
        f.sum("size").alias("bytes"),
        f.count(f.when(small, 1)).alias("small_files"),
        f.coalesce(f.sum(f.when(small, f.col("size"))), f.lit(0)).alias("small_bytes"),
    )
    rows = files.groupBy(f.to_json("partitionValues").alias("partition")).agg(*counts).collect()
    folders = [FolderFiles(row.files, row.bytes, row.small_files, row.small_bytes) for row in rows]
    return TableFiles(version, folders, version - max(checkpointed, -1))


def _refuse(table: str, snapshot: Any) -> None:
    if int(snapshot.version()) < 0:
        raise _no_table(table)
    if not any(name.startswith(_OURS) for name in snapshot.transactions().keySet().mkString("\n").splitlines()):
        raise TableRefused(f"no landing has committed to {table}: it is not ours to tidy")
    if snapshot.metadata().configuration().contains(_FORGETTING):
        raise TableRefused(f"{table} forgets positions (property {_FORGETTING}): remove the property first")


def _no_table(table: str) -> TableRefused:
    return TableRefused(f"there is no Delta table at {table}")


def _optimize(session: SparkSession, table: str, zorder_by: Sequence[str], cluster_by: Sequence[str]) -> None:
    name = _quoted(table)
    if cluster_by and _clusters(session, name) != list(cluster_by):
        session.sql(f"ALTER TABLE {name} CLUSTER BY ({_names(cluster_by)})").collect()
    order = f" ZORDER BY ({_names(zorder_by)})" if zorder_by else ""
    session.sql(f"OPTIMIZE {name}{order}").collect()


def _clusters(session: SparkSession, name: str) -> list[str]:
    (row,) = session.sql(f"DESCRIBE DETAIL {name}").select("clusteringColumns").collect()
    return list(row.clusteringColumns or ())


def _checkpoint(spark: SparkSession, table: str) -> None:
    log = _delta_log(spark, table)
    snapshot = _snapshot(spark, table)
    if int(snapshot.checkpointProvider().version()) < int(snapshot.version()):
        written = log.writeCheckpointFiles(snapshot, _none(spark))
        log.writeLastCheckpointFile(log, written, True)
    # Before the log files that it stands for may go.
    sync_checkpoints(table)
    log.doLogCleanup(snapshot, _none(spark))


def _summary(spark: SparkSession, uri: str) -> tuple[int, int]:
    """Files below a folder, and their bytes; none when it is not there."""

    def count() -> tuple[int, int]:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(uri)
        system = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        if not system.exists(path):
            return 0, 0
        found = system.getContentSummary(path)
        return int(found.getFileCount()), int(found.getLength())

    return _failing_as_ours(count)


def _data_summary(spark: SparkSession, table: str) -> tuple[int, int]:
    whole, log = _summary(spark, table), _summary(spark, _log_of(table))
    return whole[0] - log[0], whole[1] - log[1]


def _log_of(table: str) -> str:
    return f"{table.rstrip('/')}/_delta_log"


def _delta_log(spark: SparkSession, table: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)


def _snapshot(spark: SparkSession, table: str) -> Any:
    # Not the cached one: another process may have committed.
    return _delta_log(spark, table).update(False, _none(spark), _none(spark))


def _none(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.scala.Option.empty()


def _again_on_conflict(table: str, work: Callable[[], _T]) -> _T:
    for _ in range(_ATTEMPTS):
        try:
            return work()
        except SPARK_ERRORS as error:
            if not is_conflict(error):
                raise from_spark(error) from error
            last = error
    raise TableBusy(f"others commit to {table} all the time; its upkeep was left for later") from last


def _failing_as_ours(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def _since(began: float) -> float:
    return time.perf_counter() - began


def _quoted(table: str) -> str:
    return f"delta.`{table.replace('`', '``')}`"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)
