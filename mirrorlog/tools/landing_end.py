"""`mqtool landing-end`: let a landing's records go, and forget the landing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.errors import NoSuchHold
from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.messages import HoldInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified

if TYPE_CHECKING:
    from mirrorlog.client import Client


def landing_end(
    context: typer.Context,
    queue: Annotated[str, typer.Argument(help="The queue.")],
    name: Annotated[str, typer.Argument(help="The landing, as `mqtool landings` names it.")],
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """End a landing's hold: retention frees what it kept, and what was tiered by it is not found any more.

    A landing that still runs registers again at its next step, and says what it missed: stop it first.

    Example: mqtool landing-end flights lake
    """

    async def end(client: Client) -> HoldInfo:
        of = qualified(vhost, queue)
        holds = await client.admin.holds(of)
        for hold in holds:
            if hold.name == name:
                await client.admin.end_hold(of, name)
                return hold
        known = ", ".join(hold.name for hold in holds) or "none"
        raise NoSuchHold(f"queue {queue!r} has no landing {name!r}; it has {known}")

    hold = session_of(context).run(end)
    held = f"it had ended: {hold.ended}" if hold.ended else f"{hold.holder} held it from {hold.queue_offset} on"
    typer.echo(f"landing {name} of queue {queue} ended; {held}")
