"""The command line `mqtool`: its commands, its global options, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from mirrorlog import __version__
from mirrorlog.errors import MirrorlogError
from mirrorlog.tools.backups.backup import backup
from mirrorlog.tools.backups.restore import restore
from mirrorlog.tools.cluster import events, free_former, nodes
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
from mirrorlog.tools.connections import close_connection, connections
from mirrorlog.tools.consume import consume, tail
from mirrorlog.tools.doctor import doctor
from mirrorlog.tools.flow import producers, rates
from mirrorlog.tools.group import group_delete, group_reset, groups
from mirrorlog.tools.landing import JOBS, add_job, landing_end, landings
from mirrorlog.tools.masters import drain, forget_node, promote, rebalance
from mirrorlog.tools.offline.dump import dump
from mirrorlog.tools.offline.recover import recover
from mirrorlog.tools.offline.recover_cluster import recover_cluster
from mirrorlog.tools.offline.verify import verify
from mirrorlog.tools.offsets import offsets
from mirrorlog.tools.publish import publish
from mirrorlog.tools.queue import (
    alter_queue,
    cancel_sync_queue,
    declare,
    delete,
    find_offset,
    purge,
    queues,
    redrive,
    sync_queue,
)
from mirrorlog.tools.receive import extend, lease, receive, settle
from mirrorlog.tools.topology.definitions import export_definitions, import_definitions
from mirrorlog.tools.topology.exchanges import (
    bind,
    bindings,
    exchange_declare,
    exchange_delete,
    exchanges,
    unbind,
    vhost_add,
    vhost_delete,
    vhosts,
)
from mirrorlog.tools.topology.policies import (
    clear_operator_policy,
    clear_policy,
    list_operator_policies,
    list_policies,
    list_queues,
    set_operator_policy,
    set_policy,
)
from mirrorlog.tools.user import user_delete, user_limits, user_permissions, user_set, users

_INTERRUPTED: Final = 130
"""As a shell has it for what Ctrl-C ended: 128 and the number of the signal."""


_AS_RABBITMQ: Final = {
    "cluster-status": "nodes",
    "list-connections": "connections",
    "list-users": "users",
    "list-vhosts": "vhosts",
    "list-exchanges": "exchanges",
    "list-bindings": "bindings",
    "list-permissions": "users",
}


class _Commands(TyperGroup):
    """Commands may be written as RabbitMQ's users write theirs, too: `set_policy` is `set-policy`, and what it calls
    otherwise has its name besides."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = cmd_name.replace("_", "-")
        return super().get_command(ctx, _AS_RABBITMQ.get(name, name))


app = typer.Typer(
    name="mqtool",
    cls=_Commands,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Look at a mirrorlog cluster and its queues, publish and consume by hand, check log directories offline.

    Example: mqtool --servers 127.0.0.1:7401 offsets
    """
    session = session_of(context)
    session.debug = debug
    session.servers = parse_servers(servers)
    session.tls = tls_of(tls_ca, tls_cert, tls_key)
    session.user = user


for command in (
    *(offsets, nodes, events, queues, groups, landings, declare, publish, consume, tail, dump, verify, recover),
    *(receive, lease, settle, extend, purge, redrive, drain, rebalance, promote),
    *(doctor, producers, rates, connections, close_connection),
    *(exchanges, bind, unbind, bindings, vhosts, users),
    *(exchange_declare, exchange_delete, vhost_add, vhost_delete, user_set, user_delete, user_permissions, user_limits),
    *(find_offset, landing_end, group_delete, delete, alter_queue, sync_queue, group_reset, forget_node, free_former),
    *(
        list_queues,
        cancel_sync_queue,
        set_policy,
        clear_policy,
        list_policies,
        set_operator_policy,
        clear_operator_policy,
        list_operator_policies,
        import_definitions,
        export_definitions,
    ),
    recover_cluster,
    backup,
    restore,
):
    app.command()(command)
for job in JOBS:
    add_job(app, job)


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
