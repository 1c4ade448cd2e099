"""The command line `mqtool`: its commands, its global options, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mirrorlog import __version__
from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.tools.common.commands import SETTINGS, Commands, made
from mirrorlog.tools.common.options import parse_servers
from mirrorlog.tools.common.session import (
    DEFAULT_SERVERS,
    PASSWORD_VARIABLE,
    SERVERS_VARIABLE,
    TLS_CA_VARIABLE,
    TLS_CERTIFICATE_VARIABLE,
    TLS_KEY_VARIABLE,
    USER_VARIABLE,
    ToolSession,
    session_of,
    tls_of,
)

_COMPLETE: Final = "_MQTOOL_COMPLETE"
_INTERRUPTED: Final = 130
"""As a shell has it for what Ctrl-C ended: 128 and the number of the signal."""

_MODULES: Final = {
    "queue": "queues declare delete alter-queue sync-queue cancel-sync-queue purge redrive find-offset",
    "flow": "rates producers",
    "publish": "publish",
    "consume": "consume tail",
    "receive": "receive lease extend settle",
    "group": "groups group-delete group-reset",
    "topology.exchanges": "exchanges exchange-declare exchange-delete bind unbind bindings vhosts vhost-add "
    "vhost-delete",
    "topology.policies": "set-policy clear-policy list-policies set-operator-policy clear-operator-policy "
    "list-operator-policies list-queues",
    "topology.definitions": "import-definitions export-definitions",
    "user": "users user-set user-delete user-permissions user-limits",
    "cluster": "nodes events free-former",
    "masters": "drain rebalance promote forget-node",
    "connections": "connections close-connection",
    "doctor": "doctor",
    "offsets": "offsets",
    "landing": "landings landing-end land reconcile audit replay analysis upkeep",
    "offline.dump": "dump",
    "offline.verify": "verify",
    "offline.recover": "recover",
    "offline.recover_cluster": "recover-cluster",
    "backups.backup": "backup",
    "backups.restore": "restore",
}
TABLE: Final = {
    name: f"mirrorlog.tools.{module}:{name.replace('-', '_')}"
    for module, names in _MODULES.items()
    for name in names.split()
} | {
    "completion": "mirrorlog.tools.main:completion",
    "dev": "mirrorlog.testing.dev:dev",
    "follow-rocketmq": "mirrorlog.rocketmq.command:follow_rocketmq",
}

NOUNS: Final = {
    "queue": (
        "Queues: list, make, move, empty and delete them.",
        {
            "list": "queues", "columns": "list-queues", "declare": "declare", "alter": "alter-queue",
            "delete": "delete", "purge": "purge", "redrive": "redrive", "sync": "sync-queue",
            "cancel-sync": "cancel-sync-queue", "rates": "rates", "producers": "producers",
            "find-offset": "find-offset",
        },
    ),
    "message": (
        "Records: put them in, look at them, take them and settle them.",
        {
            **{name: name for name in ("publish", "consume", "tail", "receive", "lease", "extend", "settle")},
            "follow-rocketmq": "follow-rocketmq",
        },
    ),
    "group": (
        "Consumer groups of queues.", {"list": "groups", "reset": "group-reset", "delete": "group-delete"},
    ),
    "exchange": (
        "Exchanges.", {"list": "exchanges", "declare": "exchange-declare", "delete": "exchange-delete"},
    ),
    "binding": ("What leads from exchanges to queues.", {"list": "bindings", "add": "bind", "delete": "unbind"}),
    "vhost": ("Virtual hosts.", {"list": "vhosts", "add": "vhost-add", "delete": "vhost-delete"}),
    "user": (
        "Who may log in, what each may do, and how much.",
        {
            "list": "users", "set": "user-set", "delete": "user-delete", "permissions": "user-permissions",
            "limits": "user-limits",
        },
    ),
    "policy": (
        "What holds for queues and exchanges by their names.",
        {
            "list": "list-policies", "set": "set-policy", "clear": "clear-policy",
            "list-operator": "list-operator-policies", "set-operator": "set-operator-policy",
            "clear-operator": "clear-operator-policy",
        },
    ),
    "node": (
        "Nodes of the cluster, and what they hold.",
        {"list": "nodes", "drain": "drain", "forget": "forget-node", "free-former": "free-former"},
    ),
    "cluster": (
        "The cluster as a whole.",
        {
            "status": "nodes", "doctor": "doctor", "events": "events", "rebalance": "rebalance",
            "import": "import-definitions", "export": "export-definitions", "recover": "recover-cluster",
            "backup": "backup", "restore": "restore",
        },
    ),
    "log": (
        "Logs and their copies; dump, verify and recover read the disk of a node, without it.",
        {"offsets": "offsets", "promote": "promote", "dump": "dump", "verify": "verify", "recover": "recover"},
    ),
    "landing": (
        "What lands in Delta tables.",
        {
            "list": "landings", "end": "landing-end", "run": "land", "reconcile": "reconcile", "audit": "audit",
            "replay": "replay", "analysis": "analysis", "upkeep": "upkeep",
        },
    ),
    "connection": ("Connections of clients.", {"list": "connections", "close": "close-connection"}),
}  # fmt: skip

_AS_RABBITMQ: Final = {
    "cluster-status": "nodes",
    "list-connections": "connections",
    "list-users": "users",
    "list-vhosts": "vhosts",
    "list-exchanges": "exchanges",
    "list-bindings": "bindings",
    "list-permissions": "users",
}
_SHOWN: Final = ("publish", "consume", "tail", "receive", "doctor", "dev", "completion")

app = typer.Typer(name="mqtool", cls=Commands, **{**SETTINGS, "add_completion": True})


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mqtool {__version__}")
        raise typer.Exit


@app.callback()
def options(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    servers: Annotated[
        str,
        typer.Option("--servers", "-s", envvar=SERVERS_VARIABLE, help="Client addresses host:port, commas between."),
    ] = DEFAULT_SERVERS,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", envvar=TLS_CA_VARIABLE, help="Client ports speak TLS; trust these authorities (PEM)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", envvar=TLS_CERTIFICATE_VARIABLE, help="Certificate to show (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", envvar=TLS_KEY_VARIABLE, help="Its key (PEM, not encrypted).")
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            envvar=USER_VARIABLE,
            help=f"Log in as this user; the password is {PASSWORD_VARIABLE}, or asked for.",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, where a command can.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Look at a mirrorlog cluster and its queues, publish and consume by hand, check log directories offline.

    Options of this list may stand behind a command, too. `mqtool queue` says what there is for queues, and so on. The
    names of one word (queues, group-reset, list_policies) work as ever.

    Example: mqtool queue list --servers 127.0.0.1:7401
    """
    session = session_of(context)
    session.debug = debug
    session.servers = parse_servers(servers)
    session.tls = tls_of(tls_ca, tls_cert, tls_key)
    session.user = user


def _anywhere(  # noqa: PLR0917  (typer makes them options, nobody passes them by position)
    context: typer.Context,
    servers: Annotated[str | None, typer.Option("--servers", "-s", hidden=True)] = None,
    tls_ca: Annotated[Path | None, typer.Option("--tls-ca", hidden=True)] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", hidden=True)] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", hidden=True)] = None,
    user: Annotated[str | None, typer.Option("--user", hidden=True)] = None,
    debug: Annotated[bool | None, typer.Option("--debug", hidden=True)] = None,
) -> None:
    """The global options, as every command has them, too; what is not given there stays."""


def _globals() -> Iterator[Any]:
    for each in made("anywhere", _anywhere).params:
        if each.name != "help":
            # A name of its own: a command may call one of its options so, too.
            each.name, each.expose_value, each.callback = f"global_{each.name}", False, _take_global
            yield each


def _take_global(context: Any, parameter: Any, value: Any) -> None:
    if value is None:
        return
    session, given, name = session_of(context), context.find_root().params, parameter.name.removeprefix("global_")
    if name == "servers":
        session.servers = parse_servers(value)
    elif name.startswith("tls_"):
        given[name] = value
        session.tls = tls_of(given["tls_ca"], given["tls_cert"], given["tls_key"])
    else:
        setattr(session, name, value)


Commands.table, Commands.nouns, Commands.aliases, Commands.shown = TABLE, NOUNS, _AS_RABBITMQ, _SHOWN
Commands.more = (_globals,)


def completion(shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print what has a shell complete commands, options and names of queues.

    Example: mqtool completion bash > /etc/bash_completion.d/mqtool
    """
    from typer._completion_shared import get_completion_script

    if shell not in ("bash", "zsh", "fish"):
        raise BadInput(f"{shell!r} is no shell that can be told; there are bash, zsh and fish")
    typer.echo(get_completion_script(prog_name="mqtool", complete_var=_COMPLETE, shell=shell))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0, or the exit code of the error, whose message is one line on stderr.

    130 when it was interrupted; 1 when stdout does not take what is written: without a word when nobody reads it any
    more.
    """
    session = ToolSession()
    try:
        given = sys.argv[1:] if arguments is None else list(arguments)
        code = app(given or ["--help"], prog_name="mqtool", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except (MirrorlogError, typer.TyperException) as error:
        if session.debug:
            traceback.print_exc()
        message = error.format_message() if isinstance(error, typer.TyperException) else error.message
        sys.stderr.write(f"mqtool: {' '.join(message.split())}\n")
        sys.exit(error.exit_code)
    except typer.Abort:
        # Ctrl-C, or the end of what is typed where something was asked for.
        if session.debug:
            traceback.print_exc()
        sys.stderr.write("mqtool: interrupted\n")
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # `mqtool … | head`: the reader has what it wanted.
        _leave_stdout()
        sys.exit(1)
    except OSError as error:
        _leave_stdout()
        # What a command does to files and connections has named errors. Only what stdout raises comes here as it is,
        # and has no file name.
        if session.debug or error.filename is not None:
            raise
        sys.stderr.write(f"mqtool: cannot write the output: {error.strerror or error}\n")
        sys.exit(1)
    sys.exit(code or 0)


def _leave_stdout() -> None:
    """Let nothing more be written there: Python would complain when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
