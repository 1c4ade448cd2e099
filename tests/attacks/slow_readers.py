"""Readers of old records that ask for as much as they may and take none of it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import FETCH, FrameType, frame
from mirrorlog.wire.messages.queues import Done, GetMetadata, Metadata
from mirrorlog.wire.messages.topology import Login
from tests.attacks.target import Target
from tests.process.raw import Raw

_ASKED = 64
_FETCH_BYTES = 2 * 1024 * 1024


@contextmanager
def slow_readers(
    address: str,
    queue_id: int,
    count: int,
    *,
    asked: int = _ASKED,
    tls: ssl.SSLContext | None = None,
    login: Login | None = None,
) -> Iterator[list[Raw]]:
    """`count` connections, each with so many fetches of a queue's first records of which it reads nothing."""
    with ExitStack() as stack:
        readers = [stack.enter_context(_logged_in(address, tls, login)) for _ in range(count)]
        for reader in readers:
            reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            reader.send(b"".join(_fetch(queue_id, number) for number in range(1, asked + 1)))
        yield readers


def _logged_in(address: str, tls: ssl.SSLContext | None, login: Login | None) -> Raw:
    reader = Raw(address, timeout=30, tls=tls)
    if login is not None:
        reader.request(login, Done)
    return reader


def _fetch(queue_id: int, number: int) -> bytes:
    return frame(FrameType.FETCH, FETCH.pack(queue_id, 0, 0, _FETCH_BYTES, 0), number)


def attack(target: Target, seconds: float, random: Random) -> int:
    """Forty of them at a time, of a user who may read."""
    login = Login(user=target.reader[0], password=target.reader[1]) if target.reader else None
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        address, tls = random.choice(target.client), target.context()
        with contextlib.suppress(MirrorlogError):
            with _logged_in(address, tls, login) as asker:
                known = asker.request(GetMetadata(), Metadata).queues
            with slow_readers(address, random.choice(known).queue_id, 40, tls=tls, login=login):
                sent += 40 * _ASKED
                time.sleep(max(0.1, min(5.0, end - time.monotonic())))
    return sent
