"""Strangers that connect to every port and say nothing, or begin a TLS handshake and go no further; more of them than
files are usually left to a process. Then as many again, one after the other, as fast as they get through."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final

from mirrorlog.config import split_address
from tests.attacks.target import Target

HELD: Final = 1_150
_TIMEOUT_S: Final = 5.0
_BEGUN_HANDSHAKE: Final = b"\x16\x03\x01\x02\x00\x01"


def attack(target: Target, seconds: float, random: Random) -> int:
    """So many are held all the time; the oldest is closed for each new one."""
    until, made = time.monotonic() + seconds, 0
    addresses = (*target.client, *target.replication)
    held: deque[socket.socket] = deque()
    while time.monotonic() < until:
        if (opened := open_one(random.choice(addresses), half_open=random.random() < 0.5)) is not None:
            held.append(opened)
            made += 1
        if len(held) > HELD:
            held.popleft().close()
    for each in held:
        each.close()
    return made


@contextmanager
def silent(addresses: Sequence[str], count: int, *, half_open: bool = False) -> Iterator[int]:
    """`count` sockets to each address; how many there were."""
    with ExitStack() as held:
        made = [open_one(address, half_open=half_open) for address in addresses for _ in range(count)]
        for each in made:
            if each is not None:
                held.enter_context(each)
        yield len(made) - made.count(None)


def open_one(address: str, *, half_open: bool = False, source: str = "") -> socket.socket | None:
    """None when it was refused. `source`: an own address that it comes from."""
    with contextlib.suppress(OSError):
        made = socket.create_connection(split_address(address), timeout=_TIMEOUT_S, source_address=(source, 0))
        if half_open:
            with contextlib.suppress(OSError):
                made.sendall(_BEGUN_HANDSHAKE)
        return made
    return None
