"""Which tables a landing writes to, which it lets grow, and which it refuses by the name of what it would break."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from mirrorlog.spark.errors import TableRefused
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState, commit, table_state
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.tables import RAW, columns_of, refuse_shape, settled_shape
from mirrorlog.spark.landing.write.files import FileFormat, FileWriter


def made(**keys: Any) -> Landing:
    return landing({"queue": "q", "table": "/lake/q", "servers": "n1:7401", **keys})


def there(schema: StructType = RAW, **shape: Any) -> TableState:
    return TableState(3, {}, TableShape(schema, **shape))


def without(*names: str) -> StructType:
    return StructType([column for column in RAW if column.name not in names])


def test_a_new_table_has_the_landings_columns_partitions_and_properties() -> None:
    shape = settled_shape(
        TableState(None, {}), columns_of(one := made(partition_by=["date(timestamp)"], change_data_feed=True)), one
    )
    assert shape is not None
    assert shape.schema.names == [*RAW.names, "date"]
    assert (shape.partition_columns, shape.properties) == (("date",), {"delta.enableChangeDataFeed": "true"})


def test_a_table_that_fits_is_left_as_it_is() -> None:
    """Goal: more columns, in another order, are no reason to touch it."""
    schema = StructType([StructField("more", StringType()), *reversed(RAW.fields)])
    assert settled_shape(there(schema), RAW, made()) is None


def test_a_table_of_an_older_landing_gets_the_append_time() -> None:
    shape = settled_shape(there(without("appendTime")), RAW, made())
    assert shape is not None
    assert shape.schema.names == RAW.names


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (without("headers"), "no column headers"),
        (StructType([*without("offset").fields, StructField("offset", IntegerType())]), "offset of type int.*bigint"),
        (StructType([*without("offset").fields, StructField("Offset", LongType())]), "column Offset"),
        (StructType([*RAW.fields, StructField("more", StringType(), False)]), "column more that is NOT NULL"),
        (StructType([*without("key").fields, StructField("key", RAW["key"].dataType, False)]), "key that is NOT NULL"),
        (StructType([*RAW.fields, StructField("g", LongType(), True, {"delta.generationExpression": "1"})]), "generat"),
        (StructType([*RAW.fields, StructField("i", LongType(), True, {"delta.identity.start": 1})]), "identity"),
        (StructType([*RAW.fields, StructField("i", LongType(), True, {"delta.invariants": "{}"})]), "invariant"),
        (StructType([*RAW.fields, StructField("i", LongType(), True, {"CURRENT_DEFAULT": "1"})]), "default"),
    ],
)
def test_a_column_that_files_would_break_is_named(schema: StructType, message: str) -> None:
    with pytest.raises(TableRefused, match=message):
        settled_shape(there(schema), RAW, made())


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"properties": {"delta.columnMapping.mode": "name"}}, "column mapping"),
        ({"properties": {"delta.constraints.positive": "offset > 0"}}, "delta.constraints.positive"),
        ({"properties": {"delta.setTransactionRetentionDuration": "1 day"}}, "setTransactionRetentionDuration"),
        ({"features": frozenset({"appendOnly", "icebergCompatV2"})}, "icebergCompatV2"),
        ({"partition_columns": ("topic",)}, "partitions by topic, the landing by nothing"),
    ],
)
def test_a_setting_that_files_would_break_is_named(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(TableRefused, match=message):
        settled_shape(there(**shape), RAW, made())


def test_features_that_files_keep_are_taken() -> None:
    """A feature may be there without being used: then it is what the columns and properties say that counts."""
    features = frozenset(
        {"appendOnly", "invariants", "columnMapping", "changeDataFeed", "deletionVectors", "clustering"}
    )
    shape = TableShape(RAW, properties={"delta.columnMapping.mode": "none"}, features=features)
    refuse_shape("/t", shape, written=RAW.names)
    not_null = replace(shape, schema=StructType([StructField("offset", LongType(), False)]))
    refuse_shape("/t", not_null, written=["offset"])


def test_columns_of_values_are_added_only_where_that_is_asked_for() -> None:
    one = made(mode="json", decoder={"schema": "a INT"}, evolution="add")
    first = columns_of(one, pa.schema([("a", pa.int32())]))
    wider = columns_of(one, pa.schema([("a", pa.int32()), ("b", pa.string())]))
    with pytest.raises(TableRefused, match=r"no column b.*evolution"):
        settled_shape(there(first), wider, one)
    shape = settled_shape(there(first), wider, one, may_add=["a", "b"])
    assert shape is not None
    assert shape.schema.names == [*first.names, "b"]


X = pa.field("x", pa.int64())
NESTED = {
    "a struct": pa.struct,
    "in a struct": lambda fields: pa.struct([("s", pa.struct(fields)), ("z", pa.int32())]),
    "in an array": lambda fields: pa.list_(pa.struct(fields)),
    "in a map": lambda fields: pa.map_(pa.string(), pa.struct(fields)),
}


@pytest.mark.parametrize("kind", NESTED.values(), ids=NESTED)
def test_a_field_at_the_end_of_a_struct_is_added_like_a_column(kind: Any) -> None:
    """Goal: evolution reaches inside. The same struct with a field more, wherever it stands; not where its type, its
    place or its name is another one, and only where that is asked for."""
    one = made(mode="json", decoder={"schema": "a INT"}, evolution="add")

    def columns(*fields: Any) -> StructType:
        return columns_of(one, pa.schema([("v", kind([*fields]))]))

    first, wider = columns(X), columns(X, ("y", pa.string()))
    shape = settled_shape(there(first), wider, one, may_add=["v"])
    assert shape is not None
    assert shape.schema == wider
    assert settled_shape(there(wider), wider, one, may_add=["v"]) is None
    with pytest.raises(TableRefused, match=r"no column v of type .*y:string.*evolution"):
        settled_shape(there(first), wider, one)
    for other in (columns(("x", pa.string())), columns(("y", pa.string()), X), columns(X, ("X", pa.int64()))):
        with pytest.raises(TableRefused, match="a type is never changed but by fields at the end"):
            settled_shape(there(first), other, one, may_add=["v"])
    with pytest.raises(TableRefused, match="never changed"):
        settled_shape(there(wider), first, one, may_add=["v"])


@pytest.mark.long
def test_spark_reads_files_from_before_and_after_a_struct_grew(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: Delta takes the change, and old rows have null there. A file of the old type, then one of the new, in a
    struct, an array and a map of structs."""
    one = made(mode="json", decoder={"schema": "a INT"}, evolution="add")
    table = str(tmp_path)

    def put(value: dict[str, int]) -> None:
        struct = pa.struct([(name, pa.int64()) for name in value])
        kinds = {"s": struct, "a": pa.list_(pa.field("element", struct)), "m": pa.map_(pa.string(), struct)}
        values = {"s": value, "a": [value], "m": [("k", value)]}
        rows = pa.RecordBatch.from_pydict({name: pa.array([values[name]], kinds[name]) for name in kinds})
        with FileWriter(FileFormat(table), 0) as writer:
            writer.write(rows)
            files = writer.finish()
        seen = table_state(spark, table, ())
        shape = settled_shape(seen, columns_of(one, rows.schema), one, may_add=[*kinds])
        commit(spark, table, files, seen=seen, sets={}, note={}, shape=shape)

    put({"x": 1})
    put({"x": 2, "y": 3})
    found = spark.read.format("delta").load(table).selectExpr("s.x", "s.y", "a[0].y AS a", "m['k'].y AS m")
    assert sorted(map(tuple, found.collect())) == [(1, None, None, None), (2, 3, 3, 3)]
