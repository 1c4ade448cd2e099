"""A schema that grows: columns and nested fields are added at the end, and no type ever changes.

`widen` is for a table and what is new beside it. `merged` joins what several records, or several tasks, found new: the
first one's type counts, but an integer and a fraction together are a double, since many writers leave the point out
of 1.0. Either way, what does not fit is decoded again under the outcome and then is a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from mirrorlog.spark.decode.types import canonical, ddl_type, fields_of, list_of, map_of, nullable_type
from mirrorlog.spark.errors import BadSchema

_Join = Callable[[pa.DataType, pa.DataType], pa.DataType]


def widen(schema: pa.Schema, new_fields: pa.Schema) -> pa.Schema:
    """`schema` with what `new_fields` has more, nullable. What differs from a field here in case only is left out."""
    return pa.schema(_joined(schema, new_fields, _kept))


def merged(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """What both found new; the first one's order and types count. Never raises: what conflicts is left out."""
    return pa.schema(_joined(first, second, _promoted))


def conflict(schema: pa.Schema, own: pa.Schema) -> str | None:
    """Where `own` has a field that `schema` lacks, or has with another type; None when all of it is there."""
    return _struct_conflict(list(schema), list(own), "")


def under(schema: pa.Schema, own: pa.Schema) -> pa.Schema:
    """`schema`, with NOT NULL where `own` says so. Raises BadSchema when it has not all of `own`, type for type."""
    schema = canonical(schema)
    if fault := conflict(schema, own):
        raise BadSchema(fault)
    strict = {field.name: field for field in own}
    return pa.schema([strict.get(field.name, field).with_type(_with_not_null(field, strict)) for field in schema])


def _with_not_null(field: pa.Field, strict: dict[str, pa.Field]) -> pa.DataType:
    return _narrowed(field.type, strict[field.name].type) if field.name in strict else field.type


def _narrowed(wide: pa.DataType, own: pa.DataType) -> pa.DataType:
    """`wide` with the NOT NULLs of `own`, which has no field more."""
    if pa.types.is_struct(wide):
        named = {field.name: field for field in fields_of(own)}
        fields = [
            named[field.name].with_type(_narrowed(field.type, named[field.name].type)) if field.name in named else field
            for field in fields_of(wide)
        ]
        return pa.struct(fields)
    if pa.types.is_map(wide):
        return map_of(wide.key_type, _narrowed(wide.item_type, own.item_type), nullable=own.item_field.nullable)
    if pa.types.is_list(wide):
        return list_of(_narrowed(wide.value_type, own.value_type), nullable=own.value_field.nullable)
    return wide


def _struct_conflict(wide: list[pa.Field], own: list[pa.Field], path: str) -> str | None:
    named = {field.name: field for field in wide}
    for field in own:
        here = f"{path}{field.name}"
        if field.name not in named:
            return f"field {here} is not in the table's schema; widen it first, with the name in the same case"
        if fault := _type_conflict(named[field.name].type, field.type, here):
            return fault
    return None


def _type_conflict(wide: pa.DataType, own: pa.DataType, path: str) -> str | None:
    if pa.types.is_struct(wide) and pa.types.is_struct(own):
        return _struct_conflict(list(fields_of(wide)), list(fields_of(own)), f"{path}.")
    if pa.types.is_map(wide) and pa.types.is_map(own) and wide.key_type == own.key_type:
        return _type_conflict(wide.item_type, own.item_type, path)
    if pa.types.is_list(wide) and pa.types.is_list(own):
        return _type_conflict(wide.value_type, own.value_type, path)
    if wide == own:
        return None
    return f"field {path} is {ddl_type(wide)} in the table and {ddl_type(own)} in the schema given; use one type"


def _joined(first: Iterable[pa.Field], second: Iterable[pa.Field], join: _Join) -> list[pa.Field]:
    known = {field.name: field for field in first}
    lower = {name.lower() for name in known}
    for field in second:
        if (held := known.get(field.name)) is not None:
            known[field.name] = held.with_type(_joined_type(held.type, field.type, join))
        elif field.name.lower() not in lower:
            known[field.name] = field.with_type(nullable_type(field.type)).with_nullable(True)
            lower.add(field.name.lower())
    return list(known.values())


def _joined_type(first: pa.DataType, second: pa.DataType, join: _Join) -> pa.DataType:
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        return pa.struct(_joined(fields_of(first), fields_of(second), join))
    if pa.types.is_map(first) and pa.types.is_map(second):
        item = _joined_type(first.item_type, second.item_type, join)
        return map_of(first.key_type, item, nullable=first.item_field.nullable)
    if pa.types.is_list(first) and pa.types.is_list(second):
        return list_of(_joined_type(first.value_type, second.value_type, join), nullable=first.value_field.nullable)
    return join(first, second)


def _kept(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    return first


def _promoted(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    return pa.float64() if {first, second} == {pa.int64(), pa.float64()} else first
