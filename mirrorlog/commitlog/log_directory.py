"""A log directory, read and never changed: of a node that is down, of an archive, or beside a node that runs.

Every file is opened for reading alone and the directory's lock is left alone, so a mistake here cannot harm a log. A
running node writes on meanwhile: what stands at the very end may be half written, and is then a torn tail that is
none.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn
from uuid import UUID

from mirrorlog.commitlog.directory import IDENTITY_NAME as NODE_IDENTITY_NAME
from mirrorlog.commitlog.directory import LOCK_NAME, LOGS_NAME, NUMBER
from mirrorlog.commitlog.epochs import EpochList, load_epochs
from mirrorlog.commitlog.files import OsFile, OsFiles, disk_error, read_file
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.flush import Checkpoint, CheckpointFile
from mirrorlog.commitlog.format.header import log_seed
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.scan import BatchRules
from mirrorlog.commitlog.segments.segment import segment_start
from mirrorlog.errors import ForeignDirectory, LogCorrupt

_IDENTITY_BYTES_MAX: Final = 64 * 1024
QUARANTINED: Final = re.compile(r"\.aside-\d+$")
"""A copy that was set aside keeps its name, with this behind it."""


class ReadOnlyFiles(OsFiles):
    """The operating system's files, none of which can be changed through it."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        if create:
            _refuse()
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def lock(self, path: Path, note: bytes) -> OsFile:
        _refuse()

    def make_directory(self, path: Path) -> None:
        _refuse()

    def rename(self, old: Path, new: Path) -> None:
        _refuse()

    def unlink(self, path: Path) -> None:
        _refuse()

    def shorten(self, path: Path, size: int) -> bool:
        _refuse()


def _refuse() -> NoReturn:
    raise PermissionError("who reads a log offline changes nothing")


FILES: Final = ReadOnlyFiles()


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`start`: the log offset of its first byte."""

    start: int
    path: Path


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """What a log's directory says of itself. `checkpoint` is None when no slot of it is valid.

    `segments`: every file that is named as one, by its start. `number`: of the log in its cluster.
    """

    path: Path
    name: str
    log_id: UUID
    cluster_id: str
    number: int
    epochs: EpochList
    checkpoint: Checkpoint | None
    valid_slots: int
    segments: tuple[SegmentFile, ...]

    @property
    def rules(self) -> BatchRules:
        return BatchRules(log_seed(self.log_id), self.epochs)

    @property
    def begin(self) -> int:
        """Log offset of the first byte that belongs to the log."""
        if self.checkpoint is not None:
            return self.checkpoint.begin
        return self.segments[0].start if self.segments else 0

    @property
    def flushed(self) -> int:
        """Log offset below which bad bytes are corruption; without a checkpoint nobody knows."""
        return self.checkpoint.flushed if self.checkpoint is not None else 0

    @property
    def holding(self) -> tuple[SegmentFile, ...]:
        """The segments from the one that holds the log's start offset on; those before are leftovers."""
        first = max((segment.start for segment in self.segments if segment.start <= self.begin), default=0)
        return tuple(segment for segment in self.segments if segment.start >= first)

    @property
    def data_directory(self) -> Path | None:
        """The node's directory that this log lies in; None when it lies elsewhere, and no node runs on it."""
        path = self.path.absolute()
        node = path.parent.parent
        return node if path.parent.name == LOGS_NAME and (node / NODE_IDENTITY_NAME).is_file() else None

    def read_checkpoint(self) -> Checkpoint | None:
        """As it is now: a running node writes it anew twice a second. Raises DiskFailed."""
        try:
            return _checkpoint(self.path, self.log_id)[0]
        except OSError as error:
            raise disk_error(error, "read", self.path / CHECKPOINT_NAME) from None

    def holder(self) -> str | None:
        """The process that runs on this directory, as its lock's text says; None when nobody holds it.

        Looked up in the kernel's list: to try the lock would lock out a node that starts at this moment. A process in
        another container is not in the list.
        """
        if self.data_directory is None:
            return None
        lock = self.data_directory / LOCK_NAME
        try:
            number = f":{lock.stat().st_ino} "
            held = any(" FLOCK " in line and number in line for line in Path("/proc/locks").read_text().splitlines())
            return (
                (read_file(FILES, lock, max_bytes=32).decode(errors="replace").strip() or "unknown") if held else None
            )
        except OSError:
            return None


def read_log_directory(path: Path) -> LogDirectory:
    """Raises ForeignDirectory, LogCorrupt (no usable epoch list), or DiskFailed."""
    try:
        identity = _identity(path / IDENTITY_NAME)
        log_id = UUID(identity["log_id"])
        epochs = _epochs(path)
        # Before the files are listed: of a running node they are then at least those that it speaks of.
        checkpoint, valid_slots = _checkpoint(path, log_id)
        return LogDirectory(
            path=path,
            name=str(identity.get("name", "")),
            log_id=log_id,
            cluster_id=str(identity.get("cluster_id", "")),
            number=int(identity.get(NUMBER, 0)),
            epochs=epochs,
            checkpoint=checkpoint,
            valid_slots=valid_slots,
            segments=tuple(
                SegmentFile(start, path / name)
                for name in FILES.listdir(path)
                if (start := segment_start(name)) is not None
            ),
        )
    except OSError as error:
        raise disk_error(error, "read", path) from None


def _identity(path: Path) -> dict[str, Any]:
    try:
        identity = json.loads(read_file(FILES, path, max_bytes=_IDENTITY_BYTES_MAX))
        UUID(identity["log_id"])
        int(identity.get(NUMBER, 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignDirectory(f"{path} does not name a log of mirrorlog: {error!r}") from None
    return dict(identity)


def _epochs(path: Path) -> EpochList:
    try:
        return load_epochs(FILES, path)
    except FileNotFoundError:
        raise LogCorrupt(f"{path}/epochs is missing; restore the log's directory from a copy") from None


def _checkpoint(path: Path, log_id: UUID) -> tuple[Checkpoint | None, int]:
    """(the newest, how many slots are valid)."""
    if not (path / CHECKPOINT_NAME).exists():
        return None, 0
    with closing(CheckpointFile.open(FILES, path, log_id)) as file:
        return file.stored, file.valid_slots
