"""Connections that each begin a frame as large as may be, and stop before its end."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import FrameType, frame_header
from tests.attacks.target import Target
from tests.process.raw import Raw

FRAME_BYTES = 8 * 1024 * 1024
_HELD_S = 0.5


@contextmanager
def begun_frames(address: str, count: int, *, size: int = FRAME_BYTES) -> Iterator[list[Raw]]:
    """`count` connections, each with all of a PRODUCE of `size` bytes sent but its last byte."""
    with ExitStack() as stack:
        senders = [stack.enter_context(Raw(address, timeout=30)) for _ in range(count)]
        for sender in senders:
            sender.send(frame_header(FrameType.PRODUCE, size, 1), bytes(size - 1))
        yield senders


def attack(target: Target, seconds: float, random: Random) -> int:
    """Up to 32 of them at a time, where clients need no login and speak plainly."""
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        count = random.randint(1, 32)
        with contextlib.suppress(MirrorlogError), begun_frames(random.choice(target.client), count) as senders:
            senders[0].socket.settimeout(_HELD_S)
            with contextlib.suppress(OSError):
                senders[0].socket.recv(1, socket.MSG_PEEK)
        sent += count
    return sent
