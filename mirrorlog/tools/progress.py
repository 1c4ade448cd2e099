"""How far a walk over a large log has come, on stderr, while somebody is there to look at it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

from mirrorlog.tools.output import bytes_text

_SHOWN_EVERY_S: Final = 0.5
_LOOKED_EVERY_BYTES: Final = 16 * 1024 * 1024


class Progress:
    """Bytes of `total` in one line that is overwritten; nothing when `out` is no terminal."""

    def __init__(
        self,
        what: str,
        first: int,
        last: int,
        *,
        out: TextIO = sys.stderr,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._first = first
        self._last = max(first, last)
        self._out = out
        self._now = now
        self._on = out.isatty()
        self._began = self._shown = now()
        # The clock is looked at once per so many bytes: a walk over small batches is a million steps a second.
        self._next = first + _LOOKED_EVERY_BYTES if self._on else sys.maxsize

    def reached(self, log_offset: int) -> None:
        """The walk stands there."""
        if log_offset >= self._next:
            self._next = log_offset + _LOOKED_EVERY_BYTES
            now = self._now()
            if now - self._shown >= _SHOWN_EVERY_S:
                self._shown = now
                self._show(log_offset - self._first, now - self._began)

    def _show(self, done: int, seconds: float) -> None:
        rate = f"{bytes_text(done / seconds)}/s" if seconds > 0 else ""
        total = bytes_text(self._last - self._first)
        self._out.write(f"\r\033[K{self._what}: {bytes_text(done)} of {total}, {rate}")
        self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on:
            self._out.write("\r\033[K")
            self._out.flush()
