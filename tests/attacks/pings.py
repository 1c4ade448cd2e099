"""Strangers that send PINGs, 16 bytes each, as fast as their sockets take them, and never log in."""

from __future__ import annotations

import asyncio
import contextlib
import time
from random import Random

from mirrorlog.config import split_address
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from tests.attacks.target import Target

_CONNECTIONS = 50
_AT_ONCE = 4096


def attack(target: Target, seconds: float, random: Random) -> int:
    return asyncio.run(_flood(target, time.monotonic() + seconds, random))


async def _flood(target: Target, until: float, random: Random) -> int:
    async with asyncio.TaskGroup() as group:
        floods = [group.create_task(_pings(target, random.choice(target.client), until)) for _ in range(_CONNECTIONS)]
    return sum(flood.result() for flood in floods)


async def _pings(target: Target, address: str, until: float) -> int:
    """How many were sent. A connection that is closed is opened again."""
    hello = Hello(version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION_MAX, role="client", software="attack")
    pings = frame(FrameType.PING) * _AT_ONCE
    sent = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                reader, writer = await asyncio.open_connection(*split_address(address), ssl=target.context())
                drain = asyncio.ensure_future(reader.read())
                try:
                    writer.write(frame(FrameType.HELLO, encode(hello), 1))
                    while not drain.done():
                        writer.write(pings)
                        await writer.drain()
                        await asyncio.sleep(0)  # a drain may return at once, also where nobody reads any more
                        sent += _AT_ONCE
                finally:
                    drain.cancel()
                    writer.transport.abort()
    return sent
