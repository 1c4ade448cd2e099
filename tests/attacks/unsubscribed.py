"""A connection that has thousands of subscriptions is dropped without a word, again and again; the queue's consumers
take turns one at a time, so that each end is a change of who is active."""

from __future__ import annotations

import asyncio
import contextlib
import time
from random import Random

from mirrorlog.config import split_address
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.groups import Subscribe
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.queues import DeclareQueue
from mirrorlog.wire.messages.topology import Login
from tests.attacks.target import Target

_SUBSCRIPTIONS = 5_000
_QUEUE = "one-at-a-time"


def attack(target: Target, seconds: float, random: Random) -> int:
    return asyncio.run(_come_and_go(target, time.monotonic() + seconds))


async def _come_and_go(target: Target, until: float) -> int:
    """How many subscriptions were asked for, of all nodes: one of them masters the queue."""
    hello = Hello(version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION_MAX, role="client", software="attack")
    words = frame(FrameType.HELLO, encode(hello), 1)
    if target.user:
        words += frame(FrameType.REQUEST, encode(Login(user=target.user, password=target.password)), 2)
    declared = DeclareQueue(name=_QUEUE, arguments={"x-single-active-consumer": True})
    words += frame(FrameType.REQUEST, encode(declared), 3)
    subscribe = encode(Subscribe(queue=_QUEUE))
    asked = b"".join(frame(FrameType.REQUEST, subscribe, number) for number in range(4, 4 + _SUBSCRIPTIONS))
    sent = 0
    while time.monotonic() < until:
        for address in target.client:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    reader, writer = await asyncio.open_connection(*split_address(address), ssl=target.context())
                    try:
                        writer.write(words + asked)
                        sent += _SUBSCRIPTIONS
                        await writer.drain()
                        answered = 0
                        while answered < 100 * _SUBSCRIPTIONS and (data := await reader.read(1 << 20)):
                            answered += len(data)
                    finally:
                        writer.transport.abort()
    return sent
