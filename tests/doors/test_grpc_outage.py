"""A door tells refusal, unknown outcome and a missing node apart, and goes on when they are over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import grpc
import pytest

from mirrorlog.errors import PortTaken
from mirrorlog.pb.v1 import admin_pb2, producer_pb2
from mirrorlog.testing import Cluster
from mirrorlog.testing.ports import free_ports
from tests.doors.door import HOST, Door, Publishing, admin, channel_to, failure_of, health, info_of
from tests.process.clusters import declare, eventually, fast_cluster, log_of, mirror_of
from tests.process.raw import Raw

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]
DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
SERVICES = ("", "mirrorlog.v1.Admin", "mirrorlog.v1.Producer", "mirrorlog.v1.Consumer")
ID = producer_pb2.ProducerIdentity(producer_id=7, producer_epoch=1)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # A paused mirror must stay "up" for the master: the outcome is to be unknown, not refused.
    with fast_cluster(3, settings={"ha.haHousekeepingInterval": 60_000}) as started:
        started.wait_in_sync()
        yield started


def values(cluster: Cluster, queue_id: int) -> list[bytes]:
    with Raw(cluster.master.client) as raw:
        return raw.values(queue_id)


@pytest.mark.long
def test_a_refused_publish_is_unavailable_and_stores_nothing(cluster: Cluster) -> None:
    """Goal: too few mirrors is a refusal. Method: kill one, publish with and without identity, start it, go on."""
    queue = declare(cluster.master.client, "q")
    with (
        Door(cluster.master.client) as door,
        channel_to(door.address) as channel,
        Publishing(channel, "q", identity=ID) as numbered,
        Publishing(channel, "q", delivery_timeout_ms=300) as retried,
    ):
        numbered.opened()
        retried.opened()
        cluster.nodes["n3"].kill()
        eventually(lambda: not mirror_of(cluster, "n3").connected, "the master has seen the mirror go")
        end = log_of(cluster.master).end
        for stream, sequence in ((numbered, 0), (retried, None)):
            stream.publish([b"refused"], sequence=sequence)
            error = stream.error()
            assert (error.grpc_code, error.code) == (UNAVAILABLE, "IN_SYNC_REPLICAS_NOT_ENOUGH"), error
            assert error.retriable
        assert log_of(cluster.master).end == end
        cluster.nodes["n3"].start()
        cluster.wait_in_sync()
        numbered.publish([b"taken"], sequence=0)
        assert numbered.confirm().copies == 3
    assert values(cluster, queue.queue_id) == [b"taken"]


@pytest.mark.long
def test_an_unknown_outcome_is_retriable_with_an_identity_alone_and_its_retry_lands_once(cluster: Cluster) -> None:
    """Goal: DEADLINE_EXCEEDED, and no record twice. Method: SIGSTOP a mirror, publish, SIGCONT, send again."""
    queue = declare(cluster.master.client, "q")
    with (
        Door(cluster.master.client) as door,
        channel_to(door.address) as channel,
        Publishing(channel, "q", identity=ID, delivery_timeout_ms=400) as numbered,
        Publishing(channel, "q", delivery_timeout_ms=400) as retried,
    ):
        numbered.opened()
        retried.opened()
        cluster.nodes["n2"].pause()
        numbered.publish([b"numbered"], sequence=0)
        retried.publish([b"retried"])
        for stream, retriable in ((numbered, True), (retried, False)):
            error = stream.error()
            assert (error.grpc_code, error.retriable) == (DEADLINE_EXCEEDED, retriable), error
        cluster.nodes["n2"].resume()
        cluster.wait_confirmed()
        numbered.publish([b"numbered"], sequence=0)
        confirm = numbered.confirm()
        assert (confirm.duplicate, confirm.copies) == (True, 3)
    assert sorted(values(cluster, queue.queue_id)) == [b"numbered", b"retried"]


@pytest.mark.long
def test_a_door_outlives_its_node_and_says_so() -> None:
    """Goal: UNAVAILABLE and NOT_SERVING while the node is gone, then all as before, on the same streams."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door, channel_to(door.address) as channel:
        queue = declare(one.nodes["n1"].client, "q")
        assert [health(channel, service) for service in SERVICES] == ["SERVING"] * len(SERVICES)
        with Publishing(channel, "q", identity=ID) as numbered, Publishing(channel, "q") as retried:
            numbered.opened()
            retried.opened()
            one.nodes["n1"].kill()
            eventually(lambda: {health(channel, each) for each in SERVICES} == {"NOT_SERVING"}, "health tells")
            # Tried again by the door until the node is back; the numbered one is the client's to repeat.
            retried.publish([b"retried"])
            numbered.publish([b"numbered"], sequence=0)
            error = numbered.error()
            assert (error.grpc_code, error.code, error.retriable) == (UNAVAILABLE, "CONNECTION_LOST", True)
            for call in (
                Publishing(channel, "q").opened,
                lambda: admin(channel).ListQueues(admin_pb2.ListQueuesRequest(), timeout=30),
                lambda: admin(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=30),
            ):
                failure = failure_of(call)
                assert failure.code() is grpc.StatusCode.UNAVAILABLE
                assert info_of(failure).metadata["retriable"] == "true"
            one.nodes["n1"].start()
            assert retried.confirm().base_queue_offset == 0
            numbered.publish([b"numbered"], sequence=0)
            assert numbered.confirm().base_queue_offset == 1
        eventually(lambda: {health(channel, each) for each in SERVICES} == {"SERVING"}, "health tells")
        with Raw(one.nodes["n1"].client) as raw:
            assert raw.values(queue.queue_id) == [b"retried", b"numbered"]


@pytest.mark.long
def test_a_node_that_falls_silent_leaves_the_outcome_unknown() -> None:
    """Goal: nothing hangs on a hung node, nothing sent is called refused. Method: SIGSTOP it; health tells too."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door, channel_to(door.address) as channel:
        declare(one.nodes["n1"].client, "q")
        with Publishing(channel, "q", identity=ID, delivery_timeout_ms=200) as stream:
            stream.opened()
            one.nodes["n1"].pause()
            stream.publish([b"perhaps"], sequence=0)
            error = stream.error()
            assert (error.grpc_code, error.code, error.retriable) == (DEADLINE_EXCEEDED, "OUTCOME_UNKNOWN", True)
            eventually(lambda: health(channel) == "NOT_SERVING", "health tells")
            one.nodes["n1"].resume()
            stream.publish([b"perhaps"], sequence=0)
            assert stream.confirm().duplicate
            eventually(lambda: health(channel) == "SERVING", "health tells")


@pytest.mark.long
def test_a_door_ends_with_the_process_that_started_it() -> None:
    """Goal: no door is left behind. Method: let go of the pipe, as a parent that was killed does."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door:
        assert door.process.stdin is not None
        door.process.stdin.close()
        assert door.process.wait(timeout=30) == 0


@pytest.mark.long
def test_a_stopping_door_answers_what_it_took_and_ends_its_streams() -> None:
    """Goal: SIGTERM loses no confirm and waits for nobody. Method: an idle stream and one with a batch under way."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as door, channel_to(door.address) as channel:
        declare(one.nodes["n1"].client, "q")
        with Publishing(channel, "q") as idle, Publishing(channel, "q") as busy:
            idle.opened()
            busy.opened()
            busy.publish([b"taken"])
            assert busy.confirm().base_queue_offset == 0
            door.process.terminate()
            for stream in (idle, busy):
                error = failure_of(stream.result)
                assert (error.code(), info_of(error).reason) == (grpc.StatusCode.UNAVAILABLE, "NODE_STOPPING")
        assert door.process.wait(timeout=30) == 0


def test_a_door_waits_for_a_node_that_is_not_there_and_can_be_stopped_meanwhile() -> None:
    """Goal: the order of starting does not matter. Method: start it for a port where nobody listens; SIGTERM."""
    door = Door(f"{HOST}:{free_ports(1)[0]}")
    try:
        eventually(lambda: caught(door.process.pid, signal.SIGTERM), "the door minds its signals")
        door.process.terminate()
        code, errors = door.end()
        assert (code, "Traceback" in errors) == (0, False), errors
    finally:
        door.close()


def caught(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for a signal (Linux's own account of it)."""
    with open(f"/proc/{pid}/status") as status:  # noqa: PTH123
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    return bool(mask >> (number - 1) & 1)


@pytest.mark.long
def test_a_port_that_is_taken_is_named() -> None:
    """Goal: two doors never share a port without a word. Method: a second one on the first one's port."""
    with fast_cluster(1) as one, Door(one.nodes["n1"].client) as first:
        second = Door(one.nodes["n1"].client, bind=first.address)
        try:
            code, errors = second.end()
        finally:
            second.close()
        assert code == PortTaken.exit_code
        assert first.address in errors.splitlines()[-1]


def test_a_node_starts_its_door_and_takes_it_along() -> None:
    """Goal: the door of `mqnode`. Method: use it, then kill the node's process alone: the door's port closes."""
    with fast_cluster(1, grpc=True) as one:
        assert one.nodes["n1"].grpc is not None
        with channel_to(one.nodes["n1"].grpc) as channel:
            declared = admin(channel).DeclareQueue(admin_pb2.DeclareQueueRequest(name="q"), timeout=30)
            assert declared.queue.master == "n1"
            with Publishing(channel, "q") as stream:
                stream.opened()
                stream.publish([b"value"])
                assert stream.confirm().base_queue_offset == 0
        os.kill(one.nodes["n1"].pid, signal.SIGKILL)
        eventually(lambda: not answers(one.nodes["n1"].grpc), "the door is gone")


def answers(address: str | None) -> bool:
    assert address is not None
    with channel_to(address) as channel:
        try:
            health(channel)
        except grpc.RpcError:
            return False
    return True
