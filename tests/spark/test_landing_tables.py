"""Which tables a landing writes to, which it lets grow, and which it refuses by the name of what it would break."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from mirrorlog.spark.errors import TableRefused
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.delta_log import TableShape, TableState
from mirrorlog.spark.landing.tables import RAW, columns_of, refuse_shape, settled_shape


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
