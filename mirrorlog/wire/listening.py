"""A server on an address, or the reason why not. Thin."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable

from mirrorlog.config import split_address
from mirrorlog.errors import PortTaken
from mirrorlog.wire.dialling import end_unacked
from mirrorlog.wire.endpoint import LINGER_S
from mirrorlog.wire.tls import HANDSHAKE_S


async def check_free(address: str) -> None:
    """Whether `listen` will get the address, before anything is done that a node which cannot listen should not do.
    Raises PortTaken."""
    server = await listen(address, asyncio.Protocol)
    server.close()
    await server.wait_closed()


async def listen(
    address: str,
    factory: Callable[[], asyncio.BaseProtocol],
    tls: ssl.SSLContext | None = None,
    *,
    unacked_ms: int | None = None,
) -> asyncio.Server:
    """A server on `host:port`. `unacked_ms`: of what it accepts, see `dialling`. Raises PortTaken naming the address
    and what to do."""
    host, port = split_address(address)
    handshake_s, shutdown_s = (None, None) if tls is None else (HANDSHAKE_S, LINGER_S)
    try:
        server = await asyncio.get_running_loop().create_server(
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
    if unacked_ms is not None:
        for sock in server.sockets:
            end_unacked(sock, unacked_ms)
    return server


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `host:port`. A name is not looked up, but for `localhost`."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
