"""`mqtool rebalance`: every log is mastered by its home again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from mirrorlog.tools.output import NOTHING, print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.tools.waiting import Timeout, Wait, until_nothing_left
from mirrorlog.wire.messages import ClusterStatus, Move, Rebalanced

if TYPE_CHECKING:
    from mirrorlog.client import Client


def rebalance(
    context: typer.Context,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be handed over.")] = False,
    wait: Wait = False,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Even out masterships: each log goes to its home, the first of its nodes, if that is up, in sync and not draining.

    What is handed over is decided when this returns, and comes about one log after the other, each in a moment; nothing
    is lost. To be run after a rolling restart.

    Example: mqtool rebalance --dry-run
    """

    async def ask(client: Client) -> Rebalanced:
        found = await client.admin.rebalance(dry_run=dry_run)
        if wait and found.done:
            await until_nothing_left(client, lambda view: still_away(view, found.moves), timeout_s=timeout)
        return found

    found = session_of(context).run(ask)
    if as_json:
        print_json(found)
    else:
        show(rebalance_view(found, waited=wait))


def still_away(view: ClusterStatus, moves: list[Move]) -> list[str]:
    """Which of the logs that were to be handed over are not yet, one line each. Pure."""
    masters = {log.log_id: log.master for log in view.logs}
    return [
        f"log {move.name} is mastered by {masters.get(move.log_id) or 'nobody'}, not by {move.target}"
        for move in moves
        if not move.reason and masters.get(move.log_id) != move.target
    ]


def rebalance_view(found: Rebalanced, *, waited: bool) -> RenderableType:
    """One row per log that is not at home. Pure."""
    if not found.moves:
        return Text("every log is mastered by its home")
    does = "would be handed over" if not found.done else "was handed over" if waited else "is handed over"
    rows = [
        (move.name, move.source or NOTHING, move.target, f"stays: {move.reason}" if move.reason else does)
        for move in found.moves
    ]
    return table("", ("log", "master", "home", ""), rows)
