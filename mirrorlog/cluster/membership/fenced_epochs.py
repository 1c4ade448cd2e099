"""The highest epoch of each log that this node was fenced with, on disk before the fence is answered.

A member that is fenced promises to write and ack no lower epoch (invariant 6), and one that answered may be the reason
why a new master was chosen. So a promise is on disk before it is answered. It is not kept in the log's directory: a
copy that begins anew is set aside with all that is in it.

The file `promises` in the node's directory, little endian, two slots of 16 KiB that are written in turn, each with the
promises of all logs:

    offset  size  field
         0     4  magic     b"MLPR"
         4     4  version   1
         8     8  number    rises by one with every write; slot = number % 2
        16     4  length of the payload
        20     4  CRC-32C of the 20 bytes before and of the payload
        24     …  payload   {log id: epoch} in msgpack

The time to a promise is a part of every failover. Overwriting in place is one sync of data that needs no commit of the
file system's journal; and no space, so a full disk cannot stop a failover. A write that is cut short spoils the slot
that it was meant for, and the other holds what was promised before. A write that failed is repeated into the same slot.

What a start reads may be in memory only (the process before was killed between its write and its sync), and no promise
is synced again that is known: so a start writes it again before anything is said of it. First into the slot that it was
read from, for until that is on disk the other one is all there is; then into the other, so that damage to one of them
is no loss. Later, damage to the newest alone cannot be told from a write that was cut short.

Rejected: a file for each log (the first promise for each costs a new file, and two syncs), replacing one file by rename
(two syncs, both with a commit of the journal: four times as long), writing several threads' promises in one sync (a
node's death fences one log or two on each node).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Self

import msgspec

from mirrorlog.cluster.membership.record_file import too_new
from mirrorlog.commitlog.files import File, Files, disk_named, read_file, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadRequest, LogCorrupt, Overloaded

FILE_NAME: Final = "promises"
SLOT_BYTES: Final = 16 * 1024
"""Enough for 380 logs; a cluster has 256 at most, for their numbers have one byte."""
EPOCH_MAX: Final = 2**32 - 1
"""What a batch's header can say."""
LOG_ID_BYTES_MAX: Final = 255

_MAGIC: Final = b"MLPR"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIQI")
_CRC: Final = struct.Struct("<I")
_PAYLOAD_AT: Final = _HEAD.size + _CRC.size
_NO_PROMISE: Final = 0

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(dict[str, int])


class FencedEpochs:
    """The open file. `keep` and `forget` block and may be called by several threads at once; `of` reads memory."""

    def __init__(self, file: File, path: Path, *, number: int, kept: Mapping[str, int]) -> None:
        """`open` makes one. `number`: the one before that of the next slot to be written."""
        self.path = path
        self._file = file
        self._number = number
        self._kept = dict(kept)
        self._lock = Lock()

    @classmethod
    def open(cls, files: Files, directory: Path) -> Self:
        """What was promised, on disk when this returns; the file is made when there is none.

        Raises LogCorrupt when no slot is whole, UnsupportedVersion for what a newer version wrote, DiskFull,
        DiskFailed.
        """
        path = directory / FILE_NAME
        with disk_named("open", path):
            if not files.exists(path):
                replace_file(files, path, _blank())
            newest = _newest(read_file(files, path, max_bytes=2 * SLOT_BYTES), path)
            promises = cls(files.open(path), path, number=newest.number - 1, kept=newest.kept)
            try:
                promises._write(newest.kept)
                promises._write(newest.kept)
                # Its name may be as new as its bytes.
                files.fsync_directory(directory)
            except BaseException:
                promises.close()
                raise
        return promises

    def of(self, log_id: str) -> int:
        """The highest epoch that was promised for a log; 0 for none. All of it is on disk."""
        return self._kept.get(log_id, _NO_PROMISE)

    def keep(self, log_id: str, epoch: int) -> int:
        """Promise `epoch`, on disk when this returns. Gives the promise that holds: a higher one from before stays.

        Raises BadRequest for an epoch or an id that cannot be, Overloaded when there are too many logs, DiskFull,
        DiskFailed: then nothing was promised, though the next start may find that it was.
        """
        _check(log_id, epoch)
        with self._lock:
            if epoch > self.of(log_id):
                self._replace({**self._kept, log_id: epoch})
            return self.of(log_id)

    def forget(self, log_id: str) -> None:
        """There is no such log any more. On disk when this returns. Raises DiskFull, DiskFailed."""
        with self._lock:
            if log_id in self._kept:
                self._replace({each: epoch for each, epoch in self._kept.items() if each != log_id})

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _replace(self, kept: dict[str, int]) -> None:
        with disk_named("write", self.path):
            self._write(kept)
        self._kept = kept

    def _write(self, kept: Mapping[str, int]) -> None:
        """Into the next slot. Raises OSError; then the same one is the next."""
        number = self._number + 1
        self._file.pwrite(_encode(number, kept), number % 2 * SLOT_BYTES)
        self._file.fdatasync()
        self._number = number


def _check(log_id: str, epoch: int) -> None:
    if not 0 < epoch <= EPOCH_MAX:
        raise BadRequest(f"epoch {epoch} of log {log_id!r} cannot be promised; epochs go from 1 to {EPOCH_MAX}")
    if not 0 < len(log_id.encode()) <= LOG_ID_BYTES_MAX:
        raise BadRequest(f"a log's id has 1 to {LOG_ID_BYTES_MAX} bytes, this one has {len(log_id.encode())}")


# --- Slots ----------------------------------------------------------------------------------------------------------


class _Slot(NamedTuple):
    number: int
    kept: dict[str, int]


def _encode(number: int, kept: Mapping[str, int]) -> bytes:
    """Raises Overloaded."""
    payload = _encoder.encode(kept)
    if _PAYLOAD_AT + len(payload) > SLOT_BYTES:
        raise Overloaded(
            f"promises of {len(kept)} logs need more than {SLOT_BYTES} bytes; let this node hold fewer logs",
            limit="promises_slot_bytes",
        )
    head = _HEAD.pack(_MAGIC, _VERSION, number, len(payload))
    return head + _CRC.pack(crc32c(payload, crc32c(head))) + payload


def _blank() -> bytes:
    """Both slots, written from end to end: writing to a hole would need the file system's journal."""
    return b"".join(_encode(number, {}).ljust(SLOT_BYTES, b"\0") for number in (0, 1))


def _newest(content: bytes, path: Path) -> _Slot:
    slots = [_decode(content[at : at + SLOT_BYTES], path) for at in (0, SLOT_BYTES)]
    whole = [slot for slot in slots if slot is not None]
    if not whole:
        raise LogCorrupt(
            f"{path} is damaged, and what this node promised is not known; remove it and the file `starts` beside it, "
            "then the node counts as set back to an earlier state and what it holds is compared with the other copies",
            path=str(path),
        )
    return max(whole, key=lambda slot: slot.number)


def _decode(content: bytes, path: Path) -> _Slot | None:
    """None when this is no whole slot. Raises UnsupportedVersion."""
    if len(content) < _PAYLOAD_AT:
        return None
    magic, version, number, length = _HEAD.unpack_from(content)
    payload = content[_PAYLOAD_AT : _PAYLOAD_AT + length]
    checksum = _CRC.unpack_from(content, _HEAD.size)[0]
    if magic != _MAGIC or len(payload) < length or checksum != crc32c(payload, crc32c(content[: _HEAD.size])):
        return None
    if version != _VERSION:
        raise too_new(path, f"it has format {version}, this version knows {_VERSION}")
    try:
        return _Slot(number, _decoder.decode(payload))
    except msgspec.MsgspecError as error:  # its checksum is right, so this is what was written
        raise too_new(path, str(error)) from None
