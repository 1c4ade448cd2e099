"""The client before it has a connection: what it is given is checked at once."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import BadRequest, ConnectionLost


@pytest.mark.parametrize("server", [["a:1"], "a:1,b:2", "no port", "a..b:1"])
def test_a_wrong_server_is_refused_when_the_client_is_made(server: Any) -> None:
    """With what to write instead, not by the resolver later; behind a good one."""
    with pytest.raises(BadRequest):
        Client("127.0.0.1:1", server)


@pytest.mark.parametrize("name", ["connect_timeout_ms", "request_timeout_ms"])
@pytest.mark.parametrize("value", [0, -1, None, "5", 2**32])
def test_a_wrong_timeout_is_refused_when_the_client_is_made(name: str, value: Any) -> None:
    """By the name that was written."""
    with pytest.raises(BadRequest, match=name):
        Client("127.0.0.1:1", **{name: value})


def test_without_servers_it_is_the_usual_port_of_this_machine() -> None:
    """By giving none."""
    assert Client().servers == [f"127.0.0.1:{CLIENT_PORT}"]


@pytest.mark.parametrize("option", ["confirm", "durability", "compression", "linger_ms", "window_bytes"])
async def test_a_producers_wrong_option_is_refused_without_a_node(option: str) -> None:
    """By None for each, before there is a connection."""
    client = Client("127.0.0.1:1")
    with pytest.raises(BadRequest, match=option):
        client.producer("q", **{option: None})  # type: ignore[arg-type]


async def test_a_producer_that_was_not_started_says_so() -> None:
    """It knows no limits yet, which is not the record's fault; by each way to hand over."""
    producer = Client("127.0.0.1:1").producer("q")
    with pytest.raises(ConnectionLost, match="not started"):
        producer.send_nowait(b"v")
    with pytest.raises(ConnectionLost, match="not started"):
        producer.send_nowait(None)
    with pytest.raises(ConnectionLost, match="not started"):
        producer.send_many_nowait([b"v"])
    with pytest.raises(ConnectionLost, match="not started"):
        await producer.send(b"v")
    await producer.close()
