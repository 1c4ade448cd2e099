"""What is alive in a sealed segment, by its table and the index of the past. Blocking, on the helper that has the past.

`segment_parts` says it in sum, for the decision (`retention`); `LiveRuns` finds the batches themselves, some at a time,
for whoever appends them once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final, NamedTuple

import numpy as np

from mirrorlog.commitlog.index.past import Past, QueueExtent
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.table import SegmentTable
from mirrorlog.commitlog.retention import PART, SegmentParts
from mirrorlog.errors import IndexDoubtful

_RUNS_MAX: Final = 1024
_READ_BYTES: Final = 256 * 1024


def segment_parts(table: SegmentTable, *, last_append_time_us: int) -> SegmentParts:
    """The parts of the queues in a segment. 1,000,000 batches take a tenth of a second and 30 MB while it lasts.

    Raises IndexDoubtful and OSError.
    """
    stretches = table.stretches()
    parts = np.empty(len(stretches), PART)
    for name in ("queue_id", "base", "next", "last_time"):
        parts[name] = stretches[name]
    if len(stretches):
        lengths = table.batches()["length"].astype(np.int64)
        parts["bytes"] = np.add.reduceat(lengths, stretches["first_row"])
    return SegmentParts(table.start, table.end, last_append_time_us, parts)


class LiveRun(NamedTuple):
    """A batch of a queue that may be the only one with its records."""

    queue_id: int
    run: QueuedBatch


class LiveRuns:
    """The batches of a segment that are alive: at or above the start offset of their queue, and in no later table.

    `log_start`: where the log begins, perhaps within the segment (its master's files may end elsewhere). `begins`: the
    logged ones by queue id; `own`: the queues whose records live although the log's limits let the segment go
    (`expired`); `floors`: of others, from which queue offset on they do. Those that memory has a copy of are among
    them: only the loop knows.
    """

    def __init__(
        self,
        start: int,
        *,
        log_start: int,
        begins: Mapping[int, int],
        own: Set[int],
        expired: bool,
        floors: Mapping[int, int] = {},
    ) -> None:
        self.start = start
        self._log_start = log_start
        self._begins = begins
        self.own = own
        self.expired = expired
        self._floors = floors
        # Where the next piece begins: queue id, queue offset.
        self._at = (0, 0)

    def next_piece(self, past: Past, max_bytes: int) -> list[LiveRun]:
        """The next ones in the order of queues and queue offsets, of at least one batch; empty behind the last one.

        Raises IndexDoubtful and OSError.
        """
        table = past.tables.get(self.start)
        piece: list[LiveRun] = []
        for queue_id, base, following in self._stretches(table):
            for run in self._runs(past, table, queue_id, base, following):
                if piece and (max_bytes < run.length or len(piece) >= _RUNS_MAX):
                    return piece
                max_bytes -= run.length
                piece.append(LiveRun(queue_id, run))
                self._at = (queue_id, run.next_queue_offset)
            self._at = (queue_id, following)
        return piece

    def _stretches(self, table: SegmentTable) -> Iterator[tuple[int, int, int]]:
        """(queue id, first queue offset that counts, next one) of what is left."""
        rows = table.stretches()
        for queue_id, base, following in zip(
            *(rows[name].tolist() for name in ("queue_id", "base", "next")), strict=True
        ):
            begin = max(base, self._begins.get(queue_id, 0))
            if (queue_id, following) > self._at and begin < following and self._lives(queue_id, following):
                yield queue_id, max(begin, self._at[1]) if queue_id == self._at[0] else begin, following

    def _lives(self, queue_id: int, following: int) -> bool:
        """Of a stretch that ends before `following`."""
        return not self.expired or queue_id in self.own or following > self._floors.get(queue_id, following)

    def _runs(self, past: Past, table: SegmentTable, queue_id: int, at: int, following: int) -> Iterator[QueuedBatch]:
        while at < following:
            place = past.index.segment_of(queue_id, at)
            if place is None or place.base > at:
                # What stands nowhere must not pass for what stands in a later place.
                raise IndexDoubtful(f"queue {queue_id}: the index has no place of {at}, segment {self.start} has")
            if place.segment == self.start:
                yield from self._runs_in(table, queue_id, at, place)
            at = place.next

    def _runs_in(self, table: SegmentTable, queue_id: int, at: int, place: QueueExtent) -> Iterator[QueuedBatch]:
        while at < place.next:
            runs = table.entries(queue_id, at, _READ_BYTES, until=place.next)
            if not runs or runs[0].base_queue_offset > at:
                raise IndexDoubtful(f"queue {queue_id}: the table of segment {self.start} does not hold {at}")
            yield from (run for run in runs if run.log_offset >= self._log_start)
            at = runs[-1].next_queue_offset
