"""Frames: everything on the native ports is a sequence of them, little endian.

    offset  size  field
         0     4  length          of the payload that follows the 16 bytes
         4     2  type            see FrameType
         6     2  flags           0
         8     8  correlation_id  an answer carries its request's; 0 where none is expected
        16     …  payload         a msgpack map (wire.messages), or a fixed struct and batches (below)

Between nodes frames may be *checked*: see `frame_reader`, which makes frames of bytes.

Payloads that carry batches begin with a fixed struct whose size is a multiple of 8, so that batches stay aligned:

    PRODUCE   u8 level, u8 durability, u16 routing, u32 deadline_ms; then one batch
    CONFIRM   u64 log_offset, u64 base_queue_offset, u32 epoch, u16 copies, u8 durability, u8 flags
    FETCH     u32 queue_id, u32 epoch, u64 queue_offset, u32 max_bytes, u32 wait_ms
    BATCHES   u64 begin, u64 next, u64 confirmed, u32 epoch, u32 batch_count; then that many batches
    TRANSFER  u64 log_offset, u64 confirmed, u64 end, u32 epoch, u32 flags; then whole batches, or none (heartbeat)
    ACK       u64 written, u64 flushed, u32 epoch, u32 flags
    DELIVER   u32 subscription, u32 epoch, u64 next, u32 grant_count, u32 batch_count; then so many grants; then so many
              batches. A grant: u64 first, u64 next, u32 flags, u32 attempts
    SETTLE    u32 subscription, u32 epoch, u8 how, u8 level, u16 flags, u32 delay_ms, u32 range_count, u32 0; then so
              many ranges: u64 first, u64 next
    SETTLED   u64 records, u64 passed_over; then ranges, u64 first, u64 next: which these are, where that is told
    CREDIT    u64 producer_id, u64 confirmed, u64 granted, u32 queue_id, u32 batches
    TRANSACT  u8 level, u8 durability, u16 routing, u32 deadline_ms, u32 settle_count, u32 batch_count; then so many
              settlements, each as the payload of SETTLE, whose level counts for nothing; then so many batches
    TRANSACTED
              u64 log_offset, u32 epoch, u16 copies, u8 durability, u8 flags, u32 receipt_count, u32 0; then so many
              receipts, of the batches in their order: u64 log_offset, u64 base_queue_offset

Integers first: a frame's length is known after 16 bytes, so a batch is received into a buffer that fits, and one
frame is one call on the loop. Rejected: protobuf or JSON for these (a third of a core at 100k messages/s). Ranges are
flat numbers, read by one call however many they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from mirrorlog.errors import BadRequest, ProtocolError

FRAME_HEADER_SIZE: Final = 16
PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1


# Before HELLO is accepted nobody may make the node hold more than this for them.
HELLO_BYTES_MAX: Final = 64 * 1024


FRAME_HEADER = struct.Struct("<IHHQ")
assert FRAME_HEADER.size == FRAME_HEADER_SIZE


_T = TypeVar("_T")


class FrameType(IntEnum):
    """1..15 any port, 16..31 clients, 32..47 replication, 48..63 between members of the cluster."""

    HELLO = 1
    WELCOME = 2
    ERROR = 3
    PING = 4
    PONG = 5
    GOODBYE = 6
    CHALLENGE = 7
    PROOF = 8

    REQUEST = 16
    RESPONSE = 17
    PRODUCE = 18
    CONFIRM = 19
    FETCH = 20
    BATCHES = 21
    DELIVER = 22
    SETTLE = 23
    SETTLED = 24
    ENDED = 25
    CREDIT = 26
    TRANSACT = 27
    TRANSACTED = 28

    FOLLOW = 32
    HISTORY = 33
    PULL = 34
    TRANSFER = 35
    ACK = 36

    BEAT = 48
    RAFT = 49
    ASK = 50
    TELL = 51


class Frame(NamedTuple):
    """One received frame. `payload` is a view that is valid until the reader is asked for room again.

    `body`: None, or the bytes behind the payload's fixed struct, in the memory that the receiver gave for them (see
    `Place`); `payload` is the fixed struct alone then.
    """

    type: int
    correlation_id: int
    payload: memoryview
    body: memoryview | None = None


def frame_header(kind: FrameType, payload_size: int, correlation_id: int = 0) -> bytes:
    """The 16 bytes before a payload of `payload_size` bytes."""
    return FRAME_HEADER.pack(payload_size, kind, 0, correlation_id)


def frame(kind: FrameType, payload: bytes = b"", correlation_id: int = 0) -> bytes:
    """A whole small frame. Payloads with batches are sent as header, struct and views instead: no copy."""
    return FRAME_HEADER.pack(len(payload), kind, 0, correlation_id) + payload


# --- Payloads with fixed structs ------------------------------------------------------------------------------------


class Level:
    """Confirm levels on the wire: a number of copies, or one of two names that depend on the set's size."""

    NONE: Final = 0
    MASTER: Final = 1
    ONE: Final = 2
    MAJORITY: Final = 254
    ALL: Final = 255

    NAMES: Final = {"none": NONE, "master": MASTER, "one": ONE, "majority": MAJORITY, "all": ALL}

    @staticmethod
    def parse(level: str | int) -> int:
        """`none`, `master`, `one`, `majority`, `all`, or a number of copies from 1 to 253. Raises BadRequest."""
        if isinstance(level, int):
            number = level
        elif level.isascii() and level.isdecimal() and len(level) <= 3 and int(level) < Level.MAJORITY:
            number = int(level)
        else:
            number = Level.NAMES.get(level, -1)
        if not 0 <= number <= Level.ALL:
            names = ", ".join(Level.NAMES)
            raise BadRequest(f"confirm level {level!r:.32} is none of {names}, nor a number of copies from 1 to 253")
        return number

    @staticmethod
    def said(value: object) -> int:
        """What a policy says (`confirm`); `all` when it says nothing, or what only newer software knows."""
        try:
            return Level.parse(value) if isinstance(value, str | int) else Level.ALL
        except BadRequest:
            return Level.ALL


class Durability(IntEnum):
    """Where a copy must have the bytes to count."""

    MEMORY = 0
    DISK = 1


class Produce(NamedTuple):
    """`routing`: see `routing.stamp`; 0 for what was not routed."""

    level: int
    durability: int
    routing: int
    deadline_ms: int


class Confirm(NamedTuple):
    log_offset: int
    base_queue_offset: int
    epoch: int
    copies: int
    durability: int
    flags: int


class Fetch(NamedTuple):
    queue_id: int
    epoch: int
    queue_offset: int
    max_bytes: int
    wait_ms: int


class Batches(NamedTuple):
    """`begin` and `next`: first and next confirmed queue offset; `confirmed`: log offset."""

    begin: int
    next: int
    confirmed: int
    epoch: int
    batch_count: int


class Transfer(NamedTuple):
    """`log_offset`: of the first byte that follows, or the next one to be sent; `end`: of the master's log."""

    log_offset: int
    confirmed: int
    end: int
    epoch: int
    flags: int


class Ack(NamedTuple):
    """Below `written` the mirror holds every byte of this epoch's history; below `flushed` on its disk."""

    written: int
    flushed: int
    epoch: int
    flags: int


class Deliver(NamedTuple):
    """`epoch`: of the grants' mastership; `next`: the queue's next confirmed queue offset."""

    subscription: int
    epoch: int
    next: int
    grant_count: int
    batch_count: int


class Grant(NamedTuple):
    """Records [first, next), by queue offset, that the subscription has now. `attempts`: how often each of them came
    back before, counted, up to 255."""

    first: int
    next: int
    flags: int = 0
    attempts: int = 0

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have had them before."""
        return bool(self.flags & GRANT_REDELIVERED)


class How(IntEnum):
    """What a SETTLE frame does with its records."""

    ACK = 1
    RETURN = 2
    """They may be given out again; one attempt more for each."""
    RELEASE = 3
    """They may be given out again, as if they had not been seen."""
    DEAD = 4
    EXTEND = 5
    """They stay where they are, and the consumer timeout begins anew."""


class Settle(NamedTuple):
    """`epoch`: of the grants; `how`: see `How`; `level`: the confirm level of the answer; `delay_ms`: before returned
    records may be given out again."""

    subscription: int
    epoch: int
    how: int
    level: int
    flags: int
    delay_ms: int
    range_count: int
    reserved: int = 0


class SettledPayload(NamedTuple):
    """Of a settlement's records: how many it changed, and how many are with somebody else by now."""

    records: int
    passed_over: int


CREDIT_ENDED: Final = 2**64 - 1
"""As `Credit.confirmed`: the node does not write the log any more, and has forgotten all that it counted."""


class Credit(NamedTuple):
    """What a producer may have in a queue that is not confirmed: `granted` bytes in `batches` batches. What of it
    stands below the log offset `confirmed` counts no more. To connections whose HELLO asks for it. With `queue_id` 0:
    what every producer that begins on this connection has, in the place of what WELCOME says."""

    producer_id: int
    confirmed: int
    granted: int
    queue_id: int
    batches: int


GRANT_REDELIVERED: Final = 1
SETTLE_AGAIN: Final = 1
"""The connection on which this was sent first is lost, and perhaps its answer."""
CONFIRM_DUPLICATE: Final = 1
TRANSFER_FLUSH: Final = 1
"""A confirm waits for the mirror's disk: flush what you hold now and ack it."""

_CONFIRM_TYPE: Final = int(FrameType.CONFIRM)
_TRANSFER_TYPE: Final = int(FrameType.TRANSFER)
_ACK_TYPE: Final = int(FrameType.ACK)

PRODUCE = struct.Struct("<BBHI")
CONFIRM = struct.Struct("<QQIHBB")
FETCH = struct.Struct("<IIQII")
BATCHES = struct.Struct("<QQQII")
TRANSFER = struct.Struct("<QQQII")
ACK = struct.Struct("<QQII")
DELIVER = struct.Struct("<IIQII")
GRANT = struct.Struct("<QQII")
SETTLE = struct.Struct("<IIBBHIII")
SETTLE_RANGE = struct.Struct("<QQ")
SETTLED = struct.Struct("<QQ")
CREDIT = struct.Struct("<QQQII")


def _framed(payload: struct.Struct) -> struct.Struct:
    return struct.Struct(FRAME_HEADER.format + payload.format.removeprefix("<"))


# A frame's header and the fixed struct behind it, in one: the three that every publish passes through.
_CONFIRM_FRAME = _framed(CONFIRM)
_TRANSFER_FRAME = _framed(TRANSFER)
_ACK_FRAME = _framed(ACK)

assert not any(each.size % 8 for each in (PRODUCE, CONFIRM, FETCH, BATCHES, TRANSFER, ACK))
assert not any(each.size % 8 for each in (DELIVER, GRANT, SETTLE, SETTLE_RANGE, SETTLED, CREDIT))

FACTS_SIZES: Final = {
    int(FrameType.PRODUCE): PRODUCE.size,
    int(FrameType.BATCHES): BATCHES.size,
    int(FrameType.TRANSFER): TRANSFER.size,
    int(FrameType.DELIVER): DELIVER.size,
}
"""Frames of batches that may be placed, and the size of the struct before what is placed: batches, in DELIVER behind
its grants."""


def confirm_frame(
    *,
    log_offset: int,
    base_queue_offset: int,
    epoch: int,
    copies: int,
    durability: int,
    flags: int,
    correlation_id: int,
) -> bytes:
    """A whole CONFIRM frame, see `Confirm`."""
    return _CONFIRM_FRAME.pack(
        CONFIRM.size, _CONFIRM_TYPE, 0, correlation_id,
        log_offset, base_queue_offset, epoch, copies, durability, flags,
    )  # fmt: skip


def transfer_head(*, log_offset: int, confirmed: int, end: int, epoch: int, flags: int, run_bytes: int) -> bytes:
    """A TRANSFER frame up to the run of `run_bytes` bytes that follows, see `Transfer`."""
    return _TRANSFER_FRAME.pack(
        TRANSFER.size + run_bytes, _TRANSFER_TYPE, 0, 0, log_offset, confirmed, end, epoch, flags
    )


def ack_frame(written: int, flushed: int, epoch: int) -> bytes:
    """A whole ACK frame, see `Ack`."""
    return _ACK_FRAME.pack(ACK.size, _ACK_TYPE, 0, 0, written, flushed, epoch, 0)


class SentBefore:
    """Which of the batches that a subscription was sent its client still has, so that none of them is sent again: the
    newest ones of up to `size_max` bytes, the newest one in any case. Both sides keep this by the same rule: 0 for a
    subscription without an order, the prefetch's bytes for one that is ordered by key, whose grants are scattered."""

    __slots__ = ("_size", "_size_max", "_sizes")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        # By base queue offset, in the order in which they were sent.
        self._sizes: dict[int, int] = {}

    def __contains__(self, base: int) -> bool:
        return base in self._sizes

    def add(self, base: int, size: int) -> list[int]:
        """One is sent; those that are forgotten for it."""
        self._size += size - self._sizes.pop(base, 0)
        self._sizes[base] = size
        forgotten = list[int]()
        while self._size > self._size_max and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self._size -= self._sizes.pop(oldest)
            forgotten.append(oldest)
        return forgotten


def deliver_head(
    *, subscription: int, epoch: int, next_confirmed: int, grants: Sequence[Grant], batch_count: int, batches_bytes: int
) -> bytes:
    """A DELIVER frame up to the `batch_count` batches of `batches_bytes` bytes that follow, see `Deliver`."""
    facts = DELIVER.pack(subscription, epoch, next_confirmed, len(grants), batch_count)
    size = len(facts) + GRANT.size * len(grants) + batches_bytes
    return b"".join((frame_header(FrameType.DELIVER, size), facts, *(GRANT.pack(*grant) for grant in grants)))


def settle_frame(
    ranges: Sequence[int],
    *,
    subscription: int,
    epoch: int,
    how: int,
    level: int,
    delay_ms: int = 0,
    flags: int = 0,
    correlation_id: int = 0,
) -> bytes:
    """A whole SETTLE frame, see `Settle`. `ranges`: flat, first, next, first, next, …, ascending."""
    facts = SETTLE.pack(subscription, epoch, how, level, flags, delay_ms, len(ranges) // 2, 0)
    return frame(FrameType.SETTLE, facts + numbers(len(ranges)).pack(*ranges), correlation_id)


def settled_frame(
    records: int, correlation_id: int, passed_over: int = 0, elsewhere: Sequence[tuple[int, int]] = ()
) -> bytes:
    """A whole SETTLED frame: the settlement changed so many records, and passed over those that somebody else has in
    hand by now: `elsewhere`, none where they are too many to be told."""
    ranges = b"".join(SETTLE_RANGE.pack(*each) for each in elsewhere)
    return frame(FrameType.SETTLED, SETTLED.pack(records, passed_over) + ranges, correlation_id)


def read_grants(content: memoryview, count: int) -> tuple[list[Grant], memoryview]:
    """The grants that `content`, what follows the fixed struct of a DELIVER frame, begins with, and the batches behind
    them. Raises ProtocolError."""
    size = count * GRANT.size
    if size > len(content):
        raise ProtocolError(f"{count} grants do not fit into the {len(content)} bytes of a DELIVER frame")
    return [Grant._make(each) for each in GRANT.iter_unpack(content[:size])], content[size:]


def read_settle(payload: memoryview) -> tuple[Settle, tuple[int, ...]]:
    """The fixed struct and the ranges, flat. Raises ProtocolError when their number is another one than was said."""
    settle = read_settle_facts(payload)
    ranges = payload[SETTLE.size :]
    if len(ranges) != settle.range_count * SETTLE_RANGE.size:
        raise ProtocolError(f"{settle.range_count} ranges where a SETTLE frame has {len(ranges)} bytes for them")
    return settle, numbers(2 * settle.range_count).unpack(ranges)


def credit_frame(credit: Credit) -> bytes:
    """A whole CREDIT frame; it answers nothing."""
    return frame(FrameType.CREDIT, CREDIT.pack(*credit))


def read_settled(payload: memoryview) -> tuple[SettledPayload, list[tuple[int, int]]]:
    """The fixed struct, and which records were passed over: nothing from nodes that do not tell. Raises
    ProtocolError."""
    settled = read_settled_facts(payload)
    ranges = payload[SETTLED.size :]
    if len(ranges) % SETTLE_RANGE.size:
        raise ProtocolError(f"a SETTLED frame with {len(ranges)} bytes of ranges")
    return settled, [(first, following) for first, following in SETTLE_RANGE.iter_unpack(ranges)]


@lru_cache(maxsize=64)
def numbers(count: int) -> struct.Struct:
    """So many u64 in a row."""
    return struct.Struct(f"<{count}Q")


def struct_reader(layout: struct.Struct, make: Callable[[Iterable[Any]], _T]) -> Callable[[memoryview], _T]:
    """What reads the fixed struct that a payload begins with. Raises ProtocolError."""
    size, unpack_from = layout.size, layout.unpack_from

    def read(payload: memoryview) -> _T:
        if len(payload) < size:
            raise ProtocolError(f"a payload of {len(payload)} bytes is shorter than its {size} byte struct")
        return make(unpack_from(payload))

    return read


read_produce = struct_reader(PRODUCE, Produce._make)
read_confirm = struct_reader(CONFIRM, Confirm._make)
read_fetch = struct_reader(FETCH, Fetch._make)
read_batches = struct_reader(BATCHES, Batches._make)
read_transfer = struct_reader(TRANSFER, Transfer._make)
read_ack = struct_reader(ACK, Ack._make)
read_deliver = struct_reader(DELIVER, Deliver._make)
read_credit = struct_reader(CREDIT, Credit._make)
read_settle_facts = struct_reader(SETTLE, Settle._make)
read_settled_facts = struct_reader(SETTLED, SettledPayload._make)
