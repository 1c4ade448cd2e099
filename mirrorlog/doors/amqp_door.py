"""The AMQP door of a node: `python -m mirrorlog.doors.amqp_door --node HOST:PORT --bind HOST:PORT`.

A process of its own and a client of the native door, as the others are: each connection of AMQP has a client of its
own, with the login that it brought. It serves at once, whether the node answers or not: who connects is told. It ends
at SIGTERM, SIGINT, or when the process that started it is gone. At SIGHUP it reads the files of TLS anew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import ssl
import sys
from functools import partial
from typing import Any, Final

from mirrorlog.client import Client
from mirrorlog.config import split_address
from mirrorlog.doors.amqp.connection import AmqpConnection, DoorSide
from mirrorlog.doors.common.callers import is_here
from mirrorlog.doors.common.running import NO_TLS, DoorArguments, DoorTls, client_of, run_door
from mirrorlog.doors.http.server import address_of, bind_socket
from mirrorlog.freed_memory import keep_freed_memory
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.renewal import Renewal

logger = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 128 * 1024 * 1024
_STOP_S: Final = 5.0
_KEPT_BYTES: Final = 64 * 1024 * 1024
"""As of the gRPC door: messages come and go as often."""


class AmqpDoor:
    """One door. `run` returns when it was stopped. Raises BadRequest for a node that is no address, ConfigError for
    files of TLS that are none."""

    def __init__(self, *, node: str, bind: str, tls: DoorTls = NO_TLS, plain_passwords: bool = False) -> None:
        self._bind = bind
        to_nodes, self._port_tls = tls.to_nodes(), tls.port()
        self.renewal = Renewal([each for each in (to_nodes, self._port_tls) if each is not None])
        made = partial(_client, node, to_nodes)
        self._side = DoorSide(made, BODY_BYTES_MAX, plain_passwords)
        self._connections: set[AmqpConnection] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping, self._all_ended = asyncio.Event(), asyncio.Event()
        self._all_ended.set()

    def stop(self) -> None:
        """Ask for a clean end; `run` returns soon after. Idempotent."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped. Raises PortTaken, or ConfigError for what is no address."""
        split_address(self._bind)
        with bind_socket(self._bind) as listening:
            server = await asyncio.get_running_loop().create_server(self._make, sock=listening, ssl=self._port_tls)
            print(f"amqp door serving {address_of(listening, self._bind)}", flush=True)
            await self._stopping.wait()
            server.close()
            for connection in list(self._connections):
                connection.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._all_ended.wait()

    def _make(self) -> AmqpConnection:
        room = len(self._connections) < CONNECTIONS_MAX
        connection = AmqpConnection(self._side, self._ended, private=_is_private, room=room)
        self._connections.add(connection)
        self._all_ended.clear()
        return connection

    def _ended(self, connection: AmqpConnection) -> None:
        self._connections.discard(connection)
        task = asyncio.ensure_future(connection.release())
        self._ending.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not self._connections and not self._ending:
            self._all_ended.set()


def _client(node: str, tls: ssl.SSLContext | None, login: Login) -> Client:
    return client_of("amqp", node, tls, login)


def _is_private(transport: Any) -> bool:
    """Whether nobody else reads it: over TLS, or from this machine."""
    if transport.get_extra_info("ssl_object") is not None:
        return True
    peer = transport.get_extra_info("peername")
    return bool(peer) and is_here(peer[0])


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plain-passwords", action="store_true", help="take logins without TLS from other machines")


def _make(given: DoorArguments) -> AmqpDoor:
    return AmqpDoor(node=given.node, bind=given.bind, tls=given.tls, plain_passwords=given.arguments.plain_passwords)


def main() -> int:
    """Entry point; the exit code."""
    keep_freed_memory(_KEPT_BYTES)
    return run_door(_make, prog="mirrorlog.doors.amqp_door", name="AMQP", more_options=_add_options)


if __name__ == "__main__":
    sys.exit(main())
