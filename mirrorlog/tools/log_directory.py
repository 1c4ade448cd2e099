"""A log directory, read and never changed: for looking at a log whose node is down, or beside one that runs.

Every file is opened for reading alone and the directory's lock is left alone, so a mistake here cannot harm a log. A
running node writes on meanwhile: what stands at the very end may be half written, and is then a torn tail that is
none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from uuid import UUID

from mirrorlog.commitlog.checkpoint import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.checkpoint import Checkpoint, CheckpointFile
from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.epochs import EpochList, load_epochs
from mirrorlog.commitlog.files import File, OsFile, OsFiles, disk_error, read_file
from mirrorlog.commitlog.format import log_seed
from mirrorlog.commitlog.opening import IDENTITY_NAME
from mirrorlog.commitlog.scan import Rules
from mirrorlog.commitlog.segment import segment_start
from mirrorlog.errors import BadInput, ForeignDirectory, LogCorrupt

_IDENTITY_BYTES_MAX: Final = 64 * 1024


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


def _refuse() -> NoReturn:
    raise PermissionError("offline tools change nothing")


FILES: Final = ReadOnlyFiles()


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`start`: the log offset of its first byte."""

    start: int
    path: Path


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """What a log's directory says of itself. `checkpoint` is None when no slot of it is valid."""

    path: Path
    name: str
    log_id: UUID
    cluster_id: str
    epochs: EpochList
    checkpoint: Checkpoint | None
    segments: tuple[SegmentFile, ...]

    @property
    def rules(self) -> Rules:
        return Rules(log_seed(self.log_id), self.epochs)

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


def find_log(path: Path) -> Path:
    """The log directory that `path` means: itself, or the only log of a node's data directory.

    Raises BadInput when there is none or more than one.
    """
    if (path / IDENTITY_NAME).is_file():
        return path
    logs = sorted(found.parent for found in path.glob(f"{LOGS_NAME}/*/{IDENTITY_NAME}"))
    if len(logs) == 1:
        return logs[0]
    if logs:
        raise BadInput(f"{path} holds {len(logs)} logs; give one of {', '.join(map(str, logs))}")
    raise BadInput(f"{path} is no log directory (it has no {IDENTITY_NAME}) and holds none")


def read_log_directory(path: Path) -> LogDirectory:
    """Raises ForeignDirectory, LogCorrupt (no usable epoch list), or DiskFailed."""
    try:
        identity = _identity(path / IDENTITY_NAME)
        log_id = UUID(identity["log_id"])
        return LogDirectory(
            path=path,
            name=str(identity.get("name", "")),
            log_id=log_id,
            cluster_id=str(identity.get("cluster_id", "")),
            epochs=_epochs(path),
            checkpoint=_checkpoint(path, log_id),
            segments=tuple(_segments(path)),
        )
    except OSError as error:
        raise disk_error(error, "read", path) from None


def _identity(path: Path) -> dict[str, str]:
    try:
        identity = json.loads(read_file(FILES, path, max_bytes=_IDENTITY_BYTES_MAX))
        UUID(identity["log_id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignDirectory(f"{path} does not name a log of mirrorlog: {error!r}") from None
    return dict(identity)


def _epochs(path: Path) -> EpochList:
    try:
        return load_epochs(FILES, path)
    except FileNotFoundError:
        raise LogCorrupt(f"{path}/epochs is missing; restore the log's directory from a copy") from None


def _checkpoint(path: Path, log_id: UUID) -> Checkpoint | None:
    if not (path / CHECKPOINT_NAME).exists():
        return None
    with closing(CheckpointFile.open(FILES, path, log_id)) as file:
        return file.stored


def _segments(path: Path) -> Iterator[SegmentFile]:
    for name in FILES.listdir(path):
        if (start := segment_start(name)) is not None:
            yield SegmentFile(start, path / name)


def open_segment(segment: SegmentFile) -> File:
    """For reading. Raises OSError."""
    return FILES.open(segment.path)
