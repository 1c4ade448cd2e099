"""Connections that come, greet or not, and go at once, as many a second as get through: what a fleet does that restarts
again and again, and a stranger that wants the places of others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from random import Random
from typing import Final

from mirrorlog.config import split_address
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages import Hello, encode
from tests.attacks.target import Target

AT_ONCE: Final = 32
_TIMEOUT_S: Final = 10.0
_HELLO: Final = frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="client")))


def attack(target: Target, seconds: float, random: Random) -> int:
    addresses = (*target.client, *target.replication)
    return asyncio.run(connect_many(target, addresses, random, until=time.monotonic() + seconds))


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
