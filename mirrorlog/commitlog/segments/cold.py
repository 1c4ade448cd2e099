"""Reading what is no longer mapped: a job for a helper thread, since the loop never waits for a disk.

It leaves the page cache as it was (`File.pread_past`): whoever reads a hundred gigabytes of the past once would drive
out what is needed all the time, the tail and the pages prepared ahead of it. What was in memory already stays there.
Figures, and what else was tried: decision 0007.

Bodies are checked as well. Whoever is sent the bytes does that too, but cannot tell a bad copy from a bad way; here the
copy itself is read, and on the helper a checksum costs nothing that anybody waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from mirrorlog.commitlog.files import File, Files, disk_error
from mirrorlog.commitlog.format.header import HEADER_SIZE, check_body, check_stamped, read_header
from mirrorlog.commitlog.segments.scan import bad_bytes
from mirrorlog.errors import BadBatch, LogCorrupt, OffsetOutOfRange


class ColdRead:
    """Whole batches from `log_offset` on, up to `end`, of one segment file that begins at log offset `start`.

    `known_border`: a batch ends at `end`. Else the read ends with the last whole batch before it, and behind the first
    one even if that reaches further. `on_bad`: told of bad bytes, on the thread that reads.
    """

    __slots__ = ("_files", "_on_bad", "_path", "_seed", "_start", "end", "known_border", "log_offset")

    def __init__(
        self,
        files: Files,
        path: Path,
        *,
        start: int,
        log_offset: int,
        end: int,
        seed: int,
        known_border: bool,
        on_bad: Callable[[LogCorrupt], None],
    ) -> None:
        self._files = files
        self._path = path
        self._start = start
        self._seed = seed
        self._on_bad = on_bad
        self.log_offset = log_offset
        self.end = end
        self.known_border = known_border

    def run(self) -> memoryview:
        """The bytes, in memory of their own.

        Raises DiskFailed for an unreadable disk, LogCorrupt for a bad header or a body that does not match its
        checksum, OffsetOutOfRange when the file was removed meanwhile.
        """
        if self.end == self.log_offset and self.known_border:
            return memoryview(b"")
        try:
            with closing(self._files.open(self._path)) as file:
                content = self._read(file)
            self._check_bodies(content)
            return content
        except LogCorrupt as error:
            self._on_bad(error)
            raise
        except FileNotFoundError:
            raise OffsetOutOfRange(f"log offset {self.log_offset} was removed while it was read") from None
        except OSError as error:
            raise disk_error(error, "read", self._path) from None

    def _read(self, file: File) -> memoryview:
        content = self._pread(file, self.end - self.log_offset)
        if self.known_border:
            self._check(content)
            return content
        if len(content) < HEADER_SIZE or read_header(content).length > len(content):
            content = self._pread(file, self._first_length(file))
        whole = _whole_batches(content)
        self._check(content[:whole])
        return content[:whole]

    def _pread(self, file: File, size: int) -> memoryview:
        content = memoryview(bytearray(size))
        file.pread_past(content, self.log_offset - self._start)
        return content

    def _first_length(self, file: File) -> int:
        header = self._pread(file, HEADER_SIZE)
        try:
            left = file.size() - (self.log_offset - self._start)
            return check_stamped(header, 0, log_offset=self.log_offset, seed=self._seed, max_batch_bytes=left).length
        except BadBatch as error:
            raise bad_bytes(self.log_offset, self.log_offset + HEADER_SIZE, self._path, error.message) from None

    def _check(self, content: memoryview) -> None:
        at = 0
        while at < len(content):
            place = self.log_offset + at
            try:
                left = len(content) - at
                header = check_stamped(content, at, log_offset=place, seed=self._seed, max_batch_bytes=left)
            except BadBatch as error:
                raise bad_bytes(place, self.log_offset + len(content), self._path, error.message) from None
            at += header.length

    def _check_bodies(self, content: memoryview) -> None:
        at = 0
        while at < len(content):
            header = read_header(content, at)
            try:
                check_body(content, at, header)
            except BadBatch as error:
                place = self.log_offset + at
                raise bad_bytes(place, place + header.length, self._path, error.message) from None
            at += header.length


def _whole_batches(content: memoryview) -> int:
    """Where the last batch that `content` holds whole ends, by the lengths that the headers say."""
    at = 0
    while len(content) - at >= HEADER_SIZE:
        length = read_header(content, at).length
        if length < HEADER_SIZE or at + length > len(content):
            break
        at += length
    # Nothing whole: what stands first is no batch, and the check will say so.
    return at or len(content)
