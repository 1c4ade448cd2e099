"""What a Consume call asks for means one thing, or is refused by the name of the field that does not."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.doors.grpc.consume_options import (
    MAX_BYTES_MAX,
    MAX_WAIT_MS_MAX,
    OUTAGE_TIMEOUT_MS_MAX,
    QUEUE_OFFSET_MAX,
    AppendTime,
    ConsumeOptions,
    Edge,
    GroupPosition,
    Start,
    read_options,
)
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.wire.messages.queues import Position


def asked(**fields: Any) -> ConsumeOptions:
    return read_options(pb.ConsumeRequest(queue="q", **fields))


def test_what_is_left_out_is_what_the_proto_says() -> None:
    """Goal: defaults of the .proto file. Method: name the queue alone; then the raw shape as well."""
    assert asked() == ConsumeOptions(
        queue="q",
        start=Edge.EARLIEST,
        until=None,
        from_mirror=False,
        node_id="",
        raw=False,
        max_bytes=262_144,
        max_wait_ms=10_000,
        outage_timeout_ms=10_000,
    )
    assert (asked(shape=pb.SHAPE_RAW).raw, asked(shape=pb.SHAPE_RAW).max_bytes) == (True, 1_048_576)


@pytest.mark.parametrize(
    ("start", "meant"),
    [
        (pb.Start(), Edge.EARLIEST),
        (pb.Start(edge=pb.EDGE_UNSPECIFIED), Edge.EARLIEST),
        (pb.Start(edge=pb.EDGE_EARLIEST), Edge.EARLIEST),
        (pb.Start(edge=pb.EDGE_LATEST), Edge.LATEST),
        (pb.Start(queue_offset=0), 0),
        (pb.Start(queue_offset=QUEUE_OFFSET_MAX), QUEUE_OFFSET_MAX),
        (pb.Start(append_time_us=-1), AppendTime(-1)),
        (pb.Start(group="g"), GroupPosition("g")),
        (
            pb.Start(position=common.Position(log_id="l", epoch=2, queue_offset=3)),
            Position(log_id="l", epoch=2, queue_offset=3),
        ),
    ],
)
def test_every_start_is_told_from_the_others(start: pb.Start, meant: Start) -> None:
    """Goal: none is taken for another, and 0 is not absent. Method: each kind."""
    assert asked(start=start).start == meant


def test_every_end_copy_and_limit_is_taken_as_it_is() -> None:
    """Goal: nothing is lost. Method: each kind of end and of copy, the largest numbers."""
    assert asked(until=pb.Until(queue_offset=0)).until == 0
    assert asked(until=pb.Until(edge=pb.EDGE_LATEST)).until is Edge.LATEST
    assert asked(read_from=pb.ReadFrom(copy=pb.ReadFrom.COPY_MIRROR)).from_mirror
    named = asked(read_from=pb.ReadFrom(node_id="n3"))
    assert (named.from_mirror, named.node_id) == (False, "n3")
    largest = asked(max_bytes=MAX_BYTES_MAX, max_wait_ms=MAX_WAIT_MS_MAX, outage_timeout_ms=OUTAGE_TIMEOUT_MS_MAX)
    assert (largest.max_bytes, largest.max_wait_ms, largest.outage_timeout_ms) == (
        MAX_BYTES_MAX, MAX_WAIT_MS_MAX, OUTAGE_TIMEOUT_MS_MAX,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"start": pb.Start(queue_offset=-1)}, "start.queue_offset -1"),
        ({"start": pb.Start(position=common.Position(queue_offset=-1))}, "start.position.queue_offset -1"),
        ({"start": pb.Start(group="")}, "start.group"),
        ({"start": pb.Start(edge=9)}, "start.edge 9"),
        ({"until": pb.Until(queue_offset=-1)}, "until.queue_offset -1"),
        ({"until": pb.Until(edge=pb.EDGE_EARLIEST)}, "until.edge 1"),
        ({"until": pb.Until(edge=9)}, "until.edge 9"),
        ({"read_from": pb.ReadFrom(node_id="")}, "read_from.node_id"),
        ({"read_from": pb.ReadFrom(copy=9)}, "read_from.copy 9"),
        ({"shape": 9}, "shape 9"),
        ({"max_bytes": -1}, "max_bytes -1"),
        ({"max_bytes": MAX_BYTES_MAX + 1}, "max_bytes"),
        ({"max_wait_ms": MAX_WAIT_MS_MAX + 1}, "max_wait_ms"),
        ({"outage_timeout_ms": OUTAGE_TIMEOUT_MS_MAX + 1}, "outage_timeout_ms"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(fields: dict[str, Any], named: str) -> None:
    """Goal: a clear error for each. Method: one value beyond every limit."""
    with pytest.raises(BadRequest, match=named):
        asked(**fields)
