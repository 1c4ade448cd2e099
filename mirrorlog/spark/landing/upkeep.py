"""Upkeep of landed tables: compaction, checkpoints and VACUUM, by the service when it is time, or by hand.

    python -m mirrorlog.spark.landing.upkeep --table lake/flights --compact --checkpoint --vacuum

Small commits make small files and a long log. Each duty is done by Delta itself; what stands here is when it is done,
and what keeps it from hurting a landing or a reader:

- **Compaction** is OPTIMIZE: files below half the target are joined per partition, with Z-order or by the table's
  clusters if it has them. It changes no row (`dataChange` is false), so Delta lets it and appends of others pass each
  other in either order; a merge that removes one of its files makes one of the two fail, and try again.
- **Checkpoint** writes Delta's checkpoint of the latest version, has it on the disk, and only then lets Delta remove
  log files that are older than the table's `delta.logRetentionDuration`. Transaction ids are in every checkpoint.
- **VACUUM** removes what no version within reach needs, with Delta's own check of the retention off: ours knows how
  long a step takes. It must not take the files of a step that is not committed yet, which no commit names. So a step
  has a time within which it must commit (`storage.STEP_S_MAX`), and nothing younger than twice that is removed: clocks
  of the storage and of two drivers may differ by hours.

A table that no landing committed to is refused, and one that forgets transaction ids. What goes wrong must not end a
landing: a table that is busy is left for later, any other error is told after all duties were tried.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.spark import command_line
from mirrorlog.spark.errors import SPARK_ERRORS, TableBusy, TableRefused, UnsafeRetention, from_spark, translated
from mirrorlog.spark.landing.commit.delta_log import is_conflict, none, open_log, own_session, snapshot_of
from mirrorlog.spark.landing.commit.durable import sync_checkpoints, sync_commits
from mirrorlog.spark.landing.definition import Landing, Upkeep
from mirrorlog.spark.landing.upsert.staging import file_system, remove_old
from mirrorlog.spark.landing.write.storage import KEEP_S_MIN, table_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_FILES_MIN: Final = 8
"""Fewer small files are not worth a scheduled compaction: it would write the last, nearly full one again and again."""
SMALL_FILES_MAX: Final = 1_000
"""So many are compacted before their time."""
COMMITS_MAX: Final = 100
"""After so many commits a checkpoint comes before its time."""

_LOOK_S: Final = 60.0
_ATTEMPTS: Final = 3
_FORGETTING: Final = "delta.setTransactionRetentionDuration"
_OURS: Final = "mirrorlog:"
_MIB: Final = 1024 * 1024
_DAY_S: Final = 24 * 3600.0

_T = TypeVar("_T")


class Duty(StrEnum):
    """What there is to do, in the order in which it is done: a checkpoint after the commit of a compaction."""

    COMPACT = "compact"
    CHECKPOINT = "checkpoint"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's data files, -1 being the version of a table that is not there. `joinable`: small ones that have another
    one beside them in their partition; `commits_since_checkpoint`: that no checkpoint has."""

    version: int
    files: int = 0
    bytes: int = 0
    joinable: int = 0
    commits_since_checkpoint: int = 0


def small_below(target_bytes: int) -> int:
    """Files below this size are joined: a file that is half full is left alone."""
    return target_bytes // 2


def may_be_due(upkeep: Upkeep, now_s: float, *, looked_s: float | None) -> bool:
    """Whether it is worth to look at the table's files, which costs a job: once a minute, or as often as a duty comes.

    `looked_s`: when that was done last, None never; `now_s`: of the same monotonic clock.
    """
    every = _every(upkeep).values()
    return bool(every) and (looked_s is None or now_s - looked_s >= min(_LOOK_S, *every))


def due(upkeep: Upkeep, done_s: Mapping[Duty, float], now_s: float, seen: TableFiles) -> list[Duty]:
    """What to do now, in order. A duty that was never done is due; one that has no time in `upkeep` is not ours."""
    every = _every(upkeep)
    in_time = {duty for duty in every if duty not in done_s or now_s - done_s[duty] >= every[duty]}
    joinable, commits = seen.joinable, seen.commits_since_checkpoint
    wanted = {
        Duty.COMPACT: joinable >= (SMALL_FILES_MIN if Duty.COMPACT in in_time else SMALL_FILES_MAX),
        Duty.CHECKPOINT: commits >= (1 if Duty.CHECKPOINT in in_time else COMMITS_MAX),
        Duty.VACUUM: Duty.VACUUM in in_time,
    }
    return [duty for duty in Duty if wanted[duty] and duty in every]


def safe_keep_s(keep_s: float) -> float:
    """`keep_s` itself. Raises UnsafeRetention when files of a step that is at work could be younger."""
    if keep_s < KEEP_S_MIN:
        raise UnsafeRetention(
            f"keeping files for {keep_s:g} s is too short: those of a landing's step that is not committed yet would "
            f"be removed; keep them for {KEEP_S_MIN:g} s (24 hours) or longer"
        )
    return keep_s


def _every(upkeep: Upkeep) -> dict[Duty, float]:
    """The duties that are this landing's, and the times between two runs."""
    given = zip(Duty, (upkeep.compact_every_s, upkeep.checkpoint_every_s, upkeep.vacuum_every_s), strict=True)
    return {duty: every_s for duty, every_s in given if every_s is not None}


# --- Doing it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DutyDone:
    """One duty. Files and bytes `before` and `after`: of a compaction the table's data files; of a checkpoint the files
    of its log; of VACUUM all data files below the table's root, its versions' and rubbish."""

    table: str
    duty: Duty
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "duty": str(self.duty), "seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCare:
    """How one table is tidied. `target_bytes`: of a file after compaction; `keep_s`: what VACUUM leaves."""

    table: str
    target_bytes: int = 256 * _MIB
    zorder_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    compression: str = "snappy"
    keep_s: float = 7 * _DAY_S

    @classmethod
    def of(cls, landing: Landing) -> Iterator[TableCare]:
        """Of the landing's table, and of its dead letters. Raises UnsafeRetention."""
        keep_s = landing.upkeep.vacuum_keep_s
        if landing.upkeep.vacuum_every_s is not None:
            safe_keep_s(keep_s)
        yield cls(
            table=landing.table,
            target_bytes=landing.target_file_bytes,
            zorder_by=landing.zorder_by,
            cluster_by=landing.cluster_by,
            compression=landing.compression,
            keep_s=keep_s,
        )
        if landing.dead_letters is not None:
            yield cls(table=landing.dead_letters, target_bytes=landing.target_file_bytes, keep_s=keep_s)


def do_duty(spark: SparkSession, care: TableCare, duty: Duty) -> DutyDone:
    """Raises TableRefused, TableBusy when commits of others came in between each time, SparkFailed."""
    do = {Duty.COMPACT: _compact, Duty.CHECKPOINT: _checkpoint, Duty.VACUUM: _vacuum}
    began = time.perf_counter()
    before, after = do[duty](spark, care)
    return DutyDone(care.table, duty, before[0], after[0], before[1], after[1], time.perf_counter() - began)


_Counts = tuple[int, int]
"""Files and bytes."""


def _compact(spark: SparkSession, care: TableCare) -> tuple[_Counts, _Counts]:
    before = look(spark, care.table, target_bytes=care.target_bytes)
    if before.version < 0:
        raise _no_table(care.table)
    settings = {
        "spark.databricks.delta.optimize.maxFileSize": str(care.target_bytes),
        "spark.databricks.delta.optimize.minFileSize": str(small_below(care.target_bytes)),
        "spark.sql.parquet.compression.codec": care.compression,
    }
    session = own_session(spark, settings)
    _again_on_conflict(care.table, lambda: _optimize(session, care))
    after = look(spark, care.table, target_bytes=care.target_bytes)
    sync_commits(care.table, above=before.version, up_to=after.version)
    return (before.files, before.bytes), (after.files, after.bytes)


def _optimize(session: SparkSession, care: TableCare) -> None:
    name = _quoted(care.table)
    if care.cluster_by:
        (row,) = session.sql(f"DESCRIBE DETAIL {name}").select("clusteringColumns").collect()
        if tuple(row.clusteringColumns or ()) != care.cluster_by:
            session.sql(f"ALTER TABLE {name} CLUSTER BY ({_names(care.cluster_by)})").collect()
    order = f" ZORDER BY ({_names(care.zorder_by)})" if care.zorder_by else ""
    session.sql(f"OPTIMIZE {name}{order}").collect()


@translated()
def _checkpoint(spark: SparkSession, care: TableCare) -> tuple[_Counts, _Counts]:
    """Of the latest version; then log files beyond the table's log retention go."""
    table = care.table
    _refuse(table, snapshot_of(spark, table))
    before = _stored(spark, _log_of(table))
    log, snapshot = open_log(spark, table), snapshot_of(spark, table)
    if int(snapshot.checkpointProvider().version()) < int(snapshot.version()):
        written = log.writeCheckpointFiles(snapshot, none(spark))
        log.writeLastCheckpointFile(log, written, True)
    # Before the log files that it stands for may go.
    sync_checkpoints(table)
    log.doLogCleanup(snapshot, none(spark))
    return before, _stored(spark, _log_of(table))


@translated()
def _vacuum(spark: SparkSession, care: TableCare) -> tuple[_Counts, _Counts]:
    """Files that no version of the last `keep_s` seconds has, and staging that nobody came back for, which VACUUM does
    not see."""
    table, keep_s = care.table, care.keep_s  # `safe_keep_s` has checked it
    _refuse(table, snapshot_of(spark, table))
    before = _stored_data(spark, table)
    # So many tasks list the files; by default 10,000, which take minutes to do nothing on a small machine.
    listing = str(max(8, 2 * spark.sparkContext.defaultParallelism))
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": listing,
    }
    session = own_session(spark, settings)
    command = f"VACUUM {_quoted(table)} RETAIN {keep_s / 3600:.6f} HOURS"
    _keep_stdout(spark)
    _again_on_conflict(table, lambda: session.sql(command).collect())
    remove_old(spark, table, before_ms=int(time.time() * 1000 - keep_s * 1000))
    return before, _stored_data(spark, table)


def _keep_stdout(spark: SparkSession) -> None:
    """Delta's VACUUM prints a line, which would stand among the JSON of a service or a command: have it on stderr."""
    jvm: Any = spark._jvm
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    console.setOutDirect(jvm.java.lang.System.err)


@translated()
def look(spark: SparkSession, table: str, *, target_bytes: int) -> TableFiles:
    """The table's files now; version -1 when there is no table yet. Raises TableRefused when it is no landed table,
    SparkFailed."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as f

    snapshot = snapshot_of(spark, table)
    if int(snapshot.version()) < 0:
        return TableFiles(-1)
    _refuse(table, snapshot)
    version, checkpointed = int(snapshot.version()), int(snapshot.checkpointProvider().version())
    files = DataFrame(snapshot.allFiles().toDF(), spark)
    small = f.count_if(f.col("size") < small_below(target_bytes))
    counts = (f.count("*").alias("files"), f.sum("size").alias("bytes"), small.alias("small"))
    rows = files.groupBy(f.to_json("partitionValues").alias("partition")).agg(*counts).collect()
    return TableFiles(
        version,
        files=sum(row.files for row in rows),
        bytes=sum(row.bytes for row in rows),
        joinable=sum(row.small for row in rows if row.small > 1),
        commits_since_checkpoint=version - max(checkpointed, -1),
    )


def _refuse(table: str, snapshot: Any) -> None:
    if int(snapshot.version()) < 0:
        raise _no_table(table)
    if not any(name.startswith(_OURS) for name in snapshot.transactions().keySet().mkString("\n").splitlines()):
        raise TableRefused(f"no landing has committed to {table}: it is not ours to tidy")
    if snapshot.metadata().configuration().contains(_FORGETTING):
        raise TableRefused(f"{table} forgets positions (property {_FORGETTING}): remove the property first")


def _no_table(table: str) -> TableRefused:
    return TableRefused(f"there is no Delta table at {table}")


@translated()
def _stored(spark: SparkSession, uri: str) -> _Counts:
    """What lies below a folder; nothing when it is not there."""
    system, path = file_system(spark, uri)
    if not system.exists(path):
        return 0, 0
    found = system.getContentSummary(path)
    return int(found.getFileCount()), int(found.getLength())


def _stored_data(spark: SparkSession, table: str) -> _Counts:
    whole, log = _stored(spark, table), _stored(spark, _log_of(table))
    return whole[0] - log[0], whole[1] - log[1]


def _log_of(table: str) -> str:
    return f"{table.rstrip('/')}/_delta_log"


def _again_on_conflict(table: str, work: Callable[[], _T]) -> _T:
    for _ in range(_ATTEMPTS):
        try:
            return work()
        except SPARK_ERRORS as error:
            if not is_conflict(error):
                raise from_spark(error) from error
            last = error
    raise TableBusy(f"others commit to {table} all the time; its upkeep was left for later") from last


def _quoted(table: str) -> str:
    return f"delta.`{table.replace('`', '``')}`"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in columns)


# --- In a service ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Clockwork:
    """When the duties of a table were done last, and when it was looked at."""

    done_s: dict[Duty, float] = field(default_factory=dict)
    looked_s: float | None = None


class TableUpkeep:
    """What a service calls with a landing, in the thread of its steps; cheap while nothing can be due.

    `on_done`: told of each duty. `now`: a monotonic clock, seconds.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        on_done: Callable[[Landing, DutyDone], None] = lambda landing, done: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark = spark
        self._on_done = on_done
        self._now = now
        self._tables: dict[str, _Clockwork] = {}

    def __call__(self, landing: Landing) -> None:
        """Do what is due. Raises the first error that was not TableBusy, after all duties were tried."""
        errors: list[MirrorlogError] = []
        for care in TableCare.of(landing):
            try:
                self._tidy(landing, care, errors)
            except MirrorlogError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _tidy(self, landing: Landing, care: TableCare, errors: list[MirrorlogError]) -> None:
        clockwork = self._tables.setdefault(care.table, _Clockwork())
        now_s = self._now()
        if not may_be_due(landing.upkeep, now_s, looked_s=clockwork.looked_s):
            return
        clockwork.looked_s = now_s
        seen = look(self._spark, care.table, target_bytes=care.target_bytes)
        if seen.version < 0:
            return  # Nothing was landed yet, or there was no dead letter.
        for duty in due(landing.upkeep, clockwork.done_s, now_s, seen):
            # Counts as done whatever comes of it: an error must not come again with every step.
            clockwork.done_s[duty] = now_s
            try:
                self._on_done(landing, do_duty(self._spark, care, duty))
            except TableBusy:
                del clockwork.done_s[duty]
            except MirrorlogError as error:
                errors.append(error)


# --- The command line -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 when all was done."""
    return command_line.run(parser().parse_args(arguments), _work)


def _work(options: argparse.Namespace) -> int:
    from mirrorlog.spark.session import spark_session

    care, duties = _care(options), _duties(options)
    done: list[DutyDone] = []
    try:
        with spark_session(f"upkeep of {care.table}") as (spark, on_step):
            for duty in duties:
                on_step(f"{duty} of {care.table}")
                done.append(do_duty(spark, care, duty))
    finally:
        # Also when a later duty failed.
        for each in done:
            print(json.dumps(each.as_json()) if options.json else done_line(each), flush=True)
    return 0


def done_line(done: DutyDone) -> str:
    """What a duty did, in one line."""
    what = {Duty.COMPACT: "data files", Duty.CHECKPOINT: "log files", Duty.VACUUM: "stored files"}[done.duty]
    return (
        f"{done.table}: {done.duty}: {done.files_before:,} {what}, now {done.files_after:,} "
        f"({done.bytes_before / _MIB:.1f} MiB, now {done.bytes_after / _MIB:.1f}), {done.seconds:.1f} s"
    )


def _duties(options: argparse.Namespace) -> list[Duty]:
    found = [duty for duty in Duty if getattr(options, duty)]
    if not found:
        raise BadInput("nothing to do: give --compact, --checkpoint, --vacuum, or several of them")
    return found


def _care(options: argparse.Namespace) -> TableCare:
    keep_s = options.keep_hours * 3600.0
    return TableCare(
        table=table_uri(options.table),
        target_bytes=options.target_mib * _MIB,
        zorder_by=_columns(options.zorder_by),
        cluster_by=_columns(options.cluster_by),
        keep_s=safe_keep_s(keep_s) if options.vacuum else keep_s,
    )


def _columns(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.landing.upkeep",
        "Tidy a landed Delta table, also while landings run.",
        example="--table lake/flights --compact --checkpoint --vacuum",
    )
    add = parser.add_argument
    add("--table", required=True, metavar="TABLE", help="the Delta table: a path, delta://path, s3://…")
    add("--compact", action="store_true", help="join small files")
    add("--checkpoint", action="store_true", help="write a checkpoint, remove log files beyond the log retention")
    add("--vacuum", action="store_true", help="remove files that no version within the retention has")
    add("--target-mib", type=_whole, default=256, metavar="MIB", help="size of a file after compaction (default 256)")
    add("--zorder-by", metavar="COLUMNS", help="order what is compacted by these columns, commas between")
    add("--cluster-by", metavar="COLUMNS", help="make it a table of clusters by these columns (liquid clustering)")
    add("--keep-hours", type=float, default=168.0, metavar="H", help=f"retention, from {KEEP_S_MIN / 3600:g} on (168)")
    command_line.add_json(parser, "print a JSON object per duty")
    return parser


if __name__ == "__main__":
    sys.exit(main())
