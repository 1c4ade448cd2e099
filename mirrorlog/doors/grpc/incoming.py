"""A request of a Publish stream, from the bytes that gRPC received. Pure.

In Python protobuf copies a field of bytes when it reads the message and again at each look, and knows a message's size
only by writing it. So a request of the form that every encoder gives to a ready batch is read here, and its batch is a
view of what was received: a quarter of the door's processor time with batches of 1 MiB. All else goes by protobuf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mirrorlog.commitlog.format.header import NO_PRODUCER
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability, Level


@dataclass(frozen=True, slots=True)
class Batch:
    """`content`: a ready batch, records, or None when the request has neither. `size`: of the request, in bytes."""

    tag: int
    size: int
    content: memoryview | pb.Records | None
    sequence: int | None = None


def read_request(request: bytes) -> pb.PublishRequest | Batch:
    """The batch that a request carries, or the request itself when it carries none.

    Raises protobuf's DecodeError.
    """
    if (batch := _read_ready(request)) is not None:
        return batch
    message = pb.PublishRequest.FromString(request)
    return _batch_of(message.batch, len(request)) if message.WhichOneof("request") == "batch" else message


def _batch_of(batch: pb.PublishBatch, size: int) -> Batch:
    kind = batch.WhichOneof("content")
    content = None if kind is None else batch.records if kind == "records" else memoryview(batch.ready)
    return Batch(batch.tag, size, content, batch.sequence if batch.HasField("sequence") else None)


# --- The form of a ready batch: fields in the order of their numbers, each once ---------------------------------------

_LENGTH: Final = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
# Nine bytes are 63 bits: a negative tag has ten, and is protobuf's.
_TAG: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_READY: Final = re.compile(rb"\x12%b(?:\x08%b)?\x5a%b" % (_LENGTH, _TAG, _LENGTH))
"""PublishRequest.batch, its length; PublishBatch.tag, left out when it is 0; PublishBatch.ready, its length."""


def _read_ready(request: bytes) -> Batch | None:
    """None for a request of any other form."""
    if (found := _READY.match(request)) is None:
        return None
    batch_length, tag, ready_length = (_varint(group or b"\0") for group in found.groups())
    if found.end(1) + batch_length != len(request) or found.end() + ready_length != len(request):
        return None
    return Batch(tag, len(request), memoryview(request)[found.end() :])


def _varint(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * at for at, byte in enumerate(encoded))


# What the first request of a Publish stream asks for, checked. Pure.


DELIVERY_TIMEOUT_MS: Final = 30_000
DELIVERY_TIMEOUT_MS_MAX: Final = 600_000
COPIES_MAX: Final = Level.MAJORITY - 1
PRODUCER_ID_MAX: Final = 2**63 - 1

_LEVELS: Final = {
    pb.ConfirmLevel.NAME_UNSPECIFIED: Level.ALL,
    pb.ConfirmLevel.NAME_NONE: Level.NONE,
    pb.ConfirmLevel.NAME_MASTER: Level.MASTER,
    pb.ConfirmLevel.NAME_ONE: Level.ONE,
    pb.ConfirmLevel.NAME_MAJORITY: Level.MAJORITY,
    pb.ConfirmLevel.NAME_ALL: Level.ALL,
}
# The log's own durability is the least that the node goes by, so "as the log is kept" asks for memory.
_DURABILITIES: Final = {
    common.DURABILITY_UNSPECIFIED: Durability.MEMORY,
    common.DURABILITY_MEMORY: Durability.MEMORY,
    common.DURABILITY_DISK: Durability.DISK,
}


@dataclass(frozen=True, slots=True)
class Opening:
    """`level`: of the wire. `producer_id`: NO_PRODUCER when the client does not number its batches."""

    queue: str
    level: int
    durability: Durability
    delivery_timeout_ms: int
    producer_id: int
    producer_epoch: int

    @property
    def identified(self) -> bool:
        """The client numbers its batches, so that it may send one again."""
        return self.producer_id != NO_PRODUCER


def read_opening(request: pb.PublishRequest | Batch) -> Opening:
    """Raises BadRequest naming the field that makes no sense."""
    if isinstance(request, Batch) or request.WhichOneof("request") != "open":
        raise BadRequest("the first request of a stream is `open`; it names the queue")
    asked = request.open
    producer_id, producer_epoch = _identity(asked)
    return Opening(
        queue=asked.queue,
        level=_level(asked.level),
        durability=_durability(asked.durability),
        delivery_timeout_ms=_delivery_timeout_ms(asked.delivery_timeout_ms),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def _level(level: pb.ConfirmLevel) -> int:
    if level.WhichOneof("level") == "copies":
        if not 1 <= level.copies <= COPIES_MAX:
            raise BadRequest(f"level.copies {level.copies} is not within 1 and {COPIES_MAX}")
        return level.copies
    # proto3 enums are open: a newer client may send a name that is not known here.
    if level.name not in _LEVELS:
        raise BadRequest(f"level.name {level.name} is not known")
    return _LEVELS[level.name]


def _durability(durability: int) -> Durability:
    for known, meant in _DURABILITIES.items():
        if known == durability:
            return meant
    raise BadRequest(f"durability {durability} is not known")


def _delivery_timeout_ms(timeout_ms: int) -> int:
    if not 0 <= timeout_ms <= DELIVERY_TIMEOUT_MS_MAX:
        raise BadRequest(f"delivery_timeout_ms {timeout_ms} is not within 0 and {DELIVERY_TIMEOUT_MS_MAX}")
    return timeout_ms or DELIVERY_TIMEOUT_MS


def _identity(asked: pb.OpenPublish) -> tuple[int, int]:
    if not asked.HasField("identity"):
        return NO_PRODUCER, 0
    identity = asked.identity
    if not 1 <= identity.producer_id <= PRODUCER_ID_MAX:
        raise BadRequest(f"identity.producer_id {identity.producer_id} is not within 1 and {PRODUCER_ID_MAX}")
    return identity.producer_id, identity.producer_epoch
