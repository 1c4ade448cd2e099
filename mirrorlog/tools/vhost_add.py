"""`mqtool vhost-add`: make a virtual host."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import session_of


def vhost_add(context: typer.Context, name: Annotated[str, typer.Argument(help="Its name.")]) -> None:
    """Make a virtual host: names in it are nothing to names in others. Nothing happens when it is there.

    Example: mqtool vhost-add shop
    """
    session_of(context).run(lambda client: client.admin.topology.add_virtual_host(name))
    typer.echo(f"virtual host {name} is there")
