"""Connections that each send one large frame and leave: what they made the node hold must go with them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from random import Random
from typing import Final

from mirrorlog.config import split_address
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from tests.attacks.target import Target

FRAME_BYTES: Final = 2 * 1024 * 1024
TIMEOUT_S: Final = 10.0


def attack(target: Target, seconds: float, random: Random) -> int:
    """At one client port after the other."""
    until, sent = time.monotonic() + seconds, 0
    for address in itertools.cycle(target.client):
        if time.monotonic() >= until:
            return sent
        sent += send_one(target, address)
    return sent


def send_one(target: Target, address: str, *, size: int = FRAME_BYTES) -> int:
    """One connection; 1 when its frame was answered."""
    hello = frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="client")))
    with contextlib.suppress(OSError), socket.create_connection(split_address(address), timeout=TIMEOUT_S) as plain:
        context = target.context()
        with plain if context is None else context.wrap_socket(plain) as own:
            own.sendall(hello)
            own.recv(64 * 1024)
            own.sendall(frame(FrameType.PING, bytes(size)))
            return int(bool(own.recv(64)))
    return 0
