"""Publishing through a real door of a real node, with the stubs that any gRPC client has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from mirrorlog.client import Client
from mirrorlog.doors.grpc.producer_service import ProducerService, StreamLimits
from mirrorlog.doors.grpc_door import MESSAGE_SLACK_BYTES, METADATA_BYTES_MAX
from mirrorlog.pb.v1 import admin_pb2, common_pb2, producer_pb2, producer_pb2_grpc
from mirrorlog.testing import Cluster
from tests.doors.door import HOST, Door, Publishing, admin, channel_to, failure_of, info_of, logins_as
from tests.process.clusters import fast_cluster, log_of
from tests.process.raw import Raw, batch_of

RECORD_MAX = 64 * 1024
BATCH_MAX = 256 * 1024
INVALID_ARGUMENT = grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    limits = {"limits.max_record_bytes": RECORD_MAX, "limits.max_batch_bytes": BATCH_MAX}
    with fast_cluster(3, settings=limits) as started:
        started.wait_in_sync()
        yield started


@pytest.fixture(scope="module")
def channel(cluster: Cluster) -> Iterator[grpc.Channel]:
    """To a door of the master."""
    with Door(cluster.master.client) as door, channel_to(door.address) as opened:
        yield opened


@pytest.fixture
def queue(channel: grpc.Channel, request: pytest.FixtureRequest) -> admin_pb2.QueueInfo:
    """A queue of the test's own."""
    declared = admin(channel).DeclareQueue(admin_pb2.DeclareQueueRequest(name=request.node.name), timeout=30)
    assert declared.queue.name == request.node.name
    return declared.queue


def stored(cluster: Cluster, queue: admin_pb2.QueueInfo) -> list[bytes]:
    """What the queue holds, by the native door."""
    with Raw(cluster.master.client) as raw:
        return raw.values(queue.queue_id)


def identity(producer_id: int, epoch: int = 0) -> producer_pb2.ProducerIdentity:
    return producer_pb2.ProducerIdentity(producer_id=producer_id, producer_epoch=epoch)


def test_a_thousand_records_are_confirmed_in_order(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the main job through the door. Method: 50 batches of 20, all written before the first answer is taken."""
    values = [b"value %d" % number for number in range(1_000)]
    with Publishing(channel, queue.name) as stream:
        opened = stream.opened()
        assert (opened.queue_id, opened.max_record_bytes, opened.max_batch_bytes) == (
            queue.queue_id, RECORD_MAX, BATCH_MAX,
        )  # fmt: skip
        for tag in range(50):
            stream.publish(values[20 * tag : 20 * tag + 20], tag=1000 + tag)
        results = [response.result for response in stream.finish()]
    assert [result.tag for result in results] == [1000 + tag for tag in range(50)]
    assert [result.confirm.base_queue_offset for result in results] == list(range(0, 1_000, 20))
    assert {result.confirm.copies for result in results} == {3}
    log_offsets = [result.confirm.log_offset for result in results]
    assert log_offsets == sorted(set(log_offsets))
    assert stored(cluster, queue) == values


def test_any_node_s_door_publishes_to_the_master(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: a client need not know who is master. Method: publish through the door of a mirror."""
    cluster.wait_confirmed()
    with (
        Door(cluster.mirrors[0].client) as door,
        channel_to(door.address) as there,
        Publishing(there, queue.name) as stream,
    ):
        assert stream.opened().queue_id == queue.queue_id
        stream.publish([b"through a mirror"])
        assert stream.confirm().copies == 3
    assert stored(cluster, queue) == [b"through a mirror"]


def test_a_ready_batch_is_stored_as_it_is(cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: an encoder in any language may do the work. Method: a ready batch between two of records."""
    with Publishing(channel, queue.name) as stream:
        stream.opened()
        stream.publish([b"1"])
        stream.publish_ready(batch_of([b"2", b"3"], queue.queue_id))
        stream.publish([b"4"])
        assert [stream.confirm().base_queue_offset for _ in range(3)] == [0, 1, 3]
    assert stored(cluster, queue) == [b"1", b"2", b"3", b"4"]


def test_an_unknown_queue_ends_the_stream_with_not_found(channel: grpc.Channel) -> None:
    """Goal: the status of the contract, with its reason. Method: open a stream to nowhere."""
    error = failure_of(Publishing(channel, "nowhere").opened)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    info = info_of(error)
    assert (info.domain, info.reason, info.metadata["retriable"]) == ("mirrorlog", "NO_SUCH_QUEUE", "false")
    assert "nowhere" in error.details()


def test_a_stream_that_does_not_begin_with_open_is_refused(channel: grpc.Channel) -> None:
    """Goal: no batch without a queue. Method: begin with a batch, and end without a word."""
    first = Publishing(channel, None)
    first.publish([b"lost"])
    silent = Publishing(channel, None)
    for call in (first.opened, silent.finish):
        error = failure_of(call)
        assert (error.code(), info_of(error).reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")


def test_bad_input_is_answered_in_the_stream_and_nothing_of_it_is_stored(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: INVALID_ARGUMENT by name, log untouched, the stream goes on. Method: one of each, then a good batch."""
    end = log_of(cluster.master).end
    damaged = batch_of([b"damaged"], queue.queue_id)
    damaged[-1] ^= 1
    large = bytes(RECORD_MAX + 1)
    expected = ["RECORD_TOO_LARGE", "RECORD_TOO_LARGE", "BATCH_TOO_LARGE", "BATCH_TOO_LARGE", "BAD_BATCH", "BAD_BATCH"]
    with Publishing(channel, queue.name) as stream:
        stream.opened()
        stream.publish([b"small", large])
        stream.publish_ready(batch_of([large], queue.queue_id))
        stream.publish([bytes(RECORD_MAX)] * 5)
        stream.publish_ready(bytes(BATCH_MAX + 8))
        stream.publish_ready(damaged)
        stream.publish([])
        errors = [stream.error() for _ in expected]
        assert [error.code for error in errors] == expected
        assert {error.grpc_code for error in errors} == {INVALID_ARGUMENT}
        assert not any(error.retriable for error in errors)
        assert log_of(cluster.master).end == end
        stream.publish([b"good"])
        assert stream.confirm().base_queue_offset == 0
    assert stored(cluster, queue) == [b"good"]


def test_a_message_larger_than_any_batch_ends_the_stream_alone(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the door's memory has a limit. Method: a value of 4 MiB on one stream, a good one on another."""
    with Publishing(channel, queue.name) as large, Publishing(channel, queue.name) as other:
        large.opened()
        other.opened()
        large.publish([bytes(4 * 1024 * 1024)])
        error = failure_of(large.result)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(BATCH_MAX + MESSAGE_SLACK_BYTES) in error.details()
        other.publish([b"other"])
        assert other.confirm().base_queue_offset == 0


def test_metadata_larger_than_any_call_needs_is_refused(channel: grpc.Channel) -> None:
    """Goal: a header list is no way to the door's memory. Method: just below the limit, and above it; then go on."""
    calls = admin(channel)
    request = admin_pb2.GetStatusRequest()
    calls.GetStatus(request, timeout=30, metadata=[("note", "x" * (METADATA_BYTES_MAX // 2))])
    error = failure_of(lambda: calls.GetStatus(request, timeout=30, metadata=[("note", "x" * METADATA_BYTES_MAX)]))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    calls.GetStatus(request, timeout=30)


def test_the_same_sequence_on_a_new_stream_lands_once(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: an idempotent client may repeat after a broken stream. Method: break one off, send all again on another."""
    with Publishing(channel, queue.name, identity=identity(77)) as stream:
        stream.opened()
        stream.publish([b"a", b"b"], sequence=0)
        first = stream.confirm()
    with Publishing(channel, queue.name, identity=identity(77)) as stream:
        stream.opened()
        stream.publish([b"a", b"b"], sequence=0)
        again = stream.confirm()
        stream.publish([b"c"], sequence=2)
        assert not stream.confirm().duplicate
    assert again.duplicate
    assert not first.duplicate
    assert (again.base_queue_offset, again.log_offset) == (first.base_queue_offset, first.log_offset)
    assert stored(cluster, queue) == [b"a", b"b", b"c"]


def test_a_gap_in_the_sequence_is_refused_with_the_last_one_held(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: a client finds its way back. Method: leave one out, read `last`, go on from there."""
    with Publishing(channel, queue.name, identity=identity(78)) as stream:
        stream.opened()
        stream.publish([b"a"], sequence=0)
        stream.publish([b"c"], sequence=2)
        stream.confirm()
        error = stream.error()
        assert (error.code, error.grpc_code, dict(error.details)["last"]) == ("OUT_OF_SEQUENCE", INVALID_ARGUMENT, "0")
        stream.publish([b"b"], sequence=int(error.details["last"]) + 1)
        stream.confirm()
    assert stored(cluster, queue) == [b"a", b"b"]


def test_records_without_identity_that_are_sent_again_are_new_records(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: what the .proto file warns of is so. Method: the same records on two streams."""
    for _ in range(2):
        with Publishing(channel, queue.name) as stream:
            stream.opened()
            stream.publish([b"again"])
            assert not stream.confirm().duplicate
    assert stored(cluster, queue) == [b"again", b"again"]


def test_level_and_durability_are_those_that_were_asked_for(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the receipt says what holds. Method: two copies on disk; more copies than there are is bad input."""
    level = producer_pb2.ConfirmLevel(copies=2)
    with Publishing(channel, queue.name, level=level, durability=common_pb2.DURABILITY_DISK) as stream:
        stream.opened()
        stream.publish([b"on disk"])
        confirm = stream.confirm()
        assert confirm.copies >= 2
        assert confirm.durability == common_pb2.DURABILITY_DISK
    with Publishing(channel, queue.name, level=producer_pb2.ConfirmLevel(copies=4)) as stream:
        stream.opened()
        stream.publish([b"too many"])
        assert (stream.error().code, stored(cluster, queue)) == ("BAD_REQUEST", [b"on disk"])


async def test_who_asks_for_no_level_gets_that_of_the_queues_policy(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: a policy is for clients of every door. Method: one of more copies than there are, which is refused, for
    records with numbers and without; whoever asks for a level has that."""
    async with Client(*cluster.servers) as client:
        await client.admin.topology.set_policy("level", "^governed$", {"confirm": 4})
        queue = await client.admin.declare("governed")
    assert queue.effective == {"confirm": 4}
    await asyncio.to_thread(publish_without_a_level, channel)
    with Raw(cluster.master.client) as raw:
        assert raw.values(queue.queue_id) == [b"asked"]


def publish_without_a_level(channel: grpc.Channel) -> None:
    with Publishing(channel, "governed") as stream:
        stream.opened()
        stream.publish([b"too many"])
        assert stream.error().code == "BAD_REQUEST"
    with Publishing(channel, "governed", identity=identity(77)) as stream:
        stream.opened()
        stream.publish([b"too many"], sequence=0)
        assert stream.error().code == "BAD_REQUEST"
    level = producer_pb2.ConfirmLevel(name=producer_pb2.ConfirmLevel.NAME_ALL)
    with Publishing(channel, "governed", level=level) as stream:
        stream.opened()
        stream.publish([b"asked"])
        assert stream.confirm().copies == 3


async def test_one_stream_too_many_is_refused_by_the_limit_s_name(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the memory of all streams has a limit. Method: a service that takes one; the next fits after its end."""
    request = producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue=queue.name))
    async with Client(cluster.master.client) as client, serving(client, StreamLimits(streams_max=1)) as there:
        publish = producer_pb2_grpc.ProducerStub(there).Publish
        first = publish(timeout=30)
        await first.write(request)
        assert (await first.read()).WhichOneof("response") == "opened"
        second = publish(timeout=30)
        assert await second.code() is grpc.StatusCode.UNAVAILABLE
        assert "1 Publish streams" in await second.details()
        await first.done_writing()
        assert await first.read() is grpc.aio.EOF
        third = publish(timeout=30)
        await third.write(request)
        assert (await third.read()).WhichOneof("response") == "opened"
        third.cancel()


@contextlib.asynccontextmanager
async def serving(client: Client, limits: StreamLimits) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the Producer service alone, in this process. A server that is not stopped would hang its end."""
    server = grpc.aio.server()
    try:
        ProducerService(logins_as(client), limits).add_to(server)
        address = f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(None)


def test_a_stream_that_is_broken_off_leaves_the_door_well(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: nobody's answers trouble nobody. Method: break off with batches on both ways under way, and go on."""
    cluster.nodes["n2"].pause()
    try:
        for options in ({}, {"identity": identity(79)}):
            with Publishing(channel, queue.name, **options) as stream:
                stream.opened()
                stream.publish([b"under way"], sequence=0 if options else None)
    finally:
        cluster.nodes["n2"].resume()
    cluster.wait_in_sync()
    with Publishing(channel, queue.name) as stream:
        stream.opened()
        stream.publish([b"after"])
        stream.confirm()
    assert stored(cluster, queue)[-1] == b"after"
