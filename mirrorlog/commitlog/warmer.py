"""What is prepared ahead of the tail, on a helper thread: the next pages, and the next file.

A page fault on the loop costs a factor of three to five on an append, a new file far more. So a window of pages after
the tail is made present, and when the active segment is half full the next file is allocated under the name
`spare-<n>`. A roll renames it before the first byte is stored in it.

A flush makes pages read-only until they are touched again (that is how the kernel notices writes), so the window is
walked once more after each flush.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.segment import Segment, SpareFile, make_spare_file

SPARE_PREFIX: Final = "spare-"
PIECE_BYTES: Final = 1024 * 1024

# Never the same name twice in a process: a job of a log that was closed meanwhile cannot touch its successor's file.
_numbers = itertools.count(1)


def spare_path(directory: Path) -> Path:
    return directory / f"{SPARE_PREFIX}{next(_numbers)}"


class WarmJob:
    """One round of preparing. `run` belongs on a helper thread and touches nothing that the loop changes."""

    __slots__ = ("_files", "_spare_wanted", "error", "populated", "segment", "spare", "to", "window")

    def __init__(self, files: Files, segment: Segment, window: tuple[int, int], spare: tuple[Path, int] | None) -> None:
        self._files = files
        self._spare_wanted = spare
        self.segment = segment
        first, self.to = window
        assert segment.view is not None
        self.window = segment.view[first : self.to]
        self.populated = True
        self.spare: SpareFile | None = None
        self.error: OSError | None = None

    def run(self) -> None:
        """Raises nothing: a disk that is full now is told to the loop, and met again only if a roll needs the file."""
        try:
            self._populate(self.window)
            if self._spare_wanted is not None:
                self.spare = make_spare_file(self._files, *self._spare_wanted)
        except OSError as error:
            self.error = error

    def _populate(self, window: memoryview) -> None:
        # In pieces, because the kernel holds the process's memory map for the length of one call.
        for at in range(0, len(window), PIECE_BYTES):
            if not self._files.populate(window[at : at + PIECE_BYTES]):
                self.populated = False
                return


class Warmer:
    """Decides what to prepare next; one job at a time. Used on the loop only."""

    __slots__ = ("_files", "_pending", "_refused", "_segment", "_warm_to", "directory", "populate_bytes",
                 "segment_bytes", "spare")  # fmt: skip

    def __init__(self, files: Files, directory: Path, *, segment_bytes: int, populate_bytes: int) -> None:
        self._files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.populate_bytes = populate_bytes
        self.spare: SpareFile | None = None
        self._segment: Segment | None = None
        self._warm_to = 0
        self._pending: WarmJob | None = None
        self._refused = False

    def start(self, active: Segment) -> WarmJob | None:
        """The next job, or None when all is warm or one is out already."""
        if self._pending is not None:
            return None
        window = self._next_window(active)
        wants_spare = self.spare is None and not self._refused and active.room * 2 <= active.capacity
        if window[0] == window[1] and not wants_spare:
            return None
        spare = (spare_path(self.directory), self.segment_bytes) if wants_spare else None
        self._pending = WarmJob(self._files, active, window, spare)
        return self._pending

    def complete(self, job: WarmJob) -> None:
        """Take over what `job` prepared."""
        if job is not self._pending:
            self.discard(job.spare)
            return
        self._pending = None
        if not job.populated:
            self.populate_bytes = 0
        if job.segment is self._segment:
            self._warm_to = max(self._warm_to, job.to)
        self._refused = job.error is not None
        self.spare = job.spare or self.spare

    def take(self) -> SpareFile | None:
        """The spare file, which is the caller's from here on."""
        spare, self.spare = self.spare, None
        return spare

    def cooled(self) -> None:
        """The pages must be walked again, and a spare that was refused may be asked for again."""
        self._segment = None
        self._refused = False

    def close(self) -> None:
        """Remove the spare. A job that is still out removes its own when it is completed."""
        self._pending = None
        self.discard(self.take())

    def _next_window(self, active: Segment) -> tuple[int, int]:
        """File positions to populate, [first, to): more only once half of the window is used up."""
        tail = active.end - active.start
        if active is not self._segment:
            self._segment, self._warm_to = active, tail
        if self._warm_to - tail > self.populate_bytes // 2 or active.view is None:
            return 0, 0
        first = max(tail, self._warm_to) & -mmap.PAGESIZE
        to = min(tail + self.populate_bytes, active.capacity)
        return (first, to) if to > self._warm_to else (0, 0)

    def discard(self, spare: SpareFile | None) -> None:
        """Remove a spare that will not be used."""
        if spare is not None:
            spare.file.close()
            with contextlib.suppress(OSError):  # recovery removes it
                self._files.unlink(spare.path)
