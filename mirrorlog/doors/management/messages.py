"""Messages of the management API: published, looked at, taken out. For people who look for something: not how programs
publish and consume.

What AMQP says of a message has places here: its priority, its expiration (time to live) and its timestamp are the
record's own, its headers are the record's, as text, and every other property is a header `amqp.<name>`. A look at a
queue (`ack_requeue_true`) reads it as a stream: nothing is consumed, counted or reordered, and nobody gets a message
later for it. It begins where the queue's own group stands, so behind a message that is not settled it may show some
that are.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from mirrorlog.client import Client
from mirrorlog.client.definitions.rows import Row, keys_missing, number, require, table, text
from mirrorlog.doors.management.calls import ApiAnswer, Call, Routes
from mirrorlog.doors.management.shapes import bad_request, not_found
from mirrorlog.errors import NoSuchQueue, Unroutable
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import as_bytes

DEFAULT_EXCHANGE: Final = "amq.default"
PROPERTY: Final = "amqp."
TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id",
    "cluster_id",
)  # fmt: skip
DELIVERY_MODE: Final = "delivery_mode"
_OWN: Final = ("headers", "priority", "expiration", "timestamp", DELIVERY_MODE)

GET_MAX: Final = 1_000
GET_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of payloads in one answer; one more message may be in it."""
_AT_ONCE: Final = 20
"""Messages under one lease: of the largest there are, some 80 MB."""
_LEASE_MS: Final = 30_000
_DELIVERY_MS: Final = 8_000
_OWN_GROUP: Final = ""
_ALIVENESS: Final = "aliveness-test"

_SETTLES: Final[Mapping[str, str]] = {
    "ack_requeue_false": "ack",
    "reject_requeue_false": "reject",
    "reject_requeue_true": "return",
}
_LOOK: Final = "ack_requeue_true"


# --- Publishing -----------------------------------------------------------------------------------------------------


async def _publish(call: Call) -> ApiAnswer:
    require(call.body, "routing_key", "payload")
    exchange = call.names["exchange"]
    publisher = call.client.publisher(
        "" if exchange == DEFAULT_EXCHANGE else exchange,
        virtual_host=call.vhost,
        mandatory=True,
        delivery_timeout_ms=_DELIVERY_MS,
    )
    key, value = text(call.body, "routing_key"), payload_of(call.body)
    options = record_options(table(call.body, "properties"))
    async with publisher:
        try:
            await publisher.publish(key, value, **options)
        except Unroutable:
            return ApiAnswer(body={"routed": False})
    return ApiAnswer(body={"routed": True})


def payload_of(body: Mapping[str, Any]) -> bytes:
    """Raises ApiError. Pure."""
    payload, encoding = text(body, "payload"), text(body, "payload_encoding", "string")
    if encoding == "string":
        return payload.encode(errors="surrogatepass")
    if encoding != "base64":
        raise bad_request(f"payload_encoding should be string or base64, actually was {encoding!r:.80}")
    try:
        return b64decode(payload, validate=True)
    except (NotBase64, ValueError):
        raise bad_request("payload is no base64") from None


def record_options(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What `Publisher.publish` takes. Raises ApiError. Pure."""
    if unknown := sorted(properties.keys() - {*TEXTS, *_OWN}):
        raise bad_request(f"properties {', '.join(map(repr, unknown))} are not known; there are {', '.join(TEXTS)}, "
                          f"{', '.join(_OWN)}")  # fmt: skip
    headers = {name: _header(value) for name, value in table(properties, "headers").items()}
    for name in (*TEXTS, DELIVERY_MODE):
        if (value := properties.get(name)) is not None:
            headers[PROPERTY + name] = _header(value)
    options: dict[str, Any] = {"headers": headers}
    if properties.get("priority") is not None:
        options["priority"] = number(properties, "priority", 0)
    if properties.get("expiration") is not None:
        options["ttl_ms"] = number(properties, "expiration", 0)
    if properties.get("timestamp") is not None:
        options["timestamp"] = number(properties, "timestamp", 0) * 1_000_000
    return options


def _header(value: Any) -> bytes:
    return msgspec.json.encode(value) if isinstance(value, dict | list) else as_bytes(value)


# --- Getting --------------------------------------------------------------------------------------------------------


async def _get(call: Call) -> ApiAnswer:
    how = _ack_mode(call.body)
    count = min(number(call.body, "count", 1, least=1), GET_MAX)
    shown = _Shown(call.body)
    try:
        if how == _LOOK:
            rows = await _looked(call, count, shown)
        else:
            rows = await _taken(call, count, how, shown)
    except NoSuchQueue:
        raise not_found() from None
    return ApiAnswer(body=rows)


def _ack_mode(body: Mapping[str, Any]) -> str:
    """`requeue` is how RabbitMQ's older clients say it. Raises ApiError."""
    if "ackmode" not in body:
        if "requeue" not in body:
            raise keys_missing(["ackmode"])
        return _LOOK if body["requeue"] in (True, "true") else "ack_requeue_false"
    how = body["ackmode"]
    if how != _LOOK and how not in _SETTLES:
        raise bad_request(f"ackmode should be one of {', '.join((_LOOK, *_SETTLES))}, actually was {how!r:.80}")
    return str(how)


class _Shown:
    """How a body wants messages to be shown. Raises ApiError."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._encoding = text(body, "encoding", "auto")
        if self._encoding not in ("auto", "base64"):
            raise bad_request(f"encoding should be auto or base64, actually was {self._encoding!r:.80}")
        self._truncate = number(body, "truncate", -1, least=-1) if body.get("truncate") is not None else -1

    def row(self, record: Any, *, left: int, redelivered: bool) -> Row:
        """`record`: consumed or leased; `left`: ready ones behind it."""
        value: bytes = record.value or b""
        key: bytes = record.key or b""
        return {
            "payload_bytes": len(value),
            "redelivered": redelivered,
            "exchange": "",  # records do not keep it; clients of the API want the key
            "routing_key": key.decode(errors="replace"),
            "message_count": max(0, left),
            "properties": _properties(record),
            **self._payload(value if self._truncate < 0 else value[: self._truncate]),
        }

    def _payload(self, value: bytes) -> Row:
        if self._encoding == "auto":
            try:
                return {"payload": value.decode(), "payload_encoding": "string"}
            except UnicodeDecodeError:
                pass
        return {"payload": b64encode(value).decode(), "payload_encoding": "base64"}


def _properties(record: Any) -> Row:
    found: Row = {}
    headers: Row = {}
    for name, value in record.headers:
        said = None if value is None else value.decode(errors="replace")
        bare = name.removeprefix(PROPERTY)
        if name.startswith(PROPERTY) and bare in TEXTS:
            found[bare] = said
        elif name == PROPERTY + DELIVERY_MODE and said in ("1", "2"):
            found[DELIVERY_MODE] = int(said)
        else:
            headers[name] = said
    if headers:
        found["headers"] = headers
    if record.priority:
        found["priority"] = record.priority
    if record.attributes.ttl_ms is not None:
        found["expiration"] = str(record.attributes.ttl_ms)
    if record.timestamp is not None:
        found["timestamp"] = record.timestamp // 1_000_000
    return found


async def _looked(call: Call, count: int, shown: _Shown) -> list[Row]:
    groups = (await call.client.admin.groups(call.queue)).groups
    own = next((group for group in groups if group.group == _OWN_GROUP and group.kind == "acking"), None)
    info = await call.client.queue_info(call.queue)
    ready = own.ready if own is not None else info.next - info.begin
    start = max(own.floor if own is not None else 0, info.begin)
    rows: list[Row] = []
    held = 0
    if ready <= 0:
        return rows
    async with call.client.consumer(
        call.queue, start=start, until="confirmed", outage_timeout_ms=call.client.request_timeout_ms
    ) as consumer:
        async for record in consumer:
            rows.append(shown.row(record, left=ready - len(rows) - 1, redelivered=False))
            held += len(record.value or b"")
            if len(rows) >= count or held >= GET_BYTES_MAX:
                break
    return rows


async def _taken(call: Call, count: int, how: str, shown: _Shown) -> list[Row]:
    """What is given back is given back at the end: it would be taken again."""
    client, leased, held = call.client, list[Any](), 0
    while len(leased) < count and held < GET_BYTES_MAX:
        # Few at a time where they are large: what is leased is settled as one asked for.
        some = await client.lease(
            call.queue,
            max_records=min(count - len(leased), _AT_ONCE if held < GET_BYTES_MAX // _AT_ONCE * len(leased) else 1),
            lease_ms=_LEASE_MS,
            holder="management",
        )
        if not some:
            break
        leased += some
        held += sum(len(record.value or b"") for record in some)
        if how != "reject_requeue_true":
            await _settle(some, how)
    if how == "reject_requeue_true":
        await _settle(leased, how)
    left = await _ready(client, call.queue)
    return [
        shown.row(record, left=left + len(leased) - at - 1, redelivered=record.redelivered)
        for at, record in enumerate(leased)
    ]


async def _settle(records: Iterable[Any], how: str) -> None:
    settle = {"ack": "ack", "reject": "reject", "return": "nack"}[_SETTLES[how]]
    await asyncio.gather(*(getattr(record, settle)() for record in records))


async def _ready(client: Client, queue: str) -> int:
    groups = (await client.admin.groups(queue)).groups
    return next((group.ready for group in groups if group.group == _OWN_GROUP and group.kind == "acking"), 0)


# --- Aliveness ------------------------------------------------------------------------------------------------------


async def _aliveness(call: Call) -> ApiAnswer:
    """A queue of that name is declared, a message goes in and comes out; the queue stays, as RabbitMQ's does."""
    await call.check_vhost()
    queue = qualified(call.vhost, _ALIVENESS)
    await call.client.admin.declare(queue)
    async with call.client.producer(queue, delivery_timeout_ms=_DELIVERY_MS) as producer:
        await producer.send(b"test_message")
    for record in await call.client.lease(queue, max_records=_AT_ONCE, lease_ms=_LEASE_MS, wait_ms=1_000):
        await record.ack()
    return ApiAnswer(body={"status": "ok"})


ROUTES: Final[Routes] = {
    "exchanges/:vhost/:exchange/publish": {"POST": _publish},
    "queues/:vhost/:queue/get": {"POST": _get},
    "aliveness-test/:vhost": {"GET": _aliveness},
}
