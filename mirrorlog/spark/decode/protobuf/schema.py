"""A Protobuf message from a file of descriptors, and its Arrow columns.

The file is what `protoc --include_imports --descriptor_set_out` writes. Its messages live in a pool of their own, so
that two landings may have different messages of one name. Extensions are taken out of it: what a message then has of
them is an unknown field, and not a value that no column shows.

| Protobuf | column |
|---|---|
| int32, sint32, sfixed32; int64 … | INT; BIGINT |
| uint32, fixed32; uint64, fixed64 | BIGINT; DECIMAL(20,0) |
| enum | STRING, its name |
| message, repeated, map | STRUCT, ARRAY, MAP |
| google.protobuf.Timestamp; wrappers | TIMESTAMP; the value, null where it is absent |
| google.protobuf.Duration | STRUCT<seconds BIGINT, nanos INT> |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mirrorlog.spark.decode.columns import FIELDS_MAX
from mirrorlog.spark.decode.ddl import NESTING_MAX
from mirrorlog.spark.decode.types import TIMESTAMP, list_of, map_of
from mirrorlog.spark.errors import BadSchema

STAMP: Final = "google.protobuf.Timestamp"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
UINT64: Final = pa.decimal128(20, 0)

_SCALARS: Final[Mapping[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: UINT64,
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


def message_class(descriptors: bytes, name: str) -> type[Message]:
    """The message of that full name. Raises BadSchema."""
    pool = descriptor_pool.DescriptorPool()
    for file in _files(descriptors):
        try:
            pool.Add(file)
        except (TypeError, ValueError, KeyError) as error:
            raise BadSchema(f"descriptor file {file.name}: {error}; write it with --include_imports") from None
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError:
        raise BadSchema(f"the descriptors have no message {name!r}; give its full name, like package.Message") from None
    return message_factory.GetMessageClass(found)


def columns(message: Descriptor) -> pa.Schema:
    """A message's fields. Raises BadSchema for what a table cannot have."""
    return pa.schema(list(_Columns().struct(message, ())))


def map_ends(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """Key and value of a map, which is a repeated message on the wire; None for any other field."""
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["key"], entry.fields_by_name["value"]


def _files(descriptors: bytes) -> list[Any]:
    """Each file behind those that it imports, without extensions."""
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    except DecodeError:
        raise BadSchema("no file of descriptors; protoc writes one with --descriptor_set_out") from None
    if not found.file:
        raise BadSchema("the file of descriptors is empty")
    named = {file.name: file for file in found.file}
    ordered: dict[str, Any] = {}
    for name in named:
        _with_imports(name, named, ordered, 0)
    for file in ordered.values():
        del file.extension[:]
        for message in file.message_type:
            _without_extensions(message)
    return list(ordered.values())


def _with_imports(name: str, named: Mapping[str, Any], ordered: dict[str, Any], depth: int) -> None:
    if name in ordered or name not in named or depth > len(named):
        return
    for imported in named[name].dependency:
        _with_imports(imported, named, ordered, depth + 1)
    ordered[name] = named[name]


def _without_extensions(message: Any) -> None:
    del message.extension[:]
    for nested in message.nested_type:
        _without_extensions(nested)


class _Columns:
    """One pass over a message, counting."""

    def __init__(self) -> None:
        self._count = 0

    def struct(self, message: Descriptor, inside: tuple[str, ...]) -> list[pa.Field]:
        """`inside`: the messages that this one is in."""
        if message.full_name in inside:
            raise BadSchema(f"message {message.full_name} contains itself; a table has no such column")
        if len(inside) >= NESTING_MAX:
            raise BadSchema(f"message {message.full_name}: nested deeper than {NESTING_MAX}")
        if not message.fields:
            raise BadSchema(f"message {message.full_name} has no fields; a table has no such column")
        inside = (*inside, message.full_name)
        return [pa.field(field.name, self._field(field, inside)) for field in message.fields]

    def _field(self, field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
        self._count += 1
        if self._count > FIELDS_MAX:
            raise BadSchema(f"the message has more than {FIELDS_MAX} fields")
        if (ends := map_ends(field)) is not None:
            key, value = ends
            return map_of(self._single(key, inside), self._single(value, inside))
        kind = self._single(field, inside)
        return list_of(kind) if field.is_repeated else kind

    def _single(self, field: FieldDescriptor, inside: tuple[str, ...]) -> pa.DataType:
        message = field.message_type
        if message is None:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
            return _SCALARS[field.cpp_type]
        if message.full_name == STAMP:
            return TIMESTAMP
        if message.full_name in WRAPPERS:
            return self._single(message.fields_by_name["value"], inside)
        return pa.struct(self.struct(message, inside))
