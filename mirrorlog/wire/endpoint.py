"""One end of a framed connection: bytes of an asyncio transport to frames of a handler, and back. Thin.

The handler decides; its MirrorlogError closes the connection after it was told to the other side. What is common to
every port is here: a stranger that speaks HTTP is answered in HTTP, a frame that has begun must be completed in time,
a peer that does not take its answers is asked nothing more until it does and cut off at a limit, and writing pauses
when the transport says so.

A close is in two steps. For the handler the connection is gone at once: nothing that it counts (links, sessions) may
hang on a peer that does not read. The socket stays for a moment, its input thrown away: closing it with bytes unread
would be a reset, and a reset takes away the answer that says what was wrong.

What is gone keeps nothing: an end and its handler know each other, and the handler's frames lie in the end's buffer, so
both let go of each other at the close. Left to the collector, which comes once in many thousand objects, 800
connections that each had sent one large frame kept 1.7 GiB.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from mirrorlog.errors import ConnectionLost, MirrorlogError, Overloaded, ProtocolError, StalledFrame
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.fairness.turns import Share
from mirrorlog.wire.frame_reader import FrameReader, sealed
from mirrorlog.wire.frames import HELLO_BYTES_MAX, Frame
from mirrorlog.wire.messages.codec import error_frame
from mirrorlog.wire.tls import why

logger = logging.getLogger(__name__)

LINGER_S: Final = 2.0
"""How long a closed connection may still take what was written to it."""
RECEIVE_S: Final = 1e-9
"""What a byte costs before it is looked at, TLS included."""

LINK_FRAME_MS: Final = 1_500
"""Between nodes, what a frame may take beside its size: as long as TCP may (`dialling.LINK_UNACKED_MS`)."""
_LINK_BYTES_PER_MS_MIN: Final = 64

REST_MS: Final = 1000
"""After so long without a frame a connection keeps no more than the least buffer."""

# CVE-2024-12254: there `writelines` of asyncio's own loop, which clients run on, never pauses who writes; `write` does.
_NEVER_PAUSED: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)

_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")


class FrameHandler(Protocol):
    """What an end does with its connection."""

    def connected(self, endpoint: Endpoint) -> None: ...

    def frame(self, frame: Frame) -> None:
        """A frame came. Its payload is valid until this returns. A MirrorlogError closes the connection."""

    def handled(self) -> None:
        """All that was received so far has been given to `frame`."""

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        """Where a large frame's bytes shall be received, see `frames.Place`; None: in the connection's own buffer."""

    def writable(self) -> None:
        """The transport takes bytes again after `Endpoint.paused`."""

    def disconnected(self, error: MirrorlogError | None) -> None:
        """The connection is gone, or is being closed; called once and nothing after it. `error` is why, None for an
        ordinary end."""


class FrameMeter(Protocol):
    """What a connection's user may take; see `quotas`."""

    def takes(self, endpoint: Endpoint, frame_type: int, size: int) -> bool:
        """Whether its next frame, with so much payload, is taken now. If not the endpoint hears by `go_on` when it may
        be."""

    def read(self, size: int) -> None:
        """It was given so many bytes of records."""

    def holds_reading(self, endpoint: Endpoint) -> bool:
        """Whether it is given no records for now; then its handler hears by `writable` when it is again."""


# Where the input of closed connections goes; nobody reads it.
_WASTE: Final = memoryview(bytearray(64 * 1024))


class Endpoint(asyncio.BufferedProtocol):
    """Frames over one transport. `frame_bytes_max` holds from `trust` on; before that, a greeting's limit."""

    def __init__(
        self, handler: FrameHandler, *, frame_bytes_max: int, outgoing_bytes_max: int, lines: LoopLines | None = None
    ) -> None:
        """`lines`: where it waits for its turns, a stranger at first; None: it is served at once, whatever it sends."""
        self.paused = False
        self.peer = self.own = "?"
        """The addresses of the other end and of this one."""
        self.name = ""
        """As RabbitMQ calls connections: from the other end to this one."""
        self.on_closed: Callable[[], None] | None = None
        """Is told once that the descriptor is closed."""
        self._handler = handler
        self._reader = FrameReader(frame_bytes_max=HELLO_BYTES_MAX, place=handler.place)
        self._frame_bytes_max = frame_bytes_max
        self._outgoing_bytes_max = outgoing_bytes_max
        self._transport: asyncio.Transport | None = None
        self._error: MirrorlogError | None = None
        self.is_local = False
        """Whether the other end is on this machine."""
        self._private = False
        self._ended = False
        self._told_gone = False
        self._linger: asyncio.TimerHandle | None = None
        self._congested = False
        self.meter: FrameMeter | None = None
        """Of whose user has limits."""
        self.held = False
        """Whether its next frame waits for its meter."""
        self._reading_paused = False
        self._partial_since: float | None = None
        self._not_read_since: float | None = None
        """While a frame has begun: since when its rest may not come."""
        self._lines = lines
        self._share: Share | None = None if lines is None else lines.newcomer(self._serve)

    # --- the handler's side ---

    def trust(self, frame_bytes_max: int | None = None) -> None:
        """The greeting was accepted: frames up to the full limit may come. `frame_bytes_max`: a larger one, of who has
        proven to be more than who usually comes."""
        self._reader.frame_bytes_max = frame_bytes_max or self._frame_bytes_max

    def check_frames(self) -> None:
        """Both sides have agreed: frames are checked from here on, in both directions (`wire.frames`)."""
        self._reader.checked = True

    def known(self, known: bool = True) -> None:
        """Who it is has been proven; or not any more."""
        if self._share is not None and self._lines is not None:
            self._share.line = self._lines.known if known else self._lines.strangers

    @property
    def takes_records(self) -> bool:
        """Whether it may be given records now; else its handler hears by `writable`."""
        return not self.paused and (self.meter is None or not self.meter.holds_reading(self))

    def go_on(self) -> None:
        """Its meter takes more."""
        self.held = False
        if self.open:
            self._come()

    def reads_on(self) -> None:
        """It may be given records again, as far as its meter goes."""
        if self.open:
            self._handler.writable()

    def unmetered(self) -> None:
        """It belongs to the cluster: from here on it is served at once. To be called in `FrameHandler.frame`."""
        self._leave_line()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._ended and not self._transport.is_closing()

    @property
    def stands(self) -> bool:
        """Whether there is a connection, be it one that lingers."""
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and has not left; 0 when it is not open."""
        return self._transport.get_write_buffer_size() if self.open and self._transport is not None else 0

    @property
    def begun_bytes(self) -> int:
        """What has come of frames that are not complete. 0 while complete ones wait for their turn: what came behind
        them is begun once that is over, and nothing more comes until then."""
        share = self._share
        waits = (self.held or (share is not None and share.waits is not None)) and self._reader.has_frame
        return self._reader.begun_bytes if self.open and not waits else 0

    def begun_s(self, now: float) -> float:
        """For how long a frame that was begun has not been complete, without the time in which nothing was read."""
        if self._partial_since is None:
            return 0.0
        return (now if self._not_read_since is None else self._not_read_since) - self._partial_since

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """Of the other side, as `ssl` gives it; None without TLS."""
        return None if self._transport is None else self._transport.get_extra_info("peercert")

    @property
    def socket(self) -> Any:
        """For its options; None where there is none."""
        return None if self._transport is None else self._transport.get_extra_info("socket")

    @property
    def tls_version(self) -> str:
        """Empty without TLS."""
        tls = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        return "" if tls is None else str(tls.version())

    @property
    def is_private(self) -> bool:
        """Whether nobody in between can read what is sent: over TLS, or within this machine."""
        return self._private

    def send(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write the parts in order; views are not copied and must not change until they are sent."""
        transport = self._transport
        if transport is None or self._ended or transport.is_closing():
            return
        parts = sealed(parts) if self._reader.checked else parts
        if _NEVER_PAUSED:
            for part in parts:
                transport.write(part)
        else:
            transport.writelines(parts)
        if self.paused and transport.get_write_buffer_size() > self._outgoing_bytes_max:
            self.abort(Overloaded(f"{self.peer} does not read what it asked for", limit="outgoing_bytes_max"))

    def close(self, error: MirrorlogError | None = None) -> None:
        """Say why, if there is a reason, and close; what was written before has a moment to get through."""
        self._end(b"" if error is None else self._said(error), error)

    def drop(self, error: MirrorlogError, wait_s: float) -> None:
        """Close, and have the descriptor free in so long, whether the other side takes what is said or not."""
        self.close(error)
        if self._transport is not None:
            if self._linger is not None:
                self._linger.cancel()
            self._linger = asyncio.get_running_loop().call_later(wait_s, self._transport.abort)

    def abort(self, error: MirrorlogError | None = None) -> None:
        """Close at once; what was not sent is lost. `error`: why, for this side: the other one would not read it."""
        if self._transport is not None:
            self._error = error or self._error
            self._transport.abort()

    def rest(self) -> None:
        """Nothing has come for a while: a buffer that a large frame made grow is given back."""
        self._reader.shrink()

    def stalled(self, now: float, timeout_ms: int) -> bool:
        """Whether a frame was begun longer ago than `timeout_ms` and is not complete; then the connection is closed."""
        if self._partial_since is None or self.begun_s(now) * 1000 < timeout_ms:
            return False
        self.close(StalledFrame(f"a frame was begun and not completed within {timeout_ms} ms"))
        return True

    def starved(self, now: float) -> bool:
        """Of a link between nodes: as `stalled`, of a frame that takes longer than its size is a reason for. Where
        bytes are lost on the way what follows becomes a part of it: such a link is deaf, and looks alive."""
        if self._partial_since is None:
            return False
        return self.stalled(now, LINK_FRAME_MS + self._reader.announced_bytes // _LINK_BYTES_PER_MS_MIN)

    # --- asyncio's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not derive from asyncio's
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        self.is_local = _is_here(peer, own)
        self._private = transport.get_extra_info("sslcontext") is not None or self.is_local
        self.peer, self.own = (f"{each[0]}:{each[1]}" if each else "?" for each in (peer, own))
        self.name = named(self.peer, self.own)
        self._handler.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _WASTE if self._ended else self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        if not self._ended:
            self._reader.received(nbytes)
            self._come(nbytes * RECEIVE_S)

    def eof_received(self) -> bool | None:
        return None

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.open:
            self._handler.writable()
            if self._congested and self.open:
                self._congested = False
                self._come()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if isinstance(exc, ssl.SSLError) and self._error is None:
            self._error = ConnectionLost(f"TLS with {self.peer} ended: {why(exc)}")
        self._gone()
        if self.on_closed is not None:
            closed, self.on_closed = self.on_closed, None
            closed()

    # --- inside ---

    def _come(self, received_s: float = 0.0) -> None:
        """Something came: it is taken, at once or when it is this connection's turn."""
        share = self._share
        if self.held:
            pass
        elif share is None:
            self._take_frames()
        elif share.line.may_begin(share, now := time.monotonic()):
            self._take_slice(share, now - received_s, now)
        self._look()

    def _serve(self) -> None:
        """It is its turn."""
        if self._share is not None and self.open:
            now = time.monotonic()
            try:
                self._take_slice(self._share, now, now)
                self._look()
            except Exception as error:
                logger.exception("turn_failed peer=%s", self.peer)
                self.abort(ProtocolError(f"internal error: {type(error).__name__}"))

    def _take_slice(self, share: Share, began: float, now: float) -> None:
        line = share.line
        more = self._take_frames(now + line.slice_s(share), line.budget.frames)
        if self._share is share:
            share.line.served(share, began, time.monotonic(), more=more and self.open and self._reader.partial)
        elif more and self.open:
            self._take_frames()

    def _look(self) -> None:
        """Read on, or not: who waits in line is not asked for more."""
        share, lines = self._share, self._lines
        waits = self._congested or self.held
        if share is not None and lines is not None:
            if share.line.due:
                lines.look(share.line)
            waits = waits or share.waits is not None
        transport = self._transport
        if waits is not self._reading_paused and transport is not None and self.open:
            self._reading_paused = waits
            if waits:
                transport.pause_reading()
            else:
                transport.resume_reading()
        partial = self._reader.partial
        if partial or self._partial_since is not None or self._not_read_since is not None:
            self._note_partial(partial)

    def _take_frames(self, until: float = 0.0, count: int = 0) -> bool:
        """Those that have been received. With a `count`: so many at most, and none that would begin after `until`;
        whether that was why it ended."""
        handler, next_frame = self._handler, self._reader.next_frame
        more = False
        try:
            while not (self.paused and self._is_congested()):
                if (self.meter is not None and self._waits_for_meter(self.meter)) or (frame := next_frame()) is None:
                    break
                self._partial_since = None
                handler.frame(frame)
                if not self.open:
                    break
                if count:
                    count -= 1
                    if not count or time.monotonic() >= until:
                        more = True
                        break
            handler.handled()
        except MirrorlogError as error:
            self._refuse(error)
        except Exception as error:
            logger.exception("connection_failed peer=%s", self.peer)
            self._refuse(ProtocolError(f"internal error: {type(error).__name__}"))
        return more

    def _waits_for_meter(self, meter: FrameMeter) -> bool:
        """What is not complete is read on."""
        ahead = self._reader.ahead
        self.held = ahead is not None and not meter.takes(self, *ahead)
        return self.held

    def _is_congested(self) -> bool:
        """Whether the peer must take answers before it is asked anything more; then reading stands still."""
        transport = self._transport
        self._congested = transport is not None and 2 * transport.get_write_buffer_size() > self._outgoing_bytes_max
        return self._congested

    def _note_partial(self, partial: bool) -> None:
        """`partial`: whether a frame has begun and is not complete."""
        if not partial:
            self._partial_since = None
        if self._partial_since is None:
            self._not_read_since = None
            if partial and not self._reading_paused:
                self._partial_since = asyncio.get_running_loop().time()
        elif self._reading_paused:
            if self._not_read_since is None:
                self._not_read_since = asyncio.get_running_loop().time()
        elif self._not_read_since is not None:
            self._partial_since += asyncio.get_running_loop().time() - self._not_read_since
            self._not_read_since = None

    def _refuse(self, error: MirrorlogError) -> None:
        first = self._reader.unread()[:4] if isinstance(error, ProtocolError) else b""
        self._end(_http_answer() if first in _HTTP_METHODS else self._said(error), error)

    def _said(self, error: MirrorlogError) -> bytes:
        said = error_frame(error)
        return b"".join(sealed([said])) if self._reader.checked else said

    def _end(self, last_words: bytes, error: MirrorlogError | None) -> None:
        transport = self._transport
        if transport is None or not self.open:
            return
        self._error = error
        self._ended = True
        self._partial_since = None
        if last_words:
            transport.write(last_words)
        if transport.is_closing():  # the write met a peer that is gone; connection_lost comes by itself
            pass
        elif transport.can_write_eof():
            with suppress(OSError):  # the peer went meanwhile
                transport.write_eof()
            if self._reading_paused:
                transport.resume_reading()
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)
        else:
            transport.close()
        self._gone()

    def _gone(self) -> None:
        self._leave_line()
        if self._told_gone:
            return
        self._told_gone = True
        handler, error = self._handler, self._error
        del self._handler  # nothing that comes from now on is for it
        self._error = None
        self._reader.release()
        handler.disconnected(None if error is None else _without_frames(error))

    def _leave_line(self) -> None:
        share, self._share = self._share, None
        if share is not None:
            share.leave()


def _without_frames(error: MirrorlogError) -> MirrorlogError:
    """Whoever keeps the error keeps nothing of where it was raised: the connection, and what it had sent."""
    error.__context__ = None
    return error.with_traceback(None)


def named(peer: str, own: str) -> str:
    """A connection between these addresses; those of IPv6 in brackets. Pure."""
    ends = ((each, *each.rpartition(":")) for each in (peer, own))
    return " -> ".join(f"[{host}]:{port}" if ":" in host else each for each, host, _, port in ends)


def _http_answer() -> bytes:
    text = b"This is mirrorlog's native port. It speaks frames, not HTTP: use its client, mqtool or the gRPC door.\n"
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % len(text) + text


def _is_here(peer: Any, own: Any) -> bool:
    """Whether the addresses of both ends, as a transport tells them, are this machine's: loopback, or the same one,
    which no packet from outside may have. IPv4 may stand within IPv6."""
    import ipaddress  # for passwords over plain connections alone

    try:
        there, here = (ipaddress.ip_address(each[0]) for each in (peer, own))
    except (ValueError, TypeError, IndexError):
        return False
    mapped = there.ipv4_mapped if isinstance(there, ipaddress.IPv6Address) else None
    return (mapped or there).is_loopback or there == here
