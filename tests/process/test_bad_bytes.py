"""Bytes that are no frames, frames that are no requests, greetings that do not fit: told why, closed, nothing lost."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.config import split_address
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    FrameTooLarge,
    MirrorlogError,
    NoSuchQueue,
    NotAMember,
    ProtocolError,
    RequestTimeout,
    StalledFrame,
    UnsupportedVersion,
    WrongCluster,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import ACK, FETCH, HELLO_BYTES_MAX, FrameType, frame, frame_header
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.queues import (
    DeclareQueue,
    Done,
    FetchPosition,
    FindOffset,
    GetMetadata,
    Metadata,
    QueueInfo,
)
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, Pull
from tests.process.clusters import declare, error_of, eventually, fast_cluster, log_of
from tests.process.raw import Raw, batch_of

BATCH_MAX = 256 * 1024
PORTS = ["client", "replication"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    limits = {
        "limits.max_record_bytes": BATCH_MAX,
        "limits.max_batch_bytes": BATCH_MAX,
        "limits.hello_timeout_ms": 400,
        "limits.frame_timeout_ms": 400,
        "limits.idle_timeout_ms": 1_500,
    }
    with fast_cluster(2, settings=limits) as two:
        yield two


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster, queue: QueueInfo) -> Iterator[None]:
    """After each test the log ends where it did, its mirror still follows, and a good client is served."""
    cluster.wait_in_sync()
    end = log_of(cluster.master).end
    yield
    after = log_of(cluster.master)
    assert (after.state, after.end) == ("serving", end)
    cluster.wait_in_sync()
    with Raw(cluster.servers[0]) as raw:
        confirm = raw.produce(batch_of([b"good"], queue))
        assert confirm.copies == 2
        assert raw.values(queue.queue_id, confirm.base_queue_offset) == [b"good"]


def address(cluster: Cluster, port: str) -> str:
    return cluster.master.client if port == "client" else cluster.master.replication


def mirror_hello(cluster: Cluster, **other: Any) -> Hello:
    """What the mirror n2 would say."""
    status = cluster.master.status()
    facts = {"role": "mirror", "cluster_id": status.cluster_id, "node_id": "n9", "start_id": "s", **other}
    return Hello(**{"version_min": 1, "version_max": 1, **facts})


def closed_with(raw: Raw, kind: type[MirrorlogError], match: str) -> None:
    """The node says this and closes."""
    error = raw.last_words()
    assert type(error) is kind, repr(error)
    assert match in error.message
    assert "\n" not in error.message


def text_of(target: str, *parts: bytes) -> bytes:
    """All that comes back until the node closes."""
    with socket.create_connection(split_address(target), timeout=5) as plain:
        for part in parts:
            plain.sendall(part)
        answer = b""
        while part := plain.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("garbage", [b"\xff" * 64, b"\x00" * 64, b"SSH-2.0-OpenSSH_9.6\r\n", bytes(range(256)) * 300])
def test_garbage(cluster: Cluster, port: str, garbage: bytes) -> None:
    """Goal: a stranger is told and sent away. Method: bytes of no protocol of ours, short and long."""
    with Raw(address(cluster, port), hello=None) as raw:
        raw.send(garbage)
        closed_with(raw, ProtocolError, "native protocol")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH"])
def test_http_is_answered_in_http(cluster: Cluster, port: str, method: bytes) -> None:
    """Goal: who tries a browser reads what this is. Method: a request of each method, one of them with a large body."""
    body = b"x" * (1024 * 1024 if method == b"POST" else 0)
    head = method + b" /status HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = text_of(address(cluster, port), head, body[:64])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"native port" in answer


def test_http_whose_body_is_still_coming_gets_its_answer(cluster: Cluster) -> None:
    """Goal: closing with bytes unread does not take the answer away again (a reset would). Method: send a megabyte
    after the head, then read."""
    with socket.create_connection(split_address(cluster.master.client), timeout=5) as plain:
        plain.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1048576\r\n\r\n" + bytes(1024 * 1024))
        answer = b""
        while part := plain.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("size", [1, 15, 16, 40])
def test_half_a_frame_and_gone(cluster: Cluster, port: str, size: int) -> None:
    """Goal: a peer that dies within a frame costs nothing. Method: send part of a HELLO, close."""
    whole = frame(FrameType.HELLO, encode(mirror_hello(cluster)))
    with Raw(address(cluster, port), hello=None) as raw:
        raw.send(whole[:size])


def test_half_a_publish_and_gone(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: nothing of a batch that did not arrive whole is stored. Method: all but its last byte, then close."""
    batch = batch_of([b"x" * 1000], queue)
    payload = bytes(8) + batch
    with Raw(cluster.master.client) as raw:
        raw.send(frame_header(FrameType.PRODUCE, len(payload), 1), payload[:-1])


def test_a_stalled_frame(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a frame that was begun must be finished in time, whatever the bytes that still trickle. Method: begin a
    publish, send a byte now and then, wait for the end."""
    batch = batch_of([b"x" * 1000], queue)
    with Raw(cluster.master.client) as raw:
        raw.send(frame_header(FrameType.PRODUCE, 8 + len(batch), 1), bytes(8), batch[:100])
        closed_with(raw, StalledFrame, "400 ms")


def test_a_stalled_frame_on_the_replication_port(cluster: Cluster) -> None:
    """Goal: the same for mirrors. Method: greet, then half of a Follow."""
    with Raw(cluster.master.replication, hello=mirror_hello(cluster, node_id="n2")) as raw:
        raw.send(frame_header(FrameType.FOLLOW, 100))
        error = raw.last_words()
        assert isinstance(error, ProtocolError), repr(error)


@pytest.mark.parametrize("port", PORTS)
def test_no_greeting(cluster: Cluster, port: str) -> None:
    """Goal: a silent connection is not kept. Method: connect and say nothing."""
    with Raw(address(cluster, port), hello=None) as raw:
        closed_with(raw, ProtocolError, "no greeting within 400 ms")


def test_no_sign_of_life(cluster: Cluster) -> None:
    """Goal: a client that fell silent is not kept, one that says PING is. Method: one of each, on a short limit."""
    with Raw(cluster.master.client) as silent, Raw(cluster.master.client) as pinging:
        ended: list[MirrorlogError] = []
        silent.timeout = 0.1

        def ping() -> bool:
            pinging.send(frame(FrameType.PING, b"", 9))
            assert pinging.answer(9).type == FrameType.PONG
            try:
                silent.receive(0.05)
            except MirrorlogError as error:
                ended.append(error)
                return type(error).__name__ == "ConnectionLost"
            return False

        eventually(ping, "the silent client is closed", timeout=5)
        assert pinging.request(DeclareQueue(name="q"), Metadata).queues


@pytest.mark.parametrize("port", PORTS)
def test_a_large_frame_before_the_greeting(cluster: Cluster, port: str) -> None:
    """Goal: a stranger cannot make the node hold memory. Method: a HELLO that says it is larger than any greeting."""
    with Raw(address(cluster, port), hello=None) as raw:
        raw.send(frame_header(FrameType.HELLO, HELLO_BYTES_MAX + 1))
        closed_with(raw, FrameTooLarge, str(HELLO_BYTES_MAX))


@pytest.mark.parametrize("size", [BATCH_MAX * 2, 2**32 - 1])
def test_a_frame_above_the_limit(cluster: Cluster, queue: QueueInfo, size: int) -> None:
    """Goal: the limit is named, even to a client that goes on sending. Method: a length above it, then a megabyte."""
    with Raw(cluster.master.client) as raw:
        raw.send(frame_header(FrameType.PRODUCE, size, 1), bytes(1024 * 1024))
        closed_with(raw, FrameTooLarge, "above the limit")


@pytest.mark.parametrize(("low", "high"), [(2, 9), (0, 0), (-5, -1), (9, 2)])
@pytest.mark.parametrize("port", PORTS)
def test_a_version_that_nobody_speaks_here(cluster: Cluster, port: str, low: int, high: int) -> None:
    """Goal: both ranges are named. Method: ranges above, below and upside down."""
    role = "client" if port == "client" else "mirror"
    hello = mirror_hello(cluster, version_min=low, version_max=high, role=role)
    error = error_of(lambda: Raw(address(cluster, port), hello=hello))
    assert type(error) is UnsupportedVersion, repr(error)
    assert f"versions {low} to {high}" in error.message


@pytest.mark.parametrize("role", ["", "king", "x" * 10_000])
def test_a_role_that_nobody_has(cluster: Cluster, role: str) -> None:
    """Goal: a clear refusal that does not repeat whatever was sent. Method: unknown roles, one of them huge."""
    error = error_of(lambda: Raw(cluster.master.client, hello=mirror_hello(cluster, role=role)))
    assert type(error) is ProtocolError
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x80", b"\xff" * 100, encode(Pull(log_offset=0)), b"\x91" * 5_000 + b"\xc0"]
)
def test_a_greeting_that_is_none(cluster: Cluster, payload: bytes) -> None:
    """Goal: any bytes in a HELLO are an error of the protocol. Method: no msgpack, no map, another message, depth."""
    with Raw(cluster.master.client, hello=None) as raw:
        raw.send(frame(FrameType.HELLO, payload))
        error = raw.last_words()
        assert type(error) is ProtocolError, repr(error)
        assert "internal" not in error.message


def test_a_request_before_the_greeting(cluster: Cluster) -> None:
    """Goal: HELLO comes first. Method: anything else first."""
    with Raw(cluster.master.client, hello=None) as raw:
        raw.send(frame(FrameType.REQUEST, encode(DeclareQueue(name="early")), 1))
        closed_with(raw, ProtocolError, "begins with HELLO")


@pytest.mark.parametrize("kind", [FrameType.HELLO, FrameType.WELCOME, FrameType.ACK, FrameType.TRANSFER])
def test_a_frame_that_no_client_sends(cluster: Cluster, kind: FrameType) -> None:
    """Goal: frames out of place close the connection. Method: frames of nodes and mirrors after a client's HELLO."""
    with Raw(cluster.master.client) as raw:
        raw.send(frame(kind, bytes(64), 1))
        closed_with(raw, ProtocolError, "from a client")


def test_a_message_that_is_no_request(cluster: Cluster) -> None:
    """Goal: an answer sent as a question is refused and the connection goes on. Method: Done as a request."""
    with Raw(cluster.master.client) as raw:
        error = error_of(lambda: raw.request(Done(), Done))
        assert type(error) is BadRequest
        assert raw.request(DeclareQueue(name="q"), Metadata).queues


def test_deeply_nested_arguments(cluster: Cluster) -> None:
    """Goal: depth is an error of the sender, not of the node. Method: a declare with 5,000 nested lists."""
    nested = encode(DeclareQueue(name="deep", arguments={"x": None}))
    payload = nested.replace(b"\xa1x\xc0", b"\xa1x" + b"\x91" * 5_000 + b"\xc0")
    assert len(payload) > 5_000
    with Raw(cluster.master.client) as raw:
        raw.send(frame(FrameType.REQUEST, payload, 1))
        error = error_of(lambda: raw.answer(1))
        assert "internal" not in error.message, error.message


def test_a_client_on_the_replication_port(cluster: Cluster) -> None:
    """Goal: the wrong port is named. Method: a client's HELLO, and a request, on it."""
    error = error_of(lambda: Raw(cluster.master.replication))
    assert type(error) is ProtocolError
    assert "client port" in error.message
    with Raw(cluster.master.replication, hello=None) as raw:
        raw.send(frame(FrameType.REQUEST, encode(DeclareQueue(name="x")), 1))
        closed_with(raw, ProtocolError, "HELLO")


def test_a_mirror_on_the_client_port(cluster: Cluster) -> None:
    """Goal: the wrong port is named. Method: a mirror's HELLO on it."""
    error = error_of(lambda: Raw(cluster.master.client, hello=mirror_hello(cluster)))
    assert type(error) is ProtocolError
    assert "replication port" in error.message


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("cluster_id", ["00000000-0000-0000-0000-000000000000", "other", ""])
def test_another_cluster(cluster: Cluster, port: str, cluster_id: str) -> None:
    """Goal: clusters are never mixed. Method: a greeting that names another one, on both ports."""
    role = "client" if port == "client" else "mirror"
    error = error_of(lambda: Raw(address(cluster, port), hello=mirror_hello(cluster, role=role, cluster_id=cluster_id)))
    assert type(error) is WrongCluster, repr(error)


def test_a_mirror_that_names_no_cluster(cluster: Cluster) -> None:
    """Goal: a mirror says where it belongs. Method: leave it out."""
    error = error_of(lambda: Raw(cluster.master.replication, hello=mirror_hello(cluster, cluster_id=None)))
    assert type(error) is WrongCluster


def test_a_mirror_without_a_name(cluster: Cluster) -> None:
    """Goal: a mirror says who it is. Method: leave its node id empty."""
    error = error_of(lambda: Raw(cluster.master.replication, hello=mirror_hello(cluster, node_id="")))
    assert type(error) is ProtocolError


@pytest.mark.parametrize("node_id", ["n9", "n1", "n2 "])
def test_a_node_that_is_no_mirror_of_the_log(cluster: Cluster, node_id: str) -> None:
    """Goal: only assigned nodes get the bytes, not even the master's own name. Method: follow as somebody else."""
    log = log_of(cluster.master)
    with Raw(cluster.master.replication, hello=mirror_hello(cluster, node_id=node_id)) as raw:
        follow = FollowRequest(log_id=log.log_id, epochs=[], begin=0, end=0, confirmed=0)
        raw.send(frame(FrameType.FOLLOW, encode(follow)))
        closed_with(raw, NotAMember, "its mirrors are n2")


def test_a_queue_that_nobody_knows(cluster: Cluster) -> None:
    """Goal: reads of nothing are named, on master and mirror. Method: fetch an unknown id."""
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            assert type(error_of(lambda raw=raw: raw.fetch(77, 0))) is NoSuchQueue  # type: ignore[misc]


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_frames_of_random_content(cluster: Cluster, queue: QueueInfo, port: str, seed: int) -> None:
    """Goal: no frame that a peer can make reaches a fault of ours. Method: 300 frames of every type, their payloads
    random or good ones (that change nothing) with bytes changed; the node's log has no traceback."""
    drawn = random.Random(seed)
    good = [
        encode(FollowRequest(log_id=queue.log_id, epochs=[EpochEntry(1, 0)], begin=0, end=96, confirmed=0)),
        encode(GetMetadata(queues=["q"])),
        encode(FindOffset(queue="q", append_time_us=0)),
        encode(FetchPosition(queue="q", group="g")),
        bytes(8) + batch_of([b"value"], 99),
        FETCH.pack(queue.queue_id, 0, 0, 100, 1),
        ACK.pack(0, 0, 1, 0),
    ]
    kinds = [kind for kind in FrameType if kind is not FrameType.GOODBYE]
    for _ in range(30):
        hello = mirror_hello(cluster, role="client" if port == "client" else "mirror")
        with Raw(address(cluster, port), hello=hello, timeout=5) as raw:
            with contextlib.suppress(ConnectionLost):
                for number in range(10):
                    payload = bytearray(drawn.choice(good) if drawn.random() < 0.7 else drawn.randbytes(50))
                    for _ in range(drawn.randrange(4)):
                        payload[drawn.randrange(len(payload))] = drawn.randrange(256)
                    raw.send(frame(drawn.choice(kinds), bytes(payload[: drawn.choice([3, 2**20])]), number + 1))
                raw.send(frame(FrameType.PING, b"", 99))
            last = raw.last_words() if port == "replication" else None
            assert not isinstance(last, RequestTimeout)
    assert "Traceback" not in cluster.master.log_file.read_text()


def test_no_test_of_this_file_met_a_fault_of_ours(cluster: Cluster) -> None:
    """Goal: every refusal above was a decision. Method: the nodes' logs have no traceback."""
    for node in cluster.nodes.values():
        assert "Traceback" not in node.log_file.read_text(), node.log_tail()
