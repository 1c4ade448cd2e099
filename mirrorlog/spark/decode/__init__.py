"""Landed records by schema: the bytes of `value` become columns, or a dead letter that says what is wrong and where.

Three formats, one contract (`decoded.Decoder`): JSON, Avro and Protobuf. Arrow in, Arrow out: no Spark and no network,
so a decoder travels to tasks and is tried without a JVM. What it promises: no value becomes null, or another value,
unseen; every record is either a row, a dead letter, or a tombstone; the same bytes under the same schema always end
the same way, whatever stands beside them in the batch.

`make_decoder` takes a landing's settings:

    mode         json, avro, protobuf
    schema       json: Spark DDL, Spark's JSON schema, or a pyarrow schema; avro: the text of an .avsc
    schema_file  the same from a file; protobuf: a FileDescriptorSet
    evolution    quarantine (default): a field that the schema lacks makes a dead letter; add: it becomes a column
    tombstones   dead (default): a record without value is a dead letter; pass: it is reported apart, for upserts
    framing      avro: plain (default), single-object, confluent
    schemas      avro: a folder with the writers' schemas, *.avsc
    message      protobuf: the message's full name

Files are read there, once; what a decoder is made from travels inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

import pyarrow as pa

from mirrorlog.spark.decode.avro.writers import FRAMINGS, Framing, schema_bytes, writers
from mirrorlog.spark.decode.columns import check_schema
from mirrorlog.spark.decode.ddl import TEXT_MAX, parse_ddl
from mirrorlog.spark.decode.decoded import Decoded, Decoder, Evolution, Tombstones
from mirrorlog.spark.decode.json.decoder import JsonDecoder
from mirrorlog.spark.decode.types import canonical, from_delta_json, to_ddl, to_delta_json
from mirrorlog.spark.decode.widening import widen
from mirrorlog.spark.errors import BadOption, BadSchema

__all__ = ["Decoded", "Decoder", "make_decoder", "to_ddl", "to_delta_json", "widen"]

Mode = Literal["json", "avro", "protobuf"]

_COMMON: Final = ("schema", "schema_file", "evolution", "tombstones")
_OF_MODE: Final[Mapping[str, tuple[str, ...]]] = {
    "json": _COMMON,
    "avro": (*_COMMON, "framing", "schemas"),
    "protobuf": ("schema_file", "message", "evolution", "tombstones"),
}


def make_decoder(mode: str, settings: Mapping[str, Any]) -> Decoder:
    """Raises BadOption for a setting that is unknown, missing or malformed, BadSchema for a schema that is."""
    if mode not in _OF_MODE:
        raise BadOption(f"mode {mode!r} is none that decodes; there are {', '.join(_OF_MODE)}")
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in _OF_MODE[mode]:
            raise BadOption(f"setting {name!r} is not known in mode {mode}; there are {', '.join(_OF_MODE[mode])}")
    evolution = cast(Evolution, _choice(given, "evolution", ("quarantine", "add")))
    tombstones = cast(Tombstones, _choice(given, "tombstones", ("dead", "pass")))
    if mode == "json":
        return JsonDecoder(_json_schema(given), evolution=evolution, tombstones=tombstones)
    return _avro(given, evolution, tombstones) if mode == "avro" else _protobuf(given, tombstones)


def schema_from(text: str) -> pa.Schema:
    """Columns from Spark DDL or Spark's JSON schema. Raises BadSchema."""
    if len(text) > TEXT_MAX:
        raise BadSchema(f"the schema has {len(text)} characters; at most {TEXT_MAX} are taken")
    return check_schema(from_delta_json(text) if text.lstrip().startswith("{") else parse_ddl(text))


def _json_schema(given: Mapping[str, Any]) -> pa.Schema:
    if isinstance(schema := given.get("schema"), pa.Schema):
        if "schema_file" in given:
            raise BadOption("settings 'schema' and 'schema_file' mean the same; give one of them")
        return check_schema(canonical(schema))
    return schema_from(_schema_text(given))


def _avro(given: Mapping[str, Any], evolution: Evolution, tombstones: Tombstones) -> Decoder:
    from mirrorlog.spark.decode.avro.decoder import AvroDecoder, AvroSettings

    framing = cast(Framing, _choice(given, "framing", FRAMINGS))
    reader = _schema_text(given)
    folder = Path(_text(given, "schemas")) if "schemas" in given else None
    found = writers(reader, folder, framing)
    return AvroDecoder(AvroSettings(reader, found, framing, evolution, tombstones))


def _protobuf(given: Mapping[str, Any], tombstones: Tombstones) -> Decoder:
    from mirrorlog.spark.decode.protobuf.decoder import ProtobufDecoder

    for name in ("schema_file", "message"):
        if name not in given:
            raise BadOption(f"setting {name!r} is missing; mode protobuf needs it")
    descriptors = schema_bytes(Path(_text(given, "schema_file")))
    return ProtobufDecoder(descriptors, _text(given, "message"), tombstones=tombstones)


def _schema_text(given: Mapping[str, Any]) -> str:
    if ("schema" in given) == ("schema_file" in given):
        raise BadOption("give the schema by one of the settings 'schema' and 'schema_file'")
    if "schema" in given:
        return _text(given, "schema")
    file = Path(_text(given, "schema_file"))
    try:
        return schema_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise BadSchema(f"{file}: no UTF-8 at byte {error.start}") from None


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given[name]
    if not isinstance(value, (str, Path)) or not str(value):
        raise BadOption(f"setting {name!r} is a text, not {value!r}")
    return str(value)


def _choice(given: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """The first one by default."""
    value = given.get(name, known[0])
    if value not in known:
        raise BadOption(f"setting {name!r} is one of {', '.join(known)}, not {value!r}")
    return str(value)
