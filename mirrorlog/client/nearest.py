"""Which node is the nearest: one on the host of whoever reads. Thin.

An address is one of this host's if a socket can be bound to it: that needs no list of network interfaces, which each
system tells in another way, and it is right behind a name, in a container and on loopback. Rejected: comparing host
names (a node may be advertised under any), measuring round trips (they change, and readers would flap).
"""

from __future__ import annotations

import asyncio
import socket

from mirrorlog.config import split_address


async def is_here(address: str) -> bool:
    """Whether the `host:port` of a node is on this host. A name that cannot be resolved is not."""
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_ours(family, place) for family, _, _, _, place in found)


def _is_ours(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((place[0], 0, *place[2:]))
    except OSError:
        return False
    return True
