"""A message on its way in and out: properties of AMQP beside headers and attributes of a record. Pure.

In, the properties go into one header as they came (`client.amqp`); what a queue is asked by them (expiration, priority,
more routing keys) is read. Out, they leave as they came, with headers that were added on the way: how it died. A record
of a native producer leaves with what it has: its headers as texts, its properties by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from mirrorlog.client.amqp import (
    AMQP,
    NAMES,
    Properties,
    Scanned,
    closed,
    opened,
    packed,
    parts,
    scanned,
    table_in,
    without_header,
)
from mirrorlog.client.properties import PREFIX
from mirrorlog.commitlog.format.attributes import DURATION_MS_MAX, Attributes, asked_attributes
from mirrorlog.doors.amqp.codec import PublishMethod, short
from mirrorlog.doors.amqp.errors import PRECONDITION_FAILED, AmqpError
from mirrorlog.errors import BadInput

_NONE: Final = b"\x00\x00"
_CC: Final = "CC"
_BCC: Final = "BCC"
_DEATHS: Final = "x-death"
_DELAY: Final = "x-delay"
_SHORT_MAX: Final = 255

Header = tuple[str, bytes | None]


@dataclass(slots=True, eq=False)
class AmqpMessage:
    """What was published. `keys`: the routing key, and those of CC and BCC; `properties`: without BCC. `header`: of its
    record. `ttl_ms`, `priority`, `delay_ms`: what queues are asked."""

    exchange: str
    keys: tuple[str, ...]
    mandatory: bool
    properties: bytes
    body: bytes
    scan: Scanned
    ttl_ms: int | None = None
    priority: int = 0
    delay_ms: int = 0
    header: Header = field(init=False)

    def __post_init__(self) -> None:
        self.header = AMQP, packed(self.exchange.encode(), self.properties)

    @property
    def key(self) -> str:
        return self.keys[0]

    @property
    def headers(self) -> Mapping[str, Any]:
        """Opened; those of no message without any. What cannot be opened no binding is held against."""
        return _headers(self.properties, self.scan)

    @property
    def route(self) -> bytes:
        """Exchange and key, as short strings."""
        return short(self.exchange.encode()) + short(self.key.encode())

    @property
    def attributes(self) -> Attributes | None:
        """Of its record."""
        if self.ttl_ms is None and not self.priority and not self.delay_ms:
            return None
        return asked_attributes(self.priority, self.ttl_ms, self.delay_ms)

    @property
    def options(self) -> dict[str, Any]:
        """Of a producer's `send`."""
        found: dict[str, Any] = {}
        if self.ttl_ms is not None:
            found["ttl_ms"] = self.ttl_ms
        if self.priority:
            found["priority"] = self.priority
        if self.delay_ms:
            found["delay_ms"] = self.delay_ms
        return found

    def delay(self) -> None:
        """Its exchange holds messages back for as long as they ask."""
        asked = self.headers.get(_DELAY, 0)
        if isinstance(asked, str) and asked.isascii() and asked.isdigit():
            asked = int(asked)
        if isinstance(asked, int):
            self.delay_ms = max(0, min(asked, DURATION_MS_MAX))


REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""The pseudo queue that answers are consumed from; behind it and a point stands whose."""
_GENERATED: Final = "amq.gen-"


def queue_named(key: str) -> str:
    """The queue that a key of the default exchange names: an answer goes to an exclusive one of who asked."""
    return _GENERATED + key[len(REPLY_TO) + 1 :] if key.startswith(f"{REPLY_TO}.") else key


def reply_name(queue: str) -> str:
    """What whoever answers is told, of that exclusive queue."""
    return f"{REPLY_TO}.{queue.removeprefix(_GENERATED)}"


def with_reply(message: AmqpMessage, replies: str | None) -> AmqpMessage:
    """A message whose answers come to the channel, with whereto. `replies`: the channel's queue for them, if it
    consumes any. Raises AmqpError."""
    start, end = message.scan.reply_to
    if message.properties[start + 1 : end] != REPLY_TO.encode():
        return message
    if replies is None:
        raise AmqpError(PRECONDITION_FAILED, "fast reply consumer does not exist")
    name = short(reply_name(replies).encode())
    properties = message.properties[:start] + name + message.properties[end:]
    return replace(message, properties=properties, scan=scanned(properties))


def incoming(method: PublishMethod, properties: bytes, body: bytes, user: str) -> AmqpMessage:
    """What was published, by `user`. Raises AmqpError."""
    try:
        scan = scanned(properties)
    except BadInput as error:
        raise AmqpError(502, error.message) from None
    if scan.user_id and scan.user_id.decode(errors="replace") != user:
        told = scan.user_id.decode(errors="replace")
        text = f"user_id property set to '{told}' but authenticated user was '{user}'"
        raise AmqpError(PRECONDITION_FAILED, text)
    keys: tuple[str, ...] = (method.key,)
    start, end = scan.headers
    if end and (properties.find(b"\x02CC", start, end) >= 0 or properties.find(b"\x03BCC", start, end) >= 0):
        keys, properties = _more_keys(method.key, properties, scan)
        scan = scanned(properties)
    return AmqpMessage(
        method.exchange,
        keys,
        method.mandatory,
        properties,
        body,
        scan,
        ttl_ms=_ttl_ms(scan.expiration) if scan.expiration else None,
        priority=scan.priority,
    )


def _ttl_ms(expiration: bytes) -> int:
    text = expiration.decode(errors="replace")
    if not text.isascii() or not text.isdigit() or len(text) > len(str(DURATION_MS_MAX)):
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text[:64]}'")
    if (ttl_ms := int(text)) > DURATION_MS_MAX:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{text}': at most ten years")
    return ttl_ms


def _headers(properties: bytes, scan: Scanned) -> Mapping[str, Any]:
    start, end = scan.headers
    try:
        return table_in(properties, start, end)
    except BadInput:
        return {}


def _more_keys(key: str, properties: bytes, scan: Scanned) -> tuple[tuple[str, ...], bytes]:
    """With the keys of CC and BCC; the properties without the latter, which are nobody else's to know."""
    headers = dict(_headers(properties, scan))
    keys = [key]
    for name in (_CC, _BCC):
        told = headers.get(name)
        if told is None:
            continue
        if not isinstance(told, list) or not all(isinstance(each, str) for each in told):
            kind = "undefined" if told is None else type(told).__name__
            raise AmqpError(PRECONDITION_FAILED, f"invalid '{name}' header: expected an array of strings, not {kind}")
        keys += told
    if _BCC in headers:
        properties = without_header(properties, _BCC)
    return tuple(dict.fromkeys(keys)), properties


# --- Out ------------------------------------------------------------------------------------------------------------


def outgoing(headers: Sequence[Header], key: bytes | None, name: bytes, attributes: Attributes) -> tuple[bytes, bytes]:
    """(exchange and key as short strings, properties) of a record in the queue of that name."""
    if len(headers) == 1 and headers[0][0] == AMQP:
        value = headers[0][1] or b""
        end = 2 + value[1] if len(value) > 3 and value[0] == 1 else 0
        if end and end + 2 <= len(value):
            return value[1:end] + short((key or b"")[:_SHORT_MAX]), value[end:]
    return _rebuilt(headers, key, name, attributes)


def _rebuilt(headers: Sequence[Header], key: bytes | None, name: bytes, attributes: Attributes) -> tuple[bytes, bytes]:
    route = short((name if key is None else key)[:_SHORT_MAX])
    exchange, properties, others = b"", _NONE, list(headers)
    for header in headers:
        if header[0] == AMQP and header[1] is not None:
            try:
                exchange, properties = parts(header[1])
            except BadInput:
                continue
            others.remove(header)
            break
    if not others and properties != _NONE:
        return short(exchange) + route, properties
    try:
        before = opened(properties)
    except BadInput:
        before = Properties()
    return short(exchange) + route, closed(_with(before, others, exchange.decode(errors="replace"), attributes))


def _with(before: Properties, others: Sequence[Header], exchange: str, attributes: Attributes) -> Properties:
    """What came by AMQP with what is beside it; or what a native record says."""
    table: dict[str, Any] = dict(before.headers or {})
    fields: dict[str, Any] = {}
    for name, value in others:
        if name.startswith(PREFIX) and name[len(PREFIX) :] in NAMES:
            _take_property(fields, name[len(PREFIX) :], value)
        elif name == _DEATHS:
            table[name] = _deaths(value, exchange, before)
            fields["expiration"] = None  # it would die of it again
        else:
            table[name[:_SHORT_MAX]] = None if value is None else _text(value)
    if before == Properties():
        fields.setdefault("delivery_mode", 2)
        if attributes.priority:
            fields.setdefault("priority", min(attributes.priority, 255))
    if "x-first-death-exchange" in table:
        table["x-first-death-exchange"] = table["x-first-death-exchange"] or exchange
    return before._replace(**fields, headers=table or None)


def _take_property(fields: dict[str, Any], name: str, value: bytes | None) -> None:
    text = (value or b"").decode(errors="replace")
    if name in ("priority", "delivery_mode", "timestamp"):
        if text.isascii() and text.isdigit():
            fields[name] = min(int(text), 255 if name != "timestamp" else 2**63)
    elif name != "headers":
        fields[name] = text


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _deaths(value: bytes | None, exchange: str, before: Properties) -> Any:
    """As RabbitMQ has it: a list of tables."""
    try:
        told = json.loads(value or b"[]")
    except (ValueError, RecursionError):
        return _text(value or b"")
    if not isinstance(told, list):
        return []
    found = []
    for each in told:
        if not isinstance(each, dict):
            continue
        time = each.get("time")
        death = {
            **each,
            "exchange": each.get("exchange") or "",
            "time": datetime.fromtimestamp(time // 1000, UTC) if isinstance(time, int) and 0 <= time < 2**46 else 0,
        }
        found.append(death)
    if found:
        found[-1]["exchange"] = found[-1]["exchange"] or exchange  # the first one is the oldest
        if found[-1].get("reason") == "expired" and before.expiration is not None:
            found[-1]["original-expiration"] = before.expiration
    return found
