"""A door as a process: its options, its TLS, its log, its signals, and its end with the process that started it.

The files of TLS are those of the node that the door belongs to; at SIGHUP they are read anew.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import ssl
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import uvloop

from mirrorlog.client import Client
from mirrorlog.errors import ConfigError, MirrorlogError
from mirrorlog.log_lines import configure_logs
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.renewal import RenewableContext, Renewal
from mirrorlog.wire.tls import client_context, server_context

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_MS: Final = 5_000
REQUEST_TIMEOUT_MS: Final = 8_000
"""Of the door's client: it ends before the calls at a door do, for it knows whether anything was sent."""
_TOKEN_BYTES_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class DoorTls:
    """The TLS options of a door. `mode`: of its own port, off, server or mutual; `node`: whether nodes' client ports
    speak TLS. The files are there when either is so: those of the node that the door belongs to; `client_ca`: of
    callers alone."""

    mode: str = "off"
    node: bool = False
    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> DoorTls:
        """As parsed. Raises ConfigError when a file is missing."""
        found = cls(
            arguments.tls,
            arguments.node_tls,
            arguments.tls_certificate,
            arguments.tls_key,
            arguments.tls_ca,
            arguments.tls_client_ca,
        )
        if (found.mode != "off" or found.node) and None in (found.certificate, found.key, found.ca):
            raise ConfigError("--tls and --node-tls need --tls-certificate, --tls-key and --tls-ca")
        return found

    def to_nodes(self) -> RenewableContext | None:
        """Nodes are trusted by their authority, not by names of hosts, as by each other. Raises ConfigError."""
        if not self.node:
            return None
        certificate, key, ca = self.files
        return RenewableContext(partial(client_context, ca=ca, certificate=certificate, key=key, check_hostname=False))

    def port(self) -> RenewableContext | None:
        """Of the door's own port. Raises ConfigError."""
        if self.mode == "off":
            return None
        certificate, key, ca = self.files
        trusted = ca if self.mode == "mutual" else None
        return RenewableContext(
            partial(server_context, certificate=certificate, key=key, ca=trusted, client_ca=self.client_ca)
        )

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key and authorities; only when there is TLS."""
        assert self.certificate is not None
        assert self.key is not None
        assert self.ca is not None
        return self.certificate, self.key, self.ca


NO_TLS = DoorTls()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `DoorTls.of` reads."""
    parser.add_argument("--tls", choices=("off", "server", "mutual"), default="off", help="of the door's own port")
    parser.add_argument("--node-tls", action="store_true", help="nodes' client ports speak TLS")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="to show, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="of the certificate, PEM, not encrypted")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="whose certificates are trusted, PEM")
    parser.add_argument("--tls-client-ca", type=Path, metavar="FILE", help="and whose callers', on the own port, PEM")


# Tells when the process that started this one is gone, by a pipe whose other end it holds open.
#
# Rejected: PR_SET_PDEATHSIG, which is Linux only and fires at the end of the starting thread.


class _EndOfInput(asyncio.Protocol):
    """Calls `gone` when standard input ends."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()


async def watch_parent(gone: Callable[[], None]) -> bool:
    """Call `gone` (once or twice) when standard input ends. False when it is no pipe: a shell, or systemd."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    await asyncio.get_running_loop().connect_read_pipe(lambda: _EndOfInput(gone), sys.stdin)
    return True


class Door(Protocol):
    """A server of one protocol in a process of its own. `renewal`: of its files of TLS."""

    renewal: Renewal

    def stop(self) -> None:
        """Ask for a clean end; `run` returns soon after. Idempotent."""

    async def run(self) -> None:
        """Serve until stopped. Raises MirrorlogError."""


@dataclass(frozen=True, slots=True)
class DoorArguments:
    """What a door was started with. `token`: by which its node knows it; empty: as a stranger. `arguments`: all of the
    command line."""

    node: str
    bind: str
    tls: DoorTls
    token: str = field(repr=False)
    arguments: argparse.Namespace


MakeDoor = Callable[[DoorArguments], Door]
"""Makes the door, on the loop. Raises MirrorlogError."""


def client_of(
    door: str,
    node: str,
    tls: ssl.SSLContext | None,
    login: Login | None = None,
    *,
    token: str = "",
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
) -> Client:
    """A client of the cluster for a door, by its name: as a caller, as the door itself, or as nobody."""
    if token:
        login = Login(user="", password=token)
    user, password = (login.user, login.password) if login is not None else (None, "")
    return Client(
        node,
        role=f"door:{door}",
        connect_timeout_ms=connect_timeout_ms,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        tls=tls,
        user=user,
        password=password,
    )


def run_door(
    make: MakeDoor, *, prog: str, name: str, more_options: Callable[[argparse.ArgumentParser], None] | None = None
) -> int:
    """By the command line; the exit code. `prog`: as it is started; `name`: for help and errors, as in "gRPC"."""
    parser = argparse.ArgumentParser(prog=prog, description=f"The {name} door of a node.")
    parser.add_argument("--node", required=True, metavar="HOST:PORT", help="the node's client port")
    parser.add_argument("--bind", required=True, metavar="HOST:PORT", help="where to serve; port 0: any free one")
    parser.add_argument("--debug", action="store_true", help="debug logs, and tracebacks for errors")
    parser.add_argument("--json-logs", metavar="NODE", help="one JSON object a line, with the node's name")
    parser.add_argument("--token", action="store_true", help="standard input begins with the node's token, a line")
    add_options(parser)
    if more_options is not None:
        more_options(parser)
    arguments = parser.parse_args()
    node = {} if arguments.json_logs is None else {"node": arguments.json_logs}
    configure_logs(as_json=bool(node), debug=arguments.debug, **node, door=arguments.bind)
    try:
        token = _read_token() if arguments.token else ""
        uvloop.run(_main(make, DoorArguments(arguments.node, arguments.bind, DoorTls.of(arguments), token, arguments)))
    except MirrorlogError as error:
        if arguments.debug:
            raise
        if node:
            logger.critical("door_failed kind=%s reason=%r", type(error).__name__, str(error))
        else:
            print(f"{name.lower()} door: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _read_token() -> str:
    """Without a buffer: what follows is the parent's end, and for who watches that. A parent that has gone before it
    was said is noticed there, too."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _TOKEN_BYTES_MAX and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line.decode(errors="replace").strip()


async def _main(make: MakeDoor, given: DoorArguments) -> None:
    door = make(given)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, door.stop)
    loop.add_signal_handler(signal.SIGHUP, door.renewal.ask)
    await watch_parent(door.stop)
    await door.run()
