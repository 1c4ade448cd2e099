"""What renews itself: a page that somebody looks at is rendered anew every other second, once for all who look at it by
the same login, and is sent to them as a server-sent event when it has changed.

While nobody looks nothing runs. A stream ends after some seconds, below what the door's server gives any answer, and
the browser asks anew by itself: so a login that was taken back ends, too, and a client that is gone is not kept.
Rejected: a question by each browser (as many as there are browsers), and streams for ever (each would need a place of
its own in what bounds connections).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mirrorlog.doors.management.shapes import ApiError

logger = logging.getLogger(__name__)

EVERY_S: Final = 2.0
STREAM_S: Final = 8.0
"""Below `HttpLimits.exchange_s_max`, with what the connection was idle before (`idle_s_max`)."""
RETRY_MS: Final = 500
LISTENERS_MAX: Final = 64
LISTENERS_A_LOGIN_MAX: Final = 16

_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class _Feed:
    """One page for one login. `event`: the newest, empty before the first; `number`: of it."""

    listeners: int = 0
    event: bytes = b""
    number: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


def event_of(name: str, data: str) -> bytes:
    """As server-sent events are written: each line of the data by itself."""
    lines = "".join(f"data: {line}\n" for line in data.splitlines())
    return f"event: {name}\n{lines}\n".encode()


class Feeds(Generic[_K]):
    """`render`: a page by its key; what it raises as ApiError is told to all who look. `wait`: between two of these."""

    def __init__(
        self,
        render: Callable[[_K], Awaitable[str]],
        *,
        wait: Callable[[], Awaitable[None]] | None = None,
        listeners_max: int = LISTENERS_MAX,
    ) -> None:
        self._render = render
        self._wait = wait or _some_seconds
        self._listeners_max = listeners_max
        self._feeds: dict[_K, _Feed] = {}

    @property
    def running(self) -> int:
        """Pages that are rendered."""
        return len(self._feeds)

    def check_room(self, those: Callable[[_K], bool] = lambda key: True, most: int | None = None) -> None:
        """Raises ApiError when too many listen, or too many of `those`."""
        most = self._listeners_max if most is None else most
        if sum(feed.listeners for key, feed in self._feeds.items() if those(key)) >= most:
            raise ApiError(503, "service_unavailable", f"{most} pages are open; load this one by hand")

    @contextlib.asynccontextmanager
    async def listening(self, key: _K) -> AsyncIterator[AsyncIterator[bytes]]:
        """Events as they come."""
        feed = self._feeds.setdefault(key, _Feed())
        feed.listeners += 1
        if feed.task is None:
            feed.task = asyncio.ensure_future(self._run(key, feed))
        try:
            yield _events(feed)
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                # Another one under this key is begun anew: this one's task may be in the middle of something.
                del self._feeds[key]
                feed.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feed.task

    async def _run(self, key: _K, feed: _Feed) -> None:
        while True:
            try:
                event = event_of("page", await self._render(key))
            except ApiError as error:
                event = event_of("trouble", str(error))
            except Exception:
                logger.exception("live_page_failed")
                event = event_of("trouble", "the door's log says why")
            if event != feed.event:
                feed.event, feed.number = event, feed.number + 1
                feed.changed.set()
                feed.changed = asyncio.Event()
            await self._wait()


async def _some_seconds() -> None:
    await asyncio.sleep(EVERY_S)


async def _events(feed: _Feed) -> AsyncIterator[bytes]:
    """The newest at once; of several meanwhile only the last."""
    seen = 0
    while True:
        changed = feed.changed
        if feed.number == seen:
            await changed.wait()
        seen = feed.number
        yield feed.event


class EventStream(Response, Generic[_K]):
    """Sends what a feed has, until the client is gone or the stream's time is over."""

    media_type = "text/event-stream"

    def __init__(self, feeds: Feeds[_K], key: _K) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._feeds = feeds
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._feeds.listening(self._key) as events:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            first = f"retry: {RETRY_MS}\n\n".encode()
            await send({"type": "http.response.body", "body": first, "more_body": True})
            sending = asyncio.ensure_future(_send_all(events, send))
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                await asyncio.wait({sending, gone}, timeout=STREAM_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.gather(sending, gone, return_exceptions=True)
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_all(events: AsyncIterator[bytes], send: Send) -> None:
    async for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
