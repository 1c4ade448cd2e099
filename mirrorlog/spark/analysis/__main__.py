"""The analysis jobs on the command line: a table on the terminal, or JSON; files and a picture with --out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrorlog.spark import command_line
from mirrorlog.spark.analysis.jobs import EVERY, JOBS, AnalysisRequest, report
from mirrorlog.spark.analysis.plots import draw, save
from mirrorlog.spark.analysis.report import FORMATS, AnalysisReport
from mirrorlog.spark.checks.landed_table import open_table

_ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 without one."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.analysis",
        "Measure a landed queue: throughput, lag, redeliveries, latency; the time is that of the append.",
        example="latency --table lake/flights --out report",
    )
    parser.add_argument("job", choices=(*JOBS, _ALL))
    parser.add_argument("--table", required=True, metavar="PATH", help="the Delta table, raw or decoded")
    parser.add_argument("--queue", default="", metavar="NAME", help="or several with commas between; by default all")
    parser.add_argument("--every", default=EVERY, metavar="INTERVAL", help=f"length of a stretch of time ({EVERY})")
    parser.add_argument("--by-key", action="store_true", help="redeliveries: a record's key is its identity")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write JOB.csv or JOB.parquet, and JOB.png, there")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help="of the rows in DIR (csv)")
    command_line.add_json(parser)
    return parser


def _work(options: argparse.Namespace) -> int:
    found = _reports(options)
    written = [path for each in found for path in _write(each, options)] if options.out else []
    command_line.show(found, as_json=options.json, soft_wrap=True)
    for path in written if not options.json else ():
        print(f"wrote {path}")
    return 0


def _reports(options: argparse.Namespace) -> list[AnalysisReport]:
    from mirrorlog.spark.session import spark_session

    queues = tuple(name.strip() for name in options.queue.split(",") if name.strip())
    asked = AnalysisRequest(queues, options.every, options.by_key)
    with spark_session(f"analysis {options.job}") as (spark, on_step):
        table = open_table(spark, options.table)
        found = []
        for job in JOBS if options.job == _ALL else (options.job,):
            on_step(f"{job} of {table.path}")
            found.append(report(spark, table, job, asked))
        return found


def _write(found: AnalysisReport, options: argparse.Namespace) -> list[Path]:
    figure = draw(found.job, found.title, found.rows)
    return [found.write(options.out, options.format), save(figure, options.out / f"{found.job}.png")]


if __name__ == "__main__":
    sys.exit(main())
