"""A server on an address, or the reason why not; and a connection to one. Thin."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable

from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost, PortTaken
from mirrorlog.wire.endpoint import LINGER_S
from mirrorlog.wire.tls import HANDSHAKE_S, why


async def check_free(address: str) -> None:
    """Whether `listen` will get the address, before anything is done that a node which cannot listen should not do.
    Raises PortTaken."""
    server = await listen(address, asyncio.Protocol)
    server.close()
    await server.wait_closed()


async def listen(
    address: str, factory: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """A server on `host:port`. Raises PortTaken naming the address and what to do."""
    host, port = split_address(address)
    handshake_s, shutdown_s = (None, None) if tls is None else (HANDSHAKE_S, LINGER_S)
    try:
        return await asyncio.get_running_loop().create_server(
            factory,
            host,
            port,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=handshake_s,
            ssl_shutdown_timeout=shutdown_s,
        )
    except OSError as error:
        raise PortTaken(f"cannot listen on {address}: {error.strerror or error}; free it or bind another one") from None


async def dial(address: str, factory: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None = None) -> None:
    """A connection to `host:port`; the protocol is told of it. Raises ConfigError, ConnectionLost when TLS fails, and
    whatever the loop does: OSError, UnicodeError."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    if tls is None:
        await loop.create_connection(factory, host, port)
        return
    try:
        await loop.create_connection(
            factory, host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=LINGER_S
        )
    except ssl.SSLError as error:
        raise ConnectionLost(f"no TLS with {address}: {why(error)}") from None
    except ConnectionRefusedError:
        raise
    except (ConnectionResetError, ConnectionAbortedError) as error:
        raise ConnectionLost(f"no TLS with {address}: the handshake was cut off: {error}") from None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `host:port`. A name is not looked up, but for `localhost`."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
