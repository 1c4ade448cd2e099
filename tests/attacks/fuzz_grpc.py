"""The gRPC door: sound connections with requests that are not, and connections that are none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import grpc

from mirrorlog.pb.v1 import admin_pb2, consumer_pb2, producer_pb2
from tests.attacks.fuzz import at_ports, mutated
from tests.attacks.target import Target

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
_UNARY = ("DeclareQueue", "ListQueues", "DescribeQueues", "GetStatus")


def attack(target: Target, seconds: float, random: Random) -> int:
    """Half of the time by protobuf, half of it by HTTP/2's own frames."""
    sent = _messages(target, seconds / 2, random)
    return sent + at_ports(target, target.grpc, seconds / 2, random, _frames, tls=True)


def _frames(random: Random) -> Sequence[bytes]:
    frames = [_frame(random) for _ in range(random.randint(1, 10))]
    return [mutated(random, _PREFACE) if random.random() < 0.2 else _PREFACE, *frames]


def _frame(random: Random) -> bytes:
    payload = random.randbytes(random.choice((0, 4, 8, 100)))
    size = random.choice((len(payload), len(payload), random.getrandbits(24)))
    head = size.to_bytes(3, "big") + bytes([random.randrange(12), random.randrange(256)])
    return head + random.choice((0, 1, 3, 2**31 - 1)).to_bytes(4, "big") + payload


def _messages(target: Target, seconds: float, random: Random) -> int:
    until, sent = time.monotonic() + seconds, 0
    address = random.choice(target.grpc)
    credentials = None if target.ca is None else grpc.ssl_channel_credentials(Path(target.ca).read_bytes())
    with (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials) as channel
    ):
        while time.monotonic() < until:
            with contextlib.suppress(grpc.RpcError):
                _call(channel, random)
            sent += 1
    return sent


def _call(channel: Any, random: Random) -> None:
    queue = random.choice(("q0", "q1", "none", "\u202e"))
    opening = producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue=queue)).SerializeToString()
    metadata = random.choice(((), (("authorization", "Basic ////"),), (("x-bin", random.randbytes(40)),)))
    kind = random.randrange(3)
    if kind == 0:
        data = mutated(random, admin_pb2.DeclareQueueRequest(name=queue).SerializeToString())
        channel.unary_unary(f"/mirrorlog.v1.Admin/{random.choice(_UNARY)}")(data, timeout=2, metadata=metadata)
    elif kind == 1:
        request = consumer_pb2.ConsumeRequest(queue=queue, max_wait_ms=1).SerializeToString()
        call = channel.unary_stream("/mirrorlog.v1.Consumer/Consume")(mutated(random, request), timeout=0.2)
        next(call, None)
        call.cancel()
    else:
        said = [opening, *(mutated(random, opening) for _ in range(random.randint(0, 4)))]
        list(channel.stream_stream("/mirrorlog.v1.Producer/Publish")(iter(said), timeout=0.5, metadata=metadata))
