"""A port that accepts by itself, over real sockets and both loops."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trustme
import uvloop

from mirrorlog.errors import ConnectionLost, MirrorlogError, Overloaded
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.fairness.turns import STRANGER
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.listening import Port, PortPlace, listen
from mirrorlog.wire.messages.codec import as_error, expect_message
from mirrorlog.wire.messages.handshake import Failure
from mirrorlog.wire.tls import HANDSHAKE_S
from tests.attacks.reconnects import client_hello

HOST = "127.0.0.1"
WAIT_S = 15.0
STRANGERS_MAX = 20
LOOPS_OWN = 1
"""uvloop keeps a descriptor from its first stream on."""

Run = Callable[[Coroutine[Any, Any, None]], None]


class Answering:
    """Lets in whoever sends a frame, and sends it back."""

    def __init__(self, place: PortPlace) -> None:
        self._place = place
        self._endpoint: Endpoint | None = None

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def frame(self, frame_: Frame) -> None:
        assert self._endpoint is not None
        self._place.let_in()
        self._endpoint.send([frame(FrameType.PONG, bytes(frame_.payload))])

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None: ...


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest, authority: trustme.CA) -> ssl.SSLContext | None:
    if request.param == "plain":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    return context


async def with_port(
    tls: ssl.SSLContext | None, body: Callable[[Port], Awaitable[None]], *, per_address: int = STRANGERS_MAX
) -> None:
    """`body` with a port whose every descriptor is closed again at the end."""
    before = descriptors()
    places: PortPlaces[PortPlace] = PortPlaces(strangers_max=STRANGERS_MAX, per_address_max=per_address, let_in_max=3)
    made: Callable[[PortPlace], Endpoint] = lambda place: Endpoint(  # noqa: E731
        Answering(place), frame_bytes_max=1024, outgoing_bytes_max=1024
    )
    port = await listen(f"{HOST}:0", made, places, tls, lines=LoopLines())
    try:
        async with asyncio.timeout(WAIT_S):
            await body(port)
    finally:
        port.close()
    await until(lambda: places.strangers == places.let_in == 0)
    await until(lambda: descriptors() <= before + LOOPS_OWN)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are wanted, not paths


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)


def connect(port: Port) -> socket.socket:
    return socket.create_connection(port.address, timeout=WAIT_S)


def ask(connection: socket.socket) -> bytes:
    """What is answered to a frame; nothing when the connection has ended."""
    try:
        connection.sendall(frame(FrameType.PING, b"?"))
        return connection.recv(1024)
    except OSError:
        return b""


def client_of(connection: socket.socket, authority: trustme.CA, tls: ssl.SSLContext | None) -> socket.socket:
    if tls is None:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context.wrap_socket(connection, server_hostname=HOST)


def test_silent_sockets_drive_out_each_other_and_nobody_who_is_in(
    run: Run, tls: ssl.SSLContext | None, authority: trustme.CA
) -> None:
    """Goal: sockets that say nothing, over TLS half-open handshakes, cost so many descriptors and no more, and keep
    nobody out. Method: one is let in; ten times as many silent ones as there are places; one more gets in, the first is
    still served, and no descriptor is left over in the end."""

    async def body(port: Port) -> None:
        with ExitStack() as held:
            before = descriptors()
            first = await asyncio.to_thread(client_of, connect(port), authority, tls)
            held.enter_context(first)
            assert await asyncio.to_thread(ask, first)
            silent = []
            for _ in range(10 * STRANGERS_MAX):
                silent.append(held.enter_context(await asyncio.to_thread(connect, port)))
                if tls is not None:
                    silent[-1].sendall(b"\x16\x03\x01")
            await until(lambda: port.places.strangers == STRANGERS_MAX)
            # Two for the first, one for each silent one on this side.
            await until(lambda: descriptors() <= before + LOOPS_OWN + 2 + len(silent) + STRANGERS_MAX)
            late = held.enter_context(await asyncio.to_thread(client_of, connect(port), authority, tls))
            assert await asyncio.to_thread(ask, late)
            assert await asyncio.to_thread(ask, first)
            assert port.places.let_in == 2

    run(with_port(tls, body))


def test_who_must_go_is_told_why(run: Run) -> None:
    """The oldest of its address goes, hears which limit it was, and its socket is closed at once."""

    async def body(port: Port) -> None:
        with ExitStack() as held:
            sockets = [held.enter_context(await asyncio.to_thread(connect, port)) for _ in range(3)]
            reader = FrameReader(frame_bytes_max=1024)
            got = await asyncio.to_thread(sockets[0].recv_into, reader.room())
            reader.received(got)
            told = reader.next_frame()
            assert told is not None
            error = as_error(expect_message(told, FrameType.ERROR, Failure))
            assert isinstance(error, Overloaded)
            assert error.details["limit"] == "max_strangers"
            assert await asyncio.to_thread(sockets[0].recv, 1) == b""
            assert await asyncio.to_thread(ask, sockets[1])

    run(with_port(None, body, per_address=2))


def test_no_more_are_let_in_than_may_be(run: Run) -> None:
    """Three may be in: the fourth is refused by name, though strangers' places are free."""

    async def body(port: Port) -> None:
        with ExitStack() as held:
            for _ in range(3):
                assert await asyncio.to_thread(ask, held.enter_context(connect(port)))
            refused = await asyncio.to_thread(ask, held.enter_context(connect(port)))
            assert b"max_connections" in refused

    run(with_port(None, body))


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_line_moves_on_and_the_loop_turns(run: Run) -> None:
    """Goal: a node that has no file left is no node that hangs or spins. Method: let one in, take all descriptors away,
    connect four times as many as can wait: each is closed and none waits, the one that is in is served, and with
    descriptors the next one is let in."""

    async def body(port: Port) -> None:
        with ExitStack() as held:
            first = held.enter_context(connect(port))
            assert await asyncio.to_thread(ask, first)
            waiting = [held.enter_context(socket.socket()) for _ in range(8)]
            with no_descriptors():
                for each in waiting:
                    each.settimeout(WAIT_S)
                    each.connect(port.address)
                ends = await asyncio.to_thread(lambda: [each.recv(1) for each in waiting])
                assert ends == [b""] * len(waiting)
                assert await asyncio.to_thread(ask, first)
            late = held.enter_context(connect(port))
            assert await asyncio.to_thread(ask, late)

    run(with_port(None, body))


def test_a_port_that_cannot_even_refuse_rests_and_comes_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: where the kept descriptor is gone too, the loop does not go round and round. Method: the system refuses to
    accept for want of memory while one waits; it is asked a few times in a while, and afterwards the one is served."""
    asked = 0
    accept = socket.socket.accept
    refusing = True

    def refuses(listening: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal asked
        asked += 1
        if refusing:
            raise OSError(12, "Cannot allocate memory")
        return accept(listening)

    async def body(port: Port) -> None:
        nonlocal refusing
        monkeypatch.setattr(socket.socket, "accept", refuses)
        with connect(port) as waits:
            await until(lambda: asked >= 3)
            turns = 0
            while asked < 6:
                turns += 1
                await asyncio.sleep(0)
            assert turns > 50
            refusing = False
            assert await asyncio.to_thread(ask, waits)

    run(with_port(None, body))


def test_a_connection_that_is_lost_in_its_handshake_leaves(run: Run, authority: trustme.CA) -> None:
    """Handshakes that break off, by an end, a reset or garbage, or behind their first word, give their places back, and
    leave no TLS of uvloop, which nodes have, to the collector, which comes seldom."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)

    async def body(port: Port) -> None:
        hello = client_hello()
        for number in range(120):
            with await asyncio.to_thread(connect, port) as plain:
                if number % 4 == 3:
                    plain.sendall(hello)
                if number % 4 == 1:
                    plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
                if number % 4 == 2:
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        await until(lambda: port.places.strangers == 0)
        if isinstance(asyncio.get_running_loop(), uvloop.Loop):
            async with asyncio.timeout(HANDSHAKE_S / 2):  # and to no timer either
                await until(lambda: not any(isinstance(each, ssl.SSLObject) for each in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        run(with_port(context, body))
    finally:
        gc.enable()


def test_greetings_of_tls_are_answered_by_turns(run: Run, authority: trustme.CA) -> None:
    """Goal: who says the first word of a handshake again and again has no more of the loop than strangers have, and
    who is in is served meanwhile. Method: all places are taken by such greetings at once; between two answers of the
    one that is in no more of them are answered than there are turns, and all leave when they are closed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    steps = 0
    do_handshake = ssl.SSLObject.do_handshake

    class Counting(ssl.SSLObject):
        def do_handshake(self) -> None:
            nonlocal steps
            steps += 1
            time.sleep(STRANGER.turn_s)  # what one takes, on any machine
            do_handshake(self)

    context.sslobject_class = Counting

    async def body(port: Port) -> None:
        hello = client_hello()
        with ExitStack() as held:
            for _ in range(3 * STRANGERS_MAX):
                held.enter_context(await asyncio.to_thread(connect, port)).sendall(hello)
            most = 0
            while steps < STRANGERS_MAX:
                before = steps
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                most = max(most, steps - before)
            assert most <= 4  # two turns of the loop; each may begin one handshake, and answer one that has begun
        await until(lambda: port.places.strangers == 0)

    run(with_port(context, body))


def test_a_port_that_closes_ends_handshakes_and_nothing_else(
    run: Run, tls: ssl.SSLContext | None, authority: trustme.CA
) -> None:
    """Goal: a node that closes is not held up by strangers for as long as a handshake may take. Method: one is let in,
    others begin a handshake or say nothing; when the port closes those leave, and that one is served."""

    async def body(port: Port) -> None:
        with ExitStack() as held:
            first = held.enter_context(await asyncio.to_thread(client_of, connect(port), authority, tls))
            assert await asyncio.to_thread(ask, first)
            silent = [held.enter_context(await asyncio.to_thread(connect, port)) for _ in range(6)]
            for each in silent[::2]:
                each.sendall(b"\x16\x03\x01" if tls is not None else b"")
            await until(lambda: port.places.strangers == len(silent))
            port.close()
            if tls is not None:
                async with asyncio.timeout(HANDSHAKE_S / 2):
                    await until(lambda: port.places.strangers == 0)
            assert await asyncio.to_thread(ask, first)

    run(with_port(tls, body))


@pytest.mark.parametrize("name", ["EPROTO", "EHOSTUNREACH", "ECONNABORTED", "ENETDOWN", "EPERM", "ETIMEDOUT"])
def test_what_the_network_did_to_a_connection_is_not_the_ports(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Goal: connections that went, or that a firewall forbids, make nobody go and no port rest. Method: the system says
    so of many while one is a stranger; the next one is served, and the stranger has its place."""
    accept = socket.socket.accept
    refused = 0

    def refuses(listening: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal refused
        refused += 1
        if refused <= 50:
            raise OSError(getattr(errno, name), name)
        return accept(listening)

    async def body(port: Port) -> None:
        with ExitStack() as held:
            stranger = held.enter_context(await asyncio.to_thread(connect, port))
            await until(lambda: port.places.strangers == 1)
            monkeypatch.setattr(socket.socket, "accept", refuses)
            assert await asyncio.to_thread(ask, held.enter_context(await asyncio.to_thread(connect, port)))
            assert refused > 50
            assert await asyncio.to_thread(ask, stranger)

    run(with_port(None, body))


def test_a_name_that_stands_for_nothing_is_no_address() -> None:
    """`listen` names the address and what to do."""

    async def listening() -> None:
        with pytest.raises(MirrorlogError, match=r"cannot listen on nowhere\.invalid:1"):
            await listen("nowhere.invalid:1", _never, PortPlaces(strangers_max=1, per_address_max=1, let_in_max=1))

    asyncio.run(listening())


def _never(place: PortPlace) -> Endpoint:
    raise ConnectionLost("never")
