"""The command line: `python -m bench.spark --help`.

One session, one node and one set of files for all rounds; the ways take turns, round by round, so that a slow minute of
the machine falls on all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import report, runner
from bench.cli import chosen
from bench.peers.peer import PeerFailed, Skipped
from bench.peers.servers import Servers
from bench.results import Results, conditions_now
from bench.spark import kafka
from bench.spark.data import CODEC, Rows, publish, write_parquet
from bench.spark.workloads import Lake, workloads
from bench.workload import OWN, Workload
from mirrorlog.errors import BadInput
from mirrorlog.spark.jars import default_directory, delta_jars
from mirrorlog.spark.session import UNIX_SOCKETS, local_session
from mirrorlog.testing import Cluster

LATEST: Final = Path("bench/results/spark.json")

_RECORDS: Final = 1024 * 1024
_QUICK_RECORDS: Final = 16 * 1024
_WIDTH: Final = 170


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all of mirrorlog's own ways were measured, 1 when one was not, 2 for bad options."""
    options = _parser().parse_args(arguments)
    try:
        results = Results.load(options.report) if options.report else _measured(options)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.report:
        print(report.markdown(results), end="")
        return 0
    report.show(results, Console(width=None if sys.stdout.isatty() else _WIDTH))
    return 1 if results.errors(OWN) else 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m bench.spark",
        description="Measures reading and landing with Spark beside Parquet, delta-rs and Kafka's source.",
        epilog="Example: python -m bench.spark --rounds 3 --only noop",
    )
    found.add_argument("--only", metavar="REGEX", help="ways whose `group workload case` fits")
    found.add_argument("--rounds", type=int, default=5, metavar="N", help="default 5")
    found.add_argument("--records", type=int, default=_RECORDS, metavar="N", help="of 1 KiB each; default 1048576")
    found.add_argument("--quick", action="store_true", help="little data, one round, to see that all of it runs")
    found.add_argument("--without-kafka", action="store_true", help="do not start Kafka")
    found.add_argument("--out", type=Path, default=LATEST, help=f"results as JSON (default {LATEST})")
    found.add_argument("--report", type=Path, metavar="JSON", help="print a results file as markdown and run nothing")
    return found


def _measured(options: argparse.Namespace) -> Results:
    results = Results(conditions_now(quick=options.quick))
    count = _QUICK_RECORDS if options.quick else options.records
    rows = {kind: Rows(kind, count) for kind in CODEC}
    with _lake(rows, with_kafka=not options.without_kafka) as lake:
        ways: Sequence[Workload] = chosen(workloads(lake, rows["random"], rows["text"]), options.only)
        # Spark compiles what it runs often: the first time of everything says nothing.
        for way in ways:
            _tell(f"warming up: {runner.told(runner.run_once(0, way))}")
        rounds = 1 if options.quick else options.rounds
        runner.measure(ways, rounds=rounds, results=results, out=options.out, tell=_tell)
    return results


@contextlib.contextmanager
def _lake(rows: dict[str, Rows], *, with_kafka: bool) -> Iterator[Lake]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirrorlog-bench-spark-")))
        broker = stack.enter_context(Servers("kafka")) if with_kafka else None
        jars, address = _kafka(broker)
        classes = ",".join(map(str, [*delta_jars(default_directory()), *jars]))
        settings = {"spark.master": "local[2]", "spark.driver.memory": "4g", "spark.jars": classes, **UNIX_SOCKETS}
        spark = local_session("bench", **settings)
        stack.callback(spark.stop)
        cluster = stack.enter_context(Cluster(1))
        node = next(iter(cluster.nodes.values()))
        lake = Lake(spark, folder, cluster.servers, node.data_dir, address)
        for each in rows.values():
            _tell(f"publishing {each.count:,} rows, {each.kind}")
            publish(each, cluster.servers)
            write_parquet(spark, each, cluster.servers, lake.parquet(each))
        if address is not None:
            kafka.publish(rows["random"], address)
        yield lake


def _kafka(servers: Servers | None) -> tuple[list[Path], str | None]:
    """The connector's jars and the node's address; none of them, and the reason told, when it cannot be had."""
    if servers is None:
        return [], None
    try:
        return kafka.connector_jars(), kafka.start(servers)
    except (Skipped, PeerFailed) as error:
        _tell(f"without Kafka: {error}")
        return [], None


def _tell(line: str) -> None:
    print(line, flush=True)
