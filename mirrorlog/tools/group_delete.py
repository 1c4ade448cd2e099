"""`mqtool group-delete`: forget a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.errors import BadInput, NoSuchGroup
from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson, VirtualHost, session_of
from mirrorlog.wire.messages import GroupInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client


def group_delete(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    group: Annotated[str, typer.Argument(help="The group, as `mqtool groups QUEUE` names it.")],
    as_json: AsJson = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Forget a group of a queue, and wait until that is confirmed. Its subscriptions end; its records stay.

    A group that acks begins anew, at the queue's begin, when somebody subscribes to it again. The queue's own group
    goes with the queue: `mqtool purge` empties it.

    Example: mqtool group-delete flights billing
    """

    if not group:
        raise BadInput("the queue's own group goes with the queue; empty it with: mqtool purge")

    async def delete(client: Client) -> GroupInfo:
        name = qualified(vhost, queue)
        known = (await client.admin.groups(name)).groups
        for each in known:
            if each.group == group:
                await client.admin.delete_group(name, group)
                return each
        names = ", ".join(each.group for each in known if each.group) or "none"
        raise NoSuchGroup(f"queue {queue!r} has no group {group!r}; it has {names}")

    deleted = session_of(context).run(delete)
    if as_json:
        print_json(deleted)
    else:
        typer.echo(f"{deleted.kind} group {group} of queue {queue} deleted; it stood at {deleted.floor}")
