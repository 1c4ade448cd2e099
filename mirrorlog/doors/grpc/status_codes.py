"""An error of the tree as gRPC tells it: a status with details for calls and streams, an Error message within a stream.

Pure. What can be retried is decided here, at one place: a batch whose outcome is unknown only if its producer is
idempotent, everything else as its class says.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from mirrorlog.errors import MirrorlogError
from mirrorlog.pb.v1 import common_pb2 as common

ERROR_DOMAIN: Final = "mirrorlog"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Clients take 8 KiB of trailing metadata by default; more would cost them the status too. The message is there twice,
# once percent-encoded (3 bytes for 1), once with the details in base64 (4 for 3).
_MESSAGE_BYTES_MAX: Final = 1024
_NAME_BYTES_MAX: Final = 64
_VALUE_BYTES_MAX: Final = 128
_DETAILS_MAX: Final = 8
_CUT: Final = "…"


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
