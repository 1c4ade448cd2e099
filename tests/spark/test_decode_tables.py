"""Spark and Delta take the schemas of decoders: by DDL, by Delta's JSON, and as the rows that tasks write."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mirrorlog.spark.decode import make_decoder, to_ddl, to_delta_json, widen
from mirrorlog.spark.decode.ddl import parse_ddl

DDL = (
    "b BOOLEAN, y TINYINT, s SMALLINT, i INT, l BIGINT COMMENT 'the flight\\'s', f FLOAT, d DOUBLE, p DECIMAL(20,3), "
    "t STRING, r BINARY, day DATE, at TIMESTAMP, a ARRAY<STRUCT<x: INT, `y``z`: STRING>>, m MAP<STRING, ARRAY<DATE>>, "
    "`odd-name.é` STRUCT<lat: DOUBLE, `select`: INT>"
)


def test_spark_and_delta_take_the_schema_and_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: the schema made here without a JVM is Spark's. Method: Spark parses the DDL to the same columns, a Delta
    table is made of it, decoded rows are added, and Delta has the same schema, before and after a widening."""
    decoder = make_decoder("json", {"schema": DDL, "evolution": "add"})
    wanted = StructType.fromJson(json.loads(to_delta_json(decoder.schema)))
    assert StructType.fromDDL(to_ddl(decoder.schema)) == StructType.fromDDL(DDL) == wanted
    assert to_arrow_schema(wanted, timezone="UTC").equals(decoder.schema)
    table = str(tmp_path / "table")
    spark.createDataFrame([], wanted).write.format("delta").save(table)
    record = {"l": 1, "p": "1.5", "at": "2013-01-31T05:15:00Z", "a": [{"x": 1, "y`z": "q"}], "m": {"k": ["2013-01-31"]}}
    more = {**record, "odd-name.é": {"lat": 1, "alt": 2}, "gate": "C7"}
    values = pa.array([json.dumps(one).encode() for one in (record, more)])
    wide = decoder.under(widen(decoder.schema, decoder.decode(values).new_fields))
    rows = pa.Table.from_batches([wide.decode(values).rows])
    spark.createDataFrame(rows).write.format("delta").mode("append").option("mergeSchema", "true").save(table)
    landed = spark.read.format("delta").load(table)
    assert to_arrow_schema(landed.schema, timezone="UTC") == parse_ddl(to_ddl(wide.schema))
    found = landed.orderBy("gate").select("l", "p", "a", "m", "gate", "`odd-name.é`.alt").collect()
    assert [(row["gate"], row["alt"], str(row["p"]), row["m"]["k"][0].day) for row in found] == [
        (None, None, "1.500", 31),
        ("C7", 2, "1.500", 31),
    ]
