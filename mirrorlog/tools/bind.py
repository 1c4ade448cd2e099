"""`mqtool bind`: lead messages from an exchange to a queue, or to another exchange."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.arguments import parse_arguments
from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.routing import Binding

Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="NAME=VALUE", help="What a headers exchange compares; JSON or text. Repeatable."),
]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="The destination is an exchange.")]


def bind(
    context: typer.Context,
    exchange: Annotated[str, typer.Argument(help="Where messages come from.")],
    destination: Annotated[str, typer.Argument(help="The queue.")],
    key: Annotated[str, typer.Option("--key", help="Routing key, or a topic's pattern with * and #.")] = "",
    *,
    arg: Arguments = None,
    to_exchange: ToExchange = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Bind a queue to an exchange, and wait until all nodes know it: what is published then is routed by it.

    Example: mqtool bind orders invoices --key orders.*.paid
    """
    binding = Binding(exchange, destination, key, to_exchange=to_exchange, arguments=parse_arguments(arg or []))
    session_of(context).run(lambda client: client.admin.topology.bind_all([binding], virtual_host=vhost))
    typer.echo(f"exchange {exchange} leads to {destination}")
