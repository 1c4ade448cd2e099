"""What a column may be called, and how large a schema may be: checked at the definition, and for each field that data
brings.

Spark compares names without regard to case, Delta refuses some characters, and a decoded table has columns of the
record itself beside those of its value. A name that breaks one of these rules would fail the commit of everybody's
records, so it never gets that far.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from mirrorlog.spark.decode.ddl import NESTING_MAX
from mirrorlog.spark.decode.types import fields_of
from mirrorlog.spark.errors import BadSchema

METADATA_COLUMNS: Final = ("_key", "_queue", "_offset", "_timestamp", "_timestampType", "_headers", "_appendTime")
"""Columns of the record itself in a decoded table."""
RESERVED_COLUMNS: Final = (
    *METADATA_COLUMNS,
    # Of partitions, and of Delta's change data feed.
    *("_date", "_bucket", "_change_type", "_commit_version", "_commit_timestamp"),
)
"""Columns of a decoded table that cannot be the decoder's."""

FIELDS_MAX: Final = 2000
"""Fields of a schema, those inside structs too."""
NAME_MAX: Final = 255
"""Characters of a name."""
_REFUSED: Final = " ,;{}()\n\t="
_TAKEN: Final = {name.lower(): name for name in RESERVED_COLUMNS}


def check_schema(schema: pa.Schema) -> pa.Schema:
    """The schema itself. Raises BadSchema naming the field and what is wrong with it."""
    if not len(schema):
        raise BadSchema("the schema has no columns")
    if fault := _fault(schema, "", NESTING_MAX, top=True) or too_large(schema):
        raise BadSchema(fault)
    return schema


def too_large(schema: pa.Schema) -> str | None:
    """What is too large about it, None if nothing is."""
    count = sum(1 + _count(field.type) for field in schema)
    if count > FIELDS_MAX:
        return f"the schema has {count} fields; at most {FIELDS_MAX} are taken"
    if any(_depth(field.type) > NESTING_MAX for field in schema):
        return f"the schema has types nested deeper than {NESTING_MAX}"
    return None


def name_fault(name: str, *, top: bool) -> str | None:
    """Why a column (`top`) or a struct's field cannot be called that, None if it can."""
    if not name or len(name) > NAME_MAX:
        return f"a name has 1 to {NAME_MAX} characters"
    if any(character in _REFUSED for character in name):
        return f"Delta refuses the characters {_REFUSED!r} in a name"
    if not name.isprintable():
        return "a name has printable characters only"
    if top and (taken := _TAKEN.get(name.lower())):
        return f"the landing and Delta have a column {taken} of their own"
    return None


def double(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that Spark takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if (first := seen.setdefault(name.lower(), name)) is not name:
            return first, name
    return None


def _fault(fields: Iterable[pa.Field], path: str, depth: int, *, top: bool) -> str | None:
    listed = list(fields)
    if depth <= 0:
        return f"the schema has types nested deeper than {NESTING_MAX}"
    if pair := double(field.name for field in listed):
        return f"fields {path}{pair[0]} and {path}{pair[1]} are one name to Spark"
    for field in listed:
        if fault := name_fault(field.name, top=top):
            return f"field {path}{field.name!r}: {fault}"
        if fault := _type_fault(field.type, f"{path}{field.name}", depth):
            return fault
    return None


def _type_fault(kind: pa.DataType, path: str, depth: int) -> str | None:
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return f"field {path}: a struct without fields"
        return _fault(fields_of(kind), f"{path}.", depth - 1, top=False)
    if pa.types.is_map(kind):
        if pa.types.is_nested(kind.key_type):
            return f"field {path}: the key of a map is a scalar"
        return _type_fault(kind.item_type, path, depth - 1)
    return _type_fault(kind.value_type, path, depth - 1) if pa.types.is_list(kind) else None


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_struct(kind):
        return [field.type for field in fields_of(kind)]
    if pa.types.is_map(kind):
        return [kind.item_type]
    return [kind.value_type] if pa.types.is_list(kind) else []


def _count(kind: pa.DataType) -> int:
    """Fields of the structs inside."""
    return (kind.num_fields if pa.types.is_struct(kind) else 0) + sum(_count(inner) for inner in _inner(kind))


def _depth(kind: pa.DataType) -> int:
    return 1 + max((_depth(inner) for inner in _inner(kind)), default=0)
