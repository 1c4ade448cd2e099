"""A walk over a whole log that does not stop at bad bytes: every good batch, and every range that holds none.

A node's recovery stops at the first bad byte, since it must decide what to do; a tool wants to see all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from mirrorlog.commitlog.damage import Range
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format import ALIGNMENT, BatchHeader
from mirrorlog.commitlog.scan import BlockReader, OnBatch, Rules, find_batch, nonzero_end, walk
from mirrorlog.tools.log_directory import LogDirectory, SegmentFile, open_segment


@dataclass(slots=True)
class Survey:
    """What a walk found. `end`: log offset behind the last good batch. `bad`: ranges before that which hold no batch,
    in order. `tail`: bytes behind `end` that are no batch and not zero."""

    batches: int = 0
    records: int = 0
    end: int = 0
    bad: list[Range] = field(default_factory=list)
    tail: Range | None = None

    def corrupt(self, flushed: int) -> list[Range]:
        """The ranges that no crash explains: good batches follow them, or they were on disk once (below `flushed`).

        A tail above `flushed` is cut by the node's next start, or is being written just now.
        """
        found = list(self.bad)
        if self.tail is not None and self.tail.first < flushed:
            found.append(self.tail)
        elif self.tail is None and self.end < flushed:
            found.append(Range(self.end, flushed, "the log ends too early"))
        return found


def survey(log: LogDirectory, on_batch: OnBatch, *, segments: Sequence[SegmentFile] | None = None) -> Survey:
    """Walk the log, or only `segments` of it, and give every good batch to `on_batch`. Raises DiskFailed."""
    chosen = _holding(log) if segments is None else segments
    found = Survey(end=log.begin if segments is None else chosen[0].start)
    for segment in chosen:
        if found.tail is not None or segment.start > found.end:
            _close_gap(found, segment)
        try:
            _walk_segment(log.rules, segment, found, on_batch)
        except OSError as error:
            raise disk_error(error, "read", segment.path) from None
    return found


def _holding(log: LogDirectory) -> list[SegmentFile]:
    """The segments from the one that holds the log's begin on."""
    first = max((segment.start for segment in log.segments if segment.start <= log.begin), default=0)
    return [segment for segment in log.segments if segment.start >= first]


def _close_gap(found: Survey, segment: SegmentFile) -> None:
    """What could have been a tail, or a file's end, is a bad range once another file follows."""
    reason = found.tail.reason if found.tail is not None else f"no file holds it before {segment.path.name}"
    found.tail = None
    if segment.start > found.end:
        found.bad.append(Range(found.end, segment.start, reason))


def _walk_segment(rules: Rules, segment: SegmentFile, found: Survey, on_batch: OnBatch) -> None:
    def count(header: BatchHeader, batch: memoryview) -> None:
        found.batches += 1
        found.records += header.record_count
        found.end = header.next_log_offset
        on_batch(header, batch)

    start = segment.start
    with closing(open_segment(segment)) as file:
        reader = BlockReader(file)
        at = max(0, found.end - start)
        while True:
            stop = walk(reader, start=start, at=at, until=reader.size, rules=rules, on_batch=count)
            nonzero = nonzero_end(reader, stop.at)
            if nonzero <= stop.at:
                return
            following = find_batch(reader, start=start, at=stop.at + ALIGNMENT, rules=rules)
            if following is None:
                found.tail = Range(start + stop.at, start + nonzero, stop.reason)
                return
            found.bad.append(Range(start + stop.at, following.log_offset, stop.reason))
            at = following.log_offset - start
