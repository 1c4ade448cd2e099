"""The header `amqp` of a record that a program published by AMQP: what came with it, its types and bytes kept.

    format      u8, 1
    exchange    short string: a length of one byte, and UTF-8
    properties  as in AMQP's content header, behind the body's size: flags of 16 bits, and what they name, in order

Whoever delivers it by AMQP again sends the properties as they came. Nothing is opened for that: `scanned` walks over
them, once, for what a queue is asked by them. Everybody else opens them here: `Properties`. Other headers of such a
record were added on its way, or are a native producer's.

Source: decision 0066. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from mirrorlog.errors import BadInput

AMQP: Final = "amqp"
_FORMAT: Final = 1
_DEPTH_MAX: Final = 16

_SHORT, _TABLE, _OCTET, _TIME = 0, -1, 1, 8
"""Kinds of properties; above 0 it is their size."""
_KINDS: Final = (
    ("content_type", _SHORT),
    ("content_encoding", _SHORT),
    ("headers", _TABLE),
    ("delivery_mode", _OCTET),
    ("priority", _OCTET),
    ("correlation_id", _SHORT),
    ("reply_to", _SHORT),
    ("expiration", _SHORT),
    ("message_id", _SHORT),
    ("timestamp", _TIME),
    ("type", _SHORT),
    ("user_id", _SHORT),
    ("app_id", _SHORT),
    ("cluster_id", _SHORT),
)
"""In the order of their flags, from the highest down."""
NAMES: Final = tuple(name for name, _ in _KINDS)
_FLAGS: Final = tuple((name, kind, 1 << (15 - at)) for at, (name, kind) in enumerate(_KINDS))
_UNKNOWN: Final = 0b11

_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_I64: Final = Struct(">q")


class Scanned(NamedTuple):
    """What is asked by properties, and where the rest stands. `headers`: where their table is, behind its length;
    `reply_to`: where it is, with its length."""

    expiration: bytes = b""
    priority: int = 0
    user_id: bytes = b""
    headers: tuple[int, int] = (0, 0)
    reply_to: tuple[int, int] = (0, 0)


_NOTHING: Final = Scanned()
_MODE_ONLY: Final = b"\x10\x00"


def scanned(properties: bytes) -> Scanned:
    """Walk over properties. Raises BadInput for what is none."""
    if len(properties) == 3 and properties.startswith(_MODE_ONLY):
        return _NOTHING
    places = _places(properties)
    expiration, user, headers = places.get("expiration"), places.get("user_id"), places.get("headers")
    priority = places.get("priority")
    return Scanned(
        b"" if expiration is None else properties[expiration[0] + 1 : expiration[1]],
        0 if priority is None else properties[priority[0]],
        b"" if user is None else properties[user[0] + 1 : user[1]],
        (0, 0) if headers is None else (headers[0] + 4, headers[1]),
        places.get("reply_to", (0, 0)),
    )


def _places(properties: bytes) -> dict[str, tuple[int, int]]:
    """Where each stands, with its length. Raises BadInput."""
    found = {}
    try:
        flags, at = properties[0] << 8 | properties[1], 2
        for name, kind, flag in _FLAGS:
            if flags & flag:
                start = at
                if kind > 0:
                    at += kind
                else:
                    at += 1 + properties[at] if kind == _SHORT else 4 + _U32.unpack_from(properties, at)[0]
                found[name] = start, at
    except (IndexError, StructError):
        raise _none() from None
    if at != len(properties) or flags & _UNKNOWN:
        raise _none()
    return found


def without_header(properties: bytes, name: str) -> bytes:
    """The properties without one entry of their table, all other bytes as they were. Raises BadInput."""
    start, end = scanned(properties).headers
    at = start
    try:
        while at < end:
            key_end = at + 1 + properties[at]
            _, following = _read_value(properties, key_end, _DEPTH_MAX)
            if properties[at + 1 : key_end] == name.encode():
                size = _U32.pack(end - start - (following - at))
                return properties[: start - 4] + size + properties[start:at] + properties[following:]
            at = following
    except (LookupError, StructError, ValueError, ArithmeticError):
        raise _none() from None
    return properties


def packed(exchange: bytes, properties: bytes) -> bytes:
    """The header's value. `exchange`: of 255 bytes at most."""
    return bytes((_FORMAT, len(exchange))) + exchange + properties


def parts(value: bytes) -> tuple[bytes, bytes]:
    """(exchange, properties) of a header's value. Raises BadInput for one that is none, or of a format to come."""
    if len(value) < 4 or value[0] != _FORMAT or len(value) < 4 + value[1]:
        raise _none()
    end = 2 + value[1]
    return value[2:end], value[end:]


class Properties(NamedTuple):
    """Opened ones; None where there is none. `headers`: numbers, text, bytes, flags, times, tables and lists."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Mapping[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: datetime | int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


def opened(properties: bytes) -> Properties:
    """Raises BadInput."""
    found: dict[str, Any] = {}
    kinds = dict(_KINDS)
    for name, (start, end) in _places(properties).items():
        kind = kinds[name]
        if kind == _SHORT:
            found[name] = properties[start + 1 : end].decode(errors="replace")
        elif kind == _OCTET:
            found[name] = properties[start]
        elif kind == _TABLE:
            found[name] = table_in(properties, start + 4, end)
        else:
            found[name] = _time(_U64.unpack_from(properties, start)[0])
    return Properties(**found)


def of_record(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, Properties] | None:
    """(exchange, properties) of a record with these headers; None where it did not come by AMQP. Raises BadInput."""
    for name, value in headers:
        if name == AMQP and value is not None:
            exchange, properties = parts(value)
            return exchange.decode(errors="replace"), opened(properties)
    return None


def closed(properties: Properties) -> bytes:
    """As bytes again. Raises BadInput for what has no place in them."""
    flags, content = 0, bytearray()
    value: Any
    for (_, kind, flag), value in zip(_FLAGS, properties, strict=True):
        if value is None:
            continue
        flags |= flag
        if kind == _SHORT:
            text = str(value).encode(errors="surrogatepass")[:255]
            content += bytes((len(text),)) + text
        elif kind == _OCTET:
            content.append(int(value) & 0xFF)
        elif kind == _TABLE:
            content += write_table(value)
        else:
            content += _U64.pack(_seconds(value))
    return _U16.pack(flags) + bytes(content)


def _none() -> BadInput:
    return BadInput("the properties are none of AMQP's")


# --- Tables ---------------------------------------------------------------------------------------------------------


def table_in(data: bytes, at: int, end: int) -> dict[str, Any]:
    """What stands there, behind a table's length. Raises BadInput for what is none."""
    try:
        return _read_table(data, at, end, _DEPTH_MAX)
    except (LookupError, StructError, ValueError, ArithmeticError):
        raise _none() from None


def _read_table(data: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while at < end:
        key_end = at + 1 + data[at]
        key = data[at + 1 : key_end].decode(errors="replace")
        found[key], at = _read_value(data, key_end, depth)
    if at != end:
        raise ValueError("a table's end is within its last value")
    return found


_FIXED: Final = {
    ord(sign): Struct(layout)
    for sign, layout in (
        *(("b", ">b"), ("B", ">B"), ("s", ">h"), ("U", ">h"), ("u", ">H")),
        *(("I", ">i"), ("i", ">I"), ("l", ">q"), ("L", ">q"), ("f", ">f"), ("d", ">d")),
    )
}


def _read_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    sign = data[at]
    at += 1
    if (fixed := _FIXED.get(sign)) is not None:
        return fixed.unpack_from(data, at)[0], at + fixed.size
    if sign in b"SxFA":
        end = at + 4 + _U32.unpack_from(data, at)[0]
        if end > len(data):
            raise ValueError("a value ends behind its table")
        return _read_sized(sign, data, at + 4, end, depth), end
    if sign == ord("t"):
        return data[at] != 0, at + 1
    if sign == ord("V"):
        return None, at
    if sign == ord("T"):
        return _time(_U64.unpack_from(data, at)[0]), at + 8
    if sign == ord("D"):
        return Decimal(_U32.unpack_from(data, at + 1)[0]).scaleb(-data[at]), at + 5
    raise ValueError(f"no table has values of type {sign:#x}")


def _read_sized(sign: int, data: bytes, at: int, end: int, depth: int) -> Any:
    content = data[at:end]
    if sign == ord("x"):
        return content
    if sign == ord("S"):
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content
    if not depth:
        raise ValueError("a table is nested too deep")
    if sign == ord("F"):
        return _read_table(data, at, end, depth - 1)
    values = []
    while at < end:
        value, at = _read_value(data, at, depth - 1)
        values.append(value)
    return values


def write_table(table: Mapping[str, Any]) -> bytes:
    """With its length. Raises BadInput."""
    content = bytearray()
    for key, value in table.items():
        name = key.encode(errors="surrogatepass")[:255]
        content += bytes((len(name),)) + name + _written(value)
    return _U32.pack(len(content)) + bytes(content)


def _written(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"t\1" if value else b"t\0"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise BadInput(f"a table has no number as large as {value}")
        return b"l" + _I64.pack(value)
    if isinstance(value, str):
        text = value.encode(errors="surrogatepass")
        return b"S" + _U32.pack(len(text)) + text
    if isinstance(value, bytes):
        return b"x" + _U32.pack(len(value)) + value
    return _written_rare(value)


def _written_rare(value: Any) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + Struct(">d").pack(value)
    if isinstance(value, datetime):
        return b"T" + _U64.pack(_seconds(value))
    if isinstance(value, Decimal):
        scale = max(0, -int(value.as_tuple().exponent))
        return b"D" + bytes((scale & 0xFF,)) + _U32.pack(int(value.scaleb(scale)) & 0xFFFFFFFF)
    if isinstance(value, Mapping):
        return b"F" + write_table(value)
    if isinstance(value, Sequence):
        items = b"".join(map(_written, value))
        return b"A" + _U32.pack(len(items)) + items
    raise BadInput(f"a table has no {type(value).__name__}")


def _time(seconds: int) -> datetime | int:
    """A number where there is no such date, as of clients that count milliseconds."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def _seconds(value: datetime | int) -> int:
    return int(value.timestamp()) if isinstance(value, datetime) else value
