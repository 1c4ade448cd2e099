"""One end of a framed connection over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from mirrorlog.errors import MirrorlogError
from mirrorlog.wire import endpoint
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame


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
