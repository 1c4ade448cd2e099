"""`mqtool unbind`: take one binding away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mirrorlog.tools.arguments import parse_arguments
from mirrorlog.tools.bind import Arguments, ToExchange
from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

if TYPE_CHECKING:
    from mirrorlog.client import Client


def unbind(
    context: typer.Context,
    exchange: Annotated[str, typer.Argument(help="Where messages come from.")],
    destination: Annotated[str, typer.Argument(help="The queue.")],
    key: Annotated[str, typer.Option("--key", help="As it was bound.")] = "",
    *,
    arg: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Take a binding away, the one with exactly this key and these arguments; nothing happens when it is not there.

    Example: mqtool unbind orders invoices --key orders.*.paid
    """
    arguments = parse_arguments(arg or [])

    async def ask(client: Client) -> None:
        topology = client.admin.topology
        take = topology.unbind_exchange if to_exchange else topology.unbind
        await take(exchange, destination, key, arguments, virtual_host=vhost)

    session_of(context).run(ask)
    typer.echo(f"that binding from exchange {exchange} to {destination} is gone")
