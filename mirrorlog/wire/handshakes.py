"""The accepting side's TLS handshakes, in turns: what one takes is its line's time. Thin.

The loop's own TLS answers a greeting of 500 bytes as soon as it has come, which takes from 0.3 to 1 ms; the sender only
copies bytes. So an end stands between the socket's transport and that TLS until the handshake is over. What comes waits
in the strangers' line, is handed on in its turn, and the time of that is charged. Meanwhile nothing more is read.

Rejected: to begin handshakes in turns and let them go on by themselves (hundreds that have begun may send what is dear
in the same moment), and a thread for them (the loop's TLS takes no connection that another one has shaken hands with).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.tls import HANDSHAKE_S

logger = logging.getLogger(__name__)

ROOM_BYTES: Final = 16 * 1024
"""Handed on at once: the largest record of TLS. Greetings have some hundred bytes."""
BEGIN_S: Final = 0.0002
"""What it costs to make the loop's TLS of a connection: charged, for it is not done in one go."""


class Handshake(asyncio.BufferedProtocol):
    """Of one connection, whose transport has this as its protocol. `went_on`: called after each step."""

    def __init__(self, lines: LoopLines | None, went_on: Callable[[], None]) -> None:
        self._lines = lines
        self._share = None if lines is None else lines.newcomer(self._serve)
        self._went_on = went_on
        self._transport: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None
        self._room = memoryview(b"")
        self._size = 0
        self._early = _Early()
        self._starting: asyncio.Future[asyncio.Transport | None] | None = None
        self._ended = False
        self._begins = asyncio.Event()
        """Its first bytes are here, and it is their turn; or it has ended."""

    async def over(self, context: ssl.SSLContext, *, shutdown_s: float) -> asyncio.Transport:
        """When it is: what carries the plain bytes; nothing is read of it until `hand_over`. Raises OSError: it
        failed."""
        async with asyncio.timeout(HANDSHAKE_S):
            await self._begins.wait()
            transport = self._transport
            if self._ended or transport is None:
                raise ConnectionResetError
            return await self._shake_hands(transport, context, shutdown_s)

    async def _shake_hands(
        self, transport: asyncio.Transport, context: ssl.SSLContext, shutdown_s: float
    ) -> asyncio.Transport:
        self._starting = starting = asyncio.ensure_future(
            asyncio.get_running_loop().start_tls(
                transport,
                self._early,
                context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=shutdown_s,
            )
        )
        await asyncio.sleep(0)  # it has put its own end in the place of this one
        # uvloop's does not derive from asyncio's.
        tls: asyncio.BufferedProtocol = transport.get_protocol()  # type: ignore[assignment]
        transport.set_protocol(self)
        await asyncio.sleep(0)  # it has begun, and reads on
        if self._ended or transport.is_closing():
            # Not before: TLS that begins behind its end waits for its timeout, with 256 KiB.
            tls.connection_lost(None)
            self.connection_lost(None)
        else:
            self._tls = tls
            self._step(transport, time.monotonic())
        try:
            carries = await starting
        except asyncio.CancelledError:
            if not self._ended:
                raise
        if self._ended or carries is None:
            raise ConnectionResetError
        return carries

    def hand_over(self, carries: asyncio.Transport, endpoint: asyncio.BufferedProtocol) -> None:
        """The connection is the endpoint's, with what has come behind the handshake."""
        assert self._transport is not None
        assert self._tls is not None
        if self._share is not None:
            self._share.leave()
        if self._size:
            self._step(self._transport, time.monotonic())  # it waited for its turn when the handshake was over
        self._transport.set_protocol(self._tls)
        carries.set_protocol(endpoint)
        endpoint.connection_made(carries)
        early = self._early.taken
        while early:
            room = memoryview(endpoint.get_buffer(len(early)))
            size = min(len(room), len(early))
            room[:size] = early[:size]
            endpoint.buffer_updated(size)
            early = early[size:]
        self._transport.resume_reading()
        self._let_go()

    def abort(self) -> None:
        """End it; its descriptor is closed a turn of the loop later."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    # --- the transport's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not derive from asyncio's
        if self._ended:
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = memoryview(bytearray(ROOM_BYTES))
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        assert self._transport is not None
        self._size = nbytes
        self._transport.pause_reading()
        share = self._share
        if share is None or share.line.may_begin(share, time.monotonic()):
            self._go_on(self._transport)
        if share is not None and self._lines is not None:
            self._lines.look(share.line)

    def eof_received(self) -> bool | None:
        return None if self._tls is None else self._tls.eof_received()

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        if self._share is not None:
            self._share.leave()
        if self._tls is not None:
            self._tls.connection_lost(exc)
        if self._starting is not None:
            self._starting.cancel()  # a TLS that begins without its connection would wait for ever
        self._begins.set()
        self._let_go()

    # --- inside ---

    def _let_go(self) -> None:
        """Of all that leads back here: thousands come and go, and the collector of circles comes seldom."""
        self._share = self._tls = self._transport = self._starting = None

    def _serve(self) -> None:
        """It is its turn."""
        if self._ended or self._transport is None:
            return
        try:
            self._go_on(self._transport)
        except Exception:
            logger.exception("handshake_failed")
            self.abort()

    def _go_on(self, transport: asyncio.Transport) -> None:
        now = time.monotonic()
        if self._tls is not None:
            self._step(transport, now)
        elif not self._begins.is_set():
            self._begins.set()
            if self._share is not None:
                self._share.line.served(self._share, now - BEGIN_S, now, more=False)

    def _step(self, transport: asyncio.Transport, began: float) -> None:
        assert self._tls is not None
        size, self._size = self._size, 0
        room = self._tls.get_buffer(size)
        memoryview(room)[:size] = self._room[:size]
        self._tls.buffer_updated(size)
        if self._early.taken:
            transport.pause_reading()  # what comes now is its owner's to read
        else:
            transport.resume_reading()
        if self._share is not None:
            self._share.line.served(self._share, began, time.monotonic(), more=False)
        self._went_on()


class _Early(asyncio.BufferedProtocol):
    """Keeps what comes behind the last of a handshake, in the same piece."""

    def __init__(self) -> None:
        self.taken = memoryview(b"")
        self._room = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = memoryview(bytearray(ROOM_BYTES))
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.taken = memoryview(bytes(self.taken) + self._room[:nbytes])
