"""What tests of members over real sockets share: a replication port, a way to one that changes what is carried, and
waiting for what nobody tells of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

from mirrorlog.cluster.peers import AcceptedLink, MemberEvents
from mirrorlog.config import split_address
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.auth.credentials import OPEN
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.codec import encode, expect_message
from mirrorlog.wire.messages.handshake import Hello, Welcome

_T = TypeVar("_T")

WAIT_S = 20.0


class Greeter(Protocol):
    """Whose port it is. `greets`: whether it answers HELLO; `endpoints`: of what it accepted."""

    endpoints: list[Endpoint]

    @property
    def greets(self) -> bool: ...

    @property
    def welcome(self) -> Welcome: ...

    @property
    def member_events(self) -> MemberEvents: ...


class Port:
    """What a replication port does with a member: greets it, then gives its frames to an AcceptedLink."""

    def __init__(self, node: Greeter) -> None:
        self._node = node
        self._endpoint: Endpoint | None = None
        self._link: AcceptedLink | None = None

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._node.endpoints.append(endpoint)

    def frame(self, frame_: Frame) -> None:
        assert self._endpoint is not None
        if self._link is not None:
            self._link.frame(frame_)
            return
        hello = expect_message(frame_, FrameType.HELLO, Hello)
        if not self._node.greets:
            return
        self._endpoint.trust()
        greeting = OPEN.accepted(hello, self._endpoint)
        self._endpoint.send([frame(FrameType.WELCOME, encode(greeting.sealed(self._node.welcome)))])
        if greeting.checked:
            self._endpoint.check_frames()
        assert hello.node_id is not None
        assert hello.start_id is not None
        events = self._node.member_events
        self._link = AcceptedLink(hello, endpoint=self._endpoint, events=events)

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return None

    def writable(self) -> None: ...

    def disconnected(self, error: MirrorlogError | None) -> None:
        if self._link is not None:
            self._link.disconnected()


Change = Callable[[int, bytes], bytes]


def _as_it_is(number: int, data: bytes) -> bytes:
    return data


class Way:
    """Connections are carried on. `change`: called with the number of the connection and what who dialled has sent, for
    what arrives; `back`: likewise, of what he is sent."""

    def __init__(self, to: str, change: Change, back: Change) -> None:
        self.to = to
        self.address = ""
        self._change = change
        self._back = back
        self._count = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._count = self._count, self._count + 1
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(*split_address(self.to))
            await asyncio.gather(
                _pass(reader, back, lambda data: self._change(number, data)),
                _pass(there, writer, lambda data: self._back(number, data)),
            )


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 20):
            writer.write(change(data))
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def way(change: Change = _as_it_is, to: str = "", *, back: Change = _as_it_is) -> AsyncIterator[Way]:
    """One that listens; `to` may be said later."""
    made = Way(to, change, back)
    server = await asyncio.start_server(made.carry, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()


async def until(condition: Callable[[], _T | None]) -> _T:
    """What the condition gives, once it gives something."""
    async with asyncio.timeout(WAIT_S):
        while not (found := condition()):  # noqa: ASYNC110  (what is waited for is on several nodes)
            await asyncio.sleep(0.001)
    return found
