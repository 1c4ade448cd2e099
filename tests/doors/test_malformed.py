"""Bytes that are no message, at a real door of a real node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from mirrorlog.pb.v1 import admin_pb2
from mirrorlog.testing import Cluster
from tests.doors.door import Door, admin, channel_to, info_of
from tests.process.clusters import fast_cluster

GARBAGE = (b"\xff", b"\x0a\x7fcut", b"\x0a\x02\xff\xfe", b"\x08" + b"\xff" * 11)
"""A wire type that is none, a length beyond the end, a name that is no text, a number without end."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1) as started:
        yield started


@pytest.fixture(scope="module")
def door(cluster: Cluster) -> Iterator[Door]:
    with Door(cluster.master.client) as door:
        yield door


CALLS: dict[str, Callable[[grpc.Channel, bytes], Any]] = {
    "/mirrorlog.v1.Admin/DeclareQueue": lambda channel, data: channel.unary_unary("/mirrorlog.v1.Admin/DeclareQueue")(
        data, timeout=10
    ),
    "/mirrorlog.v1.Consumer/Consume": lambda channel, data: list(
        channel.unary_stream("/mirrorlog.v1.Consumer/Consume")(data, timeout=10)
    ),
    "/mirrorlog.v1.Producer/Publish": lambda channel, data: list(
        channel.stream_stream("/mirrorlog.v1.Producer/Publish")(iter([data]), timeout=10)
    ),
    "/grpc.health.v1.Health/Check": lambda channel, data: channel.unary_unary("/grpc.health.v1.Health/Check")(
        data, timeout=10
    ),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_bytes_that_are_no_message_are_the_callers_mistake(
    door: Door, method: str, garbage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Goal: INVALID_ARGUMENT with our code, no traceback, and a door that goes on. Method: every kind of call, with
    bytes that protobuf does not read; then a sound call."""
    with channel_to(door.address) as channel:
        with pytest.raises(grpc.RpcError) as met:
            CALLS[method](channel, garbage)
        assert met.value.code() is grpc.StatusCode.INVALID_ARGUMENT, met.value
        assert info_of(met.value).reason == "BAD_REQUEST"
        assert method in met.value.details()
        assert admin(channel).DeclareQueue(admin_pb2.DeclareQueueRequest(name="q"), timeout=10).queue.name == "q"
    assert "Traceback" not in capfd.readouterr().err
