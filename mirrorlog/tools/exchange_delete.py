"""`mqtool exchange-delete`: take an exchange away, and the bindings from and to it."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import VirtualHost, session_of
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST


def exchange_delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The exchange's name.")],
    *,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only while no binding leads from it.")] = False,
    vhost: VirtualHost = DEFAULT_VIRTUAL_HOST,
) -> None:
    """Delete an exchange with its bindings; nothing happens when it is not there.

    Example: mqtool exchange-delete orders --if-unused
    """
    session_of(context).run(
        lambda client: client.admin.topology.delete_exchange(name, if_unused=if_unused, virtual_host=vhost)
    )
    typer.echo(f"exchange {name} is gone")
