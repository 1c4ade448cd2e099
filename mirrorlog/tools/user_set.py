"""`mqtool user-set`: add a user, or give one another password or other tags."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from mirrorlog.tools.passwords import password_from
from mirrorlog.tools.session import session_of
from mirrorlog.wire.passwords import check_hash, hashed

NEW_PASSWORD_VARIABLE: Final = "MIRRORLOG_NEW_PASSWORD"


def user_set(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The user's name.")],
    *,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            help="administrator, monitoring, management, policymaker, landing, or your own. Repeatable; others go.",
        ),
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Take all tags away.")] = False,
    password_hash: Annotated[
        str, typer.Option("--password-hash", help="In place of a password, as another system has it: see docs.")
    ] = "",
    keep_password: Annotated[bool, typer.Option("--keep-password", help="Change the tags only.")] = False,
) -> None:
    """Add a user, or set the password and tags of one.

    The password is asked for, or taken from the variable MIRRORLOG_NEW_PASSWORD; only its hash leaves this machine. The
    first user has to be an administrator: from then on everybody has to log in.

    Example: mqtool user-set alice --tag administrator
    """
    stored = None if keep_password else password_hash or hashed(password_from(NEW_PASSWORD_VARIABLE, name, twice=True))
    if password_hash:
        check_hash(password_hash)
    if no_tags and tag:
        raise typer.BadParameter("--no-tags takes away what --tag gives; name one of them")
    tags = [] if no_tags else tag or None
    session_of(context).run(lambda client: client.admin.topology.set_user(name, password_hash=stored, tags=tags))
    typer.echo(f"user {name} is set")
