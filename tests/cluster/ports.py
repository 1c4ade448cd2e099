"""What tests of members over real sockets share: a replication port, and waiting for what nobody tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from mirrorlog.cluster.peers import AcceptedLink, MemberEvents
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages import Hello, Welcome, encode, expect_message

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
        self._endpoint.send([frame(FrameType.WELCOME, encode(self._node.welcome))])
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


async def until(condition: Callable[[], _T | None]) -> _T:
    """What the condition gives, once it gives something."""
    async with asyncio.timeout(WAIT_S):
        while not (found := condition()):  # noqa: ASYNC110  (what is waited for is on several nodes)
            await asyncio.sleep(0.001)
    return found
