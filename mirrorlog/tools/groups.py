"""`mqtool groups`: where the consumer groups stand, and what the groups that ack have before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Group, RenderableType

from mirrorlog.errors import AccessRefused, UnsupportedVersion
from mirrorlog.tools.cluster_status import authorities, gather, select
from mirrorlog.tools.output import NOTHING, print_json, show, table, yes_no
from mirrorlog.tools.records import printable
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import GroupInfo, GroupsFound, GroupStatus, Position
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified, shown

if TYPE_CHECKING:
    from mirrorlog.client import Client

_ACKING: Final = "acking"
_STREAM: Final = "stream"
_UNTOLD: Final = 0
"""For an epoch; the first one is 1."""
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
        # The queue's master first: it says what is wrong with the queue, and asks for no right to see nodes' states.
        found = None if name is None else await _found(client, name)
        try:
            status = select(await gather(client), queue=name)
        except AccessRefused:
            if found is None:
                raise
            return stands_of(found), _acking(found)
        stands = [group for copy in authorities(status) for group in copy.log.groups]
        return stands, [] if found is None else _acking(found)

    stands, acking = session_of(context).run(ask)
    if as_json:
        print_json([*stands, *(_fields(queue or "", each) for each in acking)])
    elif queue is None:
        show(groups_view(stands))
    else:
        show(Group(groups_view(stands), acking_view(acking), *takers_view(acking)))


async def _found(client: Client, queue: str) -> GroupsFound | None:
    try:
        return await client.admin.groups(queue)
    except UnsupportedVersion:
        return None  # the cluster has none that ack before all of its nodes are new enough


def _acking(found: GroupsFound) -> list[GroupInfo]:
    return [each for each in found.groups if each.kind == _ACKING]


def stands_of(found: GroupsFound) -> list[GroupStatus]:
    """The positions of the stream groups, as the master lists them beside the others: without log and epoch. Pure."""
    return [
        GroupStatus(
            group=each.group,
            queue=found.queue,
            position=Position(log_id="", epoch=_UNTOLD, queue_offset=each.floor),
            lag=max(0, found.next - each.floor),
        )
        for each in found.groups
        if each.kind == _STREAM
    ]


def _fields(queue: str, group: GroupInfo) -> dict[str, Any]:
    return {"group": group.group, "queue": queue, **{name: getattr(group, name) for name in group.__struct_fields__}}


def groups_view(found: Sequence[GroupStatus], *, title: str = "") -> RenderableType:
    """One row per group. Pure."""
    rows = [
        (
            shown(group.queue),
            group.group,
            str(group.position.epoch or NOTHING),
            str(group.position.queue_offset),
            str(group.lag),
        )
        for group in found
    ]
    numbers = ("epoch", "position", "lag")
    return table(title, ("queue", "group", *numbers), rows, numbers=numbers)


def takers_view(found: Sequence[GroupInfo]) -> list[RenderableType]:
    """Who takes from groups, and who has leases of them: a table of each of which there is one. Pure."""
    consumers = [
        (_name(group), printable(each.name), each.peer, str(each.priority), str(each.in_hand), yes_no(each.alone))
        for group in found
        for each in group.consumers
    ]
    leases = [
        (
            _name(group),
            printable(each.holder),
            str(each.records),
            NOTHING if each.ends_in_ms < 0 else f"{each.ends_in_ms / 1000:.1f} s",
        )
        for group in found
        for each in group.leases
    ]
    views: list[RenderableType] = []
    if consumers:
        columns = ("group", "name", "peer", "priority", "in hand", "alone")
        views.append(table("CONSUMERS", columns, consumers, numbers=("priority", "in hand")))
    if leases:
        views.append(table("LEASES", ("group", "holder", "records", "ends in"), leases, numbers=("records", "ends in")))
    return views


def _name(group: GroupInfo) -> str:
    return group.group or _OWN


def acking_view(found: Sequence[GroupInfo]) -> RenderableType:
    """One row per group that acks. Pure."""
    rows = [(_name(each), *(str(getattr(each, name)) for name in _COUNTS)) for each in found]
    return table("GROUPS THAT ACK", ("group", *_COUNTS), rows, numbers=_COUNTS)
