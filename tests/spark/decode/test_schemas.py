"""Schemas as DDL, as Delta's JSON and as Arrow: read, written, widened, refused. No JVM."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from mirrorlog.spark.decode import schema_from, to_ddl, to_delta_json, widen
from mirrorlog.spark.decode.columns import FIELDS_MAX, RESERVED_COLUMNS, check_schema
from mirrorlog.spark.decode.ddl import NESTING_MAX, parse_ddl
from mirrorlog.spark.decode.types import canonical, from_delta_json, list_of, map_of
from mirrorlog.spark.decode.widening import merged, under
from mirrorlog.spark.errors import BadSchema

UTC_TIME = pa.timestamp("us", tz="UTC")
ALL = """
    a BOOLEAN, b TINYINT, c byte, d SMALLINT, e short, f INT, g integer, h BIGINT NOT NULL, i long, j FLOAT, k REAL,
    l DOUBLE, m DECIMAL, n DEC(5), o NUMERIC(38,38), p STRING, q BINARY, r DATE, s TIMESTAMP, t TIMESTAMP_LTZ,
    u TIMESTAMP_NTZ COMMENT 'it\\'s "local"', -- of the wall
    v ARRAY<ARRAY<INT>>, w MAP<STRING, STRUCT<x: INT NOT NULL COMMENT 'n', `y ``z` STRING>>,
    /* last */ where: STRUCT<lat:DOUBLE>
"""


def test_every_type_of_the_ddl_has_its_arrow_type() -> None:
    """Goal: Spark's names mean Spark's types. Method: one column of each, beside the Arrow type written by hand."""
    parsed = parse_ddl(ALL)
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False), ("y `z", pa.string())])
    assert parsed.types == [
        *(pa.bool_(), pa.int8(), pa.int8(), pa.int16(), pa.int16(), pa.int32(), pa.int32(), pa.int64(), pa.int64()),
        *(pa.float32(), pa.float32(), pa.float64()),
        *(pa.decimal128(10, 0), pa.decimal128(5, 0), pa.decimal128(38, 38), pa.string(), pa.binary(), pa.date32()),
        *(UTC_TIME, UTC_TIME, pa.timestamp("us"), list_of(list_of(pa.int32())), map_of(pa.string(), inner)),
        pa.struct([("lat", pa.float64())]),
    ]
    assert [field.name for field in parsed if not field.nullable] == ["h"]
    assert parsed.field("u").metadata == {b"comment": b'it\'s "local"'}


def test_ddl_and_delta_json_say_the_same_again() -> None:
    """Goal: what is written can be read. Method: there and back, comments and NOT NULL with it."""
    parsed = parse_ddl(ALL)
    for again in (parse_ddl(to_ddl(parsed)), from_delta_json(to_delta_json(parsed)), canonical(parsed)):
        assert again.equals(parsed, check_metadata=True)
    elements = pa.schema(
        [("l", list_of(pa.int64(), nullable=False)), ("m", map_of(pa.string(), pa.int8(), nullable=False))]
    )
    assert from_delta_json(to_delta_json(elements)).equals(elements)


def test_delta_json_is_that_of_spark() -> None:
    """Goal: tables are made from it. Method: compare with what Spark's own types write."""
    parsed = parse_ddl(
        "a BIGINT NOT NULL COMMENT 'c', b ARRAY<DECIMAL(9,2)>, c MAP<STRING, DATE>, d STRUCT<e: BINARY>, "
        "t TIMESTAMP_NTZ"
    )
    spark = StructType.fromJson(json.loads(to_delta_json(parsed)))
    assert from_delta_json(spark.json()).equals(parsed, check_metadata=True)
    assert spark.simpleString() == (
        "struct<a:bigint,b:array<decimal(9,2)>,c:map<string,date>,d:struct<e:binary>,t:timestamp_ntz>"
    )
    assert not spark["a"].nullable
    assert spark["a"].metadata == {"comment": "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("a", "a type is expected, not 'the end'"),
        ("a INT,", "a column's name is expected"),
        ("a INT b INT", "a comma is expected, not 'b'"),
        ("a INTEGERS", "type INTEGERS is not taken; there are BOOLEAN"),
        ("a VARCHAR(10)", "type VARCHAR is not taken; use STRING"),
        ("a INTERVAL DAY", "INTERVAL is not taken"),
        ("a VARIANT", "VARIANT is not taken"),
        ("a INT NOT", "NULL is expected"),
        ("a INT COMMENT b", "a comment in quotes is expected"),
        ("a INT DEFAULT 1", "a comma is expected, not 'DEFAULT'"),
        ("a ARRAY<INT", "'>' is expected"),
        ("a ARRAY<>", "a type is expected"),
        ("a MAP<STRING>", "',' is expected"),
        ("a STRUCT<>", "a column's name is expected"),
        ("a DECIMAL(39,0)", "DECIMAL.39,0.: use 1 to 38 digits"),
        ("a DECIMAL(5,6)", "DECIMAL.5,6.: use 1 to 38"),
        ("a DECIMAL(x)", "a number is expected"),
        ("a INT; DROP TABLE t", "character 6, ';', has no meaning"),
        ("a INT, A STRING", "fields a and A are one name to Spark"),
        ("s STRUCT<x: INT, X: INT>", "fields s.x and s.X are one name to Spark"),
        ("`a b` INT", "Delta refuses the characters"),
        ("s STRUCT<`a=b`: INT>", "field s.'a=b': Delta refuses"),
        ("_OFFSET INT", "the landing and Delta have a column _offset"),
        ("_change_type INT", "have a column _change_type"),
        ("`a\x07` INT", "printable"),
        ("m MAP<ARRAY<INT>, INT>", "the key of a map is a scalar"),
        ("a " + "ARRAY<" * 40 + "INT" + ">" * 40, f"nested deeper than {NESTING_MAX}"),
        (", ".join(f"c{number} INT" for number in range(FIELDS_MAX + 1)), f"at most {FIELDS_MAX} are taken"),
        ("a INT" + " " * 2**20, "at most 1048576 are taken"),
        ("{", "is no JSON"),
        ('{"type": "array"}', "is no Spark schema"),
        ('{"type": "struct", "fields": [{"name": "a", "type": "varchar(3)"}]}', "field a: there is no type 'varchar"),
        ('{"type": "struct", "fields": [{"type": "long"}]}', "a field of the schema has no name"),
        ('{"type": "struct", "fields": [{"name": "a"}]}', "field a: None is no type of Spark"),
        (
            '{"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": 1}]}',
            "a: nullable is true or false",
        ),
        ('{"type": "struct", "fields": []}', "has no columns"),
        ('{"a":' * 9000, "is no JSON"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(text: str, message: str) -> None:
    """Goal: found at the definition, not at the commit. Method: each wrong thing by itself."""
    with pytest.raises(BadSchema, match=message) as refused:
        schema_from(text)
    assert "\n" not in refused.value.message


def test_an_arrow_schema_is_brought_into_the_one_form() -> None:
    """Goal: a schema from elsewhere fits. Method: Arrow's other spellings of Spark's types, and what Spark lacks."""
    given = pa.schema(
        [("s", pa.large_string()), ("b", pa.binary_view()), ("l", pa.large_list(pa.field("item", pa.int64())))]
    )
    assert canonical(given) == parse_ddl("s STRING, b BINARY, l ARRAY<BIGINT>")
    for kind, advice in [
        (pa.uint32(), "signed"),
        (pa.timestamp("ns"), "timestamp.us, tz=UTC"),
        (pa.time64("us"), "there are"),
    ]:
        with pytest.raises(BadSchema, match=f"field s.x: Spark has no type.*{advice}"):
            canonical(pa.schema([("s", pa.struct([("x", kind)]))]))


def test_widening_adds_at_the_end_and_changes_no_type() -> None:
    """Goal: a table only grows. Method: new columns, new fields of structs in lists and maps, and what conflicts."""
    table = parse_ddl("a INT NOT NULL, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>")
    new = parse_ddl(
        "b DOUBLE NOT NULL, s STRUCT<y: STRUCT<z: INT NOT NULL>, x: STRING>, l ARRAY<STRUCT<y: INT>>, "
        "m MAP<STRING, STRUCT<y: INT>>, a STRING, A INT"
    )
    wide = widen(table, new)
    assert to_ddl(wide) == (
        "a INT NOT NULL, s STRUCT<x: INT, y: STRUCT<z: INT>>, l ARRAY<STRUCT<x: INT, y: INT>>, "
        "m MAP<STRING, STRUCT<x: INT, y: INT>>, b DOUBLE"
    )
    assert widen(wide, new) == wide
    assert widen(table, pa.schema([])) == table


def test_what_two_tasks_found_is_joined_and_numbers_meet_in_double() -> None:
    """Goal: tasks that saw other records agree. Method: both orders; a conflict keeps the first."""
    one, two = parse_ddl("x BIGINT, s STRUCT<p: STRING>"), parse_ddl("x DOUBLE, s STRUCT<q: BIGINT, p: BIGINT>")
    assert to_ddl(merged(one, two)) == "x DOUBLE, s STRUCT<p: STRING, q: BIGINT>"
    assert to_ddl(merged(two, one)) == "x DOUBLE, s STRUCT<q: BIGINT, p: BIGINT>"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a STRING", "field a is STRING in the table and BIGINT in the schema given"),
        ("b BIGINT", "field a is not in the table's schema"),
        (
            "A BIGINT, s STRUCT<x: INT>",
            "field a is not in the table's schema; widen it first, with the name in the same case",
        ),
        ("a BIGINT, s STRUCT<y: INT>", "field s.x is not in"),
        ("a BIGINT, s ARRAY<INT>", "field s is ARRAY<INT> in the table"),
    ],
)
def test_a_table_of_other_types_is_refused(table: str, message: str) -> None:
    """Goal: a landing does not begin against a table that it cannot fill. Method: each misfit."""
    with pytest.raises(BadSchema, match=message):
        under(parse_ddl(table), parse_ddl("a BIGINT NOT NULL, s STRUCT<x: INT>"))


def test_not_null_of_the_definition_is_kept_under_a_table_without() -> None:
    """Goal: what the definition promises is checked even if the table does not say it. Method: top and nested."""
    own = parse_ddl("a BIGINT NOT NULL, s STRUCT<x: INT NOT NULL>")
    assert to_ddl(under(parse_ddl("s STRUCT<x: INT, y: INT>, a BIGINT, z INT"), own)) == (
        "s STRUCT<x: INT NOT NULL, y: INT>, a BIGINT NOT NULL, z INT"
    )


def test_no_reserved_name_is_taken_in_any_case() -> None:
    """Goal: the record's own columns stay its own. Method: each name in other letters; inside a struct it is free."""
    for name in RESERVED_COLUMNS:
        with pytest.raises(BadSchema, match=name):
            check_schema(pa.schema([(name.upper(), pa.int64())]))
        check_schema(pa.schema([("s", pa.struct([(name, pa.int64())]))]))
