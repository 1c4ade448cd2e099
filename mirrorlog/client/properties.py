"""What a record carries beside its value, as AMQP's users have it: content type, correlation id, reply to, and so on.

Each is a header `amqp.<name>` of UTF-8 text, as the management API writes them. So records that never have one pay
nothing, and every reader, of whatever language, finds them. What came by AMQP itself has all of its own in one header
(`client.amqp`), which is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from mirrorlog.client.arguments import is_text, refuse
from mirrorlog.commitlog.format.attributes import RecordOptions
from mirrorlog.errors import BadInput

if TYPE_CHECKING:
    from mirrorlog.commitlog.format.body import Header

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
"""As callers give them: text is UTF-8."""

PREFIX: Final = "amqp."
_WHOLE: Final = PREFIX.rstrip(".")


class SendOptions(RecordOptions, total=False):
    """What may be given with a record, as keywords; the texts are its properties."""

    content_type: str | None
    content_encoding: str | None
    correlation_id: str | None
    reply_to: str | None
    message_id: str | None
    type: str | None
    app_id: str | None


class RecordProperties(NamedTuple):
    """The properties of a record that was read, each None where it has none. `reply_to`: the queue that an answer goes
    to; `correlation_id`: what the answer is to carry."""

    content_type: str | None = None
    content_encoding: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    message_id: str | None = None
    type: str | None = None
    app_id: str | None = None


_HEADERS: Final = {PREFIX + name: name for name in RecordProperties._fields}


def properties_in(headers: Iterable[Header]) -> RecordProperties:
    """Of a record with these headers, which may have come by AMQP; of two the last counts."""
    found: dict[str, str | None] = {}
    for name, value in headers:
        if value is None:
            continue
        if name in _HEADERS:
            found[_HEADERS[name]] = value.decode(errors="replace")
        elif name == _WHOLE:
            found.update(_by_amqp(value))
    return RecordProperties(**found)


def _by_amqp(value: bytes) -> dict[str, str | None]:
    from mirrorlog.client import amqp  # who never meets one needs none of it

    try:
        opened = amqp.opened(amqp.parts(value)[1])
    except BadInput:  # somebody else's header of that name
        return {}
    return {name: getattr(opened, name) for name in RecordProperties._fields}


def parted(asked: SendOptions, headers: Headers | None) -> tuple[RecordOptions, Headers | None]:
    """What is asked of the queue, and the headers with the properties behind them. Raises BadRequest."""
    texts = {name: value for name, value in asked.items() if name in RecordProperties._fields and value is not None}
    if not texts:
        rest = {name: value for name, value in asked.items() if name not in RecordProperties._fields}
        return cast(RecordOptions, rest), headers
    for name, value in texts.items():
        if not is_text(value):
            raise refuse(name, value, "str or None")
    rest = {name: value for name, value in asked.items() if name not in RecordProperties._fields}
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    more = [(PREFIX + name, cast(str, value).encode()) for name, value in texts.items()]
    try:
        return cast(RecordOptions, rest), [*pairs, *more]
    except TypeError:
        raise refuse("headers", headers, "a mapping, or pairs") from None


def as_bytes(content: bytes | str | None) -> bytes | None:
    """Text is UTF-8; what is neither text nor bytes is refused where it is looked at. Raises BadRequest."""
    if not isinstance(content, str):
        return content
    if not is_text(content):
        raise refuse("a value or key", content, "bytes, or a str that UTF-8 has")
    return content.encode()
