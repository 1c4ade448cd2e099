"""Changes to queues, as the log keeps them: msgpack values inside control and queue-state batches.

    CONTROL      queue id 0   EpochStarted, QueueDeclared
    QUEUE_STATE  the queue's  PositionCommitted

They use the ordinary columnar body (one value per change), so every tool that reads batches reads them too, and they
are replicated, confirmed, recovered and truncated like records. Unknown fields are ignored, so fields can be added.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mirrorlog.commitlog.body import Record, encode_batch, parse_batch_body
from mirrorlog.commitlog.format import CONTROL_QUEUE_ID, Buffer, Kind
from mirrorlog.errors import BadBatch


class _Change(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    pass


class EpochStarted(_Change, frozen=True):
    """First batch of every epoch: who writes it. Its confirm proves that every member follows this mastership."""

    epoch: int
    node_id: str
    start_id: str


class QueueDeclared(_Change, frozen=True):
    """`queue_id` is never used for another queue of this log.

    `incarnation`: random, made at the declaration. It tells the queue from one of the same name in a cluster that was
    made anew under the same name, whose ids would be the same: readers' memories (a Delta table's) must not fit it.
    """

    name: str
    queue_id: int
    incarnation: str = ""
    arguments: dict[str, Any] = {}


class PositionCommitted(_Change, frozen=True):
    """A group stands before `queue_offset`."""

    group: str
    log_id: str
    epoch: int
    queue_offset: int


Change = EpochStarted | QueueDeclared | PositionCommitted

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Change)


class _Tag(msgspec.Struct):
    type: str


_TAG_DECODER: Final = msgspec.msgpack.Decoder(_Tag)
_KNOWN: Final = frozenset(kind.__name__ for kind in (EpochStarted, QueueDeclared, PositionCommitted))


def encode_change(change: Change, *, queue_id: int = CONTROL_QUEUE_ID) -> bytearray:
    """A batch with one change, ready to be appended."""
    kind = Kind.QUEUE_STATE if queue_id != CONTROL_QUEUE_ID else Kind.CONTROL
    return encode_batch([Record(_ENCODER.encode(change))], queue_id=queue_id, kind=kind)


def decode_changes(batch: Buffer) -> list[Change]:
    """The changes in a control or queue-state batch; those of a newer software, under names not known, are left out.

    Raises BadBatch for one that is known and does not fit.
    """
    values = parse_batch_body(batch).values
    try:
        changes = [_decode_change(values[index] or b"") for index in range(len(values))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBatch(f"a change that does not fit: {error}") from None
    return [change for change in changes if change is not None]


def _decode_change(value: bytes | memoryview) -> Change | None:
    try:
        change: Change = _DECODER.decode(value)
    except msgspec.ValidationError:
        if _TAG_DECODER.decode(value).type in _KNOWN:
            raise
        return None
    return change
