"""What a Consume call asks for, checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.wire.messages.queues import Position

RECORDS_MAX_BYTES: Final = 256 * 1024
RAW_MAX_BYTES: Final = 1024 * 1024
MAX_BYTES_MAX: Final = 4 * 1024 * 1024
MAX_WAIT_MS: Final = 10_000
MAX_WAIT_MS_MAX: Final = 60_000
OUTAGE_TIMEOUT_MS: Final = 10_000
OUTAGE_TIMEOUT_MS_MAX: Final = 600_000
QUEUE_OFFSET_MAX: Final = 2**63 - 1


class Edge(Enum):
    """One end of what is confirmed."""

    EARLIEST = auto()
    LATEST = auto()


@dataclass(frozen=True, slots=True)
class AppendTime:
    """The first record whose batch was appended at or after it, µs UTC."""

    us: int


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Where a consumer group has committed."""

    group: str


Start = Edge | int | AppendTime | Position | GroupPosition
Until = int | Edge | None


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What a reader asked for: a queue, where to start and to end, and from which copy. `start`, `until`: an int is a
    queue offset. `node_id`: empty for the master, or a mirror if `from_mirror`."""

    queue: str
    start: Start
    until: Until
    from_mirror: bool
    node_id: str
    raw: bool
    max_bytes: int
    max_wait_ms: int
    outage_timeout_ms: int


def read_options(request: pb.ConsumeRequest) -> ConsumeOptions:
    """Raises BadRequest naming the field that makes no sense."""
    raw = _raw(request.shape)
    usual_bytes = RAW_MAX_BYTES if raw else RECORDS_MAX_BYTES
    from_mirror, node_id = _read_from(request.read_from)
    return ConsumeOptions(
        queue=request.queue,
        start=_start(request.start),
        until=_until(request.until),
        from_mirror=from_mirror,
        node_id=node_id,
        raw=raw,
        max_bytes=_within("max_bytes", request.max_bytes, MAX_BYTES_MAX) or usual_bytes,
        max_wait_ms=_within("max_wait_ms", request.max_wait_ms, MAX_WAIT_MS_MAX) or MAX_WAIT_MS,
        outage_timeout_ms=_within("outage_timeout_ms", request.outage_timeout_ms, OUTAGE_TIMEOUT_MS_MAX)
        or OUTAGE_TIMEOUT_MS,
    )


def _raw(shape: int) -> bool:
    # proto3 enums are open: a newer client may send a shape that is not known here.
    if shape not in (pb.SHAPE_UNSPECIFIED, pb.SHAPE_RECORDS, pb.SHAPE_RAW):
        raise BadRequest(f"shape {shape} is not known")
    return shape == pb.SHAPE_RAW


def _start(start: pb.Start) -> Start:
    kind = start.WhichOneof("start")
    if kind == "queue_offset":
        return _queue_offset("start.queue_offset", start.queue_offset)
    if kind == "append_time_us":
        return AppendTime(start.append_time_us)
    if kind == "position":
        position = start.position
        queue_offset = _queue_offset("start.position.queue_offset", position.queue_offset)
        return Position(log_id=position.log_id, epoch=position.epoch, queue_offset=queue_offset)
    if kind == "group":
        if not start.group:
            raise BadRequest("start.group is empty; name the consumer group")
        return GroupPosition(start.group)
    if start.edge not in (pb.EDGE_UNSPECIFIED, pb.EDGE_EARLIEST, pb.EDGE_LATEST):
        raise BadRequest(f"start.edge {start.edge} is not known")
    return Edge.LATEST if start.edge == pb.EDGE_LATEST else Edge.EARLIEST


def _until(until: pb.Until) -> Until:
    kind = until.WhichOneof("until")
    if kind is None:
        return None
    if kind == "queue_offset":
        return _queue_offset("until.queue_offset", until.queue_offset)
    if until.edge != pb.EDGE_LATEST:
        raise BadRequest(f"until.edge {until.edge} is not EDGE_LATEST, the only edge to read up to")
    return Edge.LATEST


def _read_from(read_from: pb.ReadFrom) -> tuple[bool, str]:
    if read_from.WhichOneof("read_from") == "node_id":
        if not read_from.node_id:
            raise BadRequest("read_from.node_id is empty; name the node")
        return False, read_from.node_id
    copy = read_from.copy
    if copy not in (pb.ReadFrom.COPY_UNSPECIFIED, pb.ReadFrom.COPY_MASTER, pb.ReadFrom.COPY_MIRROR):
        raise BadRequest(f"read_from.copy {copy} is not known")
    return copy == pb.ReadFrom.COPY_MIRROR, ""


def _queue_offset(name: str, queue_offset: int) -> int:
    # An int64 cannot be above the maximum.
    if queue_offset < 0:
        raise BadRequest(f"{name} {queue_offset} is not within 0 and {QUEUE_OFFSET_MAX}")
    return queue_offset


def _within(name: str, number: int, largest: int) -> int:
    if not 0 <= number <= largest:
        raise BadRequest(f"{name} {number} is not within 0 and {largest}")
    return number
