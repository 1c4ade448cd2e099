"""A disk that fails on demand: `FaultyFiles` wraps another `Files` and raises an error at a chosen call."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorlog.commitlog.files import OS_FILES, Directory, File, Files
from mirrorlog.commitlog.log import CommitLog


@dataclass(slots=True)
class Fault:
    """Raise `code` at the calls of `operation` from number `first` on, `times` times."""

    operation: str
    code: int
    first: int
    times: int


class Disk:
    """Counts calls by operation name and decides which of them fail."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def fail(self, operation: str, code: int = errno.EIO, *, first: int = 1, times: int = 1_000_000) -> None:
        """From the `first` call on, counted from now: 1 is the next one."""
        self.faults.append(Fault(operation, code, self.calls[operation] + first, times))

    def refuse(self, code: int = errno.EMFILE) -> None:
        """Nothing can be opened any more, until `heal`."""
        for operation in ("open", "create", "lock", "open_directory"):
            self.fail(operation, code)

    def heal(self) -> None:
        self.faults.clear()

    def call(self, operation: str) -> None:
        self.calls[operation] += 1
        number = self.calls[operation]
        for fault in self.faults:
            if fault.operation == operation and fault.first <= number < fault.first + fault.times:
                raise OSError(fault.code, os.strerror(fault.code))


class FaultyFile:
    def __init__(self, file: File, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def allocate(self, size: int) -> None:
        self._disk.call("allocate")
        self._file.allocate(size)

    def map(self) -> memoryview:
        self._disk.call("map")
        return self._file.map()

    def pread(self, into: memoryview, at: int) -> int:
        self._disk.call("pread")
        return self._file.pread(into, at)

    def pread_past(self, into: memoryview, at: int) -> int:
        self._disk.call("pread")
        return self._file.pread_past(into, at)

    def data_end(self) -> int:
        return self._file.data_end()

    def pwrite(self, data: bytes | memoryview, at: int) -> None:
        self._disk.call("pwrite")
        self._file.pwrite(data, at)

    def pwritev(self, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        self._disk.call("pwrite")
        self._file.pwritev(parts, at)

    def fdatasync(self) -> None:
        self._disk.call("fdatasync")
        self._file.fdatasync()

    def size(self) -> int:
        return self._file.size()

    def stands_at(self, path: Path) -> bool:
        return self._file.stands_at(path)

    def close(self) -> None:
        self._file.close()


class FaultyDirectory:
    def __init__(self, directory: Directory, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk

    def sync(self) -> None:
        self._disk.call("fsync_directory")
        self._directory.sync()

    def close(self) -> None:
        self._directory.close()


class FaultyFiles:
    """`disk` is where a test asks for errors."""

    def __init__(self, files: Files = OS_FILES) -> None:
        self._files = files
        self.disk = Disk()

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        self.disk.call("create" if create else "open")
        return FaultyFile(self._files.open(path, create=create), self.disk)

    def lock(self, path: Path, note: bytes) -> File:
        self.disk.call("lock")
        return self._files.lock(path, note)

    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    def make_directory(self, path: Path) -> None:
        self.disk.call("make_directory")
        self._files.make_directory(path)

    def listdir(self, path: Path) -> list[str]:
        return self._files.listdir(path)

    def rename(self, old: Path, new: Path) -> None:
        self.disk.call("rename")
        self._files.rename(old, new)

    def unlink(self, path: Path) -> None:
        self.disk.call("unlink")
        self._files.unlink(path)

    def shorten(self, path: Path, size: int) -> bool:
        self.disk.call("shorten")
        return self._files.shorten(path, size)

    def open_directory(self, path: Path) -> FaultyDirectory:
        self.disk.call("open_directory")
        return FaultyDirectory(self._files.open_directory(path), self.disk)

    def fsync_directory(self, path: Path) -> None:
        self.open_directory(path).sync()

    def populate(self, pages: memoryview) -> bool:
        self.disk.call("populate")
        return self._files.populate(pages)


def opens_on(files: Files) -> Callable[..., CommitLog]:
    """What stands in for `CommitLog.open` so that every log is on this disk."""
    real = CommitLog.open

    def open_(*arguments: Any, **options: Any) -> CommitLog:
        return real(*arguments, **{**options, "files": files})

    return open_
