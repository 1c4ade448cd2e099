"""One JSON record against the schema: each value is of its field's type, or the record is refused, with the path.

The schema is compiled once into a closure per field. The parser is the standard library's: of those at hand it alone
lets a hook see an object's keys twice, and hands over numbers as text. Rejected: msgspec, five times as fast, which
keeps the last of two equal keys without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from mirrorlog.spark.decode.decoded import UnknownField, Wrong
from mirrorlog.spark.decode.texts import (
    base64_bytes,
    date_days,
    decimal_from,
    fitting,
    local_timestamp_us,
    timestamp_us,
)
from mirrorlog.spark.decode.types import TIMESTAMP, TIMESTAMP_NTZ, fields_of, scalar_name
from mirrorlog.spark.errors import BadSchema

NESTING_MAX: Final = 64
"""Arrays and objects inside each other; more than any schema has."""
FLOAT_MAX: Final = 3.4028234663852886e38

Convert = Callable[[Any], Any]

_MINUS_ZERO: Final = re.compile(r"-0[,\]}\s]")
# A string without end is taken to the end: tried again at each of its quotes it would cost their number squared.
_BRACKET: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class Fraction(str):
    """A number with a point or an exponent, or a negative zero, as its text."""

    __slots__ = ()


class Repeated(dict[str, Any]):
    """An object that has a key twice: in no place is this a value."""

    key: str


# --- Text to values -------------------------------------------------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    seen: set[str] = set()
    # `add` gives None, which lets the search go on.
    repeated.key = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return repeated


def _integer(text: str) -> int | Fraction:
    return Fraction(text) if text == "-0" else int(text)


def _constant(text: str) -> Any:
    raise Wrong(f"no JSON: {text} is no number")


_DECODE: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=Fraction, parse_constant=_constant).decode
# Slower by a call per integer, so only for text that may need it: -0 as a double is not 0.
_DECODE_SIGNED: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=Fraction, parse_int=_integer, parse_constant=_constant
).decode


def parsed(value: bytes) -> dict[str, Any]:
    """The record's object; fractions are `Fraction`. Raises Wrong."""
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise Wrong(f"no UTF-8 at byte {error.start}") from None
    if value.count(b"{") + value.count(b"[") > NESTING_MAX and _nesting(text) > NESTING_MAX:
        raise Wrong(f"nested deeper than {NESTING_MAX}")
    try:
        found = _DECODE_SIGNED(text) if "-0" in text and _MINUS_ZERO.search(text) else _DECODE(text)
    except json.JSONDecodeError as error:
        raise _no_json(text, error) from None
    except ValueError:
        raise Wrong("a number of thousands of digits") from None
    if type(found) is not dict:
        raise _other("an object", found)
    return found


def _no_json(text: str, error: json.JSONDecodeError) -> Wrong:
    if not text:
        return Wrong("no JSON: empty")
    if text[0] == "\ufeff":
        return Wrong("no JSON: a byte order mark")
    return Wrong(f"no JSON: {error.msg} at character {error.pos + 1}")


def _nesting(text: str) -> int:
    """Exact for JSON; for anything else some number."""
    depth = deepest = 0
    for found in _BRACKET.finditer(text):
        if found[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0] in "]}":
            depth -= 1
    return deepest


# --- Values to what Arrow takes -------------------------------------------------------------------------------------


def record_reader(schema: pa.Schema) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function from a parsed object to its row. It raises Wrong; UnknownField for a field that the schema lacks.

    Raises BadSchema itself for a map whose keys are not strings.
    """
    return _struct(list(schema))


def _converter(kind: pa.DataType) -> Convert:
    if pa.types.is_struct(kind):
        return _struct(list(fields_of(kind)))
    if pa.types.is_map(kind):
        return _map(kind)
    if pa.types.is_list(kind):
        return _list(kind)
    if pa.types.is_decimal(kind):
        return _decimal(kind)
    if pa.types.is_integer(kind):
        return _integers(kind)
    return _SCALARS[kind]


def _struct(fields: list[pa.Field]) -> Convert:
    converters = {field.name: _converter(field.type) for field in fields}
    required = [field.name for field in fields if not field.nullable]

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _other("struct", value)
        row: dict[str, Any] = {}
        name = ""
        try:
            for name, found in value.items():
                converter = converters[name]
                row[name] = None if found is None else converter(found)
        except Wrong as wrong:
            raise wrong.inside(name) from None
        except KeyError:
            if name in converters:
                raise
            raise UnknownField().inside(name) from None
        for name in required:
            if row.get(name) is None:
                raise Wrong("is NOT NULL, and " + ("null" if name in row else "missing")).inside(name)
        return row

    return convert


def _list(kind: pa.DataType) -> Convert:
    element = _converter(kind.value_type)
    nullable = kind.value_field.nullable

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _other("array", value)
        items: list[Any] = []
        try:
            for found in value:
                items.append(None if found is None and nullable else element(found))
        except Wrong as wrong:
            raise wrong.inside(len(items)) from None
        return items

    return convert


def _map(kind: pa.DataType) -> Convert:
    if kind.key_type != pa.string():
        raise BadSchema(f"JSON has objects for maps, so their keys are STRING, not {scalar_name(kind.key_type)}")
    item = _converter(kind.item_type)
    nullable = kind.item_field.nullable

    def convert(value: Any) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise _other("map", value)
        items: list[tuple[str, Any]] = []
        key = ""
        try:
            for key, found in value.items():
                items.append((_string(key), None if found is None and nullable else item(found)))
        except Wrong as wrong:
            raise wrong.inside(key) from None
        return items

    return convert


def _integers(kind: pa.DataType) -> Convert:
    name = scalar_name(kind)
    most = 2 ** (kind.bit_width - 1)

    def convert(value: Any) -> int:
        if type(value) is not int:
            if value == "-0" and type(value) is Fraction:
                return 0
            raise _other(name, value)
        if not -most <= value < most:
            raise Wrong(f"{_clipped(value)} is beyond {name}")
        return value

    return convert


def _decimal(kind: pa.DataType) -> Convert:
    name = scalar_name(kind)
    digits, scale = kind.precision, kind.scale

    def convert(value: Any) -> Decimal:
        if type(value) is int:
            return fitting(Decimal(value), digits=digits, scale=scale)
        if type(value) is str or type(value) is Fraction:
            return decimal_from(value, digits=digits, scale=scale)
        raise _other(name, value)

    return convert


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _other("boolean", value)


def _real(value: Any, name: str, most: float) -> float:
    if type(value) is not int and type(value) is not Fraction:
        raise _other(name, value)
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if abs(number) > most or number in (float("inf"), float("-inf")):
        raise Wrong(f"{_clipped(value)} is beyond {name}")
    return number


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _other("string", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Wrong("wanted string, found half of a surrogate pair") from None
    return value


def _text(name: str, convert: Callable[[str], Any]) -> Convert:
    def converted(value: Any) -> Any:
        if type(value) is not str:
            raise _other(name, value)
        return convert(value)

    return converted


_SCALARS: Final[Mapping[pa.DataType, Convert]] = {
    pa.bool_(): _boolean,
    # Rounded once, by Arrow, from the double.
    pa.float32(): partial(_real, name="float", most=FLOAT_MAX),
    pa.float64(): partial(_real, name="double", most=float("inf")),
    pa.string(): _string,
    pa.binary(): _text("binary as base64", base64_bytes),
    pa.date32(): _text("date as a string", date_days),
    TIMESTAMP: _text("timestamp as a string", timestamp_us),
    TIMESTAMP_NTZ: _text("timestamp_ntz as a string", local_timestamp_us),
}

_KINDS: Final = {
    bool: "boolean",
    int: "number",
    Fraction: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _other(wanted: str, value: Any) -> Wrong:
    if type(value) is Repeated:
        return Wrong(f"the key {value.key[:60]!r} twice in one object")
    shown = f" {_clipped(value)}" if isinstance(value, (int, Fraction)) else ""
    return Wrong(f"wanted {wanted}, found {_KINDS[type(value)]}{shown}")


def _clipped(value: Any) -> str:
    """A number's text is within the parser's limit of digits."""
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:60] + "…"
