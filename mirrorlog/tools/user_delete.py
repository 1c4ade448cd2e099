"""`mqtool user-delete`: take a user away."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrorlog.tools.session import session_of


def user_delete(context: typer.Context, name: Annotated[str, typer.Argument(help="The user's name.")]) -> None:
    """Delete a user; his connections end. The last administrator goes last: without users everybody may do everything.

    Example: mqtool user-delete alice
    """
    session_of(context).run(lambda client: client.admin.topology.delete_user(name))
    typer.echo(f"user {name} is gone")
