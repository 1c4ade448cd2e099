"""What was fetched, as responses of a Consume stream: raw batches in one, records in as many as they need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from mirrorlog.client.consumer.records import unreadable
from mirrorlog.commitlog.format.attributes import attributes_of
from mirrorlog.commitlog.format.body import BinaryColumn, Body, Int64s
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.doors.grpc.fetched import BatchPlace, Fetched
from mirrorlog.errors import BadBatch
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import consumer_pb2 as pb

# What a record, and one of its headers, takes in a message besides its bytes, at most.
_RECORD_OVERHEAD_BYTES: Final = 32
_HEADER_OVERHEAD_BYTES: Final = 16


class _Rows(NamedTuple):
    """Rows of one batch that go into one response; `size_bytes`: at most."""

    place: BatchPlace
    body: Body
    rows: range
    size_bytes: int

    @property
    def first(self) -> int:
        return self.place.header.base_queue_offset + self.rows.start

    @property
    def next(self) -> int:
        return self.place.header.base_queue_offset + self.rows.stop


def nothing(fetched: Fetched) -> pb.ConsumeResponse:
    """Where the reader stands, without records."""
    return _response(fetched, first=fetched.next, following=fetched.next, epoch=fetched.epoch)


def raw(fetched: Fetched) -> pb.ConsumeResponse:
    """All batches in one response. No record is touched."""
    response = _response(fetched, first=fetched.first, following=fetched.next, epoch=fetched.epoch)
    response.batch_count = len(fetched.places)
    response.raw = bytes(fetched.batches)
    return response


def records(fetched: Fetched, *, max_bytes: int, body_bytes_max: int) -> Iterator[pb.ConsumeResponse]:
    """The reader's records, at most `max_bytes` or one record in each response. Raises BadBatch with its place, behind
    what is good before it.

    `body_bytes_max`: what a compressed body may have when opened.
    """
    first, size = fetched.first, 0
    held: list[_Rows] = []
    try:
        for rows in _all_rows(fetched, max_bytes, body_bytes_max):
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
    epoch = held[-1].place.header.epoch
    response = _response(fetched, first=first, following=following, epoch=epoch)
    for rows in held:
        header = rows.place.header
        priority, ttl_ms, delay_ms = attributes_of(header, fetched.content, rows.place.at)
        response.batches.batches.add(
            base_queue_offset=rows.first,
            append_time_us=header.append_time_us,
            log_offset=header.log_offset,
            epoch=header.epoch,
            records=_records(rows.body, rows.rows),
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


def _all_rows(fetched: Fetched, max_bytes: int, body_bytes_max: int) -> Iterator[_Rows]:
    """The reader's rows in order, those of a large batch in several runs of at most `max_bytes` or one row."""
    for place in fetched.places:
        body = _opened(fetched, place, body_bytes_max)
        base = place.header.base_queue_offset
        row, stop = max(0, fetched.first - base), min(len(body), fetched.next - base)
        ends = np.cumsum(_sizes(body))
        while row < stop:
            before = int(ends[row - 1]) if row else 0
            fitting = int(np.searchsorted(ends, before + max_bytes, side="right"))
            behind = min(stop, max(fitting, row + 1))
            yield _Rows(place, body, range(row, behind), int(ends[behind - 1]) - before)
            row = behind


def _opened(fetched: Fetched, place: BatchPlace, body_bytes_max: int) -> Body:
    try:
        attributes_of(place.header, fetched.content, place.at)  # sound here, so also where they are given out
    except BadBatch as error:
        raise BadBatch(f"{_where(fetched, place)}: {error}") from None
    try:
        return open_body(fetched.content, place.at, body_bytes_max=body_bytes_max)
    except BadBatch as error:
        if place.header.body_length > body_bytes_max:
            raise BadBatch(f"{_where(fetched, place)}: {error}") from None
        raise unreadable(error, fetched.source.queue, place.header) from None


def _where(fetched: Fetched, place: BatchPlace) -> str:
    return f"queue {fetched.source.queue!r}, log offset {place.header.log_offset}"


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
    columns: dict[str, Iterable[Any]] = {"value": _entries(body.values, rows)}
    if body.keys is not None:
        columns["key"] = _entries(body.keys, rows)
    if body.headers is not None:
        columns["headers"] = ([{"name": name, "value": value} for name, value in body.headers[row]] for row in rows)
    if body.timestamps is not None:
        columns["timestamp_us"] = map(body.timestamps.__getitem__, rows)
    return [dict(zip(columns, record, strict=True)) for record in zip(*columns.values(), strict=True)]


def _entries(column: BinaryColumn, rows: range) -> list[bytes | None]:
    """Objects of their own, by one copy of them all."""
    offsets = column.offsets[rows.start : rows.stop + 1].tolist()
    start = offsets[0]
    content = bytes(column.data[start : offsets[-1]])
    found: list[bytes | None] = [content[at - start : end - start] for at, end in pairwise(offsets)]
    if (validity := column.validity) is None:
        return found
    there = (validity[row >> 3] >> (row & 7) & 1 for row in rows)
    return [entry if present else None for entry, present in zip(found, there, strict=True)]
