"""Landing: a queue's confirmed records, appended to a Delta table, each exactly once.

    python -m mirrorlog.spark.land --servers 127.0.0.1:7401 --queue flights --to /data/flights

Where the landing stands is in the table itself: every commit carries Delta's transaction id, the application being the
queue and the version the next queue offset. Records and position are one commit, so a driver that dies before it
has added nothing, and one that dies after it has nothing left to do. Each run reads the position from the table, plans
from there to the confirmed end, and writes; what is there already is not written again, nor is an empty commit made.

The application id holds the cluster's id and the queue's incarnation, random at its declaration. A queue that is
deleted and made again, or a cluster made anew under the same name, is another queue: it is landed from its begin, and
the rows of the old one stay in the table beside it, with the same topic and offsets. Land it into another table where
that matters.

Two landings of one queue at once: when the other's commit falls into this one's write, Delta refuses this one
(LandingConflict) and nothing is added. Between reading the position for the last time and Delta's beginning its
transaction there is a moment (well below a second) in which another commit is not seen; then records are in the table
twice. Closing it needs a fencing epoch on the landing, which is not there yet: run one landing per queue and table.

Rejected: a checkpoint directory beside the table, which is a second truth that can be lost or be ahead of the first.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.delta_log import TableState, table_state
from mirrorlog.spark.errors import (
    SPARK_ERRORS,
    BeginUnknown,
    LandingConflict,
    RecordsMissing,
    TableOutOfStep,
    from_spark,
)
from mirrorlog.spark.nodes import ask_nodes
from mirrorlog.spark.options import offsets_json, parse_servers
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.source import FORMAT, register
from mirrorlog.spark.tls import NO_TLS, TlsFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A task makes a file: fewer records than this are not worth another one.
_RECORDS_PER_TASK_MIN: Final = 50_000
_CONFLICT: Final = "DELTA_CONCURRENT_TRANSACTION"

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LandResult:
    """Queue offsets `first` up to `next` (exclusive) were added: `rows` of them, 0 when nothing was left to do.

    `table_version`: of the table afterwards; None when there is no table because the queue is empty.
    """

    first: int
    next: int
    rows: int
    table_version: int | None


def land(
    spark: SparkSession,
    servers: str | Sequence[str],
    queue: str,
    table: str | PathLike[str],
    *,
    read_from: str = "master",
    tls: TlsFiles = NO_TLS,
    on_step: OnStep = lambda step: None,
) -> LandResult:
    """Append what the table at path `table` does not have of `queue`. Blocks; not for use on an event loop.

    Raises what the nodes answer, ConfigError for files of `tls` that are none, RecordsMissing when records were freed
    before they were landed, BeginUnknown when the master is away and nobody else can say whether they were,
    TableOutOfStep, LandingConflict, SparkFailed. After any of them the table has all of the range or none, and running
    again is safe.
    """
    table = fspath(table)
    addresses = parse_servers(servers) if isinstance(servers, str) else tuple(servers)
    on_step(f"asking {', '.join(addresses)} about queue {queue!r}")
    facts = ask_nodes(addresses, [queue], tls)[0]
    name = application_id(facts)
    state = table_state(spark, table, name)
    first = starting_offset(facts, state, table)
    if first == facts.next:
        return LandResult(first, first, 0, state.version)
    records = read(spark, addresses, facts, first=first, read_from=read_from, tls=tls)
    on_step(f"landing {facts.next - first:,} records of queue {queue!r} into {table}")
    if table_state(spark, table, name).landed != state.landed:
        raise _conflict(queue, table)
    append(records, table, application=name, version=facts.next, queue=queue)
    after = table_state(spark, table, name)
    if after.landed != facts.next:
        raise TableOutOfStep(f"{table} says {after.landed} after a commit up to {facts.next} of queue {queue!r}")
    return LandResult(first, facts.next, facts.next - first, after.version)


def application_id(facts: QueueFacts) -> str:
    """The queue's name in Delta's transaction ids: the same wherever it moves, another for a queue made anew."""
    return f"mirrorlog:{facts.cluster_id}:{facts.incarnation}"


def starting_offset(facts: QueueFacts, state: TableState, table: str) -> int:
    """The first queue offset that the table does not have. Raises BeginUnknown, RecordsMissing or TableOutOfStep."""
    if facts.begin_unknown and (state.landed is None or state.landed < facts.begin):
        raise BeginUnknown(
            f"{facts.begin_unknown}; nothing was added to {table}, run again once it is back",
            begin=facts.begin,
            next=facts.next,
        )
    if state.landed is None:
        return facts.begin
    if state.landed < facts.begin:
        raise RecordsMissing(
            f"queue {facts.name!r}: {state.landed} up to {facts.begin} were freed before they were landed in {table}; "
            "land into a new table to go on without them",
            begin=facts.begin,
            next=facts.next,
        )
    if state.landed > facts.next:
        raise TableOutOfStep(
            f"{table} has queue {facts.name!r} up to {state.landed}, the nodes confirm {facts.next}; "
            "if its master is down, run again once it is back"
        )
    return state.landed


def read(
    spark: SparkSession,
    servers: Sequence[str],
    facts: QueueFacts,
    *,
    first: int,
    read_from: str = "master",
    tls: TlsFiles = NO_TLS,
) -> DataFrame:
    """The records `first` up to `facts.next`, with headers: a fixed range, whatever is published meanwhile."""
    register(spark)
    tasks = min(spark.sparkContext.defaultParallelism, -(-(facts.next - first) // _RECORDS_PER_TASK_MIN))
    options = {
        "servers": ",".join(servers),
        "subscribe": facts.name,
        "startingOffsets": offsets_json(facts.name, first),
        "endingOffsets": offsets_json(facts.name, facts.next),
        "minPartitions": str(tasks),
        "includeHeaders": "true",
        "read_from": read_from,
        **tls.options(),
    }
    try:
        return spark.read.format(FORMAT).options(**options).load()
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def append(records: DataFrame, table: str, *, application: str, version: int, queue: str) -> None:
    """Records and transaction id in one commit; no commit when the table has that version already.

    Raises LandingConflict when another landing of the queue committed during the write, else SparkFailed or the error
    that a task ended with.
    """
    writer = records.write.format("delta").mode("append")
    try:
        writer.option("txnAppId", application).option("txnVersion", version).save(table)
    except SPARK_ERRORS as error:
        raise (_conflict(queue, table) if _CONFLICT in str(error) else from_spark(error)) from error


def _conflict(queue: str, table: str) -> LandingConflict:
    return LandingConflict(
        f"another landing of queue {queue!r} committed to {table} meanwhile; nothing was added, run again"
    )


# --- The command line -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 when the table has everything that was confirmed."""
    options = _parser().parse_args(arguments)
    try:
        tls = TlsFiles(options.tls_ca, options.tls_cert, options.tls_key)
        print(_run(options.servers, options.queue, options.to, options.read_from, tls), flush=True)
    except MirrorlogError as error:
        if options.debug:
            traceback.print_exc()
        print(f"error: {' '.join(error.message.split())}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m mirrorlog.spark.land",
        description="Append a queue's confirmed records to a Delta table, once.",
        epilog="Example: python -m mirrorlog.spark.land --servers 127.0.0.1:7401 --queue flights --to lake/flights",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # the example stays one line
    )
    parser.add_argument("--servers", required=True, help="client addresses host:port, commas between")
    parser.add_argument("--queue", required=True, metavar="NAME")
    parser.add_argument("--to", required=True, metavar="PATH", help="the Delta table; made when it is not there")
    parser.add_argument("--read-from", default="master", help="master (default), mirror, or a node's id")
    parser.add_argument("--tls-ca", metavar="FILE", help="for nodes that speak TLS: the authorities that are trusted")
    parser.add_argument("--tls-cert", metavar="FILE", help="a certificate to show, with --tls-key")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, not encrypted")
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    return parser


def _run(servers: str, queue: str, table: str, read_from: str, tls: TlsFiles) -> str:
    from rich.console import Console

    from mirrorlog.spark.session import any_session

    # Before the session, which takes seconds: an unknown queue or a wrong address is told at once.
    ask_nodes(parse_servers(servers), [queue], tls)
    with Console(stderr=True).status("starting Spark") as status:
        spark = any_session(f"land {queue}")
        try:
            result = land(spark, servers, queue, table, read_from=read_from, tls=tls, on_step=status.update)
        finally:
            spark.stop()
    return _line(result, queue, table)


def _line(result: LandResult, queue: str, table: str) -> str:
    version = "no table yet" if result.table_version is None else f"table version {result.table_version}"
    if not result.rows:
        return f"nothing to land: {table} has queue {queue!r} up to {result.next} ({version})"
    return (
        f"landed {result.rows:,} records of queue {queue!r}, {result.first} up to {result.next}, in {table} ({version})"
    )


if __name__ == "__main__":
    sys.exit(main())
