"""When records expire next, by queue: they do whether somebody takes from their groups or not.

Runs (`queues.runs`) are looked at once, as their queue is confirmed, and of what was looked at the first end alone is
kept: a number per queue. When that has come, all groups of the queue look at what stands in it, and from then on they
know the ends of all that was confirmed until then by themselves (`queues.attributed`); what is confirmed later has the
next end of the queue. So with a time to live of an hour a confirm costs one look, however many groups there are, and a
group that nobody takes from costs nothing before something ends. Rejected: to have each group meet what is confirmed
(ten thousand groups would, at each confirm).

A group that is made may stand in front of what was looked at: its queue is looked at anew.

Pure: `now_us` in, µs UTC on the clock of the log's append times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from mirrorlog.queues.limits.attributes import QueueRuns, RunRow

_SPARE: Final = 64


class Expiries:
    """Of the queues of one log. `runs`: of a queue; `confirmed`: where what is confirmed of it ends."""

    def __init__(self, *, runs: Callable[[int], QueueRuns | None], confirmed: Callable[[int], int]) -> None:
        self._runs = runs
        self._confirmed = confirmed
        self.unlooked: dict[int, None] = {}
        """Queues of whose runs not all have been looked at, the first to be looked at first."""
        self._looked: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.moments: list[tuple[int, int]] = []
        """When the first records of queues expire (µs), and former ones of which some are no more."""

    @property
    def next_us(self) -> float:
        """When the first records expire of those that were looked at; perhaps a little earlier."""
        return self.moments[0][0] if self.moments else math.inf

    def gained(self, queue_ids: Iterable[int]) -> None:
        """More of these is confirmed."""
        for queue_id in queue_ids:
            if self._runs(queue_id) is not None:
                self.unlooked[queue_id] = None

    def anew(self, queue_id: int) -> None:
        """A group was made, or nothing could be done for it: all of its queue is looked at once more."""
        self._looked.pop(queue_id, None)
        self.gained([queue_id])

    def forget(self, queue_id: int) -> None:
        """It is there no more."""
        for known in (self.unlooked, self._looked, self._ends):
            known.pop(queue_id, None)

    def look(self, rows_max: int) -> list[int]:
        """Look at so many runs, of all queues. Those of which some expire."""
        found: list[int] = []
        while self.unlooked and rows_max > 0:
            queue_id = next(iter(self.unlooked))
            del self.unlooked[queue_id]
            rows = self._rows(queue_id, rows_max)
            rows_max -= 1 + len(rows)
            ends = [at for row in rows if (at := row.attributes.expires_at_us(row.appended_us)) is not None]
            if ends:
                found.append(queue_id)
                self._end(queue_id, min(ends))
        return found

    def come(self, now_us: int) -> list[int]:
        """The queues of which something has expired; their end is kept no more."""
        found: list[int] = []
        while self.moments and self.moments[0][0] <= now_us:
            at_us, queue_id = heappop(self.moments)
            if self._ends.get(queue_id) == at_us:
                del self._ends[queue_id]
                found.append(queue_id)
        return found

    # --- inside ---

    def _rows(self, queue_id: int, rows_max: int) -> list[RunRow]:
        """The next ones that were not looked at; the queue comes again when there may be more."""
        runs, until = self._runs(queue_id), self._confirmed(queue_id)
        rows = [] if runs is None else runs.rows(self._looked.get(queue_id, 0), until, rows_max)
        if len(rows) == rows_max:
            until = min(until, rows[-1].until)
            self.unlooked[queue_id] = None
        self._looked[queue_id] = until
        return rows

    def _end(self, queue_id: int, at_us: int) -> None:
        if self._ends.get(queue_id, math.inf) <= at_us:
            return
        self._ends[queue_id] = at_us
        heappush(self.moments, (at_us, queue_id))
        if len(self.moments) > 2 * len(self._ends) + _SPARE:
            self.moments[:] = [(at_us, queue_id) for queue_id, at_us in self._ends.items()]
            heapify(self.moments)
