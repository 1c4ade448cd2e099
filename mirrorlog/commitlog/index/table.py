"""The table of a sealed segment: where each of its batches stands, exactly, in a file beside it.

Made on a helper from the rows of the hot index (`index.QueueIndex.rows`) or from a walk over the segment, once all of
it is confirmed and flushed. With it the memory can forget the batches, the index of the past can be sparse, and a
segment is read again without walking its headers. It can be deleted at any time: the same batches make the same file.

Rows in checked blocks (`blocks`), little endian. Block 0 is the head:

    offset  size  field
         0     4  magic             b"MLTB"
         4     4  version           1
         8     8  start             log offset of the segment
        16     8  end               log offset of its end
        24     4  seed              of the log's header checksums
        28     4  content           CRC-32C of the CRCs of all other blocks, in order
        32     4  stretches         rows of each section, in the order in which they follow
        36     4  batches
        40     4  states
        44     4  borders
        48     8  records
        56     8  first append time signed, µs UTC
        64     8  last append time

- stretches, 48 bytes: u32 queue id, first batch row, batches, copied batches; u64 first and next queue offset; i64
  first and last append time. A stretch is dense: each of its batches begins where the one before ends. Most queues
  have one; a jump or copied batches make more. In order of queue and queue offset.
- batches, 28 bytes: u64 base queue offset, i64 append time, u32 position in units of 8 from the segment's start, u32
  length, u32 records. In the same order. Of two that hold the same records the one later in the log is here.
- states, 16 bytes: u32 position, u32 length, u32 queue id, u8 kind, 3 zero bytes: what is no data, in log order, so
  that state is rebuilt without reading the data.
- borders, 4 bytes: u32 position of every batch but those inside of transactions, in log order.

Everything is found by bisecting with reads of single blocks, so memory holds a head and a few blocks per open table.
Rejected: columns instead of rows (a read for each of them), a map of the file (a bad sector would be a SIGBUS), a
footer in the segment (its size would not be known when the file is allocated, and copies of different age would
differ).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from mirrorlog.commitlog.files import File, Files
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.header import ALIGNMENT
from mirrorlog.commitlog.index.blocks import BLOCK_BYTES, CheckedBlocks, Rows, Section, blocks_for
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.segments.segment import segment_name, segment_start
from mirrorlog.errors import BadRequest, IndexDoubtful

SUFFIX: Final = ".table"

STRETCH: Final = np.dtype(
    [
        ("queue_id", "<u4"),
        ("first_row", "<u4"),
        ("batches", "<u4"),
        ("copied", "<u4"),
        ("base", "<u8"),
        ("next", "<u8"),
        ("first_time", "<i8"),
        ("last_time", "<i8"),
    ]
)
BATCH: Final = np.dtype(
    [("base", "<u8"), ("append_time", "<i8"), ("position", "<u4"), ("length", "<u4"), ("records", "<u4")]
)
STATE_ROW: Final = np.dtype(
    [("position", "<u4"), ("length", "<u4"), ("queue_id", "<u4"), ("kind", "u1"), ("reserved", "u1", 3)]
)
BORDER: Final = np.dtype("<u4")
_SECTIONS: Final = (STRETCH, BATCH, STATE_ROW, BORDER)

_MAGIC: Final = b"MLTB"
_VERSION: Final = 1
_HEAD = struct.Struct("<4sIQQIIIIIIQqq")
_STRETCH = struct.Struct("<IIIIQQqq")
_BATCH = struct.Struct("<QqIII")
_U32 = struct.Struct("<I")
_SALT = struct.Struct("<QQ")

assert (_STRETCH.size, _BATCH.size) == (STRETCH.itemsize, BATCH.itemsize) == (48, 28)
assert (STATE_ROW.itemsize, _HEAD.size) == (16, 72)


class TableHead(NamedTuple):
    """Block 0. Log offsets, rows per section, µs UTC. `content` tells two tables of the same segment apart."""

    start: int
    end: int
    seed: int
    content: int
    stretches: int
    batches: int
    states: int
    borders: int
    records: int
    first_append_time_us: int
    last_append_time_us: int

    def encode(self) -> bytes:
        """The bytes at the start of block 0."""
        return _HEAD.pack(_MAGIC, _VERSION, *self)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.stretches, self.batches, self.states, self.borders

    @property
    def blocks(self) -> int:
        """How many blocks the file has."""
        return 1 + sum(blocks_for(count, dtype.itemsize) for count, dtype in zip(self.counts, _SECTIONS, strict=True))


class QueueStretch(NamedTuple):
    """A dense stretch of a queue within one segment: queue offsets [base, next)."""

    queue_id: int
    first_row: int
    batches: int
    copied: int
    base: int
    next: int
    first_time: int
    last_time: int


@dataclass(frozen=True, slots=True)
class StateBatch:
    """A batch that is no data: a queue-state change, a checkpoint, a control batch."""

    log_offset: int
    length: int
    queue_id: int
    kind: int


def table_name(start: int) -> str:
    """The file beside the segment that begins at log offset `start`."""
    return segment_name(start) + SUFFIX


def table_start(name: str) -> int | None:
    """The log offset that a file's name says, or None when it is no table's name."""
    return segment_start(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None


def table_salt(start: int, end: int, seed: int) -> int:
    """Where the checksums of a table's blocks start: a block of another segment or log does not count."""
    return crc32c(_SALT.pack(start, end), seed)


class SegmentTable:
    """An open table. Blocking, one thread at a time; holds a file descriptor and a few blocks.

    Every method raises IndexDoubtful when what it reads is damaged (make the table again from the segment) and
    OSError.
    """

    __slots__ = ("_batches", "_blocks", "_borders", "_file", "_states", "_stretches", "head")

    def __init__(self, file: File, head: TableHead, blocks: CheckedBlocks) -> None:
        """Use `open`."""
        self.head = head
        self._file = file
        self._blocks = blocks
        sections: list[Section] = []
        at = 1
        for count, dtype in zip(head.counts, _SECTIONS, strict=True):
            sections.append(Section(blocks, dtype, first_block=at, count=count))
            at = sections[-1].end_block
        self._stretches, self._batches, self._states, self._borders = sections

    @classmethod
    def open(cls, files: Files, path: Path, *, start: int, end: int, seed: int) -> Self:
        """The table of the segment [start, end) of the log with this seed. Raises IndexDoubtful when it is of something
        else, damaged or cut short; OSError (FileNotFoundError when there is none)."""
        file = files.open(path)
        try:
            blocks = CheckedBlocks(file, salt=table_salt(start, end, seed), name=path.name)
            magic, version, *fields = _HEAD.unpack_from(blocks.block(0))
            head = TableHead(*fields)
            if (magic, version) != (_MAGIC, _VERSION) or head[:3] != (start, end, seed):
                raise IndexDoubtful(
                    f"{path.name}: version {version} of [{head.start}, {head.end}) is not what is asked"
                )
            if file.size() != head.blocks * BLOCK_BYTES:
                raise IndexDoubtful(f"{path.name}: {file.size()} bytes instead of {head.blocks * BLOCK_BYTES}")
        except BaseException:
            file.close()
            raise
        return cls(file, head, blocks)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def start(self) -> int:
        """The segment's first log offset."""
        return self.head.start

    @property
    def end(self) -> int:
        """The log offset after the segment's last batch."""
        return self.head.end

    @property
    def reads(self) -> int:
        """How many blocks were read from the file so far."""
        return self._blocks.reads

    # --- By queue ---

    def find(self, queue_id: int, queue_offset: int) -> QueuedBatch | None:
        """The batch that holds a queue offset, or the first one of the queue in this segment after it."""
        found = self._find(queue_id, queue_offset)
        return self._run(found[1]) if found is not None else None

    def entries(self, queue_id: int, from_queue_offset: int, max_bytes: int, *, until: int) -> list[QueuedBatch]:
        """Batches that follow one another without a hole, from the one that `find` gives, and begin below the queue
        offset `until`: as many as fit into `max_bytes`, at least one. Empty when there is none."""
        found = self._find(queue_id, from_queue_offset)
        runs: list[QueuedBatch] = []
        if found is not None:
            stretch, number = found
            for row in range(number, stretch.first_row + stretch.batches):
                run = self._run(row)
                max_bytes -= run.length
                if run.base_queue_offset >= until or (runs and max_bytes < 0):
                    break
                runs.append(run)
        return runs

    def entries_before(self, queue_id: int, until: int, max_bytes: int, *, first: int) -> list[QueuedBatch]:
        """Batches that follow one another without a hole, up to the last one here that begins below the queue offset
        `until`, and from the one that begins at `first` on at most: as many as fit into `max_bytes`, at least one.
        Empty when there is none."""
        index = bisect_left(range(self._stretches.count), (queue_id, until), key=self._stretch_key) - 1
        runs: list[QueuedBatch] = []
        if index >= 0 and (stretch := self._stretch(index)).queue_id == queue_id:
            rows = self._rows_of(stretch)
            for row in reversed(rows[: bisect_left(rows, until, key=lambda row: self._batch(row)[0])]):
                run = self._run(row)
                max_bytes -= run.length
                if run.base_queue_offset < first or (runs and max_bytes < 0):
                    break
                runs.append(run)
        return runs[::-1]

    def size(self, queue_id: int, first: int, until: int) -> int:
        """Bytes of the batches of a queue here that begin in [first, until), queue offsets."""
        size = 0
        for stretch in map(self._stretch, self._numbers_of(queue_id)):
            if stretch.base < until and stretch.next > first:
                there = self._batches.some(stretch.first_row, stretch.first_row + stretch.batches)
                low, high = np.searchsorted(there["base"], np.array([first, until], np.uint64))
                size += int(there["length"][low:high].sum(dtype=np.int64))
        return size

    def find_time(self, queue_id: int, append_time_us: int) -> int | None:
        """The first queue offset here whose batch was appended at or after a time (µs UTC)."""
        numbers = self._numbers_of(queue_id)
        index = bisect_left(numbers, append_time_us, key=lambda number: self._stretch(number).last_time)
        if index == len(numbers):
            return None
        rows = self._rows_of(self._stretch(numbers[index]))
        at = bisect_left(rows, append_time_us, key=lambda row: self._batch(row)[1])
        return self._batch(rows[min(at, len(rows) - 1)])[0]

    def stretches(self) -> Rows:
        """All stretches: an array of `STRETCH`, in order of queue id and queue offset."""
        return self._stretches.all()

    def batches(self) -> Rows:
        """All batches that carry records: an array of `BATCH`, in the order of the stretches."""
        return self._batches.all()

    # --- By log offset ---

    def states(self) -> list[StateBatch]:
        """What is no data, in log order."""
        return [
            StateBatch(
                self._log_offset(int(row["position"])), int(row["length"]), int(row["queue_id"]), int(row["kind"])
            )
            for rows in self._states.slices()
            for row in rows
        ]

    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins there, or the segment ends."""
        if log_offset == self.head.end:
            return True
        index = self._border_index(log_offset)
        return index < self._borders.count and self._border(index) == log_offset

    def run_end(self, log_offset: int, max_bytes: int, until: int) -> int:
        """Where a run of whole batches from `log_offset` ends, as `Segment.run_end`. Raises BadRequest when no batch
        begins there."""
        index = self._border_index(log_offset)
        if index == self._borders.count or self._border(index) != log_offset:
            raise BadRequest(f"log offset {log_offset} is not where a batch begins")
        limit = min(log_offset + max_bytes, until)
        if self.head.end <= limit:
            return self.head.end
        last = self._border_index(limit + 1) - 1
        if last > index:
            return self._border(last)
        first_end = self._border(index + 1) if index + 1 < self._borders.count else self.head.end
        return first_end if first_end <= until else log_offset

    # --- As a whole ---

    def verify(self) -> None:
        """Read every block. Raises IndexDoubtful for the first that is damaged."""
        crcs = bytearray()
        for number in range(1, self.head.blocks):
            crcs += self._blocks.block(number)[-4:]
        if crc32c(crcs) != self.head.content:
            raise IndexDoubtful(f"the table of segment {self.head.start} is made of blocks of several tables")

    # --- Inside ---

    def _find(self, queue_id: int, queue_offset: int) -> tuple[QueueStretch, int] | None:
        """(stretch, batch row)."""
        index = bisect_right(range(self._stretches.count), (queue_id, queue_offset), key=self._stretch_key) - 1
        if index >= 0:
            stretch = self._stretch(index)
            if stretch.queue_id == queue_id and queue_offset < stretch.next:
                rows = self._rows_of(stretch)
                return stretch, rows[bisect_right(rows, queue_offset, key=lambda row: self._batch(row)[0]) - 1]
        if index + 1 < self._stretches.count:
            stretch = self._stretch(index + 1)
            if stretch.queue_id == queue_id:
                return stretch, stretch.first_row
        return None

    def _numbers_of(self, queue_id: int) -> range:
        """Of the stretches of a queue."""
        first = bisect_left(range(self._stretches.count), (queue_id, 0), key=self._stretch_key)
        return range(first, bisect_left(range(self._stretches.count), (queue_id + 1, 0), key=self._stretch_key))

    def _rows_of(self, stretch: QueueStretch) -> range:
        return range(stretch.first_row, stretch.first_row + stretch.batches)

    def _stretch(self, number: int) -> QueueStretch:
        return QueueStretch._make(_STRETCH.unpack_from(*self._stretches.row(number)))

    def _stretch_key(self, number: int) -> tuple[int, int]:
        stretch = self._stretch(number)
        return stretch.queue_id, stretch.base

    def _batch(self, number: int) -> tuple[int, int, int, int, int]:
        """(base queue offset, append time, position, length, records)."""
        return _BATCH.unpack_from(*self._batches.row(number))

    def _run(self, number: int) -> QueuedBatch:
        base, _, position, length, records = self._batch(number)
        return QueuedBatch(self._log_offset(position), base, records, length)

    def _log_offset(self, position: int) -> int:
        return self.head.start + position * ALIGNMENT

    def _border(self, number: int) -> int:
        return self._log_offset(int(_U32.unpack_from(*self._borders.row(number))[0]))

    def _border_index(self, log_offset: int) -> int:
        """The first border at or after `log_offset`."""
        return bisect_left(range(self._borders.count), log_offset, key=self._border)
