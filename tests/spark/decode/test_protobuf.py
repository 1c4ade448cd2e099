"""Protobuf records by a descriptor file: types, presence, what is unknown, what is broken."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc_tools
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirrorlog.spark.decode import Decoder, make_decoder, to_ddl, widen
from mirrorlog.spark.decode.protobuf.schema import message_class
from mirrorlog.spark.errors import BadOption, BadSchema

FLIGHT = """
syntax = "proto3"; package air;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Kind { UNKNOWN = 0; JET = 1; PROP = -2; }
message Where { double lat = 1; optional int32 alt = 2; Kind kind = 3; }
message Flight {
  int64 id = 1; sint32 small = 2; uint32 u32 = 3; fixed64 u64 = 4; float f = 5; bool ok = 6; string s = 7; bytes b = 8;
  optional string maybe = 9; Kind kind = 10; repeated Kind kinds = 11; Where where = 12; repeated Where stops = 13;
  map<string, Where> by_name = 14; map<int32, Kind> by_number = 15;
  oneof one { string left = 16; Where right = 17; }
  google.protobuf.Timestamp at = 18; google.protobuf.Duration took = 19;
  google.protobuf.Int32Value w = 20; google.protobuf.StringValue ws = 21; repeated google.protobuf.Timestamp ats = 22;
}
message Wider { int64 id = 1; string gate = 2; }
message Narrow { int64 id = 1; }
"""
OLD = """
syntax = "proto2"; package old;
enum Kind { A = 1; }
message Record {
  required int64 id = 1; optional string s = 2; optional Kind kind = 3; optional int32 n = 4 [default = 7];
  extensions 100 to 200;
}
extend Record { optional int32 extra = 100; }
message Tree { repeated Tree children = 1; optional int32 n = 2; }
message Empty {}
message HasEmpty { optional Empty e = 1; }
message Case { optional int32 a = 1; optional int32 A = 2; }
message Reserved { optional int32 _offset = 1; }
"""

Make = Callable[..., Decoder]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flight.desc and old.desc, and alone.desc, which lacks what it imports."""
    folder = tmp_path_factory.mktemp("descriptors")
    known = Path(grpc_tools.__file__).parent / "_proto"
    for name, text in {"flight": FLIGHT, "old": OLD}.items():
        (folder / f"{name}.proto").write_text(text)
        for out, options in ((name, ["--include_imports"]), ("alone", [])):
            arguments = ["protoc", f"-I{folder}", f"-I{known}", *options]
            assert protoc.main([*arguments, f"--descriptor_set_out={folder / out}.desc", f"{name}.proto"]) == 0
        if name == "flight":
            (folder / "alone.desc").rename(folder / "lonely.desc")
    return folder


def made(compiled: Path, message: str, **settings: Any) -> Decoder:
    file = compiled / ("flight.desc" if message.startswith("air.") else "old.desc")
    return make_decoder("protobuf", {"schema_file": str(file), "message": message, **settings})


def classes(compiled: Path, message: str) -> Any:
    """To write messages with, from a pool of their own."""
    return message_class(
        (compiled / ("flight.desc" if message.startswith("air.") else "old.desc")).read_bytes(), message
    )


def decode(decoder: Decoder, *values: bytes | None) -> Any:
    return decoder.decode(pa.array(values, pa.binary()))


def test_every_type_has_its_column_and_its_value(compiled: Path) -> None:
    """Goal: Protobuf's types mean Spark's. Method: one field of each, set, by a decoder that has travelled."""
    decoder = pickle.loads(pickle.dumps(made(compiled, "air.Flight")))
    where = "STRUCT<lat: DOUBLE, alt: INT, kind: STRING>"
    assert to_ddl(decoder.schema) == (
        "id BIGINT, small INT, u32 BIGINT, u64 DECIMAL(20,0), f FLOAT, ok BOOLEAN, s STRING, b BINARY, maybe STRING, "
        f"kind STRING, kinds ARRAY<STRING>, where {where}, stops ARRAY<{where}>, by_name MAP<STRING, {where}>, "
        f"by_number MAP<INT, STRING>, left STRING, right {where}, at TIMESTAMP, "
        "took STRUCT<seconds: BIGINT, nanos: INT>, w INT, ws STRING, ats ARRAY<TIMESTAMP>"
    )
    flight = classes(compiled, "air.Flight")(
        **{"id": -1, "small": -5, "u32": 2**32 - 1, "u64": 2**64 - 1, "f": 0.5, "ok": True, "s": "é\0", "b": b"\xff"},
        **{"maybe": "", "kind": 1, "kinds": [0, -2], "where": {"lat": 1.5, "alt": 0}, "stops": [{}, {"kind": 1}]},
        **{"by_name": {"b": {"lat": 2}, "a": {}}, "by_number": {3: 1}, "right": {}},
        **{"took": {"seconds": 3, "nanos": 5}, "w": {"value": 0}, "ws": {"value": "x"}},
    )
    flight.at.FromMicroseconds(1)
    flight.ats.add().FromMicroseconds(-1)
    none = {"lat": 0.0, "alt": None, "kind": "UNKNOWN"}
    decoded = decode(decoder, flight.SerializeToString())
    assert decoded.reasons.to_pylist() == []
    assert decoded.rows.to_pylist() == [
        {
            **{"id": -1, "small": -5, "u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "f": 0.5, "ok": True, "s": "é\0"},
            **{"b": b"\xff", "maybe": "", "kind": "JET", "kinds": ["UNKNOWN", "PROP"]},
            **{"where": {"lat": 1.5, "alt": 0, "kind": "UNKNOWN"}, "stops": [none, {**none, "kind": "JET"}]},
            **{"by_name": [("a", none), ("b", {**none, "lat": 2.0})], "by_number": [(3, "JET")]},
            **{"left": None, "right": none, "at": datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)},
            **{"took": {"seconds": 3, "nanos": 5}, "w": 0, "ws": "x"},
            "ats": [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)],
        }
    ]


def test_absent_is_null_where_a_message_can_tell(compiled: Path) -> None:
    """Goal: presence is honoured. Method: the empty message: null for optional, oneof, messages and wrappers, the zero
    for the rest; in proto2 null for all, whatever default the schema names."""
    row = decode(made(compiled, "air.Flight"), b"").rows.to_pylist()[0]
    nulls = {name for name, value in row.items() if value is None}
    assert nulls == {"maybe", "where", "left", "right", "at", "took", "w", "ws"}
    assert (row["id"], row["s"], row["kind"], row["stops"], row["by_name"]) == (0, "", "UNKNOWN", [], [])
    old = decode(made(compiled, "old.Record"), b"\x08\x05").rows.to_pylist()
    assert old == [{"id": 5, "s": None, "kind": None, "n": None}]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff", "no air.Flight: "),
        (b"\x08", "no air.Flight: "),
        (b"\x3a\x01\xff", "no air.Flight: "),
        (b"\x50\x07", "field kind: enum air.Kind has no number 7"),
        (b"\x5a\x02\x00\x07", "field kinds[1]: enum air.Kind has no number 7"),
        (b"\x98\x06\x01", "unknown field number 99"),
        (b"\x62\x03\x98\x06\x01", "field where: unknown field number 99"),
        (b"\x6a\x00\x6a\x03\x98\x06\x01", "field stops[1]: unknown field number 99"),
        (b"\x72\x08\x0a\x01k\x12\x03\x98\x06\x01", "field by_name.k: unknown field number 99"),
        (b"\x92\x01\x03\x98\x06\x01", "field at: unknown field number 99"),
        (b"\xa2\x01\x03\x98\x06\x01", "field w: unknown field number 99"),
        (b"\x92\x01\x02\x10\x01", "field at: 1 nanoseconds are finer than a microsecond"),
        (b"\x92\x01\x06\x10\x80\xa8\xd6\xb9\x07", "nanoseconds are not within a second"),
        (b"\x92\x01\x07\x08\x80\x80\x80\x80\x80\x40", "field at: 2199023255552 s is beyond the years"),
        (b"\x0a\x01x", "unknown field number 1"),
    ],
)
def test_what_is_no_such_message_is_a_dead_letter(compiled: Path, value: bytes, words: str) -> None:
    """Goal: the number of what is unknown, the path of what is wrong. Method: bytes by hand, one fault each; the last
    has a known number under another wire type."""
    decoded = decode(made(compiled, "air.Flight"), b"", value, None)
    assert (decoded.kept.to_pylist(), decoded.dead.to_pylist()) == ([0], [1, 2])
    assert words in decoded.reasons[0].as_py()
    assert decoded.reasons[1].as_py() == "no value"


def test_proto2_keeps_its_rules(compiled: Path) -> None:
    """Goal: required, closed enums, extensions, strings of any bytes. Method: a fault of each."""
    decoded = decode(
        made(compiled, "old.Record"),
        b"",
        b"\x08\x01\x18\x05",
        b"\x08\x01\xa0\x06\x01",
        b"\x08\x01\x12\x01\xff",
        b"\x08\x01",
    )
    reasons = decoded.reasons.to_pylist()
    assert decoded.kept.to_pylist() == [4]
    assert reasons[0] == "field id: is required, and missing"
    assert reasons[1:3] == ["unknown field number 3", "unknown field number 100"]
    assert reasons[3] == "field s: no UTF-8: b'\\xff'"


def test_a_newer_producer_is_quarantined_until_the_definition_knows(compiled: Path) -> None:
    """Goal: a number has no name, so there is no column to add, whatever the setting. Method: a field more; then the
    wider message under a table of the narrow one, and the narrow one under the wider table."""
    wider = classes(compiled, "air.Wider")(id=1, gate="C7").SerializeToString()
    narrow = made(compiled, "air.Narrow", evolution="add")
    decoded = decode(narrow, wider)
    assert (decoded.reasons.to_pylist(), len(decoded.new_fields)) == (["unknown field number 2"], 0)
    newer = made(compiled, "air.Wider")
    table = widen(narrow.schema, newer.schema)
    assert decode(newer.under(table), wider).rows.to_pylist() == [{"id": 1, "gate": "C7"}]
    assert decode(narrow.under(table), b"\x08\x05").rows.to_pylist() == [{"id": 5, "gate": None}]


def test_two_messages_of_one_name_do_not_meet(compiled: Path) -> None:
    """Goal: two landings in one process. Method: the same file and name, and another file with that name."""
    other = descriptor_pb2.FileDescriptorSet()
    file = other.file.add(name="flight.proto", package="air")
    file.message_type.add(name="Flight").field.add(name="x", number=1, type=9, label=1)
    (compiled / "other.desc").write_bytes(other.SerializeToString())
    theirs = make_decoder("protobuf", {"schema_file": compiled / "other.desc", "message": "air.Flight"})
    ours = made(compiled, "air.Flight")
    assert theirs.schema.names == ["x"]
    assert decode(theirs, b"\x0a\x01y").rows.to_pylist() == [{"x": "y"}]
    assert ours.version != theirs.version
    assert decode(ours, b"\x08\x05").rows.column("id").to_pylist() == [5]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("old.Nothing", "have no message 'old.Nothing'"),
        ("old.Tree", "message old.Tree contains itself"),
        ("old.HasEmpty", "message old.Empty has no fields"),
        ("old.Case", "fields a and A are one name to Spark"),
        ("old.Reserved", "have a column _offset"),
    ],
)
def test_a_message_that_no_table_can_have_is_refused(compiled: Path, message: str, words: str) -> None:
    """Goal: found at the definition. Method: each by itself."""
    with pytest.raises(BadSchema, match=words):
        made(compiled, message)


def test_files_that_are_no_descriptors_are_refused(compiled: Path, tmp_path: Path) -> None:
    """Goal: the sentence says what protoc needs. Method: no file, no descriptors, none at all, imports left out."""
    (tmp_path / "junk").write_bytes(b"\xff\xff")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(bytes(1024 * 1024 + 1))
    cases = {
        tmp_path / "missing": "missing: No such file",
        tmp_path / "junk": "protoc writes one with --descriptor_set_out",
        tmp_path / "empty": "the file of descriptors is empty",
        tmp_path / "large": "more than 1048576 bytes",
        compiled / "lonely.desc": "write it with --include_imports",
    }
    for file, words in cases.items():
        with pytest.raises(BadSchema, match=words):
            make_decoder("protobuf", {"schema_file": file, "message": "air.Flight"})
    with pytest.raises(BadOption, match="'message' is missing"):
        make_decoder("protobuf", {"schema_file": compiled / "old.desc"})
    with pytest.raises(BadOption, match="'schema' is not known in mode protobuf"):
        make_decoder("protobuf", {"schema": "x", "schema_file": "y", "message": "z"})


@settings(max_examples=80, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=30))
def test_any_bytes_end_as_a_row_or_as_a_dead_letter(compiled: Path, junk: bytes) -> None:
    """Goal: no input stops a landing. Method: random bytes beside a sound record."""
    decoded = decode(made(compiled, "air.Flight"), junk, b"\x08\x05")
    assert sorted(decoded.kept.to_pylist() + decoded.dead.to_pylist()) == [0, 1]
    assert decoded.rows.to_pylist()[-1]["id"] == 5
    decoded.rows.validate(full=True)
