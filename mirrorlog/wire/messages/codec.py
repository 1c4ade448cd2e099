"""Messages as bytes and back."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from mirrorlog.errors import MirrorlogError, ProtocolError, from_code
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import (
    DeleteGroup,
    ExtendLease,
    GroupsFound,
    GroupsReset,
    Lease,
    Leases,
    LeasesSettled,
    ListGroups,
    Purged,
    PurgeGroup,
    Redrive,
    Redriven,
    ResetGroups,
    SettleLease,
    Subscribe,
    Subscribed,
    SubscriptionEnded,
    Unsubscribe,
)
from mirrorlog.wire.messages.handshake import Challenge, Failure, Hello, Proof, Welcome
from mirrorlog.wire.messages.operators import (
    CopyPromoted,
    Drained,
    DrainNode,
    Events,
    ForgetNode,
    GetEvents,
    PromoteCopy,
    Rebalance,
    Rebalanced,
)
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    DeclareQueue,
    Deleted,
    DeleteQueue,
    Done,
    EndHold,
    FetchPosition,
    FindOffset,
    FoundOffset,
    FoundPosition,
    GetMetadata,
    HoldGiven,
    HoldsFound,
    ListHolds,
    Metadata,
    SetHold,
)
from mirrorlog.wire.messages.replication import Follow, History, Pull
from mirrorlog.wire.messages.status import GetStatus, Status
from mirrorlog.wire.messages.topology import (
    AddVirtualHost,
    Bind,
    ClearPermissions,
    DeclareExchange,
    DeleteExchange,
    DeleteUser,
    DeleteVirtualHost,
    GetRouting,
    ListUsers,
    ListVirtualHosts,
    Login,
    Routing,
    SetPermissions,
    SetUser,
    SetUserLimits,
    Unbind,
    Users,
    VirtualHosts,
)

_M = TypeVar("_M", bound=Message)

AnyMessage = (
    Hello | Challenge | Proof | Welcome | Failure | Follow | History | Pull
    | GetMetadata | Metadata | DeclareQueue | DeleteQueue | Deleted | FindOffset | FoundOffset
    | CommitPosition | FetchPosition | FoundPosition | Done | GetStatus | Status
    | SetHold | HoldGiven | EndHold | ListHolds | HoldsFound
    | Subscribe | Subscribed | Unsubscribe | SubscriptionEnded | Lease | Leases | SettleLease | ExtendLease
    | LeasesSettled | PurgeGroup | Purged | DeleteGroup | ListGroups | GroupsFound | ResetGroups | GroupsReset
    | Redrive | Redriven | DeclareExchange | DeleteExchange | Bind | Unbind | GetRouting | Routing
    | AddVirtualHost | DeleteVirtualHost | ListVirtualHosts | VirtualHosts
    | SetUser | DeleteUser | SetPermissions | ClearPermissions | SetUserLimits | ListUsers | Users | Login
    | DrainNode | Drained | ForgetNode | Rebalance | Rebalanced | PromoteCopy | CopyPromoted | GetEvents | Events
)  # fmt: skip

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyMessage)


class Encoded(Message, frozen=True):
    """A message that was encoded before, for it is large and many ask for it; never decoded."""

    data: bytes


def encode(message: Message) -> bytes:
    return message.data if type(message) is Encoded else _ENCODER.encode(message)


def decode(payload: memoryview | bytes) -> AnyMessage:
    """The message in a frame's payload. Raises ProtocolError naming what does not fit."""
    try:
        message: AnyMessage = _DECODER.decode(payload)
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
