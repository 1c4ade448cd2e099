"""The batches that a grant reaches: how far it goes, and what of their bytes is in the log's memory. Thin.

Only the index of the memory is asked, and only mapped bytes are read: delivery never waits for a disk. Of records of
the past no more is known here than that they are there; whoever is granted them fetches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from mirrorlog.broker.log.fetch import join_runs
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.errors import OffsetOutOfRange
from mirrorlog.queues.delivery.group import Reach
from mirrorlog.wire.frames import Grant

_COLD_RECORD_BYTES: Final = 4096
"""What is taken for the size of a record of the past."""


class BatchReader:
    """Of one turn: `forget`, then `reach` as often as the turn asks, then `read`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._runs: list[QueuedBatch] = []

    def forget(self) -> None:
        """Another turn begins."""
        self._runs.clear()

    def reach(self, queue_id: int, at: int, until: int, bytes_max: int) -> Reach:
        """See `ReachOut`."""
        index = self._replica.index
        begin = index.begin(queue_id)
        behind = index.gap_end(queue_id, at)
        if at < begin or behind is not None:
            there = max(begin, behind or 0)
            return Reach(there, there, 0)
        past_until = index.past_until(queue_id, at)
        if past_until is not None:
            records = max(1, min(until, past_until) - at)
            records = min(records, max(1, bytes_max // _COLD_RECORD_BYTES))
            return Reach(at, at + records, records * _COLD_RECORD_BYTES)
        try:
            run = index.find(queue_id, at)
        except OffsetOutOfRange:  # in a leap that no record has followed
            there = max(at + 1, index.next_confirmed(queue_id))
            return Reach(there, there, 0)
        if run.base_queue_offset > at:
            return Reach(run.base_queue_offset, run.base_queue_offset, 0)
        runs = [run]
        if run.next_queue_offset < until:
            # No more of them than will do, if they are of a size.
            wanted = 2 * run.length * -(-(until - at) // run.record_count)
            runs = index.entries(queue_id, at, min(wanted, bytes_max))
        return self._reached(runs, at, until, bytes_max)

    def read(self, grants: Sequence[Grant], last: int, bytes_max: int) -> tuple[list[memoryview], list[QueuedBatch]]:
        """The bytes of the batches that something was granted of, as far as they are in memory, and which batches these
        are. Without the first one if it begins at the queue offset `last`: that was sent before. The first ones that
        fit into so many bytes, one at least: the others are fetched."""
        runs = self._granted(grants)
        if runs and runs[0].base_queue_offset == last:
            del runs[0]
        ends = accumulate(run.length for run in runs)
        fitting = sum(1 for end in ends if end <= bytes_max)
        return self._read(runs[: max(1, fitting)])

    # --- inside ---

    def _reached(self, runs: Sequence[QueuedBatch], first: int, until: int, bytes_max: int) -> Reach:
        at, size, sent = first, 0, 0
        for run in runs:
            records = min(run.next_queue_offset, until) - at
            part = -(-run.length * records // run.record_count)
            if size + part > bytes_max:
                if at > first:
                    break
                records = max(1, records * bytes_max // part)
                part = -(-run.length * records // run.record_count)
            sent += self._note(run)
            at += records
            size += part
            if at >= until or at < run.next_queue_offset:
                break
        # What was reached before in this turn is sent with that.
        return Reach(first, at, size, sent or size)

    def _note(self, run: QueuedBatch) -> int:
        """How many bytes more are sent with it."""
        known = bool(self._runs) and self._runs[-1].log_offset == run.log_offset
        self._runs.append(run)
        return 0 if known else run.length

    def _granted(self, grants: Sequence[Grant]) -> list[QueuedBatch]:
        """Of the batches reached those that something was given of, each once. Both rise."""
        found: list[QueuedBatch] = []
        for run in self._runs:
            if run.base_queue_offset < grants[-1].next and (not found or found[-1].log_offset != run.log_offset):
                found.append(run)
        return found

    def _read(self, runs: Sequence[QueuedBatch]) -> tuple[list[memoryview], list[QueuedBatch]]:
        """What of these batches is in memory, and which ones these are."""
        parts: list[memoryview] = []
        sent: list[QueuedBatch] = []
        at = 0
        for joined in join_runs(runs):
            those = runs[at : at + joined.batches]
            at += joined.batches
            view = self._view(joined.log_offset, joined.length)
            if view is not None:
                parts.append(view)
                sent += those
                continue
            # A segment ends among them, or the memory begins.
            for run in those if len(those) > 1 else ():
                view = self._view(run.log_offset, run.length)
                if view is not None:
                    parts.append(view)
                    sent.append(run)
        return parts, sent

    def _view(self, log_offset: int, length: int) -> memoryview | None:
        view = self._replica.read(log_offset, length, until=log_offset + length)
        return view if view is not None and len(view) == length else None
