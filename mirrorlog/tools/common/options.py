"""Options that many commands have, and what a user types as values: what cannot be one is a BadInput that says how."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from mirrorlog.config import split_address
from mirrorlog.errors import BadInput, ConfigError, MirrorlogError
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, split

VHOST_VARIABLE: Final = "MIRRORLOG_VHOST"

StaleReads = Annotated[
    bool,
    typer.Option(
        "--allow-stale-reads",
        help="Read from a node that is cut off from the others, too: what it knows to be confirmed; more may be.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
VirtualHost = Annotated[str, typer.Option("--vhost", "-p", envvar=VHOST_VARIABLE, help="The virtual host.")]
OnlyVirtualHost = Annotated[
    str | None,
    typer.Option(
        "--vhost", "-p", envvar=VHOST_VARIABLE, help="Only this virtual host; without, names are of the default."
    ),
]

IfExists = Annotated[bool, typer.Option("--if-exists", help="No error (exit code 5) when it is not there.")]


def _queues_named(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell that completes: what the cluster has, if it answers."""
    from mirrorlog.tools.common.session import PASSWORD_VARIABLE, ToolSession, tls_of

    given = context.find_root().params
    vhost = context.params.get("vhost") or DEFAULT_VIRTUAL_HOST
    if given["user"] is not None and PASSWORD_VARIABLE not in os.environ:
        return []  # nobody is asked for one while he types
    try:
        tls = tls_of(given["tls_ca"], given["tls_cert"], given["tls_key"])
        session = ToolSession(parse_servers(given["servers"]), tls=tls, user=given["user"])
        found = session.run(lambda client: client.admin.metadata())
    except MirrorlogError:
        return []
    names = (split(each.name) for each in found.queues)
    return [name for host, name in names if host == vhost and name.startswith(incomplete)]


QueueName = Annotated[str, typer.Argument(help="The queue's name.", autocompletion=_queues_named)]
AckingGroup = Annotated[str, typer.Option("--group", help="An acking group; by default the queue's own.")]
LeaseGroup = Annotated[str, typer.Option("--group", help="Of the lease; by default the queue's own.")]
CreateGroup = Annotated[bool, typer.Option("--create", help="Make the group if it is not there.")]
RecordsAsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object per record.")]
BytesFrom = Annotated[
    str, typer.Option("--read-from", metavar="NODE", help="For the bytes: master, mirror, nearest or a node's id.")
]
ReadFrom = Annotated[str, typer.Option("--read-from", metavar="NODE", help="master, mirror, or a node's id.")]
OptionalQueue = Annotated[
    str | None,
    typer.Argument(metavar="[QUEUE]", help="The queue's name.", show_default=False, autocompletion=_queues_named),
]
LogPath = Annotated[
    Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="A log's or node's directory.")
]
UserName = Annotated[str, typer.Argument(help="The user's name.")]


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """`name=value`; the value may be empty and may hold `=`. Raises BadInput."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{option} {text!r}: write name=value")
    return name, value


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """A queue's arguments: a value that is JSON (a number, true, null, …) is taken as such, any other as text.

    Raises BadInput, for a name given twice too.
    """
    arguments: dict[str, Any] = {}
    for text in pairs:
        name, value = parse_pair(text, "--arg")
        if name in arguments:
            raise BadInput(f"--arg {name} is given twice")
        try:
            arguments[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            arguments[name] = value
    return arguments


def parse_servers(text: str) -> tuple[str, ...]:
    """`host:port,host:port` as addresses. Raises BadInput."""
    servers = tuple(part.strip() for part in text.split(",") if part.strip())
    if not servers:
        raise BadInput("--servers is empty; give host:port, or several with commas between")
    for server in servers:
        try:
            split_address(server)
        except ConfigError as error:
            raise BadInput(f"--servers: {error}") from None
    return servers
