"""An Avro schema as a tree in which every named type is written out, and its Arrow type.

Refused, with the field's path: unions of other things than null and one type, types that contain themselves, what holds
nothing (null, records without fields, fixed of 0 bytes: an array of these could claim any length in a few bytes), and
logical types that Spark's tables have not (time, duration, nanoseconds). A logical type that Avro does not define
counts as its underlying type, as Avro says.

All columns may be null, whatever the schema says: a field that a later schema drops must still have a table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from mirrorlog.spark.decode.columns import FIELDS_MAX
from mirrorlog.spark.decode.ddl import NESTING_MAX
from mirrorlog.spark.decode.types import TIMESTAMP, TIMESTAMP_NTZ, decimal_of, list_of, map_of
from mirrorlog.spark.errors import BadSchema

_PRIMITIVES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("string", "uuid"): pa.string(),
}
_REFUSED: Final = ("time-millis", "time-micros", "timestamp-nanos", "local-timestamp-nanos", "duration")


@dataclass(frozen=True, slots=True)
class AvroField:
    """A record's field. `default`: its JSON text, None without one."""

    name: str
    kind: AvroType
    aliases: tuple[str, ...] = ()
    default: str | None = None


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type. `null_at`: the place of null in its union, None when it is in none."""

    kind: str
    logical: str | None = None
    null_at: int | None = None
    alone_in_union: bool = False
    fields: tuple[AvroField, ...] = ()
    inner: AvroType | None = None
    """Of an array's items or a map's values."""
    name: str = ""
    symbols: tuple[str, ...] = ()
    symbol: str | None = None
    """An enum's default."""
    size: int = 0
    precision: int = 0
    scale: int = 0

    def field(self, name: str) -> AvroField | None:
        """A record's field of that name or alias."""
        for found in self.fields:
            if found.name == name or name in found.aliases:
                return found
        return None


def parse_avro(text: str) -> AvroType:
    """A record from the text of an .avsc file. Raises BadSchema."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"the Avro schema is no JSON: {error}") from None
    found = _Reading().type(tree, "", (), "")
    if found.kind != "record" or found.null_at is not None or found.alone_in_union:
        raise BadSchema("the Avro schema is not that of a record")
    return found


def arrow_schema(record: AvroType) -> pa.Schema:
    """A record's columns."""
    return pa.schema([pa.field(field.name, arrow_type(field.kind)) for field in record.fields])


def arrow_type(kind: AvroType) -> pa.DataType:
    """The column's type."""
    if kind.kind == "record":
        return pa.struct(list(arrow_schema(kind)))
    if kind.inner is not None:
        inner = arrow_type(kind.inner)
        return list_of(inner) if kind.kind == "array" else map_of(pa.string(), inner)
    if kind.logical == "decimal":
        return decimal_of(kind.precision, kind.scale)
    return _LOGICAL.get((kind.kind, kind.logical or ""), _PRIMITIVES[kind.kind])


def plain_schema(kind: AvroType) -> Any:
    """For fastavro: without logical types, so that it hands over numbers as they are, and every named type under a
    namespace of its own, so that none is defined twice."""
    return _Plain().type(kind)


class _Plain:
    def __init__(self) -> None:
        self._named = 0

    def type(self, kind: AvroType) -> Any:
        bare = self._bare(kind)
        if kind.null_at is None:
            return [bare] if kind.alone_in_union else bare
        return ["null", bare] if kind.null_at == 0 else [bare, "null"]

    def _bare(self, kind: AvroType) -> Any:
        if kind.inner is not None:
            return {"type": kind.kind, "items" if kind.kind == "array" else "values": self.type(kind.inner)}
        if not kind.name:
            return kind.kind
        self._named += 1
        named: dict[str, Any] = {"type": kind.kind, "name": kind.name, "namespace": f"n{self._named}"}
        if kind.kind == "enum":
            named["symbols"] = list(kind.symbols)
            return named | ({} if kind.symbol is None else {"default": kind.symbol})
        if kind.kind == "fixed":
            return named | {"size": kind.size}
        return named | {"fields": [self._field(field) for field in kind.fields]}

    def _field(self, field: AvroField) -> dict[str, Any]:
        found: dict[str, Any] = {"name": field.name, "type": self.type(field.kind)}
        if field.aliases:
            found["aliases"] = list(field.aliases)
        if field.default is not None:
            found["default"] = json.loads(field.default)
        return found


class _Reading:
    """One pass over the tree, with the names defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._count = 0

    def type(self, tree: Any, path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        """`open_names`: the records that this is inside of."""
        if path.count(".") + len(open_names) > 2 * NESTING_MAX:
            raise BadSchema(f"field {path[:100]}: nested deeper than {NESTING_MAX}")
        if isinstance(tree, list):
            return self._union(tree, path, open_names, space)
        if isinstance(tree, str):
            return self._by_name(tree, path, open_names, space)
        if not isinstance(tree, dict) or "type" not in tree:
            raise BadSchema(f"field {path or 'of the schema'}: {str(tree)[:60]} is no Avro type")
        if not isinstance(tree["type"], str):
            return self.type(tree["type"], path, open_names, space)
        return self._described(tree, path, open_names, space)

    def _by_name(self, name: str, path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        if name in _PRIMITIVES and name not in ("enum", "fixed"):
            return AvroType(name)
        full = name if "." in name or not space else f"{space}.{name}"
        known = full if full in self._named or full in open_names else name
        if known in open_names:
            raise BadSchema(f"field {path}: {name} contains itself; a table has no such column")
        if known not in self._named:
            raise BadSchema(f"field {path or 'of the schema'}: there is no type {name!r} that a column could have")
        definition, where = self._named[known]
        return self._described(definition, path, open_names, where)

    def _union(self, branches: list[Any], path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        others = [branch for branch in branches if branch != "null"]
        if len(others) != 1 or len(branches) > 2:
            kinds = ", ".join(
                str(branch.get("name", branch.get("type")) if isinstance(branch, dict) else branch)[:40]
                for branch in branches
            )
            raise BadSchema(f"field {path}: a union of {kinds}; only null and one type can be a column")
        if isinstance(others[0], list):
            raise BadSchema(f"field {path}: a union inside a union")
        found = self.type(others[0], path, open_names, space)
        if len(branches) == 1:
            return replace(found, alone_in_union=True)
        return replace(found, null_at=branches.index("null"))

    def _described(self, tree: dict[str, Any], path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        kind = tree["type"]
        if kind in ("array", "map"):
            return self._container(tree, path, open_names, space)
        if kind in ("record", "error"):
            return self._record(tree, path, open_names, space)
        if kind == "enum":
            return self._enum(tree, path, space)
        if kind not in _PRIMITIVES:
            return self._by_name(kind, path, open_names, space)
        found = AvroType(kind)
        if kind == "fixed":
            found = replace(found, name=self._define(tree, path, space)[0], size=_size(tree, path))
        return _with_logical(found, tree, path)

    def _container(self, tree: dict[str, Any], path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        kind = tree["type"]
        inner = self.type(tree.get("items" if kind == "array" else "values"), f"{path}.{kind}", open_names, space)
        return AvroType(kind, inner=inner)

    def _record(self, tree: dict[str, Any], path: str, open_names: tuple[str, ...], space: str) -> AvroType:
        name, full, space = self._define(tree, path, space)
        listed = tree.get("fields")
        if not isinstance(listed, list) or not listed:
            raise BadSchema(f"field {path or 'of the schema'}: record {name} has no fields")
        if full in open_names:
            raise BadSchema(f"field {path}: {name} contains itself; a table has no such column")
        fields = tuple(self._field(field, path, (*open_names, full), space) for field in listed)
        return AvroType("record", name=name, fields=fields)

    def _field(self, tree: Any, path: str, open_names: tuple[str, ...], space: str) -> AvroField:
        name = tree.get("name") if isinstance(tree, dict) else None
        if not isinstance(name, str) or "type" not in tree:
            raise BadSchema(f"a field of {path or 'the schema'} has no name or no type")
        self._count += 1
        if self._count > FIELDS_MAX:
            raise BadSchema(f"the Avro schema has more than {FIELDS_MAX} fields")
        here = f"{path}.{name}" if path else name
        kind = self.type(tree["type"], here, open_names, space)
        if isinstance(tree["type"], str):
            kind = _with_logical(kind, tree, here) if "logicalType" in tree and not kind.logical else kind
        aliases = tree.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise BadSchema(f"field {here}: aliases are a list of names")
        if "default" not in tree:
            return AvroField(name, kind, tuple(aliases))
        if not _is_value(tree["default"], kind):
            raise BadSchema(f"field {here}: its default is no {kind.kind}, or is of bytes, which is not taken")
        return AvroField(name, kind, tuple(aliases), json.dumps(tree["default"]))

    def _enum(self, tree: dict[str, Any], path: str, space: str) -> AvroType:
        symbols = tree.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(symbol, str) for symbol in symbols):
            raise BadSchema(f"field {path}: an enum has a list of symbols")
        default = tree.get("default")
        symbol = default if isinstance(default, str) else None
        return AvroType("enum", name=self._define(tree, path, space)[0], symbols=tuple(symbols), symbol=symbol)

    def _define(self, tree: dict[str, Any], path: str, space: str) -> tuple[str, str, str]:
        """The short name, the full one, and the namespace inside."""
        name = tree.get("name")
        if not isinstance(name, str) or not name:
            raise BadSchema(f"field {path or 'of the schema'}: {tree['type']} has no name")
        given = tree.get("namespace")
        space = given if isinstance(given, str) else space
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = (tree, full.rpartition(".")[0])
        return full.rpartition(".")[2], full, full.rpartition(".")[0]


_JSON_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "string": (str,),
}


def _is_value(tree: Any, kind: AvroType) -> bool:
    """Whether JSON is a value of the type, or of a union's first one: fastavro hands defaults over as they are. Bytes
    are not taken, whose JSON is text."""
    if kind.null_at == 0:
        return tree is None
    if kind.kind == "record":
        names = {field.name for field in kind.fields}
        return (
            isinstance(tree, dict)
            and tree.keys() == names
            and all(_is_value(tree[field.name], field.kind) for field in kind.fields)
        )
    if kind.inner is not None:
        items = tree if kind.kind == "array" and isinstance(tree, list) else None
        items = list(tree.values()) if kind.kind == "map" and isinstance(tree, dict) else items
        return items is not None and all(_is_value(item, kind.inner) for item in items)
    if kind.kind == "enum":
        return tree in kind.symbols
    return type(tree) in _JSON_KINDS.get(kind.kind, ())


def _size(tree: dict[str, Any], path: str) -> int:
    size = tree.get("size")
    if type(size) is not int or not 1 <= size <= 1024 * 1024:
        raise BadSchema(f"field {path}: a fixed has a size from 1 to 1,048,576 bytes")
    return size


def _with_logical(found: AvroType, tree: dict[str, Any], path: str) -> AvroType:
    logical = tree.get("logicalType")
    if logical in _REFUSED:
        raise BadSchema(
            f"field {path}: a column cannot be of the logical type {logical}; use a timestamp, or the number"
        )
    if logical == "decimal" and found.kind in ("bytes", "fixed"):
        precision, scale = tree.get("precision"), tree.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            raise BadSchema(f"field {path}: a decimal has a precision and a scale")
        decimal_of(precision, scale)
        return replace(found, logical="decimal", precision=precision, scale=scale)
    return replace(found, logical=logical) if (found.kind, logical) in _LOGICAL else found
