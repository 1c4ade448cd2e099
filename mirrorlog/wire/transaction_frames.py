"""TRANSACT and its answer: several batches and settlements in one frame. Pure.

Their layout stands in `frames`, with that of all the others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from mirrorlog.errors import BadRequest, ProtocolError
from mirrorlog.wire.frames import (
    SETTLE,
    SETTLE_AGAIN,
    SETTLE_RANGE,
    FrameType,
    Level,
    Settle,
    frame,
    numbers,
    read_settle,
    read_settle_facts,
    struct_reader,
)


class Transact(NamedTuple):
    """A TRANSACT frame's fixed struct: a transaction to be stored as a whole, and answered by TRANSACTED when so many
    copies have it. `routing`: as of `Produce`, of all batches."""

    level: int
    durability: int
    routing: int
    deadline_ms: int
    settle_count: int
    batch_count: int


class Transacted(NamedTuple):
    """A TRANSACTED frame's fixed struct. `log_offset`: where the transaction begins; `flags`: as of `Confirm`."""

    log_offset: int
    epoch: int
    copies: int
    durability: int
    flags: int
    receipt_count: int
    reserved: int


class BatchReceipt(NamedTuple):
    """Of one batch of a transaction."""

    log_offset: int
    base_queue_offset: int


TRANSACT_PARTS_MAX: Final = 256
"""Batches, and settlements, of one transaction: a frame is one step of the node's loop, and each costs it 60 µs."""
TRANSACT = struct.Struct("<BBHIII")
TRANSACTED = struct.Struct("<QIHBBII")
RECEIPT = struct.Struct("<QQ")
assert not any(each.size % 8 for each in (TRANSACT, TRANSACTED, RECEIPT))

_read_facts = struct_reader(TRANSACT, Transact._make)
_read_answer = struct_reader(TRANSACTED, Transacted._make)


def settle_part(
    ranges: Sequence[int], *, subscription: int, epoch: int, how: int, again: bool, delay_ms: int = 0
) -> bytes:
    """A settlement as a TRANSACT frame has it. `ranges`: as of `settle_frame`."""
    flags = SETTLE_AGAIN if again else 0
    facts = SETTLE.pack(subscription, epoch, how, Level.ALL, flags, delay_ms, len(ranges) // 2, 0)
    return facts + numbers(len(ranges)).pack(*ranges)


def transact_payload(
    settlements: Sequence[bytes],
    batches: Sequence[bytes | bytearray | memoryview],
    *,
    level: int,
    durability: int,
    deadline_ms: int,
    routing: int = 0,
) -> bytes:
    """The payload of a TRANSACT frame, see `Transact`. `settlements`: as `settle_part` makes them."""
    facts = TRANSACT.pack(level, durability, routing, deadline_ms, len(settlements), len(batches))
    return b"".join((facts, *settlements, *batches))


def read_transact(payload: memoryview) -> tuple[Transact, list[tuple[Settle, tuple[int, ...]]], memoryview]:
    """The fixed struct, settlements with their ranges, and the bytes of the batches. Raises ProtocolError; BadRequest
    for more parts than are looked at."""
    facts = _read_facts(payload)
    for count, what in ((facts.batch_count, "batches"), (facts.settle_count, "settlements")):
        if count > TRANSACT_PARTS_MAX:
            raise BadRequest(f"a transaction of {count} {what} is above the limit of {TRANSACT_PARTS_MAX}")
    at = TRANSACT.size
    settlements = []
    for _ in range(facts.settle_count):
        size = SETTLE.size + read_settle_facts(payload[at:]).range_count * SETTLE_RANGE.size
        settlements.append(read_settle(payload[at : at + size]))
        at += size
    return facts, settlements, payload[at:]


def transacted_frame(facts: Transacted, receipts: Sequence[BatchReceipt], correlation_id: int) -> bytes:
    """A whole TRANSACTED frame."""
    payload = TRANSACTED.pack(*facts) + b"".join(RECEIPT.pack(*each) for each in receipts)
    return frame(FrameType.TRANSACTED, payload, correlation_id)


def read_transacted(payload: memoryview) -> tuple[Transacted, list[BatchReceipt]]:
    """Raises ProtocolError."""
    facts = _read_answer(payload)
    receipts = payload[TRANSACTED.size :]
    if len(receipts) != facts.receipt_count * RECEIPT.size:
        raise ProtocolError(f"{facts.receipt_count} receipts where a TRANSACTED frame has {len(receipts)} bytes")
    return facts, [BatchReceipt._make(each) for each in RECEIPT.iter_unpack(receipts)]
