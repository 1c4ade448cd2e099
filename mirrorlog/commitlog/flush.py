"""What of a log is on disk: group commit by fdatasync on a helper, then the checkpoint, which says so.

The lock orders the disk work of helpers against cuts and epoch lists, which are written by whoever calls them. A cut
makes the flushes that were asked for before it void: they would claim bytes that are gone.

The checkpoint is in two slots that are written in turn.

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
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.files import Directory, File, Files, begun, directory_gone, disk_error, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.segments.chain import SegmentChain
from mirrorlog.errors import DiskFailed, DiskFull


class FlushJob:
    """One group commit. `run` belongs on a helper thread; it raises DiskFailed, and so does completing it then. It
    opens nothing: a node without descriptors flushes as ever."""

    __slots__ = ("_files", "_flusher", "_names", "_record", "_retired", "changes", "checkpoint", "error", "generation")

    def __init__(
        self, flusher: Flusher, chain: SegmentChain, checkpoint: Checkpoint, names: Directory | None, *, record: bool
    ) -> None:
        self._flusher = flusher
        self._files = chain.unflushed(flusher.flushed)
        self._names = names
        self._retired = chain.take_retired()
        self._record = record
        self.checkpoint = checkpoint
        self.changes = chain.directory_changes
        self.generation = flusher.generation
        self.error: DiskFailed | None = None

    @property
    def target(self) -> int:
        """The flushed offset when this is done."""
        return self.checkpoint.flushed

    @property
    def start_on_disk(self) -> int:
        """The start offset that is stored when this is done, below which files may go; 0 when it stores none or is
        void."""
        stale = self.generation != self._flusher.generation
        return 0 if stale or not self._record else self.checkpoint.begin

    def run(self) -> None:
        self._retired.clear()
        with self._flusher.lock:
            if self.generation == self._flusher.generation:
                try:
                    self._flusher.commit(self._files, self._names, self.checkpoint if self._record else None)
                except DiskFailed as error:
                    self.error = error
                    raise
        self._files.clear()


class Flusher:
    """`flushed`: below it every byte is on disk, as far as the loop has been told. `failure` ends all writing."""

    __slots__ = ("_checkpoints", "_directory", "_synced_changes", "failure", "flushed", "generation", "lock")

    def __init__(self, checkpoints: CheckpointFile, flushed: int) -> None:
        self._checkpoints = checkpoints
        self._directory = checkpoints.path.parent
        # Not that of the chain: names that a process made before it was killed are to be synced too.
        self._synced_changes = -1
        self.lock = threading.Lock()
        self.flushed = flushed
        self.generation = 0
        self.failure: DiskFailed | None = None

    @property
    def stored(self) -> Checkpoint:
        """The newest checkpoint on disk."""
        return self._checkpoints.stored or Checkpoint(0, 0, 0)

    def fail(self, error: DiskFailed) -> None:
        """No write is believed any more. The first reason stays."""
        self.failure = self.failure or error

    @contextmanager
    def disk(self, what: str) -> Iterator[None]:
        """Turn OSError into DiskFull or DiskFailed; `what` completes "cannot … the log's directory". A failed disk ends
        all writing."""
        try:
            yield
        except OSError as error:
            named = self._named(error, what)
            if isinstance(named, DiskFailed):
                self.fail(named)
            raise named from None

    def start(self, chain: SegmentChain, checkpoint: Checkpoint, *, record: bool) -> FlushJob:
        """A job after which `checkpoint` is true, and stored if it is to be recorded."""
        changed = chain.directory_changes != self._synced_changes
        return FlushJob(self, chain, checkpoint, chain.names if changed else None, record=record)

    def owes(self, chain: SegmentChain, checkpoint: Checkpoint) -> bool:
        """Whether `checkpoint` is not what is stored, names of files are not on disk, or a failure is to be told."""
        return (
            checkpoint != self.stored
            or chain.directory_changes != self._synced_changes
            or chain.has_retired
            or self.failure is not None
        )

    def complete(self, job: FlushJob) -> int:
        """The flushed offset now. Raises DiskFailed."""
        if job.error is not None:
            raise job.error
        if job.generation == self.generation:
            self.flushed = max(self.flushed, job.target)
            self._synced_changes = max(self._synced_changes, job.changes)
        return self.flushed

    def commit(self, files: list[File], names: Directory | None, checkpoint: Checkpoint | None) -> None:
        """Sync the files, then their names, then say so in the checkpoint, if one is given. The lock is held.

        Raises DiskFailed, DirectoryGone.
        """
        if self.failure is not None:
            raise self.failure
        try:
            for file in files:
                file.fdatasync()
            if names is not None:
                names.sync()
            if self.failure is not None:  # of a sync beside this one, which the kernel told about alone
                raise self.failure
            if checkpoint is not None:
                self._check_in_place()
                self._store(checkpoint)
        except OSError as error:
            raise self.sync_failed(error) from None

    def sync_failed(self, error: OSError) -> DiskFailed:
        """Any sync of the log's files has failed; gives the first reason why nothing is written any more."""
        # A full disk, or a refusal, is no excuse here: the space was allocated, so bytes that were taken are at stake.
        failed = self._named(error, "sync")
        self.fail(failed if isinstance(failed, DiskFailed) else DiskFailed(failed.message, **failed.details))
        assert self.failure is not None
        return self.failure

    def _check_in_place(self) -> None:
        """Files that were removed take everything, sync without an error, and are gone with the process: such a copy is
        none. Raises DirectoryGone."""
        if not self._checkpoints.in_place():
            gone = directory_gone(self._directory)
            self.fail(gone)
            raise gone

    def _named(self, error: OSError, what: str) -> DiskFull | DiskFailed:
        """No disk is to be looked at for files that somebody has removed."""
        return (
            disk_error(error, what, self._directory)
            if self._checkpoints.in_place()
            else directory_gone(self._directory)
        )

    def _store(self, checkpoint: Checkpoint) -> None:
        """Flushes may be run in another order than they were asked for: what is stored never goes back."""
        stored = self._checkpoints.stored
        highest = Checkpoint._make(map(max, checkpoint, stored)) if stored is not None else checkpoint
        if highest != stored:
            self._checkpoints.write(highest)

    def void(self) -> None:
        """The flushes that are under way claim bytes that are gone: they do nothing any more. The lock is held."""
        self.generation += 1

    def lower(self, checkpoint: Checkpoint) -> None:
        """Void the flushes that are under way and claim no more than `checkpoint`, in both slots: no older one may
        claim bytes that are about to be cut. The lock is held. Raises OSError."""
        self.void()
        self._checkpoints.write_both(checkpoint)
        self.flushed = checkpoint.flushed

    def close(self) -> None:
        """Let the checkpoint go; jobs that are still out do nothing any more."""
        with self.lock:
            self.generation += 1
            self._checkpoints.close()


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
