"""Whose turn it is: those who can take records now, by priority, and then by who was served longest ago.

A heap; whoever has no room leaves it and comes back when it has. Equal ones take turns however fast one of them
settles, and a thousand who wait cost a turn nothing. Pure.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import Final

_SPARE: Final = 64


class Turns:
    """Of takers by their numbers."""

    __slots__ = ("_heap", "_ready", "_serial", "_served", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._ready: dict[int, tuple[int, int]] = {}
        self._served: dict[int, int] = {}
        self._serial = 0
        self._waiting: Counter[int] = Counter()

    def __len__(self) -> int:
        """How many can take something."""
        return len(self._ready)

    def ready(self, number: int, priority: int) -> None:
        """It can take something now; again is no change."""
        if number in self._ready:
            return
        if number not in self._served:
            self.served(number)
        serial = self._served[number]
        self._ready[number] = (priority, serial)
        self._waiting[priority] += 1
        heappush(self._heap, (-priority, serial, number))
        if len(self._heap) > 2 * len(self._ready) + _SPARE:
            # Entries of those who left it while a higher priority stayed on top.
            self._heap = [(-priority, serial, each) for each, (priority, serial) in self._ready.items()]
            heapify(self._heap)

    def served(self, number: int) -> None:
        """It was given something, and is the last of its equals from now on. While it is not `ready`."""
        self._serial += 1
        self._served[number] = self._serial

    def not_ready(self, number: int) -> None:
        """It can take nothing now."""
        known = self._ready.pop(number, None)
        if known is not None:
            self._waiting[known[0]] -= 1

    def forget(self, number: int) -> None:
        """It is gone."""
        self.not_ready(number)
        self._served.pop(number, None)

    def next(self) -> int | None:
        """Whose turn it is; it stays ready."""
        while self._heap:
            priority, serial, number = self._heap[0]
            if self._ready.get(number) == (-priority, serial):
                return number
            heappop(self._heap)
        return None

    def equals(self, number: int) -> int:
        """How many of its priority are ready, itself among them."""
        known = self._ready.get(number)
        return self._waiting[known[0]] if known is not None else 0
