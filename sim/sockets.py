"""Simulated TCP between the processes of a `VirtualLoop`: ports, connections, and what goes wrong on the way.

A host is a machine's name; `127.0.0.1` and `localhost` are the machine that asks. What is modelled, per direction of a
connection:

- Bytes take time, come in other pieces than they were written in, and never overtake each other in one connection.
- What the kernel holds (on the way, and unread at the other end) is bounded; the rest waits in the transport, whose
  protocol is told to pause. Views are read when the kernel takes them, not when they are written.
- A cut, in one direction or both, loses packets: bytes and ends stand still until it is over, and are sent again some
  time after that. Acknowledgements are lost too: while the way back is cut no more than the kernel holds gets through.
  Connecting through a cut waits, and tries again ever more seldom.
- A process that ends is closed by its kernel: what the kernel holds arrives, then an end, or a reset where bytes were
  left unread. Whoever sends to it later is reset. Its ports refuse. A machine without power says nothing at all: bytes
  to it stand still, and are answered by a reset when it is back.
- Hiccups: what was sent last takes long. The bytes of an old connection may then arrive after those of a new one, since
  the end of it is as late as they are.
- A reset from the outside: both ends learn of it at different times, with a part of what was under way.

Not modelled: bandwidth, TLS, a connection that the kernel gives up by itself.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from sim.processes import Process, current_process
from sim.transport import SocketTransport

if TYPE_CHECKING:
    from sim.loop import VirtualLoop

_HERE: Final = {"", "0.0.0.0", "127.0.0.1", "::", "::1", "localhost", None}
_FIRST_FREE_PORT: Final = 40_000
_CONNECT_RETRY_S: Final = 1.0
_CONNECT_GIVEN_UP_S: Final = 127.0


@dataclass(slots=True)
class TcpWeather:
    """`delay_s`: shortest and longest way of a packet. `split`: the share of writes that arrive in pieces; `hiccups`:
    of those that take up to `hiccup_s` longer, with all that follows in the same direction of the same connection."""

    delay_s: tuple[float, float] = (0.0001, 0.001)
    split: float = 0.05
    hiccups: float = 0.0
    hiccup_s: float = 0.5


class SocketNetwork:
    """`seen` counts what happened. Faults are the methods under that heading."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.weather = TcpWeather()
        self.seen: Counter[str] = Counter()
        self.loop = loop
        self.random = random
        self.context = Context()  # of nobody: packets travel whoever lives
        self.ends: dict[SocketTransport, None] = {}
        """Those that a process holds, in the order in which they were opened."""
        self._ports: dict[tuple[str, int], SocketServer] = {}
        self._free_port = count(_FIRST_FREE_PORT)
        self._cuts: set[tuple[str, str]] = set()
        self._dark: set[str] = set()
        self._longer_s: dict[tuple[str, str], float] = {}
        loop.network = self

    # --- faults ---

    def cut(self, sender: str, to: str) -> None:
        """Nothing gets through in this direction."""
        self._cuts.add((sender, to))

    def cut_off(self, those: Iterable[str], others: Iterable[str]) -> None:
        """Nothing gets through between the two groups."""
        others = list(others)
        for one in those:
            for other in others:
                self._cuts |= {(one, other), (other, one)}

    def lengthen(self, sender: str, to: str, seconds: float) -> None:
        """The way in this direction."""
        self._longer_s[sender, to] = seconds

    def heal(self) -> None:
        """Everything gets through, at the usual pace."""
        self._cuts.clear()
        self._longer_s.clear()
        self.weather = TcpWeather()
        self._send_again()

    def mend(self, one: str, other: str) -> None:
        """Take back the cuts between these two."""
        self._cuts -= {(one, other), (other, one)}
        self._send_again()

    def reset(self, one: str, other: str) -> int:
        """Something on the way ends all connections between the two; how many there were."""
        found = [end for end in self.ends if end.machine == one and end.peer.machine == other]
        for end in found:
            end.break_off()
            end.peer.break_off()
        self.seen["reset from outside"] += len(found)
        return len(found)

    def darken(self, machine: str) -> None:
        """It loses its power: its processes have been killed, and it answers nobody until `lighten`."""
        self._dark.add(machine)

    def lighten(self, machine: str) -> None:
        """It has power again."""
        self._dark.discard(machine)
        self._send_again()

    def has_power(self, machine: str) -> bool:
        return machine not in self._dark

    def reaches(self, sender: str, to: str) -> bool:
        """Whether packets get there."""
        return (sender, to) not in self._cuts and to not in self._dark

    # --- what the loop asks for ---

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int | None) -> SocketServer:
        """Raises OSError when the port is taken."""
        process = current_process()
        assert process is not None, "the world listens nowhere"
        machine = process.machine
        if host not in _HERE and host != machine:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        port = port or next(self._free_port)
        if (machine, port) in self._ports:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = SocketServer(self, factory, process, port)
        self._ports[machine, port] = server
        return server

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int | None
    ) -> tuple[SocketTransport, asyncio.BaseProtocol]:
        """Raises ConnectionRefusedError, and TimeoutError after two minutes without an answer."""
        process = current_process()
        assert process is not None, "the world connects to nobody"
        here, there = process.machine, process.machine if host in _HERE else str(host)
        await self._knock(here, there)
        server = self._ports.get((there, port or 0))
        back_s = self.way_s(there, here)
        if server is None:
            await asyncio.sleep(back_s)
            self.seen["refused"] += 1
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ({there!r}, {port})")
        near = SocketTransport(self, process, copy_context(), (here, next(self._free_port)))
        far = SocketTransport(self, server.process, server.context.copy(), (there, server.port))
        near.peer, far.peer = far, near
        self.seen["connected"] += 1
        self.loop.call_soon(far.accepted, server, context=far.context)
        try:
            await asyncio.sleep(back_s)
            protocol = factory()
            near.begin(protocol)
        except BaseException:
            near.process_ended()
            raise
        return near, protocol

    async def _knock(self, here: str, there: str) -> None:
        """Until somebody or nobody is there."""
        again_s = _CONNECT_RETRY_S
        while True:
            await asyncio.sleep(self.way_s(here, there))
            if self.reaches(here, there) and self.reaches(there, here):
                return
            self.seen["knocked in vain"] += 1
            if again_s > _CONNECT_GIVEN_UP_S:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(again_s)
            again_s *= 2

    def way_s(self, sender: str, to: str) -> float:
        """How long the next packet takes."""
        low, high = self.weather.delay_s
        delay = low + (high - low) * self.random.random()
        return delay + self._longer_s.get((sender, to), 0.0) if self._longer_s else delay

    def free(self, server: SocketServer) -> None:
        self._ports.pop((server.process.machine, server.port), None)

    def _send_again(self) -> None:
        """What stood still and can go on does so, each connection some time from now."""
        for end in self.ends:
            for each in (end, end.peer):
                each.resend()


class _Socket:
    """What `Server.sockets` are asked for."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *_: int) -> None:
        """What options change is not modelled."""


class SocketServer(asyncio.AbstractServer):
    """A port that listens. `process`: whose it is."""

    def __init__(
        self, network: SocketNetwork, factory: Callable[[], asyncio.BaseProtocol], process: Process, port: int
    ) -> None:
        self.factory = factory
        self.process = process
        self.port = port
        self.context = copy_context()
        self.sockets: tuple[_Socket, ...] = (_Socket((process.machine, port)),)
        self._network = network
        process.held[self] = None

    def close(self) -> None:
        self.process.held.pop(self, None)
        self.process_ended()

    def process_ended(self) -> None:
        if self.sockets:
            self.sockets = ()
            self._network.free(self)

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def wait_closed(self) -> None:
        """Returns at once, as asyncio's does in Python 3.11."""

    async def start_serving(self) -> None:
        """It does already."""

    async def serve_forever(self) -> None:
        """Until it is cancelled."""
        await self._network.loop.create_future()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop
