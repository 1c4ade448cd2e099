"""One subscriber of an acking group: what it has in hand, for how long, and what it may have beside that.

How long is known by generations, an eighth of the consumer timeout each: a record is overdue when its generation is,
never early and at most an eighth late. So a million records in hand are a few sets of ranges, not a million times.

Pure: `now` comes in, in seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.queues.ranges import RangeSet

_GENERATIONS: Final = 8

Range = tuple[int, int]
"""[first, until), queue offsets."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What somebody subscribes with. `prefetch_records`, `prefetch_bytes`: in hand at most, above 0; a single record
    may be larger. `name`: for people."""

    number: int
    prefetch_records: int
    prefetch_bytes: int
    auto_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    name: str = ""


@dataclass(slots=True)
class Subscriber:
    """`held`: its connection does not take more at the moment. `closing`: it is given nothing any more."""

    facts: Subscription
    timeout_s: float = math.inf
    held: bool = False
    closing: bool = False
    hand: RangeSet = field(default_factory=RangeSet)
    hand_bytes: int = 0
    """Of its records: of a batch that it has in part, in proportion."""
    _generations: list[tuple[float, RangeSet]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many records more it may have."""
        if self.held or self.closing:
            return 0
        if len(self.hand) and self.hand_bytes >= self.facts.prefetch_bytes:
            return 0
        return self.facts.prefetch_records - len(self.hand)

    @property
    def room_bytes(self) -> int:
        return self.facts.prefetch_bytes - self.hand_bytes

    def give(self, first: int, until: int, size: int, now: float) -> None:
        """It has them now; `size`: bytes."""
        self.hand.add(first, until)
        self.hand_bytes += size
        self._begin(first, until, now)

    def take(self, first: int, until: int) -> None:
        """It has them no more."""
        before = len(self.hand)
        taken = self.hand.remove(first, until)
        if taken:
            self.hand_bytes -= self.hand_bytes * taken // before
            self._forget(first, until)

    def extend(self, ranges: Iterable[Range], now: float) -> None:
        """Its time for these begins anew."""
        for first, until in ranges:
            self._forget(first, until)
            self._begin(first, until, now)

    @property
    def overdue_at(self) -> float:
        """When the oldest record in its hand has been there for too long."""
        if not self._generations:
            return math.inf
        return self._generations[0][0] + self.timeout_s * (1 + 1 / _GENERATIONS)

    def _begin(self, first: int, until: int, now: float) -> None:
        if self.timeout_s == math.inf:
            return
        if not self._generations or now - self._generations[-1][0] >= self.timeout_s / _GENERATIONS:
            self._generations.append((now, RangeSet()))
        self._generations[-1][1].add(first, until)

    def _forget(self, first: int, until: int) -> None:
        empty = False
        for _, generation in self._generations:
            generation.remove(first, until)
            empty = empty or not len(generation)
        if empty:
            self._generations = [each for each in self._generations if len(each[1])]
