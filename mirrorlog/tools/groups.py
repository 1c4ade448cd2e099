"""`mqtool groups`: where the consumer groups stand, and what the groups that ack have before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType

from mirrorlog.errors import UnsupportedVersion
from mirrorlog.tools.cluster_status import authorities, gather, select
from mirrorlog.tools.output import print_json, show, table
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import GroupInfo, GroupStatus
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

_ACKING: Final = "acking"
_OWN: Final = "(own)"
_COUNTS: Final = ("floor", "ready", "out", "leased", "parked", "unsettled", "subscribers")


def groups(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help="Only the groups of this queue.", show_default=False)] = None,
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """List the positions of all consumer groups, and how many confirmed records each has not yet passed.

    With a queue's name also its groups that ack: below their floor all is settled; ready records wait, others are out
    with subscribers, leased, or parked until a delay's end. The queue's own group has no name.

    Example: mqtool groups flights
    """

    name = None if queue is None else qualified(vhost, queue)

    async def ask(client: Client) -> tuple[list[GroupStatus], list[GroupInfo]]:
        status = select(await gather(client), queue=name)
        stands = [group for copy in authorities(status) for group in copy.log.groups]
        return stands, [] if name is None else await _acking(client, name)

    stands, acking = session_of(context).run(ask)
    if as_json:
        print_json([*stands, *(_fields(queue or "", each) for each in acking)])
    elif queue is None:
        show(groups_view(stands))
    else:
        show(Group(groups_view(stands), acking_view(acking)))


async def _acking(client: Client, queue: str) -> list[GroupInfo]:
    try:
        found = await client.admin.groups(queue)
    except UnsupportedVersion:
        return []  # the cluster has none before all of its nodes are new enough
    return [each for each in found.groups if each.kind == _ACKING]


def _fields(queue: str, group: GroupInfo) -> dict[str, Any]:
    counts = {name: getattr(group, name) for name in _COUNTS}
    return {"group": group.group, "queue": queue, "kind": group.kind, "watermark": group.watermark, **counts}


def groups_view(found: Sequence[GroupStatus], *, title: str = "") -> RenderableType:
    """One row per group. Pure."""
    rows = [
        (shown(group.queue), group.group, str(group.position.epoch), str(group.position.queue_offset), str(group.lag))
        for group in found
    ]
    numbers = ("epoch", "position", "lag")
    return table(title, ("queue", "group", *numbers), rows, numbers=numbers)


def acking_view(found: Sequence[GroupInfo]) -> RenderableType:
    """One row per group that acks. Pure."""
    rows = [(each.group or _OWN, *(str(getattr(each, name)) for name in _COUNTS)) for each in found]
    return table("GROUPS THAT ACK", ("group", *_COUNTS), rows, numbers=_COUNTS)
