"""One end of a simulated TCP connection: asyncio's transport for the process, and what the kernels do with its bytes.

A direction begins in `_unsent`, the transport's own buffer, whose views are read when the kernel takes them. From then
on the bytes are the kernel's: on the way, standing still before a cut, or unread at the peer; together never more than
`KERNEL_BYTES`. What is said last in a direction, an end or a reset, comes after everything before it.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from sim.processes import Process

if TYPE_CHECKING:
    from sim.sockets import SocketNetwork, SocketServer

KERNEL_BYTES: Final = 256 * 1024
"""What one direction of a connection holds between two transports."""
HIGH_WATER_BYTES: Final = 64 * 1024
"""When a protocol is told to pause, unless it says otherwise."""
_RESENT_S_MAX: Final = 1.0
"""How long after a cut the kernel may take to send again."""

_END: Final = bytes(bytearray(b"end"))
_RESET: Final = bytes(bytearray(b"reset"))
"""Told apart from what was written by identity."""


class SocketTransport(asyncio.Transport):
    """One end of a connection, and the direction that begins there.

    `gone`: the kernel has no such socket any more. Bytes written wait in `_unsent`, then count as `_in_kernel` until
    the peer has read them; `unread` is what has arrived here.
    """

    peer: SocketTransport

    def __init__(self, network: SocketNetwork, process: Process, context: Context, name: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self.machine = process.machine
        self.context = context
        self.gone = False
        self.unread: deque[bytes | memoryview] = deque()
        self._network = network
        self._loop = network.loop
        self._name = name
        self._protocol: Any = None
        self._buffered = False
        # sending
        self._unsent: deque[bytes | memoryview] = deque()
        self._unsent_bytes = 0
        self._in_kernel = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._flush_planned = False
        self._ends_writing = False
        self._last_arrival = 0.0
        self._on_way: deque[bytes] = deque()
        self._still: list[bytes] = []
        self._resend_planned = False
        self._lost_after = float("inf")
        self._said_last = False
        # receiving
        self._reading = True
        self._read_planned = False
        self._closing = False
        self._was_reset = False
        network.ends[self] = None
        process.held[self] = None

    # --- life ---

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection stands; in the process's context."""
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        protocol.connection_made(self)
        self._plan_read()

    def accepted(self, server: SocketServer) -> None:
        """The process takes it from its port; in the process's context."""
        self.begin(server.factory())

    def process_ended(self) -> None:
        """The kernel closes it for its process."""
        self._closing = True
        self._close_socket()

    def break_off(self) -> None:
        """A reset is on its way to this end; of what is under way to it only a part gets there."""
        network, peer = self._network, self.peer
        now = self._loop.now
        # A peer that is gone has nothing under way but its end.
        until = now + max(0.0, peer._last_arrival - now) * network.random.random()
        peer._lost_after = until
        at = until + network.way_s(peer.machine, self.machine)
        self._loop.call_at(at, self._met_reset, context=network.context)

    # --- writing ---

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._ends_writing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.gone or self._closing:
            return
        for data in list_of_data:
            if size := len(data):
                self._unsent.append(bytes(data) if isinstance(data, bytearray) else data)
                self._unsent_bytes += size
        if not self._flush_planned and self._unsent:
            self._flush_planned = True
            self._loop.call_soon(self._flush, context=self.context)
        if self._unsent_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        if not self._ends_writing and not self._closing:
            self._ends_writing = True
            if not self._unsent:
                self._say_last(_END)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 4 * low if low is not None else HIGH_WATER_BYTES
        self._low = low if low is not None else self._high // 4

    def _flush(self) -> None:
        """As much to the kernel as it takes; in the process's context."""
        self._flush_planned = False
        if self.gone:
            return
        if self._was_reset:
            self._lose(_reset_error())
            return
        room = KERNEL_BYTES - self._in_kernel
        if self._unsent_bytes <= room:
            data = b"".join(self._unsent)
            self._unsent.clear()
        else:
            data = self._first(room)
        self._unsent_bytes -= len(data)
        if data:
            self._in_kernel += len(data)
            self._send(data)
        self._flushed()

    def _first(self, size: int) -> bytes:
        parts: list[bytes | memoryview] = []
        while size:
            part = self._unsent.popleft()
            if len(part) > size:
                view = memoryview(part)
                self._unsent.appendleft(view[size:])
                part = view[:size]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _flushed(self) -> None:
        if self._writing_paused and self._unsent_bytes <= self._low:
            self._writing_paused = False
            self._protocol.resume_writing()
        if self._unsent:
            return
        if self._closing:
            self._lose(None)
        elif self._ends_writing:
            self._say_last(_END)

    # --- the way to the peer ---

    def _send(self, data: bytes) -> None:
        network = self._network
        random, weather = network.random, network.weather
        if len(data) > 1 and random.random() < weather.split:
            middle = random.randrange(1, len(data))
            network.seen["split"] += 1
            self._send_piece(data[:middle])
            data = data[middle:]
        self._send_piece(data)

    def _send_piece(self, data: bytes) -> None:
        network = self._network
        at = self._loop.now + network.way_s(self.machine, self.peer.machine)
        if network.weather.hiccups and network.random.random() < network.weather.hiccups:
            network.seen["hiccup"] += 1
            at += network.weather.hiccup_s * network.random.random()
        self._last_arrival = at = max(at, self._last_arrival)
        self._on_way.append(data)
        self._loop.call_at(at, self._arrive, context=network.context)

    def _say_last(self, word: bytes) -> None:
        """Nothing follows this in the direction, and it comes after all that went before."""
        if not self._said_last:
            self._said_last = True
            self._send_piece(word)

    def _arrive(self) -> None:
        """The next piece is at the peer's kernel, unless the way is cut."""
        data = self._on_way.popleft()
        network = self._network
        if self._still or not network.reaches(self.machine, self.peer.machine):
            if not self._still:
                network.seen["stood still"] += 1
            self._still.append(data)
        elif self._loop.now <= self._lost_after:
            self.peer._receive(data)

    def resend(self) -> None:
        """The way may be open again: what stood still is sent anew, some time from now. Idempotent."""
        network = self._network
        if not network.reaches(self.machine, self.peer.machine):
            return
        if self._still and not self._resend_planned:
            self._resend_planned = True
            at = self._loop.now + _RESENT_S_MAX * network.random.random() ** 2
            self._last_arrival = at = max(at, self._last_arrival)
            self._loop.call_at(at, self._go_on, context=network.context)
        if self._unsent:
            self.peer._acknowledge()

    def _go_on(self) -> None:
        self._resend_planned = False
        if self._network.reaches(self.machine, self.peer.machine):
            still, self._still = self._still, []
            for data in still:
                self.peer._receive(data)

    # --- receiving ---

    def _receive(self, data: bytes) -> None:
        if data is _RESET:
            self._met_reset()
        elif self.gone:
            if data is not _END:
                self._network.seen["sent to nobody"] += 1
                self._said_last = False
                self._say_last(_RESET)
        else:
            self._unread_gains(data)

    def _unread_gains(self, data: bytes) -> None:
        self.unread.append(data)
        if self._protocol is not None and self._reading and not self._read_planned:
            self._read_planned = True
            self._loop.enter(self.process, self.context, self._read)

    def _plan_read(self) -> None:
        if self.unread and self._reading and not self._read_planned and not self._closing:
            self._read_planned = True
            self._loop.call_soon(self._read, context=self.context)

    def _read(self) -> None:
        """What has arrived, as far as one buffer goes; in the process's context."""
        self._read_planned = False
        unread = self.unread
        if not unread or not self._reading or self._closing or self._protocol is None:
            return
        if unread[0] is _RESET:
            self._lose(_reset_error())
            return
        if unread[0] is _END:
            unread.popleft()
            if self._protocol.eof_received():
                self._reading = False
            else:
                self.close()
            return
        if self._buffered:
            self._read_into_buffer()
        else:
            data = bytes(unread.popleft())
            self._took(data)
            self._protocol.data_received(data)
        self._plan_read()

    def _read_into_buffer(self) -> None:
        unread = self.unread
        buffer = self._protocol.get_buffer(-1)
        room, taken = len(buffer), 0
        while unread and taken < room and unread[0] is not _END and unread[0] is not _RESET:
            part = unread.popleft()
            if len(part) > room - taken:
                view = memoryview(part)
                unread.appendleft(view[room - taken :])
                part = view[: room - taken]
            buffer[taken : taken + len(part)] = part
            taken += len(part)
            self._took(part)
        self._protocol.buffer_updated(taken)

    def _took(self, part: bytes | memoryview) -> None:
        self._loop.trace.mix_bytes(part)
        self.peer._in_kernel -= len(part)
        # Of little room the sender is not told, or it would send less and less at a time.
        if self.peer._unsent and 2 * self.peer._in_kernel <= KERNEL_BYTES:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """The sender learns that there is room."""
        sender = self.peer
        if sender._flush_planned or sender.gone or not self._network.reaches(self.machine, sender.machine):
            return
        sender._flush_planned = True
        self._loop.call_soon(sender._flush, context=sender.context)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._plan_read()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    # --- ending ---

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._unsent:
                self._lose(None)

    def abort(self) -> None:
        if not self.gone:
            self._closing = True
            self._unsent.clear()
            self._unsent_bytes = 0
            self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def _met_reset(self) -> None:
        """Found out by the next read or write."""
        if self.gone or self._was_reset:
            return
        self._network.seen["reset"] += 1
        self._was_reset = self._said_last = True  # nobody is told
        # What came before it can still be read, or goes with it: systems differ.
        if self._network.random.random() < 0.5:
            self.unread.clear()
        self._unread_gains(_RESET)

    def _lose(self, error: Exception | None) -> None:
        """Close the socket now, and tell the protocol soon; in the process's context."""
        if not self.gone:
            self._close_socket()
            self._loop.call_soon(self._tell_lost, error, context=self.context)

    def _tell_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)

    def _close_socket(self) -> None:
        if self.gone:
            return
        self.gone = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self.process.held.pop(self, None)
        self._network.ends.pop(self, None)
        if self._network.has_power(self.machine):
            left = any(part is not _END for part in self.unread)
            if left and not self._was_reset:
                self._said_last = False
            self._say_last(_RESET if left else _END)
        else:
            self._still.clear()

    # --- facts ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer._name
        return self._name if name == "sockname" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def __repr__(self) -> str:
        return f"<{self._name} to {self.peer._name}>"


def _reset_error() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
