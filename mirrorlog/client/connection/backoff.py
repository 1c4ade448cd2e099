"""How long to pause before trying again. Pure.

The first pause is short, because a cluster may have another master within a tenth of a second; each one is a tenth
longer than the one before. So a pause is the first one and a tenth of what the trouble has lasted: what waits for a new
master finds it half of that later, on average, than it could have. A trouble of minutes costs some five attempts a
second. Rejected: doubling. It reaches the longest pause in a moment, and adds as much as the failover takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 0.25
BACKOFF_GROWTH: Final = 1.1


class Backoff:
    """Pauses between attempts. `jitter()` gives 0..1: a pause is between half of its length and the whole."""

    __slots__ = ("_jitter", "_pause_s")

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._pause_s = BACKOFF_S_MIN

    def next_s(self) -> float:
        """The next pause, s."""
        pause_s = self._pause_s
        self._pause_s = min(BACKOFF_GROWTH * pause_s, BACKOFF_S_MAX)
        return pause_s * (0.5 + self._jitter() / 2)

    def reset(self) -> None:
        """What is tried next has not failed yet."""
        self._pause_s = BACKOFF_S_MIN
