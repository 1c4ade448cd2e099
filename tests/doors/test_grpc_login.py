"""Users through a node's doors: gRPC and HTTP, each caller with his own login, and the doors as themselves."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from mirrorlog.client import Client
from mirrorlog.config import split_address
from mirrorlog.doors.common.callers import STRANGERS_MAX
from mirrorlog.errors import LoginFailed
from mirrorlog.pb.v1 import admin_pb2, consumer_pb2, consumer_pb2_grpc, producer_pb2, producer_pb2_grpc
from mirrorlog.testing import Cluster
from mirrorlog.testing.ports import free_ports
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.queues import Done, GetMetadata, Metadata
from mirrorlog.wire.messages.status import GetStatus, Status
from mirrorlog.wire.messages.topology import Login
from tests.doors.door import DEADLINE_S, HOST, admin, channel_to, failure_of, health, info_of
from tests.process.clusters import eventually, fast_cluster

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
PASSWORDS = {"admin": "a", "writer": "w", "reader": "r", "looker": "l"}

Metadata_ = tuple[tuple[str, str], ...]


HTTP = f"{HOST}:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node with doors, a queue and users."""
    with fast_cluster(1, grpc=True, settings={"http.enabled": True, "http.bind": HTTP}) as started:
        asyncio.run(give_users(started))
        yield started


async def give_users(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await client.admin.declare("q")
        await client.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
    async with Client(*cluster.servers, user="admin", password="a") as client:
        topology = client.admin.topology
        for name in ("writer", "reader"):
            await topology.set_user(name, password_hash=hashed(PASSWORDS[name]))
        await topology.set_user("looker", password_hash=hashed("l"), tags=["monitoring"])
        await topology.set_permissions("writer", configure="", write="^q$", read="")
        await topology.set_permissions("reader", configure="", write="", read="^q$")
        await topology.set_permissions("admin", configure=".*", write=".*", read=".*")


@pytest.fixture(scope="module")
def channel(cluster: Cluster) -> Iterator[grpc.Channel]:
    address = cluster.nodes["n1"].grpc
    assert address is not None
    with channel_to(address) as opened:
        yield opened


def basic(name: str, password: str | None = None) -> str:
    return "Basic " + b64encode(f"{name}:{PASSWORDS[name] if password is None else password}".encode()).decode()


def as_user(name: str, password: str | None = None) -> Metadata_:
    return (("authorization", basic(name, password)),)


def publish(channel: grpc.Channel, metadata: Metadata_ = ()) -> producer_pb2.PublishResult:
    """One record to q; raises RpcError."""
    opening = producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue="q"))
    records = producer_pb2.Records(records=[producer_pb2.Record(value=b"v")])
    batch = producer_pb2.PublishRequest(batch=producer_pb2.PublishBatch(records=records))
    stub = producer_pb2_grpc.ProducerStub(channel)
    opened, told = stub.Publish(iter([opening, batch]), timeout=DEADLINE_S, metadata=metadata)
    assert opened.WhichOneof("response") == "opened"
    result: producer_pb2.PublishResult = told.result
    return result


def consume(channel: grpc.Channel, metadata: Metadata_ = ()) -> list[consumer_pb2.ConsumeResponse]:
    """All of q; raises RpcError."""
    asked = consumer_pb2.ConsumeRequest(
        queue="q",
        start=consumer_pb2.Start(edge=consumer_pb2.EDGE_EARLIEST),
        until=consumer_pb2.Until(edge=consumer_pb2.EDGE_LATEST),
    )
    return list(consumer_pb2_grpc.ConsumerStub(channel).Consume(asked, timeout=DEADLINE_S, metadata=metadata))


@pytest.mark.long
def test_each_call_has_the_rights_of_its_caller(channel: grpc.Channel) -> None:
    """Goal: the door has no rights of its own to lend. Method: publish, read and declare as each, and as nobody."""
    assert publish(channel, as_user("writer")).WhichOneof("outcome") == "confirm"
    refused = publish(channel, as_user("reader"))
    assert (refused.error.code, refused.error.grpc_code) == ("ACCESS_REFUSED", DENIED.value[0])
    assert any(response.WhichOneof("content") for response in consume(channel, as_user("reader")))
    assert failure_of(lambda: consume(channel, as_user("writer"))).code() is DENIED
    declare = admin_pb2.DeclareQueueRequest(name="new")
    stub = admin(channel)
    for name in ("writer", "reader", "looker"):
        failure = failure_of(lambda name=name: stub.DeclareQueue(declare, timeout=DEADLINE_S, metadata=as_user(name)))
        assert (failure.code(), info_of(failure).reason) == (DENIED, "ACCESS_REFUSED")
    assert stub.DeclareQueue(declare, timeout=DEADLINE_S, metadata=as_user("admin")).queue.name == "new"


def test_a_call_without_a_login_and_one_with_a_wrong_password_are_told_so(channel: grpc.Channel) -> None:
    """Goal: UNAUTHENTICATED, in every service. Method: nobody, a wrong password, a name that is none's."""
    stub, status = admin(channel), admin_pb2.GetStatusRequest()
    for metadata in ((), as_user("admin", "wrong"), as_user("nobody", "x"), (("authorization", "Bearer x"),)):
        for call in (
            lambda metadata=metadata: stub.GetStatus(status, timeout=DEADLINE_S, metadata=metadata),
            lambda metadata=metadata: publish(channel, metadata),
            lambda metadata=metadata: consume(channel, metadata),
        ):
            assert failure_of(call).code() is UNAUTHENTICATED
    assert stub.GetStatus(status, timeout=DEADLINE_S, metadata=as_user("looker")).status.node_id == "n1"


def test_probes_answer_without_a_login_and_metrics_are_for_those_who_may_look(cluster: Cluster) -> None:
    """Goal: who watches processes needs no password, who reads names of queues does. Method: health of both doors, and
    metrics as nobody, with a wrong password, as one who may not look, and as one who may, twice."""
    door, node = HTTP, cluster.nodes["n1"]
    assert node.grpc is not None
    assert page(door, "/health")[0] == 200
    with channel_to(node.grpc) as channel:
        assert health(channel) == "SERVING"
    status, headers, _ = page(door, "/metrics")
    assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="mirrorlog", charset="UTF-8"')
    assert page(door, "/metrics", basic("looker", "x"))[0] == 401
    assert page(door, "/metrics", basic("reader"))[0] == 403
    for _ in range(2):
        status, _, text = page(door, "/metrics", basic("looker"))
        assert status == 200
        assert "mirrorlog_" in text
    assert page(door, "/metrics")[0] == 401


def test_metrics_can_be_for_everybody() -> None:
    """The setting says so: a scrape without a login, where there are users."""
    door = f"{HOST}:{free_ports(1)[0]}"
    with fast_cluster(1, settings={"http.enabled": True, "http.bind": door, "http.metrics": "open"}) as cluster:
        asyncio.run(give_users(cluster))
        assert page(door, "/metrics")[0] == 200


def test_a_user_who_is_deleted_has_no_more_calls(cluster: Cluster, channel: grpc.Channel) -> None:
    """Goal: what the door keeps lets nobody in. Method: a user who has called; deleted, he is refused at once."""

    async def change(password: str | None) -> None:
        async with Client(*cluster.servers, user="admin", password="a") as client:
            topology = client.admin.topology
            if password is None:
                await topology.delete_user("passing")
            else:
                await topology.set_user("passing", password_hash=hashed(password))
                await topology.set_permissions("passing", configure="", write="^q$", read="")

    asyncio.run(change("p"))
    assert publish(channel, as_user("passing", "p")).WhichOneof("outcome") == "confirm"
    asyncio.run(change(None))
    assert failure_of(lambda: publish(channel, as_user("passing", "p"))).code() is UNAUTHENTICATED


async def test_a_door_s_token_opens_nothing_but_what_doors_ask(cluster: Cluster) -> None:
    """Goal: nobody gets in without a name. Method: guesses at the token; the right one is known to the node alone, so
    what it opens is `test_gate`'s."""
    async with Client(*cluster.servers) as client:
        connection = await client.any_connection()
        for guess in ("", "x" * 43):
            with pytest.raises(LoginFailed, match="needs a user"):
                await connection.request(Login(user="", password=guess), Done, timeout_ms=9_000)
        with pytest.raises(LoginFailed):
            await connection.request(GetStatus(), Status, timeout_ms=9_000)
        with pytest.raises(LoginFailed):
            await connection.request(GetMetadata(), Metadata, timeout_ms=9_000)


def test_guessers_at_a_door_keep_nobody_out_who_comes_from_elsewhere(cluster: Cluster) -> None:
    """Goal: what strangers wait for at the door, they wait for at their own address. Method: more guessers from
    127.0.0.1 than have places, at four names, who go on until the end; from 127.0.0.2 one comes for the first time who
    may look."""

    async def add() -> None:
        async with Client(*cluster.servers, user="admin", password="a") as client:
            await client.admin.topology.set_user("late", password_hash=hashed("late"), tags=["monitoring"])

    asyncio.run(add())
    ended, refused = threading.Event(), threading.Event()

    def guess(number: int) -> None:
        for at in itertools.count():
            if ended.is_set():
                return
            if page(HTTP, "/metrics", basic(f"u{number % 4}", f"{number} {at}"))[0] == 503:
                refused.set()

    def let_in() -> bool:
        """The node's answer may take longer than the door waits; that he has no place may not be."""
        status, _, text = page(HTTP, "/metrics", basic("late", "late"), here="127.0.0.2")
        assert "max_logins" not in text
        return status == 200

    with ThreadPoolExecutor(2 * STRANGERS_MAX) as threads:
        guessers = [threads.submit(guess, number) for number in range(2 * STRANGERS_MAX)]
        try:
            assert refused.wait(DEADLINE_S), "all places are taken"
            eventually(let_in, "he is let in", timeout=60.0)
        finally:
            ended.set()
    for guesser in guessers:
        guesser.result()


@pytest.mark.long
def test_doors_know_their_node_again_after_its_start(cluster: Cluster) -> None:
    """Goal: the token is of one run, and the doors of the next one have theirs. Method: restart the node; the probes
    answer, and callers are let in."""
    cluster.nodes["n1"].stop()
    cluster.nodes["n1"].start()
    door, node = HTTP, cluster.nodes["n1"]
    assert node.grpc is not None
    eventually(lambda: page(door, "/health")[0] == 200, "health")
    with channel_to(node.grpc) as channel:
        eventually(lambda: health(channel) == "SERVING", "health of gRPC")
    eventually(lambda: page(door, "/metrics", basic("looker"))[0] == 200, "metrics")


def page(
    address: str, path: str, authorization: str | None = None, *, here: str = HOST
) -> tuple[int, http.client.HTTPMessage, str]:
    """`here`: which address of this machine asks."""
    connection = http.client.HTTPConnection(*split_address(address), timeout=DEADLINE_S, source_address=(here, 0))
    try:
        connection.request("GET", path, headers={} if authorization is None else {"Authorization": authorization})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()
