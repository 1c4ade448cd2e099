"""Which columns a landed table has, and which tables are refused. Pure.

A raw table has the data source's columns and `appendTime`; a decoded one the value's own columns and the rest of the
record in columns that begin with `_`; a table of dead letters what it takes to look at a record and to publish it
again.

A table that is there may have more columns than a landing writes (they become null) and in another order. One that
lacks some gets them in the commit that first needs them: `appendTime`, which older landings did not write, always;
columns of values when the landing's `evolution` is `add`. A type is never changed but by fields at the end of a struct,
which old files have as null, under the same rule. What a writer of files would have to
keep and this one does not is refused by name: the JVM's own checks are for Spark's writers, and would let our files
pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from mirrorlog.spark.decode.types import nullable_type
from mirrorlog.spark.errors import TableRefused
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.options import KAFKA_COLUMNS
from mirrorlog.spark.source import spark_schema

RAW_COLUMNS: Final = (*KAFKA_COLUMNS, "headers", "appendTime")
RAW: Final = spark_schema(RAW_COLUMNS)

RECORD_COLUMNS: Final = {
    "_key": "key",
    "_queue": "topic",
    "_offset": "offset",
    "_timestamp": "timestamp",
    "_timestampType": "timestampType",
    "_headers": "headers",
    "_appendTime": "appendTime",
}
"""Of a record, beside its decoded value, and what each is called in a raw table."""
RECORD: Final = StructType([StructField(name, RAW[source].dataType) for name, source in RECORD_COLUMNS.items()])

_DEAD_RECORD: Final = ("key", "value", "headers", "timestamp", "timestampType", "appendTime")
DEAD_LETTERS: Final = StructType(
    [
        StructField("queue", StringType()),
        StructField("offset", LongType()),
        StructField("reason", StringType()),
        *(RAW[name] for name in _DEAD_RECORD),
        *(StructField(name, StringType()) for name in ("schemaVersion", "incarnation", "landedIn")),
    ]
)
"""`incarnation`: of the queue, so that a later queue of the name keeps its own; `landedIn`: the table of the others."""

BOUNDED: Final = (
    *("offset", "timestamp", "appendTime", "topic", "queue"),
    *("_queue", "_offset", "_timestamp", "_appendTime"),
)
"""Columns that every file has bounds of."""

_ALWAYS_ADDED: Final = frozenset({"appendTime", "_appendTime"})
# Never null in what a landing writes.
_NEVER_NULL: Final = frozenset(
    {"topic", "partition", "offset", "timestamp", "timestampType", "appendTime"}
    | {"_queue", "_offset", "_timestamp", "_timestampType", "_appendTime", "queue", "incarnation", "landedIn"}
)
_CHANGE_DATA_FEED: Final = "delta.enableChangeDataFeed"
_FORGETTING: Final = "delta.setTransactionRetentionDuration"
# Those that ask nothing of files that are only added, or that Delta's own commit takes care of. Of generated and
# identity columns, constraints and column mapping a table may have the feature without using it: that is looked at.
_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "domainMetadata", "clustering", "rowTracking"}
    | {"inCommitTimestamp", "v2Checkpoint", "vacuumProtocolCheck", "timestampNtz", "typeWidening"}
    | {"generatedColumns", "identityColumns", "checkConstraints", "columnMapping", "checkpointProtection"}
)
_COLUMN_SETTINGS: Final = {
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "CURRENT_DEFAULT": "has a default",
    "__CHAR_VARCHAR_TYPE_STRING": "has a length (CHAR, VARCHAR)",
}


def columns_of(landing: Landing, decoded: pa.Schema | None = None) -> StructType:
    """What the landing's table has, partition columns last. `decoded`: the value's columns, of a landing that
    decodes."""
    own = RAW if decoded is None else StructType([*_nullable(decoded).fields, *RECORD.fields])
    prefix = prefix_of(landing)
    kinds = {"date": DateType(), "integer": IntegerType()}
    parts = [StructField(prefix + part.column, kinds[part.spark_type]) for part in landing.partition_by.parts]
    return StructType([*own.fields, *parts])


def _nullable(decoded: pa.Schema) -> StructType:
    """A decoder's NOT NULL is its promise; the table may have rows from before it, and tombstones while it merges."""
    fields = [pa.field(each.name, nullable_type(each.type), metadata=each.metadata) for each in decoded]
    return from_arrow_schema(pa.schema(fields))


def prefix_of(landing: Landing) -> str:
    """What the names of the record's own columns begin with."""
    return "_" if landing.decoded else ""


def settled_shape(
    state: TableState, wanted: StructType, landing: Landing, *, may_add: Collection[str] = ()
) -> TableShape | None:
    """What the table has to become for rows of `wanted`; None when it is that already.

    `may_add`: columns that may be added to a table that is there, besides appendTime. Raises TableRefused.
    """
    partitions = landing.partition_by.columns(prefix_of(landing))
    if state.version is None:
        return TableShape(wanted, partitions, _properties(landing))
    refuse_shape(landing.table, state.shape, written=wanted.names)
    if state.shape.partition_columns != partitions:
        there, asked = (", ".join(names) or "nothing" for names in (state.shape.partition_columns, partitions))
        raise TableRefused(f"{landing.table} has partitions by {there}, the landing by {asked} (key 'partition_by')")
    schema = _grown(landing.table, state.shape.schema, wanted, may_add)
    properties = {**state.shape.properties, **_properties(landing)}
    if schema == state.shape.schema and properties == state.shape.properties:
        return None
    return replace(state.shape, schema=schema, properties=properties)


def refuse_shape(table: str, shape: TableShape, *, written: Collection[str]) -> None:
    """Raise TableRefused naming what files with the columns `written` would break in the table."""
    for why in (_feature(shape), _property(shape.properties), *_columns(shape.schema, written)):
        if why is not None:
            raise TableRefused(f"{table} {why}: land into a table without it")


def _feature(shape: TableShape) -> str | None:
    unknown = sorted(shape.features - _FEATURES)
    return f"has the table feature {', '.join(unknown)}, which landings do not write" if unknown else None


def _property(properties: Mapping[str, str]) -> str | None:
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return "has column mapping (delta.columnMapping.mode), which landings do not write"
    if _FORGETTING in properties:
        return f"forgets positions (property {_FORGETTING}): records would be landed again"
    constraints = [name for name in properties if name.startswith("delta.constraints.")]
    return f"has a CHECK constraint ({', '.join(constraints)}), which landings do not check" if constraints else None


def _columns(schema: StructType, written: Collection[str]) -> list[str]:
    found = []
    for column in schema:
        settings = [meaning for key, meaning in _COLUMN_SETTINGS.items() if key in column.metadata]
        found += [f"has a column {column.name} that {meaning}" for meaning in settings]
        if not column.nullable and not (column.name in written and column.name in _NEVER_NULL):
            found.append(f"has a column {column.name} that is NOT NULL and that a landing may leave null")
    return found


def _grown(table: str, there: StructType, wanted: StructType, may_add: Collection[str]) -> StructType:
    """The table's columns with what rows of `wanted` have besides. Raises TableRefused."""
    grown = {column.name.lower(): column for column in there}
    refused = []
    for column in wanted:
        found = grown.get(column.name.lower())
        settled = column if found is None else _settled(table, found, column)
        if settled != found and column.name not in may_add and column.name not in _ALWAYS_ADDED:
            refused.append(column.name if found is None else f"{column.name} of type {_text(column)}")
        grown[column.name.lower()] = settled
    if refused:
        raise TableRefused(
            f"{table} has no column {', '.join(refused)}; land into another table, or let it be added "
            "(evolution = 'add', for columns of values)"
        )
    return StructType(list(grown.values()))


def _settled(table: str, found: StructField, wanted: StructField) -> StructField:
    kind = grown_type(found.dataType, wanted.dataType)
    if found.name != wanted.name or kind is None:
        raise TableRefused(
            f"{table} has a column {found.name} of type {_text(found)}, the landing writes {wanted.name} of type "
            f"{_text(wanted)}; a type is never changed but by fields at the end of a struct, use another table"
        )
    return StructField(found.name, kind, found.nullable, found.metadata)


def _text(column: StructField) -> str:
    return column.dataType.simpleString()


def grown_type(there: DataType, wanted: DataType) -> DataType | None:
    """The table's type with the nullable fields that `wanted` has at the ends of structs, also of those in arrays and
    in the values of maps; None when that does not make `wanted` of it."""
    if isinstance(there, StructType) and isinstance(wanted, StructType):
        return _grown_struct(there, wanted)
    if isinstance(there, ArrayType) and isinstance(wanted, ArrayType):
        element = grown_type(there.elementType, wanted.elementType)
        return None if element is None else ArrayType(element, there.containsNull)
    if isinstance(there, MapType) and isinstance(wanted, MapType) and same_type(there.keyType, wanted.keyType):
        value = grown_type(there.valueType, wanted.valueType)
        return None if value is None else MapType(there.keyType, value, there.valueContainsNull)
    return there if same_type(there, wanted) else None


def _grown_struct(there: StructType, wanted: StructType) -> StructType | None:
    known = len(there)
    fields = []
    for found, column in zip(there, wanted.fields[:known], strict=False):
        kind = grown_type(found.dataType, column.dataType)
        if kind is not None and found.name == column.name:
            fields.append(StructField(found.name, kind, found.nullable, found.metadata))
    new = wanted.fields[known:]
    names = {column.name.lower() for column in [*fields, *new]}
    # Names that differ by case only are one name to Spark, and what is NOT NULL no old row has.
    fits = len(fields) == known and all(column.nullable for column in new) and len(names) == known + len(new)
    return StructType([*fields, *new]) if fits else None


def same_type(one: Any, other: Any) -> bool:
    """Whatever may be null in them."""
    return bool(one.simpleString() == other.simpleString())


def _properties(landing: Landing) -> dict[str, str]:
    return {_CHANGE_DATA_FEED: "true"} if landing.change_data_feed else {}
