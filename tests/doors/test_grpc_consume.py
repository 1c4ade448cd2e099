"""Reading through a real door of real nodes, with the stubs that any gRPC client has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from mirrorlog.client import Client
from mirrorlog.doors.grpc.consumer_service import ConsumeLimits, ConsumerService
from mirrorlog.pb.v1 import admin_pb2, common_pb2, consumer_pb2_grpc, producer_pb2
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.testing import Cluster
from tests.doors.door import (
    HOST,
    Consuming,
    Door,
    Publishing,
    admin,
    channel_to,
    failure_of,
    info_of,
    logins_as,
    values_of,
)
from tests.process.clusters import declare, eventually, fast_cluster, log_of
from tests.process.raw import Raw, batch_of

MIB = 1024 * 1024
LATEST = pb.Until(edge=pb.EDGE_LATEST)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # A paused mirror must stay "up" for the master: what it does not ack waits and is not refused.
    settings = {"ha.haHousekeepingInterval": 60_000, "ha.syncFlushTimeout": 20_000}
    with fast_cluster(3, settings=settings) as started:
        started.wait_in_sync()
        yield started


@pytest.fixture(scope="module", params=["n1", "n2"], ids=["master", "mirror"])
def channel(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    """To the door of the master, and to that of a mirror: both serve alike."""
    with Door(cluster.nodes[request.param].client) as door, channel_to(door.address) as opened:
        yield opened


@pytest.fixture
def queue(cluster: Cluster, request: pytest.FixtureRequest) -> admin_pb2.QueueInfo:
    """A queue of the test's own with ten records in batches of 3, 3, 3 and 1, known to all nodes."""
    queue = declare(cluster.master.client, request.node.name)
    with Raw(cluster.master.client) as raw:
        for first in range(0, 10, 3):
            raw.produce(batch_of([b"%d" % number for number in range(first, min(10, first + 3))], queue))
    cluster.wait_confirmed()
    return admin_pb2.QueueInfo(name=queue.name, queue_id=queue.queue_id, log_id=queue.log_id, epoch=queue.epoch)


def numbers(first: int, last: int = 10) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def all_values(responses: list[pb.ConsumeResponse]) -> list[bytes]:
    return [value for response in responses for value in values_of(response)]


def test_a_reader_sees_everything_from_the_earliest_on_and_then_what_comes(
    channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the main job. Method: read what is there, then publish through the same door and read on."""
    with Consuming(channel, queue.name) as reader, Publishing(channel, queue.name) as writer:
        opened = reader.opened()
        assert (opened.first, opened.begin, opened.end, opened.node_id) == (0, 0, 10, "n1")
        assert reader.values(10) == numbers(0)
        writer.opened()
        writer.publish([b"10", b"11"])
        epoch = writer.confirm().epoch
        response = reader.with_records()
        assert values_of(response) == [b"10", b"11"]
        assert response.next == common_pb2.Position(log_id=queue.log_id, epoch=epoch, queue_offset=12)
        (batch,) = response.batches.batches
        assert (batch.base_queue_offset, batch.epoch, batch.append_time_us > 0) == (10, epoch, True)


def test_a_reader_goes_on_at_the_position_of_any_response(channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: resume. Method: one record per response; a new stream from each `next`, in the middle of batches too."""
    with Consuming(channel, queue.name, max_bytes=1, until=LATEST) as reader:
        responses = [reader.opened(), *reader.rest()]
    assert all_values(responses) == numbers(0)
    assert [response.next.queue_offset for response in responses] == list(range(11))
    for response in responses:
        with Consuming(channel, queue.name, start=pb.Start(position=response.next), until=LATEST) as reader:
            assert all_values(reader.rest()) == numbers(response.next.queue_offset)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (pb.Start(), 0),
        (pb.Start(edge=pb.EDGE_EARLIEST), 0),
        (pb.Start(edge=pb.EDGE_LATEST), 10),
        (pb.Start(queue_offset=4), 4),
        (pb.Start(append_time_us=0), 0),
        (pb.Start(append_time_us=2**62), 10),
        (pb.Start(group="never-committed"), 0),
        (pb.Start(group="five"), 5),
    ],
)
def test_every_kind_of_start_begins_where_it_says(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo, start: pb.Start, first: int
) -> None:
    """Goal: each start means one record. Method: ten records, a group at 5, read up to the end."""
    position = common_pb2.Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=5)
    commit = admin_pb2.CommitPositionRequest(queue=queue.name, group="five", position=position)
    admin(channel).CommitPosition(commit, timeout=30)
    with Consuming(channel, queue.name, start=start, until=LATEST) as reader:
        assert reader.opened().next.queue_offset == first
        assert all_values(reader.rest()) == numbers(first)


def test_a_reader_of_the_latest_sees_what_comes_after_its_first_response(
    channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: no gap between open and publish. Method: publish at once behind the first response."""
    with (
        Consuming(channel, queue.name, start=pb.Start(edge=pb.EDGE_LATEST)) as reader,
        Publishing(channel, queue.name) as writer,
    ):
        reader.opened()
        writer.opened()
        writer.publish([b"new"])
        assert reader.values(1) == [b"new"]


@pytest.mark.parametrize("raw", [False, True], ids=["records", "raw"])
@pytest.mark.parametrize("until", [0, 4, 6, 10])
def test_a_reader_ends_well_before_the_record_it_named(
    channel: grpc.Channel, queue: admin_pb2.QueueInfo, until: int, raw: bool
) -> None:
    """Goal: a range ends with OK and nothing beyond it. Method: ends at, between and within batches."""
    shape = pb.SHAPE_RAW if raw else pb.SHAPE_RECORDS
    with Consuming(channel, queue.name, until=pb.Until(queue_offset=until), shape=shape) as reader:
        reader.opened()
        responses = reader.rest()
    if not raw:
        assert all_values(responses) == numbers(0, until)
    assert (responses[-1].next.queue_offset if responses else 0) == until


def test_raw_batches_are_the_bytes_of_the_log(
    cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: the fast shape touches nothing. Method: compare with what the native port answers to the same fetch."""
    with Raw(cluster.master.client) as native:
        _, batches = native.fetch(queue.queue_id, 4)
    asked = {"start": pb.Start(queue_offset=4), "until": LATEST, "shape": pb.SHAPE_RAW}
    with Consuming(channel, queue.name, **asked) as reader:
        reader.opened()
        (response,) = reader.rest()
    assert response.raw == b"".join(batches)
    # The first batch begins below the start: the reader's records begin at `first`.
    assert (response.batch_count, response.first, response.next.queue_offset) == (3, 4, 10)


def test_what_was_published_ready_comes_back_as_it_was(channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: a producer's bytes survive both ways. Method: a ready batch; all behind the broker's part is equal."""
    sent = batch_of([b"a", None, b""], queue.queue_id, producer_id=9)
    asked = {"start": pb.Start(edge=pb.EDGE_LATEST), "shape": pb.SHAPE_RAW}
    with Consuming(channel, queue.name, **asked) as reader, Publishing(channel, queue.name) as writer:
        reader.opened()
        writer.opened()
        writer.publish_ready(sent)
        writer.confirm()
        assert reader.with_records().raw[36:] == sent[36:]


def test_absent_and_empty_are_told_apart(channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: a record comes out as it went in. Method: every part absent, empty and present, through the door."""
    records = [
        producer_pb2.Record(),
        producer_pb2.Record(value=b"", key=b"", headers=[producer_pb2.Header(name="é")], timestamp_us=0),
        producer_pb2.Record(value=b"v", key=b"k", headers=[producer_pb2.Header(name="h", value=b"")], timestamp_us=-5),
    ]
    batch = producer_pb2.PublishBatch(records=producer_pb2.Records(records=records))
    with (
        Consuming(channel, queue.name, start=pb.Start(edge=pb.EDGE_LATEST)) as reader,
        Publishing(channel, queue.name) as writer,
    ):
        reader.opened()
        writer.opened()
        writer.send(producer_pb2.PublishRequest(batch=batch))
        writer.confirm()
        assert list(reader.with_records().batches.batches[0].records) == records


def test_silence_is_told_again_and_again(channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: a reader at the end knows that it is. Method: a short wait; every response says where it stands."""
    start = pb.Start(edge=pb.EDGE_LATEST)
    with Consuming(channel, queue.name, start=start, max_wait_ms=20) as reader:
        for _ in range(4):
            response = reader.opened()
            assert (response.first, response.next.queue_offset, response.end) == (10, 10, 10)


def test_only_confirmed_records_are_seen(cluster: Cluster, channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: invariant 4. Method: a record that one paused mirror lacks, silence meanwhile, and then the record."""
    start = pb.Start(edge=pb.EDGE_LATEST)
    with Raw(cluster.master.client) as raw, Consuming(channel, queue.name, start=start, max_wait_ms=50) as reader:
        reader.opened()
        cluster.nodes["n3"].pause()
        try:
            end = log_of(cluster.master).end
            waiting = raw.start_produce(batch_of([b"waits"], queue.queue_id))
            eventually(lambda: log_of(cluster.nodes["n2"]).end > end, "one mirror has it")
            for _ in range(3):
                assert reader.opened().end == 10
        finally:
            cluster.nodes["n3"].resume()
        raw.confirm(waiting)
        assert reader.values(1) == [b"waits"]


@pytest.mark.parametrize(
    ("read_from", "served_by"),
    [
        (pb.ReadFrom(), "n1"),
        (pb.ReadFrom(copy=pb.ReadFrom.COPY_MASTER), "n1"),
        (pb.ReadFrom(copy=pb.ReadFrom.COPY_MIRROR), "n2"),
        (pb.ReadFrom(node_id="n3"), "n3"),
    ],
)
def test_the_copy_that_was_asked_for_serves(
    channel: grpc.Channel, queue: admin_pb2.QueueInfo, read_from: pb.ReadFrom, served_by: str
) -> None:
    """Goal: load can be put on mirrors. Method: each way to name a copy; who served is in the response."""
    with Consuming(channel, queue.name, read_from=read_from, until=LATEST) as reader:
        responses = [reader.opened(), *reader.rest()]
    assert {response.node_id for response in responses} == {served_by}
    assert all_values(responses) == numbers(0)


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        ({"queue_name": "nowhere"}, grpc.StatusCode.NOT_FOUND, "NO_SUCH_QUEUE"),
        ({"queue_name": ""}, grpc.StatusCode.NOT_FOUND, "NO_SUCH_QUEUE"),
        ({"max_bytes": -1}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        ({"read_from": pb.ReadFrom(node_id="n9")}, grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"),
        (
            {"start": pb.Start(position=common_pb2.Position(log_id="other"))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_REQUEST",
        ),
        ({"start": pb.Start(queue_offset=11)}, grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"),
    ],
)
def test_what_cannot_be_read_ends_the_stream_by_name(
    channel: grpc.Channel, queue: admin_pb2.QueueInfo, asked: dict[str, Any], status: grpc.StatusCode, reason: str
) -> None:
    """Goal: the native door's errors. Method: one of each; a position that is gone names what there is."""
    with Consuming(channel, **{"queue_name": queue.name, **asked}) as reader:
        error = failure_of(reader.rest)
    info = info_of(error)
    assert (error.code(), info.reason, info.metadata["retriable"]) == (status, reason, "false")
    if reason == "OFFSET_OUT_OF_RANGE":
        assert (info.metadata["begin"], info.metadata["next"]) == ("0", "10")


def test_a_slow_reader_is_waited_for_and_holds_up_nobody(tmp_path: Path) -> None:
    """Goal: back-pressure, and memory with a limit. Method: 96 MiB; one reader takes one response and stops, another
    reads all of it, the door has grown by less than a third of it; then the first one reads on, without a gap."""
    value = bytes(64 * 1024)
    count = 96 * MIB // len(value)
    with (
        fast_cluster(1, segment_bytes=64 * MIB) as one,
        Door(one.nodes["n1"].client) as door,
        channel_to(door.address) as channel,
    ):
        queue = declare(one.nodes["n1"].client, "q")
        with Raw(one.nodes["n1"].client) as raw:
            for _ in range(0, count, 16):
                raw.produce(batch_of([value] * 16, queue))
        asked = {"until": LATEST, "shape": pb.SHAPE_RAW}
        with Consuming(channel, "q", **asked) as slow, Consuming(channel, "q", **asked) as fast:
            slow.opened()
            taken = slow.with_records()
            before = resident_bytes(door.process.pid)
            assert offsets(fast.rest()) == (0, count)
            assert resident_bytes(door.process.pid) - before < 32 * MIB
            assert offsets([taken, *slow.rest()]) == (0, count)


def offsets(responses: list[pb.ConsumeResponse]) -> tuple[int, int]:
    """First and next queue offset of all of them; each must begin where the one before it ended."""
    for before, after in pairwise(responses):
        assert after.first == before.next.queue_offset
    return responses[0].first, responses[-1].next.queue_offset


def resident_bytes(pid: int) -> int:
    """Memory that a process has (Linux's own account of it)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def test_a_reader_goes_on_when_its_node_is_back_and_ends_by_name_when_it_stays_away() -> None:
    """Goal: a lost node is an interruption, then an error. Method: kill the only node under two readers, one patient;
    start it again: the patient one reads on without a gap."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door, channel_to(door.address) as channel:
        queue = declare(one.nodes["n1"].client, "q")
        with Raw(one.nodes["n1"].client) as raw:
            raw.produce(batch_of([b"before"], queue))
        with (
            Consuming(channel, "q") as patient,
            Consuming(channel, "q", outage_timeout_ms=100) as hasty,
        ):
            for reader in (patient, hasty):
                reader.opened()
                assert reader.values(1) == [b"before"]
            one.nodes["n1"].kill()
            error = failure_of(hasty.response)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert (info_of(error).reason, info_of(error).metadata["retriable"]) == ("CONNECTION_LOST", "true")
            one.nodes["n1"].start()
            with Raw(one.nodes["n1"].client) as raw:
                raw.produce(batch_of([b"after"], queue))
            assert patient.values(1) == [b"after"]


def test_a_caller_s_deadline_ends_its_reader_alone(channel: grpc.Channel, queue: admin_pb2.QueueInfo) -> None:
    """Goal: nothing hangs. Method: a short deadline at the end of a queue; another reader of the same door goes on."""
    start = pb.Start(edge=pb.EDGE_LATEST)
    with (
        Consuming(channel, queue.name) as other,
        Consuming(channel, queue.name, start=start, timeout_s=0.5) as reader,
    ):
        assert failure_of(reader.rest).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        other.opened()
        assert other.values(10) == numbers(0)


def test_a_stopping_door_ends_its_readers_by_name() -> None:
    """Goal: SIGTERM waits for nobody. Method: a reader that waits for records; terminate the door."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door, channel_to(door.address) as channel:
        declare(one.nodes["n1"].client, "q")
        with Consuming(channel, "q") as reader:
            reader.opened()
            door.process.terminate()
            error = failure_of(reader.response)
            assert (error.code(), info_of(error).reason) == (grpc.StatusCode.UNAVAILABLE, "NODE_STOPPING")
        assert door.process.wait(timeout=30) == 0


async def test_one_reader_too_many_is_refused_by_the_limit_s_name_and_a_cancelled_one_gives_its_place(
    cluster: Cluster, queue: admin_pb2.QueueInfo
) -> None:
    """Goal: readers have a limit, and those that went are not counted. Method: a service that takes one."""
    request = pb.ConsumeRequest(queue=queue.name, start=pb.Start(edge=pb.EDGE_LATEST))
    async with Client(cluster.master.client) as client:
        server = grpc.aio.server()
        try:
            service = ConsumerService(logins_as(client), ConsumeLimits(streams_max=1))
            consumer_pb2_grpc.add_ConsumerServicer_to_server(service, server)
            address = f"{HOST}:{server.add_insecure_port(f'{HOST}:0')}"
            await server.start()
            async with grpc.aio.insecure_channel(address) as channel:
                consume = consumer_pb2_grpc.ConsumerStub(channel).Consume
                first = consume(request, timeout=30)
                await first.read()
                second = consume(request, timeout=30)
                assert await second.code() is grpc.StatusCode.UNAVAILABLE
                assert "1 Consume streams" in await second.details()
                first.cancel()
                async with asyncio.timeout(30):
                    while not await is_open(third := consume(request, timeout=30)):
                        pass
                third.cancel()
        finally:
            await server.stop(None)


async def is_open(call: grpc.aio.UnaryStreamCall[pb.ConsumeRequest, pb.ConsumeResponse]) -> bool:
    """Whether the stream's first response came, and not its end."""
    try:
        return await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError:
        return False
