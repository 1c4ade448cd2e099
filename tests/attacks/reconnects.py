"""Connections that come, greet or not, and go at once, as many a second as get through: what a fleet does that restarts
again and again, and a stranger that wants the places of others.

Half of them only send the greeting of a TLS handshake, the same bytes each time: that costs them nothing, and a node
that speaks TLS has to answer it with a signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from mirrorlog.config import split_address
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from tests.attacks.target import Target

AT_ONCE: Final = 32
_TIMEOUT_S: Final = 10.0
_HELLO: Final = frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="client")))


def attack(target: Target, seconds: float, random: Random) -> int:
    addresses = (*target.client, *target.replication)
    until = time.monotonic() + seconds
    return asyncio.run(_both(target, addresses, random, until))


async def _both(target: Target, addresses: Sequence[str], random: Random, until: float) -> int:
    begun = asyncio.to_thread(begin_many, addresses, random, until=until)
    return sum(await asyncio.gather(connect_many(target, addresses, random, until=until), begun))


def begin_many(addresses: Sequence[str], random: Random, *, until: float) -> int:
    """TLS handshakes of which only the first word is said; how many."""
    hello, begun = client_hello(), 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            with socket.create_connection(split_address(random.choice(addresses)), timeout=_TIMEOUT_S) as made:
                made.sendall(hello)
            begun += 1
    return begun


def client_hello() -> bytes:
    """The first word of a TLS handshake, as it goes over the wire."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


async def connect_many(
    target: Target,
    addresses: Sequence[str],
    random: Random,
    *,
    until: float = float("inf"),
    count: int = 1 << 62,
    a_second: float = float("inf"),
) -> int:
    """So many, or until then, and no more a second than that; how many stood."""
    began, made, stood = time.monotonic(), 0, 0

    async def one_after_the_other() -> None:
        nonlocal made, stood
        while made < count and (now := time.monotonic()) < until:
            made += 1
            if (early_s := made / a_second - (now - began)) > 0:
                await asyncio.sleep(early_s)
            found = await _one(target, random.choice(addresses), greets=random.random() < 0.7)
            stood += found

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    return stood


async def _one(target: Target, address: str, *, greets: bool) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*split_address(address), ssl=target.context())
            if greets:
                writer.write(_HELLO)
                await reader.read(64 * 1024)
            writer.transport.abort()
            return True
    return False
