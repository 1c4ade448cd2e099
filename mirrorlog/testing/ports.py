"""Free loopback ports for nodes that may be down for a while and come back on the same port.

They are taken from below the range that the kernel gives to outgoing connections. A port from within it can be lost
while its node is down: another connection may get it, or a client that keeps trying to reach the dead node may get it
as its own source port and, on loopback, connect to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mirrorlog.errors import PortTaken

HOST: Final = "127.0.0.1"

_LOWEST: Final = 15_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_DEFAULT: Final = 32_768
_ATTEMPTS_PER_PORT: Final = 50


def free_ports(count: int, *, rather: Sequence[int] = ()) -> list[int]:
    """`count` different ports that nobody has bound just now, those of `rather` in their places where they are free.
    Raises PortTaken when too few are found.

    Another process may take one before it is used: who starts a server on it tries again with others.
    """
    candidates = range(_LOWEST, _ephemeral_begin())
    found: list[int] = []
    with contextlib.ExitStack() as held:
        tried: set[int] = set()
        for _ in range(count * _ATTEMPTS_PER_PORT):
            if len(found) == count:
                break
            wanted = next((each for each in rather[len(found) : len(found) + 1] if each not in tried), 0)
            tried.add(wanted)
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # A port below the range is tried as it is; with none below, the kernel chooses.
            with contextlib.suppress(OSError):
                probe.bind((HOST, wanted or (random.choice(candidates) if candidates else 0)))
                found.append(probe.getsockname()[1])
    if len(found) < count:
        raise PortTaken(f"{count} free ports on {HOST} are needed, {len(found)} were found")
    return found


def _ephemeral_begin() -> int:
    try:
        return int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_DEFAULT
