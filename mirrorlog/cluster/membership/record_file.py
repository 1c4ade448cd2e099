"""A small file that holds one record, and is replaced as a whole: `member` and `starts` of a node's directory.

Little endian:

    offset  size  field
         0     4  magic     of the kind of file
         4     4  version   1
         8     4  CRC-32C of the eight bytes before and of the payload
        12     …  payload   the record in msgpack

The header is the same in all versions, so that an older one can say that it is too old.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from mirrorlog.commitlog.files import Files, read_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import LogCorrupt, UnsupportedVersion

_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sI")
_CRC: Final = struct.Struct("<I")
_PAYLOAD_AT: Final = _HEAD.size + _CRC.size

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecordFile(Generic[_T]):
    """A kind of file. `bytes_max`: what is larger is none; `advice`: what to do about a damaged one."""

    magic: bytes
    record: type[_T]
    bytes_max: int
    advice: str

    def encode(self, record: _T) -> bytes:
        """The file's whole content."""
        payload = msgspec.msgpack.encode(record)
        head = _HEAD.pack(self.magic, _VERSION)
        return head + _CRC.pack(crc32c(payload, crc32c(head))) + payload

    def read(self, files: Files, path: Path) -> _T | None:
        """None when there is no file. Raises OSError, LogCorrupt, UnsupportedVersion."""
        if not files.exists(path):
            return None
        content = read_file(files, path, max_bytes=self.bytes_max)
        if len(content) < _PAYLOAD_AT:
            raise self._corrupt(path, f"it has {len(content)} bytes")
        head, payload = content[: _HEAD.size], memoryview(content)[_PAYLOAD_AT:]
        magic, version = _HEAD.unpack(head)
        if magic != self.magic or _CRC.unpack_from(content, _HEAD.size)[0] != crc32c(payload, crc32c(head)):
            raise self._corrupt(path, "its checksum does not match")
        if version != _VERSION:
            raise too_new(path, f"it has format {version}, this version knows {_VERSION}")
        try:
            return msgspec.msgpack.decode(payload, type=self.record)
        except msgspec.MsgspecError as error:  # its checksum is right, so this is what was written
            raise too_new(path, str(error)) from None

    def _corrupt(self, path: Path, reason: str) -> LogCorrupt:
        return LogCorrupt(f"{path} cannot be used: {reason}; {self.advice}", path=str(path))


def too_new(path: Path, reason: str) -> UnsupportedVersion:
    """The error for a file that a newer version has written."""
    return UnsupportedVersion(
        f"{path} says what this version of mirrorlog cannot read: {reason}; start the version that wrote it, or a "
        "newer one",
        path=str(path),
    )
