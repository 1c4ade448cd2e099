"""`mqtool forget-node`: a node will not come back."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, session_of


def forget_node(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The node.")],
    *,
    force: Annotated[bool, typer.Option("--force", help="Also one that is up: it ends then.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a node out of the cluster for good: it votes no more and its copies count no more.

    Refused while it is up (exit code 3), and while it holds the last copy of a log that may be whole: mqtool promote
    another one first. Its name is free then: a node with a blank disk may join by it.

    Example: mqtool forget-node n3
    """
    session_of(context).run(lambda client: client.admin.forget_node(node, force=force))
    if as_json:
        print_json({"node_id": node, "forgotten": True})
    else:
        typer.echo(f"node {node} is forgotten")
