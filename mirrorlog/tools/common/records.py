"""Records as lines: for people with tabs between, for programs as JSON that `mqtool publish --records` takes back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import typer

from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes, asked_attributes, attributes_of
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.diagnosis.cells import NOTHING, printable, time_text
from mirrorlog.errors import BadInput
from mirrorlog.tools.common.output import print_json_line

_BODY_BYTES_MAX: Final = 2**28
"""Of a compressed body when opened: as much as one fetch of a consumer may bring."""

Header = tuple[str, bytes | None]


class ShownRecord(Protocol):
    """A record with its place. `timestamp`: event time, `append_time_us`: of its batch, both µs UTC; `attributes`: of
    its batch."""

    @property
    def queue(self) -> str: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[Header]: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def append_time_us(self) -> int: ...
    @property
    def attributes(self) -> Attributes: ...


class StoredRecord(NamedTuple):
    """A record out of a stored batch, see `ShownRecord`."""

    queue: str
    queue_offset: int
    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    timestamp: int | None
    append_time_us: int
    attributes: Attributes = NO_ATTRIBUTES


def stored_records(header: BatchHeader, batch: memoryview, queue: str) -> Iterator[StoredRecord]:
    """The records of a batch of data, whatever its codec. Raises BadBatch for a body that cannot be opened."""
    body = open_body(batch, body_bytes_max=_BODY_BYTES_MAX)
    attributes = attributes_of(header, batch)
    for number, (value, key, headers, timestamp) in enumerate(body.records(), header.base_queue_offset):
        yield StoredRecord(queue, number, value, key, headers, timestamp, header.append_time_us, attributes)


# --- Out --------------------------------------------------------------------------------------------------------------


def record_line(record: ShownRecord) -> str:
    """A record for people, its attributes behind it if it has some. What is not UTF-8, or would break the line, is
    escaped."""
    cells = [
        str(record.queue_offset),
        time_text(record.timestamp) if record.timestamp is not None else NOTHING,
        _cell(record.key),
        _cell(record.value),
        *([attributes_text(record.attributes)] if record.attributes != NO_ATTRIBUTES else []),
    ]
    return "\t".join(cells)


def record_writer(as_json: bool) -> Callable[[ShownRecord], None]:
    """Prints one record as a line: of JSON for programs, else for people."""
    if as_json:
        return lambda record: print_json_line(record_fields(record))
    return lambda record: typer.echo(record_line(record))


def attributes_text(attributes: Attributes) -> str:
    """Those that it has, for people."""
    priority, ttl_ms, delay_ms = attributes
    parts = [f"priority {priority}"] if priority else []
    if ttl_ms is not None:
        parts.append(f"ttl {ttl_ms} ms")
    if delay_ms:
        parts.append(f"delay {delay_ms} ms")
    return ", ".join(parts)


def record_fields(record: ShownRecord) -> dict[str, Any]:
    """A record for programs. Times are µs UTC; priority, ttl_ms and delay_ms are there when it has some of them."""
    return {
        "queue": record.queue,
        "queue_offset": record.queue_offset,
        "timestamp_us": record.timestamp,
        "append_time_us": record.append_time_us,
        **_bytes_field("key", record.key),
        **_bytes_field("value", record.value),
        "headers": [{"name": name, **_bytes_field("value", value)} for name, value in record.headers],
        **(record.attributes._asdict() if record.attributes != NO_ATTRIBUTES else {}),
    }


def _cell(content: bytes | memoryview | None) -> str:
    if content is None:
        return NOTHING
    return printable(bytes(content).decode("utf-8", errors="backslashreplace"))


def _bytes_field(name: str, content: bytes | memoryview | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    plain = bytes(content)
    try:
        return {name: plain.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(plain).decode("ascii")}


# --- In ---------------------------------------------------------------------------------------------------------------


class ParsedRecord(NamedTuple):
    """What a line says of a record that is to be published."""

    value: bytes | None
    key: bytes | None
    headers: list[Header]
    timestamp_us: int | None
    attributes: Attributes = NO_ATTRIBUTES


def parse_record(line: bytes) -> ParsedRecord:
    """The record that `record_fields` gave as JSON; its place and other names are passed over.

    Raises BadInput for a line that is none, one without a value too: `"value": null` is an absent one.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        headers = [(_text(each["name"]), _bytes_of("value", each)) for each in fields.get("headers") or []]
        timestamp = fields.get("timestamp_us")
        if timestamp is not None and type(timestamp) is not int:
            raise ValueError("timestamp_us is no whole number")
        if "value" not in fields and "value_base64" not in fields:
            raise ValueError("it has neither value nor value_base64")
        attributes = asked_attributes(fields.get("priority", 0), fields.get("ttl_ms"), fields.get("delay_ms", 0))
        return ParsedRecord(
            _bytes_of("value", fields), _bytes_of("key", fields), headers, timestamp, attributes or NO_ATTRIBUTES
        )
    except (BadInput, msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        shown = line[:60].decode(errors="backslashreplace")
        raise BadInput(f"{shown!r} is no record as `mqtool consume --json` prints it: {error}") from None


def _bytes_of(name: str, fields: dict[str, Any]) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        try:
            return base64.b64decode(_text(coded), validate=True)
        except binascii.Error as error:
            raise ValueError(f"{name}_base64: {error}") from None
    plain = fields.get(name)
    return None if plain is None else _text(plain).encode()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value
