"""Keeping landed tables tidy: by the service when it is time, or by hand.

    python -m mirrorlog.spark.landing.upkeep.upkeep --table lake/flights --compact --checkpoint --vacuum

In a service `TableUpkeep` is called after the steps of a landing: it looks whether anything is due (`upkeep_schedule`)
and does it (`upkeep_duties`), for the landing's table and its table of dead letters. What goes wrong there must not
end a landing: a table that is busy is left for later, any other error is told after all duties were tried.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.spark import command_line
from mirrorlog.spark.errors import TableBusy
from mirrorlog.spark.landing.definition import KEEP_S_MIN, Landing
from mirrorlog.spark.landing.upkeep.duties import Done, checkpoint, compact, look, vacuum
from mirrorlog.spark.landing.upkeep.schedule import Duty, due, may_be_due, safe_keep_s
from mirrorlog.spark.landing.write.storage import table_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 1024 * 1024
_DAY_S: Final = 24 * 3600.0


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


def do_duty(spark: SparkSession, care: TableCare, duty: Duty, *, dry_run: bool = False) -> Done:
    """Raises TableRefused, TableBusy, SparkFailed."""
    if duty is Duty.COMPACT:
        return compact(
            spark,
            care.table,
            target_bytes=care.target_bytes,
            zorder_by=care.zorder_by,
            cluster_by=care.cluster_by,
            compression=care.compression,
            dry_run=dry_run,
        )
    if duty is Duty.CHECKPOINT:
        return checkpoint(spark, care.table, dry_run=dry_run)
    return vacuum(spark, care.table, keep_s=care.keep_s, dry_run=dry_run)


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
        on_done: Callable[[Landing, Done], None] = lambda landing, done: None,
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
    done: list[Done] = []
    try:
        with spark_session(f"upkeep of {care.table}") as (spark, on_step):
            for duty in duties:
                on_step(f"{duty} of {care.table}")
                done.append(do_duty(spark, care, duty, dry_run=options.dry_run))
    finally:
        # Also when a later duty failed.
        for each in done:
            print(json.dumps(each.as_json()) if options.json else done_line(each), flush=True)
    return 0


def done_line(done: Done) -> str:
    """What a duty did, in one line."""
    what = {Duty.COMPACT: "data files", Duty.CHECKPOINT: "log files", Duty.VACUUM: "stored files"}[done.duty]
    would = "would be" if done.dry_run else "now"
    return (
        f"{done.table}: {done.duty}: {done.files_before:,} {what}, {would} {done.files_after:,} "
        f"({done.bytes_before / _MIB:.1f} MiB, {would} {done.bytes_after / _MIB:.1f}), {done.seconds:.1f} s"
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
        "mirrorlog.spark.landing.upkeep.upkeep",
        "Tidy a landed Delta table, also while landings run.",
        example="--table lake/flights --compact --checkpoint --vacuum",
    )
    add = parser.add_argument
    add("--table", required=True, metavar="TABLE", help="the Delta table: a path, delta://path, s3://…")
    add("--compact", action="store_true", help="join small files")
    add("--checkpoint", action="store_true", help="write a checkpoint, remove log files beyond the log retention")
    add("--vacuum", action="store_true", help="remove files that no version within the retention has")
    add("--dry-run", action="store_true", help="only say what there is to do")
    add("--target-mib", type=_whole, default=256, metavar="MIB", help="size of a file after compaction (default 256)")
    add("--zorder-by", metavar="COLUMNS", help="order what is compacted by these columns, commas between")
    add("--cluster-by", metavar="COLUMNS", help="make it a table of clusters by these columns (liquid clustering)")
    add("--keep-hours", type=float, default=168.0, metavar="H", help=f"retention, from {KEEP_S_MIN / 3600:g} on (168)")
    command_line.add_json(parser, "print a JSON object per duty")
    return parser


if __name__ == "__main__":
    sys.exit(main())
