"""What is told to AMQP's clients of errors: a code, RabbitMQ's word for it, and a text. One table.

RabbitMQ's clients read the texts, too: Java's looks for `inequivalent arg`, kombu for the code alone. A fault of a
channel closes that; one of the connection (`HARD`) all of it, as RabbitMQ does.
"""

from __future__ import annotations

from typing import Final

from mirrorlog.errors import (
    AccessRefused,
    BadInput,
    DiskFull,
    ExchangeExists,
    ExclusiveTaken,
    InUse,
    LimitReached,
    LoginFailed,
    MirrorlogError,
    NoSuchExchange,
    NoSuchQueue,
    NoSuchVirtualHost,
    Overloaded,
    QueueExclusive,
    QueueExists,
    QueueFull,
    RecordTooLarge,
)

CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

WORDS: Final = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
HARD: Final = frozenset({320, 501, 502, 503, 504, 505, 530, 540})
"""Faults that end the connection. What the cluster cannot do just now (506, 541) ends one channel: others go on."""

_CODES: Final = (
    ((NoSuchQueue, NoSuchExchange), NOT_FOUND),
    ((QueueExclusive,), RESOURCE_LOCKED),
    ((AccessRefused, LoginFailed, ExclusiveTaken), ACCESS_REFUSED),
    ((RecordTooLarge, QueueExists, ExchangeExists, InUse), PRECONDITION_FAILED),
    ((NoSuchVirtualHost,), NOT_ALLOWED),
    ((LimitReached, Overloaded, DiskFull, QueueFull), RESOURCE_ERROR),
    ((BadInput,), PRECONDITION_FAILED),
)
_TEXT_BYTES_MAX: Final = 255


class AmqpError(Exception):
    """What the client is told. `code`: one of `WORDS`; `text`: without its word."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def as_amqp(error: MirrorlogError) -> AmqpError:
    """What is told of an error of ours."""
    code = next((code for kinds, code in _CODES if isinstance(error, kinds)), INTERNAL_ERROR)
    return AmqpError(code, error.message)


def reply_text(code: int, text: str) -> str:
    """As RabbitMQ says it, in a short string."""
    whole = f"{WORDS.get(code, 'INTERNAL_ERROR')} - {text}"
    return whole.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")


def not_to_be_used(error: NoSuchQueue | QueueExclusive, name: str, virtual_host: str) -> AmqpError:
    """Of a queue that is not there, or another connection's alone."""
    return no_queue(name, virtual_host) if isinstance(error, NoSuchQueue) else locked(name, virtual_host)


def no_queue(name: str, virtual_host: str) -> AmqpError:
    return AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '{virtual_host}'")


def no_exchange(name: str, virtual_host: str) -> AmqpError:
    return AmqpError(NOT_FOUND, f"no exchange '{name}' in vhost '{virtual_host}'")


def locked(name: str, virtual_host: str) -> AmqpError:
    """Of an exclusive queue of another connection."""
    return AmqpError(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{virtual_host}'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def inequivalent(argument: str, kind: str, name: str, virtual_host: str, *, received: str, current: str) -> AmqpError:
    """`kind`: queue or exchange; `received`, `current`: as `quoted`."""
    return AmqpError(
        PRECONDITION_FAILED,
        f"inequivalent arg '{argument}' for {kind} '{name}' in vhost '{virtual_host}': received {received} but "
        f"current is {current}",
    )


def quoted(value: object) -> str:
    """As RabbitMQ's texts have the value of an argument."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the value '{str(value).lower()}' of type 'bool'"
    if isinstance(value, int):
        return f"the value '{value}' of type 'signedint'"
    return f"the value '{value}' of type 'longstr'"
