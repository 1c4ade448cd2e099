"""Guessers: forty connections that log in with one wrong password after the other, as fast as they are told so."""

from __future__ import annotations

import asyncio
import contextlib
import time
from random import Random

from mirrorlog.config import split_address
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import FRAME_HEADER_SIZE, PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.topology import Login
from tests.attacks.target import Target

_GUESSERS = 40
_NAMES = ("root", "guest", "admin", "nobody")


def attack(target: Target, seconds: float, random: Random) -> int:
    return asyncio.run(guess(target, time.monotonic() + seconds, random, names=_NAMES))


async def guess(target: Target, until: float, random: Random, *, names: tuple[str, ...]) -> int:
    """At these users' passwords, until then (s of the monotonic clock); how many were tried."""
    async with asyncio.TaskGroup() as group:
        guessers = [group.create_task(_guesser(target, until, random, names)) for _ in range(_GUESSERS)]
    return sum(guesser.result() for guesser in guessers)


async def _guesser(target: Target, until: float, random: Random, names: tuple[str, ...]) -> int:
    """A connection that is closed, as after some failures, is opened again."""
    hello = Hello(version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION_MAX, role="client", software="attack")
    tried = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError, EOFError, MirrorlogError):
            async with asyncio.timeout(until - time.monotonic()):
                address = split_address(random.choice(target.client))
                reader, writer = await asyncio.open_connection(*address, ssl=target.context())
                try:
                    writer.write(frame(FrameType.HELLO, encode(hello), 1))
                    await _answer(reader)
                    while True:
                        login = Login(user=random.choice(names), password=f"{random.random()}")
                        writer.write(frame(FrameType.REQUEST, encode(login), 2))
                        tried += 1
                        await _answer(reader)
                finally:
                    writer.transport.abort()
    return tried


async def _answer(reader: asyncio.StreamReader) -> None:
    """Wait for one frame. Raises IncompleteReadError, an EOFError."""
    head = await reader.readexactly(FRAME_HEADER_SIZE)
    await reader.readexactly(int.from_bytes(head[:4], "little"))
