"""Attributes of a batch: how long its records are of use, when the first may be given out, and how urgent they are.

The server touches no record, so what decides about delivery is a batch's: a producer keeps records of the same
attributes together. They stand in 16 bytes between the header and the body, which no codec covers, so the master
reads them at one place, whatever the batch is:

    offset  size  field
         0     8  ttl_ms    0: none; all ones: 0 ms, of use only to who can have it at once
         8     6  delay_ms  not given out before so long after its append
        14     1  priority  0 to 255, the higher the more urgent
        15     1  reserved  0

Times are durations behind the batch's append time, which never goes back within a log. A batch without the block has no
attributes; so those who use none pay nothing.

Source: decision 0036. Rejected: fields of the header (it has two bytes left), a column with an entry per record (the
server would have to look into bodies, compressed ones too), points in time (producers' clocks would decide).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, TypedDict

from mirrorlog.commitlog.format.header import ATTRIBUTES_SIZE, HEADER_SIZE, BatchHeader, Buffer, Column
from mirrorlog.errors import BadBatch, BadRequest

DURATION_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000
"""Ten years: of a time to live, and of a delay."""
PRIORITY_MAX: Final = 255

_BLOCK: Final = struct.Struct("<QQ")
_AT_ONCE: Final = 2**64 - 1
_DELAY_BITS: Final = 48
_DELAY_MASK: Final = 2**_DELAY_BITS - 1
_ATTRIBUTES: Final = int(Column.ATTRIBUTES)

assert _BLOCK.size == ATTRIBUTES_SIZE
assert DURATION_MS_MAX <= _DELAY_MASK


class Attributes(NamedTuple):
    """What a producer asked for. `ttl_ms`: None for no end. A named tuple because one is read per batch, and because it
    is a key: what has the same attributes goes together."""

    priority: int = 0
    ttl_ms: int | None = None
    delay_ms: int = 0

    def expires_at_us(self, append_time_us: int) -> int | None:
        """When a batch appended then is of no use any more, µs UTC; None: never."""
        return None if self.ttl_ms is None else append_time_us + self.ttl_ms * 1000

    def not_before_us(self, append_time_us: int) -> int:
        """From when on a batch appended then may be given out, µs UTC."""
        return append_time_us + self.delay_ms * 1000


NO_ATTRIBUTES: Final = Attributes()


class RecordOptions(TypedDict, total=False):
    """What may be asked for with a record, as keywords. Rejected: three parameters of their own, whose defaults cost
    those who name none a tenth of handing over a record."""

    priority: int
    ttl_ms: int | None
    delay_ms: int


def asked_attributes(priority: int = 0, ttl_ms: int | None = None, delay_ms: int = 0) -> Attributes | None:
    """None when nothing is asked for. Raises BadRequest naming what is outside its limits."""
    _check("priority", priority, PRIORITY_MAX)
    _check("delay_ms", delay_ms, DURATION_MS_MAX)
    if ttl_ms is not None:
        _check("ttl_ms", ttl_ms, DURATION_MS_MAX)
    attributes = Attributes(priority, ttl_ms, delay_ms)
    return None if attributes == NO_ATTRIBUTES else attributes


def _check(name: str, value: object, largest: int) -> None:
    if type(value) is not int or not 0 <= value <= largest:
        raise BadRequest(f"{name} is {value!r}; give a whole number from 0 to {largest}")


def encode_attributes(attributes: Attributes) -> bytes:
    """The block; the attributes are within their limits (`asked_attributes`)."""
    ttl_ms = 0 if attributes.ttl_ms is None else attributes.ttl_ms or _AT_ONCE
    return _BLOCK.pack(ttl_ms, attributes.delay_ms | attributes.priority << _DELAY_BITS)


def attributes_of(header: BatchHeader, batch: Buffer) -> Attributes:
    """Of the batch, compressed or not; `NO_ATTRIBUTES` when it has none. Raises BadBatch for a block that says
    what is not known here, or that is not there."""
    if not header.columns & _ATTRIBUTES:
        return NO_ATTRIBUTES
    return decode_attributes(batch, HEADER_SIZE)


def decode_attributes(buffer: Buffer, at: int = 0) -> Attributes:
    """The block at `at`. Raises BadBatch."""
    if len(buffer) - at < ATTRIBUTES_SIZE:
        raise BadBatch(f"attributes need {ATTRIBUTES_SIZE} bytes, {max(0, len(buffer) - at)} are there")
    ttl_ms, rest = _BLOCK.unpack_from(buffer, at)
    delay_ms, urgency = rest & _DELAY_MASK, rest >> _DELAY_BITS
    if urgency > PRIORITY_MAX:
        raise BadBatch(f"the last byte of the attributes is {urgency >> 8:#x}, which is not known here")
    if delay_ms > DURATION_MS_MAX or DURATION_MS_MAX < ttl_ms != _AT_ONCE:
        raise BadBatch(f"a ttl_ms of {ttl_ms} or a delay_ms of {delay_ms} is above {DURATION_MS_MAX} (ten years)")
    if ttl_ms == _AT_ONCE:
        ttl_ms = 0
    elif not ttl_ms:
        return Attributes(urgency, None, delay_ms)
    return Attributes(urgency, ttl_ms, delay_ms)
