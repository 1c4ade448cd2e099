"""`mqtool audit`: compare all copies of a queue by their bytes.

A thin face of `python -m mirrorlog.spark.audit`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.tools.spark_job import become, given, nodes_of


def audit(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name, or several with commas between.")],
    *,
    first: Annotated[int | None, typer.Option("--from", help="First queue offset; by default its begin.")] = None,
    until: Annotated[
        int | None, typer.Option("--until", help="Queue offset to end before; by default what is confirmed.")
    ] = None,
    bucket: Annotated[int | None, typer.Option("--bucket", help="Queue offsets per checksum.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare all copies of a queue by the bytes of their batches; print where they differ or are damaged.

    Every node's copy is read whole. Exit code 15 when one differs or is damaged, 9 when one could not be read. It needs
    the Python package of Spark, not Java (pip install mirrorlog[spark]).

    Example: mqtool audit flights
    """
    arguments = [
        *("--queue", queue),
        *given("--from", first),
        *given("--until", until),
        *given("--bucket", bucket),
        *(["--json"] if as_json else ()),
        *(["--debug"] if session_of(context).debug else ()),
        *nodes_of(context),
    ]
    become("mirrorlog.spark.audit", arguments, what="an audit")
