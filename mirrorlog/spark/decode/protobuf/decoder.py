"""Protobuf records by a given message.

The parser is that of the protobuf package (upb, in C); from its messages closures, compiled once, take the fields.
Absent is null where a message can tell (optional, oneof, a nested message, everything in proto2), else it is the type's
zero, as the format says. Unknown fields and enum numbers are dead letters: a number has no name and no type to add.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self

import pyarrow as pa
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from mirrorlog.spark.decode.columns import check_schema
from mirrorlog.spark.decode.decoded import Decoded, DecodeOutcomes, Tombstones, Wrong, present, version_of
from mirrorlog.spark.decode.protobuf.schema import STAMP, WRAPPERS, columns, map_ends, message_class
from mirrorlog.spark.decode.texts import TIMESTAMP_MAX_US, TIMESTAMP_MIN_US
from mirrorlog.spark.decode.types import to_delta_json
from mirrorlog.spark.decode.widening import under

Take = Callable[[Any], Any]
"""From a message to a field's value, or from a value to another."""
_NANOS: Final = 1_000_000_000


class ProtobufDecoder:
    """See `decoded.Decoder`. It never has new fields."""

    def __init__(
        self, descriptors: bytes, message: str, *, tombstones: Tombstones, schema: pa.Schema | None = None
    ) -> None:
        """`descriptors`: a FileDescriptorSet; `schema`: the table's, which may have more columns. Raises BadSchema."""
        self._descriptors = descriptors
        self._message = message
        self._tombstones: Tombstones = tombstones
        self._class = message_class(descriptors, message)
        descriptor: Any = self._class.DESCRIPTOR
        own = columns(descriptor)
        self.schema = check_schema(own if schema is None else under(schema, own))
        self.version = version_of("protobuf", message, descriptors.hex(), to_delta_json(self.schema))
        self._row = _struct(descriptor)

    def __reduce__(self) -> Any:
        own = partial(type(self), self._descriptors, self._message, tombstones=self._tombstones, schema=self.schema)
        return own, ()

    def under(self, schema: pa.Schema) -> Self:
        """See `decoded.Decoder`."""
        whole = under(schema, self.schema)
        return type(self)(self._descriptors, self._message, tombstones=self._tombstones, schema=whole)

    def decode(self, values: pa.Array) -> Decoded:
        """See `decoded.Decoder`."""
        outcomes = DecodeOutcomes(self.schema, values, self._tombstones)
        kept: list[int] = []
        rows: list[dict[str, Any]] = []
        for position, value in zip(*present(values), strict=True):
            try:
                rows.append(self._row(self._parsed(value)))
            except Wrong as wrong:
                outcomes.refuse(position, wrong.reason())
            else:
                kept.append(position)
        outcomes.keep_records(kept, rows)
        return outcomes.decoded()

    def _parsed(self, value: bytes) -> Message:
        try:
            message: Any = self._class.FromString(value)
        except DecodeError as error:
            raise Wrong(f"no {self._message}: {error}") from None
        if not message.IsInitialized():
            raise Wrong(f"field {message.FindInitializationErrors()[0]}: is required, and missing")
        return message  # type: ignore[no-any-return]


# --- Messages to what Arrow takes -----------------------------------------------------------------------------------


def _struct(descriptor: Descriptor) -> Take:
    plain = [field.name for field in descriptor.fields if _is_plain(field)]
    # One call for all of them; of two at least, since it gives a single one without its tuple.
    take_plain = attrgetter(*plain) if len(plain) > 1 else lambda message: [getattr(message, name) for name in plain]
    others = [(field.name, _field(field)) for field in descriptor.fields if not _is_plain(field)]

    def take(message: Message) -> dict[str, Any]:
        if len(unknown := UnknownFieldSet(message)):
            raise Wrong(f"unknown field number {unknown[0].field_number}")
        name = ""
        try:
            row = dict(zip(plain, take_plain(message), strict=True))
            for name, inner in others:
                row[name] = inner(message)
        except Wrong as wrong:
            raise wrong.inside(name) from None
        return row

    return take


def _is_plain(field: FieldDescriptor) -> bool:
    """It is always there, and its value is Arrow's."""
    return not (field.is_repeated or field.has_presence) and _single(field) is None


def _field(field: FieldDescriptor) -> Take:
    name = field.name
    if (ends := map_ends(field)) is not None:
        return _map(name, *ends)
    single = _single(field)
    if field.is_repeated:
        return _repeated(name, single)
    if field.has_presence:
        return _optional(name, single)
    assert single is not None
    return lambda message: single(getattr(message, name))


def _optional(name: str, single: Take | None) -> Take:
    if single is None:
        return lambda message: getattr(message, name) if message.HasField(name) else None
    return lambda message: single(getattr(message, name)) if message.HasField(name) else None


def _repeated(name: str, single: Take | None) -> Take:
    if single is None:
        return lambda message: list(getattr(message, name))
    return lambda message: [_at(index, item, single) for index, item in enumerate(getattr(message, name))]


def _map(name: str, key_field: FieldDescriptor, value_field: FieldDescriptor) -> Take:
    single = _single(value_field)
    key_of = _single(key_field)

    def take(message: Message) -> list[tuple[Any, Any]]:
        found = getattr(message, name)
        return [
            (
                key if key_of is None else key_of(key),
                found[key] if single is None else _at(str(key), found[key], single),
            )
            for key in sorted(found)
        ]

    return take


def _at(step: str | int, item: Any, single: Take) -> Any:
    try:
        return single(item)
    except Wrong as wrong:
        raise wrong.inside(step) from None


def _single(field: FieldDescriptor) -> Take | None:
    """From the value to Arrow's; None when they are the same."""
    message = field.message_type
    if message is not None:
        return _message(message)
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if field.type == FieldDescriptor.TYPE_STRING and not _is_checked(field):
        return _string
    return Decimal if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else None


def _message(message: Descriptor) -> Take:
    if message.full_name == STAMP:
        return _timestamp_us
    if message.full_name not in WRAPPERS:
        return _struct(message)
    whole = _struct(message)
    return lambda wrapper: whole(wrapper)["value"]


def _enum(kind: EnumDescriptor) -> Take:
    names = {number: value.name for number, value in kind.values_by_number.items()}

    def take(number: int) -> str:
        if (name := names.get(number)) is None:
            raise Wrong(f"enum {kind.full_name} has no number {number}")
        return name

    return take


def _is_checked(field: FieldDescriptor) -> bool:
    """proto3's parser refuses strings that are no UTF-8. That of proto2 hands them over as bytes."""
    file = descriptor_pb2.FileDescriptorProto()
    inside: Any = field.containing_type
    inside.file.CopyToProto(file)
    return file.syntax == "proto3"


def _string(value: str | bytes) -> str:
    if isinstance(value, bytes):
        raise Wrong(f"no UTF-8: {value[:60]!r}")
    return value


def _timestamp_us(stamp: Any) -> int:
    if len(unknown := UnknownFieldSet(stamp)):
        raise Wrong(f"unknown field number {unknown[0].field_number}")
    seconds, nanos = stamp.seconds, stamp.nanos
    if not 0 <= nanos < _NANOS:
        raise Wrong(f"{nanos} nanoseconds are not within a second")
    if nanos % 1000:
        raise Wrong(f"{nanos} nanoseconds are finer than a microsecond")
    micros = seconds * 1_000_000 + nanos // 1000
    if not TIMESTAMP_MIN_US <= micros <= TIMESTAMP_MAX_US:
        raise Wrong(f"{seconds} s is beyond the years 1 to 9999")
    return int(micros)
