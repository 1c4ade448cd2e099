"""Batches as a consumer gives them out, made without a node."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from mirrorlog.client import ConsumedBatch
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header, stamp

BASE = 1_000
APPEND_TIME_US = 1_700_000_000_123_456
QUEUE = "flüge"
LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
EPOCH = 3

absent_or_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=8), absent_or_bytes), max_size=3)
# Within what pyarrow can turn into datetimes; the columns themselves hold any int64.
any_time = st.none() | st.integers(-(2**50), 2**50)


def record_lists(times: st.SearchStrategy[int | None] = any_time) -> st.SearchStrategy[list[Record]]:
    """Of one batch."""
    return st.lists(st.builds(Record, absent_or_bytes, absent_or_bytes, headers, times), min_size=1, max_size=20)


def stamped(
    records: Sequence[Record], *, base: int = BASE, append_time_us: int = APPEND_TIME_US, epoch: int = EPOCH
) -> bytearray:
    """A batch as it stands in the log."""
    batch = encode_batch(list(records), queue_id=7)
    stamp(batch, log_offset=4096, base_queue_offset=base, append_time_us=append_time_us, epoch=epoch, flags=0, seed=1)
    return batch


def consumed(
    records: Sequence[Record], first: int | None = None, following: int | None = None, **stamps: int
) -> ConsumedBatch:
    """Of it the records with queue offsets `first` up to `following`, by default all."""
    return given_out(stamped(records, **stamps), first, following)


def given_out(batch: bytearray, first: int | None = None, following: int | None = None) -> ConsumedBatch:
    """A batch that stands in the log."""
    header = read_header(batch)
    return ConsumedBatch(
        queue=QUEUE,
        log_id=LOG_ID,
        header=header,
        body=parse_batch_body(batch),
        raw=memoryview(batch),
        first=header.base_queue_offset if first is None else first,
        next=header.next_queue_offset if following is None else following,
    )
