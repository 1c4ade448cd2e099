"""A connection to an address, over a network that loses what is sent. Thin.

TCP waits longer after each loss: what was sent into a cut is sent again after 0.2 s, then 0.4 s, then 0.8 s, and so on.
So a cut that lasted ten seconds keeps both sides apart for up to ten more after it has healed. Two bounds here:

- **A connection that is not there yet** is tried anew every `AGAIN_S`, whatever becomes of the attempts before; the
  first one that stands is it. The first attempt and the last ones go on side by side: the first for a way so long that
  no answer comes in that time.
- **One that stands** is ended by the system when nothing of what was sent has been acknowledged for `unacked_ms`
  (TCP_USER_TIMEOUT), and its owner dials again. That counts a side that has read nothing for so long, too: a mirror
  that stood still for 2 s under full publishing kept its link, for the kernels' buffers take `ha.in_flight_bytes_max`;
  where they did not it was in sync 0.4 s after it went on instead of 0.2 s, and nobody was elected.

Rejected: to bound each attempt and begin again (a bound that is short enough for a heal is too short for a long way).
Attempts are the loop's own, on a protocol that only waits, so that a simulated network has them as a real one has.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost
from mirrorlog.wire.endpoint import LINGER_S
from mirrorlog.wire.tls import HANDSHAKE_S, why

AGAIN_S: Final = 0.25
TLS_AGAIN_S: Final = 1.0
"""Each attempt is a handshake, which takes both sides some of their time."""
_AT_ONCE_MAX: Final = 4
LINK_UNACKED_MS: Final = 1_500
"""Between nodes. What is lost is sent again 0.2, 0.6 and 1.4 s later, so a heal is noticed within 0.8 s."""
CLIENT_UNACKED_MS: Final = 3_000
"""Of what a client has sent: as long as a node may be silent before it is replaced (`cluster.node_timeout_ms`)."""

_Attempt = asyncio.Task[asyncio.Transport]


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
    transport = await _first_of(lambda: _attempt(host, port, tls), again_s=AGAIN_S if tls is None else TLS_AGAIN_S)
    if transport.is_closing():
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    if (sock := transport.get_extra_info("socket")) is not None:
        end_unacked(sock, unacked_ms)
    protocol = factory()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


def end_unacked(sock: socket.socket, unacked_ms: int) -> None:
    """Have the system end the connection, or those that this socket will accept, when nothing of what was sent has been
    acknowledged for so long. Without effect where there is no such option (outside Linux)."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unacked_ms)


# --- inside -----------------------------------------------------------------------------------------------------------


class _Waiting(asyncio.Protocol):
    """Until the connection has an owner: what comes is his."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.pause_reading()  # type: ignore[attr-defined]  # uvloop's transports do not derive from asyncio's


async def _first_of(attempt: Callable[[], Any], *, again_s: float) -> asyncio.Transport:
    """What the first attempt gives, or raises, that has ended."""
    attempts: list[_Attempt] = []
    try:
        while True:
            attempts.append(asyncio.ensure_future(attempt()))
            if len(attempts) > _AT_ONCE_MAX:
                _give_up(attempts.pop(1))
            done, _ = await asyncio.wait(attempts, timeout=again_s, return_when=asyncio.FIRST_COMPLETED)
            if done:
                first = next(each for each in attempts if each in done)
                attempts.remove(first)
                return first.result()
    finally:
        for each in attempts:
            _give_up(each)


def _give_up(attempt: _Attempt) -> None:
    attempt.cancel()
    attempt.add_done_callback(_close_unused)


def _close_unused(attempt: _Attempt) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().abort()


async def _attempt(host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    if tls is None:
        transport, _ = await loop.create_connection(_Waiting, host, port)
        return transport
    address = f"{host}:{port}"
    try:
        transport, _ = await loop.create_connection(
            _Waiting, host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=LINGER_S
        )
    except ssl.SSLError as error:
        raise ConnectionLost(f"no TLS with {address}: {why(error)}") from None
    except ConnectionRefusedError:
        raise
    except (ConnectionResetError, ConnectionAbortedError) as error:
        raise ConnectionLost(f"no TLS with {address}: the handshake was cut off: {error}") from None
    return transport
