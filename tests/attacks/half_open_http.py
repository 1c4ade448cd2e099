"""Connections to the HTTP door that begin a request, or none, and say nothing more."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from mirrorlog.config import split_address
from tests.attacks.target import Target

_COUNT = 140
_BEGUN = (b"", b"GET /health HT", b"GET /metrics HTTP/1.1\r\nHost: here\r\nX: ")


@contextmanager
def half_open(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many of them."""
    with ExitStack() as stack:
        opened = []
        for number in range(count):
            each = stack.enter_context(socket.create_connection(split_address(address), timeout=10))
            each.sendall(_BEGUN[number % len(_BEGUN)])
            opened.append(each)
        yield opened


def attack(target: Target, seconds: float, random: Random) -> int:
    """More than there are places, again and again."""
    sent, end = 0, time.monotonic() + seconds
    while target.http and time.monotonic() < end:
        with contextlib.suppress(OSError), half_open(random.choice(target.http), _COUNT) as opened:
            sent += _COUNT
            opened[-1].settimeout(max(0.1, min(2.0, end - time.monotonic())))
            with contextlib.suppress(OSError):
                opened[-1].recv(1)
    return sent
