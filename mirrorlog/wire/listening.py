"""A server on an address, or the reason why not. Thin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mirrorlog.config import split_address
from mirrorlog.errors import PortTaken


async def check_free(address: str) -> None:
    """Whether `listen` will get the address, before anything is done that a node which cannot listen should not do.
    Raises PortTaken."""
    server = await listen(address, asyncio.Protocol)
    server.close()
    await server.wait_closed()


async def listen(address: str, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """A server on `host:port`. Raises PortTaken naming the address and what to do."""
    host, port = split_address(address)
    try:
        return await asyncio.get_running_loop().create_server(factory, host, port, backlog=1024)
    except OSError as error:
        raise PortTaken(f"cannot listen on {address}: {error.strerror or error}; free it or bind another one") from None
