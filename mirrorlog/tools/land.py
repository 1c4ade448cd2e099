"""`mqtool land`: append a queue's confirmed records to a Delta table.

A thin face: it becomes `python -m mirrorlog.spark.land`, which needs Spark. So this tool starts fast, and works, where
there is none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mirrorlog.errors import BadInput, MissingDependency
from mirrorlog.tools.session import session_of


def land(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="The queue's name, or several with commas between.")] = None,
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TABLE", help="The Delta table: a path, delta://path, s3://…")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file of many landings instead.")] = None,
    path: Annotated[
        Path | None, typer.Option("--path", help="Log directories of a cluster that is offline, instead of nodes.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on landing what comes.")] = False,
    once: Annotated[bool, typer.Option("--once", help="With --config: end when all is landed.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of a landing, as in the file: mode, partition_by, …"),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the hold of a run of the same name that may still live.")
    ] = False,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Serve Prometheus metrics while it runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per step.")] = False,
) -> None:
    """Append a queue's confirmed records to a Delta table, each exactly once; the table tells where to go on.

    It needs Spark and Java (pip install mirrorlog[spark]). With --config, a file says which queues go where.

    Example: mqtool land flights --to delta:///lake/flights

    Example: mqtool land orders --to /lake/orders --follow --set 'partition_by=["date(timestamp)"]'
    """
    if config is None and (queue is None or to is None):
        raise BadInput("give a queue and a table: mqtool land QUEUE --to TABLE, or many with --config FILE")
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency("landing needs Spark: pip install 'mirrorlog[spark]'")
    flags = {"--follow": follow, "--once": once, "--take-over": take_over, "--json": as_json}
    arguments = [
        *([queue] if queue is not None else ()),
        *_given("--to", to),
        *_given("--config", config),
        *_given("--path", path),
        *_given("--metrics-port", metrics_port),
        *(part for each in settings or () for part in ("--set", each)),
        *(name for name, wanted in flags.items() if wanted),
        *(["--debug"] if session_of(context).debug else ()),
        *(_nodes(context) if config is None and path is None else ()),
    ]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "mirrorlog.spark.land", *arguments])


def _given(option: str, value: object) -> Iterator[str]:
    if value is not None:
        yield from (option, str(value))


def _nodes(context: typer.Context) -> Iterator[str]:
    """The global options, as they were given: a context of TLS cannot be handed on."""
    yield from ("--servers", ",".join(session_of(context).servers))
    given = context.parent.params if context.parent is not None else {}
    for name in ("tls_ca", "tls_cert", "tls_key"):
        yield from _given(f"--{name.replace('_', '-')}", given.get(name))
