"""Bytes that are nearly right: what the fuzzers of this folder send, made from sound messages by one seed."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from mirrorlog.config import split_address
from tests.attacks.target import Target

TIMEOUT_S: Final = 2.0
_INPUT_BYTES_MAX: Final = 256 * 1024
_PATIENCE_S: Final = 0.05
_NUMBERS: Final = (0, 1, 2, 7, 8, 15, 16, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1)


def mutated(random: Random, data: bytes) -> bytes:
    """With one to four places changed: bits, bytes, numbers, cut, doubled, moved or filled."""
    content = bytearray(data)
    for _ in range(random.randint(1, 4)):
        _change(random, content)
    return bytes(content[:_INPUT_BYTES_MAX])


def _change(random: Random, content: bytearray) -> None:
    size = len(content)
    if not size:
        content += random.randbytes(random.randint(1, 64))
        return
    at, until = sorted((random.randrange(size), random.randrange(size + 1)))
    kind = random.randrange(7)
    if kind == 0:
        content[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        content[at] = random.randrange(256)
    elif kind == 2 and size >= 4:
        struct.pack_into("<I", content, random.randrange(size - 3), random.choice(_NUMBERS))
    elif kind == 3:
        del content[at:until]
    elif kind == 4:
        content[at:at] = content[at:until]
    elif kind == 5:
        part = content[at:until]
        del content[at:until]
        place = random.randrange(len(content) + 1)
        content[place:place] = part
    else:
        content[at:until] = random.randbytes(until - at)


def at_ports(
    target: Target,
    addresses: Sequence[str],
    seconds: float,
    random: Random,
    said: Callable[[Random], Sequence[bytes]],
    *,
    tls: bool,
) -> int:
    """One connection after the other, each with what `said` gives, until the time is up; how many inputs were sent."""
    until, sent = time.monotonic() + seconds, 0
    context = target.context() if tls else None
    while time.monotonic() < until:
        address = random.choice(addresses)
        with contextlib.suppress(OSError), _connected(address, None if random.random() < 0.05 else context) as own:
            for each in said(random):
                own.sendall(each)
                sent += 1
            own.settimeout(_PATIENCE_S)
            own.recv(64 * 1024)
    return sent


def _connected(address: str, context: ssl.SSLContext | None) -> socket.socket:
    """Now and then garbage comes in place of the handshake."""
    plain = socket.create_connection(split_address(address), timeout=TIMEOUT_S)
    return plain if context is None else context.wrap_socket(plain)
