"""`mqtool users`, `user-set`, `user-permissions`, …: who may log in, what each may do, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from mirrorlog.diagnosis.cells import NOTHING
from mirrorlog.errors import BadInput, NoSuchUser
from mirrorlog.tools.common.options import AsJson, IfExists, UserName, VirtualHost
from mirrorlog.tools.common.output import emit, table
from mirrorlog.tools.common.session import password_from, session_of
from mirrorlog.tools.common.views import View
from mirrorlog.tools.common.watching import watchable
from mirrorlog.wire.auth.passwords import check_hash, hashed
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.topology import UserInfo
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

if TYPE_CHECKING:
    from mirrorlog.client import Client

TAGS: Final = ("administrator", "monitoring", "management", "policymaker", "landing")
"""Those that mean something here. Others come by import-definitions or the management API, as RabbitMQ's tools ask."""
NEW_PASSWORD_VARIABLE: Final = "MIRRORLOG_NEW_PASSWORD"


@watchable
def users(context: typer.Context, as_json: AsJson = False) -> None:
    """List the users with their tags, and their permissions in each virtual host.

    Example: mqtool users
    """
    found = session_of(context).run(lambda client: client.admin.topology.users())
    emit(as_json, found, users_view(found))


def users_view(found: Sequence[UserInfo]) -> View:
    """One row per user and virtual host. Pure."""
    rows = []
    for user in found:
        tags = " ".join(user.tags) or NOTHING
        if not user.permissions:
            rows.append((user.name, tags, *[NOTHING] * 4))
        for each in user.permissions:
            expressions = (expression or NOTHING for expression in (each.configure, each.write, each.read))
            rows.append((user.name, tags, each.virtual_host, *expressions))
    return table("", ("user", "tags", "virtual host", "configure", "write", "read"), rows)


def user_set(
    context: typer.Context,
    name: UserName,
    *,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag",
            help=f"{', '.join(TAGS)}. Repeatable; others go.",
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
    if unknown := [each for each in tag or () if each not in TAGS]:
        raise BadInput(f"--tag {', '.join(unknown)} means nothing here; there are {', '.join(TAGS)}")
    stored = None if keep_password else password_hash or hashed(password_from(NEW_PASSWORD_VARIABLE, name, twice=True))
    if password_hash:
        check_hash(password_hash)
    if no_tags and tag:
        raise typer.BadParameter("--no-tags takes away what --tag gives; name one of them")
    tags = [] if no_tags else tag or None
    session_of(context).run(lambda client: client.admin.topology.set_user(name, password_hash=stored, tags=tags))
    typer.echo(f"user {name} is set")


def user_delete(context: typer.Context, name: UserName, if_exists: IfExists = False) -> None:
    """Delete a user; his connections end. The last administrator goes last: without users everybody may do everything.

    Example: mqtool user-delete alice
    """
    session_of(context).remove(
        lambda client: client.admin.topology.delete_user(name), f"user {name}", if_exists=if_exists
    )
    typer.echo(f"user {name} is gone")


def user_permissions(
    context: typer.Context,
    name: UserName,
    *,
    configure: Annotated[str, typer.Option("--configure", help="Names that may be declared and deleted.")] = "",
    write: Annotated[str, typer.Option("--write", help="Names that may be published to and bound.")] = "",
    read: Annotated[str, typer.Option("--read", help="Names that may be consumed and bound from.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="Take all permissions away.")] = False,
    if_exists: IfExists = False,
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

    what = f"user {name} with permissions in virtual host {vhost}"
    session_of(context).remove(ask, what, if_exists=clear and if_exists)
    typer.echo(f"permissions of user {name} in virtual host {vhost} are {'cleared' if clear else 'set'}")


def user_limits(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The user's name; without one all users are listed.")] = "",
    *,
    max_connections: Annotated[int | None, typer.Option(help="Connections to one node at once.")] = None,
    request_rate: Annotated[int | None, typer.Option(help="Requests to one node a second.")] = None,
    publish_byte_rate: Annotated[int | None, typer.Option(help="Bytes published to one node a second.")] = None,
    read_byte_rate: Annotated[int | None, typer.Option(help="Bytes read from one node a second.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take all limits away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set all limits of a user, each for every node by itself; one that is left out is none. Without any: list them.

    Above a rate the user's connections wait, and nothing is refused; of connections the newest is refused.

    Example: mqtool user-limits alice --publish-byte-rate 10000000
    """
    limits = UserLimits(max_connections, request_rate, publish_byte_rate, read_byte_rate)
    if clear and limits:
        raise typer.BadParameter("--clear takes away what the others set; name one of them")
    if not (clear or limits):
        found = _of(session_of(context).run(lambda client: client.admin.topology.users()), name)
        emit(as_json, [{"user": each.name, **_row(each.limits)} for each in found], limits_view(found))
        return
    if not name:
        raise typer.BadParameter("whose? name the user")

    async def ask(client: Client) -> None:
        if clear:
            await client.admin.topology.clear_user_limits(name)
        else:
            await client.admin.topology.set_user_limits(name, **limits.given)

    session_of(context).run(ask)
    typer.echo(f"limits of user {name} are {'cleared' if clear else 'set'}")


def _of(found: Sequence[UserInfo], name: str) -> list[UserInfo]:
    """Of one, or of all. Raises NoSuchUser."""
    chosen = [each for each in found if not name or each.name == name]
    if name and not chosen:
        raise NoSuchUser(f"there is no user {name!r}")
    return chosen


def limits_view(found: Sequence[UserInfo]) -> View:
    """One row per user. Pure."""
    columns = ("connections", "requests/s", "published bytes/s", "read bytes/s")
    rows = [
        (each.name, *(NOTHING if value is None else str(value) for value in _row(each.limits).values()))
        for each in found
    ]
    return table("", ("user", *columns), rows, numbers=columns)


def _row(limits: UserLimits) -> dict[str, int | None]:
    return {name: getattr(limits, name) for name in UserLimits.__struct_fields__}
