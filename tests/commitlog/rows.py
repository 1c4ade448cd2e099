"""Batches as headers and rows, for the tests of the index and the tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.header import BatchHeader, Flag, Kind, log_seed, read_header
from mirrorlog.commitlog.format.rows import ROW, pack_row
from mirrorlog.commitlog.index.tables import Tables, build_table
from tests.commitlog.logs import LOG_ID, make_batch

SEED = log_seed(LOG_ID)
LENGTH = 400
_TEMPLATE = read_header(make_batch())


def header(
    log_offset: int,
    *,
    queue_id: int = 1,
    base: int,
    records: int = 10,
    time_us: int = 0,
    kind: Kind = Kind.DATA,
    copied: bool = False,
    length: int = LENGTH,
) -> BatchHeader:
    return _TEMPLATE._replace(
        log_offset=log_offset,
        length=length,
        queue_id=queue_id,
        base_queue_offset=base,
        record_count=records,
        append_time_us=time_us,
        kind=kind,
        flags=Flag.COPIED if copied else Flag.NONE,
    )


def rows_of(headers: Iterable[BatchHeader]) -> list[memoryview]:
    """Each in a piece of its own."""
    return [memoryview(pack_row(each)) for each in headers]


def end_of(headers: list[BatchHeader]) -> int:
    return headers[-1].next_log_offset


def table_of(headers: list[BatchHeader], start: int = 0) -> bytes:
    return bytes(build_table(rows_of(headers), start=start, end=end_of(headers), seed=SEED))


def tables_in(directory: Path) -> Tables:
    return Tables(OS_FILES, directory, seed=SEED)


def even_rows(batches: int, *, queues: int, start: int = 0, base: int = 0, length: int = 1024) -> np.ndarray:
    """`batches` of 10 records, queue after queue in turn (1, 2, …, queues, 1, …), each queue from `base` on."""
    number = np.arange(batches, dtype=np.uint64)
    rows = np.zeros(batches, ROW)
    rows["log_offset"] = start + number * np.uint64(length)
    rows["length"] = length
    rows["kind"] = Kind.DATA
    rows["records"] = 10
    rows["queue_id"] = 1 + number % np.uint64(queues)
    rows["base"] = base + number // np.uint64(queues) * np.uint64(10)
    rows["append_time"] = start + number
    return rows
