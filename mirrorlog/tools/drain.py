"""`mqtool drain`: a node hands over what it masters, before it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.errors import BadInput
from mirrorlog.tools.cluster_view import masters
from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.tools.waiting import Timeout, Wait, until_nothing_left
from mirrorlog.wire.messages import ClusterStatus

if TYPE_CHECKING:
    from mirrorlog.client import Client


def drain(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="The node; by default the one that answers.", show_default=False)] = "",
    *,
    undo: Annotated[bool, typer.Option("--undo", help="It may master logs again.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Let a node hand over what it masters to in-sync mirrors; it gets no new copies until its next start.

    One log after the other, each in a moment; nothing is lost. A log without another in-sync copy stays. A node that is
    stopped by SIGTERM does this by itself. After --undo logs come back by mqtool rebalance.

    Example: mqtool drain n1 --wait
    """
    if undo and wait:
        raise BadInput("--undo is done at once: there is nothing to wait for")

    async def ask(client: Client) -> str:
        drained = await client.admin.drain(node, draining=not undo)
        if wait:
            await until_nothing_left(client, lambda view: still_mastered(view, drained), timeout_s=timeout)
        return drained

    drained = session_of(context).run(ask)
    if as_json:
        print_json({"node_id": drained, "draining": not undo, "done": wait or undo})
    elif undo:
        typer.echo(f"node {drained} drains no more; mqtool rebalance brings its logs back")
    elif wait:
        typer.echo(f"node {drained} masters nothing any more")
    else:
        typer.echo(f"node {drained} drains: its logs are handed over, one after the other")


def still_mastered(view: ClusterStatus, node_id: str) -> list[str]:
    """What a draining node still masters, one line each, with the reason. Pure."""
    facts = next((node for node in view.nodes if node.node_id == node_id), None)
    if facts is None or not facts.draining:
        return [f"the node that answers does not know yet that {node_id} drains"]
    left = []
    for log in view.logs:
        if log.name in masters(view, node_id):
            others = [node for node in log.in_sync if node != node_id and node not in log.marked]
            reason = f"to {', '.join(others)}" if others else "no other copy is in sync"
            left.append(f"log {log.name} ({reason})")
    return left
