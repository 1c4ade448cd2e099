"""Calls of the gRPC door whose requests are garbage of the largest size, each on a connection of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import grpc

from tests.attacks.target import Target

GARBAGE_BYTES = 8 * 1024 * 1024
METHOD = "/mirrorlog.v1.Admin/GetStatus"
_COUNT = 32
_OWN = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@contextmanager
def garbage_calls(
    address: str, count: int, garbage: bytes, *, credentials: grpc.ChannelCredentials | None = None
) -> Iterator[list[grpc.Future]]:
    """`count` calls that are under way."""
    with ExitStack() as stack:
        calls = []
        for _ in range(count):
            if credentials is None:
                channel = grpc.insecure_channel(address, options=_OWN)
            else:
                channel = grpc.secure_channel(address, credentials, options=_OWN)
            stack.enter_context(channel)
            call = channel.unary_unary(METHOD)
            calls.append(call.future(garbage, timeout=60))
        yield calls


def attack(target: Target, seconds: float, random: Random) -> int:
    """Thirty-two at a time, until each has its answer or the time is over."""
    sent, end = 0, time.monotonic() + seconds
    garbage = random.randbytes(GARBAGE_BYTES)
    credentials = grpc.ssl_channel_credentials(Path(target.ca).read_bytes()) if target.ca is not None else None
    while target.grpc and time.monotonic() < end:
        address = random.choice(target.grpc)
        with garbage_calls(address, _COUNT, garbage, credentials=credentials) as calls:
            for call in calls:
                with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError):
                    call.exception(timeout=max(0.0, end - time.monotonic()))
        sent += _COUNT
    return sent
