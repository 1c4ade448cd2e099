"""`mqtool user-permissions`: what a user may do in a virtual host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

if TYPE_CHECKING:
    from mirrorlog.client import Client


def user_permissions(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The user's name.")],
    *,
    configure: Annotated[str, typer.Option("--configure", help="Names that may be declared and deleted.")] = "",
    write: Annotated[str, typer.Option("--write", help="Names that may be published to and bound.")] = "",
    read: Annotated[str, typer.Option("--read", help="Names that may be consumed and bound from.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="No way into the virtual host any more.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Set all three permissions of a user in a virtual host: regular expressions, which are searched for in names.

    One that is left out allows nothing; '.*' allows everything.

    Example: mqtool user-permissions alice --write ^orders --read .*
    """

    async def ask(client: Client) -> None:
        topology = client.admin.topology
        if clear:
            await topology.clear_permissions(name, virtual_host=vhost)
        else:
            await topology.set_permissions(name, configure=configure, write=write, read=read, virtual_host=vhost)

    session_of(context).run(ask)
    typer.echo(f"permissions of user {name} in virtual host {vhost} are {'cleared' if clear else 'set'}")
