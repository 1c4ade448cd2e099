"""The client before it has a connection: what it is given is checked at once."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.config import CLIENT_PORT
from mirrorlog.errors import BadRequest, Closed, ConnectionLost
from mirrorlog.testing.ports import HOST


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
    """By what is none for each, before there is a connection."""
    client = Client("127.0.0.1:1")
    with pytest.raises(BadRequest, match=option):
        client.producer("q", **{option: "no such"})  # type: ignore[arg-type]


async def test_a_producer_that_was_not_started_says_so() -> None:
    """It knows no limits yet, which is not the record's fault; by each way to hand over."""
    producer = Client("127.0.0.1:1").producer("q")
    with pytest.raises(Closed, match="not started"):
        producer.send_nowait(b"v")
    with pytest.raises(Closed, match="not started"):
        producer.send_nowait(None)
    with pytest.raises(Closed, match="not started"):
        producer.send_many_nowait([b"v"])
    with pytest.raises(Closed, match="not started"):
        await producer.send(b"v")
    await producer.close()


@pytest.mark.long
@pytest.mark.parametrize("greeted", [False, True])
async def test_closing_ends_an_opening_for_who_waits_for_it(greeted: bool) -> None:
    """He is told that the client is closed, as if he had come later, and the client can be connected anew; by a node
    that never answers, closed before and after it has been reached."""
    reached = asyncio.Event()

    async def stand_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stand_still, HOST, 0) as server:
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        client = Client(address, connect_timeout_ms=20_000)
        opening = [asyncio.ensure_future(client.connection_to(address)) for _ in range(2)]
        await asyncio.wait_for(reached.wait(), 10) if greeted else await asyncio.sleep(0)
        await client.close()
        for each in opening:
            with pytest.raises(Closed, match="client is closed"):
                await asyncio.wait_for(each, 10)
        client.connect_timeout_ms = 100
        with pytest.raises(ConnectionLost, match="no answer"):
            await client.connect()
        await client.close()


async def test_who_is_cancelled_while_a_client_is_closed_stays_cancelled() -> None:
    """Closing must not hide it; by cancelling one of two who wait for a node that never answers."""
    with closing(await asyncio.start_server(lambda *_: None, HOST, 0)) as server:
        address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
        client = Client(address, connect_timeout_ms=20_000)
        opening = [asyncio.ensure_future(client.connection_to(address)) for _ in range(2)]
        await asyncio.sleep(0)
        opening[0].cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await opening[0]
        with pytest.raises(Closed, match="client is closed"):
            await asyncio.wait_for(opening[1], 10)
