"""The HTTP server of a door: uvicorn with limits of ours, whose signals and whose first line are the door's.

uvicorn bounds the head of a request and how long a connection may be idle between two. Not how many connections there
are, nor how long a request may take to come in or an answer to be taken; a few lines here do, by one timer for each
connection. Who connects when all places are taken gets one: the connection goes that has waited longest for a request,
or for its answer to be taken, of the address that has most of these. So strangers who say nothing drive out themselves,
and a probe is answered. Only when all are being served is one more refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from mirrorlog.config import split_address
from mirrorlog.errors import PortTaken

STOP_GRACE_S: Final = 3
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one connection, and all of them, may take. `head_bytes_max`: of a request's first line and headers.
    `idle_s_max`: between an answer and the next request.

    `exchange_s_max`: from a connection's start, or its last answer, to the end of the next one; the node has 2 s of it.
    """

    connections_max: int = 128
    head_bytes_max: int = 16 * 1024
    idle_s_max: int = 5
    exchange_s_max: float = 15.0


class HttpServer(uvicorn.Server):
    """Serves `app` until `should_exit` is set; `started` is called when it does. `tls`: of its port."""

    def __init__(
        self,
        app: ASGIApp,
        started: Callable[[], None],
        limits: HttpLimits = HttpLimits(),
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=limits.idle_s_max,
            timeout_graceful_shutdown=STOP_GRACE_S,
            h11_max_incomplete_event_size=limits.head_bytes_max,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        # It takes whatever makes a protocol, and says that it wants a class.
        config.http = partial(_Connection, limits=limits)  # type: ignore[assignment]
        super().__init__(config)
        self._tell_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: they are the door's."""
        yield


class _Connection(H11Protocol):
    """One connection. Whoever sends or takes too slowly is cut off."""

    def __init__(self, *args: Any, limits: HttpLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._overdue: asyncio.TimerHandle | None = None
        self._since = 0.0

    # Narrower than asyncio's, as uvicorn's own is: a server's transports are no others.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_exchange()
        if len(self.connections) > self._limits.connections_max and not self._made_room():
            transport.write(_refusal(self._limits.connections_max))
            transport.close()

    def _made_room(self) -> bool:
        waiting = [each for each in self.connections if isinstance(each, _Connection) and each._waits and each != self]
        if not waiting:
            return False
        of = Counter(each._address for each in waiting)
        longest = max(waiting, key=lambda each: (of[each._address], -each._since))
        # It counts no more, whenever its transport is done with it.
        self.connections.discard(longest)
        longest.transport.abort()
        return True

    @property
    def _address(self) -> str:
        return self.client[0] if self.client is not None else ""

    @property
    def _waits(self) -> bool:
        """For a request, or for its answer to be taken: and not for the node."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused

    def send_400_response(self, msg: str) -> None:
        """What follows a request is none: who asked hears no more of the one before, and nothing of it is an error of
        this side's. uvicorn answers the one behind the other's back, and both tell of it by tracebacks."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # an answer has begun, or may have no body
            self.transport.close()

    def on_response_complete(self) -> None:
        # The answer may still wait to be taken: the time of the next exchange bounds that as well.
        self._begin_exchange()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        super().connection_lost(exc)

    def _begin_exchange(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
        self._since = self.loop.time()
        self._overdue = self.loop.call_later(self._limits.exchange_s_max, self.transport.abort)


def _refusal(connections_max: int) -> bytes:
    reason = b'{"error":"%d connections are open; close some"}' % connections_max
    head = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return b"%sContent-Length: %d\r\n\r\n%s" % (head, len(reason), reason)


def bind_socket(address: str) -> socket.socket:
    """A listening socket on `host:port`. Raises ConfigError or PortTaken."""
    host, port = split_address(address)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise PortTaken(
            f"{address} cannot be bound: {error.strerror or error}; choose another address with --bind, or end what "
            "listens there"
        ) from None


def address_of(listening: socket.socket, bind: str) -> str:
    """The address with the port that the kernel chose for 0."""
    name: Any = listening.getsockname()
    return f"{bind.rpartition(':')[0]}:{name[1]}"
