"""The limits of the HTTP server: nobody holds a connection for longer than they say, whatever is sent or not taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs
from starlette.types import ASGIApp, Receive, Scope, Send

from mirrorlog.doors.http.answers import NodeReport, StatusSource
from mirrorlog.doors.http.routes import make_app
from mirrorlog.doors.http.server import HttpLimits, HttpServer, bind_socket
from mirrorlog.errors import ConfigError, PortTaken
from mirrorlog.wire.messages.status import Status
from tests.doors.http_statuses import in_cluster

HOST = "127.0.0.1"
DEADLINE_S = 20.0
LONG_S = 600


class Served:
    """A server in this process, and its port."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def has(self, count: int) -> None:
        """Until the server has so many connections."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.server.server_state.connections) != count:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def served(app: ASGIApp, limits: HttpLimits) -> AsyncIterator[Served]:
    started = asyncio.Event()
    with bind_socket(f"{HOST}:0") as listening:
        server = HttpServer(app, started.set, limits)
        running = asyncio.ensure_future(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        try:
            async with asyncio.timeout(DEADLINE_S):
                await started.wait()
            yield Served(server, port)
        finally:
            server.should_exit = True
            async with asyncio.timeout(DEADLINE_S):
                await running


def door(**facts: Any) -> ASGIApp:
    """The door's own pages, for a node that answers. `facts`: of its status."""
    status = Status(cluster_id="c", cluster_name="c", node_id="n1", start_id="s", now_us=0, logs=[], **facts)

    async def ask() -> NodeReport:
        return NodeReport("mirrorlog", status)

    return make_app(StatusSource(ask))


@pytest.mark.parametrize(
    ("facts", "status", "why"),
    [
        ({}, 503, "waits for its cluster"),
        ({"cluster": structs.replace(in_cluster([], []), registered=False)}, 503, "waits for its cluster"),
        ({"cluster": in_cluster([], []), "awaited": ["grpc"]}, 503, "waits for its doors: grpc"),
        ({"cluster": in_cluster([], [])}, 200, '"node":"n1"'),
    ],
)
async def test_a_node_is_ready_when_it_and_its_doors_serve(facts: dict[str, Any], status: int, why: str) -> None:
    """Goal: nobody is sent to a node that does not take what he sends. Method: nodes in each state of a start."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("there is no body")

    scope = {"type": "http", "method": "GET", "path": "/ready", "headers": [], "query_string": b""}
    await door(**facts)(scope, receive, send)
    assert (sent[0]["status"], why in sent[1]["body"].decode()) == (status, True), sent


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that fits into no socket's buffers."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(64 * 1024 * 1024)})


@pytest.mark.parametrize(
    "said",
    [
        b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n\0nothing\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: n\r\n\r\nGET /health HTTP/1*1\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\nGET /health HTTP/1.0\r\n\r\n",
        b"POST /health HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n",
    ],
)
async def test_what_is_no_request_behind_one_is_no_error_of_the_door(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a stranger does not fill the node's log with tracebacks. Method: requests, and behind their beginning what
    is none, in one write; the connection ends, and no error is logged."""
    async with served(door(), HttpLimits()) as server:
        reader, writer = await server.open()
        writer.write(said)
        await rest_of(reader)
        writer.close()
        await server.has(0)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the other side closes; a reset is an end too."""
    async with asyncio.timeout(DEADLINE_S):
        found = b""
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                found += part
        return found


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: here\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n"],
)
async def test_a_request_that_never_ends_is_cut_off(sent: bytes) -> None:
    """Goal: silence holds no connection. Method: begin a request, or none, and wait for the end; no other time acts."""
    async with served(door(), HttpLimits(idle_s_max=LONG_S, exchange_s_max=0.1)) as here:
        reader, writer = await here.open()
        writer.write(sent)
        assert await rest_of(reader) == b""
        writer.close()
        await here.has(0)


async def test_a_request_that_comes_in_drop_by_drop_is_cut_off() -> None:
    """Goal: bytes now and then buy no time. Method: send a header's byte for as long as the connection lives."""
    async with served(door(), HttpLimits(idle_s_max=LONG_S, exchange_s_max=0.3)) as here:
        reader, writer = await here.open()
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        ended = asyncio.ensure_future(rest_of(reader))
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait([ended], timeout=0.02)
        assert await ended == b""
        writer.close()


async def test_an_answer_that_nobody_takes_is_cut_off() -> None:
    """Goal: a reader that stands still holds no memory. Method: ask for 64 MiB and read nothing."""
    async with served(large, HttpLimits(idle_s_max=LONG_S, exchange_s_max=0.2)) as here:
        reader, writer = await here.open()
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await here.has(0)
        writer.close()


async def test_a_body_without_an_end_is_cut_off() -> None:
    """Goal: who is answered cannot go on sending. Method: a chunked body that is sent on and on."""
    async with served(door(), HttpLimits(idle_s_max=LONG_S, exchange_s_max=0.2)) as here:
        reader, writer = await here.open()
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        ended = asyncio.ensure_future(rest_of(reader))
        while not ended.done():
            writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
            await asyncio.wait([ended], timeout=0.01)
        await here.has(0)
        writer.close()


async def healthy(here: Served) -> bool:
    """Whether a probe on a connection of its own is answered."""
    reader, writer = await here.open()
    writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    answer = await rest_of(reader)
    writer.close()
    return answer.startswith(b"HTTP/1.1 200")


async def test_who_says_nothing_makes_room_for_who_asks() -> None:
    """Goal: half-open connections keep no probe out. Method: as many as may be, one of which has been answered before,
    others with half a request; then a probe ten times: it is answered, and the one that has waited longest has gone."""
    async with served(door(), HttpLimits(connections_max=4, idle_s_max=LONG_S, exchange_s_max=LONG_S)) as here:
        silent = [await here.open() for _ in range(4)]
        await here.has(4)
        for place, (_, writer) in enumerate(silent[:2]):
            writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\n" + b"\r\n" * (place == 0))
        async with asyncio.timeout(DEADLINE_S):
            assert (await silent[0][0].readline()).startswith(b"HTTP/1.1 200")
        assert await healthy(here)
        assert await rest_of(silent[1][0]) == b"", "it has waited longest: the one before was answered meanwhile"
        for _ in range(10):
            assert await healthy(here)
        for _, writer in silent:
            writer.close()


async def test_answers_that_nobody_takes_make_room_too() -> None:
    """Goal: who asks and does not read is no better than who does not ask. Method: as many as may be; one more."""
    async with served(large, HttpLimits(connections_max=2, idle_s_max=LONG_S, exchange_s_max=LONG_S)) as here:
        readers = []
        for _ in range(3):
            reader, writer = await here.open()
            readers.append((reader, writer))
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await here.has(2)
        for _, each in readers:
            each.close()


async def test_connections_above_the_limit_are_told_so_while_all_are_being_served() -> None:
    """Goal: a named limit with an answer. Method: two requests that wait for the node where two may be, and a third;
    then the node answers, and another one is served."""
    go = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await door()(scope, receive, send)

    async with served(slow, HttpLimits(connections_max=2, idle_s_max=LONG_S, exchange_s_max=LONG_S)) as here:
        probes = [asyncio.ensure_future(healthy(here)) for _ in range(2)]
        await here.has(2)
        async with asyncio.timeout(DEADLINE_S):
            while any(each.cycle is None for each in here.server.server_state.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        refused, third = await here.open()
        head, _, body = (await rest_of(refused)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body) == {"error": "2 connections are open; close some"}
        third.close()
        go.set()
        assert all(await asyncio.gather(*probes))
        assert await healthy(here)


@pytest.mark.parametrize(
    "head", [b"GET /%s HTTP/1.1\r\n" % (b"x" * 20_000), b"GET / HTTP/1.1\r\nX: %s\r\n" % (b"x" * 20_000)]
)
async def test_a_head_above_the_limit_is_refused(head: bytes) -> None:
    """Goal: a request takes no more memory than its limit. Method: a long path, a long header; neither is finished."""
    async with served(door(), HttpLimits(idle_s_max=LONG_S, exchange_s_max=LONG_S)) as here:
        reader, writer = await here.open()
        writer.write(head)
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_what_is_no_http_is_refused() -> None:
    """Goal: a native client at the wrong port is answered at once. Method: bytes that no request begins with."""
    async with served(door(), HttpLimits(idle_s_max=LONG_S, exchange_s_max=LONG_S)) as here:
        reader, writer = await here.open()
        writer.write(b"\x10\x00\x00\x00\x01\x00\x00\x00\r\n\r\n")
        assert (await rest_of(reader)).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_connection_serves_one_request_after_the_other_until_it_is_idle() -> None:
    """Goal: a scraper may keep its connection. Method: requests on one, for longer than one exchange may take."""
    async with served(door(), HttpLimits(idle_s_max=1, exchange_s_max=1.0)) as here:
        reader, writer = await here.open()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() - begun < 1.2:
            writer.write(b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        assert await rest_of(reader) == b""
        writer.close()


def test_a_port_that_is_taken_and_an_address_that_is_none_are_named() -> None:
    """Goal: an error that can be acted on. Method: bind one port twice, and what has no port."""
    with bind_socket(f"{HOST}:0") as first:
        address = f"{HOST}:{first.getsockname()[1]}"
        with pytest.raises(PortTaken, match=address):
            bind_socket(address)
    with pytest.raises(ConfigError, match="no host:port"):
        bind_socket("here")
