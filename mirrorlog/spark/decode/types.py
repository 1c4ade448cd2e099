"""Arrow types and Spark's, one for one, under Delta's names and in DDL.

A schema here is a `pa.Schema` in canonical form: exactly one Arrow type for each Spark type, so that equality means
equality. Rejected: Spark's own type classes, which parse their text in a JVM that tasks do not have.

| Delta | DDL | Arrow |
|---|---|---|
| boolean, byte, short, integer, long | BOOLEAN, TINYINT, SMALLINT, INT, BIGINT | bool, int8, int16, int32, int64 |
| float, double, decimal(p,s) | FLOAT, DOUBLE, DECIMAL(p,s) | float32, float64, decimal128(p, s) |
| string, binary, date | STRING, BINARY, DATE | string, binary, date32 |
| timestamp, timestamp_ntz | TIMESTAMP, TIMESTAMP_NTZ | timestamp[us, UTC], timestamp[us] |
| array, map, struct | ARRAY<…>, MAP<…, …>, STRUCT<…> | list, map, struct |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from mirrorlog.spark.errors import BadSchema

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
DECIMAL_DIGITS_MAX: Final = 38
ELEMENT: Final = "element"
"""Spark's name for what a list holds."""

BY_DELTA_NAME: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DELTA_NAMES: Final = {kind: name for name, kind in BY_DELTA_NAME.items()}
_DDL_NAMES: Final = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_SAME_AS: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s*(-?\d{1,2})\)")
_COMMENT: Final = b"comment"


# --- Making types ---------------------------------------------------------------------------------------------------


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """A list with Spark's name for its elements."""
    return pa.list_(pa.field(ELEMENT, kind, nullable=nullable))


def map_of(key: pa.DataType, kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """A map; `nullable` says whether its values may be null."""
    return pa.map_(key, pa.field("value", kind, nullable=nullable))


def decimal_of(digits: int, scale: int) -> pa.DataType:
    """Raises BadSchema for what Spark's DECIMAL cannot be."""
    if not 1 <= digits <= DECIMAL_DIGITS_MAX or not 0 <= scale <= digits:
        raise BadSchema(f"DECIMAL({digits},{scale}): use 1 to {DECIMAL_DIGITS_MAX} digits and a scale within them")
    return pa.decimal128(digits, scale)


def field_of(name: str, kind: pa.DataType, *, nullable: bool = True, comment: str | None = None) -> pa.Field:
    """A column or a struct's field."""
    metadata = None if comment is None else {_COMMENT: comment.encode()}
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


def canonical(schema: pa.Schema) -> pa.Schema:
    """The same columns in canonical form. Raises BadSchema for a type that Spark has not."""
    return pa.schema([_canonical_field(field, field.name) for field in schema])


def fields_of(kind: pa.DataType) -> Iterator[pa.Field]:
    """A struct's fields, in order."""
    return (kind.field(index) for index in range(kind.num_fields))


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """The same type with every NOT NULL inside taken away, and without comments."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, nullable_type(field.type)) for field in fields_of(kind)])
    if pa.types.is_map(kind):
        return map_of(kind.key_type, nullable_type(kind.item_type))
    if pa.types.is_list(kind):
        return list_of(nullable_type(kind.value_type))
    return kind


def _canonical_field(field: pa.Field, path: str) -> pa.Field:
    comment = (field.metadata or {}).get(_COMMENT)
    return field_of(
        field.name,
        _canonical(field.type, path),
        nullable=field.nullable,
        comment=None if comment is None else comment.decode("utf-8", "replace"),
    )


def _canonical(kind: pa.DataType, path: str) -> pa.DataType:
    kind = _SAME_AS.get(kind, kind)
    if kind in _DELTA_NAMES:
        return kind
    if pa.types.is_decimal128(kind):
        return decimal_of(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([_canonical_field(field, f"{path}.{field.name}") for field in fields_of(kind)])
    if pa.types.is_map(kind):
        key = _canonical(kind.key_type, f"{path}.key")
        return map_of(key, _canonical(kind.item_type, path), nullable=kind.item_field.nullable)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return list_of(_canonical(kind.value_type, path), nullable=kind.value_field.nullable)
    raise BadSchema(f"field {path}: Spark has no type like Arrow's {kind}; {_advice(kind)}")


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "give timestamp[us, tz=UTC] or timestamp[us]"
    if pa.types.is_unsigned_integer(kind):
        return "give a signed integer that is wide enough, or decimal128(20, 0)"
    return f"there are {', '.join(BY_DELTA_NAME)}, decimal128, list, map and struct"


# --- To text --------------------------------------------------------------------------------------------------------


def scalar_name(kind: pa.DataType) -> str:
    """Delta's name of a scalar type, or the word array, map or struct: for messages."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        return "map"
    return "array" if pa.types.is_list(kind) else _DELTA_NAMES[kind]


def to_ddl(schema: pa.Schema) -> str:
    """The columns as Spark DDL text, which `ddl.parse_ddl` reads again."""
    return ", ".join(_ddl_field(field, " ") for field in schema)


def ddl_type(kind: pa.DataType) -> str:
    """A type as DDL text."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_ddl_field(field, ': ') for field in fields_of(kind))}>"
    if pa.types.is_map(kind):
        return f"MAP<{ddl_type(kind.key_type)}, {ddl_type(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{ddl_type(kind.value_type)}>"
    name = scalar_name(kind)
    return _DDL_NAMES.get(name, name.upper())


def quoted(name: str) -> str:
    """A name as it may stand in DDL."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", name) else "`" + name.replace("`", "``") + "`"


def _ddl_field(field: pa.Field, between: str) -> str:
    text = quoted(field.name) + between + ddl_type(field.type) + ("" if field.nullable else " NOT NULL")
    comment = (field.metadata or {}).get(_COMMENT)
    if comment is not None:
        text += " COMMENT '" + comment.decode().replace("\\", "\\\\").replace("'", "\\'") + "'"
    return text


def to_delta_json(schema: pa.Schema) -> str:
    """The columns as Delta's `schemaString` and Spark's JSON schema have them."""
    return json.dumps(_struct_json(schema), ensure_ascii=False, separators=(",", ":"))


def _struct_json(fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [_field_json(field) for field in fields]}


def _field_json(field: pa.Field) -> dict[str, Any]:
    comment = (field.metadata or {}).get(_COMMENT)
    metadata = {} if comment is None else {"comment": comment.decode()}
    return {"name": field.name, "type": _type_json(field.type), "nullable": field.nullable, "metadata": metadata}


def _type_json(kind: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_struct(kind):
        return _struct_json(fields_of(kind))
    if pa.types.is_map(kind):
        contains = kind.item_field.nullable
        ends = {"keyType": _type_json(kind.key_type), "valueType": _type_json(kind.item_type)}
        return {"type": "map", **ends, "valueContainsNull": contains}
    if pa.types.is_list(kind):
        element = _type_json(kind.value_type)
        return {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    return scalar_name(kind)


# --- From Spark's JSON ----------------------------------------------------------------------------------------------


def from_delta_json(text: str) -> pa.Schema:
    """Columns from Delta's `schemaString` or Spark's JSON schema. Raises BadSchema."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"the schema is no JSON: {error}") from None
    if not isinstance(tree, dict) or tree.get("type") != "struct":
        raise BadSchema('the schema is no Spark schema: it begins with {"type": "struct", "fields": […]}')
    return pa.schema(list(fields_of(_from_json(tree, ""))))


def _from_json(tree: Any, path: str) -> pa.DataType:
    if isinstance(tree, str):
        return scalar_of(tree, path)
    kind = tree.get("type") if isinstance(tree, dict) else None
    if kind == "struct":
        return _struct_from_json(tree, path)
    if kind == "array":
        element = _from_json(tree.get("elementType"), path)
        return list_of(element, nullable=_flag(tree, "containsNull", path))
    if kind == "map":
        key, value = (_from_json(tree.get(end), path) for end in ("keyType", "valueType"))
        return map_of(key, value, nullable=_flag(tree, "valueContainsNull", path))
    raise BadSchema(f"field {path or 'of the schema'}: {str(tree)[:60]} is no type of Spark")


def _struct_from_json(tree: Mapping[str, Any], path: str) -> pa.DataType:
    listed = tree.get("fields")
    if not isinstance(listed, list) or not all(isinstance(field, dict) for field in listed):
        raise BadSchema(f"field {path or 'of the schema'}: a struct has a list of fields")
    return pa.struct([_field_from_json(field, path) for field in listed])


def _field_from_json(tree: Mapping[str, Any], path: str) -> pa.Field:
    name = tree.get("name")
    if not isinstance(name, str):
        raise BadSchema(f"a field of {path or 'the schema'} has no name")
    here = f"{path}.{name}" if path else name
    metadata = tree.get("metadata")
    comment = metadata.get("comment") if isinstance(metadata, dict) else None
    comment = comment if isinstance(comment, str) else None
    return field_of(name, _from_json(tree.get("type"), here), nullable=_flag(tree, "nullable", here), comment=comment)


def _flag(tree: Mapping[str, Any], name: str, path: str) -> bool:
    value = tree.get(name, True)
    if not isinstance(value, bool):
        raise BadSchema(f"field {path}: {name} is true or false")
    return value


def scalar_of(name: str, path: str) -> pa.DataType:
    """The Arrow type of a scalar by Delta's name. Raises BadSchema."""
    if (kind := BY_DELTA_NAME.get(name)) is not None:
        return kind
    if found := _DECIMAL.fullmatch(name):
        return decimal_of(int(found[1]), int(found[2]))
    raise BadSchema(f"field {path}: there is no type {name!r}; there are {', '.join(BY_DELTA_NAME)}, decimal(p,s)")
