"""Fair turns on a node's loop: how much a connection may use of it at once, and who waits in line for more. Pure.

Connections of one class share a `LoopLine`. In each of its turns it has so much time; a connection gets a slice of
that. If it has more to say it waits in line, and what it has sent stays in its kernel's buffer. A line's turn is taken
once per turn of the loop, so members' frames, timers and everybody else come between two of them.

In line are two rows. Who has used little of the loop lately stands in the first and is served before the others of the
second, but for one of those: so a client that asks now and then does not wait behind fifty that never stop, and those
wait for each other only (as fq_codel does with packets). A frame is not cut. One that takes longer than the slice
leaves a debt, and its connection sits out one round of the second row for each slice of that, or as much time (deficit
round robin). With nobody else in line debts are forgiven: a loop that has nothing better to do works.

Rejected: budgets by frames alone (a frame costs from 8 µs to 10 ms), and one line for all (who has not logged in has
no claim on the time of those who have).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

LIGHT_PART: Final = 0.05
"""Who uses less of the loop's time than this, over time, is served before the others."""
LIGHT_BURST_S: Final = 0.02
"""How far ahead of that part one may be: by 1 ms of work."""
HEAVY_S_MAX: Final = 1.0
"""After so long without work everybody is light again, whatever it did."""


class Budget(NamedTuple):
    """Of a class. `turn_s`: of one turn of its line, for all in it; `slice_s` and `frames`: of one connection at once;
    `pause_s`: between two turns, 0 for no longer than a turn of the loop."""

    turn_s: float
    slice_s: float
    frames: int
    pause_s: float = 0.0


KNOWN: Final = Budget(turn_s=0.002, slice_s=0.0005, frames=64)
STRANGER: Final = Budget(turn_s=0.0005, slice_s=0.00025, frames=4, pause_s=0.003)
"""Every 3 ms: all strangers together have a seventh of the loop, and no core for themselves."""


class Share:
    """One connection's, in the line of its class. `serve` is called when it is its turn, and not within one."""

    __slots__ = ("debt_s", "ended_at", "heavy_until", "line", "serve", "waits")

    def __init__(self, line: LoopLine, serve: Callable[[], None]) -> None:
        self.line = line
        """Of its class; one that changes while it waits is served where it stands."""
        self.serve = serve
        self.waits: LoopLine | None = None
        """Where it stands in line now."""
        self.debt_s = 0.0
        self.ended_at = 0.0
        self.heavy_until = 0.0

    def leave(self) -> None:
        """The connection is gone."""
        if self.waits is not None:
            self.waits.drop(self)


class LoopLine:
    """Of one class of connections, on one node."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._left_s = budget.turn_s
        self._light: OrderedDict[Share, None] = OrderedDict()
        self._heavy: OrderedDict[Share, None] = OrderedDict()

    @property
    def due(self) -> bool:
        """Whether its next turn must come: somebody waits, or this one is used up."""
        return self._left_s <= 0 or bool(self._heavy or self._light)

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._light) + len(self._heavy)

    # --- connections ---

    def may_begin(self, share: Share, now: float) -> bool:
        """Whether a connection of which something came is served at once; else it waits in line from here on."""
        if share.waits is not None:
            return False
        if share.debt_s and now - share.ended_at >= share.debt_s:
            share.debt_s = 0.0
        owes = share.debt_s >= self.budget.slice_s
        if self._left_s > 0 and not owes:
            return True
        self._wait(share, light=not owes and share.heavy_until <= now + LIGHT_BURST_S)
        return False

    def slice_s(self, share: Share) -> float:
        """How long it may take from now on. A frame that has begun then is done."""
        return min(self.budget.slice_s - share.debt_s, self._left_s)

    def served(self, share: Share, began: float, now: float, *, more: bool) -> None:
        """It was, from `began` on. `more`: it has more to say, and waits in line for that."""
        took_s = now - began
        self._used(share, took_s, now)
        share.debt_s = max(0.0, share.debt_s + took_s - self.budget.slice_s)
        if more and share.waits is None:
            self._wait(share, light=False)

    def drop(self, share: Share) -> None:
        """It stands in line no more."""
        share.waits = None
        self._light.pop(share, None)
        self._heavy.pop(share, None)

    def turn(self) -> Iterator[Share]:
        """The time of the class is there anew. Gives who is served from it, one after the other, each out of the line
        by then; those who are in line at the beginning have one slice at most."""
        self._left_s = self.budget.turn_s
        light, heavy = len(self._light), len(self._heavy)
        if not light:
            self._forgive()
        yield from self._served_of(self._heavy, min(heavy, 1))
        yield from self._served_of(self._light, light)
        yield from self._served_of(self._heavy, heavy - 1)

    # --- inside ---

    def _used(self, share: Share, took_s: float, now: float) -> None:
        self._left_s -= took_s
        share.ended_at = now
        heavy_until = max(share.heavy_until, now) + took_s / LIGHT_PART
        share.heavy_until = min(heavy_until, now + HEAVY_S_MAX)

    def _wait(self, share: Share, *, light: bool) -> None:
        share.waits = self
        (self._light if light else self._heavy)[share] = None

    def _served_of(self, row: OrderedDict[Share, None], count: int) -> Iterator[Share]:
        while count > 0 and row and self._left_s > 0:
            count -= 1
            share, _ = row.popitem(last=False)
            if share.debt_s >= self.budget.slice_s:
                share.debt_s -= self.budget.slice_s
                row[share] = None
            else:
                share.waits = None
                yield share

    def _forgive(self) -> None:
        """Nobody else waits for what they sit out."""
        least_s = min((share.debt_s for share in self._heavy), default=0.0)
        if least_s >= self.budget.slice_s:
            for share in self._heavy:
                share.debt_s -= least_s
