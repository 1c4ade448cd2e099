"""JSON records, one fault at a time: what passes, what is refused, and in which words."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from mirrorlog.spark.decode.ddl import parse_ddl
from mirrorlog.spark.decode.decoded import REASON_MAX, Decoded
from mirrorlog.spark.decode.json.decoder import FAST_ROWS_MIN, JsonDecoder
from mirrorlog.spark.errors import BadSchema


def decode(ddl: str, *values: str | bytes | None, evolution: Any = "quarantine", tombstones: Any = "dead") -> Decoded:
    made = JsonDecoder(parse_ddl(ddl), evolution=evolution, tombstones=tombstones)
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    return made.decode(pa.array(raw, pa.binary()))


def reason(ddl: str, value: str | bytes, **settings: Any) -> str:
    decoded = decode(ddl, value, **settings)
    assert (decoded.kept.to_pylist(), decoded.dead.to_pylist()) == ([], [0])
    assert decoded.rows.num_rows == 0
    return decoded.reasons[0].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "-0", -0.0),
        ("DOUBLE", "1e-400", 0.0),
        ("FLOAT", "0.1", 0.10000000149011612),
        # Rounded once it would be 1.0000001192092896; both ways round through the double.
        ("FLOAT", "1.00000017881393432617187499", 1.000000238418579),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "-0", 0),
        ("TINYINT", "127", 127),
        ("STRING", '"\\ud83d\\ude00\\u0000"', "😀\0"),
        ("BINARY", '"/w=="', b"\xff"),
        ("DATE", '"2013-01-31"', date(2013, 1, 31)),
        ("TIMESTAMP", '"2013-01-31T05:15:00+02:00"', datetime(2013, 1, 31, 3, 15, tzinfo=UTC)),
        ("TIMESTAMP", '"2013-01-31T05:15:00-0030"', datetime(2013, 1, 31, 5, 45, tzinfo=UTC)),
        ("TIMESTAMP", '"2013-01-31 05:15+02"', datetime(2013, 1, 31, 3, 15, tzinfo=UTC)),
        ("TIMESTAMP", '"2013-01-31T05:15:00"', datetime(2013, 1, 31, 5, 15, tzinfo=UTC)),
        ("TIMESTAMP", '"2013-01-31T05:15:00.25Z"', datetime(2013, 1, 31, 5, 15, 0, 250_000, tzinfo=UTC)),
        ("TIMESTAMP", '"2013-01-31T05:15:00.123456000Z"', datetime(2013, 1, 31, 5, 15, 0, 123_456, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", '"2013-01-31T05:15:00"', datetime(2013, 1, 31, 5, 15)),
        ("DECIMAL(5,2)", "1", Decimal("1.00")),
        ("DECIMAL(5,2)", "123.450", Decimal("123.45")),
        ("DECIMAL(5,2)", '"-1.5e1"', Decimal("-15.00")),
        (
            "DECIMAL(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("MAP<STRING, BIGINT>", '{"a": 1, "": null}', [("a", 1), ("", None)]),
        ("ARRAY<STRUCT<x: INT>>", '[null, {}, {"x": 1}]', [None, {"x": None}, {"x": 1}]),
    ],
)
def test_a_value_of_the_type_is_taken_as_it_is(kind: str, text: str, value: Any) -> None:
    """Goal: exact values. Method: one per form that is allowed, in the fast way, and with a map beside it in the strict
    one; repr tells -0.0 from 0.0."""
    wanted = repr(value).replace("datetime.timezone.utc", "zoneinfo.ZoneInfo(key='UTC')")
    for beside in ("", ", m MAP<STRING, INT>"):
        decoded = decode(f"v {kind}{beside}", f'{{"v": {text}}}')
        assert [repr(row["v"]) for row in decoded.rows.to_pylist()] == [wanted], decoded.reasons


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("BIGINT", "1.0", "field v: wanted long, found number 1.0"),
        ("BIGINT", "9223372036854775808", "field v: 9223372036854775808 is beyond long"),
        ("BIGINT", '"1"', "field v: wanted long, found string"),
        ("BIGINT", "true", "field v: wanted long, found boolean"),
        ("INT", "2147483648", "field v: 2147483648 is beyond integer"),
        ("TINYINT", "-129", "field v: -129 is beyond byte"),
        ("DOUBLE", "1e309", "field v: 1e309 is beyond double"),
        ("DOUBLE", "1" + "0" * 400, "is beyond double"),
        ("DOUBLE", '"NaN"', "field v: wanted double, found string"),
        ("DOUBLE", "NaN", "no JSON: NaN is no number"),
        ("FLOAT", "3.5e38", "field v: 3.5e38 is beyond float"),
        ("BOOLEAN", "1", "field v: wanted boolean, found number 1"),
        ("BOOLEAN", '"true"', "field v: wanted boolean, found string"),
        ("STRING", "1", "field v: wanted string, found number 1"),
        ("STRING", '"\\ud800"', "field v: wanted string, found half of a surrogate pair"),
        ("STRING", '"a\tb"', "no JSON: Invalid control character"),
        ("BINARY", '"/w="', "field v: wanted binary as base64, found '/w='"),
        ("BINARY", '"/w==\\n"', "field v: wanted binary as base64"),
        ("BINARY", '"ÿ"', "field v: wanted binary as base64"),
        ("DATE", '"2013-02-30"', "field v: wanted date like 2013-01-31, found '2013-02-30'"),
        ("DATE", '"20130131"', "field v: wanted date"),
        ("DATE", "15736", "field v: wanted date as a string, found number 15736"),
        ("TIMESTAMP", "1359609300", "field v: wanted timestamp as a string, found number"),
        ("TIMESTAMP", '"2013-01-31"', "field v: wanted timestamp like"),
        ("TIMESTAMP", '"2013-01-31T05Z"', "field v: wanted timestamp like"),
        ("STRING", b'"\xff"', "no UTF-8 at byte 7"),
        ("STRING", b'"\xed\xa0\x80"', "no UTF-8 at byte 7"),
        ("TIMESTAMP", '"2013-W05-4T05:15:00Z"', "field v: wanted timestamp like"),
        ("TIMESTAMP", '"2013-01-31T24:00:00Z"', "field v: there is no time"),
        ("TIMESTAMP", '"2013-01-31T05:15:60Z"', "field v: there is no time"),
        ("TIMESTAMP", '"2013-01-31T05:15:00.1234567Z"', "is finer than a microsecond"),
        ("TIMESTAMP", '"0001-01-01T00:00:00+01:00"', "is beyond the years 1 to 9999"),
        ("TIMESTAMP", '"٢٠١٣-01-31T05:15:00Z"', "field v: wanted timestamp like"),
        ("TIMESTAMP_NTZ", '"2013-01-31T05:15:00Z"', "found '2013-01-31T05:15:00Z' with an offset"),
        ("DECIMAL(5,2)", "1.005", "field v: 1.005 has more than the 2 places of decimal(5,2)"),
        ("DECIMAL(5,2)", "1000", "field v: 1000 is beyond decimal(5,2)"),
        ("DECIMAL(5,2)", "1e999999", "field v: 1E+999999 is beyond decimal(5,2)"),
        ("DECIMAL(5,2)", "1e-999999", "has more than the 2 places"),
        ("DECIMAL(5,2)", '" 1"', "field v: wanted decimal(5,2), found ' 1'"),
        ("DECIMAL(5,2)", '"NaN"', "field v: wanted decimal(5,2), found 'NaN'"),
        ("DECIMAL(5,2)", '"1_0"', "field v: wanted decimal(5,2)"),
        ("DECIMAL(5,2)", '"' + "0" * 2000 + '"', "field v: wanted decimal(5,2)"),
        ("ARRAY<INT>", "1", "field v: wanted array, found number 1"),
        ("ARRAY<INT>", '[1, "x"]', "field v[1]: wanted integer, found string"),
        ("MAP<STRING, INT>", "[]", "field v: wanted map, found array"),
        ("MAP<STRING, INT>", '{"a": {}}', "field v.a: wanted integer, found object"),
        ("MAP<STRING, INT>", '{"a": 1, "a": 2}', "field v: the key 'a' twice in one object"),
        ("MAP<STRING, INT>", '{"\\ud800": 1}', "found half of a surrogate pair"),
        ("STRUCT<x: INT>", "[]", "field v: wanted struct, found array"),
        ("STRUCT<x: STRUCT<y: INT>>", '{"x": {"y": ""}}', "field v.x.y: wanted integer, found string"),
        ("STRUCT<x: INT>", '{"x": 1, "x": null}', "field v: the key 'x' twice in one object"),
        ("STRUCT<x: INT>", '{"y": null}', "unknown field v.y"),
        ("STRUCT<x: INT NOT NULL>", "{}", "field v.x: is NOT NULL, and missing"),
        ("ARRAY<STRUCT<x: INT NOT NULL>>", '[{"x": null}]', "field v[0].x: is NOT NULL, and null"),
        ("BIGINT NOT NULL", "null", "field v: is NOT NULL, and null"),
        ("BIGINT", '1, "w": 2', "unknown field w"),
        ("BIGINT", '1, "V": 2', "unknown field V"),
        ("BIGINT", "1" * 5000, "a number of thousands of digits"),
    ],
)
def test_a_value_of_another_type_is_a_dead_letter_that_says_so(kind: str, text: str | bytes, words: str) -> None:
    """Goal: never null, never another value. Method: one per fault; the path, what was wanted and what was found."""
    raw = text if isinstance(text, bytes) else text.encode()
    for beside in ("", ", m MAP<STRING, INT>"):
        assert words in reason(f"v {kind}{beside}", b'{"v": ' + raw + b"}")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "no JSON: empty"),
        (b"null", "wanted an object, found null"),
        (b"[]", "wanted an object, found array"),
        (b"1", "wanted an object, found number 1"),
        (b'{"v": 1', "no JSON: Expecting ',' delimiter at character 8"),
        (b'x"v": 1}', "no JSON: Expecting value at character 1"),
        (b' {"v": 1} x', "no JSON: Extra data at character 11"),
        (b'{"v": 1} x', "no JSON: Extra data at character 10"),
        (b'{"v": 1} {"v": 2}', "no JSON: Extra data"),
        (b'{"v": 1} null', "no JSON: Extra data"),
        (b'{"v": 1} {"~":true, "v": 2}', "no JSON: Extra data"),
        (b'{"v": 1, "v": 1}', "the key 'v' twice in one object"),
        (b'\xef\xbb\xbf{"v": 1}', "no JSON: a byte order mark"),
        (b'{"v": "\xff"}', "no UTF-8 at byte 7"),
        ('{"v": 1}'.encode("utf-16"), "no UTF-8 at byte 0"),
        (b'{"v": 1}\0', "no JSON: Extra data"),
        (b'{"v":' * 1000 + b"1" + b"}" * 1000, "nested deeper than 64"),
        (b"[" * 100_000, "nested deeper than 64"),
        (b'{"' + b"n" * 2000 + b'": 1}', "unknown field nnnn"),
        (b'{"a\\nb": 1}', "unknown field a\N{REPLACEMENT CHARACTER}b"),
        (b'{"\\ud800": 1}', "unknown field \\ud800"),
    ],
)
def test_bytes_that_are_no_record_are_dead_letters(value: bytes, words: str) -> None:
    """Goal: garbage ends nowhere but among the dead letters, in one line. Method: each kind of it."""
    said = reason("v BIGINT", value)
    assert words in said
    assert len(said) <= REASON_MAX
    assert said.isprintable()


def test_many_brackets_inside_of_strings_are_no_nesting() -> None:
    """Goal: the limit counts what is nested. Method: a string of brackets, after an escaped quote."""
    text = '"' + "[{" * 500
    assert decode("v STRING, d DECIMAL(3,0)", json.dumps({"v": text})).rows.to_pylist() == [{"v": text, "d": None}]


def test_a_hostile_string_costs_no_more_than_its_length() -> None:
    """Goal: no record holds a task up. Method: a megabyte of escaped quotes in a string without end, behind enough
    brackets that nesting is counted; with a square of it the test would not end."""
    assert reason("v STRING", b'{"v": "' + b'\\"' * 500_000 + b"[" * 100).startswith("no JSON")


def test_records_do_not_lend_each_other_their_ends() -> None:
    """Goal: one record, one row. Method: neighbours that joined by a line break would be JSON, and as many rows as
    values; the good ones among them are kept at their places."""
    values = [
        '{"v": 1}',
        '{"v": 2',
        '{"v": 3}}',
        '{"v": 4} {"~":true,"v": 5}',
        '{"v": "',
        '"}',
        '{"v": {"~":true}}',
        '{"v": 6}',
    ]
    decoded = decode("v BIGINT", *values)
    assert decoded.kept.to_pylist() == [0, 7]
    assert decoded.rows.to_pylist() == [{"v": 1}, {"v": 6}]
    assert decoded.dead.to_pylist() == [1, 2, 3, 4, 5, 6]


def test_a_column_called_like_the_mark_is_a_column() -> None:
    """Goal: no name is special. Method: a schema that has the mark of the fast way, and values that forge it."""
    assert decode("`~` BIGINT, `~~` BOOLEAN", '{"~": 1, "~~": true}').rows.to_pylist() == [{"~": 1, "~~": True}]
    assert "unknown field ~" in reason("v BIGINT", '{"~": true, "v": 1}')


def test_bad_records_among_many_are_found_by_halves() -> None:
    """Goal: few bad ones do not slow or spoil the others. Method: 3,000 records with faults and tombstones."""
    count = 3000
    values: list[str | None] = [json.dumps({"v": number}) for number in range(count)]
    values[5], values[FAST_ROWS_MIN], values[count - 1], values[17], values[1700] = '{"v": ""}', "x", "{", None, None
    decoded = decode("v BIGINT", *values)
    bad = [5, 17, FAST_ROWS_MIN, 1700, count - 1]
    assert decoded.dead.to_pylist() == bad
    assert decoded.kept.to_pylist() == [number for number in range(count) if number not in bad]
    assert decoded.rows.column("v").to_pylist() == decoded.kept.to_pylist()
    assert decoded.reasons.to_pylist()[:2] == ["field v: wanted long, found string", "no value"]


def test_tombstones_are_dead_letters_or_told_apart() -> None:
    """Goal: both modes of the landing. Method: the same values under both settings; empty is no tombstone."""
    dead = decode("v BIGINT", None, '{"v": 1}', "", None)
    assert (dead.kept.to_pylist(), dead.dead.to_pylist(), dead.tombstones.to_pylist()) == ([1], [0, 2, 3], [])
    assert dead.reasons.to_pylist() == ["no value", "no JSON: empty", "no value"]
    apart = decode("v BIGINT", None, '{"v": 1}', "", None, tombstones="pass")
    assert (apart.kept.to_pylist(), apart.dead.to_pylist(), apart.tombstones.to_pylist()) == ([1], [2], [0, 3])


def test_nothing_and_slices_are_decoded() -> None:
    """Goal: positions are those of the array given. Method: no values, only tombstones, and a slice of an array."""
    made = JsonDecoder(parse_ddl("v BIGINT"), evolution="add", tombstones="dead")
    for empty in (pa.array([], pa.binary()), pa.array([None], pa.binary())):
        assert made.decode(empty).rows.schema == made.schema
    array = pa.array([b"x", b'{"v": 1}', None, b'{"v": 2}'], pa.binary()).slice(1)
    decoded = made.decode(array)
    assert (decoded.kept.to_pylist(), decoded.dead.to_pylist()) == ([0, 2], [1])
    assert decoded.rows.to_pylist() == [{"v": 1}, {"v": 2}]
    for kind in (pa.large_binary(), pa.binary_view()):
        assert made.decode(array.cast(kind)) == decoded


def test_a_decoder_travels_and_its_version_tells_schemas_apart() -> None:
    """Goal: tasks decode as the driver would. Method: pickle; versions of the same and of other definitions."""
    made = JsonDecoder(parse_ddl("v BIGINT, d DATE"), evolution="add", tombstones="pass")
    again = pickle.loads(pickle.dumps(made))
    assert (again.schema, again.version) == (made.schema, made.version)
    value = pa.array([b'{"v": 1, "n": 2}', None], pa.binary())
    assert again.decode(value) == made.decode(value)
    assert again.decode(value).tombstones.to_pylist() == [1]
    versions = {
        JsonDecoder(parse_ddl(ddl), evolution=evolution, tombstones="dead").version  # type: ignore[arg-type]
        for ddl in ("v BIGINT", "v INT", "v BIGINT NOT NULL")
        for evolution in ("add", "quarantine")
    }
    assert len(versions) == 6


def test_a_map_with_other_keys_than_strings_is_refused_at_the_definition() -> None:
    """Goal: no surprise in tasks. Method: a map that JSON cannot have."""
    with pytest.raises(BadSchema, match="their keys are STRING, not long"):
        JsonDecoder(parse_ddl("m MAP<BIGINT, INT>"), evolution="add", tombstones="dead")


def test_base64_comes_back_as_its_bytes() -> None:
    """Goal: binary is exact. Method: every byte."""
    whole = bytes(range(256))
    value = json.dumps({"v": base64.b64encode(whole).decode()})
    assert decode("v BINARY", value).rows.to_pylist() == [{"v": whole}]
