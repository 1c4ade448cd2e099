"""What was fetched, as responses of a Consume stream: raw batches in one, records in as many as they need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from mirrorlog.client.consumer.records import ConsumedBatch, Views
from mirrorlog.commitlog.format.body import Body, Int64s
from mirrorlog.doors.grpc.fetched import Fetched
from mirrorlog.errors import BadBatch
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import consumer_pb2 as pb

# What a record, and one of its headers, takes in a message besides its bytes, at most.
_RECORD_OVERHEAD_BYTES: Final = 32
_HEADER_OVERHEAD_BYTES: Final = 16


class _Rows(NamedTuple):
    """Rows of one batch that go into one response; `size_bytes`: at most."""

    batch: ConsumedBatch
    rows: range
    size_bytes: int

    @property
    def first(self) -> int:
        return self.batch.first + self.rows.start

    @property
    def next(self) -> int:
        return self.batch.first + self.rows.stop


def nothing(fetched: Fetched) -> pb.ConsumeResponse:
    """Where the reader stands, without records."""
    return _response(fetched, first=fetched.next, following=fetched.next, epoch=fetched.epoch)


def raw(fetched: Fetched) -> pb.ConsumeResponse:
    """All batches in one response. No record is touched."""
    response = _response(fetched, first=fetched.first, following=fetched.next, epoch=fetched.epoch)
    response.batch_count = len(fetched.batches)
    response.raw = b"".join(batch.raw for batch in fetched.batches)
    return response


def records(fetched: Fetched, *, max_bytes: int) -> Iterator[pb.ConsumeResponse]:
    """The reader's records, at most `max_bytes` or one record in each response. Raises BadBatch with its place, behind
    what is good before it."""
    first, size = fetched.first, 0
    held: list[_Rows] = []
    try:
        for rows in _all_rows(fetched, max_bytes):
            if held and size + rows.size_bytes > max_bytes:
                yield _records_response(fetched, held, first, following=rows.first)
                first, size, held = rows.first, 0, []
            held.append(rows)
            size += rows.size_bytes
    except BadBatch:
        if held:
            yield _records_response(fetched, held, first, following=held[-1].next)
        raise
    yield _records_response(fetched, held, first, following=fetched.next)


def _records_response(fetched: Fetched, held: Sequence[_Rows], first: int, *, following: int) -> pb.ConsumeResponse:
    epoch = held[-1].batch.header.epoch
    response = _response(fetched, first=first, following=following, epoch=epoch)
    for rows in held:
        header = rows.batch.header
        priority, ttl_ms, delay_ms = rows.batch.attributes
        response.batches.batches.add(
            base_queue_offset=rows.first,
            append_time_us=header.append_time_us,
            log_offset=header.log_offset,
            epoch=header.epoch,
            records=_records(rows.batch.body, rows.rows),
            priority=priority,
            ttl_ms=ttl_ms,
            delay_ms=delay_ms,
        )
    return response


def _response(fetched: Fetched, *, first: int, following: int, epoch: int) -> pb.ConsumeResponse:
    return pb.ConsumeResponse(
        first=first,
        next=common.Position(log_id=fetched.source.log_id, epoch=epoch, queue_offset=following),
        begin=fetched.begin,
        end=fetched.end,
        node_id=fetched.source.node_id,
    )


# --- Batches to rows ----------------------------------------------------------------------------------------------


def _all_rows(fetched: Fetched, max_bytes: int) -> Iterator[_Rows]:
    """The reader's rows in order, those of a large batch in several runs of at most `max_bytes` or one row."""
    for closed in fetched.batches:
        batch = closed.opened()
        _ = batch.attributes  # sound here, so also where they are given out
        row, stop = max(0, fetched.first - batch.first), min(len(batch), fetched.next - batch.first)
        ends = np.cumsum(_sizes(batch.body))
        while row < stop:
            before = int(ends[row - 1]) if row else 0
            fitting = int(np.searchsorted(ends, before + max_bytes, side="right"))
            behind = min(stop, max(fitting, row + 1))
            yield _Rows(batch, range(row, behind), int(ends[behind - 1]) - before)
            row = behind


def _sizes(body: Body) -> Int64s:
    """Bytes that each record takes in a message, at most."""
    sizes = np.full(len(body), _RECORD_OVERHEAD_BYTES, dtype=np.int64)
    sizes += np.diff(body.values.offsets)
    if body.keys is not None:
        sizes += np.diff(body.keys.offsets)
    if body.headers is not None:
        lists = body.headers.list_offsets
        sizes += np.diff(body.headers.names.offsets[lists])
        sizes += np.diff(body.headers.values.offsets[lists])
        sizes += np.diff(lists) * _HEADER_OVERHEAD_BYTES
    return sizes


# --- Rows to records ----------------------------------------------------------------------------------------------


def _records(body: Body, rows: range) -> list[dict[str, Any]]:
    """By field name, for protobuf to make the messages of: a quarter of the cost of making each one here."""
    columns: dict[str, Iterable[Any]] = {"value": Views(body.values, rows).tolist()}
    if body.keys is not None:
        columns["key"] = Views(body.keys, rows).tolist()
    if body.headers is not None:
        columns["headers"] = ([{"name": name, "value": value} for name, value in body.headers[row]] for row in rows)
    if body.timestamps is not None:
        columns["timestamp_us"] = map(body.timestamps.__getitem__, rows)
    return [dict(zip(columns, record, strict=True)) for record in zip(*columns.values(), strict=True)]
