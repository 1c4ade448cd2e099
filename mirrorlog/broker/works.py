"""The groups of one log that somebody takes from, leases from or waits in: which there are, which have something to do,
and when each is looked at next.

A group is here from the first taker to the last; before and after it is a ledger, and costs nothing. All times are in
one heap. Who is to be looked at in the next turn of the loop is kept in the order in which that was found out: a
simulated run repeats to the last callback.

Pure: `now` in, works out; `soon` asks for the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from mirrorlog.broker.gathered import Gathered
from mirrorlog.commitlog.gaps import NO_GAPS, Gaps
from mirrorlog.queues.delivery import Delivery

_SPARE: Final = 64

Key = tuple[int, str]
"""Queue id and group."""


@dataclass(slots=True)
class Work:
    """A group that somebody takes from. `planned`: when it is looked at next. `refused`: a change of it was. `gaps`:
    those of its queue that are settled in it."""

    key: Key
    delivery: Delivery
    gathered: Gathered = field(default_factory=Gathered)
    planned: float = inf
    refused: bool = False
    gaps: Gaps = NO_GAPS


class WorkTable:
    """`soon`: has `awakened` asked for in a turn of the loop to come."""

    def __init__(self, soon: Callable[[], None]) -> None:
        self._soon = soon
        self._works: dict[Key, Work] = {}
        # In the order in which they came, as those that are awake.
        self._of_queue: dict[int, dict[str, None]] = {}
        self._awake: dict[Key, None] = {}
        self._times: list[tuple[float, Key]] = []
        self._any_refused = False

    # --- which there are ---

    def __len__(self) -> int:
        return len(self._works)

    def get(self, key: Key) -> Work | None:
        return self._works.get(key)

    def has(self, work: Work) -> bool:
        """Whether it is still this one that stands for its group."""
        return self._works.get(work.key) is work

    def all(self) -> list[Work]:
        return list(self._works.values())

    def of_queue(self, queue_id: int) -> list[Work]:
        return [self._works[queue_id, group] for group in self._of_queue.get(queue_id, ())]

    def add(self, work: Work) -> None:
        queue_id, group = work.key
        self._works[work.key] = work
        self._of_queue.setdefault(queue_id, {})[group] = None

    def remove(self, work: Work) -> None:
        queue_id, group = work.key
        del self._works[work.key]
        groups = self._of_queue[queue_id]
        del groups[group]
        if not groups:
            del self._of_queue[queue_id]
        self._awake.pop(work.key, None)

    def clear(self) -> None:
        for each in (self._works, self._of_queue, self._awake, self._times):
            each.clear()

    # --- which have something to do ---

    @property
    def awake(self) -> bool:
        """Whether any is to be looked at."""
        return bool(self._awake)

    def wake(self, work: Work) -> None:
        """It is looked at in a turn to come."""
        if self._works.get(work.key) is work:
            self._awake[work.key] = None
            self._soon()

    def wake_all(self) -> None:
        for each in self._works.values():
            self.wake(each)

    def gained(self, queue_ids: Set[int]) -> None:
        """More of these is confirmed. It is only noted who is awake by that: the turn is for the caller to ask for."""
        for queue_id in queue_ids & self._of_queue.keys() if self._of_queue else ():
            for group in self._of_queue[queue_id]:
                if self._works[queue_id, group].delivery.taken:
                    self._awake[queue_id, group] = None

    def awakened(self) -> list[Work]:
        """Those that are awake; they are so no more."""
        awake, self._awake = self._awake, {}
        return [self._works[key] for key in awake if key in self._works]

    def refuse(self, work: Work) -> None:
        """A change of it was refused; see `try_again`."""
        work.refused = self._any_refused = True

    def try_again(self) -> None:
        """Wake those that were refused."""
        for work in [each for each in self._works.values() if each.refused] if self._any_refused else ():
            work.refused = False
            self.wake(work)
        self._any_refused = False

    # --- and when ---

    def plan(self, work: Work) -> None:
        """It is looked at when its delivery is due."""
        due = work.delivery.due_at
        if due < work.planned and self._works.get(work.key) is work:
            work.planned = due
            heappush(self._times, (due, work.key))
            if len(self._times) > 2 * len(self._works) + _SPARE:
                self._times = [(each.planned, each.key) for each in self._works.values() if each.planned < inf]
                heapify(self._times)

    def come(self, now: float) -> list[Key]:
        """Those that are perhaps due; each is then asked for with `start`."""
        keys: list[Key] = []
        while self._times and self._times[0][0] <= now:
            keys.append(heappop(self._times)[1])
        return keys

    def start(self, key: Key, now: float) -> Work | None:
        """The one that is due, planned no more; None when it is not."""
        work = self._works.get(key)
        if work is None or work.planned > now:
            return None
        work.planned = inf
        return work
