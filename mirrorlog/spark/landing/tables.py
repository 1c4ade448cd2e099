"""Which columns a landed table has, and which tables are refused. Pure.

A raw table has the data source's columns and `appendTime`; a decoded one the value's own columns and the rest of the
record in columns that begin with `_`; a table of dead letters what it takes to look at a record and to publish it
again.

A table that is there may have more columns than a landing writes (they become null) and in another order. One that
lacks some gets them in the commit that first needs them: `appendTime`, which older landings did not write, always;
columns of values when the landing's `evolution` is `add`. A type is never changed. What a writer of files would have to
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
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mirrorlog.spark.decode.types import nullable_type
from mirrorlog.spark.errors import TableRefused
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.delta_log import TableShape, TableState

HEADERS: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))

RAW: Final = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", HEADERS)
    .add("appendTime", TimestampType())
)
RECORD: Final = (
    StructType()
    .add("_key", BinaryType())
    .add("_queue", StringType())
    .add("_offset", LongType())
    .add("_timestamp", TimestampType())
    .add("_timestampType", IntegerType())
    .add("_headers", HEADERS)
    .add("_appendTime", TimestampType())
)
"""Of a record, beside its decoded value."""

DEAD_LETTERS: Final = (
    StructType()
    .add("queue", StringType())
    .add("offset", LongType())
    .add("reason", StringType())
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("headers", HEADERS)
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("appendTime", TimestampType())
    .add("schemaVersion", StringType())
    .add("incarnation", StringType())
    .add("landedIn", StringType())
)
"""`incarnation`: of the queue, so that a later queue of the name keeps its own; `landedIn`: the table of the others."""

BOUNDED: Final = (
    "offset",
    "timestamp",
    "appendTime",
    "topic",
    "queue",
    "_queue",
    "_offset",
    "_timestamp",
    "_appendTime",
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
    missing = _missing(landing.table, state.shape.schema, wanted)
    refused = [each.name for each in missing if each.name not in _ALWAYS_ADDED and each.name not in may_add]
    if refused:
        raise TableRefused(
            f"{landing.table} has no column {', '.join(refused)}; land into another table, or let it be added "
            "(evolution = 'add', for columns of values)"
        )
    schema = StructType([*state.shape.schema.fields, *missing])
    properties = {**state.shape.properties, **_properties(landing)}
    if not missing and properties == state.shape.properties:
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


def _missing(table: str, there: StructType, wanted: StructType) -> list[StructField]:
    known = {column.name.lower(): column for column in there}
    missing = []
    for column in wanted:
        found = known.get(column.name.lower())
        if found is None:
            missing.append(column)
        elif found.name != column.name or not same_type(found.dataType, column.dataType):
            raise TableRefused(
                f"{table} has a column {found.name} of type {found.dataType.simpleString()}, the landing writes "
                f"{column.name} of type {column.dataType.simpleString()}; a type is never changed, use another table"
            )
    return missing


def same_type(one: Any, other: Any) -> bool:
    """Whatever may be null in them."""
    return bool(one.simpleString() == other.simpleString())


def _properties(landing: Landing) -> dict[str, str]:
    return {_CHANGE_DATA_FEED: "true"} if landing.change_data_feed else {}
