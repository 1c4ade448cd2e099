"""A writer's schema beside the reader's: what it has more, and what must not be resolved.

fastavro resolves the plain types by Avro's rules. It is not told of logical types (`avro_schema.plain_schema`), so it
could read milliseconds as microseconds: those must be equal on both sides, and are compared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from mirrorlog.spark.decode.avro_schema import AvroField, AvroType, arrow_type
from mirrorlog.spark.decode.types import fields_of, list_of, map_of
from mirrorlog.spark.decode.widening import conflict
from mirrorlog.spark.errors import BadSchema


def new_fields(writer: AvroType, reader: AvroType) -> pa.Schema:
    """What the writer has and the reader lacks, nested fields inside their structs. Raises BadSchema where both have a
    field with another logical type."""
    found = _new(writer, reader, "")
    return pa.schema([] if found is None else list(fields_of(found)))


def extended(reader: AvroType, writer: AvroType, wanted: pa.Schema) -> AvroType:
    """The reader with the writer's fields that `wanted` has too, under the same type; null where another writer has
    none."""
    return _extended(reader, writer, pa.struct(list(wanted)))


def _new(writer: AvroType, reader: AvroType, path: str) -> pa.DataType | None:
    if writer.kind == reader.kind == "record":
        found = [field for one in writer.fields if (field := _new_field(one, reader, path)) is not None]
        return pa.struct(found) if found else None
    if writer.inner is not None and reader.inner is not None and writer.kind == reader.kind:
        inner = _new(writer.inner, reader.inner, path)
        if inner is None:
            return None
        return list_of(inner) if writer.kind == "array" else map_of(pa.string(), inner)
    mine, other = _meaning(reader), _meaning(writer)
    if mine != other:
        raise BadSchema(f"field {path}: written as {other or writer.kind}, and read as {mine or reader.kind}")
    return None


def _new_field(field: AvroField, reader: AvroType, path: str) -> pa.Field | None:
    here = f"{path}.{field.name}" if path else field.name
    known = reader.field(field.name)
    kind = arrow_type(field.kind) if known is None else _new(field.kind, known.kind, here)
    return None if kind is None else pa.field(field.name if known is None else known.name, kind)


def _meaning(kind: AvroType) -> str | None:
    return f"decimal({kind.precision},{kind.scale})" if kind.logical == "decimal" else kind.logical


def _extended(reader: AvroType, writer: AvroType, wanted: pa.DataType) -> AvroType:
    if writer.kind != reader.kind:
        return reader
    if reader.kind == "record" and pa.types.is_struct(wanted):
        return _extended_record(reader, writer, wanted)
    if reader.inner is None or writer.inner is None:
        return reader
    if reader.kind == "array" and pa.types.is_list(wanted):
        return replace(reader, inner=_extended(reader.inner, writer.inner, wanted.value_type))
    if reader.kind == "map" and pa.types.is_map(wanted):
        return replace(reader, inner=_extended(reader.inner, writer.inner, wanted.item_type))
    return reader


def _extended_record(reader: AvroType, writer: AvroType, wanted: pa.DataType) -> AvroType:
    types: Mapping[str, pa.DataType] = {field.name: field.type for field in fields_of(wanted)}
    fields = list(reader.fields)
    for field in writer.fields:
        known = reader.field(field.name)
        if known is not None and known.name in types:
            fields[fields.index(known)] = replace(known, kind=_extended(known.kind, field.kind, types[known.name]))
        elif known is None and _suits(field, types):
            nullable = replace(field.kind, null_at=0, alone_in_union=False)
            fields.append(AvroField(field.name, nullable, default="null"))
    return replace(reader, fields=tuple(fields))


def _suits(field: AvroField, types: Mapping[str, pa.DataType]) -> bool:
    if field.name not in types:
        return False
    wanted = pa.schema([pa.field(field.name, types[field.name])])
    return conflict(wanted, pa.schema([pa.field(field.name, arrow_type(field.kind))])) is None
