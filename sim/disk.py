"""A simulated file system behind the protocols `Files` and `File` of `mirrorlog.commitlog.files`.

One seed decides everything that a disk may decide. What is modelled:

- Bytes: a page cache and a device per file (`sim.inode`). What was stored and not synced is there or not after a power
  loss, unit by unit: 512 bytes, or a page. Before that the kernel may write back dirty units at any operation, so the
  device may hold what a file held for a moment in between.
- Names: made, renamed and removed names are kept in order or in any subset until the directory is synced (`sim.names`).
- Syncs cover the bytes as they were when the sync began. A failed one may have written a part; then the rest stays
  dirty, or is marked clean and lost: the next sync succeeds without it, and a restarted process may read either.
- Space: `capacity_bytes` for all files together; allocated space reads as zero. A file that was renamed to be used
  again has its old bytes on the device until the new ones are synced.
- Faults: any call by number (`faults`); a write that failed, or was killed, may have written whole pages of its
  beginning.
- Crashes: `after_kill` keeps the page cache, `after_power_loss` does not. Both give a new file system and leave this
  one as it is, so one run can be crashed at each of its operations. `observer` is called at each of them.

Not modelled: blocks shared between files, a device that lies about a finished sync, file times, permissions, threads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

from sim.faults import FaultPlan
from sim.inode import PAGE_BYTES, Inode
from sim.names import Names


@dataclass(frozen=True, slots=True)
class DiskModel:
    """What kind of disk. `unit_bytes`: what is written as a whole. `ordered_names`: see `sim.names`.

    `write_back`: the chance that the kernel writes something back at an operation. `forgets`: a failed sync marks what
    it did not write as clean. `capacity_bytes`: None for endless.
    """

    unit_bytes: int = 512
    ordered_names: bool = True
    write_back: float = 0.0
    forgets: bool = False
    capacity_bytes: int | None = None


class Moment(NamedTuple):
    """A point at which the machine may crash: `when` is before, during (a sync or a write) or after `operation`."""

    when: str
    operation: str
    path: Path


Observer = Callable[[Moment], None]


class SimulatedFiles:
    """`root` exists from the start; everything else is made through the protocol. `sync_failed`: in this life."""

    def __init__(self, root: Path, *, seed: int | str = 0, model: DiskModel | None = None) -> None:
        self.root = root
        self.model = model or DiskModel()
        self.random = Random(seed)
        self.faults = FaultPlan()
        self.observer: Observer | None = None
        self.sync_failed = False
        self._names = Names(root, ordered=self.model.ordered_names)
        self._locked: set[int] = set()
        self._syncing = False

    # --- The protocol ---------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        if not create:
            self._fault("open")
            return SimulatedFile(self, self._names.find(path), path)
        with self._changing("create", path):
            return SimulatedFile(self, self._names.create(path), path)

    def lock(self, path: Path, note: bytes) -> SimulatedFile:
        self._fault("lock")
        inode = self._names.find(path) if self.exists(path) else self._names.create(path)
        if id(inode) in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        self._locked.add(id(inode))
        inode.cache[:] = note
        return SimulatedFile(self, inode, path, locks=True)

    def exists(self, path: Path) -> bool:
        return path in self._names.files or path in self._names.directories

    def make_directory(self, path: Path) -> None:
        with self._changing("make_directory", path):
            self._names.make_directory(path)

    def listdir(self, path: Path) -> list[str]:
        return self._names.listed(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._changing("rename", new):
            self._names.rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._changing("unlink", path):
            self._names.unlink(path)

    def shorten(self, path: Path, size: int) -> bool:
        self._fault("shorten")
        return False  # it takes no space of anybody's

    def open_directory(self, path: Path) -> SimulatedDirectory:
        self._fault("open_directory")
        self._names.require_directory(path)
        return SimulatedDirectory(self, path)

    def fsync_directory(self, path: Path) -> None:
        self.open_directory(path).sync()

    def populate(self, pages: memoryview) -> bool:
        self._fault("populate")
        return True

    # --- Looking, and damage --------------------------------------------------------------------------------------

    def content(self, path: Path) -> bytes:
        """What a process reads there. Raises OSError."""
        return bytes(self._names.find(path).cache)

    def durable_content(self, path: Path) -> bytes:
        """What the device holds of it. Raises OSError."""
        return bytes(self._names.find(path).disk)

    def tree(self) -> dict[Path, bytes]:
        """Every file, as processes read it."""
        return {path: bytes(inode.cache) for path, inode in self._names.files.items()}

    @property
    def used_bytes(self) -> int:
        """By all files together."""
        return sum(len(inode.cache) for inode in self._names.files.values())

    def limit(self, free_bytes: int | None) -> None:
        """From now on so much more can be stored; None: as much as anybody wants."""
        capacity = None if free_bytes is None else self.used_bytes + free_bytes
        self.model = replace(self.model, capacity_bytes=capacity)

    @property
    def settled(self) -> bool:
        """Whether a power loss would change nothing: all is on the device."""
        return self._names.settled and all(inode.cache == inode.disk for inode in self._names.files.values())

    @property
    def doubtful(self) -> bool:
        """Whether a failed sync left pages that can be read and may be gone the next moment."""
        return any(inode.forgotten for inode in self._names.files.values())

    def evict(self) -> None:
        """The kernel lets such pages go."""
        for inode in self._names.files.values():
            inode.evict(self.random)

    def flip_bit(self, path: Path, at: int, bit: int) -> None:
        """The device gives one bit of a file wrong from now on. Raises OSError."""
        inode = self._names.find(path)
        inode.cache[at] ^= 1 << bit
        if at < len(inode.disk):
            inode.disk[at] = inode.cache[at]

    def remove_tree(self, directory: Path) -> None:
        """An operator removes a directory with all that is in it, for good."""
        self._names.remove_tree(directory)

    # --- Crashes --------------------------------------------------------------------------------------------------

    def caches(self) -> list[tuple[Inode, bytes]]:
        """Every file's bytes now, to be given to a crash that comes in the middle of what follows."""
        return [(inode, bytes(inode.cache)) for inode in self._names.files.values()]

    def after_kill(self, *, copying_since: Sequence[tuple[Inode, bytes]] = ()) -> SimulatedFiles:
        """The file system that the next process finds when this one was killed, at this moment or in the middle of
        what it copied into memory since `copying_since`."""
        other, copies = self._fork()
        for inode, before in copying_since:
            copy = copies.get(id(inode))
            if copy is not None and len(before) == len(copy.cache):
                copy.tear(before, other.random)
        for copy in copies.values():
            copy.evict(other.random)
        return other

    def after_power_loss(self, *, copying_since: Sequence[tuple[Inode, bytes]] = ()) -> SimulatedFiles:
        """The same after the machine went down: of what was not synced a part is there."""
        other = self.after_kill(copying_since=copying_since)
        other._names.lose_power(other.random)
        left = {id(inode): inode for inode in other._names.files.values()}
        unit = self.model.unit_bytes
        other._names.replace_inodes({key: inode.after_power_loss(other.random, unit) for key, inode in left.items()})
        return other

    def _fork(self) -> tuple[SimulatedFiles, dict[int, Inode]]:
        # Somebody frees space before a node is started on a full disk again.
        model = replace(self.model, capacity_bytes=None)
        other = SimulatedFiles(self.root, seed=self.random.getrandbits(64), model=model)
        copies: dict[int, Inode] = {}
        other._names = self._names.fork(copies)
        return other, copies

    # --- Operations -----------------------------------------------------------------------------------------------

    def _fault(self, operation: str) -> None:
        error = self.faults.due(operation)
        if error is not None:
            raise error

    @contextmanager
    def _changing(self, operation: str, path: Path) -> Iterator[None]:
        """One operation that changes what a crash leaves."""
        self._tell("before", operation, path)
        self._fault(operation)
        yield
        self._tell("after", operation, path)

    def _tell(self, when: str, operation: str, path: Path) -> None:
        if not self._syncing and self.random.random() < self.model.write_back:
            for inode in self._names.files.values():
                inode.write_back(self.random, self.random.random(), self.model.unit_bytes)
        if self.observer is not None:
            self.observer(Moment(when, operation, path))

    def _reserve(self, inode: Inode, size: int) -> None:
        """Raises OSError (ENOSPC) when the file cannot become so large."""
        capacity = self.model.capacity_bytes
        more = size - len(inode.cache)
        if capacity is None or more <= 0:
            return
        if self.used_bytes + more > capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # What an open file asks for.

    def _allocate(self, inode: Inode, path: Path, size: int) -> None:
        with self._changing("allocate", path):
            self._reserve(inode, size)
            inode.allocate(size)

    def _write(self, operation: str, inode: Inode, path: Path, data: bytes | memoryview, at: int) -> None:
        self._tell("before", operation, path)
        error = self.faults.due(operation)
        # A write is cut short at pages only, in order.
        begun = self.random.randint(0, len(data) // PAGE_BYTES) * PAGE_BYTES
        if error is None:
            self._reserve(inode, at + len(data))
        inode.write(data[:begun], at)
        if error is not None:
            raise error
        if begun:
            self._tell("during", operation, path)
        inode.write(data[begun:], at + begun)
        self._tell("after", operation, path)

    def _sync_names(self, path: Path) -> None:
        with self._changing("fsync_directory", path):
            self._names.sync(path)

    def _fdatasync(self, inode: Inode, path: Path) -> None:
        self._tell("before", "fdatasync", path)
        image = bytes(inode.cache)
        error = self.faults.due("fdatasync")
        # Write-back stands still meanwhile: a device never goes back from newer bytes to those of the image.
        was_syncing, self._syncing = self._syncing, True
        try:
            self._tell("during", "fdatasync", path)
        finally:
            self._syncing = was_syncing
        if error is not None:
            self.sync_failed = True
            inode.fail_sync(self.random, self.model.unit_bytes, forget=self.model.forgets)
            raise error
        inode.sync(image)
        self._tell("after", "fdatasync", path)

    def _unlock(self, inode: Inode) -> None:
        self._locked.discard(id(inode))


class SimulatedDirectory:
    """An open directory."""

    __slots__ = ("_files", "_path")

    def __init__(self, files: SimulatedFiles, path: Path) -> None:
        self._files = files
        self._path = path

    def sync(self) -> None:
        self._files._sync_names(self._path)

    def close(self) -> None:
        """There is nothing to let go."""


class SimulatedFile:
    """An open file. It stays usable when its name is gone."""

    __slots__ = ("_files", "_inode", "_locks", "_path")

    def __init__(self, files: SimulatedFiles, inode: Inode, path: Path, *, locks: bool = False) -> None:
        self._files = files
        self._locks = locks
        self._inode: Inode | None = inode
        self._path = path

    def allocate(self, size: int) -> None:
        self._files._allocate(self._open(), self._path, size)

    def map(self) -> memoryview:
        self._files._fault("map")
        if not self._open().cache:
            raise ValueError("cannot mmap an empty file")
        return memoryview(self._open().cache)

    def pread(self, into: memoryview, at: int) -> int:
        self._files._fault("pread")
        content = self._open().cache
        size = max(0, min(len(into), len(content) - at))
        into[:size] = memoryview(content)[at : at + size]
        return size

    def pread_past(self, into: memoryview, at: int) -> int:
        return self.pread(into, at)

    def data_end(self) -> int:
        return self._open().data_end()

    def pwrite(self, data: bytes | memoryview, at: int) -> None:
        self._files._write("pwrite", self._open(), self._path, data, at)

    def pwritev(self, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        self._files._write("pwritev", self._open(), self._path, b"".join(parts), at)

    def fdatasync(self) -> None:
        self._files._fdatasync(self._open(), self._path)

    def size(self) -> int:
        return len(self._open().cache)

    def stands_at(self, path: Path) -> bool:
        return self._files._names.files.get(path) is self._open()

    def close(self) -> None:
        if self._inode is not None and self._locks:
            self._files._unlock(self._inode)
        self._inode = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Inode:
        if self._inode is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._inode
