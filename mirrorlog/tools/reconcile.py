"""`mqtool reconcile`: compare a queue's log with the Delta table that it was landed in.

A thin face of `python -m mirrorlog.spark.reconcile`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.tools.spark_job import become, given, nodes_of


class LandingWrite(StrEnum):
    """Of the landing that made the table."""

    APPEND = "append"
    UPSERT = "upsert"


def reconcile(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name, or several with commas between.")],
    *,
    table: Annotated[str, typer.Option("--table", metavar="TABLE", help="The Delta table: a path, s3://…")],
    dead_letters: Annotated[
        str | None, typer.Option("--dead-letters", metavar="TABLE", help="The table of what could not be decoded.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option("--path", help="Log directories of a cluster that is offline, instead of nodes.")
    ] = None,
    write: Annotated[LandingWrite, typer.Option("--write", help="How the table was landed.")] = LandingWrite.APPEND,
    first: Annotated[int | None, typer.Option("--from", help="First queue offset; by default all.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Queue offset to end before, or latest; by default the table's own.")
    ] = None,
    ranges: Annotated[int | None, typer.Option("--ranges", help="Ranges to name at most.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare a queue's log with its table: each record once, with the same content; print the ranges that differ.

    Exit code 15 when they differ. It needs Spark and Java (pip install mirrorlog[spark]).

    Example: mqtool reconcile flights --table /lake/flights
    """
    arguments = [
        *("--queue", queue, "--table", table, "--write", write.value),
        *given("--dead-letters", dead_letters),
        *given("--from", first),
        *given("--until", until),
        *given("--ranges", ranges),
        *(["--json"] if as_json else ()),
        *(["--debug"] if session_of(context).debug else ()),
        *(given("--path", path) if path is not None else nodes_of(context)),
    ]
    become("mirrorlog.spark.reconcile", arguments, what="reconciling")
