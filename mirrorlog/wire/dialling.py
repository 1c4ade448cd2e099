"""A connection to an address, over a network that loses what is sent. Thin.

TCP waits longer after each loss: what was sent into a cut is sent again after 0.2 s, then 0.4 s, then 0.8 s, and so on.
So a cut that lasted ten seconds keeps both sides apart for up to ten more after it has healed. Two bounds here:

- **A connection that is not there yet** is tried anew every `AGAIN_S`, whatever becomes of the attempts before; the
  first one that stands is it. Those in between are given up after a second; the very first goes on, for a way so long
  that no answer comes within that.
- **One that stands** is ended by the system when nothing of what was sent has been acknowledged for `unacked_ms`
  (TCP_USER_TIMEOUT), and its owner dials again. That counts a side that has read nothing for so long, too.

Rejected: to bound each attempt and begin again (a bound that is short enough for a heal is too short for a long way).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final

from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost
from mirrorlog.wire.endpoint import LINGER_S
from mirrorlog.wire.tls import HANDSHAKE_S, why

AGAIN_S: Final = 0.25
_AT_ONCE_MAX: Final = 4
LINK_UNACKED_MS: Final = 1_500
"""Between nodes. What is lost is sent again 0.2, 0.6 and 1.4 s later, so a heal is noticed within 0.8 s."""
CLIENT_UNACKED_MS: Final = 3_000
"""Of what a client has sent: as long as a node may be silent before it is replaced (`cluster.node_timeout_ms`)."""

_Place = tuple[int, int, int, str, Any]


async def dial(
    address: str,
    factory: Callable[[], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None = None,
    *,
    unacked_ms: int = LINK_UNACKED_MS,
) -> None:
    """A connection to `host:port`; the protocol is told of it. It takes as long as it takes: whoever calls has a
    deadline. Raises ConfigError, ConnectionLost when TLS fails, OSError (ConnectionRefusedError when nobody listens
    there), UnicodeError."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    sock = await _connected(await _places(host, port))
    try:
        end_unacked(sock, unacked_ms)
        if tls is None:
            await loop.create_connection(factory, sock=sock)
            return
        await loop.create_connection(
            factory,
            sock=sock,
            server_hostname=host,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=LINGER_S,
        )
    except ssl.SSLError as error:
        sock.close()
        raise ConnectionLost(f"no TLS with {address}: {why(error)}") from None
    except (ConnectionResetError, ConnectionAbortedError) as error:
        sock.close()
        raise ConnectionLost(f"no TLS with {address}: the handshake was cut off: {error}") from None
    except BaseException:
        sock.close()
        raise


def end_unacked(sock: socket.socket, unacked_ms: int) -> None:
    """Have the system end the connection, or those that this socket will accept, when nothing of what was sent has been
    acknowledged for so long. Without effect where there is no such option (outside Linux)."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacked_ms)


# --- inside -----------------------------------------------------------------------------------------------------------


async def _places(host: str, port: int) -> Sequence[_Place]:
    """Where that may be. An address in numbers costs no thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connected(places: Sequence[_Place]) -> socket.socket:
    """A socket that is connected to one of them. Raises ConnectionRefusedError when all refuse, else what the last one
    said when none is left."""
    turn = cycle(places)
    failures: dict[_Place, OSError] = {}
    attempts: dict[asyncio.Task[socket.socket], _Place] = {}
    try:
        while len(failures) < len(places):
            place = next(each for each in turn if each not in failures)
            attempts[asyncio.ensure_future(_attempt(place))] = place
            if len(attempts) > _AT_ONCE_MAX:
                _give_up(list(attempts)[1], attempts)
            done, _ = await asyncio.wait(attempts, timeout=AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    found = task.result()
                except OSError as error:
                    failures[attempts.pop(task)] = error
                else:
                    del attempts[task]
                    return found
    finally:
        for task in list(attempts):
            _give_up(task, attempts)
    refused = [error for error in failures.values() if isinstance(error, ConnectionRefusedError)]
    raise refused[0] if len(refused) == len(places) else list(failures.values())[-1]


def _give_up(task: asyncio.Task[socket.socket], attempts: dict[asyncio.Task[socket.socket], _Place]) -> None:
    del attempts[task]
    task.cancel()
    task.add_done_callback(_close_unused)


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _attempt(place: _Place) -> socket.socket:
    family, kind, protocol, _, address = place
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
