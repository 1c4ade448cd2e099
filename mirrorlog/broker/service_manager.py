"""Tells systemd, or what else has started the node and listens, how the node is: sd_notify(3) in its few lines.

`NOTIFY_SOCKET` names a datagram socket; a name that begins with @ is one of Linux' abstract ones. It is
sent what it takes and holds nobody up. The watchdog is fed by the loop itself, so it bites when the loop stands
still, and a start that takes long (a log of terabytes is recovered) is given more time as long as the loop turns.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from typing import Final, Self

EXTENSION_S: Final = 60
"""How long a start may take from each time on that it is heard of."""
_TURN_S_MAX: Final = 10.0


class ServiceManager:
    """What has started this process; nothing happens where it did not ask to be told."""

    def __init__(self, address: str | None, *, watchdog_s: float | None = None) -> None:
        """`address`: of its socket. `watchdog_s`: it ends this process after a silence of so long."""
        self._socket: socket.socket | None = None
        self._address = "\0" + address[1:] if address and address.startswith("@") else address or ""
        self._watchdog_s = watchdog_s
        self._starts = True
        self._owed: list[bytes] = []
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """As `environment` says, which is cleared of it: the processes that this one starts are not the service."""
        address = environment.pop("NOTIFY_SOCKET", None)
        interval_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", str(os.getpid()))
        watched = interval_us.isdecimal() and int(interval_us) > 0 and pid == str(os.getpid())
        return cls(address, watchdog_s=int(interval_us) / 1e6 if watched else None)

    def tell(self, **facts: str | int) -> None:
        """`READY=1, STATUS="serving"`, …: see sd_notify(3)."""
        if self._socket is not None:
            self._owed.append("\n".join(f"{key}={value}" for key, value in facts.items()).encode())
            self._send_owed()

    def _send_owed(self) -> None:
        """A manager that is gone is told nothing; one that is slow to read is told later, by `watch`."""
        assert self._socket is not None
        while self._owed:
            try:
                self._socket.sendto(self._owed[0], self._address)
            except BlockingIOError:
                return
            except OSError:
                pass
            del self._owed[0]

    def starting(self) -> None:
        """Said first."""
        self.tell(STATUS="starting: the cluster and its logs are looked for")

    def ready(self, status: str) -> None:
        """The node serves. `status`: where."""
        self._starts = False
        self.tell(READY=1, STATUS=status)

    def stopping(self) -> None:
        """What is mastered here is handed over."""
        self._starts = False
        self.tell(STOPPING=1, STATUS="stopping: what is mastered here is handed over")

    async def watch(self) -> None:
        """On the loop whose standing still shall be noticed, until cancelled."""
        if self._socket is None:
            return
        turn_s = min(_TURN_S_MAX, (self._watchdog_s or 2 * _TURN_S_MAX) / 2)
        while True:
            self._send_owed()
            if self._starts and not self._owed:
                self.tell(EXTEND_TIMEOUT_USEC=EXTENSION_S * 1_000_000)
            if self._watchdog_s is not None and not self._owed:
                self.tell(WATCHDOG=1)
            await asyncio.sleep(turn_s)


NOBODY: Final = ServiceManager(None)
"""Of a node that nobody asked to be told of."""
