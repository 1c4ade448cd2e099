"""A walk over a whole log that does not stop at bad bytes: every good batch, and every range that holds none.

A node's recovery stops at the first bad byte, since it must decide what to do; a tool wants to see all of it. Beside a
running node the walk may meet a file that is freed, or used again, while it is read: what it found there is forgotten
when the log's start offset has passed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format.header import ALIGNMENT, HEADER_SIZE, BatchHeader, is_envelope
from mirrorlog.commitlog.log_directory import LogDirectory, SegmentFile
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.segments.scan import BlockReader, OnBatch, Stop, find_batch, nonzero_end, walk
from mirrorlog.tools.offline.log_directory import SECTOR_BYTES, SectorFile, open_segment

RANGES_MAX: Final = 1000
"""Bad ranges that are kept; further ones are only counted."""

_UNREADABLE: Final = "the disk does not give it"

OnBad = Callable[[Range], None]
"""Called with a range that holds no batch, before the batch that follows it."""

OnSegment = Callable[[SegmentFile, int, bool], None]
"""Called behind the last batch of a file: with the log offset there, and whether batches fill it from where the file
before ended without a gap."""


@dataclass(slots=True)
class Survey:
    """What a walk found. `end`: log offset behind the last good batch. `bad`: ranges before that which hold no batch,
    in order, the first RANGES_MAX of `bad_count`; `last_bad` is the last of all. `tail`: bytes behind `end` that are no
    batch and not zero, and do not stand behind the zeros that end a file. `freed`: up to here a running node has freed
    the log meanwhile. `unreadable`: what the disk did not give; it is in bad ranges too where a batch should be."""

    batches: int = 0
    records: int = 0
    end: int = 0
    bad: list[Range] = field(default_factory=list)
    bad_count: int = 0
    last_bad: Range | None = None
    tail: Range | None = None
    freed: int = 0
    unreadable: list[Range] = field(default_factory=list)

    def corrupt(self, flushed: int, *, moving: bool = False) -> list[Range]:
        """The ranges that no crash explains: good batches follow them, or they were on disk once (below `flushed`).

        A tail above `flushed` is cut by the node's next start. `moving`: a node is writing there, nothing above it is
        what it seems.
        """
        found = [each for each in self.bad if not moving or each.first < flushed]
        if self.tail is not None and self.tail.first < flushed:
            found.append(self.tail)
        elif self.tail is None and self.end < flushed:
            found.append(Range(self.end, flushed, "the log ends too early"))
        return found

    def add_bad(self, found: Range) -> None:
        self.bad_count += 1
        self.last_bad = found
        if len(self.bad) < RANGES_MAX:
            self.bad.append(found)

    def forget_below(self, begin: int) -> None:
        """The log begins there now."""
        self.freed = max(self.freed, begin)
        left = [each for each in self.bad if each.last > begin]
        self.bad_count -= len(self.bad) - len(left)
        self.bad = left
        self.last_bad = left[-1] if left else None


def survey(
    log: LogDirectory,
    on_batch: OnBatch,
    *,
    segments: Sequence[SegmentFile] | None = None,
    first: int | None = None,
    on_bad: OnBad | None = None,
    on_segment: OnSegment | None = None,
) -> Survey:
    """Walk the log, or only `segments` of it, and give every good batch to `on_batch`.

    `first`: the log offset of the first batch, by default the log's start offset. Raises DiskFailed when the log cannot
    be read, and what the callbacks raise.
    """
    chosen = log.holding if segments is None else segments
    walker = _Walker(log, Survey(end=log.begin if first is None else first), on_batch, on_bad, on_segment)
    for number, segment in enumerate(chosen):
        following = chosen[number + 1].start if number + 1 < len(chosen) else None
        walker.take(segment, following)
    return walker.found


@dataclass(slots=True)
class _Walker:
    """One walk, file after file."""

    log: LogDirectory
    found: Survey
    on_batch: OnBatch
    on_bad: OnBad | None
    on_segment: OnSegment | None

    def take(self, segment: SegmentFile, following: int | None) -> None:
        """`following`: the log offset at which the next file begins."""
        found = self.found
        bad_before = found.bad_count
        whole = segment.start <= found.end and found.tail is None
        if found.tail is not None or segment.start > found.end:
            self._close_gap(segment)
        if (file := self._open(segment)) is not None:
            with closing(file):
                self._walk(file, segment.start, following)
        if found.bad_count > bad_before or found.tail is not None:
            self._freed(segment)
        if self.on_segment is not None:
            whole = whole and found.bad_count == bad_before and found.tail is None
            self.on_segment(segment, found.end, whole)

    def _open(self, segment: SegmentFile) -> SectorFile | None:
        """None for a file that a running node has freed meanwhile. Raises DiskFailed."""
        try:
            return open_segment(segment)
        except FileNotFoundError:
            if self._freed(segment):
                return None
            raise disk_error(FileNotFoundError(2, "the file is gone"), "read", segment.path) from None
        except OSError as error:
            raise disk_error(error, "read", segment.path) from None

    def _freed(self, segment: SegmentFile) -> bool:
        """Whether a running node has moved the log's start offset past this file; then nothing in it counts."""
        now = self.log.read_checkpoint()
        if now is None or now.begin <= max(segment.start, self.log.begin):
            return False
        self.found.forget_below(now.begin)
        if self.found.end < now.begin:
            if self.on_bad is not None:
                self.on_bad(Range(self.found.end, now.begin, "freed by the running node"))
            self.found.end, self.found.tail = now.begin, None
        return True

    def _close_gap(self, segment: SegmentFile) -> None:
        """What could have been a tail, or a file's end, is a bad range once another file follows."""
        found = self.found
        reason = found.tail.reason if found.tail is not None else f"no file holds it before {segment.path.name}"
        found.tail = None
        if segment.start > found.end:
            self._bad(Range(found.end, segment.start, reason))

    def _bad(self, bad: Range) -> None:
        self.found.add_bad(bad)
        if self.on_bad is not None:
            self.on_bad(bad)

    def _walk(self, file: SectorFile, start: int, following: int | None) -> None:
        """`start`: the log offset of the file's first byte."""
        found, on_batch, rules = self.found, self.on_batch, self.log.rules

        def count(header: BatchHeader, batch: memoryview) -> None:
            found.batches += 1
            found.records += 0 if is_envelope(header) else header.record_count
            found.end = header.next_log_offset
            on_batch(header, batch)

        reader = BlockReader(file)
        at: int | None = max(0, found.end - start)
        while at is not None:
            stop = walk(reader, start=start, at=at, until=reader.size, rules=rules, on_batch=count)
            at = self._pass_bad(reader, start, stop, following)
        self._note_unreadable(start, file.unreadable)

    def _pass_bad(self, reader: BlockReader, start: int, stop: Stop, following: int | None) -> int | None:
        """The file position of the next batch behind the place where a walk ended, or None when there is none."""
        # Zeros in the place of a header end a file; behind them stands what a recycled one held before.
        ended = not any(reader.view(stop.at, HEADER_SIZE))
        if ended and (stop.at >= reader.size or start + stop.at == following):
            return None
        behind = find_batch(reader, start=start, at=stop.at + ALIGNMENT, rules=self.log.rules)
        if behind is not None:
            self._bad(Range(start + stop.at, behind.log_offset, stop.reason))
            return behind.log_offset - start
        if not ended:
            self.found.tail = Range(start + stop.at, start + nonzero_end(reader, stop.at), stop.reason)
        return None

    def _note_unreadable(self, start: int, places: Iterable[int]) -> None:
        """Sectors of the file that begins at log offset `start`, neighbours as one range."""
        found = self.found.unreadable
        for place in sorted(places):
            first, last = start + place, start + place + SECTOR_BYTES
            if found and found[-1].last == first:
                found[-1] = Range(found[-1].first, last, _UNREADABLE)
            elif len(found) < RANGES_MAX:
                found.append(Range(first, last, _UNREADABLE))
