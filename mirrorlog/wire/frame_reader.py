"""Bytes as frames: the reader over one warm buffer, and what checked frames carry beyond plain ones. Pure.

Between nodes that agreed on it in their greeting frames are *checked* from there on: the upper half of correlation_id
is the CRC-32C of the payload, of one with batches of its fixed struct alone, for batches have their own; flags are
(correlation_id · 2^64 + type · 2^48 + length · 2^16) modulo 65,521, a prime: cheaper than a CRC, no two bits escape it.
TCP's own sum misses one error in 65,536, and what comes through as a Raft message or as an ack is believed, and stored.
A header is judged by itself: a wrong length would make all that follows a part of its payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import FrameTooLarge, ProtocolError
from mirrorlog.wire.frames import FACTS_SIZES, FRAME_HEADER, FRAME_HEADER_SIZE, Frame, FrameType

_PAGE: Final = 4096
# Below it asking where a frame shall go costs more than copying it.
PLACED_BYTES_MIN: Final = 16 * 1024
_CHECK_PRIME: Final = 65_521
_KNOWN_TYPES: Final = frozenset(map(int, FrameType))
Place = Callable[[int, int, memoryview, int], memoryview | None]
"""(type, correlation id, fixed struct, size): where the `size` bytes behind the struct of a large frame shall be
received. Exactly so many bytes, or None for the reader's own buffer. Asked once per frame, before its bytes are there;
they may never come."""


def sealed(parts: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """A frame as it is sent checked. Its first part is all but the batches, whose number is below 2^32."""
    first, *batches = parts
    length, kind, _, number = FRAME_HEADER.unpack_from(first)
    payload = first[FRAME_HEADER_SIZE:] if length < PLACED_BYTES_MIN else memoryview(first)[FRAME_HEADER_SIZE:]
    number |= crc32c(payload) << 32
    head = FRAME_HEADER.pack(length, kind, _header_check(length, kind, number), number)
    return [head + payload, *batches] if len(payload) < PLACED_BYTES_MIN else [head, payload, *batches]


def _header_check(length: int, kind: int, number: int) -> int:
    return ((number << 16 | kind) << 48 | length << 16) % _CHECK_PRIME


def _checked_number(kind: int, number: int, payload: memoryview) -> int:
    """The correlation id of a checked frame. Raises ProtocolError when the payload is not what was sent."""
    if crc32c(payload[: FACTS_SIZES.get(kind)]) != number >> 32:
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
        length, kind, _, _ = FRAME_HEADER.unpack_from(self._buffer, self._start)
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
        length, kind, flags, correlation_id = FRAME_HEADER.unpack_from(self._buffer, self._start)
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
        facts_size = FACTS_SIZES.get(kind)
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
        length, kind, _, _ = FRAME_HEADER.unpack_from(self._buffer, self._start)
        if self._place is not None and not self._asked and length >= PLACED_BYTES_MIN and kind in FACTS_SIZES:
            return FRAME_HEADER_SIZE + FACTS_SIZES[kind]
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
