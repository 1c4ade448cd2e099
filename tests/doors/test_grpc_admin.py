"""The Admin service of a real door: queues, positions, offsets and status, with errors by their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import grpc
import pytest

from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.testing import Cluster
from tests.doors.door import Door, Publishing, admin, channel_to, failure_of, info_of
from tests.process.clusters import fast_cluster

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(2) as started:
        started.wait_in_sync()
        yield started


@pytest.fixture(scope="module", params=["n1", "n2"], ids=["master", "mirror"])
def channel(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    """To the door of the master, and to that of a mirror: both answer alike."""
    with Door(cluster.nodes[request.param].client) as door, channel_to(door.address) as opened:
        yield opened


def refused(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    """The status and the reason that a call ends with."""
    error = failure_of(lambda: call(request, timeout=TIMEOUT_S))
    return error.code(), info_of(error).reason


def declare(channel: grpc.Channel, name: str, **arguments: pb.Argument) -> pb.QueueInfo:
    request = pb.DeclareQueueRequest(name=name, arguments=arguments)
    declared: pb.QueueInfo = admin(channel).DeclareQueue(request, timeout=TIMEOUT_S).queue
    return declared


@pytest.mark.long_after(1)
def test_its_connections_are_listed_as_this_doors(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: who sees a connection of a door knows which. Method: a call, and the list of the cluster."""
    declare(channel, "listed")
    with SyncClient(*cluster.servers) as client:
        rows = client.admin.connections().rows
    assert {(row.door, row.protocol) for row in rows if row.role == "door"} == {("grpc", "grpc")}


@pytest.mark.long_after(1)
def test_declaring_again_is_the_same_queue_unless_it_differs(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: declare is idempotent. Method: twice alike, once otherwise; an unknown argument is refused here too, and an
    exclusive queue, which would be the door's connection's; without a name it is another queue each time."""
    arguments = {"retention_ms": pb.Argument(integer=5), "flush": pb.Argument(text="memory")}
    first = declare(channel, "twice", **arguments)
    assert declare(channel, "twice", **arguments).queue_id == first.queue_id
    assert dict(first.arguments) == arguments
    assert (first.master, list(first.mirrors)) == ("n1", ["n2"])
    differing = pb.DeclareQueueRequest(name="twice", arguments={"retention_ms": pb.Argument(integer=6)})
    assert refused(admin(channel).DeclareQueue, differing) == (grpc.StatusCode.ALREADY_EXISTS, "QUEUE_EXISTS")
    items = pb.Argument(list=pb.ArgumentList(items=[pb.Argument(text="a"), pb.Argument(number=0.5), pb.Argument()]))
    unknown = pb.DeclareQueueRequest(name="other", arguments={"x-list": items})
    assert refused(admin(channel).DeclareQueue, unknown) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    exclusive = pb.DeclareQueueRequest(name="mine", arguments={"exclusive": pb.Argument(boolean=True)})
    assert refused(admin(channel).DeclareQueue, exclusive) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    assert declare(channel, "").name != declare(channel, "").name


def test_a_listing_comes_in_pages_without_gaps(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: many queues fit. Method: five of them in pages of two, by name."""
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        declare(channel, name)
    cluster.wait_confirmed()
    found: list[str] = []
    token = "page-"
    while token:
        page = admin(channel).ListQueues(pb.ListQueuesRequest(page_size=2, page_token=token), timeout=TIMEOUT_S)
        assert len(page.queues) <= 2
        found += [queue.name for queue in page.queues]
        token = page.next_page_token
    assert [name for name in found if name.startswith("page-")] == names
    for size in (-1, 5_001):
        asked = pb.ListQueuesRequest(page_size=size)
        assert refused(admin(channel).ListQueues, asked) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")


def test_queues_and_nodes_are_described_and_what_is_missing_is_named(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: a client finds its way. Method: one that is, one that is not, and the nodes' addresses."""
    declare(channel, "described")
    cluster.wait_confirmed()
    asked = pb.DescribeQueuesRequest(names=["described", "nowhere"])
    described = admin(channel).DescribeQueues(asked, timeout=TIMEOUT_S)
    assert [queue.name for queue in described.queues] == ["described"]
    assert list(described.missing) == ["nowhere"]
    assert {node.node_id: node.client_address for node in described.nodes} == {
        node.id: node.client for node in cluster.nodes.values()
    }


def test_positions_and_offsets_are_those_of_the_queue(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: a consumer group's place. Method: publish three, commit 2, fetch it; offsets by time; errors by name."""
    queue = declare(channel, f"positions-{id(channel)}")
    with Publishing(channel, queue.name) as stream:
        stream.opened()
        stream.publish([b"a", b"b", b"c"])
        epoch = stream.confirm().epoch
    calls = admin(channel)
    fetch = pb.FetchPositionRequest(queue=queue.name, group="g")
    assert not calls.FetchPosition(fetch, timeout=TIMEOUT_S).HasField("position")
    position = common.Position(log_id=queue.log_id, epoch=epoch, queue_offset=2)
    commit = pb.CommitPositionRequest(queue=queue.name, group="g", position=position)
    calls.CommitPosition(commit, timeout=TIMEOUT_S)
    assert calls.FetchPosition(fetch, timeout=TIMEOUT_S).position == position
    for time_us, offset in ((0, 0), (2**62, 3)):
        find = pb.FindOffsetRequest(queue=queue.name, append_time_us=time_us)
        assert calls.FindOffset(find, timeout=TIMEOUT_S).queue_offset == offset
    beyond = pb.CommitPositionRequest(
        queue=queue.name, group="g", position=common.Position(log_id=queue.log_id, epoch=epoch, queue_offset=4)
    )
    without = pb.CommitPositionRequest(queue=queue.name, group="g")
    for wrong in (beyond, without):
        assert refused(calls.CommitPosition, wrong) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    nowhere = pb.FetchPositionRequest(queue="nowhere", group="g")
    assert refused(calls.FetchPosition, nowhere) == (grpc.StatusCode.NOT_FOUND, "NO_SUCH_QUEUE")


def test_the_status_is_that_of_the_door_s_own_node(
    cluster: Cluster, channel: grpc.Channel, request: pytest.FixtureRequest
) -> None:
    """Goal: each door speaks for its node. Method: compare with the native status of the node behind it."""
    own = request.node.callspec.params["channel"]
    end = cluster.wait_confirmed().end
    status = admin(channel).GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S).status
    native = cluster.nodes[own].status()
    assert (status.node_id, status.start_id, status.cluster_id) == (own, native.start_id, native.cluster_id)
    (log,) = status.logs
    assert (log.role, log.end, log.confirmed) == ("master" if own == "n1" else "mirror", end, end)
    assert [mirror.node_id for mirror in log.mirrors] == (["n2"] if own == "n1" else [])


@pytest.fixture
def apart() -> Iterator[grpc.Channel]:
    """To the door of a mirror of a cluster that nobody else uses: what moves makes logs."""
    with fast_cluster(2) as started:
        started.wait_in_sync()
        with Door(started.nodes["n2"].client) as door, channel_to(door.address) as opened:
            yield opened


def test_a_queues_place_is_changed_and_its_move_is_listed_and_cancelled(apart: grpc.Channel) -> None:
    """Goal: what an operator does to queues can be done by any client. Method: what a move would do is told, and is not
    done; a queue stays, and moves. What cannot be is refused by name."""
    name = f"altered-{uuid4()}"
    declare(apart, name, copies=pb.Argument(integer=1))
    declare(apart, "beside", copies=pb.Argument(integer=1))
    places = {
        "nodes": pb.Argument(list=pb.ArgumentList(items=[pb.Argument(text="n9")])),
        "flush": pb.Argument(text="disk"),
    }
    asked = pb.AlterQueueRequest(name=name, arguments=places, dry_run=True)
    planned = admin(apart).AlterQueue(asked, timeout=TIMEOUT_S)
    assert (planned.moves, planned.done, planned.rule, list(planned.queues)) == (True, False, "on-n9-disk", [name])
    assert not [row for row in listed(apart) if row.queue == name]
    admin(apart).CancelMove(pb.CancelMoveRequest(name=name), timeout=TIMEOUT_S)
    for wrong in ({}, {"x-max-length": pb.Argument(integer=1)}):
        refusal = refused(admin(apart).AlterQueue, pb.AlterQueueRequest(name=name, arguments=wrong))
        assert refusal == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    unnamed = refused(admin(apart).CancelMove, pb.CancelMoveRequest())
    assert unnamed == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    nowhere = pb.AlterQueueRequest(name="nowhere", arguments=places)
    assert refused(admin(apart).AlterQueue, nowhere) == (grpc.StatusCode.NOT_FOUND, "NO_SUCH_QUEUE")
    stays = admin(apart).CancelMove(pb.CancelMoveRequest(name=name), timeout=TIMEOUT_S)
    assert (list(stays.queues), stays.cancelled, stays.arguments["copies"].integer) == ([name], False, 1)
    altered = admin(apart).AlterQueue(
        pb.AlterQueueRequest(name=name, arguments={"flush": pb.Argument(text="disk")}), timeout=TIMEOUT_S
    )
    assert (altered.moves, altered.done) == (True, True)
    assert all(row.source and row.number for row in listed(apart) if row.queue == name)


def listed(channel: grpc.Channel) -> list[Any]:
    return list(admin(channel).ListMoves(pb.ListMovesRequest(), timeout=TIMEOUT_S).moves)
