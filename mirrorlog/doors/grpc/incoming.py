"""A request of a Publish stream, from the bytes that gRPC received to what the node takes. Pure.

In Python protobuf copies a field of bytes when it reads the message and again at each look, and knows a message's size
only by writing it. So a request of the form that every encoder gives to a ready batch is read here, and its batch is a
view of what was received: a quarter of the door's processor time with batches of 1 MiB. All else goes by protobuf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirrorlog.client.producer.record import as_timestamp_us
from mirrorlog.commitlog.format.attributes import Attributes, asked_attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import MAGIC, NO_PRODUCER, Buffer, read_header
from mirrorlog.errors import BadBatch, BadRequest, BatchTooLarge
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Durability, Level
from mirrorlog.wire.messages.handshake import NodeLimits

_LENGTH: Final = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
# Nine bytes are 63 bits: a negative tag has ten, and is protobuf's.
_TAG: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_READY: Final = re.compile(rb"\x12%b(?:\x08%b)?\x5a%b" % (_LENGTH, _TAG, _LENGTH))
"""PublishRequest.batch, its length; PublishBatch.tag, left out when it is 0; PublishBatch.ready, its length."""
DELIVERY_TIMEOUT_MS: Final = 30_000
DELIVERY_TIMEOUT_MS_MAX: Final = 600_000
COPIES_MAX: Final = Level.MAJORITY - 1
PRODUCER_ID_MAX: Final = 2**63 - 1
_LEVELS: Final = {
    pb.ConfirmLevel.NAME_UNSPECIFIED: None,
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
class Batch:
    """The batch that a request of a Publish stream carries. `content`: a ready batch, records, or None when the request
    has neither. `size`: of the request, in bytes."""

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


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first request of a Publish stream asks for. `level`: of the wire, None for the queue's.
    `producer_id`: NO_PRODUCER when the client does not number its batches."""

    queue: str
    level: int | None
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


def _level(level: pb.ConfirmLevel) -> int | None:
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


def check_content(batch: Batch, opening: Opening) -> None:
    """The batch has content, and a sequence exactly where one belongs. Raises BadBatch or BadRequest."""
    records = batch.content if isinstance(batch.content, pb.Records) else None
    if batch.content is None or (records is not None and not records.records):
        raise BadBatch("a batch has at least one record")
    numbered = records is not None and opening.identified
    if numbered and (batch.sequence is None or batch.sequence < 0):
        raise BadRequest("records on a stream with an identity have a sequence, from 0")
    if batch.sequence is not None and not numbered:
        raise BadRequest("a sequence is for records on a stream with an identity; a ready batch has it in its header")


def read_records(records: pb.Records) -> list[Record]:
    """The records as the native side has them; what is absent is None. Raises BadInput for an impossible time."""
    return [
        Record(
            record.value if record.HasField("value") else None,
            record.key if record.HasField("key") else None,
            [(header.name, header.value if header.HasField("value") else None) for header in record.headers],
            as_timestamp_us(record.timestamp_us) if record.HasField("timestamp_us") else None,
        )
        for record in records.records
    ]


def read_attributes(records: pb.Records) -> Attributes | None:
    """Of all the records; None for none. Raises BadInput for what is outside its limits."""
    ttl_ms = records.ttl_ms if records.HasField("ttl_ms") else None
    return asked_attributes(records.priority, ttl_ms, records.delay_ms)


def number_records(
    records: Sequence[Record], opening: Opening, *, sequence: int, queue_id: int, attributes: Attributes | None = None
) -> bytes:
    """A native batch under the stream's identity: the same records and sequence give the same bytes."""
    encoded = encode_batch(
        records,
        queue_id=queue_id,
        producer_id=opening.producer_id,
        producer_epoch=opening.producer_epoch,
        sequence=sequence,
        attributes=attributes,
    )
    return bytes(encoded)


def check_size(batch: Buffer, limits: NodeLimits) -> None:
    """Raises BatchTooLarge: the node would close the connection, which other streams use too."""
    if len(batch) > limits.max_batch_bytes:
        raise BatchTooLarge(
            f"a batch of {len(batch)} bytes is above the node's max_batch_bytes ({limits.max_batch_bytes})"
        )


def check_ready(batch: Buffer, opening: Opening, *, queue_id: int, limits: NodeLimits) -> bool:
    """Whether the ready batch is idempotent. Raises BatchTooLarge or BadBatch.

    Not whether it is whole: the node checks that at its ingest, and stores nothing of a batch whose header was damaged
    on its way to here, whatever it says.
    """
    check_size(batch, limits)
    header = read_header(batch)
    if header.magic != MAGIC:
        raise BadBatch(f"magic {header.magic:#010x} where a batch has {MAGIC:#010x}")
    if header.queue_id != queue_id:
        raise BadBatch(f"the batch is for queue id {header.queue_id}, the stream for {queue_id} ({opening.queue!r})")
    has, wants = (header.producer_id, header.producer_epoch), (opening.producer_id, opening.producer_epoch)
    if opening.identified and has != wants:
        raise BadBatch(f"the batch is of producer {has[0]} epoch {has[1]}, the stream of {wants[0]} epoch {wants[1]}")
    return header.producer_id != NO_PRODUCER
