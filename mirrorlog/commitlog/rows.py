"""A batch as a row of 40 bytes: what memory and tables know of it."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from mirrorlog.commitlog.format import BatchHeader, Flag, Kind

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
        ("reserved", "<u2"),
    ]
)
"""A batch. `records` is 0 for kinds that carry no records of a queue; times are µs UTC, `length` is bytes."""

PACKED_ROW: Final = struct.Struct("<QQqIIIBBH")
"""The same for one row, in the same order."""

ROW_BYTES: Final = 40
COPIED: Final = int(Flag.COPIED)

# The kinds that carry records of a queue are the lowest: one comparison on the hot path.
INDEXED_MAX: Final = int(Kind.TRANSACTION)

assert PACKED_ROW.size == ROW_BYTES == ROW.itemsize
assert [kind for kind in Kind if kind <= INDEXED_MAX] == [Kind.DATA, Kind.TRANSACTION]


def pack_row(header: BatchHeader) -> bytes:
    """A batch as a `ROW`."""
    records = header.record_count if header.kind <= INDEXED_MAX else 0
    return PACKED_ROW.pack(
        header.log_offset, header.base_queue_offset, header.append_time_us, header.queue_id, records, header.length,
        header.kind, header.flags & COPIED, 0,
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
