"""A batch as a row of 40 bytes: what memory and tables know of it.

Rows follow one another in the log without a gap. So of a transaction's envelope a row says the header alone, and what
is inside has rows of its own, which say that they are.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Flag, Kind

ROW: Final = np.dtype(
    [
        ("log_offset", "<u8"),
        ("base", "<u8"),
        ("append_time", "<i8"),
        ("queue_id", "<u4"),
        ("records", "<u4"),
        ("length", "<u4"),
        ("kind", "u1"),
        ("copied", "u1"),
        ("inner", "<u2"),
    ]
)
"""A batch. `records` is 0 for kinds that carry no records of a queue; times are µs UTC, `length` is bytes, of an
envelope those of its header. `inner` is not 0 inside of one."""

PACKED_ROW: Final = struct.Struct("<QQqIIIBBH")
"""The same for one row, in the same order."""

ROW_BYTES: Final = 40
COPIED: Final = int(Flag.COPIED)
INNER: Final = int(Flag.INNER)
ENVELOPE: Final = int(Kind.TRANSACTION)

# The kind that carries records of a queue is the lowest: one comparison on the hot path.
INDEXED_MAX: Final = int(Kind.DATA)

assert PACKED_ROW.size == ROW_BYTES == ROW.itemsize
assert [kind for kind in Kind if kind <= INDEXED_MAX] == [Kind.DATA]


def pack_row(header: BatchHeader) -> bytes:
    """A batch as a `ROW`."""
    records = header.record_count if header.kind <= INDEXED_MAX else 0
    length = HEADER_SIZE if header.kind == ENVELOPE else header.length
    return PACKED_ROW.pack(
        header.log_offset, header.base_queue_offset, header.append_time_us, header.queue_id, records, length,
        header.kind, header.flags & COPIED, header.flags & INNER,
    )  # fmt: skip


class RowCollector:
    """An OnBatch that gathers the rows of a segment which is walked again."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def __call__(self, header: BatchHeader, batch: memoryview) -> None:
        self._rows += pack_row(header)

    def rows(self) -> list[memoryview]:
        """As `QueueIndex.rows`."""
        return [memoryview(self._rows).toreadonly()]
