"""The batches of a log in memory: one row of 40 bytes each, in log order, in chunks of fixed size. Pure.

Row numbers count the batches ever added, from 0; row n stands in chunk n // 4096. Of each chunk, of those that were
forgotten too, it is known where it begins: log offset, append time, and how many records stand before it. So the
records between two log offsets are known exactly in memory, and below it true to a chunk or, after a restart, to a
segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.format.rows import PACKED_ROW, ROW, ROW_BYTES

CHUNK_ROWS: Final = 4096
CHUNK_BITS: Final = 12
IN_CHUNK: Final = CHUNK_ROWS - 1
_CHUNK_BYTES: Final = CHUNK_ROWS * ROW_BYTES
TIME_MAX: Final = 2**63 - 1

assert CHUNK_ROWS == 1 << CHUNK_BITS


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


class RowChunks:
    """`count`: of the batches ever added; `floor`: the first row that is not forgotten; `end`: log offset behind the
    last batch; `tail`: the chunk that row `count` goes into, unless that begins a new one (`open_chunk`).

    Whoever adds a row packs it into `tail` and raises `count` and `end`: it is done for every batch of the log.
    """

    __slots__ = ("_marks", "_past_records", "chunks", "count", "end", "first_chunk", "floor", "tail")

    def __init__(self) -> None:
        self.chunks: list[bytearray] = []
        self.first_chunk = 0
        self.tail = bytearray()
        self.floor = 0
        self.count = 0
        self.end = 0
        self._marks = _Marks()
        # Records below the first chunk in memory, while there is no chunk.
        self._past_records = 0

    # --- changes ---

    def open_chunk(self, header: BatchHeader) -> None:
        """The batch of `header`, which is about to be added, is the first of a chunk."""
        self._marks.add(header.log_offset, header.append_time_us, self.records_before(self.end))
        self.tail = bytearray(_CHUNK_BYTES)
        self.chunks.append(self.tail)

    def cut(self, count: int) -> None:
        """Keep the first `count` rows."""
        self.end = self.row(count)[0]
        self.count = count
        needed = ((count + IN_CHUNK) >> CHUNK_BITS) - self.first_chunk
        if not needed:
            self._past_records = self._marks.records[-len(self.chunks)]
        self._marks.cut(len(self._marks.log_offsets) - len(self.chunks) + needed)
        del self.chunks[needed:]
        self.tail = self.chunks[-1] if self.chunks else bytearray()

    def forget(self, floor: int) -> None:
        """Drop the rows below `floor`; where their chunks began stays known."""
        self.floor = floor
        first_chunk = floor >> CHUNK_BITS
        if first_chunk - self.first_chunk == len(self.chunks):
            self._past_records = self.records_before(self.end)
        del self.chunks[: first_chunk - self.first_chunk]
        self.first_chunk = first_chunk

    def forget_past(self, log_offset: int) -> None:
        """The log begins there: forget where chunks began that end below."""
        held = len(self._marks.log_offsets) - len(self.chunks)
        self._marks.forget(min(held, max(0, bisect_right(self._marks.log_offsets, log_offset) - 1)))

    def set_past(self, *, first: int, end: int, first_append_time_us: int, records: int) -> None:
        """As `QueueIndex.set_past`."""
        self._marks.add(first, first_append_time_us, self._past_records)
        self._past_records += records
        self.end = end

    # --- lookups ---

    def row(self, number: int) -> tuple[int, ...]:
        """The fields of `ROW`."""
        chunk = self.chunks[(number >> CHUNK_BITS) - self.first_chunk]
        return PACKED_ROW.unpack_from(chunk, (number & IN_CHUNK) * ROW_BYTES)

    @property
    def first_log_offset(self) -> int:
        """Of the first batch in memory; the end when there is none."""
        return self.row(self.floor)[0] if self.floor < self.count else self.end

    def number_at(self, log_offset: int) -> int:
        """The number of the first row in memory at or after `log_offset`."""
        first = self.first_chunk << CHUNK_BITS
        held = len(self._marks.log_offsets) - len(self.chunks)
        chunk = bisect_right(self._marks.log_offsets, log_offset, held) - 1 - held
        if chunk < 0:
            return first
        at = self.row
        low = first + (chunk << CHUNK_BITS)
        high = min(self.count, low + CHUNK_ROWS)
        return low + bisect_left(range(low, high), log_offset, key=lambda number: at(number)[0])

    def pieces(self, first: int, end: int) -> list[memoryview]:
        """The batches that begin in [first, end), log offsets: `ROW`s in log order, read-only."""
        at, last = max(self.floor, self.number_at(first)), self.number_at(end)
        pieces: list[memoryview] = []
        while at < last:
            chunk = at >> CHUNK_BITS
            piece_end = min(last, (chunk + 1) << CHUNK_BITS)
            begin = (at & IN_CHUNK) * ROW_BYTES
            size = (piece_end - at) * ROW_BYTES
            pieces.append(memoryview(self.chunks[chunk - self.first_chunk])[begin : begin + size].toreadonly())
            at = piece_end
        return pieces

    def time_below(self, floor: int) -> int:
        """No batch below row `floor` was appended later. Copies keep an old time; the others' times never go back."""
        for number in range(floor - 1, max(self.floor, floor - CHUNK_ROWS) - 1, -1):
            _, _, append_time_us, *_, copied, _ = self.row(number)
            if not copied:
                return append_time_us
        return TIME_MAX

    def append_time_from(self, log_offset: int) -> int | None:
        """As `QueueIndex.append_time_from`."""
        if log_offset >= self.end:
            return None
        if log_offset >= self.first_log_offset:
            for number in range(self.number_at(log_offset), self.count):
                _, _, append_time_us, *_, copied, _ = self.row(number)
                if not copied:
                    return append_time_us
            return None
        return self._marks.times[max(0, bisect_right(self._marks.log_offsets, log_offset) - 1)]

    def records_before(self, log_offset: int) -> int:
        """The records in all batches that begin below `log_offset`, counted from the first one that is known."""
        marks = self._marks
        mark = bisect_right(marks.log_offsets, log_offset) - 1
        if mark < 0:
            return marks.records[0] if marks.records else self._past_records
        chunk = mark - (len(marks.log_offsets) - len(self.chunks))
        if chunk >= 0:
            return marks.records[mark] + self._records_in_chunk(chunk, log_offset)
        return marks.records[mark] + self._records_in_past(mark, log_offset)

    def _records_in_chunk(self, chunk: int, log_offset: int) -> int:
        low = (self.first_chunk + chunk) << CHUNK_BITS
        rows = np.frombuffer(self.chunks[chunk], ROW, count=self.number_at(log_offset) - low)
        return int(rows["records"].sum(dtype=np.uint64))

    def _records_in_past(self, mark: int, log_offset: int) -> int:
        """In proportion to the bytes: what is known are the records of the whole stretch."""
        marks = self._marks
        known = mark + 1 < len(marks.records)
        records = (marks.records[mark + 1] if known else self._past_records) - marks.records[mark]
        first = marks.log_offsets[mark]
        end = marks.log_offsets[mark + 1] if known else self.end
        return records * min(log_offset - first, end - first) // (end - first) if end > first else 0
