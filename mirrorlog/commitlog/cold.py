"""Reading what is no longer mapped: a job for a helper thread, since the loop never waits for a disk."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mirrorlog.commitlog.files import Files, disk_error
from mirrorlog.commitlog.format import check_stamped
from mirrorlog.commitlog.scan import bad_bytes
from mirrorlog.errors import BadBatch, OffsetOutOfRange


class ColdRead:
    """Whole batches [log_offset, end) of one segment file that begins at log offset `start`."""

    __slots__ = ("_files", "_path", "_seed", "_start", "end", "log_offset")

    def __init__(self, files: Files, path: Path, *, start: int, log_offset: int, end: int, seed: int) -> None:
        self._files = files
        self._path = path
        self._start = start
        self._seed = seed
        self.log_offset = log_offset
        self.end = end

    def run(self) -> bytes:
        """The bytes. Every header is checked; bodies carry the producer's checksum to whoever reads them.

        Raises DiskFailed for an unreadable disk, LogCorrupt for a bad header, OffsetOutOfRange when the file was
        removed meanwhile.
        """
        if self.end == self.log_offset:
            return b""
        content = bytearray(self.end - self.log_offset)
        try:
            with closing(self._files.open(self._path)) as file:
                file.pread(memoryview(content), self.log_offset - self._start)
        except FileNotFoundError:
            raise OffsetOutOfRange(f"log offset {self.log_offset} was removed while it was read") from None
        except OSError as error:
            raise disk_error(error, "read", self._path) from None
        self._check(content)
        return bytes(content)

    def _check(self, content: bytearray) -> None:
        at = 0
        while at < len(content):
            place = self.log_offset + at
            try:
                left = len(content) - at
                header = check_stamped(content, at, log_offset=place, seed=self._seed, max_batch_bytes=left)
            except BadBatch as error:
                raise bad_bytes(place, self.end, self._path, error.message) from None
            at += header.length
