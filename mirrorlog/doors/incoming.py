"""A request of a Publish stream, from the bytes that gRPC received. Pure.

In Python protobuf copies a field of bytes when it reads the message and again at each look, and knows a message's size
only by writing it. So a request of the form that every encoder gives to a ready batch is read here, and its batch is a
view of what was received: a quarter of the door's processor time with batches of 1 MiB. All else goes by protobuf.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mirrorlog.pb.v1 import producer_pb2 as pb


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
