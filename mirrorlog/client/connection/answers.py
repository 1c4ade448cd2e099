"""What nodes answer, read as what the request ends with: a message, a confirm, or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirrorlog.errors import MirrorlogError, NotGranted, ProtocolError
from mirrorlog.wire.frames import CONFIRM, Confirm, Frame, FrameType, read_settled
from mirrorlog.wire.messages.codec import as_error, decode
from mirrorlog.wire.messages.groups import Subscribed, SubscriptionEnded
from mirrorlog.wire.messages.handshake import Failure

_TAKEN_NAMES: Final = frozenset({"self", "message"})
# Plain numbers: a frame is compared with them whenever one comes.
_CONFIRM: Final = int(FrameType.CONFIRM)
_ERROR: Final = int(FrameType.ERROR)
_SETTLED: Final = int(FrameType.SETTLED)


def confirm_in(answer: Frame) -> Confirm | MirrorlogError:
    """What an answer to a batch says, or is wrong with it: whoever waits must be told, whatever comes."""
    if answer.type == _CONFIRM and len(answer.payload) >= CONFIRM.size:
        return Confirm._make(CONFIRM.unpack_from(answer.payload))
    return failure_in(answer) if answer.type == _ERROR else not_due(answer, FrameType.CONFIRM)


def tell_settled(done: Callable[[MirrorlogError | None], None], answer: Frame | MirrorlogError) -> None:
    """Tell `done` what an answer to a settlement says is wrong; None for a confirm."""
    error: MirrorlogError | None = None
    if isinstance(answer, MirrorlogError):
        error = answer
    elif answer.type != _SETTLED:
        error = not_due(answer, FrameType.SETTLED)
    else:
        try:
            settled, elsewhere = read_settled(answer.payload)
        except ProtocolError as unreadable:
            error = unreadable
        else:
            error = NotGranted.elsewhere_of(settled.passed_over, elsewhere) if settled.passed_over else None
    done(error)


def subscribed_in(answer: Frame) -> Subscribed | MirrorlogError:
    """What an answer to Subscribe says, or is wrong with it."""
    try:
        message = decode(of_kind(answer, FrameType.RESPONSE).payload)
    except ProtocolError as error:
        return error
    if not isinstance(message, Subscribed):
        return ProtocolError(f"{type(message).__name__} where Subscribed was expected")
    return message


def ended_in(told: Frame) -> tuple[int, MirrorlogError]:
    """Which subscription an ENDED frame ends, and why. Raises ProtocolError."""
    message = decode(told.payload)
    if not isinstance(message, SubscriptionEnded):
        raise ProtocolError(f"an ENDED frame with {type(message).__name__}")
    failure = Failure(code=message.code, message=message.message, details=message.details)
    return message.subscription, told_error(failure)


def of_kind(answer: Frame, kind: FrameType) -> Frame:
    """The answer. Raises ProtocolError when it is of another type."""
    if answer.type != kind:
        raise not_due(answer, kind)
    return answer


def not_due(answer: Frame, kind: FrameType) -> ProtocolError:
    return ProtocolError(f"an answer of type {answer.type} with {len(answer.payload)} bytes where {kind.name} was due")


def failure_in(frame_: Frame) -> MirrorlogError:
    """What an ERROR frame says. Raises ProtocolError for one that cannot be read."""
    message = decode(frame_.payload)
    if not isinstance(message, Failure):
        return ProtocolError("an ERROR frame without a failure")
    return told_error(message)


def told_error(failure: Failure) -> MirrorlogError:
    """As an exception. Its details become keywords: those that have the names of its own parameters would clash."""
    details = {f"{name}_" if name in _TAKEN_NAMES else name: value for name, value in failure.details.items()}
    return as_error(Failure(code=failure.code, message=failure.message, details=details))
