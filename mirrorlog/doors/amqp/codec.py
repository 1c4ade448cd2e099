"""The frames of AMQP 0-9-1, and its methods that come with each message. Pure.

    frame   = type:u8 channel:u16 size:u32 payload:size 0xCE
    content = method frame, header frame, body frames until body-size bytes are there
    header  = class:u16 weight:u16 body-size:u64 properties

A property list is never opened here: it goes on as its bytes. A body is copied once, when it is cut from what was read,
also when it came in many frames: until then they are views. All other methods are pamqp's, which takes ten times as
long for each and is the oracle of these in the tests.

Source: the specification's 4.2, and RabbitMQ's errors for what is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from mirrorlog.doors.amqp.errors import FRAME_ERROR, SYNTAX_ERROR, UNEXPECTED_FRAME

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
"""Head and end."""
FRAME_MAX_MIN: Final = 4096
"""What any peer takes."""

BASIC: Final = 60
PUBLISH: Final = BASIC << 16 | 40
RETURN: Final = BASIC << 16 | 50
DELIVER: Final = BASIC << 16 | 60
GET_OK: Final = BASIC << 16 | 71
ACK: Final = BASIC << 16 | 80
REJECT: Final = BASIC << 16 | 90
NACK: Final = BASIC << 16 | 120
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD: Final = Struct(">BHI")
_METHOD_ID: Final = Struct(">I")
_COUNTS: Final = Struct(">II")
_CONTENT_HEADER: Final = Struct(">HHQ")
_TAG_AND_BITS: Final = Struct(">QB")
# Head of a method's frame with the method and its first field.
_SETTLING: Final = Struct(">BHIIQBB")
_METHOD_HEAD: Final = Struct(">BHII")
# The end of the method's frame, and a content header's head up to the properties.
_HEADER_HEAD: Final = Struct(">BBHIHHQ")
_BODY_HEAD: Final = Struct(">BBHI")


class FrameError(Exception):
    """Bytes that are no frame, or no method: the connection ends. `code`: of the reply; `method`: whose, 0 for none."""

    def __init__(self, code: int, text: str, method: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.method = method


class AmqpFrame(NamedTuple):
    """`data[start:end]` is its payload."""

    kind: int
    channel: int
    data: bytes
    start: int
    end: int


class Frames:
    """Cuts what comes from a connection into frames. `frame_max`: with head and end."""

    __slots__ = ("_have", "_need", "_pieces", "frame_max")

    def __init__(self, frame_max: int) -> None:
        self.frame_max = frame_max
        # What is there of the next frame, and how much it takes until there is something to look at: else one who
        # sends byte by byte has all of it joined anew for each.
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 1

    def feed(self, data: bytes) -> Iterator[AmqpFrame]:
        """The frames that are whole now; the iterator is run to its end, or dropped with the connection. Raises
        FrameError."""
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        at, end = 0, len(data)
        # As RabbitMQ has it: some clients take it for the size of what is within.
        unpack, size_max = _HEAD.unpack_from, self.frame_max
        need = FRAME_OVERHEAD
        while end - at >= FRAME_OVERHEAD:
            kind, channel, size = unpack(data, at)
            if size > size_max:
                text = f"frame of {size + FRAME_OVERHEAD} bytes is above the frame_max of {self.frame_max}"
                raise FrameError(FRAME_ERROR, text)
            stop = at + 7 + size
            if stop >= end:
                need = size + FRAME_OVERHEAD
                break
            if data[stop] != _END:
                raise FrameError(FRAME_ERROR, f"frame ends with {data[stop]:#04x}, not with 0xce")
            yield AmqpFrame(kind, channel, data, at + 7, stop)
            at = stop + 1
            size_max = self.frame_max  # what the frame said may have changed it
        if at < end:
            self._pieces = [data[at:] if at else data]
            self._have, self._need = end - at, need


# --- Reading --------------------------------------------------------------------------------------------------------


def method_of(frame: AmqpFrame) -> int:
    """Class and method of a method's frame, as one number. Raises FrameError."""
    if frame.end - frame.start < 4:
        raise FrameError(SYNTAX_ERROR, "a method's frame has less than four bytes")
    found: int = _METHOD_ID.unpack_from(frame.data, frame.start)[0]
    return found


class PublishMethod(NamedTuple):
    exchange: str
    key: str
    mandatory: bool
    immediate: bool


def read_publish(frame: AmqpFrame) -> PublishMethod:
    """Raises FrameError."""
    _, _, data, start, end = frame
    try:
        at = start + 7 + data[start + 6]  # behind the method and a reserved short
        exchange = data[start + 7 : at]
        key_end = at + 1 + data[at]
        if key_end + 1 != end:
            raise _no_method(PUBLISH)
        bits = data[key_end]
        key = str(data[at + 1 : key_end], "utf-8")
        return PublishMethod(str(exchange, "utf-8"), key, bits & 1 != 0, bits & 2 != 0)
    except (IndexError, UnicodeDecodeError):
        raise _no_method(PUBLISH) from None


class TagSettlement(NamedTuple):
    """What an ack, a nack or a reject says. `requeue`: of the latter two."""

    tag: int
    multiple: bool
    requeue: bool


def read_settlement(frame: AmqpFrame, method: int) -> TagSettlement:
    """Of an ack, a nack or a reject. Raises FrameError."""
    if frame.end - frame.start != 13:
        raise _no_method(method)
    tag, bits = _TAG_AND_BITS.unpack_from(frame.data, frame.start + 4)
    if method == REJECT:
        return TagSettlement(tag, False, bits & 1 != 0)
    return TagSettlement(tag, bits & 1 != 0, bits & 2 != 0)


class ContentHeader(NamedTuple):
    body_size: int
    properties: bytes


def read_header(frame: AmqpFrame) -> ContentHeader:
    """Of a message. Raises FrameError."""
    _, _, data, start, end = frame
    if end - start < 14:  # with the flags of no property
        raise FrameError(SYNTAX_ERROR, "a content header has less than fourteen bytes", PUBLISH)
    class_id, weight, body_size = _CONTENT_HEADER.unpack_from(data, start)
    if class_id != BASIC:
        text = f"expected content header for class {BASIC}, got one for class {class_id} instead"
        raise FrameError(UNEXPECTED_FRAME, text, PUBLISH)
    if weight:
        raise FrameError(SYNTAX_ERROR, f"a content header has weight {weight}", PUBLISH)
    return ContentHeader(body_size, data[start + 12 : end])


class Content:
    """A body of `size` bytes on its way in, of which `missing` have not come."""

    __slots__ = ("_pieces", "missing", "properties", "size")

    def __init__(self, header: ContentHeader) -> None:
        self.properties = header.properties
        self.size = self.missing = header.body_size
        self._pieces: list[memoryview] = []

    def add(self, frame: AmqpFrame) -> None:
        """Raises FrameError for more than the header has said."""
        size = frame.end - frame.start
        if size > self.missing:
            text = f"a body has {size - self.missing} bytes more than its header says"
            raise FrameError(UNEXPECTED_FRAME, text, PUBLISH)
        self.missing -= size
        self._pieces.append(memoryview(frame.data)[frame.start : frame.end])

    def body(self) -> bytes:
        """Once nothing is missing."""
        return b"".join(self._pieces)


def _no_method(method: int) -> FrameError:
    return FrameError(SYNTAX_ERROR, f"arguments of method {method >> 16}.{method & 0xFFFF} are not to be read", method)


# --- Writing --------------------------------------------------------------------------------------------------------


def short(text: bytes) -> bytes:
    """A short string, of at most 255 bytes."""
    return bytes((len(text),)) + text


def ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """A frame."""
    return _SETTLING.pack(METHOD, channel, 13, ACK, tag, multiple, _END)


def nack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """A frame; to a publisher, whom `requeue` tells nothing."""
    return _SETTLING.pack(METHOD, channel, 13, NACK, tag, multiple, _END)


def deliver(
    channel: int,
    consumer: bytes,
    tag: int,
    redelivered: bool,
    *,
    route: bytes,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """The frames of a delivery. `consumer`: its tag, and `route`: exchange and key, as short strings; `properties`:
    as of a content header."""
    start = _METHOD_HEAD.pack(METHOD, channel, 13 + len(consumer) + len(route), DELIVER)
    return b"".join(
        (
            start,
            consumer,
            _TAG_AND_BITS.pack(tag, redelivered),
            route,
            *_content(channel, properties, body, frame_max),
        )
    )


def get_ok(
    channel: int,
    tag: int,
    redelivered: bool,
    *,
    route: bytes,
    left: int,
    properties: bytes,
    body: bytes,
    frame_max: int,
) -> bytes:
    """The frames of what a `get` found. `left`: messages behind it."""
    return b"".join(
        (
            _METHOD_HEAD.pack(METHOD, channel, 17 + len(route), GET_OK),
            _TAG_AND_BITS.pack(tag, redelivered),
            route,
            _METHOD_ID.pack(min(left, 2**32 - 1)),
            *_content(channel, properties, body, frame_max),
        )
    )


def returned(
    channel: int, code: int, text: bytes, *, route: bytes, properties: bytes, body: bytes, frame_max: int
) -> bytes:
    """The frames of a message that was not routed."""
    reason = code.to_bytes(2, "big") + short(text)
    return b"".join(
        (
            _METHOD_HEAD.pack(METHOD, channel, 4 + len(reason) + len(route), RETURN),
            reason,
            route,
            *_content(channel, properties, body, frame_max),
        )
    )


def declare_ok(channel: int, queue: bytes, messages: int, consumers: int) -> bytes:
    """A frame. These three have names that pamqp would not let through, as others do."""
    counts = _COUNTS.pack(min(messages, 2**32 - 1), min(consumers, 2**32 - 1))
    return _method(channel, 50 << 16 | 11, short(queue) + counts)


def consume_ok(channel: int, consumer: bytes) -> bytes:
    """A frame. `consumer`: its tag."""
    return _method(channel, BASIC << 16 | 21, short(consumer))


def cancel(channel: int, consumer: bytes) -> bytes:
    """A frame, of the server: the consumer gets nothing any more."""
    return _method(channel, BASIC << 16 | 30, short(consumer) + b"\1")


def cancel_ok(channel: int, consumer: bytes) -> bytes:
    """A frame."""
    return _method(channel, BASIC << 16 | 31, short(consumer))


def _method(channel: int, method: int, arguments: bytes) -> bytes:
    return _METHOD_HEAD.pack(METHOD, channel, 4 + len(arguments), method) + arguments + b"\xce"


def _content(channel: int, properties: bytes, body: bytes, frame_max: int) -> list[bytes | memoryview]:
    """What follows a method's arguments: its frame's end, and the other frames."""
    size = len(body)
    pieces: list[bytes | memoryview] = [
        _HEADER_HEAD.pack(_END, HEADER, channel, 12 + len(properties), BASIC, 0, size),
        properties,
    ]
    room = frame_max - FRAME_OVERHEAD
    if size <= room:
        if size:
            pieces += _BODY_HEAD.pack(_END, BODY, channel, size), body
    else:
        view = memoryview(body)
        for at in range(0, size, room):
            part = view[at : at + room]
            pieces += _BODY_HEAD.pack(_END, BODY, channel, len(part)), part
    pieces.append(b"\xce")
    return pieces
