"""A file on a disk with bad sectors: what cannot be read is passed over, so that what stands behind is found."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import OsFile, disk_error

SECTOR_BYTES: Final = 4096
_FILLING: Final = b"\xff"
"""In the place of what cannot be read: never zeros, since zeros in the place of a header end a file."""


class SectorFile(OsFile):
    """A file for reading. `unreadable`: places of the sectors that gave an error, in the order in which they did."""

    __slots__ = ("_path", "unreadable")

    def __init__(self, fd: int, path: Path) -> None:
        super().__init__(fd)
        self._path = path
        self.unreadable: dict[int, None] = {}

    def pread(self, into: memoryview, at: int) -> int:
        """As OsFile's, with other bytes in the place of those that cannot be read.

        Raises DiskFailed for all else: named here, so that nobody takes what writes the found bytes for the disk.
        """
        try:
            return super().pread(into, at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise disk_error(error, "read", self._path) from None
        return self._by_sector(into, at)

    def _by_sector(self, into: memoryview, at: int) -> int:
        size = min(len(into), max(0, self.size() - at))
        done = 0
        while done < size:
            place = at + done
            part = into[done : min(size, done + SECTOR_BYTES - place % SECTOR_BYTES)]
            try:
                super().pread(part, place)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise disk_error(error, "read", self._path) from None
                self.unreadable[place - place % SECTOR_BYTES] = None
                part[:] = _FILLING * len(part)
            done += len(part)
        return done
