"""The pages right before a log's tail are made writable by a helper thread: an append takes no page fault on the loop.

A flush makes pages read-only until they are touched again (that is how the kernel notices writes), so the window is
walked once more after each flush. It is small: a large one would make every flush slow, and be undone by it.

Where the window reaches beyond the active file it goes on in the spare, which is the next one: preparing has synced
that, so its pages are read-only too, and a fault on the first of them waits for whatever the disk does at that moment.
"""

from __future__ import annotations

import mmap

from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.segments.preallocation import AHEAD_TIMES, PIECE_BYTES, share_of
from mirrorlog.commitlog.segments.segment import Segment, SpareFile


class WarmJob:
    """One round of warming. `run` belongs on a helper thread and touches nothing that the loop changes.

    `view`: of the file; `window`: what of it is walked, up to file position `to`.
    """

    __slots__ = ("_files", "error", "supported", "to", "view", "window")

    def __init__(self, files: Files, view: memoryview, window: tuple[int, int]) -> None:
        self._files = files
        self.view = view
        first, self.to = window
        self.window = view[first : self.to]
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


class _Walked:
    """How far the pages of one file were walked since they were last made read-only."""

    __slots__ = ("to", "view")

    def __init__(self) -> None:
        self.view: memoryview | None = None
        self.to = 0

    def of(self, view: memoryview, at_least: int) -> int:
        """Up to where `view` is walked; another file than before is walked up to `at_least`."""
        if view is not self.view:
            self.view, self.to = view, at_least
        return self.to

    def note(self, job: WarmJob) -> None:
        if job.view is self.view:
            self.to = max(self.to, job.to)

    def forget(self) -> None:
        self.view = None


class Warmer:
    """Decides which pages are due; one job at a time. Used on the loop only."""

    __slots__ = ("_active", "_files", "_pending", "_spare", "_window", "populate_bytes")

    def __init__(self, files: Files, *, populate_bytes: int) -> None:
        self._files = files
        self.populate_bytes = self._window = populate_bytes
        self._active = _Walked()
        self._spare = _Walked()
        self._pending: WarmJob | None = None

    def start(self, active: Segment, spare: SpareFile | None, *, grown: int = 0, sharers: int = 1) -> WarmJob | None:
        """The next job, or None when all is warm or one is out already. `grown`, `sharers`: see `Preparer.start`."""
        if not self.populate_bytes or self._pending is not None or active.view is None:
            return None
        self._window = min(self.populate_bytes, max(share_of(self.populate_bytes, sharers), AHEAD_TIMES * grown))
        if active.view is self._spare.view:
            # A roll: what was walked of the spare is walked.
            self._active, self._spare = self._spare, _Walked()
        self._pending = self._in_active(active, active.view) or self._in_spare(active, spare)
        return self._pending

    def complete(self, job: WarmJob) -> None:
        """Take note of what `job` warmed."""
        if job is not self._pending:
            return
        self._pending = None
        if not job.supported:
            self.populate_bytes = 0
        self._active.note(job)
        self._spare.note(job)

    def cooled(self) -> None:
        """A flush: the active file's pages must be walked again."""
        self._active.forget()

    def spare_cooled(self) -> None:
        """The spare was synced: so must its own."""
        self._spare.forget()

    def close(self) -> None:
        """A job that is still out changes nothing any more."""
        self._pending = None

    def _in_active(self, active: Segment, view: memoryview) -> WarmJob | None:
        """More only once half of the window is used up."""
        tail = active.end - active.start
        warm_to = self._active.of(view, tail)
        if warm_to - tail > self._window // 2:
            return None
        to = min(tail + self._window, active.capacity)
        return WarmJob(self._files, view, (max(tail, warm_to) & -mmap.PAGESIZE, to)) if to > warm_to else None

    def _in_spare(self, active: Segment, spare: SpareFile | None) -> WarmJob | None:
        """All of the window at once, as soon as it reaches there: it is needed at one moment, the roll."""
        if spare is None or active.room >= self._window:
            return None
        warm_to, to = self._spare.of(spare.view, 0), min(self._window, spare.capacity)
        return WarmJob(self._files, spare.view, (warm_to, to)) if to > warm_to else None
