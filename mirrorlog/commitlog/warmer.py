"""The pages right before the tail, made writable by a helper thread, so that an append takes no page fault on the loop.

A flush makes pages read-only until they are touched again (that is how the kernel notices writes), so the window is
walked once more after each flush. It is small: a large one would make every flush slow, and be undone by it.
"""

from __future__ import annotations

import mmap
from typing import Final

from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.segment import Segment

PIECE_BYTES: Final = 1024 * 1024


class WarmJob:
    """One round of warming. `run` belongs on a helper thread and touches nothing that the loop changes."""

    __slots__ = ("_files", "error", "segment", "supported", "to", "window")

    def __init__(self, files: Files, segment: Segment, window: tuple[int, int]) -> None:
        self._files = files
        self.segment = segment
        first, self.to = window
        assert segment.view is not None
        self.window = segment.view[first : self.to]
        self.supported = True
        self.error: OSError | None = None

    def run(self) -> None:
        """Raises nothing: without it appends are slower, not wrong."""
        try:
            # In pieces, because the kernel holds the process's memory map for the length of one call.
            for at in range(0, len(self.window), PIECE_BYTES):
                self.supported = self.supported and self._files.populate(self.window[at : at + PIECE_BYTES])
        except OSError as error:
            self.error = error


class Warmer:
    """Decides which pages are due; one job at a time. Used on the loop only."""

    __slots__ = ("_files", "_pending", "_segment", "_warm_to", "populate_bytes")

    def __init__(self, files: Files, *, populate_bytes: int) -> None:
        self._files = files
        self.populate_bytes = populate_bytes
        self._segment: Segment | None = None
        self._warm_to = 0
        self._pending: WarmJob | None = None

    def start(self, active: Segment) -> WarmJob | None:
        """The next job, or None when all is warm or one is out already."""
        if self._pending is not None:
            return None
        window = self._next_window(active)
        if window[0] == window[1]:
            return None
        self._pending = WarmJob(self._files, active, window)
        return self._pending

    def complete(self, job: WarmJob) -> None:
        """Take note of what `job` warmed."""
        if job is not self._pending:
            return
        self._pending = None
        if not job.supported:
            self.populate_bytes = 0
        if job.segment is self._segment:
            self._warm_to = max(self._warm_to, job.to)

    def cooled(self) -> None:
        """The pages must be walked again."""
        self._segment = None

    def close(self) -> None:
        """A job that is still out changes nothing any more."""
        self._pending = None

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
