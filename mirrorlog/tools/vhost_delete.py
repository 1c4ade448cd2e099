"""`mqtool vhost-delete`: take a virtual host away."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import session_of


def vhost_delete(context: typer.Context, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Delete a virtual host with its exchanges, bindings and permissions. An error while it has queues.

    Example: mqtool vhost-delete shop
    """
    session_of(context).run(lambda client: client.admin.topology.delete_virtual_host(name))
    typer.echo(f"virtual host {name} is gone")
