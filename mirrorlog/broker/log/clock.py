"""The clock that a master stamps its batches with, and by which times to live and delays end: µs UTC, and never behind
the log.

Append times never go back. So where the log is ahead of the node's clock (that was ahead itself for a moment and was
set right, or the master before had another opinion) its own time goes on from its last append: if it stood until the
others had reached it, what waits for a second would wait for a day. A clock that was ahead while nothing was appended
has left no trace. No safety rests on any of this.

Thin: clocks are read here, and nowhere else for a log that this node masters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_JUMP_US = 100_000


def now_us() -> int:
    """The node's clock, µs UTC."""
    return time.time_ns() // 1000


class TimedLog(Protocol):
    """A log: when it was appended to last, µs UTC."""

    @property
    def last_append_time_us(self) -> int: ...


class LogClock:
    """`wall_us`: the node's clock, µs UTC; `now`: one that never goes back, s."""

    def __init__(self, log: TimedLog, *, wall_us: Callable[[], int], now: Callable[[], float]) -> None:
        self._log = log
        self._wall_us = wall_us
        self._now = now
        self._last = log.last_append_time_us
        self._last_at = self._seen_at = now()
        self._seen = 0
        self._ahead: int | None = None

    def __call__(self) -> int:
        """What time it is."""
        # The node's clock first: held up between the two, the log's own time is behind it, and not ahead for good.
        wall_us, now, last = self._wall_us(), self._now(), self._log.last_append_time_us
        if last != self._last:
            # What was read for an append is stamped in the same step: the time goes on from that reading.
            self._last, self._last_at = last, self._seen_at if last == self._seen else now
        self._seen, self._seen_at = max(wall_us, last + int((now - self._last_at) * 1_000_000)), now
        return self._seen

    def jumped(self) -> bool:
        """Whether it was set, at once or little by little, since this was said last: what was planned by it comes at
        another time."""
        ahead = self() - int(self._seen_at * 1_000_000)
        if self._ahead is not None and abs(ahead - self._ahead) <= _JUMP_US:
            return False
        first, self._ahead = self._ahead is None, ahead
        return not first
