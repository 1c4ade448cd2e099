"""`mqtool exchange-declare`: make an exchange."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST


def exchange_declare(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The exchange's name.")],
    kind: Annotated[str, typer.Option("--kind", help="direct, fanout, topic or headers.")] = "direct",
    *,
    alternate: Annotated[str, typer.Option("--alternate", help="The exchange that gets what matches nothing.")] = "",
    auto_delete: Annotated[bool, typer.Option("--auto-delete", help="It goes with the last binding from it.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Only other exchanges give it messages.")] = False,
    transient: Annotated[bool, typer.Option("--transient", help="Declared as not durable; it is kept alike.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Make an exchange, and wait until all nodes know it.

    Nothing happens when it exists with the same properties; with others it is an error (exit code 6).

    Example: mqtool exchange-declare orders --kind topic
    """
    session_of(context).run(
        lambda client: client.admin.topology.declare_exchange(
            name,
            kind,
            durable=not transient,
            auto_delete=auto_delete,
            internal=internal,
            alternate=alternate,
            virtual_host=vhost,
        )
    )
    typer.echo(f"exchange {name} is there: {kind}")
