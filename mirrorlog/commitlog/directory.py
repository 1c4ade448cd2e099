"""The data directory of a node: whose it is, that one process holds it, and where its logs are.

    node.json       cluster id, node id, format version
    lock            held by flock while a process runs on the directory; its text is that process's id
    logs/<log id>/  one self-contained directory per log

The lock is the kernel's and goes with its process, however that ends: a file left behind after a crash locks nobody
out. Identity files are small JSON files that say whose a directory is, so that no node ever writes into another's:
`log.json` names a log, `node.json` a node. They are written once, when the directory is made, and only compared after.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from mirrorlog.commitlog.files import (
    DIRECTORY_MODE,
    OS_FILES,
    File,
    Files,
    directory_gone,
    disk_error,
    read_file,
    replace_file,
)
from mirrorlog.errors import DirectoryInUse, ForeignDirectory

logger = logging.getLogger(__name__)

IDENTITY_NAME: Final = "node.json"
LOCK_NAME: Final = "lock"
LOGS_NAME: Final = "logs"


class DataDirectory:
    """An open, locked data directory."""

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path, lock: File) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, cluster_id: UUID, node_id: str, files: Files = OS_FILES) -> Self:
        """Take the directory, made when absent.

        Raises DirectoryInUse naming the process that holds it, ForeignDirectory, DiskFull or DiskFailed.
        """
        identity: dict[str, str | int] = {
            "format_version": FORMAT_VERSION,
            "cluster_id": str(cluster_id),
            "node_id": node_id,
        }
        try:
            made = not files.exists(path)
            files.make_directory(path / LOGS_NAME)
            if made:
                files.fsync_directory(path.parent)  # or a loss of power takes all that is in it
            lock = _take_lock(files, path / LOCK_NAME)
            with contextlib.ExitStack() as undo:
                undo.callback(lock.close)
                if files.exists(path / IDENTITY_NAME):
                    check_identity(files, path / IDENTITY_NAME, identity)
                else:
                    write_identity(files, path / IDENTITY_NAME, identity)
                undo.pop_all()
        except OSError as error:
            raise disk_error(error, "use the data directory", path) from None
        return cls(path, lock)

    def log_directory(self, log_id: UUID) -> Path:
        return self.path / LOGS_NAME / str(log_id)

    def check_in_place(self) -> None:
        """Blocking. Raises DirectoryGone when a start of this node would not find this directory."""
        if not self._lock.stands_at(self.path / LOCK_NAME):
            raise directory_gone(self.path)

    def close(self) -> None:
        """Let the directory go. Idempotent."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def close_directory(path: Path) -> None:
    """Have nobody else read a data directory that is there already, or say that others can."""
    try:
        found = path.stat()
        mode = stat.S_IMODE(found.st_mode)
        if not mode & 0o077:
            return
        # Not one that was meant for others and named by mistake.
        own = (path / IDENTITY_NAME).exists() or not any(path.iterdir())
        if own and not mode & stat.S_ISVTX:
            path.chmod(DIRECTORY_MODE)
            logger.info("data_directory_closed path=%s mode_before=%04o", path, mode)
            return
    except FileNotFoundError:
        return
    except OSError as error:  # another user's; what is wrong with it is told when it is opened
        logger.info("data_directory_not_closed path=%s reason=%r", path, error.strerror)
    logger.warning("data_directory_open_to_others path=%s; chmod 700 it", path)


def _take_lock(files: Files, path: Path) -> File:
    try:
        return files.lock(path, f"{os.getpid()}\n".encode())
    except BlockingIOError:
        holder = read_file(files, path, max_bytes=32).decode(errors="replace").strip() or "unknown"
        raise DirectoryInUse(
            f"{path.parent} is in use by process {holder}; stop it or give this node a directory of its own", pid=holder
        ) from None


FORMAT_VERSION: Final = 1
NUMBER: Final = "number"
"""Of a log in its cluster. It came later: a file without it means 0."""

_BYTES_MAX: Final = 64 * 1024


def write_identity(files: Files, path: Path, identity: Mapping[str, str | int]) -> None:
    """Raises OSError."""
    replace_file(files, path, (json.dumps(dict(identity), indent=2) + "\n").encode())


def check_identity(files: Files, path: Path, identity: Mapping[str, str | int]) -> None:
    """Every field must be there and equal; others are ignored, so that fields can be added.

    Raises ForeignDirectory naming what was found and what was expected, and OSError.
    """
    try:
        found = json.loads(read_file(files, path, max_bytes=_BYTES_MAX))
    except ValueError as error:
        raise ForeignDirectory(f"{path} is not JSON ({error}); it does not name a directory of mirrorlog") from None
    if not isinstance(found, dict):
        raise ForeignDirectory(f"{path} is no JSON object; it does not name a directory of mirrorlog")
    for key, expected in identity.items():
        if key == NUMBER:
            _check_number(path, found, int(expected))
        elif found.get(key) != expected:
            raise ForeignDirectory(
                f"{path.parent} belongs to {key} {found.get(key)!r}, this is {key} {expected!r}; "
                "give each node a data directory of its own",
                found=str(found.get(key)),
                expected=str(expected),
            )


def _check_number(path: Path, found: Mapping[str, object], expected: int) -> None:
    """All queue ids of the log carry its number."""
    number = found.get(NUMBER, 0)
    if number != expected:
        raise ForeignDirectory(
            f"log {found.get('name')!r} has number {number!r} in {path}, and {expected} by the cluster: this directory "
            "is another log's, or another cluster's; put back the one that belongs here",
            found=str(number),
            expected=str(expected),
        )
