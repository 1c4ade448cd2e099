"""Bytes per second over the last few seconds, from a handful of numbers."""

from __future__ import annotations

from typing import Final

_WINDOW_S: Final = 2.0


class RateMeter:
    """Counts into a window; the rate is that of the last full window and the running one. Pure."""

    __slots__ = ("_before", "_counted", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._counted = 0
        self._before = 0.0

    def count(self, size: int, now: float) -> None:
        if now - self._since >= _WINDOW_S:
            self._turn(now)
        self._counted += size

    def per_second(self, now: float) -> float:
        self._turn(now)
        elapsed = now - self._since
        share = elapsed / _WINDOW_S
        return self._before * (1 - share) + self._counted / _WINDOW_S

    def _turn(self, now: float) -> None:
        elapsed = now - self._since
        if elapsed >= _WINDOW_S:
            # A window that ended long ago says nothing about the present.
            self._before = self._counted / _WINDOW_S if elapsed < 2 * _WINDOW_S else 0.0
            self._since, self._counted = now, 0
