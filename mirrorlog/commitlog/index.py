"""Where each queue's records stand in the log: kept in memory, rebuilt from batch headers, deletable at any time.

Batches enter as pending when they are appended and become visible when they are confirmed; a lookup sees only the
visible part. One entry per batch in plain arrays (44 bytes, no object each), so a million batches cost 60 MB with the
log's own arrays and a lookup is a bisect in C. Knows no file and no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from mirrorlog.commitlog.format import BatchHeader, Kind
from mirrorlog.errors import LogCorrupt, OffsetOutOfRange

_INDEXED: Final = frozenset({Kind.DATA, Kind.TRANSACTION})


class Run(NamedTuple):
    """A batch in its queue. `length`: bytes of the whole batch."""

    log_offset: int
    base_queue_offset: int
    record_count: int
    length: int
    epoch: int

    @property
    def next_queue_offset(self) -> int:
        return self.base_queue_offset + self.record_count


class _Queue:
    """The batches of one queue in order; the first `visible` of them are confirmed."""

    __slots__ = ("append_times", "bases", "counts", "epochs", "lengths", "log_offsets", "visible")

    def __init__(self) -> None:
        self.log_offsets = array("Q")
        self.bases = array("Q")
        self.append_times = array("q")
        self.counts = array("I")
        self.lengths = array("I")
        self.epochs = array("I")
        self.visible = 0

    def run(self, index: int) -> Run:
        return Run(
            self.log_offsets[index],
            self.bases[index],
            self.counts[index],
            self.lengths[index],
            self.epochs[index],
        )

    def next_after(self, batches: int) -> int:
        """The queue offset after the first `batches` batches."""
        return self.bases[batches - 1] + self.counts[batches - 1] if batches else 0

    def add(self, header: BatchHeader) -> None:
        expected = self.next_after(len(self.bases))
        if header.base_queue_offset < expected:
            raise LogCorrupt(
                f"queue {header.queue_id}: the batch at log offset {header.log_offset} begins at queue offset "
                f"{header.base_queue_offset}, below {expected}; the log was written by a broken master",
                first=header.log_offset,
                last=header.next_log_offset,
            )
        self.log_offsets.append(header.log_offset)
        self.bases.append(header.base_queue_offset)
        self.append_times.append(header.append_time_us)
        self.counts.append(header.record_count)
        self.lengths.append(header.length)
        self.epochs.append(header.epoch)

    def remove_last(self) -> None:
        for column in (self.log_offsets, self.bases, self.append_times, self.counts, self.lengths, self.epochs):
            column.pop()


class QueueIndex:
    """The index of one log. Queue offsets of unknown queues count from 0 to 0."""

    __slots__ = ("_confirmed", "_log_offsets", "_queue_ids", "_queues", "_records", "_visible")

    def __init__(self) -> None:
        self._queues: dict[int, _Queue] = {}
        # All indexed batches in log order; `_records[i]` is the number of records before batch i.
        self._log_offsets = array("Q")
        self._queue_ids = array("I")
        self._records = array("Q", [0])
        self._visible = 0
        self._confirmed = 0

    # --- Changes --------------------------------------------------------------------------------------------------

    def add(self, header: BatchHeader) -> None:
        """An appended batch, in log order; kinds without records of a queue are passed over.

        It is visible at once when it stands below the confirmed offset (recovery). Raises LogCorrupt when its queue
        offsets are not above those of the batch before it.
        """
        if header.kind not in _INDEXED:
            return
        queue = self._queues.get(header.queue_id)
        if queue is None:
            queue = self._queues[header.queue_id] = _Queue()
        queue.add(header)
        self._log_offsets.append(header.log_offset)
        self._queue_ids.append(header.queue_id)
        self._records.append(self._records[-1] + header.record_count)
        if header.log_offset < self._confirmed:
            self.confirm(self._confirmed)

    def confirm(self, log_offset: int) -> set[int]:
        """Everything below `log_offset` is confirmed and becomes visible, never back. Gives the queues that gained."""
        self._confirmed = max(self._confirmed, log_offset)
        offsets, queue_ids = self._log_offsets, self._queue_ids
        gained: set[int] = set()
        while self._visible < len(offsets) and offsets[self._visible] < self._confirmed:
            queue_id = queue_ids[self._visible]
            self._queues[queue_id].visible += 1
            gained.add(queue_id)
            self._visible += 1
        return gained

    def cut(self, log_offset: int) -> None:
        """The log was truncated: forget the pending batches at and after `log_offset`."""
        while len(self._log_offsets) > self._visible and self._log_offsets[-1] >= log_offset:
            self._log_offsets.pop()
            self._records.pop()
            self._queues[self._queue_ids.pop()].remove_last()

    # --- Lookups --------------------------------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """The queues that have a batch here, confirmed or not."""
        return [queue_id for queue_id, queue in self._queues.items() if queue.bases]

    def begin(self, queue_id: int) -> int:
        """The first visible queue offset; that of the next record while there is none."""
        queue = self._queues.get(queue_id)
        return queue.bases[0] if queue is not None and queue.visible else self.next_confirmed(queue_id)

    def next_confirmed(self, queue_id: int) -> int:
        """The queue offset after the last visible record."""
        queue = self._queues.get(queue_id)
        return queue.next_after(queue.visible) if queue is not None else 0

    def next_appended(self, queue_id: int) -> int:
        """The queue offset after the last record, pending ones included: the next one to give out."""
        queue = self._queues.get(queue_id)
        return queue.next_after(len(queue.bases)) if queue is not None else 0

    def find(self, queue_id: int, queue_offset: int) -> Run:
        """The visible batch that holds a queue offset; within a leap, the first one after it.

        Raises OffsetOutOfRange with `begin` and `next`.
        """
        queue, index = self._locate(queue_id, queue_offset)
        return queue.run(index)

    def find_time(self, queue_id: int, append_time_us: int) -> int:
        """The first visible queue offset whose batch was appended at or after a time (µs UTC); the next one to be
        confirmed when there is none."""
        queue = self._queues.get(queue_id)
        if queue is None:
            return 0
        index = bisect_left(queue.append_times, append_time_us, 0, queue.visible)
        return queue.bases[index] if index < queue.visible else queue.next_after(queue.visible)

    def entries(self, queue_id: int, from_queue_offset: int, max_bytes: int) -> list[Run]:
        """Visible batches in order, from the one that holds `from_queue_offset` on: as many as fit into `max_bytes`,
        at least one; none at the next queue offset to be confirmed. Raises OffsetOutOfRange as `find`."""
        if from_queue_offset == self.next_confirmed(queue_id):
            return []
        queue, index = self._locate(queue_id, from_queue_offset)
        runs = [queue.run(index)]
        left = max_bytes - runs[0].length
        for following in range(index + 1, queue.visible):
            left -= queue.lengths[following]
            if left < 0:
                break
            runs.append(queue.run(following))
        return runs

    def records_between(self, first_log_offset: int, last_log_offset: int) -> int:
        """The exact number of records in the indexed batches that begin in [first, last), pending ones included."""
        first = bisect_left(self._log_offsets, first_log_offset)
        last = bisect_left(self._log_offsets, last_log_offset)
        return self._records[max(first, last)] - self._records[first]

    def append_time_from(self, log_offset: int) -> int | None:
        """When the first indexed batch at or after `log_offset` was appended (µs UTC), pending ones included."""
        index = bisect_left(self._log_offsets, log_offset)
        if index == len(self._log_offsets):
            return None
        queue = self._queues[self._queue_ids[index]]
        return queue.append_times[bisect_left(queue.log_offsets, log_offset)]

    def _locate(self, queue_id: int, queue_offset: int) -> tuple[_Queue, int]:
        queue = self._queues.get(queue_id)
        begin, following = self.begin(queue_id), self.next_confirmed(queue_id)
        if queue is None or not begin <= queue_offset < following:
            raise OffsetOutOfRange(
                f"queue offset {queue_offset} is not among the confirmed ones, {begin} up to {following}",
                begin=begin,
                next=following,
            )
        index = bisect_right(queue.bases, queue_offset, 0, queue.visible) - 1
        held = queue.bases[index] + queue.counts[index]
        return queue, index if queue_offset < held else index + 1
