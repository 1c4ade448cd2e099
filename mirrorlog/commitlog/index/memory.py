"""Where each queue's records stand in the log: the hot part of the index, in memory, deletable at any time.

Every batch of the log is a row (`row_chunks`), and 16 bytes more in its queue, in queue order, to bisect on. A lookup
sees only what is confirmed. The rows of a sealed segment go to its table (`table`) on a helper, which reads the very
chunks, without a copy: what is confirmed never changes. Afterwards `evict` forgets them here, and `past` answers for
them.

Copied batches (flag `COPIED`) carry old queue offsets, so the order of a queue is that of its offsets and not of the
log; where two batches hold the same records, the later one counts. They take their place when they are confirmed. A
queue with copied batches begins where the log says (`set_start`), not where its first batch stands.

After a loss the queue offsets jump (`jump`): the gap between is known as lost (`gaps`), `gap_end` says where to go on,
and no answer runs over it. A jump counts from its confirm, in its place among the records.

A copy that began at a decided begin and has not come to that decision yet may hold records behind others that are still
to come as copies. While it is `partial`, a queue begins at its last jump: nothing is passed over in silence.

Knows no file and no clock. Rejected: one array per column and queue (half more time to add a batch, a memmove of
megabytes to forget a segment); trimming every queue at `evict` (milliseconds on the loop with 10,000 queues).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader
from mirrorlog.commitlog.format.rows import COPIED, ENVELOPE, INDEXED_MAX, INNER, PACKED_ROW, ROW_BYTES
from mirrorlog.commitlog.index.gaps import NO_GAP, NO_GAPS, Gap, Gaps, gap_at, with_gap
from mirrorlog.commitlog.index.queue_order import OffsetJump, QueuedBatch, QueueOrder, goes_back
from mirrorlog.commitlog.index.row_chunks import CHUNK_BITS, IN_CHUNK, TIME_MAX, RowChunks
from mirrorlog.errors import OffsetOutOfRange

_VISIBLE: Final = struct.Struct("<QQ8xII")  # log offset, base, queue id, records
_SWEPT_AT_ONCE: Final = 16


class QueueIndex:
    """The hot index of one log. Queue offsets of unknown queues count from 0 to 0."""

    __slots__ = (
        "_confirmed", "_gapped", "_jumps", "_past_time", "_queues", "_rows", "_sweeping", "_visible", "partial",
    )  # fmt: skip

    def __init__(self) -> None:
        self._queues: dict[int, QueueOrder] = {}
        self._rows = RowChunks()
        self._past_time = TIME_MAX
        self._visible = 0
        self._confirmed = 0
        # The queues that have a gap, and the jumps that are not confirmed, in log order.
        self._gapped: set[int] = set()
        self._jumps: deque[OffsetJump] = deque()
        self._sweeping: Iterator[QueueOrder] | None = None
        self.partial = False

    # --- Changes --------------------------------------------------------------------------------------------------

    def add(self, header: BatchHeader) -> None:
        """An appended batch of any kind, in log order.

        It is visible at once when it stands below the confirmed offset (recovery). Raises LogCorrupt when its queue
        offsets are not above those of the batch before it, unless it is a copy of earlier records.
        """
        rows = self._rows
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
                queue = self._queues[queue_id] = QueueOrder(self._rows.floor)
            if base >= queue.next_appended:
                queue.next_appended = base + records
                queue.bases.append(base)
                queue.numbers.append(rows.count)
            elif not copied or base + records > queue.next_appended:
                raise goes_back(header, queue.next_appended)
        at = (rows.count & IN_CHUNK) * ROW_BYTES
        if not at:
            rows.open_chunk(header)
        length = header.length if kind != ENVELOPE else HEADER_SIZE
        PACKED_ROW.pack_into(
            rows.tail, at, log_offset, base, header.append_time_us, queue_id, records, length, kind,
            copied, header.flags & INNER,
        )  # fmt: skip
        rows.count += 1
        rows.end = log_offset + length
        if log_offset < self._confirmed:
            self.confirm(self._confirmed)

    def jump(
        self, log_offset: int, queue_ids: Iterable[int], go_on_at: int, *, lost: bool = True, left_at: int = 0
    ) -> None:
        """The batch at `log_offset`, which was just added, says that these queues go on at the queue offset `go_on_at`:
        what comes in between was `lost`, of those that are below; or they come from another log, for which they had
        left this one at `left_at`."""
        stood: dict[int, int] = {}
        for queue_id in queue_ids:
            following = self.next_appended(queue_id)
            if following < go_on_at or not lost:
                stood[queue_id] = following
                self._order(queue_id).next_appended = go_on_at
        self._jumps.append(OffsetJump(log_offset, go_on_at, stood, [], lost, left_at))
        if log_offset < self._confirmed:
            self.confirm(self._confirmed)

    def confirm(self, log_offset: int) -> set[int]:
        """Everything below `log_offset` is confirmed and becomes visible, never back. Gives the queues that gained."""
        self._confirmed = confirmed = log_offset if log_offset > self._confirmed else self._confirmed
        if not self._jumps:
            return self._show(confirmed)
        gained: set[int] = set()
        while self._jumps and self._jumps[0].log_offset < confirmed:
            gained |= self._show(self._jumps[0].log_offset) | self._confirm_jump(self._jumps.popleft())
        return gained | self._show(confirmed)

    def _show(self, confirmed: int) -> set[int]:
        gained: set[int] = set()
        queues, unpack = self._queues, _VISIBLE.unpack_from
        rows, number = self._rows, self._visible
        count = rows.count
        while number < count:
            in_chunk = number & IN_CHUNK
            if not in_chunk or number == self._visible:
                chunk = rows.chunks[(number >> CHUNK_BITS) - rows.first_chunk]
            at, base, queue_id, records = unpack(chunk, in_chunk * ROW_BYTES)
            if at >= confirmed:
                break
            if records:
                queue = queues[queue_id]
                if base >= queue.next_confirmed:
                    if base != queue.next_confirmed:
                        self._jumped(queue, base)
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
        rows = self._rows
        count = max(self._visible, rows.number_at(log_offset))
        if count >= rows.count:
            return
        touched = {rows.row(number)[3] for number in range(count, rows.count)}
        while self._jumps and self._jumps[-1].log_offset >= log_offset:
            touched.update(self._jumps.pop().stood)
        rows.cut(count)
        for queue_id in touched & self._queues.keys():
            queue = self._queues[queue_id]
            queue.cut(count)
            pending = len(queue.bases) > queue.visible
            following = self._next_of(queue, -1) if pending else queue.next_confirmed
            for jump in self._jumps:
                if queue_id in jump.stood and (following < jump.go_on_at or not (jump.lost or pending)):
                    following = jump.go_on_at
            queue.next_appended = following

    def set_queue(self, queue_id: int, *, begin: int, next_offset: int) -> None:
        """What the past knows of a queue, before its batches from `next_offset` on are added: nothing of it is in
        memory yet. Queue offsets."""
        former = self._queues.get(queue_id)
        queue = self._queues[queue_id] = QueueOrder(self._rows.floor)
        if former is not None:
            queue.logged_start, queue.gaps = former.logged_start, former.gaps
        queue.begin = begin
        queue.hot_start = queue.next_confirmed = queue.next_appended = next_offset

    def set_next(self, queue_id: int, next_offset: int) -> None:
        """A checkpoint says that the queue goes on at `next_offset`, above all that is known of it here: what comes in
        between is gone, or comes as copies."""
        queue = self._queues.get(queue_id)
        if queue is None or not queue.next_appended:
            self.set_queue(queue_id, begin=next_offset, next_offset=next_offset)
        queue = self._queues[queue_id]
        self._jumped(queue, next_offset)
        queue.next_confirmed = queue.next_appended = next_offset

    def set_start(self, queue_id: int, queue_offset: int) -> None:
        """The log says, confirmed, that the queue begins there; it never goes back."""
        queue = self._order(queue_id)
        queue.logged_start = max(queue.logged_start, queue_offset)

    def set_jump(self, queue_id: int, queue_offset: int) -> None:
        """From there on the past has the queue without a gap; what is below may be missing, or be copies."""
        if (queue := self._queues.get(queue_id)) is not None:
            queue.jump = max(queue.jump, queue_offset)

    def set_gap(self, queue_id: int, gap: Gap) -> None:
        """A checkpoint says that these queue offsets of the queue were given up after a loss."""
        queue = self._order(queue_id)
        first, following = gap
        # Jumps that are still to be confirmed here say so themselves, in their place: what is before them they join.
        for jump in self._jumps:
            if jump.lost and first <= jump.stood.get(queue_id, -1) < following:
                following = jump.stood[queue_id]
        if arrival := next((each for each in reversed(self._jumps) if not each.lost and queue_id in each.stood), None):
            arrival.told.append(gap)  # what is behind it in the log is not taken from the queue when it is confirmed
        if first < following:
            # It may begin before the one that is known here: of that, only the last jump was followed.
            queue.gaps = with_gap(queue.gaps, (first, following))
            self._gapped.add(queue_id)

    def forget_queues(self, queue_ids: Iterable[int]) -> None:
        """Queues are gone, for good; that is confirmed. Their rows go with those of the others."""
        for queue_id in queue_ids:
            self._queues.pop(queue_id, None)
            self._gapped.discard(queue_id)
            for jump in self._jumps:
                jump.stood.pop(queue_id, None)

    def set_past(self, *, first: int, end: int, first_append_time_us: int, records: int) -> None:
        """How many records the segment [first, end), log offsets, of the past holds, in log order and before any
        batch is added: `records_between` and `append_time_from` then know it by its ends."""
        self._rows.set_past(first=first, end=end, first_append_time_us=first_append_time_us, records=records)

    # --- Into the past --------------------------------------------------------------------------------------------

    def rows(self, first: int, end: int) -> list[memoryview]:
        """The batches that begin in [first, end), log offsets, all confirmed: `ROW`s in log order, read-only, in
        pieces. No copy is made and they stay as they are whatever happens here, so another thread may read them."""
        assert end <= self._confirmed, "only confirmed batches belong into a table"
        return self._rows.pieces(first, end)

    @property
    def hot_from(self) -> int:
        """The log offset of the first batch in memory; the end when there is none."""
        return self._rows.first_log_offset

    def evict(self, log_offset: int) -> None:
        """Forget the confirmed batches below `log_offset`: a table has them. What a queue begins at does not change.

        Costs a few µs; queues are trimmed later, when they are asked for and a few with each confirm.
        """
        rows = self._rows
        floor = min(rows.number_at(log_offset), self._visible)
        if floor <= rows.floor:
            return
        self._past_time = rows.time_below(floor)
        rows.forget(floor)
        self._sweeping = iter(list(self._queues.values()))

    def start_moved(self, log_offset: int, begins: Mapping[int, int]) -> None:
        """The log now begins at `log_offset` and the queues of `begins` at these queue offsets; nothing goes back."""
        self.evict(log_offset)
        for queue_id, begin in begins.items():
            if (queue := self._queues.get(queue_id)) is not None:
                queue.begin = max(queue.begin, min(begin, queue.next_confirmed))
        self._rows.forget_past(log_offset)

    def hot_start(self, queue_id: int) -> int:
        """From this queue offset on all confirmed batches of the queue are in memory."""
        queue = self._fresh(queue_id)
        return queue.hot_start if queue is not None else 0

    def hot_first(self, queue_id: int) -> int:
        """The first confirmed record of the queue in memory, behind a jump if one comes before it; the next one to come
        when there is none."""
        queue = self._fresh(queue_id)
        return queue.confirmed_from(0) if queue is not None else 0

    def past_until(self, queue_id: int, queue_offset: int) -> int | None:
        """None when `find` and `entries` answer for this queue offset. Otherwise the past must be asked, for batches
        that begin below the queue offset given; from there on the memory answers again."""
        queue = self._fresh(queue_id)
        if queue is None or queue_offset >= queue.hot_start:
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
        if queue is None or self._start_of(queue) >= queue.hot_start:
            return False
        return append_time_us <= self._past_time

    # --- Lookups --------------------------------------------------------------------------------------------------

    def queue_ids(self) -> list[int]:
        """The queues that have or had a batch, confirmed or not."""
        return [queue_id for queue_id, queue in self._queues.items() if queue.next_appended]

    def begin(self, queue_id: int) -> int:
        """The first visible queue offset, the past included; that of the next record while there is none."""
        queue = self._queues.get(queue_id)
        return self._start_of(queue) if queue is not None else 0

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
        return (self.gaps_of(queue_id) or (NO_GAP,))[-1]

    def gaps_of(self, queue_id: int) -> Gaps:
        """The confirmed gaps of a queue that are known."""
        queue = self._queues.get(queue_id)
        return queue.gaps if queue is not None else NO_GAPS

    def gaps(self) -> Iterator[tuple[int, Gaps]]:
        """(queue id, its gaps) of the queues that have some now, as appended when they are asked for; without those
        that the queue's start offset has passed, but for the newest."""
        for queue_id in self._gapped.union(*(jump.stood for jump in self._jumps)):
            if (queue := self._queues.get(queue_id)) is None:
                continue  # it was deleted meanwhile
            gaps, begin = queue.gaps, 0 if self.partial else self._start_of(queue)
            for jump in self._jumps:
                if (stood := jump.stood.get(queue_id)) is not None:
                    gaps = jump.gaps_behind(gaps, stood)
            if gaps:  # its jump may have been cut meanwhile
                yield queue_id, (*(each for each in gaps[:-1] if each[1] >= begin), gaps[-1])

    def find(self, queue_id: int, queue_offset: int) -> QueuedBatch:
        """The visible batch that holds a queue offset; within a jump, the first one after it.

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
        row = self._rows.row
        index = bisect_left(queue.numbers, append_time_us, 0, queue.visible, key=lambda number: row(number)[2])
        return max(self._start_of(queue), queue.confirmed_from(index))

    def entries(self, queue_id: int, from_queue_offset: int, max_bytes: int) -> list[QueuedBatch]:
        """Visible batches in order, from the one that holds `from_queue_offset`, or the first one after it, on: as many
        as fit into `max_bytes`, at least one if there is one. They end before a jump and where the past comes in.

        Raises OffsetOutOfRange as `find`. Only where `past_until` is None.
        """
        if from_queue_offset == self.next_confirmed(queue_id):
            return []
        queue, index = self._locate(queue_id, from_queue_offset)
        if index >= queue.visible:
            return []  # in a jump that no record has followed yet
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

    def entries_before(self, queue_id: int, until: int, max_bytes: int) -> list[QueuedBatch]:
        """Visible batches in order, up to the last one in memory that begins below the queue offset `until`: as many as
        fit into `max_bytes`, at least one if there is one, without a hole between them."""
        queue = self._fresh(queue_id)
        runs: list[QueuedBatch] = []
        at = bisect_left(queue.bases, min(until, queue.next_confirmed)) if queue is not None else 0
        while queue is not None and at:
            run = self._run(queue, at - 1)
            max_bytes -= run.length
            if runs and (max_bytes < 0 or run.next_queue_offset != runs[-1].base_queue_offset):
                break
            runs.append(run)
            at -= 1
        return runs[::-1]

    def records_between(self, first_log_offset: int, last_log_offset: int) -> int:
        """The number of records in the batches that begin in [first, last), pending ones included: exact from
        `hot_from` on, below it true to a chunk of 4096 batches or, after a restart, to a segment."""
        return max(0, self._rows.records_before(last_log_offset) - self._rows.records_before(first_log_offset))

    def append_time_from(self, log_offset: int) -> int | None:
        """When the first batch at or after `log_offset` was appended (µs UTC), pending ones included, copied ones not;
        below `hot_from`, when the first one of its chunk or segment was. None when there is none."""
        return self._rows.append_time_from(log_offset)

    # --- Inside ---------------------------------------------------------------------------------------------------

    def _start_of(self, queue: QueueOrder) -> int:
        begin = queue.begin if queue.logged_start < 0 else min(queue.logged_start, queue.next_confirmed)
        if queue.gaps and (gap := gap_at(queue.gaps, begin)) is not None:
            begin = gap[1]  # it has nothing from before the jump
        return max(begin, queue.jump) if self.partial else begin

    def _order(self, queue_id: int) -> QueueOrder:
        queue = self._queues.get(queue_id)
        if queue is None:
            queue = self._queues[queue_id] = QueueOrder(self._rows.floor)
        return queue

    def _confirm_jump(self, jump: OffsetJump) -> set[int]:
        """All before it in the log is visible, and nothing behind it."""
        gained: set[int] = set()
        for queue_id in jump.stood:
            queue = self._queues[queue_id]
            if not jump.lost:
                queue.arrive(jump)
            elif queue.next_confirmed < jump.go_on_at:
                if queue.begin >= queue.next_confirmed:
                    queue.begin = jump.go_on_at  # it is empty
                queue.gaps = with_gap(queue.gaps, (queue.next_confirmed, jump.go_on_at))
                self._jumped(queue, jump.go_on_at)
                queue.next_confirmed = jump.go_on_at
                gained.add(queue_id)
        self._gapped |= gained
        return gained

    @staticmethod
    def _jumped(queue: QueueOrder, base: int) -> None:
        """Its next confirmed record is `base` and not the one that was expected."""
        queue.jump = base
        if not queue.next_confirmed:
            queue.begin = base

    def _sweep(self, queues: Iterator[QueueOrder]) -> None:
        for _ in range(_SWEPT_AT_ONCE):
            queue = next(queues, None)
            if queue is None:
                self._sweeping = None
                return
            queue.trim(self._rows.floor)

    def _fresh(self, queue_id: int) -> QueueOrder | None:
        queue = self._queues.get(queue_id)
        if queue is not None and queue.floor != self._rows.floor:
            queue.trim(self._rows.floor)
        return queue

    def _run(self, queue: QueueOrder, index: int) -> QueuedBatch:
        log_offset, base, _, _, records, length, *_ = self._rows.row(queue.numbers[index])
        return QueuedBatch(log_offset, base, records, length)

    def _next_of(self, queue: QueueOrder, index: int) -> int:
        return queue.bases[index] + self._rows.row(queue.numbers[index])[4]

    def _locate(self, queue_id: int, queue_offset: int) -> tuple[QueueOrder, int]:
        queue = self._fresh(queue_id)
        begin, following = self.begin(queue_id), self.next_confirmed(queue_id)
        if queue is None or not begin <= queue_offset < following:
            raise self._out_of_range(queue_id, queue_offset)
        index = bisect_right(queue.bases, queue_offset) - 1  # confirmed, as `queue_offset` is
        if index < 0 or queue_offset >= self._next_of(queue, index):
            assert queue_offset >= queue.hot_start, "the past was not asked"
            index += 1
        return queue, index

    def _out_of_range(self, queue_id: int, queue_offset: int) -> OffsetOutOfRange:
        begin, following = self.begin(queue_id), self.next_confirmed(queue_id)
        return OffsetOutOfRange(
            f"queue offset {queue_offset} is not among the confirmed ones, {begin} up to {following}",
            begin=begin,
            next=following,
        )
