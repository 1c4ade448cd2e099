"""What a client of AMQP may say when, and what it is told otherwise."""

from __future__ import annotations

import pytest
from pamqp import base, commands
from pamqp.frame import marshal

from mirrorlog.doors.amqp import codec
from mirrorlog.doors.amqp.state import (
    ChannelClosed,
    ChannelOpened,
    ConnectionLeft,
    ConnectionState,
    Event,
    Failed,
    HostOpening,
    MessagePublished,
    MessageSettled,
    OtherProtocol,
    Said,
    SaidLogin,
    Started,
    Tuned,
)
from tests.fuzz.amqp_targets import BODY_BYTES_MAX, publish

NONE = b"\0\0"


class Client:
    """Says methods, and has the events."""

    def __init__(self) -> None:
        self.state = ConnectionState(body_bytes_max=BODY_BYTES_MAX)

    def sends(self, data: bytes) -> list[Event]:
        return list(self.state.receive(data))

    def says(self, method: base.Frame, channel: int = 0) -> list[Event]:
        return self.sends(marshal(method, channel))

    def opened(self, *, channels: int = 1) -> Client:
        self.sends(codec.PROTOCOL_HEADER)
        self.says(commands.Connection.StartOk({}, "PLAIN", "\0u\0p", "en_US"))
        self.state.tuned()
        self.says(commands.Connection.TuneOk(100, 4096, 30))
        self.says(commands.Connection.Open("/"))
        self.state.opened()
        for number in range(1, channels + 1):
            self.says(commands.Channel.Open(), number)
        return self


def test_a_connection_is_opened_step_by_step() -> None:
    """Goal: the handshake. Method: each step, its event, and the limits that were agreed upon."""
    client = Client()
    assert client.sends(codec.PROTOCOL_HEADER) == [Started()]
    (given,) = client.says(commands.Connection.StartOk({"product": "x"}, "PLAIN", "\0u\0p", "en_US"))
    assert given == SaidLogin("PLAIN", b"\0u\0p", {"product": "x"})
    client.state.tuned()
    assert client.says(commands.Connection.TuneOk(10, 8192, 30)) == [Tuned(30)]
    assert client.state.frame_max == 8192
    assert client.says(commands.Connection.Open("host")) == [HostOpening("host")]
    client.state.opened()
    assert client.says(commands.Channel.Open(), 10) == [ChannelOpened(10)]
    (failed,) = client.says(commands.Channel.Open(), 11)
    assert isinstance(failed, Failed)
    assert (failed.channel, failed.code) == (0, 530)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"AMQX"])
def test_another_protocol_is_told_which_one_is_spoken(data: bytes) -> None:
    """Goal: a stranger is told. Method: HTTP, and AMQP 1.0."""
    assert Client().sends(data) == [OtherProtocol()]


def test_messages_and_settlements_come_as_events() -> None:
    """Goal: what channels are for. Method: a message in many frames, an empty one, an ack, another method."""
    client = Client().opened(channels=2)
    body = b"x" * 4090
    message, empty = client.sends(publish(1, "e", "k", NONE, body[:4000]) + publish(2, "", "q", NONE, b""))
    assert message == MessagePublished(1, codec.PublishMethod("e", "k", False, False), NONE, body[:4000])
    assert isinstance(empty, MessagePublished)
    assert (empty.channel, empty.body) == (2, b"")
    assert client.sends(codec.ack(1, 7, multiple=True)) == [
        MessageSettled(1, codec.ACK, codec.TagSettlement(7, multiple=True, requeue=False))
    ]
    (said,) = client.says(commands.Basic.Qos(0, 5), 2)
    assert isinstance(said, Said)
    assert isinstance(said.method, commands.Basic.Qos)


def failure(events: list[Event]) -> tuple[int, int]:
    assert isinstance(events[-1], Failed)
    return events[-1].channel, events[-1].code


def test_faults_have_rabbitmqs_codes() -> None:
    """Goal: clients' own handling of errors. Method: each fault on a connection of its own."""
    method = marshal(commands.Basic.Publish(0, "", "q"), 1)
    assert failure(Client().opened().sends(codec.ack(2, 1, multiple=False))) == (0, 504)
    assert failure(Client().opened().says(commands.Channel.Open(), 1)) == (0, 504)
    assert failure(Client().opened().sends(method + codec.ack(1, 1, multiple=False))) == (0, 505)
    assert failure(Client().opened().sends(publish(1, "", "q", NONE, b"x")[len(method) :])) == (0, 505)
    assert failure(Client().opened().says(commands.Queue.DeclareOk("q", 0, 0), 1)) == (0, 503)
    assert failure(Client().opened().says(commands.Basic.Qos(0, 5), 0)) == (0, 503)
    assert failure(Client().opened().sends(b"\x01\0\1\0\0\0\4\0\x63\0\1\xce")) == (0, 540)
    assert failure(Client().opened().sends(b"\x01\0\1\0\0\0\5\0\x32\0\x0a\xff\xce")) == (0, 502)
    assert failure(Client().opened().sends(publish(1, "", "q", NONE, b"x" * (BODY_BYTES_MAX + 1)))) == (1, 406)


def test_a_channel_that_failed_is_heard_no_more_until_it_says_that_it_knows() -> None:
    """Goal: what was on its way behind the fault is not done. Method: publishes, then close-ok, then open again."""
    client = Client().opened(channels=2)
    assert client.state.failed(Failed(1, 404, "no queue"))
    assert not client.state.failed(Failed(1, 404, "no queue"))
    assert client.sends(publish(1, "", "q", NONE, b"x") + codec.ack(1, 1, multiple=False)) == []
    assert len(client.sends(publish(2, "", "q", NONE, b"x"))) == 1
    assert client.says(commands.Channel.CloseOk(), 1) == [ChannelClosed(1, answered=True)]
    assert client.says(commands.Channel.Open(), 1) == [ChannelOpened(1)]


def test_both_ends_may_close() -> None:
    """Goal: close of a channel and of a connection, from either side. Method: each way."""
    client = Client().opened()
    assert client.says(commands.Channel.Close(200, "", 0, 0), 1) == [ChannelClosed(1, answered=False)]
    assert client.says(commands.Connection.Close(200, "", 0, 0)) == [ConnectionLeft(answered=False)]
    client = Client().opened()
    assert client.state.failed(Failed(0, 320, "stopping"))
    assert client.sends(publish(1, "", "q", NONE, b"x")) == []
    assert client.says(commands.Connection.CloseOk()) == [ConnectionLeft(answered=True)]
