"""Decoders from a landing's settings: each mode, each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mirrorlog.spark.decode import make_decoder, to_ddl, to_delta_json
from mirrorlog.spark.decode.ddl import parse_ddl
from mirrorlog.spark.errors import BadOption, BadSchema

DDL = "id BIGINT, tags ARRAY<STRING>"


def test_a_schema_is_given_in_any_of_its_forms(tmp_path: Path) -> None:
    """Goal: DDL, Spark's JSON, Arrow, text or file are one definition. Method: all of them; equal versions."""
    schema = parse_ddl(DDL)
    (tmp_path / "s.ddl").write_text(DDL)
    (tmp_path / "s.json").write_text("\n " + to_delta_json(schema))
    arrow = pa.schema([("id", pa.int64()), ("tags", pa.large_list(pa.large_string()))])
    forms: list[dict[str, Any]] = [
        *({"schema": form} for form in (DDL, to_delta_json(schema), arrow)),
        *({"schema_file": str(tmp_path / name)} for name in ("s.ddl", "s.json")),
    ]
    decoders = [make_decoder("json", form) for form in forms]
    assert {to_ddl(decoder.schema) for decoder in decoders} == {to_ddl(schema)}
    assert len({decoder.version for decoder in decoders}) == 1


def test_unknown_fields_and_tombstones_are_quarantined_by_default() -> None:
    """Goal: the careful setting is the one that nobody has to name. Method: only a schema; None counts as not given."""
    decoded = make_decoder("json", {"schema": DDL, "evolution": None}).decode(pa.array([b'{"x": 1}', None]))
    assert decoded.reasons.to_pylist() == ["unknown field x", "no value"]
    assert not len(decoded.tombstones)


@pytest.mark.parametrize(
    ("mode", "settings", "kind", "words"),
    [
        ("raw", {}, BadOption, "mode 'raw' is none that decodes; there are json, avro, protobuf"),
        ("json", {}, BadOption, "one of the settings 'schema' and 'schema_file'"),
        ("json", {"schema": DDL, "schema_file": "x"}, BadOption, "one of the settings"),
        ("json", {"schema": parse_ddl(DDL), "schema_file": "x"}, BadOption, "mean the same"),
        ("json", {"schema": ""}, BadOption, "'schema' is a text, not ''"),
        ("json", {"schema": 5}, BadOption, "'schema' is a text, not 5"),
        ("json", {"schema": DDL, "message": "m"}, BadOption, "'message' is not known in mode json"),
        (
            "json",
            {"schema": DDL, "evolution": "merge"},
            BadOption,
            "'evolution' is one of quarantine, add, not 'merge'",
        ),
        ("json", {"schema": DDL, "evolution": ["add"]}, BadOption, "'evolution' is one of"),
        ("json", {"schema": DDL, "tombstones": "skip"}, BadOption, "'tombstones' is one of dead, pass"),
        ("json", {"schema_file": "/nowhere/s"}, BadSchema, "/nowhere/s: No such file"),
        ("json", {"schema_file": "/"}, BadSchema, "/: Is a directory"),
        ("avro", {"schema": "id BIGINT"}, BadSchema, "the Avro schema is no JSON"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(
    mode: str, settings: dict[str, Any], kind: type[Exception], words: str
) -> None:
    """Goal: nothing is guessed or ignored. Method: each wrong thing by itself."""
    with pytest.raises(kind, match=words):
        make_decoder(mode, settings)


def test_a_schema_file_is_bounded_and_text(tmp_path: Path) -> None:
    """Goal: a wrong path costs nothing. Method: a large file, and one of other bytes."""
    (tmp_path / "large").write_bytes(b" " * (1024 * 1024 + 1))
    (tmp_path / "other").write_bytes(b"id \xff")
    for name, words in {"large": "more than 1048576 bytes", "other": "no UTF-8 at byte 3"}.items():
        with pytest.raises(BadSchema, match=words):
            make_decoder("json", {"schema_file": tmp_path / name})
