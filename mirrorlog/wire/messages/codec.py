"""Messages as bytes and back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, reduce
from operator import or_
from typing import Any, Final, TypeVar

import msgspec

from mirrorlog.errors import BadRequest, MirrorlogError, ProtocolError, from_code
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.handshake import Failure

_M = TypeVar("_M", bound=Message)

_NUMBER_MIN: Final = -(2**63)
_NUMBER_MAX: Final = 2**64 - 1
"""What msgpack has room for."""
_SHOWN_DIGITS: Final = 40
_ENCODER: Final = msgspec.msgpack.Encoder()


class Encoded(Message, frozen=True):
    """A message that was encoded before, for it is large and many ask for it; never decoded."""

    data: bytes


def encode(message: Message) -> bytes:
    """A message as bytes. Raises BadRequest naming a number that msgpack cannot carry."""
    if type(message) is Encoded:
        return message.data
    try:
        return _ENCODER.encode(message)
    except OverflowError:
        kind = type(message).__name__
        field, number = next(_too_large(msgspec.structs.asdict(message)), ("a number", "it"))
        shown = str(number) if len(str(number)) <= _SHOWN_DIGITS else f"{str(number)[:_SHOWN_DIGITS]}…"
        raise BadRequest(f"{kind}: {field} is {shown}, which does not fit into 64 bits") from None


def encode_readable(message: Message) -> bytes:
    """As `encode`, of what a caller gave: raises BadRequest for what its reader could not read, and would end the
    connection for."""
    try:
        payload = encode(message)
        decode(payload)
    except (TypeError, ValueError, RecursionError, ProtocolError) as error:
        raise BadRequest(f"{type(message).__name__}: {error}") from None
    return payload


def _too_large(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Where numbers are that do not fit, and these."""
    if isinstance(value, int):
        if not _NUMBER_MIN <= value <= _NUMBER_MAX:
            yield path, value
    elif isinstance(value, msgspec.Struct):
        yield from _too_large(msgspec.structs.asdict(value), path)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _too_large(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _too_large(each, path)


@cache
def _decoder() -> msgspec.msgpack.Decoder[Message]:
    """Of every kind that there is. Made by the first message, for a program that has none yet can do without most."""
    from mirrorlog.wire.messages import connections, groups, handshake, operators, queues, replication, status, topology

    modules = (connections, groups, handshake, operators, queues, replication, status, topology)
    every = [kind for module in modules for kind in vars(module).values() if getattr(kind, "__base__", None) is Message]
    return msgspec.msgpack.Decoder(reduce(or_, every))


def decode(payload: memoryview | bytes) -> Message:
    """The message in a frame's payload. Raises ProtocolError naming what does not fit."""
    try:
        message = _decoder().decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a control message does not fit: {error}") from None
    return message


def expect_message(frame_: Frame, frame_type: FrameType, kind: type[_M]) -> _M:
    """The message of that kind in a frame of that type. Raises ProtocolError for anything else."""
    if frame_.type != frame_type:
        raise ProtocolError(f"frame type {frame_.type} where {frame_type.name} was expected")
    message = decode(frame_.payload)
    if not isinstance(message, kind):
        raise ProtocolError(f"{type(message).__name__} where {kind.__name__} was expected")
    return message


def error_frame(error: MirrorlogError, correlation_id: int = 0) -> bytes:
    failure = Failure(code=error.code, message=error.message, details=error.details)
    return frame(FrameType.ERROR, encode(failure), correlation_id)


def as_error(failure: Failure) -> MirrorlogError:
    """The exception that a received ERROR frame stands for."""
    return from_code(failure.code, failure.message, failure.details)
