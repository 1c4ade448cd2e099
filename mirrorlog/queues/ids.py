"""The ids of queues: a block of numbers for each log, given out one after another and never twice. Pure.

A queue takes its id along when it moves (decision 0050). So an id says in which log a queue was declared, and not where
it is: a log has *visitors*, whose ids are of other blocks, and lacks some of its own that are elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

IDS_PER_LOG: Final = 1 << 24
"""Queue id = number of the log << 24 | number of the queue in it, from 1."""


def id_base_of(log_number: int) -> int:
    """Below all queue ids of the log with this number."""
    return log_number * IDS_PER_LOG


def log_number_of(queue_id: int) -> int:
    """The number of the log in which the queue with this id was declared."""
    return queue_id // IDS_PER_LOG


class IdBlock:
    """What a log has given out. `base`: see `id_base_of`."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._first = base
        self.highest = self._first
        """The largest id that was ever given out; none is below that of an earlier log's."""
        # The largest of queues that are gone for good.
        self._gone = self._first
        # (log offset, largest id) of the newest confirmed checkpoint or jump, and of those behind it.
        self.told_at: deque[tuple[int, int]] = deque()

    def given_before(self, number: int) -> None:
        """An earlier log of the same number has given out those up to this number."""
        self._first = max(self._first, self.base + number)
        self.highest = max(self.highest, self._first)

    def owns(self, queue_id: int) -> bool:
        """Whether it is for this log to give out."""
        return self._first < queue_id < self.base + IDS_PER_LOG

    @property
    def count(self) -> int:
        """How many this log has given out."""
        return self.highest - self._first

    @property
    def next(self) -> int | None:
        """The next one; None when all are given out."""
        following = self.highest + 1
        return following if following < self.base + IDS_PER_LOG else None

    def given(self, queue_id: int) -> None:
        """It is a queue's."""
        if queue_id > self.highest and self.owns(queue_id):
            self.highest = queue_id

    def gone(self, queue_id: int) -> None:
        """Its queue is there no more, and that is confirmed."""
        if queue_id > self._gone and self.owns(queue_id):
            self._gone = queue_id

    def told(self, log_offset: int, highest: int) -> None:
        """The batch at `log_offset` says that all ids up to this one were given out."""
        self.told_at.append((log_offset, highest))
        self.highest = max(self.highest, highest)

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while len(self.told_at) > 1 and self.told_at[1][0] < log_offset:
            self.told_at.popleft()

    def cut(self, log_offset: int, left: Iterable[int]) -> None:
        """The log now ends at `log_offset`; `left`: the ids of all queues that it has told of."""
        while self.told_at and self.told_at[-1][0] >= log_offset:
            self.told_at.pop()
        told = self.told_at[-1][1] if self.told_at else self._first
        self.highest = max(told, self._gone, *(each for each in left if self.owns(each)), self._first)
