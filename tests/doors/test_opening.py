"""The first request of a stream means one thing, or is refused by the name of the field that does not."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.doors.grpc.incoming import DELIVERY_TIMEOUT_MS_MAX, PRODUCER_ID_MAX, Opening, read_opening
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability, Level


def opening(**fields: Any) -> Opening:
    return read_opening(pb.PublishRequest(open=pb.OpenPublish(queue="q", **fields)))


def test_what_is_left_out_is_the_safe_choice() -> None:
    """Goal: defaults of the .proto file. Method: name the queue alone."""
    assert opening() == Opening(
        queue="q", level=None, durability=Durability.MEMORY, delivery_timeout_ms=30_000, producer_id=0,
        producer_epoch=0,
    )  # fmt: skip
    assert not opening().identified


@pytest.mark.parametrize(
    ("level", "meant"),
    [
        (pb.ConfirmLevel(), None),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_UNSPECIFIED), None),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_NONE), Level.NONE),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_MASTER), Level.MASTER),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_ONE), Level.ONE),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_MAJORITY), Level.MAJORITY),
        (pb.ConfirmLevel(name=pb.ConfirmLevel.NAME_ALL), Level.ALL),
        (pb.ConfirmLevel(copies=1), 1),
        (pb.ConfirmLevel(copies=253), 253),
    ],
)
def test_levels_are_those_of_the_wire(level: pb.ConfirmLevel, meant: int | None) -> None:
    """Goal: no level is taken for another. Method: every name, and both ends of the numbers."""
    assert opening(level=level).level == meant


def test_identity_durability_and_timeout_are_taken_as_they_are() -> None:
    """Goal: nothing is lost. Method: the largest values."""
    identity = pb.ProducerIdentity(producer_id=PRODUCER_ID_MAX, producer_epoch=2**32 - 1)
    asked = opening(identity=identity, durability=common.DURABILITY_DISK, delivery_timeout_ms=DELIVERY_TIMEOUT_MS_MAX)
    assert asked.identified
    assert (asked.producer_id, asked.producer_epoch) == (PRODUCER_ID_MAX, 2**32 - 1)
    assert (asked.durability, asked.delivery_timeout_ms) == (Durability.DISK, DELIVERY_TIMEOUT_MS_MAX)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"level": pb.ConfirmLevel(copies=0)}, "level.copies 0"),
        ({"level": pb.ConfirmLevel(copies=254)}, "level.copies 254"),
        ({"level": pb.ConfirmLevel(copies=2**32 - 1)}, "level.copies"),
        ({"level": pb.ConfirmLevel(name=77)}, "level.name 77"),
        ({"durability": 9}, "durability 9"),
        ({"delivery_timeout_ms": -1}, "delivery_timeout_ms -1"),
        ({"delivery_timeout_ms": DELIVERY_TIMEOUT_MS_MAX + 1}, "delivery_timeout_ms"),
        ({"identity": pb.ProducerIdentity()}, "identity.producer_id 0"),
        ({"identity": pb.ProducerIdentity(producer_id=2**63)}, "identity.producer_id"),
    ],
)
def test_a_field_that_makes_no_sense_is_named(fields: dict[str, Any], named: str) -> None:
    """Goal: a clear error for each. Method: one value beyond every limit."""
    with pytest.raises(BadRequest, match=named):
        opening(**fields)


@pytest.mark.parametrize("request_", [pb.PublishRequest(), pb.PublishRequest(batch=pb.PublishBatch(tag=1))])
def test_a_stream_begins_with_open(request_: pb.PublishRequest) -> None:
    """Goal: no batch without a queue. Method: begin with nothing, and with a batch."""
    with pytest.raises(BadRequest, match="first request"):
        read_opening(request_)
