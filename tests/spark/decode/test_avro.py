"""Avro records: frames, logical types, resolution, newer writers, and bytes that only look right."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.spark.decode import Decoder, make_decoder, to_ddl, widen
from mirrorlog.spark.errors import BadOption, BadSchema

NOON = datetime(2013, 1, 31, 12, tzinfo=UTC)


def record(*fields: Any, name: str = "Flight") -> dict[str, Any]:
    named = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "namespace": "air", "fields": named}


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def written(schema: Any, **values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), values)
    return out.getvalue()


def confluent(schema_id: int, datum: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + datum


def made(schema: Any, **settings: Any) -> Decoder:
    return make_decoder("avro", {"schema": json.dumps(schema), **settings})


def decode(decoder: Decoder, *values: bytes | None) -> Any:
    return decoder.decode(pa.array(values, pa.binary()))


def test_every_type_has_its_column_and_its_value() -> None:
    """Goal: Avro's types mean Spark's. Method: one field of each, the values written by fastavro with logical types."""
    schema = record(
        ("b", "boolean"),
        ("i", "int"),
        ("l", "long"),
        ("f", "float"),
        ("d", "double"),
        ("y", "bytes"),
        ("s", "string"),
        ("e", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}),
        ("x", {"type": "fixed", "name": "F", "size": 2}),
        ("a", {"type": "array", "items": ["null", "int"]}),
        ("m", {"type": "map", "values": logical("long", "timestamp-millis")}),
        ("r", ["null", record(("z", "int"), ("e", "air.E"), name="Inner")]),
        ("day", logical("int", "date")),
        ("ms", logical("long", "timestamp-millis")),
        ("us", [logical("long", "timestamp-micros"), "null"]),
        ("ntz", logical("long", "local-timestamp-micros")),
        ("dec", logical("bytes", "decimal", precision=38, scale=3)),
        ("fdec", logical({"type": "fixed", "name": "D", "size": 4}, "decimal", precision=5, scale=2)),
        ("id", logical("string", "uuid")),
        ("own", logical("int", "of-ours")),
        ("only", ["string"]),
    )
    schema["fields"][17]["type"] = {
        "type": "fixed",
        "name": "D",
        "size": 4,
        "logicalType": "decimal",
        "precision": 5,
        "scale": 2,
    }
    big = Decimal("12345678901234567890123456789012345.678")
    values = {
        **{"b": True, "i": -1, "l": 2**62, "f": 0.5, "d": 1e300, "y": b"\xff", "s": "é", "e": "Y", "x": b"ab"},
        **{"a": [1, None], "m": {"k": NOON}, "r": {"z": 3, "e": "X"}, "day": date(2013, 1, 31), "ms": NOON, "us": None},
        **{"ntz": NOON.replace(tzinfo=None), "dec": big, "fdec": Decimal("-123.45"), "own": 7, "only": "o"},
        "id": UUID(int=5),
    }
    decoder = pickle.loads(pickle.dumps(made(schema)))
    assert to_ddl(decoder.schema) == (
        "b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, y BINARY, s STRING, e STRING, x BINARY, a ARRAY<INT>, "
        "m MAP<STRING, TIMESTAMP>, r STRUCT<z: INT, e: STRING>, day DATE, ms TIMESTAMP, us TIMESTAMP, "
        "ntz TIMESTAMP_NTZ, dec DECIMAL(38,3), fdec DECIMAL(5,2), id STRING, own INT, only STRING"
    )
    decoded = decode(decoder, written(schema, **values))
    assert decoded.reasons.to_pylist() == []
    assert decoded.rows.to_pylist() == [{**values, "m": [("k", NOON)], "id": str(UUID(int=5))}]


FLIGHT = record(
    ("id", "int"),
    ("carrier", ["null", "string"]),
    ("kind", {"type": "enum", "name": "K", "symbols": ["A"]}),
    ("ok", "boolean"),
)
SOUND = b"\x02\x02\x04UA\x00\x01"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "field id: wants 1 bytes at byte 0, and 0 are left"),
        (SOUND[:-1], "field ok: wants 1 bytes"),
        (SOUND + b"x", "1 bytes are left over behind the record's 7"),
        (b"\x02\x01\x04UA\x00\x01", "field carrier: a union of 2 has no place -1"),
        (b"\x02\x04\x04UA\x00\x01", "field carrier: a union of 2 has no place 2"),
        (b"\x02\x00\x01\x01", "field kind: an enum of 1 has no place -1"),
        (b"\x02\x00\x02\x01", "field kind: an enum of 1 has no place 1"),
        (b"\x02\x00\x00\x07", "field ok: a boolean is neither 0 nor 1"),
        (b"\x02\x02\x05UA\x00\x01", "field carrier: wants -3 bytes"),
        (b"\x02\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x01", "field carrier: wants 9223372036854775807 bytes"),
        (b"\x02\x02\x04\xc3\x28\x00\x01", "field carrier: no UTF-8 at byte 3"),
        (b"\xfe\xff\xff\xff\xff\x01\x00\x00\x01", "field id: 34359738367 is beyond int"),
        (b"\xff" * 12 + b"\x01\x00\x00\x01", "field id: a number of more than 10 bytes"),
        (b'{"id": 1}', "field"),
    ],
)
def test_bytes_that_are_not_exactly_a_record_are_dead_letters(value: bytes, words: str) -> None:
    """Goal: what a trusting reader takes is found. Method: each rule of the format broken once, by a sound record."""
    decoded = decode(made(FLIGHT), SOUND, value)
    assert decoded.rows.to_pylist() == [{"id": 1, "carrier": "UA", "kind": "A", "ok": True}]
    assert decoded.dead.to_pylist() == [1]
    assert words in decoded.reasons[0].as_py()


@pytest.mark.parametrize(
    ("kind", "datum", "words"),
    [
        (
            logical("int", "date"),
            written(record(("v", "int")), v=2**31 - 1),
            "field v: day 2147483647 is beyond the years",
        ),
        (logical("long", "timestamp-millis"), written(record(("v", "long")), v=2**62), "beyond the years 1 to 9999"),
        (logical("long", "timestamp-micros"), written(record(("v", "long")), v=-(2**62)), "beyond the years 1 to 9999"),
        (logical("string", "uuid"), written(record(("v", "string")), v="x"), "field v: wanted uuid, found 'x'"),
        (logical("bytes", "decimal", precision=2, scale=1), b"\x04\x7f\xff", "field v: 3276.7 is beyond decimal(2,1)"),
        (
            logical("bytes", "decimal", precision=2, scale=1),
            b"\xca\x01" + b"\1" * 101,
            "field v: a decimal of 101 bytes",
        ),
        ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", "field v: the key 'a' twice in one map"),
        ({"type": "array", "items": "int"}, b"\x03\x06\x02\x04\x00", "field v: a block of another size"),
        (
            {"type": "array", "items": "int"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02",
            "field v[1]: wants 1 bytes",
        ),
        (
            {"type": "array", "items": {"type": "map", "values": "boolean"}},
            b"\x02\x02\x02k\x05\x00\x00",
            "v[0][0]: a bool",
        ),
    ],
)
def test_values_that_no_column_holds_are_dead_letters(kind: Any, datum: bytes, words: str) -> None:
    """Goal: nothing is wrapped, cut or guessed. Method: each limit passed once."""
    decoded = decode(made(record(("v", kind))), datum)
    assert decoded.kept.to_pylist() == []
    assert words in decoded.reasons[0].as_py()


def test_blocks_of_other_writers_are_read() -> None:
    """Goal: a record that comes out otherwise when written again is no fault. Method: an array in sized blocks, and a
    number in more bytes than it needs."""
    schema = record(("v", {"type": "array", "items": "int"}), ("n", "int"))
    decoded = decode(made(schema), b"\x03\x04\x02\x04\x02\x06\x00\x82\x00", b"\x00\x02")
    assert decoded.reasons.to_pylist() == []
    assert decoded.rows.to_pylist() == [{"v": [1, 2, 3], "n": 1}, {"v": [], "n": 1}]


@settings(max_examples=60, deadline=None, print_blob=True)
@given(st.binary(max_size=24), st.integers(0, 20))
def test_any_bytes_end_as_a_row_or_as_a_dead_letter(junk: bytes, cut: int) -> None:
    """Goal: no input stops a landing. Method: random bytes, and sound records with random bytes inside."""
    decoder = made(record(("i", "int"), ("m", {"type": "map", "values": ["null", "double"]}), ("s", "string")))
    sound = written(
        record(("i", "int"), ("m", {"type": "map", "values": ["null", "double"]}), ("s", "string")),
        i=1,
        m={"k": 1.0},
        s="x",
    )
    decoded = decode(decoder, junk, sound[:cut] + junk + sound[cut:], sound)
    assert sorted(decoded.kept.to_pylist() + decoded.dead.to_pylist()) == [0, 1, 2]
    assert decoded.rows.to_pylist()[-1] == {"i": 1, "m": [("k", 1.0)], "s": "x"}
    decoded.rows.validate(full=True)


# --- Frames ---------------------------------------------------------------------------------------------------------


def test_single_objects_name_their_schema_by_fingerprint() -> None:
    """Goal: the frame of Avro's specification. Method: the example fingerprint worked out independently (CRC-64-AVRO,
    bit by bit), and frames that are none."""
    schema = record(("id", "int"))
    canonical = '{"name":"air.Flight","type":"record","fields":[{"name":"id","type":"int"}]}'
    frame = b"\xc3\x01" + rabin(canonical.encode()).to_bytes(8, "little")
    decoder = made(schema, framing="single-object")
    decoded = decode(decoder, frame + b"\x02", b"\x02", b"\xc3\x01" + bytes(8) + b"\x02", frame)
    assert decoded.rows.to_pylist() == [{"id": 1}]
    assert decoded.reasons.to_pylist() == [
        "no Avro single object: it begins with C3 01 and 8 bytes of a fingerprint",
        "schema 0000000000000000 is not among those given; add its file to the folder",
        "field id: wants 1 bytes at byte 0, and 0 are left",
    ]


def rabin(data: bytes) -> int:
    """CRC-64-AVRO as the specification defines it."""
    empty = 0xC15D213AA4D7A795
    found = empty
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (empty if found & 1 else 0)
    return found


def folder_of(path: Path, **schemas: Any) -> Path:
    for name, schema in schemas.items():
        (path / f"{name.removeprefix('_')}.avsc").write_text(json.dumps(schema))
    return path


OLD = record(("id", "int"), ("carrier", "string"))
NEW = record(
    ("id", "long"),
    ("carrier", "string"),
    {"name": "gate", "type": ["null", "string"], "default": None},
    ("where", record(("lat", "double"), name="Where")),
)


def test_writers_are_resolved_to_the_reader(tmp_path: Path) -> None:
    """Goal: Avro's rules of resolution. Method: promotion, a default for what an older writer lacks, an alias for what
    it called otherwise, an unknown id, and a frame that is none."""
    reader = record(
        ("id", "long"),
        {"name": "airline", "aliases": ["carrier"], "type": "string"},
        {"name": "n", "type": "int", "default": 7},
    )
    folder = folder_of(tmp_path, _1=OLD, _2=record(("id", "long")), _3=record(("id", "string"), ("airline", "string")))
    decoder = made(reader, framing="confluent", schemas=str(folder))
    decoded = decode(
        decoder,
        confluent(1, written(OLD, id=5, carrier="UA")),
        confluent(2, written(record(("id", "long")), id=5)),
        confluent(3, written(record(("id", "string"), ("airline", "string")), id="x", airline="UA")),
        confluent(4, b""),
        b"\x01\0\0\0\x01",
    )
    assert decoded.rows.to_pylist() == [{"id": 5, "airline": "UA", "n": 7}]
    assert [reason.partition(":")[0] for reason in decoded.reasons.to_pylist()] == [
        "its writer's schema does not resolve",
        "its writer's schema does not resolve",
        "schema 4 is not among those given; add its file to the folder",
        "no framed Avro",
    ]


def test_logical_types_are_never_read_as_others(tmp_path: Path) -> None:
    """Goal: milliseconds are no microseconds. Method: writers whose numbers mean something else; the kin of plain
    numbers and of another scale too."""
    reader = record(
        ("at", logical("long", "timestamp-micros")), ("d", logical("bytes", "decimal", precision=9, scale=2))
    )
    other = record(
        ("at", logical("long", "timestamp-millis")), ("d", logical("bytes", "decimal", precision=9, scale=2))
    )
    scale = record(
        ("at", logical("long", "timestamp-micros")), ("d", logical("bytes", "decimal", precision=9, scale=3))
    )
    plain = record(("at", "long"), ("d", logical("bytes", "decimal", precision=9, scale=2)))
    folder = folder_of(tmp_path, _1=other, _2=scale, _3=plain, _4=reader)
    decoder = made(reader, framing="confluent", schemas=str(folder), evolution="add")
    datum = b"\x02\x02\x05"
    decoded = decode(decoder, *(confluent(number, datum) for number in (1, 2, 3, 4)))
    assert [reason.partition("fit: ")[2] for reason in decoded.reasons.to_pylist()] == [
        "field at: written as timestamp-millis, and read as timestamp-micros",
        "field d: written as decimal(9,3), and read as decimal(9,2)",
        "field at: written as long, and read as timestamp-micros",
    ]
    assert decoded.kept.to_pylist() == [3]


def test_a_newer_writer_adds_columns_and_a_restart_knows_them(tmp_path: Path) -> None:
    """Goal: evolution by the schemas of the folder, not by guessing. Method: old and new records in one batch, the
    table widened, decoded again; then a new decoder from the old definition under the table's schema."""
    folder = folder_of(tmp_path, _1=OLD, _2=NEW)
    old = confluent(1, written(OLD, id=1, carrier="UA"))
    new = confluent(2, written(NEW, id=2, carrier="AA", gate="C7", where={"lat": 1.5}))
    reader = record(("id", "long"), ("carrier", "string"))
    decoder = made(reader, framing="confluent", schemas=folder, evolution="add")
    found = decode(decoder, old, new).new_fields
    assert to_ddl(found) == "gate STRING, where STRUCT<lat: DOUBLE>"
    table = widen(decoder.schema, found)
    restarted = made(reader, framing="confluent", schemas=folder, evolution="add").under(table)
    for again in (decoder.under(table), pickle.loads(pickle.dumps(restarted))):
        decoded = decode(again, old, new)
        assert (len(decoded.new_fields), decoded.dead.to_pylist()) == (0, [])
        assert decoded.rows.to_pylist() == [
            {"id": 1, "carrier": "UA", "gate": None, "where": None},
            {"id": 2, "carrier": "AA", "gate": "C7", "where": {"lat": 1.5}},
        ]


def test_a_nested_field_of_a_newer_writer(tmp_path: Path) -> None:
    """Goal: structs grow too, in arrays as well, by two writers after each other. Method: three generations."""
    first, second, third = (
        record(("l", {"type": "array", "items": record(*fields, name="Leg")}))
        for fields in (
            [("a", "int")],
            [("a", "int"), ("b", "int")],
            [("a", "int"), ("b", "int"), ("c", ["null", "string"])],
        )
    )
    folder = folder_of(tmp_path, _1=first, _2=second, _3=third)
    decoder = made(first, framing="confluent", schemas=folder, evolution="add")
    values = [
        confluent(1, written(first, l=[{"a": 1}])),
        confluent(2, written(second, l=[{"a": 1, "b": 2}])),
        confluent(3, written(third, l=[{"a": 1, "b": 2, "c": "x"}])),
    ]
    wide = decoder.under(widen(decoder.schema, decode(decoder, *values).new_fields))
    assert to_ddl(wide.schema) == "l ARRAY<STRUCT<a: INT, b: INT, c: STRING>>"
    assert [row["l"][0] for row in decode(wide, *values).rows.to_pylist()] == [
        {"a": 1, "b": None, "c": None},
        {"a": 1, "b": 2, "c": None},
        {"a": 1, "b": 2, "c": "x"},
    ]


def test_a_newer_writer_is_quarantined_unless_told_to_add(tmp_path: Path) -> None:
    """Goal: resolution drops no field in silence. Method: the default setting; fields that no table can have; fields
    that the table has under another type."""
    folder = folder_of(tmp_path, _1=OLD, _2=NEW, _3=record(("id", "int"), ("carrier", "string"), ("_key", "int")))
    values = [
        confluent(2, written(NEW, id=2, carrier="AA", gate="C7", where={"lat": 1.5})),
        confluent(3, b"\x02\x04UA\x02"),
    ]
    reader = record(("id", "long"), ("carrier", "string"))
    quarantine = made(reader, framing="confluent", schemas=folder)
    assert decode(quarantine, *values).reasons.to_pylist()[0] == "unknown field gate"
    adding = made(reader, framing="confluent", schemas=folder, evolution="add")
    assert "have a column _key of their own" in decode(adding, *values).reasons[0].as_py()
    table = widen(adding.schema, pa.schema([("gate", pa.int64())]))
    reasons = decode(adding.under(table), *values).reasons.to_pylist()
    assert "field gate is BIGINT in the table and STRING in the schema given" in reasons[0]


# --- Definitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is no JSON"),
        ('"int"', "is not that of a record"),
        (record(), "record Flight has no fields"),
        (record(("a", "null")), "field a: there is no type 'null'"),
        (record(("a", ["int", "string"])), "field a: a union of int, string; only null and one type"),
        (record(("a", ["null", "int", "string"])), "field a: a union of null, int, string"),
        (record(("a", ["null"])), "field a: a union of null"),
        (record(("a", "Missing")), "field a: there is no type 'Missing'"),
        (record(("a", ["null", "Flight"])), "Flight contains itself"),
        (record(("a", {"type": "array", "items": "air.Flight"})), "air.Flight contains itself"),
        (record(("a", logical("int", "time-millis"))), "field a: a column cannot be of the logical type time-millis"),
        (record(("a", logical("long", "timestamp-nanos"))), "timestamp-nanos"),
        (record(("a", {"type": "fixed", "name": "F", "size": 0})), "a fixed has a size from 1"),
        (record(("a", logical("bytes", "decimal", precision=39))), "use 1 to 38 digits"),
        (record(("a", logical("bytes", "decimal"))), "a decimal has a precision and a scale"),
        (record(("a", {"type": "enum", "name": "E", "symbols": []})), "an enum has a list of symbols"),
        (record(("a", "int"), ("A", "int")), "fields a and A are one name to Spark"),
        (record(("_key", "int")), "have a column _key"),
        (record(*((f"c{number}", "int") for number in range(2001))), "more than 2000 fields"),
    ],
)
def test_a_schema_that_no_table_can_have_is_refused(schema: Any, words: str) -> None:
    """Goal: found at the definition. Method: each by itself."""
    with pytest.raises(BadSchema) as refused:
        make_decoder("avro", {"schema": schema if isinstance(schema, str) else json.dumps(schema)})
    assert words in refused.value.message
    assert "\n" not in refused.value.message


def test_types_that_refer_to_each_other_cannot_blow_up() -> None:
    """Goal: a small file makes no endless schema. Method: 12 records, each with four fields of the one before."""
    kind: Any = record(("x", "int"), name="R0")
    for number in range(1, 12):
        kind = record(("a", kind), *((name, f"air.R{number - 1}") for name in "bcd"), name=f"R{number}")
    with pytest.raises(BadSchema, match="more than 2000 fields"):
        made(kind)


def test_a_writer_that_no_column_can_hold_is_its_own_records_fault(tmp_path: Path) -> None:
    """Goal: one odd file in the folder stops nobody else. Method: a recursive schema beside a good one."""
    folder = folder_of(tmp_path, _1=OLD, _2=record(("id", ["null", "Flight"])))
    decoded = decode(made(OLD, framing="confluent", schemas=folder), confluent(2, b"\0"), confluent(1, b"\x02\x04UA"))
    assert decoded.kept.to_pylist() == [1]
    assert "contains itself" in decoded.reasons[0].as_py()


def test_settings_and_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Goal: each mistake has its sentence. Method: each by itself."""
    folder_of(tmp_path, name=OLD)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"framing": "kafka"}, BadOption, "'framing' is one of plain, single-object, confluent"),
        ({"framing": "confluent"}, BadSchema, "framing confluent needs `schemas`"),
        ({"framing": "confluent", "schemas": tmp_path / "no"}, BadSchema, "no such folder"),
        ({"framing": "confluent", "schemas": tmp_path}, BadSchema, "the file's name is its schema id, like 17.avsc"),
        ({"schemas": tmp_path}, BadSchema, "plain Avro records do not name their schema"),
        ({"schema_file": "x"}, BadOption, "one of the settings 'schema' and 'schema_file'"),
    ]
    for given_settings, kind, words in cases:
        with pytest.raises(kind, match=words):
            made(OLD, **given_settings)


def test_defaults_are_values_of_their_type(tmp_path: Path) -> None:
    """Goal: what an older writer lacks is filled rightly, for each record anew. Method: defaults with logical types in
    a record, twice; a default of another type and one of bytes are refused."""
    stamp = record(("at", logical("long", "timestamp-millis")), name="Stamp")
    reader = record(
        ("id", "int"),
        {"name": "r", "type": stamp, "default": {"at": 1000}},
        {"name": "a", "type": {"type": "array", "items": "int"}, "default": [1]},
        {"name": "m", "type": {"type": "map", "values": "int"}, "default": {"k": 1}},
        {"name": "d", "type": "double", "default": 1},
    )
    decoder = made(reader, framing="confluent", schemas=folder_of(tmp_path, _1=record(("id", "int"))))
    second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    rest = {"r": {"at": second}, "a": [1], "m": [("k", 1)], "d": 1.0}
    decoded = decode(decoder, confluent(1, b"\x02"), confluent(1, b"\x04"))
    assert decoded.rows.to_pylist() == [{"id": 1, **rest}, {"id": 2, **rest}]
    for kind, default in [
        ("int", "x"),
        ("int", True),
        (["null", "int"], 1),
        ("bytes", "x"),
        (stamp, {}),
        ("string", None),
    ]:
        with pytest.raises(BadSchema, match="field a: its default is no"):
            made(record({"name": "a", "type": kind, "default": default}))


def test_symbols_that_the_reader_lacks(tmp_path: Path) -> None:
    """Goal: an enum's new symbol is a dead letter, or the default that the reader asks for. Method: both readers."""
    writer = record(("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}))
    values = [confluent(1, b"\x00"), confluent(1, b"\x02")]
    folder = folder_of(tmp_path, _1=writer)
    reader = record(("e", {"type": "enum", "name": "E", "symbols": ["A"]}))
    decoded = decode(made(reader, framing="confluent", schemas=folder), *values)
    assert (decoded.rows.to_pylist(), decoded.dead.to_pylist()) == ([{"e": "A"}], [1])
    asks = record(("e", {"type": "enum", "name": "E", "symbols": ["A", "other"], "default": "other"}))
    assert decode(made(asks, framing="confluent", schemas=folder), *values).rows.to_pylist() == [
        {"e": "A"},
        {"e": "other"},
    ]
