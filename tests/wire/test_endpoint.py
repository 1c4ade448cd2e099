"""One end of a framed connection over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from mirrorlog.errors import MirrorlogError, ProtocolError
from mirrorlog.wire import endpoint
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame, FrameReader, FrameType, frame


class Recorder:
    """A handler that notes what happens to it."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        self.gone = 0

    def connected(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def frame(self, frame: Frame) -> None: ...

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        self.gone += 1


async def test_a_close_towards_a_peer_that_is_gone_is_a_close() -> None:
    """Goal: a node that stops does not fail with a peer's reset that it has not heard of yet. Method: reset the
    connection from outside and close this end before the loop turns; the handler is told once."""
    loop = asyncio.get_running_loop()
    handler = Recorder()
    own, other = _tcp_pair()
    await loop.create_connection(lambda: Endpoint(handler, frame_bytes_max=1024, outgoing_bytes_max=1024), sock=own)
    endpoint = handler.endpoint
    assert endpoint is not None
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    endpoint.close()
    assert handler.gone == 1
    assert not endpoint.open


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    own.setblocking(False)
    return own, other


@pytest.mark.parametrize(
    ("peer", "own", "here"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("127.0.0.5", 1), ("127.0.0.1", 2), True),
        (("::1", 1, 0, 0), ("::1", 2, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), ("::ffff:127.0.0.1", 2, 0, 0), True),
        (("10.0.0.4", 1), ("10.0.0.4", 2), True),
        (("10.0.0.5", 1), ("10.0.0.4", 2), False),
        (("::ffff:10.0.0.5", 1, 0, 0), ("::ffff:10.0.0.4", 2, 0, 0), False),
        (None, None, False),
        ("", "", False),
        ((), (), False),
    ],
)
def test_what_stays_within_this_machine_is_told_by_both_ends(peer: object, own: object, here: bool) -> None:
    """Goal: a node reached over its own address is here, another machine never is. Method: each kind of address."""
    assert endpoint._is_here(peer, own) is here


class Careful(Recorder):
    """A handler that refuses what it gets, and keeps the reason as handlers do."""

    error: MirrorlogError | None = None

    def frame(self, frame: Frame) -> None:
        if frame.type == FrameType.GOODBYE:
            raise ProtocolError(f"no goodbye of {len(frame.payload)} bytes")

    def disconnected(self, error: MirrorlogError | None) -> None:
        super().disconnected(error)
        self.error = error


@pytest.mark.parametrize("ends", ["by itself", "by the peer", "by an error", "aborted"])
async def test_a_closed_connection_keeps_nothing(ends: str) -> None:
    """Goal: what a connection held is free when it has ended, and not when the collector comes. Method: with the
    collector off, a large frame and each way to end; the end, its handler and its buffer die with the last of them."""
    loop = asyncio.get_running_loop()
    handler = Careful()
    own, other = _tcp_pair()
    gc.collect()
    gc.disable()
    try:
        made = Endpoint(handler, frame_bytes_max=1 << 20, outgoing_bytes_max=1024)
        made.trust()
        factory: Callable[[], Endpoint] = partial(_given, made)
        await loop.connect_accepted_socket(factory, own)
        del factory
        await asyncio.to_thread(other.sendall, frame(FrameType.PING, bytes(1 << 19)))
        grown = weakref.ref(made.get_buffer(-1))
        if ends == "by itself":
            made.close()
        elif ends == "by the peer":
            other.close()
        elif ends == "by an error":
            other.sendall(frame(FrameType.GOODBYE))
        else:
            made.abort()
        await _until(lambda: handler.gone == 1)
        assert (handler.error is not None) == (ends == "by an error")
        if ends == "by an error":
            assert isinstance(handler.error, ProtocolError)
            assert handler.error.__traceback__ is None
        other.close()
        end = weakref.ref(made)
        del made
        handler.endpoint = None
        await _until(lambda: end() is None)
        assert grown() is None
    finally:
        gc.enable()


async def test_a_connection_that_rests_gives_its_large_buffer_back() -> None:
    """Goal: one large frame does not cost its size for as long as the connection is there. Method: a large frame, then
    rest; not while another one is under way."""
    reader = FrameReader(frame_bytes_max=1 << 20)
    least = reader.buffer_bytes
    _receive(reader, frame(FrameType.PING, bytes(1 << 19)))
    found = reader.next_frame()
    assert found is not None
    assert reader.buffer_bytes > 1 << 19
    _receive(reader, frame(FrameType.PING, b"second")[:18])
    assert reader.next_frame() is None
    reader.shrink()
    assert reader.buffer_bytes > 1 << 19
    _receive(reader, frame(FrameType.PING, b"second")[18:])
    second = reader.next_frame()
    assert second is not None
    reader.shrink()
    assert reader.buffer_bytes == least
    assert bytes(second.payload) == b"second"
    _receive(reader, frame(FrameType.PING, b"third"))
    third = reader.next_frame()
    assert third is not None
    assert bytes(third.payload) == b"third"


def _given(made: Endpoint) -> Endpoint:
    return made


def _receive(reader: FrameReader, data: bytes) -> None:
    while data:
        room = reader.room()
        piece, data = data[: len(room)], data[len(room) :]
        room[: len(piece)] = piece
        reader.received(len(piece))


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)
