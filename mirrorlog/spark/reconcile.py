"""Reconciliation: a queue's log against the table that it was landed in, to the exact queue offsets that differ.

    python -m mirrorlog.spark.reconcile flights --servers 127.0.0.1:7401 --table lake/flights

Both sides are read once, by tasks, and become a count and an order-independent sum of hashes per bucket of queue
offsets (`checks.fingerprints`, `checks.buckets`). Only buckets whose lines differ are read again and looked at by
offset, and of those as many as there are ranges to print. So equal tables cost one scan of each side, and a table that
is wrong everywhere does not drown the driver.

The log side is the data source itself, from nodes or from log directories (`path`), so what it guards (each offset of
a range exactly once, below the confirmed end) is guarded here. What retention has taken cannot be compared: there the
table must have each offset once. Declared losses are named and are nothing missing.

Rejected: a join of all rows by offset (a shuffle of everything to learn that nothing differs), and trust in the
table's statistics (they are written by whoever wrote the wrong rows).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from os import PathLike

from pyspark.sql import SparkSession

from mirrorlog.errors import BadInput
from mirrorlog.spark import command_line
from mirrorlog.spark.checks.buckets import BUCKET_OFFSETS
from mirrorlog.spark.checks.comparison import RANGES_MAX, Comparison, ComparisonLimits
from mirrorlog.spark.checks.differences import Reconciliation
from mirrorlog.spark.checks.landed_table import open_table, refuse_absent
from mirrorlog.spark.checks.scope import ComparisonRequest, LogSource, Until, Write, scope
from mirrorlog.spark.command_line import OnStep
from mirrorlog.spark.errors import BeginUnknown, translated
from mirrorlog.spark.options import parse_servers


def reconcile(
    spark: SparkSession,
    log: LogSource,
    queue: str,
    table: str | PathLike[str],
    *,
    dead_letters: str | PathLike[str] | None = None,
    first: int | None = None,
    until: Until = None,
    write: Write = "append",
    limits: ComparisonLimits | None = None,
    on_step: OnStep = lambda step: None,
) -> Reconciliation:
    """Compare the Delta table at `table`, and the table of dead letters beside it, with `queue` in `log`. Blocks.

    `first` and `until` (exclusive): queue offsets; by default all that either side has, up to the position that the
    table itself names, or with "latest" up to the log's confirmed end. `write`: as in the definition of the landing.

    Raises BadInput, NoSuchQueue and what else the nodes answer, BeginUnknown, TableOutOfStep when the table has no
    position for the queue, SparkFailed. That they differ is no error here: see `Reconciliation.equal`.
    """
    on_step(f"asking about queue {queue!r}")
    facts = log.facts(queue)
    if facts.begin_unknown and (first is None or first < facts.begin):
        raise BeginUnknown(f"{facts.begin_unknown}; run again once it does, or begin at {facts.begin} or later")
    landed = open_table(spark, table)
    dead = None if dead_letters is None else open_table(spark, dead_letters)
    with translated():
        compared = scope(spark, log, facts, landed, ComparisonRequest(write, first, until, dead))
        return Comparison(spark, compared, limits or ComparisonLimits(), on_step).result()


# --- The command line -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is 0 when all tables are equal to their logs, 15 when one differs, else that of the error."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.reconcile",
        "Compare a queue's log with the Delta table that it was landed in; print the ranges that differ.\n"
        "Exit code 0: equal; 15: they differ.",
        example="flights --servers 127.0.0.1:7401 --table lake/flights",
    )
    command_line.add_queue(parser)
    command_line.add_servers(parser)
    parser.add_argument("--path", metavar="DIR", help="log directories on a shared or local path instead of nodes")
    parser.add_argument("--table", required=True, metavar="PATH", help="the Delta table")
    parser.add_argument("--dead-letters", metavar="PATH", help="the table of what could not be decoded")
    parser.add_argument("--write", choices=("append", "upsert"), default="append", help="of the landing")
    parser.add_argument("--from", dest="first", type=int, metavar="N", help="first queue offset; by default all")
    parser.add_argument(
        "--until", metavar="N", help="queue offset to end before, or latest; by default the table's own"
    )
    bucket = "queue offsets per checksum"
    parser.add_argument("--bucket", type=int, default=BUCKET_OFFSETS, metavar="N", help=bucket)
    parser.add_argument("--ranges", type=int, default=RANGES_MAX, metavar="N", help="ranges to name at most")
    parser.add_argument("--read-from", metavar="WHO", help="master (default), mirror, or a node's id")
    command_line.add_access(parser)
    command_line.add_json(parser)
    return parser


def _work(options: argparse.Namespace) -> int:
    found = _run(options)
    command_line.show(found, as_json=options.json, soft_wrap=True)
    return max((wrong.exit_code for each in found if (wrong := each.error())), default=0)


def _run(options: argparse.Namespace) -> list[Reconciliation]:
    from mirrorlog.spark.session import spark_session

    log = _log(options)
    queues = command_line.queues_of(options)
    limits = ComparisonLimits(options.bucket, options.ranges)
    until = _until(options.until)
    refuse_absent(options.table, options.dead_letters)
    for queue in queues:
        log.facts(queue)  # before the session, which takes seconds: an unknown queue is told at once
    with spark_session(f"reconcile {', '.join(queues)}") as (spark, on_step):
        return [
            reconcile(
                spark, log, queue, options.table, dead_letters=options.dead_letters, first=options.first,
                until=until, write=options.write, limits=limits, on_step=on_step,
            )
            for queue in queues
        ]  # fmt: skip


def _log(options: argparse.Namespace) -> LogSource:
    command_line.refuse_beside_path(options)
    if options.path is not None:
        return LogSource(path=options.path)
    servers = parse_servers(command_line.servers_of(options))
    return LogSource(servers, read_from=options.read_from or "master", access=command_line.access_of(options))


def _until(text: str | None) -> Until:
    if text is None:
        return None
    if text == "latest":
        return "latest"
    if not (text.isascii() and text.isdigit()):
        raise BadInput(f"--until is a queue offset or latest, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
