"""How many requests the gRPC door receives at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.message import Message

from mirrorlog.doors.grpc.receiving import REQUEST_BYTES_MAX, ReceiveInTurn, Receiving, TooLarge
from mirrorlog.errors import Overloaded
from mirrorlog.pb.v1 import admin_pb2
from mirrorlog.testing import Cluster
from tests.attacks.grpc_garbage import GARBAGE_BYTES, garbage_calls
from tests.doors.door import Door, admin, channel_to, info_of
from tests.process.clusters import MIB, fast_cluster

LONG_S = 600.0


async def coming(gate: asyncio.Event, *requests: object) -> AsyncIterator[object]:
    """These, once the gate is open."""
    await gate.wait()
    for each in requests:
        yield each


async def nothing() -> AsyncIterator[object]:
    """A call that ends before its request."""
    return
    yield


def opened() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


async def test_so_many_requests_are_received_at_once_and_the_others_wait() -> None:
    """Goal: what strangers send is bounded by the places. Method: two places, three requests that come later; the third
    is not asked for before one of the others is there."""
    receiving, gates = Receiving(places=2, grace_s=LONG_S), [asyncio.Event() for _ in range(3)]
    asked = []

    async def one(number: int) -> AsyncIterator[int]:
        asked.append(number)
        await gates[number].wait()
        yield number

    takes = [asyncio.ensure_future(receiving.next(one(number))) for number in range(3)]
    for _ in range(9):
        await asyncio.sleep(0)
    assert asked == [0, 1]
    gates[1].set()
    assert await takes[1] == 1
    gates[2].set()
    assert await takes[2] == 2
    gates[0].set()
    assert await takes[0] == 0


async def test_who_sends_slowly_loses_his_place_when_others_wait() -> None:
    """Goal: whoever floods drives out himself. Method: one place, a request that never comes; it is kept while nobody
    else wants to send, and then it is not."""
    receiving, never = Receiving(places=1, grace_s=0.01), asyncio.Event()
    slow = asyncio.ensure_future(receiving.next(coming(never)))
    done, _ = await asyncio.wait({slow}, timeout=0.1)
    assert not done
    assert await receiving.next(coming(opened(), "here")) == "here"
    with pytest.raises(Overloaded) as told:
        await slow
    assert told.value.details == {"limit": "receiving"}


async def test_of_a_stream_of_batches_only_the_first_takes_a_place() -> None:
    """Goal: publishers do not wait for each other. Method: one place; two streams between their first and second."""
    receiving = Receiving(places=1, grace_s=LONG_S)
    streams = [receiving.first(coming(opened(), "open", "batch")) for _ in range(2)]
    assert [await anext(each) for each in streams] == ["open", "open"]
    assert [await anext(each) for each in streams] == ["batch", "batch"]
    assert [request async for request in receiving.first(nothing())] == []


async def test_a_stream_that_is_idle_behind_its_first_request_holds_no_place() -> None:
    """Goal: who listens is not ended because others send. Method: one place; a stream that says its second request
    once another request was received."""
    receiving, second = Receiving(places=1, grace_s=0.01), asyncio.Event()
    seen: asyncio.Queue[object] = asyncio.Queue()

    async def said() -> AsyncIterator[object]:
        yield 1
        await second.wait()
        yield 2

    async def listen(requests: AsyncIterator[object], context: object) -> None:
        async for request in requests:
            seen.put_nowait(request)

    async def found(details: object) -> object:
        return grpc.stream_stream_rpc_method_handler(listen)

    in_turn = ReceiveInTurn(receiving, batches="/Publish")
    handler = await in_turn.intercept_service(found, SimpleNamespace(method="/Listen"))
    stream = asyncio.ensure_future(handler.stream_stream(said(), None))
    assert await seen.get() == 1
    assert await receiving.next(coming(opened(), "another's")) == "another's"
    await asyncio.wait({stream}, timeout=0.1)
    second.set()
    await stream
    assert seen.get_nowait() == 2


async def test_what_is_too_large_behind_the_first_request_ends_its_stream() -> None:
    receiving = Receiving(places=1, grace_s=LONG_S)
    with pytest.raises(TooLarge):
        _ = [request async for request in receiving.first(coming(opened(), 1, TooLarge("large")))]


async def test_a_request_that_is_too_large_gives_its_place_back() -> None:
    receiving = Receiving(places=1, grace_s=LONG_S)
    for _ in range(3):
        with pytest.raises(TooLarge):
            await receiving.next(coming(opened(), TooLarge("large")))
        with pytest.raises(StopAsyncIteration):
            await receiving.next(nothing())


# --- at a real door ---


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1) as started:
        yield started


@pytest.fixture(scope="module")
def door(cluster: Cluster) -> Iterator[Door]:
    with Door(cluster.master.client) as door:
        yield door


def anonymous_bytes(door: Door) -> int:
    lines = Path(f"/proc/{door.process.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) * 1024


def test_a_request_above_the_limit_is_refused_by_its_size(door: Door) -> None:
    """Goal: nothing of it is looked at. Method: a sound request, too large by a long name."""
    request: Message = admin_pb2.DeclareQueueRequest(name="x" * REQUEST_BYTES_MAX)
    with channel_to(door.address) as channel, pytest.raises(grpc.RpcError) as met:
        admin(channel).DeclareQueue(request, timeout=30)
    assert met.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert info_of(met.value).reason == "BAD_REQUEST"
    assert "above the limit" in met.value.details()


def test_garbage_of_many_strangers_is_received_in_turn_and_a_caller_is_answered(door: Door) -> None:
    """Goal: 8 MiB of each of a hundred strangers are not in the door at once. Method: a hundred calls, and a caller
    beside them; each is refused, the caller has his answer, and the door holds less than half of what was sent."""
    with garbage_calls(door.address, 100, bytes(GARBAGE_BYTES)) as calls:
        with channel_to(door.address) as channel:
            admin(channel).DeclareQueue(admin_pb2.DeclareQueueRequest(name="q"), timeout=30)
        codes = {call.exception(timeout=60).code() for call in calls}
    allowed = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    assert codes <= allowed
    assert anonymous_bytes(door) < 400 * MIB
