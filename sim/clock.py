"""Virtual time: what is to happen, in order; one seed, one order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

AT_ONCE_MAX: Final = 100_000
"""Events at one moment; more of them are taken for a loop that time does not get out of."""


class Clock:
    """`now`: seconds, from 0. Events at the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = count()
        self._at_once = 0

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event; it cannot be taken back, so it looks itself whether it still matters."""
        heappush(self._events, (self.now + seconds, next(self._serial), event))

    def run_until(self, end: float) -> None:
        """Let everything happen that is planned up to `end`, and what follows from it. Raises AssertionError when time
        stands still."""
        while self._events and self._events[0][0] <= end:
            self._next()
        self.now = end

    def run_while(self, condition: Callable[[], bool], *, until: float) -> bool:
        """As long as the condition holds; whether it ceased to before `until`. Raises as `run_until`."""
        while condition():
            if not self._events or self._events[0][0] > until:
                self.now = max(self.now, until)
                return False
            self._next()
        return True

    def _next(self) -> None:
        at, _, event = heappop(self._events)
        self._at_once = self._at_once + 1 if at == self.now else 0
        assert self._at_once < AT_ONCE_MAX, f"time stands still at {at}"
        self.now = at
        event()
