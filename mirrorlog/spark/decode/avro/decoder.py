"""Avro records by a given schema.

A record is read with its writer's schema and written again: when the bytes are the same, it was read rightly, all of
it. When they are not (other blocks than ours, or a fault) `avro_values.check_bytes` decides. Then, if the writer is
another one than the reader, fastavro resolves.

A writer that has fields that the reader lacks is newer. With evolution `quarantine` its records are dead letters; with
`add` its fields are reported, and known once the schema has them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import fastavro
import pyarrow as pa
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from mirrorlog.spark.decode.avro import schema as avro
from mirrorlog.spark.decode.avro.schema import AvroField, AvroType, arrow_type
from mirrorlog.spark.decode.avro.values import Fix, check_bytes, fixer
from mirrorlog.spark.decode.avro.writers import Framing, split
from mirrorlog.spark.decode.columns import check_schema
from mirrorlog.spark.decode.decoded import (
    NOTHING_NEW,
    Decoded,
    DecodeOutcomes,
    Evolution,
    Tombstones,
    Wrong,
    path_text,
    present,
    version_of,
)
from mirrorlog.spark.decode.types import fields_of, list_of, map_of, to_delta_json
from mirrorlog.spark.decode.widening import conflict, merged, under, widen
from mirrorlog.spark.errors import BadSchema

# A writer's schema beside the reader's: what it has more, and what must not be resolved.
#
# fastavro resolves the plain types by Avro's rules. It is not told of logical types (`avro_schema.plain_schema`), so
# it could read milliseconds as microseconds: those must be equal on both sides, and are compared here.


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


_FASTAVRO_ERRORS: Final = (
    *(EOFError, IndexError, KeyError, OverflowError, TypeError, ValueError),
    SchemaResolutionError,
)
"""What its reader and writer raise for data."""


@dataclass(frozen=True, slots=True)
class AvroSettings:
    """All that a decoder is made from. `writers`: schema texts by name, see `avro_writers.writers`."""

    reader: str
    writers: Mapping[str, str]
    framing: Framing
    evolution: Evolution
    tombstones: Tombstones


class AvroDecoder:
    """See `decoded.Decoder`."""

    def __init__(self, settings: AvroSettings, schema: pa.Schema | None = None) -> None:
        """`schema`: the table's, which may have more than the reader's. Raises BadSchema."""
        reader = avro.parse_avro(settings.reader)
        own = avro.arrow_schema(reader)
        _compiled(reader)
        self._settings = settings
        self.schema = check_schema(own if schema is None else under(schema, own))
        self.version = version_of(
            "avro",
            settings.framing,
            settings.evolution,
            settings.reader,
            to_delta_json(self.schema),
            *(part for pair in settings.writers.items() for part in pair),
        )
        parsed = {name: _parsed(text) for name, text in settings.writers.items()}
        for writer in parsed.values():
            if isinstance(writer, avro.AvroType):
                reader = extended(reader, writer, self.schema)
        self._writers = {name: _Writer(writer, reader, self.schema) for name, writer in parsed.items()}

    def __reduce__(self) -> Any:
        return type(self), (self._settings, self.schema)

    def under(self, schema: pa.Schema) -> Self:
        """See `decoded.Decoder`."""
        return type(self)(self._settings, under(schema, self.schema))

    def decode(self, values: pa.Array) -> Decoded:
        """See `decoded.Decoder`."""
        outcomes = DecodeOutcomes(self.schema, values, self._settings.tombstones)
        new = NOTHING_NEW
        kept: list[int] = []
        rows: list[dict[str, Any]] = []
        for position, value in zip(*present(values), strict=True):
            try:
                row, found = self._row(value)
            except Wrong as wrong:
                outcomes.refuse(position, wrong.reason())
                continue
            kept.append(position)
            rows.append(row)
            new = merged(new, found) if found is not NOTHING_NEW else new
        outcomes.keep_records(kept, rows)
        return outcomes.decoded(new)

    def _row(self, value: bytes) -> tuple[dict[str, Any], pa.Schema]:
        name, datum = split(value, self._settings.framing)
        writer = self._writers.get(name)
        if writer is None:
            raise Wrong(f"schema {name} is not among those given; add its file to the folder")
        if writer.new and self._settings.evolution == "quarantine":
            raise Wrong(f"unknown field {writer.new_path}")
        return writer.row(datum), writer.new


def _parsed(text: str) -> avro.AvroType | str:
    """A writer's schema may be one that no column can hold; that is its records' fault alone."""
    try:
        return avro.parse_avro(text)
    except BadSchema as error:
        return str(error)


def _compiled(kind: avro.AvroType) -> Any:
    """For fastavro, which knows rules of its own, for names and defaults. Raises BadSchema."""
    try:
        return fastavro.parse_schema(avro.plain_schema(kind))
    except (SchemaParseException, UnknownType, TypeError, ValueError, KeyError) as error:
        raise BadSchema(f"the Avro schema is refused by fastavro: {error}") from None


class _Writer:
    """Reads the records of one writer's schema into rows of the reader's."""

    def __init__(self, writer: avro.AvroType | str, reader: avro.AvroType, schema: pa.Schema) -> None:
        self.new = NOTHING_NEW
        self._fault = writer if isinstance(writer, str) else None
        if isinstance(writer, str):
            return
        self._kind = writer
        self._fix: Fix | None = fixer(reader)
        self._reader = None if writer == reader else _compiled(reader)
        try:
            self._plain = _compiled(writer)
            self.new = _new_fields(writer, reader, schema)
        except BadSchema as error:
            self._fault = f"its writer's schema does not fit: {error}"

    @property
    def new_path(self) -> str:
        """The first new field."""
        path, field = [], self.new.field(0)
        while True:
            path.append(field.name)
            if not pa.types.is_struct(field.type):
                return path_text(path)
            field = field.type.field(0)

    def row(self, datum: bytes) -> dict[str, Any]:
        """The record's row. Raises Wrong."""
        if self._fault is not None:
            raise Wrong(self._fault)
        record = self._read(datum, None)
        if record is None or not self._same_again(record, datum):
            check_bytes(datum, self._kind)
            record = self._sure(lambda: self._read_strict(datum, None))
        if self._reader is not None:
            record = self._sure(lambda: self._read_strict(datum, self._reader))
        return record if self._fix is None else self._fix(record)

    def _read(self, datum: bytes, reader: Any) -> dict[str, Any] | None:
        try:
            return self._read_strict(datum, reader)
        except _FASTAVRO_ERRORS:
            return None

    def _read_strict(self, datum: bytes, reader: Any) -> dict[str, Any]:
        # The stubs say what any schema may give; this one is a record's.
        return fastavro.schemaless_reader(io.BytesIO(datum), self._plain, reader)  # type: ignore[return-value]

    def _same_again(self, record: dict[str, Any], datum: bytes) -> bool:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._plain, record)
        except _FASTAVRO_ERRORS:
            return False
        return out.getvalue() == datum

    def _sure(self, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return read()
        except _FASTAVRO_ERRORS as error:
            raise Wrong(f"its writer's schema does not resolve: {error or type(error).__name__}") from None


def _new_fields(writer: avro.AvroType, reader: avro.AvroType, schema: pa.Schema) -> pa.Schema:
    """What a table of `schema` would gain. Raises BadSchema when it cannot."""
    found = new_fields(writer, reader)
    if not len(found):
        return NOTHING_NEW
    joined = check_schema(widen(schema, found))
    if fault := conflict(joined, found):
        raise BadSchema(fault)
    if joined == schema:
        raise BadSchema("the table has its new fields under other types")
    return found
