"""The checkpoint of a log: what was known to be on disk, in two slots that are written in turn.

    offset  size  field
         0     4  magic      b"MLCP"
         4     4  version    2
         8     8  number     rises by one with every write; slot = number % 2
        16     8  begin      log offsets
        24     8  flushed
        32     8  confirmed
        40     8  state
        48    16  log id
        64     4  CRC-32C of bytes 0..63

Version 1 had no `state`; it is read as 0.

Each slot begins its own 4 KiB block, so a write that is cut short by a crash spoils one slot and never both: the newest
valid one counts. Overwriting in place needs no space, so a full disk cannot stop a checkpoint.
Rejected: replacing a small file by rename (two syncs of the directory's journal per flush instead of one of data).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.files import File, Files, begun, replace_file
from mirrorlog.commitlog.format.checksum import crc32c

FILE_NAME: Final = "checkpoint"
SLOT_BYTES: Final = 4096

_MAGIC: Final = b"MLCP"
_VERSION: Final = 2
_SLOT = struct.Struct("<4sIQQQQQ16s")
_SLOT_1 = struct.Struct("<4sIQQQQ16s")
_CRC = struct.Struct("<I")
SLOT_SIZE: Final = _SLOT.size + _CRC.size


class Checkpoint(NamedTuple):
    """Log offsets. Bytes below `flushed` were on disk; `confirmed` may be above it when copies in memory count. From
    `state` on the log tells the state of its queues, without what stands before; 0 while only all of it does."""

    begin: int
    flushed: int
    confirmed: int
    state: int = 0


def encode_slot(number: int, checkpoint: Checkpoint, log_id: UUID) -> bytes:
    """The bytes of a slot."""
    content = _SLOT.pack(_MAGIC, _VERSION, number, *checkpoint, log_id.bytes)
    return content + _CRC.pack(crc32c(content))


def decode_slot(content: bytes | memoryview, log_id: UUID) -> tuple[int, Checkpoint] | None:
    """(number, checkpoint), or None when this is no valid slot of that log."""
    for version, layout in ((2, _SLOT), (1, _SLOT_1)):
        if len(content) < layout.size + _CRC.size:
            continue
        magic, found_version, number, *offsets, found_id = layout.unpack_from(content)
        checksum = _CRC.unpack_from(content, layout.size)[0]
        if (magic, found_version, found_id) == (_MAGIC, version, log_id.bytes):
            return (number, Checkpoint(*offsets)) if checksum == crc32c(content[: layout.size]) else None
    return None


class CheckpointFile:
    """The open file. `stored` is the newest valid checkpoint, None when no slot is valid. Not thread-safe."""

    __slots__ = ("_file", "_log_id", "_number", "path", "stored", "valid_slots")

    def __init__(self, file: File, path: Path, log_id: UUID) -> None:
        self.path = path
        self._file = file
        self._log_id = log_id
        slots = [slot for slot in map(self._read, (0, 1)) if slot is not None]
        self.valid_slots = len(slots)
        self._number: int = max(slots)[0] if slots else 0
        self.stored: Checkpoint | None = max(slots)[1] if slots else None

    @classmethod
    def create(cls, files: Files, directory: Path, log_id: UUID, first: Checkpoint) -> None:
        """A new log's checkpoint in both slots. Raises OSError."""
        content = bytearray(2 * SLOT_BYTES)
        for number in (0, 1):
            slot = encode_slot(number, first, log_id)
            content[number * SLOT_BYTES : number * SLOT_BYTES + len(slot)] = slot
        replace_file(files, directory / FILE_NAME, bytes(content))

    @classmethod
    def open(cls, files: Files, directory: Path, log_id: UUID) -> CheckpointFile:
        """Raises OSError (FileNotFoundError when there is none)."""
        path = directory / FILE_NAME
        return cls(files.open(path), path, log_id)

    def write(self, checkpoint: Checkpoint) -> None:
        """Into the slot that is not the newest; on disk when this returns. Raises OSError."""
        number = self._number + 1
        self._file.pwrite(encode_slot(number, checkpoint, self._log_id), number % 2 * SLOT_BYTES)
        with begun():
            self._file.fdatasync()
        self._number, self.stored = number, checkpoint

    def write_both(self, checkpoint: Checkpoint) -> None:
        """Into both slots: no older one is left that claims more than this. Raises OSError."""
        self.write(checkpoint)
        self.write(checkpoint)

    def in_place(self) -> bool:
        """Whether the next start will find this file."""
        return self._file.stands_at(self.path)

    def close(self) -> None:
        self._file.close()

    def _read(self, slot: int) -> tuple[int, Checkpoint] | None:
        content = bytearray(SLOT_SIZE)
        got = self._file.pread(memoryview(content), slot * SLOT_BYTES)
        return decode_slot(bytes(content[:got]), self._log_id)
