"""Control messages: what fits comes back, what does not is a ProtocolError and nothing else."""

from __future__ import annotations

import random

import msgspec
import pytest

from mirrorlog.errors import BadRequest, ProtocolError, StaleProducerEpoch, from_code
from mirrorlog.wire.frames import FRAME_HEADER_SIZE
from mirrorlog.wire.messages.codec import as_error, decode, encode, error_frame
from mirrorlog.wire.messages.connections import CloseConnection, ConnectionInfo, ConnectionsFound
from mirrorlog.wire.messages.groups import LeasedRange, Leases, SettleLease, Subscribe, SubscriptionEnded
from mirrorlog.wire.messages.handshake import Failure, Hello
from mirrorlog.wire.messages.queues import DeclareQueue
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull
from mirrorlog.wire.messages.topology import Login

MESSAGES = [
    Hello(version_min=1, version_max=3, role="mirror", cluster_id="c", node_id="n1", start_id="s", credential=b"x"),
    Failure(code="X", message="text", details={"a": [1, {"b": None}]}),
    FollowRequest(log_id="l", epochs=[EpochEntry(1, 0), EpochEntry(2, 2**63)], begin=0, end=9, confirmed=3),
    History(epoch=2, epochs=[], begin=0, end=0, confirmed=0),
    Pull(log_offset=7),
    DeclareQueue(name="q", arguments={"x-max": 3}),
    Subscribe(queue="q", prefetch_records=3, exclusive=True, priority=-1, name="n"),
    Leases(log_id="l", epoch=2, queue_id=1, next=9, leased=[LeasedRange(first=1, next=3, lease=1 << 33, attempts=2)]),
    SettleLease(queue="q", receipts=[LeasedRange(first=1, next=3, lease=7)], how=1, level=1),
    ConnectionsFound(
        node_id="n1",
        connections=[
            ConnectionInfo(
                name="a:1 -> b:2",
                node="n1",
                door="amqp",
                protocol="AMQP 0-9-1",
                peer_host="a",
                peer_port=1,
                host="b",
                port=2,
                since_us=2**50,
                user="ann",
                tls="TLSv1.3",
                state="blocked",
                producers=2,
            )
        ],
        more=True,
    ),
    CloseConnection(name="a:1 -> b:2", reason="r", since_us=7),
    SubscriptionEnded(subscription=7, code="NOT_MASTER", message="m", details={"master": "h:1"}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was(message: object) -> None:
    """Encode and decode, from bytes and from a view."""
    data = encode(message)  # type: ignore[arg-type]
    assert decode(data) == message
    assert decode(memoryview(data)) == message


def test_no_secret_is_shown() -> None:
    """Goal: neither a password nor what makes a client the owner of its exclusive queues gets into a log file by a
    message that is shown; and what else it says does."""
    for message in (
        Hello(version_min=1, version_max=2, role="client", node_id="n7", client_id="hidden"),
        Login(user="n7", password="hidden"),
    ):
        assert "hidden" not in repr(message)
        assert "'n7'" in repr(message)
        assert decode(encode(message)) == message


def test_unknown_fields_are_ignored() -> None:
    """Decode a message of a newer peer with one more field."""
    raw = msgspec.msgpack.decode(encode(Pull(log_offset=7)))
    assert decode(msgspec.msgpack.encode({**raw, "later": [1, 2]})) == Pull(log_offset=7)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode({"type": "Nobody"}),
        msgspec.msgpack.encode({"type": "Pull"}),
        msgspec.msgpack.encode({"type": "Pull", "log_offset": "7"}),
        msgspec.msgpack.encode([1, 2, 3]),
        encode(Pull(log_offset=7))[:-1],
        encode(Pull(log_offset=7)) + b"\0",
        encode(Failure(code="c", message="y")).replace(b"\xa1y", b"\xa1\xff"),
        encode(Failure(code="c", message="m", details={"a": 0}))[:-1] + b"\x91" * 60_000 + b"\0",
    ],
    ids=["empty", "garbage", "no tag", "unknown", "missing", "type", "array", "short", "long", "UTF-8", "deep"],
)  # fmt: skip
def test_what_does_not_fit_is_a_protocol_error(payload: bytes) -> None:
    """Decode what is no message: always the same class, which closes the connection with a reason."""
    with pytest.raises(ProtocolError, match="a control message does not fit"):
        decode(payload)


def test_mutated_messages_never_raise_anything_else() -> None:
    """Flip, cut and lengthen encoded messages thirty thousand times."""
    random_ = random.Random(8)
    encoded = [encode(message) for message in MESSAGES]
    for _ in range(30_000):
        payload = bytearray(random_.choice(encoded))
        for _ in range(random_.randint(1, 4)):
            payload[random_.randrange(len(payload))] = random_.randrange(256)
        if random_.random() < 0.3:
            payload = payload[: random_.randrange(len(payload))]
        try:
            decode(bytes(payload))
        except ProtocolError:
            continue


def test_an_error_survives_the_wire() -> None:
    """Send an error and read it: same class, text and details; an unknown code becomes the root with its text."""
    sent = StaleProducerEpoch("over", producer_epoch=4)
    failure = decode(error_frame(sent, 9)[FRAME_HEADER_SIZE:])
    assert isinstance(failure, Failure)
    got = as_error(failure)
    assert (type(got), str(got), got.details) == (StaleProducerEpoch, "over", {"producer_epoch": 4})
    assert str(from_code("NEWER", "text")) == "NEWER: text"


def test_an_error_without_a_code_of_its_own_takes_no_others_place() -> None:
    """Goal: who catches an error by its class gets it, whatever else is loaded. Method: a class that narrows one."""

    class Narrower(BadRequest):
        pass

    assert Narrower.code == BadRequest.code
    assert type(from_code(BadRequest.code, "text")) is BadRequest


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"copies": 10**20}, "arguments.copies is 100000000000000000000"),
        ({"x": [1, {"y": -(2**63) - 1}]}, r"arguments.x.y is -9223372036854775809"),
        ({"x": 10**4000}, r"arguments.x is 10{39}…"),
    ],
)
def test_a_number_beyond_64_bits_is_refused_with_its_name(arguments: dict[str, object], named: str) -> None:
    """Goal: whoever typed it is told so in a line. Method: numbers that msgpack cannot carry; the outermost it can."""
    with pytest.raises(BadRequest, match=f"DeclareQueue: {named}, which does not fit into 64 bits"):
        encode(DeclareQueue(name="q", arguments=arguments))
    borders = DeclareQueue(name="q", arguments={"least": -(2**63), "most": 2**64 - 1})
    assert decode(encode(borders)) == borders
