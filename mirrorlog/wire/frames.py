"""Frames: everything on the native ports is a sequence of them, little endian.

    offset  size  field
         0     4  length          of the payload that follows the 16 bytes
         4     2  type            see FrameType
         6     2  flags           0
         8     8  correlation_id  an answer carries its request's; 0 where none is expected
        16     …  payload         a msgpack map (wire.messages), or a fixed struct and batches (below)

Between nodes that agreed on it in their greeting frames are *checked* from there on: the upper half of correlation_id
is the CRC-32C of the payload, of one with batches of its fixed struct alone, for batches have their own; flags are
(correlation_id · 2^64 + type · 2^48 + length · 2^16) modulo 65,521, a prime: cheaper than a CRC, no two bits escape it.
TCP's own sum misses one error in 65,536, and what comes through as a Raft message or as an ack is believed, and stored.
A header is judged by itself: a wrong length would make all that follows a part of its payload.

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
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadRequest, FrameTooLarge, ProtocolError

FRAME_HEADER_SIZE: Final = 16
PROTOCOL_VERSION_MIN: Final = 1
PROTOCOL_VERSION_MAX: Final = 1

_PAGE: Final = 4096

# Below it asking where a frame shall go costs more than copying it.
PLACED_BYTES_MIN: Final = 16 * 1024

# Before HELLO is accepted nobody may make the node hold more than this for them.
HELLO_BYTES_MAX: Final = 64 * 1024

_CHECK_PRIME: Final = 65_521

_FRAME_HEADER = struct.Struct("<IHHQ")
assert _FRAME_HEADER.size == FRAME_HEADER_SIZE


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


_KNOWN_TYPES: Final = frozenset(map(int, FrameType))


class Frame(NamedTuple):
    """One received frame. `payload` is a view that is valid until the reader is asked for room again.

    `body`: None, or the bytes behind the payload's fixed struct, in the memory that the receiver gave for them (see
    `Place`); `payload` is the fixed struct alone then.
    """

    type: int
    correlation_id: int
    payload: memoryview
    body: memoryview | None = None


Place = Callable[[int, int, memoryview, int], memoryview | None]
"""(type, correlation id, fixed struct, size): where the `size` bytes behind the struct of a large frame shall be
received. Exactly so many bytes, or None for the reader's own buffer. Asked once per frame, before its bytes are there;
they may never come."""


def frame_header(kind: FrameType, payload_size: int, correlation_id: int = 0) -> bytes:
    """The 16 bytes before a payload of `payload_size` bytes."""
    return _FRAME_HEADER.pack(payload_size, kind, 0, correlation_id)


def frame(kind: FrameType, payload: bytes = b"", correlation_id: int = 0) -> bytes:
    """A whole small frame. Payloads with batches are sent as header, struct and views instead: no copy."""
    return _FRAME_HEADER.pack(len(payload), kind, 0, correlation_id) + payload


def sealed(parts: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """A frame as it is sent checked. Its first part is all but the batches, whose number is below 2^32."""
    first, *batches = parts
    length, kind, _, number = _FRAME_HEADER.unpack_from(first)
    payload = first[FRAME_HEADER_SIZE:] if length < PLACED_BYTES_MIN else memoryview(first)[FRAME_HEADER_SIZE:]
    number |= crc32c(payload) << 32
    head = _FRAME_HEADER.pack(length, kind, _header_check(length, kind, number), number)
    return [head + payload, *batches] if len(payload) < PLACED_BYTES_MIN else [head, payload, *batches]


def _header_check(length: int, kind: int, number: int) -> int:
    return ((number << 16 | kind) << 48 | length << 16) % _CHECK_PRIME


def _checked_number(kind: int, number: int, payload: memoryview) -> int:
    """The correlation id of a checked frame. Raises ProtocolError when the payload is not what was sent."""
    if crc32c(payload[: _FACTS_SIZES.get(kind)]) != number >> 32:
        raise ProtocolError(f"a frame of type {kind} does not match its checksum: it was changed on its way")
    return number & 0xFFFFFFFF


class FrameReader:
    """Bytes in, frames out, over one warm buffer; knows no socket.

    Use: receive into `room()`, tell `received(n)`, then take `next_frame()` until it gives None. The buffer begins
    small, grows to the largest frame seen and never beyond `frame_bytes_max`, and shrinks again when it is told to. A
    large frame of batches is received where `place` says, and then not copied again.
    """

    __slots__ = (
        "_asked", "_buffer", "_end", "_initial_bytes", "_place", "_placed", "_placed_end", "_placed_head", "_start",
        "_view", "checked", "frame_bytes_max",
    )  # fmt: skip

    def __init__(self, *, frame_bytes_max: int, initial_bytes: int = 64 * 1024, place: Place | None = None) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.checked = False
        """Whether frames are to be checked: set when both sides have agreed on it, between two of them."""
        self._initial_bytes = initial_bytes
        self._buffer = bytearray(initial_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._place = place
        self._asked = False
        self._placed: memoryview | None = None
        self._placed_end = 0
        self._placed_head = Frame(0, 0, memoryview(b""))

    @property
    def partial(self) -> bool:
        """A frame has begun and is not complete: the sender owes bytes."""
        return self._placed is not None or self._end > self._start

    @property
    def has_frame(self) -> bool:
        """Whether the first frame is complete, and was not taken."""
        return self.ahead is not None

    @property
    def ahead(self) -> tuple[int, int] | None:
        """Type and payload's size of the first frame, if it is complete and was not taken."""
        if (placed := self._placed) is not None:
            head = self._placed_head
            return (head.type, len(head.payload) + len(placed)) if self._placed_end >= len(placed) else None
        have = self._end - self._start
        if have < FRAME_HEADER_SIZE:
            return None
        length, kind, _, _ = _FRAME_HEADER.unpack_from(self._buffer, self._start)
        return (kind, length) if have >= FRAME_HEADER_SIZE + length else None

    @property
    def buffer_bytes(self) -> int:
        """What it holds in memory."""
        return len(self._buffer)

    def shrink(self) -> None:
        """Give back what a large frame made the buffer grow by, unless a frame is under way."""
        if not self.partial and len(self._buffer) > self._initial_bytes:
            self._use(bytearray(self._initial_bytes))

    def release(self) -> None:
        """Let go of the buffer and of who is asked for places; nothing is received any more."""
        self._place = self._placed = None
        self._use(bytearray())

    @property
    def begun_bytes(self) -> int:
        """Received in the reader's own buffer and not taken: of a frame that has begun, mostly."""
        return self._end - self._start

    @property
    def announced_bytes(self) -> int:
        """How large the frame is that has begun, as far as is known."""
        return len(self._placed) if self._placed is not None else self._wanted()

    def unread(self) -> bytes:
        """The bytes not yet taken as frames (for telling a stranger's protocol apart)."""
        return bytes(self._view[self._start : self._end])

    def room(self) -> memoryview:
        """Where to receive next; never empty. Views given out by `next_frame` are invalid from here on."""
        if self._placed is not None:
            return self._placed[self._placed_end :]
        if self._start == self._end:
            self._start = self._end = 0
            return self._view  # room for a header at least, and often for much more
        if self._start and (self._wanted() > len(self._buffer) - self._start or 2 * self._end > len(self._buffer)):
            self._compact()
        if self._wanted() > len(self._buffer):
            self._grow(self._wanted())
        return self._view[self._end :]

    def received(self, size: int) -> None:
        if self._placed is not None:
            self._placed_end += size
        else:
            self._end += size

    def next_frame(self) -> Frame | None:
        """The next complete frame. Raises FrameTooLarge or ProtocolError at a header that cannot be one, and what
        `place` raises."""
        if self._placed is not None:
            return self._take_placed()
        have = self._end - self._start
        if have < FRAME_HEADER_SIZE:
            return None
        length, kind, flags, correlation_id = _FRAME_HEADER.unpack_from(self._buffer, self._start)
        if self.checked:
            if flags != _header_check(length, kind, correlation_id):
                raise ProtocolError("a frame's header does not match its check: it was changed on its way")
            flags = 0
        if kind not in _KNOWN_TYPES or flags:
            raise ProtocolError(f"type {kind} with flags {flags} is no frame of the native protocol")
        if length > self.frame_bytes_max:
            raise FrameTooLarge(f"a frame of {length} bytes is above the limit of {self.frame_bytes_max}")
        if have < FRAME_HEADER_SIZE + length:
            if length >= PLACED_BYTES_MIN and not self._asked:
                self._ask_place(kind, correlation_id, length)
            return None
        begin = self._start + FRAME_HEADER_SIZE
        payload = self._view[begin : begin + length]
        if self.checked:
            correlation_id = _checked_number(kind, correlation_id, payload)
        self._start = begin + length
        self._asked = False
        return Frame(kind, correlation_id, payload)

    def _ask_place(self, kind: int, correlation_id: int, length: int) -> None:
        """Once the fixed struct is there: what came with it is copied to its place, what follows is received there."""
        facts_size = _FACTS_SIZES.get(kind)
        begin = self._start + FRAME_HEADER_SIZE
        if self._place is None or facts_size is None or self._end < begin + facts_size:
            return
        self._asked = True
        # A copy: the frame's own buffer is free again from here on.
        facts = memoryview(bytes(self._view[begin : begin + facts_size]))
        if self.checked:
            correlation_id = _checked_number(kind, correlation_id, facts)
        placed = self._place(kind, correlation_id, facts, length - facts_size)
        if placed is None:
            return
        there = self._view[begin + facts_size : self._end]
        for at in range(0, len(there), _PAGE):
            # In order: a log's bytes that are there must be those in front, should the process be killed in this.
            piece = there[at : at + _PAGE]
            placed[at : at + len(piece)] = piece
        self._placed, self._placed_end = placed, len(there)
        self._placed_head = Frame(kind, correlation_id, facts)
        self._start = self._end = 0

    def _take_placed(self) -> Frame | None:
        placed = self._placed
        if placed is None or self._placed_end < len(placed):
            return None
        self._placed, self._asked = None, False
        return self._placed_head._replace(body=placed)

    def _wanted(self) -> int:
        """Bytes from `_start` that the frame now being received needs in all; at least a header, and no more than the
        fixed struct of one that may be placed."""
        if self._end - self._start < FRAME_HEADER_SIZE:
            return FRAME_HEADER_SIZE
        length, kind, _, _ = _FRAME_HEADER.unpack_from(self._buffer, self._start)
        if self._place is not None and not self._asked and length >= PLACED_BYTES_MIN and kind in _FACTS_SIZES:
            return FRAME_HEADER_SIZE + _FACTS_SIZES[kind]
        return FRAME_HEADER_SIZE + min(int(length), self.frame_bytes_max)

    def _compact(self) -> None:
        held = self._end - self._start
        self._view[:held] = self._view[self._start : self._end]
        self._start, self._end = 0, held

    def _grow(self, size: int) -> None:
        held = self._view[self._start : self._end]
        self._use(bytearray(size))
        self._view[: len(held)] = held
        self._end = len(held)

    def _use(self, buffer: bytearray) -> None:
        """Views of the old one may still be held, by a transport or a handler: it is left to them, never resized."""
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start = self._end = 0


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


class Settled(NamedTuple):
    """Of a settlement's records: how many it changed, and how many somebody else has in hand by now."""

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


GRANT_REDELIVERED: Final = 1
SETTLE_AGAIN: Final = 1
"""The connection on which this was sent first is lost, and perhaps its answer."""
CONFIRM_DUPLICATE: Final = 1
TRANSACT_PARTS_MAX: Final = 256
"""Batches, and settlements, of one transaction: a frame is one step of the node's loop, and each costs it 60 µs."""
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
TRANSACT = struct.Struct("<BBHIII")
TRANSACTED = struct.Struct("<QIHBBII")
RECEIPT = struct.Struct("<QQ")


def _framed(payload: struct.Struct) -> struct.Struct:
    return struct.Struct(_FRAME_HEADER.format + payload.format.removeprefix("<"))


# A frame's header and the fixed struct behind it, in one: the three that every publish passes through.
_CONFIRM_FRAME = _framed(CONFIRM)
_TRANSFER_FRAME = _framed(TRANSFER)
_ACK_FRAME = _framed(ACK)

assert not any(each.size % 8 for each in (PRODUCE, CONFIRM, FETCH, BATCHES, TRANSFER, ACK))
assert not any(each.size % 8 for each in (DELIVER, GRANT, SETTLE, SETTLE_RANGE, SETTLED, CREDIT))
assert not any(each.size % 8 for each in (TRANSACT, TRANSACTED, RECEIPT))

_FACTS_SIZES: Final = {
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
    return frame(FrameType.SETTLE, facts + _numbers(len(ranges)).pack(*ranges), correlation_id)


def settle_part(
    ranges: Sequence[int], *, subscription: int, epoch: int, how: int, again: bool, delay_ms: int = 0
) -> bytes:
    """A settlement as a TRANSACT frame has it. `ranges`: as of `settle_frame`."""
    flags = SETTLE_AGAIN if again else 0
    facts = SETTLE.pack(subscription, epoch, how, Level.ALL, flags, delay_ms, len(ranges) // 2, 0)
    return facts + _numbers(len(ranges)).pack(*ranges)


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


def settled_frame(
    records: int, correlation_id: int, passed_over: int = 0, elsewhere: Sequence[tuple[int, int]] = ()
) -> bytes:
    """A whole SETTLED frame: the settlement changed so many records, and passed over those that somebody else has in
    hand by now: `elsewhere`, none where they are too many to be told."""
    ranges = b"".join(SETTLE_RANGE.pack(*each) for each in elsewhere)
    return frame(FrameType.SETTLED, SETTLED.pack(records, passed_over) + ranges, correlation_id)


def read_deliver(payload: memoryview) -> Deliver:
    return Deliver._make(_unpack(DELIVER, payload))


def read_grants(content: memoryview, count: int) -> tuple[list[Grant], memoryview]:
    """The grants that `content`, what follows the fixed struct of a DELIVER frame, begins with, and the batches behind
    them. Raises ProtocolError."""
    size = count * GRANT.size
    if size > len(content):
        raise ProtocolError(f"{count} grants do not fit into the {len(content)} bytes of a DELIVER frame")
    return [Grant._make(each) for each in GRANT.iter_unpack(content[:size])], content[size:]


def read_settle(payload: memoryview) -> tuple[Settle, tuple[int, ...]]:
    """The fixed struct and the ranges, flat. Raises ProtocolError when their number is another one than was said."""
    settle = Settle._make(_unpack(SETTLE, payload))
    ranges = payload[SETTLE.size :]
    if len(ranges) != settle.range_count * SETTLE_RANGE.size:
        raise ProtocolError(f"{settle.range_count} ranges where a SETTLE frame has {len(ranges)} bytes for them")
    return settle, _numbers(2 * settle.range_count).unpack(ranges)


def read_transact(payload: memoryview) -> tuple[Transact, list[tuple[Settle, tuple[int, ...]]], memoryview]:
    """The fixed struct, settlements with their ranges, and the bytes of the batches. Raises ProtocolError; BadRequest
    for more parts than are looked at."""
    facts = Transact._make(_unpack(TRANSACT, payload))
    for count, what in ((facts.batch_count, "batches"), (facts.settle_count, "settlements")):
        if count > TRANSACT_PARTS_MAX:
            raise BadRequest(f"a transaction of {count} {what} is above the limit of {TRANSACT_PARTS_MAX}")
    at = TRANSACT.size
    settlements = []
    for _ in range(facts.settle_count):
        size = SETTLE.size + Settle._make(_unpack(SETTLE, payload[at:])).range_count * SETTLE_RANGE.size
        settlements.append(read_settle(payload[at : at + size]))
        at += size
    return facts, settlements, payload[at:]


def transacted_frame(facts: Transacted, receipts: Sequence[BatchReceipt], correlation_id: int) -> bytes:
    """A whole TRANSACTED frame."""
    payload = TRANSACTED.pack(*facts) + b"".join(RECEIPT.pack(*each) for each in receipts)
    return frame(FrameType.TRANSACTED, payload, correlation_id)


def read_transacted(payload: memoryview) -> tuple[Transacted, list[BatchReceipt]]:
    """Raises ProtocolError."""
    facts = Transacted._make(_unpack(TRANSACTED, payload))
    receipts = payload[TRANSACTED.size :]
    if len(receipts) != facts.receipt_count * RECEIPT.size:
        raise ProtocolError(f"{facts.receipt_count} receipts where a TRANSACTED frame has {len(receipts)} bytes")
    return facts, [BatchReceipt._make(each) for each in RECEIPT.iter_unpack(receipts)]


def credit_frame(credit: Credit) -> bytes:
    """A whole CREDIT frame; it answers nothing."""
    return frame(FrameType.CREDIT, CREDIT.pack(*credit))


def read_credit(payload: memoryview) -> Credit:
    return Credit._make(_unpack(CREDIT, payload))


def read_settled(payload: memoryview) -> tuple[Settled, list[tuple[int, int]]]:
    """The fixed struct, and which records were passed over: nothing from nodes that do not tell. Raises
    ProtocolError."""
    settled = Settled._make(_unpack(SETTLED, payload))
    ranges = payload[SETTLED.size :]
    if len(ranges) % SETTLE_RANGE.size:
        raise ProtocolError(f"a SETTLED frame with {len(ranges)} bytes of ranges")
    return settled, [(first, following) for first, following in SETTLE_RANGE.iter_unpack(ranges)]


@lru_cache(maxsize=64)
def _numbers(count: int) -> struct.Struct:
    """So many u64 in a row."""
    return struct.Struct(f"<{count}Q")


def read_produce(payload: memoryview) -> Produce:
    return Produce._make(_unpack(PRODUCE, payload))


def read_confirm(payload: memoryview) -> Confirm:
    return Confirm._make(_unpack(CONFIRM, payload))


def read_fetch(payload: memoryview) -> Fetch:
    return Fetch._make(_unpack(FETCH, payload))


def read_batches(payload: memoryview) -> Batches:
    return Batches._make(_unpack(BATCHES, payload))


def read_transfer(payload: memoryview) -> Transfer:
    return Transfer._make(_unpack(TRANSFER, payload))


def read_ack(payload: memoryview) -> Ack:
    return Ack._make(_unpack(ACK, payload))


def _unpack(layout: struct.Struct, payload: memoryview) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise ProtocolError(f"a payload of {len(payload)} bytes is shorter than its {layout.size} byte struct")
    return layout.unpack_from(payload)
