"""A segment: one file of a log, named by its first log offset in 20 digits, and where its batches begin.

A file is allocated to its full size before it gets its name and before anything is stored in it. The batches stand
one after another from its first byte. Zeros in the place of a header end them; behind these zeros stands nothing that
counts: zeros in a new file, former batches in a recycled one, which are at none of this log's places.
"""

from __future__ import annotations

import contextlib
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import File, Files
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.errors import BadRequest

NAME_DIGITS: Final = 20


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def segment_start(name: str) -> int | None:
    """The log offset that a file's name says, or None when it is no segment's name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


@dataclass(slots=True)
class Segment:
    """Log offsets: holds [start, end). `capacity`: bytes of the file. `borders`: where each batch begins; `inside`:
    where those do that stand inside of transactions, which may be read alone, and are copied and cut with the others.

    `file` and `view` (writable memory) are there while the segment is the active one, not yet flushed, or kept for
    readers; without them it is read by pread. A view that was given out keeps its mapping alive by itself, so dropping
    one here never takes memory from under a reader. `prepared_to`: a position in the file, see `preallocation`.
    `pin`: set when `view` is dropped, tells whether readers still hold parts of it.
    `left_at`: when another one was first seen to be active, by the caller's clock (s).
    `recycled`: old bytes may follow the end, so every append must end the log anew. `sealed`: its table is written and
    `borders` and `inside` are empty; only cold reads find batches in it.
    """

    start: int
    path: Path
    capacity: int
    end: int
    borders: array[int] = field(default_factory=lambda: array("Q"))
    inside: array[int] = field(default_factory=lambda: array("Q"))
    file: File | None = None
    view: memoryview | None = None
    pin: Callable[[], object | None] | None = None
    prepared_to: int = 0
    left_at: float = 0.0
    recycled: bool = False
    sealed: bool = False
    last_append_time_us: int = 0

    @property
    def room(self) -> int:
        """Bytes left."""
        return self.start + self.capacity - self.end

    def append_border(self, length: int) -> None:
        """A batch of `length` bytes now stands at the end."""
        self.borders.append(self.end)
        self.end += length

    def run_end(self, log_offset: int, max_bytes: int, until: int) -> int:
        """Where a run of whole batches from `log_offset` ends: at least one batch, at most `max_bytes` unless the first
        alone is larger, none beyond `until` (then the run is empty). Raises BadRequest.

        From a batch inside of a transaction on, also others inside of it follow one by one.
        """
        limit = min(log_offset + max_bytes, until)
        if self.inside and (within := _place(self.inside, log_offset)) is not None:
            return self._run_end_inside(within, limit, until)
        if (index := _place(self.borders, log_offset)) is None:
            raise BadRequest(f"log offset {log_offset} is not where a batch begins")
        if self.end <= limit:
            return self.end
        last = bisect_right(self.borders, limit) - 1
        if last > index:
            return self.borders[last]
        first_end = self.borders[index + 1] if index + 1 < len(self.borders) else self.end
        return first_end if first_end <= until else log_offset

    def _run_end_inside(self, within: int, limit: int, until: int) -> int:
        log_offset = self.inside[within]
        following = bisect_right(self.borders, log_offset)
        behind = self.borders[following] if following < len(self.borders) else self.end
        if behind <= limit:
            # Out of its transaction: from here on as anywhere.
            return self.end if self.end <= limit else self.borders[bisect_right(self.borders, limit) - 1]
        last = bisect_right(self.inside, limit) - 1
        if last > within:
            return self.inside[last]
        first_end = min(behind, self.inside[within + 1]) if within + 1 < len(self.inside) else behind
        return first_end if first_end <= until else log_offset

    def cut(self, log_offset: int) -> None:
        """Forget the batches from `log_offset` on."""
        del self.borders[bisect_left(self.borders, log_offset) :]
        del self.inside[bisect_left(self.inside, log_offset) :]
        self.end = log_offset


def _place(rising: array[int], log_offset: int) -> int | None:
    """Where among them it is; None when it is not."""
    index = bisect_left(rising, log_offset)
    return index if index < len(rising) and rising[index] == log_offset else None


@dataclass(slots=True)
class SpareFile:
    """An allocated, mapped file that is no segment yet: zero, or `recycled`."""

    path: Path
    capacity: int
    file: File
    view: memoryview
    prepared_to: int = 0
    recycled: bool = False

    def as_segment(self, start: int, path: Path) -> Segment:
        return Segment(
            start, path, self.capacity, start, file=self.file, view=self.view, prepared_to=self.prepared_to,
            recycled=self.recycled,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FreedFile:
    """A segment file that is the log's no more. `pin` gives None once no view of it is out."""

    path: Path
    capacity: int
    pin: Callable[[], object | None]


def pin_of(view: memoryview | None) -> Callable[[], object | None]:
    """Tells whether the map of a view, dropped here, is still held by somebody who was given a part of it."""
    if view is None:
        return lambda: None
    try:
        return weakref.ref(view.obj)
    except TypeError:  # memory of a kind that cannot be watched: nobody is given views of it
        return lambda: None


def recycle_file(files: Files, freed: FreedFile, path: Path) -> SpareFile:
    """The file as a spare under `path`, its old content in place but for the first header. Raises OSError; it has its
    old name then."""
    file = files.open(freed.path)
    file.pwrite(bytes(HEADER_SIZE), 0)
    view = file.map()
    files.rename(freed.path, path)
    return SpareFile(path, freed.capacity, file, view, prepared_to=freed.capacity, recycled=True)


def make_spare_file(files: Files, path: Path, size: int) -> SpareFile:
    """Raises OSError (ENOSPC on a full disk), and then leaves no file behind."""
    file = files.open(path, create=True)
    try:
        file.allocate(size)
        view = file.map()
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            files.unlink(path)
        raise
    return SpareFile(path, size, file, view)
