"""One request asked very often on one connection, before any answer is read: what attacks with requests have in common.
Not an attack itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from random import Random

from mirrorlog.config import split_address
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, FrameType, frame
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.topology import Login
from tests.attacks.target import Target

_READ_BYTES = 1 << 20
_WITHOUT_A_WORD_S = 5.0


def flood(target: Target, seconds: float, random: Random, asked: Sequence[tuple[Message, int]]) -> int:
    """A connection for each of `asked`, to any node: the message so many times at once; when all are answered, or the
    node has closed the connection, again on a new one. How many were sent."""
    return asyncio.run(_flood(target, time.monotonic() + seconds, random, asked))


async def _flood(target: Target, until: float, random: Random, asked: Sequence[tuple[Message, int]]) -> int:
    async with asyncio.TaskGroup() as group:
        floods = [group.create_task(_ask(target, random.choice(target.client), until, *each)) for each in asked]
    return sum(flood.result() for flood in floods)


async def _ask(target: Target, address: str, until: float, message: Message, count: int) -> int:
    sent = 0
    hello = Hello(version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION_MAX, role="client", software="attack")
    words = frame(FrameType.HELLO, encode(hello), 1)
    if target.user:
        words += frame(FrameType.REQUEST, encode(Login(user=target.user, password=target.password)), 2)
    question = encode(message)
    questions = b"".join(frame(FrameType.REQUEST, question, number) for number in range(3, 3 + count))
    while time.monotonic() < until:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(until - time.monotonic()):
                reader, writer = await asyncio.open_connection(*split_address(address), ssl=target.context())
                try:
                    writer.write(words)
                    await reader.readexactly(16)
                    await asyncio.sleep(0.2 if target.user else 0)  # its login is looked at
                    writer.write(questions)
                    sent += count
                    await writer.drain()
                    await _read_until_quiet(reader)
                finally:
                    writer.transport.abort()
    return sent


async def _read_until_quiet(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(TimeoutError):
        while await asyncio.wait_for(reader.read(_READ_BYTES), _WITHOUT_A_WORD_S):
            pass
