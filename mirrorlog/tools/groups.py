"""`mqtool groups`: where the consumer groups stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from mirrorlog.tools.cluster_status import authorities, gather, select
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, session_of
from mirrorlog.wire.messages import GroupStatus

if TYPE_CHECKING:
    from mirrorlog.client import Client


def groups(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only the groups of this queue.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the positions of all consumer groups, and how many confirmed records each has not yet passed.

    Example: mqtool groups flights
    """

    async def ask(client: Client) -> list[GroupStatus]:
        status = select(await gather(client), queue=queue)
        return [group for copy in authorities(status) for group in copy.log.groups]

    found = session_of(context).run(ask)
    if as_json:
        print_json(found)
    else:
        show(groups_view(found))


def groups_view(found: Sequence[GroupStatus], *, title: str = "") -> RenderableType:
    """One row per group. Pure."""
    rows = [
        (group.queue, group.group, str(group.position.epoch), str(group.position.queue_offset), str(group.lag))
        for group in found
    ]
    numbers = ("epoch", "position", "lag")
    return table(title, ("queue", "group", *numbers), rows, numbers=numbers)
