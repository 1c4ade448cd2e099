"""Who wrote an Avro record: the frame around it, and the schemas that a frame can name.

- `plain`: the datum alone, written with the reader's own schema.
- `single-object`: C3 01, then the 8 bytes of the writer's fingerprint (CRC-64-AVRO, little endian).
- `confluent`: 00, then 4 bytes of a schema id, big endian, as registries give them.

The schemas are files of a folder, read once where the decoder is made: `<id>.avsc` for `confluent`, any `*.avsc` for
`single-object`. Rejected: asking a registry from tasks, whose answer may differ from one try to the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

from fastavro.schema import fingerprint, to_parsing_canonical_form

from mirrorlog.spark.decode.decoded import Wrong
from mirrorlog.spark.errors import BadSchema

Framing = Literal["plain", "single-object", "confluent"]
FRAMINGS: Final[tuple[str, ...]] = get_args(Framing)

SCHEMA_BYTES_MAX: Final = 1024 * 1024
"""Of one schema file."""
WRITERS_MAX: Final = 1000
"""Files of a folder."""
_SINGLE_OBJECT: Final = b"\xc3\x01"
_CONFLUENT: Final = b"\0"
PLAIN: Final = ""
"""The name of the only writer of plain records."""


def split(value: bytes, framing: Framing) -> tuple[str, bytes]:
    """The writer's name (fingerprint in hex, or id) and the datum. Raises Wrong."""
    if framing == "plain":
        return PLAIN, value
    if framing == "single-object":
        if len(value) < 10 or value[:2] != _SINGLE_OBJECT:
            raise Wrong("no Avro single object: it begins with C3 01 and 8 bytes of a fingerprint")
        return value[2:10].hex(), value[10:]
    if len(value) < 5 or value[:1] != _CONFLUENT:
        raise Wrong("no framed Avro: it begins with 00 and 4 bytes of a schema id")
    return str(int.from_bytes(value[1:5])), value[5:]


def writers(reader: str, folder: Path | None, framing: Framing) -> Mapping[str, str]:
    """Schema texts by writer name, in a fixed order. Raises BadSchema."""
    if framing == "plain":
        if folder is not None:
            raise BadSchema("plain Avro records do not name their schema; leave the folder out, or give a framing")
        return {PLAIN: reader}
    files = [] if folder is None else _files(folder)
    if framing == "confluent":
        return _by_id(files, folder)
    texts = [reader, *(_text(file) for file in files)]
    return {_fingerprint(text): text for text in texts}


def _by_id(files: list[Path], folder: Path | None) -> dict[str, str]:
    if folder is None:
        raise BadSchema("framing confluent needs `schemas`: a folder with a file <id>.avsc for each schema id")
    found = {}
    for file in files:
        if not (file.stem.isascii() and file.stem.isdigit() and int(file.stem[:12]) < 2**32):
            raise BadSchema(f"{file}: the file's name is its schema id, like 17.avsc")
        found[int(file.stem)] = _text(file)
    return {str(schema_id): found[schema_id] for schema_id in sorted(found)}


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise BadSchema(f"{folder}: no such folder of Avro schemas")
    files = sorted(folder.glob("*.avsc"))
    if len(files) > WRITERS_MAX:
        raise BadSchema(f"{folder}: {len(files)} schemas; at most {WRITERS_MAX} are taken")
    return files


def _text(file: Path) -> str:
    return schema_bytes(file).decode("utf-8", "replace")


def schema_bytes(file: Path) -> bytes:
    """A schema file's content. Raises BadSchema."""
    try:
        with file.open("rb") as opened:
            content = opened.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise BadSchema(f"{file}: {error.strerror}") from None
    if len(content) > SCHEMA_BYTES_MAX:
        raise BadSchema(f"{file}: more than {SCHEMA_BYTES_MAX} bytes")
    return content


def _fingerprint(text: str) -> str:
    """In the byte order of the frame."""
    try:
        return str(fingerprint(to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO"))
    except Exception as error:  # fastavro has no root for what it finds wrong with a schema
        raise BadSchema(f"an Avro schema has no fingerprint: {error}") from None
