"""A gRPC call: whose it is, how long it may take, and how it ends when it fails.

The login of a call is its metadata `authorization`, as `Basic …` of HTTP. An error of the tree becomes a status with
details for calls and streams, and an Error message within a stream. What can be retried is decided here, at one place:
a batch whose outcome is unknown only if its producer is idempotent, everything else as its class says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from mirrorlog.attempts import outcome_of
from mirrorlog.client import Client
from mirrorlog.doors.common.callers import Callers, is_here, read_basic
from mirrorlog.errors import LoginFailed, MirrorlogError, RequestTimeout
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.wire.messages.topology import Login

ERROR_DOMAIN: Final = "mirrorlog"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Clients take 8 KiB of trailing metadata by default; more would cost them the status too. The message is there twice,
# once percent-encoded (3 bytes for 1), once with the details in base64 (4 for 3).
_MESSAGE_BYTES_MAX: Final = 1024
_NAME_BYTES_MAX: Final = 64
_VALUE_BYTES_MAX: Final = 128
_DETAILS_MAX: Final = 8
_CUT: Final = "…"

UNARY_TIMEOUT_S: Final = 10.0

Call = grpc.aio.ServicerContext[Any, Any]

_T = TypeVar("_T")


class CallStatus(NamedTuple):
    """How a call ends; `trailing_metadata` carries a google.rpc.Status with ErrorInfo."""

    code: grpc.StatusCode
    message: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


def grpc_code(error: MirrorlogError) -> grpc.StatusCode:
    """The status of the error's class."""
    return grpc.StatusCode[error.grpc_status]


def can_retry(error: MirrorlogError, *, idempotent: bool) -> bool:
    """Whether the identical request, sent again, lands at most once and can succeed."""
    if grpc_code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
        return idempotent and error.retriable
    return error.retriable


def as_message(error: MirrorlogError, *, idempotent: bool) -> common.Error:
    """For an answer within a stream."""
    return common.Error(
        grpc_code=_number(grpc_code(error)),
        code=error.code,
        message=_cut(error.message, _MESSAGE_BYTES_MAX),
        retriable=can_retry(error, idempotent=idempotent),
        details=_details(error),
    )


def as_call_status(error: MirrorlogError, *, idempotent: bool) -> CallStatus:
    """For the end of a call or a stream."""
    message = as_message(error, idempotent=idempotent)
    info = ErrorInfo(reason=message.code, domain=ERROR_DOMAIN, metadata=message.details)
    info.metadata["retriable"] = "true" if message.retriable else "false"
    packed = AnyMessage()
    packed.Pack(info)
    status = Status(code=message.grpc_code, message=message.message, details=[packed])
    return CallStatus(grpc_code(error), message.message, ((DETAILS_KEY, status.SerializeToString()),))


def _number(code: grpc.StatusCode) -> int:
    number: int = code.value[0]
    return number


def _details(error: MirrorlogError) -> dict[str, str]:
    few = list(error.details.items())[:_DETAILS_MAX]
    return {_cut(name, _NAME_BYTES_MAX): _cut(_text(value), _VALUE_BYTES_MAX) for name, value in few}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(text: str, bytes_max: int) -> str:
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - len(_CUT.encode())].decode(errors="ignore") + _CUT


class CallLogins:
    """Finds who calls, and gives a client of the cluster with the caller's rights. `tls`: whether the door's port
    speaks it."""

    def __init__(self, callers: Callers, *, tls: bool = False) -> None:
        self._callers = callers
        self._tls = tls

    def client(self, call: Call) -> AbstractAsyncContextManager[Client]:
        """With the caller's rights, for this call. Raises LoginFailed; entering it raises as `Callers.client`."""
        return self._callers.client(self._login(call), address_of(call.peer()))

    def _login(self, call: Call) -> Login | None:
        given = [value for name, value in call.invocation_metadata() or () if name == "authorization"]
        if not given:
            return None
        if len(given) > 1 or not isinstance(given[0], str):
            raise LoginFailed("authorization is given once, as text")
        return read_basic(given[0], private=self._tls or comes_from_here(call.peer()))


def comes_from_here(peer: str) -> bool:
    """Whether a peer as gRPC names it (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`, `unix:…`) is on this machine."""
    return peer.startswith("unix:") or is_here(address_of(peer))


def address_of(peer: str) -> str:
    """Without kind and port; empty for one that has none."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


async def abort(call: Call, error: MirrorlogError) -> None:
    """End the call with the error's status and details. Every call, and a stream as a whole, can be repeated safely."""
    status = as_call_status(error, idempotent=True)
    await call.abort(status.code, status.message, status.trailing_metadata)


async def answered(
    call: Call, logins: CallLogins, ask: Callable[[Client], Awaitable[_T]], *, changes: bool = False
) -> _T:
    """What `ask` gives with the caller's client, within 10 seconds; a shorter deadline of the caller's is gRPC's to
    keep. `changes`: it is no mere question. Ends the call on errors."""
    asked = False
    try:
        async with asyncio.timeout(UNARY_TIMEOUT_S), logins.client(call) as client:
            asked = True
            return await ask(client)
    except TimeoutError:
        silent = RequestTimeout(f"no answer from the node within {UNARY_TIMEOUT_S:g} s")
        error = outcome_of(silent, in_doubt=changes and asked)
    except MirrorlogError as failure:
        error = failure
    await abort(call, error)
    raise AssertionError("a call goes on after its end")
