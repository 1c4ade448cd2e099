"""Where each queue's records stand in the log: the hot part of the index, in memory, deletable at any time.

Every batch of the log is one row of 40 bytes, in log order, in chunks of fixed size, and 16 bytes more in its queue, in
queue order, to bisect on. A lookup sees only what is confirmed. The rows of a sealed segment go to its table (`table`)
on a helper, which reads the very chunks, without a copy: what is confirmed never changes. Afterwards `evict` forgets
them here, and `past` answers for them.

Copied batches (flag `COPIED`) carry old queue offsets, so the order of a queue is that of its offsets and not of the
log; where two batches hold the same records, the later one counts. They take their place when they are confirmed. A
queue with copied batches begins where the log says (`set_begin`), not where its first batch stands.

After a loss the queue offsets leap (`leap`): the gap between is known as lost (`gaps`), `gap_end` says where to go on,
and no answer runs over it. A leap counts from its confirm, in its place among the records.

A copy that began at a decided begin and has not come to that decision yet may hold records behind others that are still
to come as copies. While it is `partial`, a queue begins at its last leap: nothing is passed over in silence.

Knows no file and no clock. Rejected: one array per column and queue (a half more time to add a batch, a memmove of
megabytes to forget a segment); trimming every queue at the moment of `evict` (milliseconds on the loop with 10,000
queues: it is done when a queue is asked for, and a few queues per confirm).
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader
from mirrorlog.commitlog.format.rows import COPIED, ENVELOPE, INDEXED_MAX, INNER, PACKED_ROW, ROW, ROW_BYTES
from mirrorlog.commitlog.index.gaps import NO_GAP, NO_GAPS, Gap, Gaps, gap_at, with_gap, without
from mirrorlog.errors import LogCorrupt, OffsetOutOfRange

# The batches of one queue that are in memory, in the order of their queue offsets.


class QueueOrder:
    """The batches of one queue in memory, in queue order: base queue offsets and row numbers. Those at or above
    `next_confirmed` are pending.

    `begin`: first queue offset that the log has. `logged_begin`: the same as the log itself says it, -1 while it does
    not. `leap`: where the queue offsets went on above the expected one, the last time. `gaps`: those that losses left,
    as far as they are confirmed and known. `hot_begin`: from here on all of it is in
    memory; below are at most some copied batches. `floor`: rows below it were forgotten when this queue was
    last looked at. `mixed`: the row numbers do not rise with the queue offsets.
    """

    __slots__ = (
        "bases", "begin", "floor", "gaps", "hot_begin", "leap", "logged_begin", "mixed", "next_appended",
        "next_confirmed", "numbers",
    )  # fmt: skip

    def __init__(self, floor: int) -> None:
        self.bases = array("Q")
        self.numbers = array("Q")
        self.begin = 0
        self.logged_begin = -1
        self.leap = 0
        self.gaps: Gaps = NO_GAPS
        self.hot_begin = 0
        self.next_confirmed = 0
        self.next_appended = 0
        self.floor = floor
        self.mixed = False

    @property
    def visible(self) -> int:
        """How many of the batches are confirmed."""
        return bisect_left(self.bases, self.next_confirmed)

    def confirmed_from(self, index: int) -> int:
        """The first confirmed queue offset from the batch at `index` on; the next one when there is none."""
        return min(self.bases[index], self.next_confirmed) if index < len(self.bases) else self.next_confirmed

    def insert(self, base: int, number: int, records: int) -> None:
        """A copied batch, somewhere below the last one; it takes the place of one that holds the same records. A copy
        that began late may have followed a leap before it heard of these: they are not lost."""
        self.mixed = True
        if self.gaps:
            self.gaps = without(self.gaps, base, base + records)
        index = bisect_left(self.bases, base)
        if index < len(self.bases) and self.bases[index] == base:
            self.numbers[index] = number
        else:
            self.bases.insert(index, base)
            self.numbers.insert(index, number)

    def cut(self, count: int) -> None:
        """Forget the pending batches with numbers from `count` on."""
        while self.numbers and self.numbers[-1] >= count:
            self.numbers.pop()
            self.bases.pop()

    def trim(self, floor: int) -> None:
        """Forget the batches with numbers below `floor`."""
        self.floor = floor
        if self.mixed:
            self._trim_mixed(floor)
        elif gone := bisect_left(self.numbers, floor):
            del self.bases[:gone], self.numbers[:gone]
            self.hot_begin = max(self.hot_begin, self.confirmed_from(0))

    def _trim_mixed(self, floor: int) -> None:
        """From behind the last batch that goes, the memory is complete."""
        numbers = np.frombuffer(self.numbers, np.uint64)
        stays = numbers >= floor
        gone = np.flatnonzero(~stays)
        if not len(gone):
            return
        self.hot_begin = max(self.hot_begin, self.confirmed_from(int(gone[-1]) + 1))
        numbers = numbers[stays]
        self.bases = array("Q", np.frombuffer(self.bases, np.uint64)[stays].tobytes())
        self.numbers = array("Q", numbers.tobytes())
        # Once the copies are behind it, the queue is as any other.
        self.mixed = bool((numbers[1:] < numbers[:-1]).any())


_VISIBLE: Final = struct.Struct("<QQ8xII")  # log offset, base, queue id, records
_CHUNK_ROWS: Final = 4096
_CHUNK_BITS: Final = 12
_IN_CHUNK: Final = _CHUNK_ROWS - 1
_CHUNK_BYTES: Final = _CHUNK_ROWS * ROW_BYTES
_SWEPT_AT_ONCE: Final = 16
_TIME_MAX: Final = 2**63 - 1

assert _CHUNK_ROWS == 1 << _CHUNK_BITS


class Run(NamedTuple):
    """A batch in its queue. `length`: bytes of the whole batch."""

    log_offset: int
    base_queue_offset: int
    record_count: int
    length: int

    @property
    def next_queue_offset(self) -> int:
        return self.base_queue_offset + self.record_count


class _Leap(NamedTuple):
    """Queues go on at `go_on_at` behind the batch at `log_offset`. `stood`: their next queue offsets before, by queue
    id, of those that were below."""

    log_offset: int
    go_on_at: int
    stood: dict[int, int]


class _Marks:
    """Where each chunk begins, of those that were forgotten too: log offsets, append times, records before it."""

    __slots__ = ("log_offsets", "records", "times")

    def __init__(self) -> None:
        self.log_offsets = array("Q")
        self.times = array("q")
        self.records = array("Q")

    def add(self, log_offset: int, append_time_us: int, records: int) -> None:
        self.log_offsets.append(log_offset)
        # A copied batch is old, where it stands is not.
        self.times.append(max(append_time_us, self.times[-1]) if self.times else append_time_us)
        self.records.append(records)

    def cut(self, count: int) -> None:
        """Keep the first `count`."""
        del self.log_offsets[count:], self.times[count:], self.records[count:]

    def forget(self, count: int) -> None:
        """Drop the first `count`."""
        del self.log_offsets[:count], self.times[:count], self.records[:count]


class QueueIndex:
    """The hot index of one log. Queue offsets of unknown queues count from 0 to 0.

    Row numbers count the batches ever added, from 0; row n stands in chunk n // 4096.
    """

    __slots__ = (
        "_chunks", "_confirmed", "_count", "_end", "_first_chunk", "_floor", "_gapped", "_leaps", "_marks",
        "_past_records", "_past_time", "_queues", "_sweeping", "_tail", "_visible", "partial",
    )  # fmt: skip

    def __init__(self) -> None:
        self._queues: dict[int, QueueOrder] = {}
        self._chunks: list[bytearray] = []
        self._first_chunk = 0
        self._tail = bytearray()
        self._marks = _Marks()
        # Records below the first chunk in memory, while there is no chunk.
        self._past_records = 0
        self._past_time = _TIME_MAX
        self._floor = 0
        self._visible = 0
        self._count = 0
        self._end = 0
        self._confirmed = 0
        # The queues that have a gap, and the leaps that are not confirmed, in log order.
        self._gapped: set[int] = set()
        self._leaps: deque[_Leap] = deque()
        self._sweeping: Iterator[QueueOrder] | None = None
        self.partial = False

    # --- Changes --------------------------------------------------------------------------------------------------

    def add(self, header: BatchHeader) -> None:
        """An appended batch of any kind, in log order.

        It is visible at once when it stands below the confirmed offset (recovery). Raises LogCorrupt when its queue
        offsets are not above those of the batch before it, unless it is a copy of earlier records.
        """
        log_offset = header.log_offset
        base = header.base_queue_offset
        queue_id = header.queue_id
        kind = header.kind
        copied = header.flags & COPIED
        records = 0
        if kind <= INDEXED_MAX:
            records = header.record_count
            queue = self._queues.get(queue_id)
            if queue is None:
                queue = self._queues[queue_id] = QueueOrder(self._floor)
            if base >= queue.next_appended:
                queue.next_appended = base + records
                queue.bases.append(base)
                queue.numbers.append(self._count)
            elif not copied or base + records > queue.next_appended:
                raise _goes_back(header, queue.next_appended)
        at = (self._count & _IN_CHUNK) * ROW_BYTES
        if not at:
            self._open_chunk(header)
        length = header.length if kind != ENVELOPE else HEADER_SIZE
        PACKED_ROW.pack_into(
            self._tail, at, log_offset, base, header.append_time_us, queue_id, records, length, kind,
            copied, header.flags & INNER,
        )  # fmt: skip
        self._count += 1
        self._end = log_offset + length
        if log_offset < self._confirmed:
            self.confirm(self._confirmed)

    def leap(self, log_offset: int, queue_ids: Iterable[int], go_on_at: int) -> None:
        """The batch at `log_offset`, which was just added, says that these queues go on at the queue offset `go_on_at`;
        those that are there already, or beyond, stay. What comes in between was lost."""
        stood: dict[int, int] = {}
        for queue_id in queue_ids:
            following = self.next_appended(queue_id)
            if following < go_on_at:
                stood[queue_id] = following
                self._order(queue_id).next_appended = go_on_at
        self._leaps.append(_Leap(log_offset, go_on_at, stood))
        if log_offset < self._confirmed:
            self.confirm(self._confirmed)

    def confirm(self, log_offset: int) -> set[int]:
        """Everything below `log_offset` is confirmed and becomes visible, never back. Gives the queues that gained."""
        self._confirmed = confirmed = log_offset if log_offset > self._confirmed else self._confirmed
        if not self._leaps:
            return self._show(confirmed)
        gained: set[int] = set()
        while self._leaps and self._leaps[0].log_offset < confirmed:
            gained |= self._show(self._leaps[0].log_offset) | self._confirm_leap(self._leaps.popleft())
        return gained | self._show(confirmed)

    def _show(self, confirmed: int) -> set[int]:
        gained: set[int] = set()
        queues, unpack = self._queues, _VISIBLE.unpack_from
        number, count = self._visible, self._count
        while number < count:
            in_chunk = number & _IN_CHUNK
            if not in_chunk or number == self._visible:
                chunk = self._chunks[(number >> _CHUNK_BITS) - self._first_chunk]
            at, base, queue_id, records = unpack(chunk, in_chunk * ROW_BYTES)
            if at >= confirmed:
                break
            if records:
                queue = queues[queue_id]
                if base >= queue.next_confirmed:
                    if base != queue.next_confirmed:
                        self._leapt(queue, base)
                    queue.next_confirmed = base + records
                else:
                    queue.insert(base, number, records)
                gained.add(queue_id)
            number += 1
        self._visible = number
        if self._sweeping is not None:
            self._sweep(self._sweeping)
        return gained

    def cut(self, log_offset: int) -> None:
        """The log was truncated: forget the pending batches at and after `log_offset`."""
        count = max(self._visible, self._number_at(log_offset))
        if count >= self._count:
            return
        touched = {self._row(number)[3] for number in range(count, self._count)}
        while self._leaps and self._leaps[-1].log_offset >= log_offset:
            touched.update(self._leaps.pop().stood)
        self._end = self._row(count)[0]
        self._count = count
        self._drop_chunks_behind(count)
        for queue_id in touched & self._queues.keys():
            queue = self._queues[queue_id]
            queue.cut(count)
            pending = len(queue.bases) > queue.visible
            following = self._next_of(queue, -1) if pending else queue.next_confirmed
            leaps = [leap.go_on_at for leap in self._leaps if queue_id in leap.stood]
            queue.next_appended = max(following, *leaps) if leaps else following

    def set_queue(self, queue_id: int, *, begin: int, next_offset: int) -> None:
        """What the past knows of a queue, before its batches from `next_offset` on are added: nothing of it is in
        memory yet. Queue offsets."""
        former = self._queues.get(queue_id)
        queue = self._queues[queue_id] = QueueOrder(self._floor)
        if former is not None:
            queue.logged_begin, queue.gaps = former.logged_begin, former.gaps
        queue.begin = begin
        queue.hot_begin = queue.next_confirmed = queue.next_appended = next_offset

    def set_next(self, queue_id: int, next_offset: int) -> None:
        """A checkpoint says that the queue goes on at `next_offset`, above all that is known of it here: what comes in
        between is gone, or comes as copies."""
        queue = self._queues.get(queue_id)
        if queue is None or not queue.next_appended:
            self.set_queue(queue_id, begin=next_offset, next_offset=next_offset)
        queue = self._queues[queue_id]
        self._leapt(queue, next_offset)
        queue.next_confirmed = queue.next_appended = next_offset

    def set_begin(self, queue_id: int, queue_offset: int) -> None:
        """The log says, confirmed, that the queue begins there; it never goes back."""
        queue = self._order(queue_id)
        queue.logged_begin = max(queue.logged_begin, queue_offset)

    def set_leap(self, queue_id: int, queue_offset: int) -> None:
        """From there on the past has the queue without a gap; what is below may be missing, or be copies."""
        queue = self._queues.get(queue_id)
        if queue is not None:
            queue.leap = max(queue.leap, queue_offset)

    def set_gap(self, queue_id: int, gap: Gap) -> None:
        """A checkpoint says that these queue offsets of the queue were given up after a loss."""
        queue = self._order(queue_id)
        first, following = gap
        # Leaps that are still to be confirmed here say so themselves, in their place: what is before them they join.
        for leap in self._leaps:
            if first <= leap.stood.get(queue_id, -1) < following:
                following = leap.stood[queue_id]
        if first < following:
            # It may begin before the one that is known here: of that, only the last leap was followed.
            queue.gaps = with_gap(queue.gaps, (first, following))
            self._gapped.add(queue_id)

    def forget_queues(self, queue_ids: Iterable[int]) -> None:
        """Queues are gone, for good; that is confirmed. Their rows go with those of the others."""
        for queue_id in queue_ids:
            self._queues.pop(queue_id, None)
            self._gapped.discard(queue_id)
            for leap in self._leaps:
                leap.stood.pop(queue_id, None)

    def set_past(self, *, first: int, end: int, first_append_time_us: int, records: int) -> None:
        """How many records the segment [first, end), log offsets, of the past holds, in log order and before any
        batch is added: `records_between` and `append_time_from` then know it by its ends."""
        self._marks.add(first, first_append_time_us, self._past_records)
        self._past_records += records
        self._end = end

    # --- Into the past --------------------------------------------------------------------------------------------

    def rows(self, first: int, end: int) -> list[memoryview]:
        """The batches that begin in [first, end), log offsets, all confirmed: `ROW`s in log order, read-only, in
        pieces. No copy is made and they stay as they are whatever happens here, so another thread may read them."""
        assert end <= self._confirmed, "only confirmed batches belong into a table"
        at, last = max(self._floor, self._number_at(first)), self._number_at(end)
        pieces: list[memoryview] = []
        while at < last:
            chunk = at >> _CHUNK_BITS
            piece_end = min(last, (chunk + 1) << _CHUNK_BITS)
            begin = (at & _IN_CHUNK) * ROW_BYTES
            size = (piece_end - at) * ROW_BYTES
            pieces.append(memoryview(self._chunks[chunk - self._first_chunk])[begin : begin + size].toreadonly())
            at = piece_end
        return pieces

    @property
    def hot_from(self) -> int:
        """The log offset of the first batch in memory; the end when there is none."""
        return self._row(self._floor)[0] if self._floor < self._count else self._end

    def evict(self, log_offset: int) -> None:
        """Forget the confirmed batches below `log_offset`: a table has them. What a queue begins at does not change.

        Costs a few µs; queues are trimmed later, when they are asked for and a few with each confirm.
        """
        floor = min(self._number_at(log_offset), self._visible)
        if floor <= self._floor:
            return
        self._past_time = self._time_below(floor)
        self._floor = floor
        first_chunk = floor >> _CHUNK_BITS
        if first_chunk - self._first_chunk == len(self._chunks):
            self._past_records = self._records_before(self._end)
        del self._chunks[: first_chunk - self._first_chunk]
        self._first_chunk = first_chunk
        self._sweeping = iter(list(self._queues.values()))

    def begin_moved(self, log_offset: int, begins: Mapping[int, int]) -> None:
        """The log now begins at `log_offset` and the queues of `begins` at these queue offsets; nothing goes back."""
        self.evict(log_offset)
        for queue_id, begin in begins.items():
            queue = self._queues.get(queue_id)
            if queue is not None:
                queue.begin = max(queue.begin, min(begin, queue.next_confirmed))
        held = len(self._marks.log_offsets) - len(self._chunks)
        self._marks.forget(min(held, max(0, bisect_right(self._marks.log_offsets, log_offset) - 1)))

    def hot_begin(self, queue_id: int) -> int:
        """From this queue offset on all confirmed batches of the queue are in memory."""
        queue = self._fresh(queue_id)
        return queue.hot_begin if queue is not None else 0

    def hot_first(self, queue_id: int) -> int:
        """The first confirmed record of the queue in memory, behind a leap if one comes before it; the next one to come
        when there is none."""
        queue = self._fresh(queue_id)
        return queue.confirmed_from(0) if queue is not None else 0

    def past_until(self, queue_id: int, queue_offset: int) -> int | None:
        """None when `find` and `entries` answer for this queue offset. Otherwise the past must be asked, for batches
        that begin below the queue offset given: from there on the memory answers again, also when the past has none.
        """
        queue = self._fresh(queue_id)
        if queue is None or queue_offset >= queue.hot_begin:
            return None
        index = bisect_right(queue.bases, queue_offset) - 1
        if index >= 0 and queue_offset < self._next_of(queue, index):
            return None
        return queue.confirmed_from(index + 1)

    def holds(self, queue_id: int, base_queue_offset: int) -> bool:
        """Whether a confirmed batch that begins at this queue offset is in memory."""
        queue = self._fresh(queue_id)
        if queue is None or base_queue_offset >= queue.next_confirmed:
            return False
        index = bisect_left(queue.bases, base_queue_offset)
        return index < len(queue.bases) and queue.bases[index] == base_queue_offset

    def is_past_time(self, queue_id: int, append_time_us: int) -> bool:
        """Whether the past may hold a batch of the queue that was appended at or after that time. Then the first
        queue offset of that time is the smaller one of the past's, if it has one, and `find_time`'s."""
        queue = self._fresh(queue_id)
        if queue is None or self._begin_of(queue) >= queue.hot_begin:
            return False
        return append_time_us <= self._past_time

    # --- Lookups --------------------------------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """The queues that have or had a batch, confirmed or not."""
        return [queue_id for queue_id, queue in self._queues.items() if queue.next_appended]

    def begin(self, queue_id: int) -> int:
        """The first visible queue offset, the past included; that of the next record while there is none."""
        queue = self._queues.get(queue_id)
        return self._begin_of(queue) if queue is not None else 0

    def next_confirmed(self, queue_id: int) -> int:
        """The queue offset after the last visible record."""
        queue = self._queues.get(queue_id)
        return queue.next_confirmed if queue is not None else 0

    def next_appended(self, queue_id: int) -> int:
        """The queue offset after the last record, pending ones included: the next one to give out."""
        queue = self._queues.get(queue_id)
        return queue.next_appended if queue is not None else 0

    def next_highest(self) -> int:
        """The largest next queue offset to give out of all queues."""
        return max((queue.next_appended for queue in self._queues.values()), default=0)

    def gap_end(self, queue_id: int, queue_offset: int) -> int | None:
        """Where to go on when that queue offset is in a gap that a loss left in the queue; None when it is in none that
        is known."""
        queue = self._queues.get(queue_id)
        gap = gap_at(queue.gaps, queue_offset) if queue is not None and queue.gaps else None
        return gap[1] if gap is not None else None

    def gap(self, queue_id: int) -> Gap:
        """The newest confirmed gap of a queue; an empty one when it has none."""
        gaps = self.gaps_of(queue_id)
        return gaps[-1] if gaps else NO_GAP

    def gaps_of(self, queue_id: int) -> Gaps:
        """The confirmed gaps of a queue that are known."""
        queue = self._queues.get(queue_id)
        return queue.gaps if queue is not None else NO_GAPS

    def gaps(self) -> Iterator[tuple[int, Gaps]]:
        """(queue id, its gaps) of the queues that have some now, as appended when they are asked for; without those
        that the queue's begin has passed, but for the newest."""
        for queue_id in self._gapped.union(*(leap.stood for leap in self._leaps)):
            if (queue := self._queues.get(queue_id)) is None:
                continue  # it was deleted meanwhile
            gaps, begin = queue.gaps, 0 if self.partial else self._begin_of(queue)
            for leap in self._leaps:
                if (stood := leap.stood.get(queue_id)) is not None:
                    gaps = with_gap(gaps, (stood, leap.go_on_at))
            if gaps:  # its leap may have been cut meanwhile
                yield queue_id, (*(each for each in gaps[:-1] if each[1] >= begin), gaps[-1])

    def find(self, queue_id: int, queue_offset: int) -> Run:
        """The visible batch that holds a queue offset; within a leap, the first one after it.

        Raises OffsetOutOfRange with `begin` and `next`. Only where `past_until` is None.
        """
        queue, index = self._locate(queue_id, queue_offset)
        if index >= queue.visible:
            raise self._out_of_range(queue_id, queue_offset)
        return self._run(queue, index)

    def find_time(self, queue_id: int, append_time_us: int) -> int:
        """The first visible queue offset in memory whose batch was appended at or after a time (µs UTC); the next one
        to be confirmed when there is none. See `is_past_time`."""
        queue = self._fresh(queue_id)
        if queue is None:
            return 0
        row = self._row
        index = bisect_left(queue.numbers, append_time_us, 0, queue.visible, key=lambda number: row(number)[2])
        return max(self._begin_of(queue), queue.confirmed_from(index))

    def entries(self, queue_id: int, from_queue_offset: int, max_bytes: int) -> list[Run]:
        """Visible batches in order, from the one that holds `from_queue_offset`, or the first one after it, on: as many
        as fit into `max_bytes`, at least one if there is one. They end before a leap and where the past comes in.

        Raises OffsetOutOfRange as `find`. Only where `past_until` is None.
        """
        if from_queue_offset == self.next_confirmed(queue_id):
            return []
        queue, index = self._locate(queue_id, from_queue_offset)
        if index >= queue.visible:
            return []  # in a leap that no record has followed yet
        runs = [self._run(queue, index)]
        left = max_bytes - runs[0].length
        for following in range(index + 1, queue.visible):
            if queue.bases[following] != runs[-1].next_queue_offset:
                break
            run = self._run(queue, following)
            left -= run.length
            if left < 0:
                break
            runs.append(run)
        return runs

    def records_between(self, first_log_offset: int, last_log_offset: int) -> int:
        """The number of records in the batches that begin in [first, last), pending ones included: exact from
        `hot_from` on, below it true to a chunk of 4096 batches or, after a restart, to a segment."""
        first = self._records_before(first_log_offset)
        return max(0, self._records_before(last_log_offset) - first)

    def append_time_from(self, log_offset: int) -> int | None:
        """When the first batch at or after `log_offset` was appended (µs UTC), pending ones included, copied ones not;
        below `hot_from`, when the first one of its chunk or segment was. None when there is none."""
        if log_offset >= self._end:
            return None
        if log_offset >= self.hot_from:
            for number in range(self._number_at(log_offset), self._count):
                _, _, append_time_us, *_, copied, _ = self._row(number)
                if not copied:
                    return append_time_us
            return None
        return self._marks.times[max(0, bisect_right(self._marks.log_offsets, log_offset) - 1)]

    # --- Inside ---------------------------------------------------------------------------------------------------

    def _begin_of(self, queue: QueueOrder) -> int:
        begin = queue.begin if queue.logged_begin < 0 else min(queue.logged_begin, queue.next_confirmed)
        if queue.gaps and (gap := gap_at(queue.gaps, begin)) is not None:
            begin = gap[1]  # it has nothing from before the leap
        return max(begin, queue.leap) if self.partial else begin

    def _order(self, queue_id: int) -> QueueOrder:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = QueueOrder(self._floor)
        return queue

    def _confirm_leap(self, leap: _Leap) -> set[int]:
        """All before it in the log is visible, and nothing behind it."""
        gained: set[int] = set()
        for queue_id in leap.stood:
            queue = self._queues[queue_id]
            if queue.next_confirmed < leap.go_on_at:
                if queue.begin >= queue.next_confirmed:
                    queue.begin = leap.go_on_at  # it is empty
                queue.gaps = with_gap(queue.gaps, (queue.next_confirmed, leap.go_on_at))
                self._leapt(queue, leap.go_on_at)
                queue.next_confirmed = leap.go_on_at
                gained.add(queue_id)
        self._gapped |= gained
        return gained

    @staticmethod
    def _leapt(queue: QueueOrder, base: int) -> None:
        """Its next confirmed record is `base` and not the one that was expected."""
        queue.leap = base
        if not queue.next_confirmed:
            queue.begin = base

    def _drop_chunks_behind(self, count: int) -> None:
        """Keep the chunks that `count` rows need."""
        needed = ((count + _IN_CHUNK) >> _CHUNK_BITS) - self._first_chunk
        if not needed:
            self._past_records = self._marks.records[-len(self._chunks)]
        self._marks.cut(len(self._marks.log_offsets) - len(self._chunks) + needed)
        del self._chunks[needed:]
        self._tail = self._chunks[-1] if self._chunks else bytearray()

    def _open_chunk(self, header: BatchHeader) -> None:
        self._marks.add(header.log_offset, header.append_time_us, self._records_before(self._end))
        self._tail = bytearray(_CHUNK_BYTES)
        self._chunks.append(self._tail)

    def _time_below(self, floor: int) -> int:
        """No batch below row `floor` was appended later. Copies keep an old time; the others' times never go back."""
        for number in range(floor - 1, max(self._floor, floor - _CHUNK_ROWS) - 1, -1):
            _, _, append_time_us, *_, copied, _ = self._row(number)
            if not copied:
                return append_time_us
        return _TIME_MAX

    def _sweep(self, queues: Iterator[QueueOrder]) -> None:
        for _ in range(_SWEPT_AT_ONCE):
            queue = next(queues, None)
            if queue is None:
                self._sweeping = None
                return
            queue.trim(self._floor)

    def _fresh(self, queue_id: int) -> QueueOrder | None:
        queue = self._queues.get(queue_id)
        if queue is not None and queue.floor != self._floor:
            queue.trim(self._floor)
        return queue

    def _row(self, number: int) -> tuple[int, ...]:
        """The fields of `ROW`."""
        chunk = self._chunks[(number >> _CHUNK_BITS) - self._first_chunk]
        return PACKED_ROW.unpack_from(chunk, (number & _IN_CHUNK) * ROW_BYTES)

    def _run(self, queue: QueueOrder, index: int) -> Run:
        log_offset, base, _, _, records, length, *_ = self._row(queue.numbers[index])
        return Run(log_offset, base, records, length)

    def _next_of(self, queue: QueueOrder, index: int) -> int:
        return queue.bases[index] + self._row(queue.numbers[index])[4]

    def _locate(self, queue_id: int, queue_offset: int) -> tuple[QueueOrder, int]:
        queue = self._fresh(queue_id)
        begin, following = self.begin(queue_id), self.next_confirmed(queue_id)
        if queue is None or not begin <= queue_offset < following:
            raise self._out_of_range(queue_id, queue_offset)
        index = bisect_right(queue.bases, queue_offset) - 1  # confirmed, as `queue_offset` is
        if index < 0 or queue_offset >= self._next_of(queue, index):
            assert queue_offset >= queue.hot_begin, "the past was not asked"
            index += 1
        return queue, index

    def _out_of_range(self, queue_id: int, queue_offset: int) -> OffsetOutOfRange:
        begin, following = self.begin(queue_id), self.next_confirmed(queue_id)
        return OffsetOutOfRange(
            f"queue offset {queue_offset} is not among the confirmed ones, {begin} up to {following}",
            begin=begin,
            next=following,
        )

    def _number_at(self, log_offset: int) -> int:
        """The number of the first row in memory at or after `log_offset`."""
        first = self._first_chunk << _CHUNK_BITS
        held = len(self._marks.log_offsets) - len(self._chunks)
        chunk = bisect_right(self._marks.log_offsets, log_offset, held) - 1 - held
        if chunk < 0:
            return first
        at = self._row
        low = first + (chunk << _CHUNK_BITS)
        high = min(self._count, low + _CHUNK_ROWS)
        return low + bisect_left(range(low, high), log_offset, key=lambda number: at(number)[0])

    def _records_before(self, log_offset: int) -> int:
        """The records in all batches that begin below `log_offset`, counted from the first one that is known."""
        marks = self._marks
        mark = bisect_right(marks.log_offsets, log_offset) - 1
        if mark < 0:
            return marks.records[0] if marks.records else self._past_records
        chunk = mark - (len(marks.log_offsets) - len(self._chunks))
        if chunk >= 0:
            return marks.records[mark] + self._records_in_chunk(chunk, log_offset)
        return marks.records[mark] + self._records_in_past(mark, log_offset)

    def _records_in_chunk(self, chunk: int, log_offset: int) -> int:
        low = (self._first_chunk + chunk) << _CHUNK_BITS
        rows = np.frombuffer(self._chunks[chunk], ROW, count=self._number_at(log_offset) - low)
        return int(rows["records"].sum(dtype=np.uint64))

    def _records_in_past(self, mark: int, log_offset: int) -> int:
        """In proportion to the bytes: what is known are the records of the whole stretch."""
        marks = self._marks
        known = mark + 1 < len(marks.records)
        records = (marks.records[mark + 1] if known else self._past_records) - marks.records[mark]
        first = marks.log_offsets[mark]
        end = marks.log_offsets[mark + 1] if known else self._end
        return records * min(log_offset - first, end - first) // (end - first) if end > first else 0


def _goes_back(header: BatchHeader, expected: int) -> LogCorrupt:
    return LogCorrupt(
        f"queue {header.queue_id}: the batch at log offset {header.log_offset} begins at queue offset "
        f"{header.base_queue_offset}, below {expected}; the log was written by a broken master",
        first=header.log_offset,
        last=header.next_log_offset,
    )
