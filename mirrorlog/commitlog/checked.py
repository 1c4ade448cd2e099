"""A cold read that checks bodies too, and tells of bad bytes.

Whoever is sent the bytes checks them as well, but cannot tell a bad copy from a bad way; here the copy itself is read.
On the helper a checksum costs nothing that anybody waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirrorlog.commitlog.cold import ColdRead
from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.format import check_body, read_header
from mirrorlog.commitlog.scan import bad_bytes
from mirrorlog.errors import BadBatch, LogCorrupt


class CheckedRead(ColdRead):
    """`on_bad`: called on the thread that reads."""

    __slots__ = ("_on_bad", "_where")

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
        super().__init__(files, path, start=start, log_offset=log_offset, end=end, seed=seed, known_border=known_border)
        self._on_bad = on_bad
        self._where = path

    def run(self) -> memoryview:
        """As `ColdRead.run`; LogCorrupt for a body that does not match its checksum, too."""
        try:
            content = super().run()
            self._check_bodies(content)
        except LogCorrupt as error:
            self._on_bad(error)
            raise
        return content

    def _check_bodies(self, content: memoryview) -> None:
        at = 0
        while at < len(content):
            header = read_header(content, at)
            try:
                check_body(content, at, header)
            except BadBatch as error:
                place = self.log_offset + at
                raise bad_bytes(place, place + header.length, self._where, error.message) from None
            at += header.length
