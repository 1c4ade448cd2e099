"""Avro's bytes and values, checked: what fastavro takes without a word is found here.

fastavro is fast and trusting: it takes a union's or enum's place -1 as the last one, any byte as true, an int of 64
bits, and the last of two equal keys. `Walk` goes over the bytes by the rules and names the field; it is slow, so it is
asked only about records that do not come out the same when written again. `fixer` makes what Arrow takes of what
fastavro gives without logical types: numbers of days and microseconds, decimals, checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from mirrorlog.spark.decode.avro.schema import AvroType
from mirrorlog.spark.decode.decoded import Wrong
from mirrorlog.spark.decode.texts import DATE_MAX, DATE_MIN, EXACT, TIMESTAMP_MAX_US, TIMESTAMP_MIN_US, fitting

Fix = Callable[[Any], Any]
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WIDTHS: Final = {"float": 4, "double": 8}


# --- Bytes ----------------------------------------------------------------------------------------------------------


def check_bytes(data: bytes, kind: AvroType) -> None:
    """Raises Wrong unless `data` is exactly one value of the type."""
    end = _walk(data, 0, kind)
    if end != len(data):
        raise Wrong(f"{len(data) - end} bytes are left over behind the record's {end}")


def _walk(data: bytes, at: int, kind: AvroType) -> int:
    if kind.null_at is not None or kind.alone_in_union:
        place, at = _number(data, at, 32)
        branches = 1 if kind.alone_in_union else 2
        if not 0 <= place < branches:
            raise Wrong(f"a union of {branches} has no place {place}")
        if place == kind.null_at:
            return at
    return _WALKS.get(kind.kind, _walk_scalar)(data, at, kind)


def _walk_record(data: bytes, at: int, kind: AvroType) -> int:
    name = ""
    try:
        for field in kind.fields:
            name = field.name
            at = _walk(data, at, field.kind)
    except Wrong as wrong:
        raise wrong.inside(name) from None
    return at


def _walk_blocks(data: bytes, at: int, kind: AvroType) -> int:
    """Arrays and maps: blocks of a count and items, negative counts with a size, until a count of 0."""
    assert kind.inner is not None
    index = 0
    keys: set[bytes] = set()
    while True:
        count, at = _number(data, at, 64)
        if count == 0:
            return at
        end = None
        if count < 0:
            count = -count
            size, at = _number(data, at, 64)
            end = at + size
        for _ in range(count):
            if kind.kind == "map":
                at = _key(data, at, keys)
            try:
                at = _walk(data, at, kind.inner)
            except Wrong as wrong:
                raise wrong.inside(index) from None
            index += 1
        if end is not None and end != at:
            raise Wrong("a block of another size than it says")


def _key(data: bytes, at: int, keys: set[bytes]) -> int:
    text, at = _text(data, at)
    if text in keys:
        raise Wrong(f"the key {text.decode()[:60]!r} twice in one map")
    keys.add(text)
    return at


def _walk_scalar(data: bytes, at: int, kind: AvroType) -> int:
    if kind.kind in ("int", "long"):
        return _number(data, at, 32 if kind.kind == "int" else 64)[1]
    if kind.kind == "boolean":
        if _taken(data, at, 1) not in (b"\0", b"\1"):
            raise Wrong("a boolean is neither 0 nor 1")
        return at + 1
    if kind.kind == "enum":
        place, at = _number(data, at, 32)
        if not 0 <= place < len(kind.symbols):
            raise Wrong(f"an enum of {len(kind.symbols)} has no place {place}")
        return at
    if kind.kind == "string":
        return _text(data, at)[1]
    if kind.kind == "bytes":
        return _sized(data, at)[1]
    width = _WIDTHS.get(kind.kind, kind.size)
    return at + len(_taken(data, at, width))


_WALKS: Final[dict[str, Callable[[bytes, int, AvroType], int]]] = {
    "record": _walk_record,
    "array": _walk_blocks,
    "map": _walk_blocks,
}


def _taken(data: bytes, at: int, size: int) -> bytes:
    if not 0 <= size <= len(data) - at:
        raise Wrong(f"wants {size} bytes at byte {at}, and {len(data) - at} are left")
    return data[at : at + size]


def _number(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """A zigzag number of at most so many bits, and where it ends."""
    found = shift = 0
    while True:
        byte = _taken(data, at, 1)[0]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift >= 70:
            raise Wrong("a number of more than 10 bytes")
    if found >> bits:
        raise Wrong(f"a number of more than {bits} bits")
    return (found >> 1) ^ -(found & 1), at


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at, 64)
    return _taken(data, at, size), at + size


def _text(data: bytes, at: int) -> tuple[bytes, int]:
    text, end = _sized(data, at)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise Wrong(f"no UTF-8 at byte {end - len(text) + error.start}") from None
    return text, end


# --- Values ---------------------------------------------------------------------------------------------------------


def fixer(kind: AvroType) -> Fix | None:  # noqa: PLR0911 - a table by kind or logical type
    """What makes Arrow's value of fastavro's, None when they are the same. It raises Wrong; it is not given null."""
    if kind.kind == "record":
        return _record_fixer(kind)
    if kind.inner is not None:
        return _array_fixer(kind.inner) if kind.kind == "array" else _map_fixer(kind.inner)
    if kind.logical == "decimal":
        return _decimal_fixer(kind)
    if kind.logical == "uuid":
        return _uuid
    if kind.logical == "date":
        return _date
    if kind.logical is not None:
        return _millis if kind.logical.endswith("millis") else _micros
    return _integer if kind.kind == "int" else None


def _record_fixer(kind: AvroType) -> Fix | None:
    fixes = [(field.name, fix) for field in kind.fields if (fix := fixer(field.kind)) is not None]
    if not fixes:
        return None

    def fixed(value: dict[str, Any]) -> dict[str, Any]:
        row = dict(value)  # it may be a default, which is one object for all records
        name = ""
        try:
            for name, fix in fixes:
                if (found := value[name]) is not None:
                    row[name] = fix(found)
        except Wrong as wrong:
            raise wrong.inside(name) from None
        return row

    return fixed


def _array_fixer(inner: AvroType) -> Fix | None:
    fix = fixer(inner)
    return None if fix is None else lambda value: [_at(index, item, fix) for index, item in enumerate(value)]


def _map_fixer(inner: AvroType) -> Fix:
    fix = fixer(inner)
    if fix is None:
        return lambda value: list(value.items())
    return lambda value: [(key, _at(key, item, fix)) for key, item in value.items()]


def _at(step: str | int, item: Any, fix: Fix) -> Any:
    try:
        return None if item is None else fix(item)
    except Wrong as wrong:
        raise wrong.inside(step) from None


def _decimal_fixer(kind: AvroType) -> Fix:
    def fixed(value: bytes) -> Decimal:
        if len(value) > 64:
            raise Wrong(f"a decimal of {len(value)} bytes")
        unscaled = Decimal(int.from_bytes(value, signed=True))
        return fitting(unscaled.scaleb(-kind.scale, context=EXACT), digits=kind.precision, scale=kind.scale)

    return fixed


def _uuid(value: str) -> str:
    if not _UUID.fullmatch(value):
        raise Wrong(f"wanted uuid, found {value[:60]!r}")
    return value


def _integer(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Wrong(f"{value} is beyond int")
    return value


def _date(value: int) -> int:
    if not DATE_MIN <= value <= DATE_MAX:
        raise Wrong(f"day {value} is beyond the years 1 to 9999")
    return value


def _millis(value: int) -> int:
    return _micros(value * 1000)


def _micros(value: int) -> int:
    if not TIMESTAMP_MIN_US <= value <= TIMESTAMP_MAX_US:
        raise Wrong(f"{value} µs is beyond the years 1 to 9999")
    return value
