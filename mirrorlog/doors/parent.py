"""Tells when the process that started this one is gone, by a pipe whose other end it holds open.

Rejected: PR_SET_PDEATHSIG, which is Linux only and fires at the end of the starting thread.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable
from typing import IO, Any


class _EndOfInput(asyncio.Protocol):
    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()


async def watch_parent(gone: Callable[[], None], stdin: IO[Any] | None = None) -> bool:
    """Call `gone` (once or twice) when standard input ends. False when it is no pipe: a shell, or systemd."""
    stdin = stdin or sys.stdin
    mode = os.fstat(stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    await asyncio.get_running_loop().connect_read_pipe(lambda: _EndOfInput(gone), stdin)
    return True
