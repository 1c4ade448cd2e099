"""Listening at a port: connections are accepted, a few at a time, each in a place of its own. Thin.

The node accepts by itself, a few connections at a time: so each has a place (`wire.places`) from `accept` until its
descriptor is closed, in a TLS handshake and while it lingers too. asyncio tells of neither.

Without a free descriptor a kept one is given up, the connection that waits is accepted with it and closed, and it is
taken again: the line never stands still. Where that does not help the port rests for a moment; a loop would otherwise
find the same connection waiting again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost, MirrorlogError, Overloaded, PortTaken
from mirrorlog.wire.dialling import end_unacked
from mirrorlog.wire.endpoint import LINGER_S, Endpoint
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.places import PortPlaces
from mirrorlog.wire.handshakes import Handshake
from mirrorlog.wire.tls import Refusals

logger = logging.getLogger(__name__)

_CHECK_AGAIN_S: Final = 0.05
BACKLOG: Final = 1024
ACCEPTS_AT_ONCE: Final = 4
"""A flood of connections must not hold the loop up: one that comes and goes costs it some 100 us."""
PAUSE_S: Final = 0.003
"""Between two times that so many were there: a tenth of the loop. Who waits meanwhile is the kernel's."""
REST_S: Final = 0.1
"""How long a port rests that cannot accept."""
DROP_S: Final = 0.05
"""How long a stranger that makes room may take its last words."""
DROPPED_MAX: Final = 32
"""So many may be at that; more are closed at once: each still has a descriptor."""

_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_PEERS: Final = frozenset(
    getattr(errno, name, 0)
    for name in (
        "ECONNABORTED", "ECONNRESET", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH", "ENONET", "ENOPROTOOPT",
        "EOPNOTSUPP", "EPERM", "EPIPE", "EPROTO", "ETIMEDOUT",
    )
)  # fmt: skip
"""What `accept` says of the connection that it takes from the line: it has gone, its network has, or a firewall forbids
it (accept(2))."""
_refusals: Final = Refusals()


class PortPlace:
    """A connection's, at the port that accepted it."""

    def __init__(self, port: Port, address: str) -> None:
        self._port = port
        self.address = address
        self.endpoint: Endpoint | None = None
        self.handshake: Handshake | None = None
        """While it is in one."""
        self.given_up = False
        """It has to go before it stands."""

    def let_in(self) -> None:
        """It is no stranger any more. Raises Overloaded when as many are in as may be."""
        places = self._port.places
        if not places.take(self):
            raise Overloaded(
                f"{places.let_in_max} connections are open (limits.{self._port.limit})", limit=self._port.limit
            )

    def went_on(self) -> None:
        """It has done a step towards being let in."""
        self._port.places.went_on(self)

    def closed(self) -> None:
        """Its descriptor is closed. Idempotent."""
        self._port.closed(self)


class Port:
    """A port that is listened at. `lines`: where TLS handshakes wait for their turns, if they do; `limit`: the
    setting that says how many may be let in; `unacked_ms`: of what it accepts, see `dialling`."""

    def __init__(
        self,
        factory: Callable[[PortPlace], Endpoint],
        places: PortPlaces[PortPlace],
        *,
        tls: ssl.SSLContext | None = None,
        lines: LoopLines | None = None,
        limit: str = "max_connections",
        unacked_ms: int | None = None,
    ) -> None:
        self.places = places
        self.limit = limit
        self.address = ("", 0)
        """Where it listens."""
        self._factory = factory
        self._tls = tls
        self._lines = lines
        self._unacked_ms = unacked_ms
        self._sockets: list[socket.socket] = []
        self._server: asyncio.AbstractServer | None = None  # of a loop that has no sockets
        self._loop = asyncio.get_running_loop()
        self._spare: int | None = None
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._dropped: set[PortPlace] = set()
        self._connecting: dict[asyncio.Task[None], PortPlace] = {}

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError."""
        self._sockets = await _bound(host, port)
        self.address = self._sockets[0].getsockname()[:2]
        self._keep_spare()
        for each in self._sockets:
            if self._unacked_ms is not None:
                end_unacked(each, self._unacked_ms)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """No more connections; those that stand stay, and those that are in a handshake end. Idempotent."""
        for place in self._connecting.values():
            self._give_up(place)
        for timer in self._resting.values():
            timer.cancel()
        for each in self._sockets:
            self._loop.remove_reader(each)
            each.close()
        self._sockets.clear()
        if self._server is not None:
            self._server.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def come(self, address: str) -> PortPlace:
        """Somebody has connected; perhaps another one goes for it."""
        place = PortPlace(self, address)
        if (goes := self.places.come(place, address)) is not None:
            self._drop(goes, Overloaded("others wait to be let in; greet and log in at once", limit="max_strangers"))
        return place

    def made(self, place: PortPlace) -> Endpoint:
        """The end of a connection that stands."""
        place.endpoint = made = self._factory(place)
        made.on_closed = place.closed
        return made

    def closed(self, place: PortPlace) -> None:
        self.places.leave(place)
        self._dropped.discard(place)
        place.endpoint = None

    # --- accepting ---

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _PEERS:
                    continue
                self._cannot_accept(listening, error)
                return
            self._connect(accepted, peer[0] if peer else "")
        self._rest(listening, PAUSE_S)

    def _connect(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # it is gone already
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        place = self.come(address)
        task = self._loop.create_task(self._begin(place, accepted))
        self._connecting[task] = place
        task.add_done_callback(self._connecting.pop)

    async def _begin(self, place: PortPlace, accepted: socket.socket) -> None:
        """Until it stands, or has ended."""
        try:
            if place.given_up:
                return
            if self._tls is None:
                await self._loop.connect_accepted_socket(lambda: self.made(place), accepted)
            else:
                await self._shake_hands(place, accepted, self._tls)
        except OSError:
            pass  # the other side's; what was wrong with TLS is told by `wire.tls`
        except BaseException:
            place.given_up = True
            raise
        finally:
            place.handshake = None
            if place.endpoint is None or not place.endpoint.stands:
                accepted.close()
                place.closed()
            elif place.given_up:
                place.endpoint.abort()

    async def _shake_hands(self, place: PortPlace, accepted: socket.socket, tls: ssl.SSLContext) -> None:
        """Raises OSError: it failed."""
        place.handshake = handshake = Handshake(self._lines, place.went_on)
        try:
            await self._loop.connect_accepted_socket(lambda: handshake, accepted)
            carries = await handshake.over(tls, shutdown_s=LINGER_S)
            handshake.hand_over(carries, self.made(place))
        except BaseException:
            handshake.abort()
            raise

    def _drop(self, place: PortPlace, error: MirrorlogError) -> None:
        """It has no place any more; it is told why, if that takes no time."""
        if place.endpoint is None or not place.endpoint.stands:
            self._give_up(place)
        elif len(self._dropped) < DROPPED_MAX:
            self._dropped.add(place)
            place.endpoint.drop(error, DROP_S)
        else:
            place.endpoint.abort()

    def _give_up(self, place: PortPlace) -> None:
        place.given_up = True
        if place.handshake is not None:
            place.handshake.abort()

    # --- descriptors ---

    def _cannot_accept(self, listening: socket.socket, error: OSError) -> None:
        reason = error.strerror or str(error)
        if _refusals.is_news(reason):
            logger.warning(
                "cannot_accept reason=%r strangers=%s let_in=%s; raise the limit of open files",
                reason, self.places.strangers, self.places.let_in,
            )  # fmt: skip
        if (goes := self.places.oldest()) is not None:
            self.places.leave(goes)
            self._drop(goes, Overloaded("this node has no more files", limit="open files"))
        if error.errno in _NO_DESCRIPTOR and self._spare is not None:
            self._refuse_one(listening)
        if error.errno not in _NO_DESCRIPTOR or self._spare is None:
            self._rest(listening, REST_S)

    def _refuse_one(self, listening: socket.socket) -> None:
        """The one that waits longest. Whoever else opens a file may be quicker than this."""
        assert self._spare is not None
        os.close(self._spare)
        self._spare = None
        with contextlib.suppress(OSError):
            listening.accept()[0].close()
        self._keep_spare()

    def _keep_spare(self) -> None:
        with contextlib.suppress(OSError):  # then the next one that cannot be accepted makes the port rest
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _rest(self, listening: socket.socket, for_s: float) -> None:
        self._loop.remove_reader(listening)
        self._resting[listening] = self._loop.call_later(for_s, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        del self._resting[listening]
        if self._spare is None:
            self._keep_spare()
        self._loop.add_reader(listening, self._accept, listening)


async def listen(
    address: str,
    factory: Callable[[PortPlace], Endpoint],
    places: PortPlaces[PortPlace],
    tls: ssl.SSLContext | None = None,
    *,
    lines: LoopLines | None = None,
    limit: str = "max_connections",
    unacked_ms: int | None = None,
) -> Port:
    """Accept at `host:port`; see `Port`. Raises PortTaken naming the address and what to do."""
    port = Port(factory, places, tls=tls, lines=lines, limit=limit, unacked_ms=unacked_ms)
    try:
        await port.open(*split_address(address))
    except OSError as error:
        raise _taken(address, error) from None
    return port


async def check_free(address: str, *, within_s: float = 0.0) -> None:
    """Whether `listen` will get the address, before anything is done that a node which cannot listen should not do.
    `within_s`: how long who has it may take to let it go. Raises PortTaken."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while True:
        try:
            port = await listen(address, _nobody, PortPlaces(strangers_max=1, per_address_max=1, let_in_max=0))
        except PortTaken:
            if loop.time() >= give_up_at:
                raise
            await asyncio.sleep(_CHECK_AGAIN_S)
        else:
            port.close()
            return


def _nobody(place: PortPlace) -> Endpoint:
    raise ConnectionLost("this port is not served yet")


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Listening sockets at all addresses of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, place in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            sockets.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(place)
            made.listen(BACKLOG)
            made.setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _taken(address: str, error: OSError) -> PortTaken:
    return PortTaken(f"cannot listen on {address}: {error.strerror or error}; free it or bind another one")


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `host:port`. A name is not looked up, but for `localhost`."""
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
