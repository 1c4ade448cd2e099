"""What the AMQP door must do with bytes from a stranger: events, each legal behind the one before, and no exception."""

from __future__ import annotations

from contextlib import suppress

from pamqp import commands
from pamqp.frame import marshal

from mirrorlog.client.amqp import closed, opened, scanned
from mirrorlog.doors.amqp import codec
from mirrorlog.doors.amqp.state import ConnectionState, Failed, HostOpening, MessagePublished, SaidLogin
from mirrorlog.errors import BadInput

BODY_BYTES_MAX = 4096


def connection(data: bytes) -> None:
    """A client from its first byte on; the first byte says into how small pieces it is cut. All logins are taken."""
    state = ConnectionState(body_bytes_max=BODY_BYTES_MAX)
    size = 1 + (data[0] if data else 0)
    failed: set[int] = set()
    for at in range(1, len(data), size):
        for event in state.receive(data[at : at + size]):
            if isinstance(event, SaidLogin):
                state.tuned()
            elif isinstance(event, HostOpening):
                state.opened()
            elif isinstance(event, Failed):
                assert 0 not in failed, "told twice that all of it failed"
                failed.add(event.channel)
            elif isinstance(event, MessagePublished):
                assert 0 not in failed
                assert len(event.body) <= BODY_BYTES_MAX
                _properties(event.properties)


def _properties(content: bytes) -> None:
    with suppress(BadInput):
        scan = scanned(content)
        found = opened(content)
        assert (found.priority or 0) == scan.priority
        assert opened(closed(found)) == found or found.headers  # NaN is not what it is


def connection_seeds() -> list[bytes]:
    """A publish and an ack, whole and byte by byte; a login; properties of all kinds."""
    start = b"".join(
        (
            codec.PROTOCOL_HEADER,
            marshal(commands.Connection.StartOk({"product": "x"}, "PLAIN", "\0guest\0guest", "en_US"), 0),
            marshal(commands.Connection.TuneOk(2047, 131072, 60), 0),
            marshal(commands.Connection.Open("/"), 0),
            marshal(commands.Channel.Open(), 1),
        )
    )
    content = start + publish(1, "amq.topic", "a.b", PROPERTIES, b"x" * 100) + codec.ack(1, 1, multiple=True)
    close = marshal(commands.Channel.Close(200, "bye", 0, 0), 1) + marshal(commands.Connection.Close(200, "", 0, 0), 0)
    declare = marshal(commands.Queue.Declare(queue="q", arguments={"x-max-priority": 5, "a": {"b": [1, "c"]}}), 1)
    return [
        b"\xff" + content + close,
        b"\0" + start,
        b"\x07" + content,
        b"\xff" + start + declare + codec.HEARTBEAT_FRAME,
    ]


PROPERTIES = closed(
    opened(b"\0\0")._replace(
        content_type="text/plain", headers={"a": 1, "b": {"c": [True, None, 1.5, b"\xff"]}}, delivery_mode=2,
        priority=3, correlation_id="1", reply_to="r", expiration="1000", message_id="m", timestamp=1, type="t",
        user_id="guest", app_id="app",
    )
)  # fmt: skip


def publish(channel: int, exchange: str, key: str, properties: bytes, body: bytes, *, frame_max: int = 4096) -> bytes:
    """As a client sends it."""
    method = marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), channel)
    delivered = codec.deliver(
        channel, codec.short(b""), 0, False, route=b"\0\0", properties=properties, body=body, frame_max=frame_max
    )
    return method + delivered[7 + 4 + 1 + 9 + 2 + 1 :]
