"""The names of a simulated file system: which there are, and which of them a power loss leaves.

Every change of a name goes into a journal and is on the device once its directory was synced. What a power loss keeps
of the rest is one of two models:

- `ordered`: a beginning of the journal, as ext4 and XFS commit it; syncing one directory commits all before it;
- otherwise: any part of it, as POSIX allows; syncing a directory commits the changes of that directory alone.

A rename is one change in both: never both names, never none. A file that arrives under its new name has the space that
was allocated before, if not the bytes. Replacing a file by `open(create=True)` is a change of
its name to a new, empty file: the old content comes back whole or not at all. A directory is renamed with what the
device has of it by then.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from sim.inode import Inode


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the journal. `inode` None: a directory was made (`new` is `old`) or renamed. `new`: the name after
    it, None: it was removed.

    `allocated`: the file's space at that time, which arrives with the name.
    """

    old: Path
    new: Path | None
    inode: Inode | None
    allocated: int = 0

    def concerns(self, directory: Path) -> bool:
        return self.old.parent == directory or (self.new is not None and self.new.parent == directory)


class Names:
    """`directories` and `files` as processes see them; `fork` gives what a crash leaves."""

    __slots__ = ("_durable", "_journal", "_ordered", "directories", "files")

    def __init__(self, root: Path, *, ordered: bool) -> None:
        self._ordered = ordered
        self.directories: set[Path] = {root, *root.parents}
        self.files: dict[Path, Inode] = {}
        self._durable: tuple[set[Path], dict[Path, Inode]] = (set(self.directories), {})
        self._journal: list[Change] = []

    # --- Changes --------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        for each in (*reversed(path.parents), path):
            if each in self.files:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(each))
            if each not in self.directories:
                self._change(Change(each, each, None))

    def create(self, path: Path) -> Inode:
        """A new, empty file under `path`, whatever was there."""
        self.require_directory(path.parent)
        if path in self.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        inode = Inode()
        self._change(Change(path, path, inode))
        return inode

    def rename(self, old: Path, new: Path) -> None:
        self.require_directory(new.parent)
        if old in self.directories:
            if self.listed(new) if new in self.directories else new in self.files:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(new))
            self._change(Change(old, new, None))
            return
        inode = self.find(old)
        self._change(Change(old, new, inode, inode.allocated))

    def unlink(self, path: Path) -> None:
        self._change(Change(path, None, self.find(path)))

    def remove_tree(self, directory: Path) -> None:
        """All below, and itself; on the device when this returns."""
        for path in [each for each in self.files if each.is_relative_to(directory)]:
            self.unlink(path)
        for change in self._journal:
            _persist(change, *self._durable)
        self._journal = []
        for directories in (self.directories, self._durable[0]):
            directories.difference_update([each for each in directories if each.is_relative_to(directory)])

    def sync(self, directory: Path) -> None:
        """The names in `directory` are on the device."""
        self.require_directory(directory)
        kept: list[Change] = []
        for change in self._journal:
            if self._ordered or change.concerns(directory):
                _persist(change, *self._durable)
            else:
                kept.append(change)
        self._journal = kept

    @property
    def settled(self) -> bool:
        """Every change is on the device."""
        return not self._journal

    # --- Looking --------------------------------------------------------------------------------------------------

    def find(self, path: Path) -> Inode:
        inode = self.files.get(path)
        if inode is None:
            code = errno.EISDIR if path in self.directories else errno.ENOENT
            raise OSError(code, os.strerror(code), str(path))
        return inode

    def require_directory(self, path: Path) -> None:
        if path not in self.directories:
            code = errno.ENOTDIR if path in self.files else errno.ENOENT
            raise OSError(code, os.strerror(code), str(path))

    def listed(self, directory: Path) -> list[str]:
        self.require_directory(directory)
        found = (*self.files, *self.directories)
        return sorted(path.name for path in found if path.parent == directory and path != directory)

    # --- Crashes --------------------------------------------------------------------------------------------------

    def fork(self, copies: dict[int, Inode]) -> Names:
        """The same over the inodes in `copies` (by `id` of the original), which is filled where one is missing."""

        def copied(inode: Inode) -> Inode:
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
            return copies[id(inode)]

        other = Names.__new__(Names)
        other._ordered = self._ordered
        other.directories = set(self.directories)
        other.files = {path: copied(inode) for path, inode in self.files.items()}
        directories, files = self._durable
        other._durable = (set(directories), {path: copied(inode) for path, inode in files.items()})
        other._journal = [
            replace(change, inode=None if change.inode is None else copied(change.inode)) for change in self._journal
        ]
        return other

    def lose_power(self, random: Random) -> None:
        """Only what is on the device is left, and what of the journal happened to get there."""
        if self._ordered:
            arrived = self._journal[: random.randint(0, len(self._journal))]
        else:
            chance = random.choice((0.0, 0.5, 0.9, 1.0))
            arrived = [change for change in self._journal if random.random() < chance]
        directories, files = self._durable
        for change in arrived:
            _persist(change, directories, files)
        self.directories = {path for path in directories if all(parent in directories for parent in path.parents)}
        self.files = {path: inode for path, inode in files.items() if path.parent in self.directories}
        self._durable = (set(self.directories), dict(self.files))
        self._journal = []

    def replace_inodes(self, replaced: dict[int, Inode]) -> None:
        """After `lose_power`: put other inodes, by `id` of those there now, under the names."""
        self.files = {path: replaced[id(inode)] for path, inode in self.files.items()}
        self._durable = (set(self.directories), dict(self.files))

    def _change(self, change: Change) -> None:
        self._journal.append(change)
        _apply(change, self.directories, self.files)


def _apply(change: Change, directories: set[Path], files: dict[Path, Inode]) -> None:
    if change.inode is None:
        assert change.new is not None
        if change.new == change.old:
            directories.add(change.old)
        elif change.old in directories:
            _move_directory(change.old, change.new, directories, files)
        return
    if files.get(change.old) is change.inode:
        del files[change.old]
    if change.new is not None:
        files[change.new] = change.inode


def _move_directory(old: Path, new: Path, directories: set[Path], files: dict[Path, Inode]) -> None:
    for path in [path for path in directories if path.is_relative_to(old)]:
        directories.remove(path)
        directories.add(new / path.relative_to(old))
    for path in [path for path in files if path.is_relative_to(old)]:
        files[new / path.relative_to(old)] = files.pop(path)


def _persist(change: Change, directories: set[Path], files: dict[Path, Inode]) -> None:
    _apply(change, directories, files)
    if change.inode is not None:
        change.inode.durable_size = max(change.inode.durable_size, change.allocated)
