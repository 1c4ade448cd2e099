"""Where a table's data files lie, and how they get there: whole under their final name, or not at all.

A table is named as Spark names it: a path, `file://…`, `s3a://…`, `gs://…`, `abfss://…`, `hdfs://…`; `delta://path` is
the path. Tasks write through pyarrow's file systems, so a place must be one that both know.

On a local or shared path a file is written under another name, fsynced, renamed, and its directory fsynced: a commit
that names it must not survive a power loss that the file does not. The other name is no hidden one (`.x`, `_x`):
VACUUM passes over those, and would never take what a killed task left. Object stores show an object only once it is
complete, so there it is written in place.

The disk works while the task does (`push`): left to the fsync, all of a file would be written at its end, with the
core idle. Rejected: an fsync in a helper thread, which does the same with more parts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from mirrorlog.spark.errors import BadLanding, LandingConflict

KEEP_S_MIN: Final = 24 * 3600.0
"""The shortest retention that VACUUM is run with: twice as long as a step may take until its files are committed."""
STEP_S_MAX: Final = KEEP_S_MIN / 2
"""Within this time from the first file of a step on it has to be committed, or it begins again."""

_SCHEMES: Final = ("file", "s3", "s3a", "gs", "abfs", "abfss", "hdfs")
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
# Spark has its S3 file system under the one name, pyarrow under the other.
_S3: Final = {"spark": "s3a", "arrow": "s3"}
_UNFINISHED: Final = ".unfinished"


def table_uri(given: str) -> str:
    """`given` as Spark takes it; a local one becomes an absolute path. Raises BadLanding naming the scheme."""
    text = given.removeprefix("delta://") if given.startswith("delta://") else given
    if not text.strip():
        raise BadLanding("key 'table': it is empty; give a path, or a URI like s3://bucket/table")
    found = _SCHEME.match(text)
    if found is None:
        return str(Path(text).expanduser().absolute())
    scheme = found["scheme"].lower()
    if scheme not in _SCHEMES:
        raise BadLanding(f"key 'table': {scheme}:// is not known; there are {', '.join(_SCHEMES)}, delta:// and paths")
    if scheme == "file":
        return unquote(urlsplit(text).path)
    return f"{_S3['spark']}://{text[found.end() :]}" if scheme in _S3.values() else text


def local_path(table: str) -> Path | None:
    """The table's directory when it is on a local or shared path, else None."""
    return None if _SCHEME.match(table) else Path(table)


def sync_local(table: str, name: str) -> None:
    """Have the file `name` below a local table on the disk, and its entry in its directory."""
    root = local_path(table)
    if root is not None:
        sync_file(root / name)
        sync_file((root / name).parent)


def refuse_old_files(modified_ms: Iterable[int], *, now_ms: int) -> None:
    """For a step before it commits: raise LandingConflict when its oldest file may be gone. Times are since 1970."""
    oldest_ms = min(modified_ms, default=now_ms)
    if now_ms - oldest_ms > STEP_S_MAX * 1000:
        raise LandingConflict(
            f"the step took {(now_ms - oldest_ms) / 1000:g} s, its files may have been removed after {STEP_S_MAX:g} s; "
            "nothing was added, run again with a smaller max_bytes"
        )


class Storage:
    """The files of one table. Made in each task: file systems do not travel."""

    def __init__(self, table: str) -> None:
        self._root = local_path(table)
        if self._root is None:
            found = _SCHEME.match(table)
            assert found is not None
            scheme = found["scheme"]
            uri = f"{_S3['arrow']}://{table[found.end() :]}" if scheme in _S3.values() else table
            self._system, self._prefix = fs.FileSystem.from_uri(uri)

    def open(self, name: str) -> OpenFile:
        """A new file `name` (slashes between folders) below the table's root."""
        if self._root is not None:
            return _LocalFile(self._root, self._root / name)
        path = f"{self._prefix.rstrip('/')}/{name}"
        return _RemoteFile(self._system, path)


class OpenFile:
    """A file that is being written. `stream`: takes bytes; end with `complete` or `abandon`."""

    stream: Any

    def push(self) -> None:
        """What was written begins its way to the disk; nobody waits for it here."""

    def close(self) -> None:
        """No more bytes come. There is no name yet, and `complete` or `abandon` has still to be called."""
        self.stream.close()

    def complete(self) -> tuple[int, int]:
        """Its size in bytes and its time of modification, ms; from now on it stands under its name."""
        raise NotImplementedError

    def abandon(self) -> None:
        """As if it had never been."""
        raise NotImplementedError


class _LocalFile(OpenFile):
    def __init__(self, root: Path, path: Path) -> None:
        made = list(_make(path.parent, root))
        self._path = path
        self._unfinished = path.with_name(path.name + _UNFINISHED)
        self._above = made
        self._pushed = 0
        self.stream = fs.LocalFileSystem().open_output_stream(str(self._unfinished))

    def push(self) -> None:
        end = int(self.stream.tell())
        _push_file(self._unfinished, self._pushed, end)
        self._pushed = end

    def close(self) -> None:
        if not self.stream.closed:
            self.push()
            self.stream.close()

    def complete(self) -> tuple[int, int]:
        self.close()
        sync_file(self._unfinished)
        self._unfinished.rename(self._path)
        for directory in (self._path.parent, *self._above):
            sync_file(directory)
        found = self._path.stat()
        return found.st_size, found.st_mtime_ns // 1_000_000

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        self._unfinished.unlink(missing_ok=True)


class _RemoteFile(OpenFile):
    def __init__(self, system: Any, path: str) -> None:
        self._system = system
        self._path = path
        if isinstance(system, fs.HadoopFileSystem):
            system.create_dir(path.rpartition("/")[0], recursive=True)
        self.stream = system.open_output_stream(path)

    def complete(self) -> tuple[int, int]:
        self.close()
        found = self._system.get_file_info(self._path)
        return found.size, (found.mtime_ns or 0) // 1_000_000

    def abandon(self) -> None:
        # What an object store was given becomes an object no commit names; the same happens when the task is killed.
        with contextlib.suppress(OSError):
            self.stream.close()
            self._system.delete_file(self._path)


def _make(directory: Path, root: Path) -> Iterator[Path]:
    """Make it; the directories whose entries are new, so those above what was made."""
    missing = []
    at = directory
    while not at.exists():
        missing.append(at)
        at = at.parent
    directory.mkdir(parents=True, exist_ok=True)
    yield from (each.parent for each in missing)


def _push_file(path: Path, first: int, end: int) -> None:
    """Start to write bytes `first` up to `end` (exclusive) to the disk. Only a hint: what counts is the fsync."""
    if not hasattr(os, "posix_fadvise"):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        # What the kernel is told to drop it has to write first, and it begins at once. Dirty pages are not dropped.
        os.posix_fadvise(handle, first, end - first, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Have a file's contents, or a directory's entries, on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
