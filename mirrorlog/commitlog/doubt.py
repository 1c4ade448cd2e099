"""That bytes of the past were found bad while the log was in use: the next opening believes no table before it has read
what the table speaks of.

An empty file, `doubtful`: a name may still be taken by a disk that takes no more bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Files

FILE_NAME: Final = "doubtful"


class Doubt:
    """The mark in a log's directory. Every method blocks and raises OSError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME

    @property
    def there(self) -> bool:
        """Whether it was raised and nobody has looked since."""
        return self._files.exists(self._path)

    def raise_(self) -> None:
        """On disk when this returns."""
        self._files.open(self._path, create=True).close()
        self._files.fsync_directory(self._path.parent)

    def settle(self) -> None:
        """Everything was read, or what is bad was cut."""
        if self.there:
            self._files.unlink(self._path)
            self._files.fsync_directory(self._path.parent)
