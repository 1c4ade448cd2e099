"""What every command that talks to nodes shares: which servers, how long to wait, and one way to run a coroutine."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import typer

from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import AccessRefused, BadInput, MirrorlogError, NoSuchQueue, NoSuchVirtualHost
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

if TYPE_CHECKING:
    import ssl

    from mirrorlog.client import Client

SERVERS_VARIABLE: Final = "MIRRORLOG_SERVERS"
TLS_CA_VARIABLE: Final = "MIRRORLOG_TLS_CA"
TLS_CERTIFICATE_VARIABLE: Final = "MIRRORLOG_TLS_CERT"
TLS_KEY_VARIABLE: Final = "MIRRORLOG_TLS_KEY"
USER_VARIABLE: Final = "MIRRORLOG_USER"
PASSWORD_VARIABLE: Final = "MIRRORLOG_PASSWORD"
"""The password has no option of its own: what stands on a command line, everybody on the machine can read."""
DEFAULT_SERVERS: Final = f"127.0.0.1:{CLIENT_PORT}"
CONNECT_TIMEOUT_MS: Final = 3_000
"""A node that is reachable greets within milliseconds; a hanging one shall not hold up a refreshed display."""
REQUEST_TIMEOUT_MS: Final = 10_000
_NOT_THERE: Final = NoSuchQueue.exit_code
_T = TypeVar("_T")
_Command = Callable[["Client"], Coroutine[Any, Any, _T]]

# Passwords: out of the environment, or asked for at a terminal; never on a command line, which everybody may read.


def password_from(variable: str, user: str, *, twice: bool = False) -> str:
    """What the variable holds, else what is typed; `twice`: as for a new one. Raises BadInput where nobody can type."""
    given = os.environ.get(variable)
    if given is not None:
        return given
    if not _has_terminal():
        raise BadInput(f"set {variable} for user {user}: there is no terminal to ask for a password")
    return str(typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=twice, err=True))


def _has_terminal() -> bool:
    """That of the process will do: stdin may bring records."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin is not None and sys.stdin.isatty()
    return True


@dataclass(slots=True)
class ToolSession:
    """The global options. `servers`: client addresses, any of which may answer; `tls`: for ports that want it;
    `user`: for clusters that have users."""

    servers: tuple[str, ...] = (DEFAULT_SERVERS,)
    debug: bool = False
    tls: ssl.SSLContext | None = None
    user: str | None = None

    @asynccontextmanager
    async def client(self, *, allow_stale_reads: bool = False, records: bool = False) -> AsyncIterator[Client]:
        """A connected client, closed at the end; `allow_stale_reads` as there; `records`: it is for more than its
        `admin`. Raises ConnectionLost when no server answers, BadInput when nobody can give the user's password."""
        password = password_from(PASSWORD_VARIABLE, self.user) if self.user is not None else ""
        # Late: commands that read files alone, and --help, need no client, and most need nothing of records.
        if not records:
            from mirrorlog.client.admin import AdminClient

            async with AdminClient(
                *self.servers,
                cluster_id=None,
                role="tool",
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                stale_reads=allow_stale_reads,
                tls=self.tls,
                login=None if self.user is None else (self.user, password),
            ) as light:
                yield cast("Client", light)
            return
        from mirrorlog.client import Client

        async with Client(
            *self.servers,
            role="tool",
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            allow_stale_reads=allow_stale_reads,
            tls=self.tls,
            user=self.user,
            password=password,
        ) as client:
            yield client

    def run(
        self,
        command: _Command[_T],
        *,
        allow_stale_reads: bool = False,
        vhost: str | None = None,
        records: bool = False,
    ) -> _T:
        """Connect, run `command`, disconnect. `records`: as of `client`. `vhost`: what is asked for is limited to this
        virtual host, which must be there: raises NoSuchVirtualHost."""

        async def connected() -> _T:
            async with self.client(allow_stale_reads=allow_stale_reads, records=records) as client:
                await _check_virtual_host(client, vhost)
                return await command(client)

        import asyncio  # late, as above

        return asyncio.run(connected())

    def remove(self, command: _Command[_T], what: str, *, if_exists: bool) -> _T:
        """As `run`; ends the program, with a word of it, when `what` is not there and that is no error."""
        try:
            return self.run(command)
        except MirrorlogError as error:
            if not if_exists or error.exit_code != _NOT_THERE:
                raise
        typer.echo(f"{what} was not there", err=True)
        raise typer.Exit


async def _check_virtual_host(client: Client, name: str | None) -> None:
    if name is None or name == DEFAULT_VIRTUAL_HOST:
        return
    try:
        there = [each.name for each in await client.admin.topology.virtual_hosts()]
    except AccessRefused:
        await client.admin.topology.routing(virtual_host=name)  # who may not see all of them may see his own
        return
    if name not in there:
        raise NoSuchVirtualHost(f"there is no virtual host {name!r}; there are {', '.join(there)}")


def session_of(context: typer.Context) -> ToolSession:
    """The session of this call, made on first use."""
    return context.ensure_object(ToolSession)


def tls_of(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None when nothing is given. Raises ConfigError."""
    if ca is None and certificate is None and key is None:
        return None
    from mirrorlog.wire.tls import client_context

    return client_context(ca=ca, certificate=certificate, key=key)
