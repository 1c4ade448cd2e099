"""How far damage reaches: what stands behind a place where a batch must begin and none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.format.header import ALIGNMENT
from mirrorlog.commitlog.segments.scan import BatchRules, BlockReader, find_batch, ignore_batch, nonzero_end, walk


@dataclass(frozen=True, slots=True)
class Range:
    """Log offsets [first, last), and what is wrong with them."""

    first: int
    last: int
    reason: str

    def __str__(self) -> str:
        return f"{self.first}..{self.last} ({self.reason})"


class FileStretch(NamedTuple):
    """A file, from position `at` on; `start` is the log offset of its first byte."""

    start: int
    path: Path
    at: int


class Damage(NamedTuple):
    """`bad`: from the place to the next valid batch, or to the last byte that is not zero. `valid`: from that batch to
    the end of the last valid one; None when there is none."""

    bad: Range
    valid: Range | None


def assess(files: Files, rules: BatchRules, *, place: int, reason: str, stretches: Sequence[FileStretch]) -> Damage:
    """Search the stretches, the first of which begins at `place` or behind it. Raises OSError."""
    first = last = None
    nonzero = place
    for stretch in stretches:
        with closing(files.open(stretch.path)) as file:
            reader = BlockReader(file)
            for run in _valid_runs(reader, stretch, rules):
                if run[0] >= place:
                    first, last = first or run, run
            nonzero = max(nonzero, stretch.start + nonzero_end(reader, stretch.at))
    if first is None or last is None:
        return Damage(Range(place, nonzero, reason), None)
    return Damage(Range(place, first[0], reason), Range(first[0], last[1], "valid batches behind bad bytes"))


def next_valid(files: Files, rules: BatchRules, stretch: FileStretch) -> int | None:
    """The log offset of the first valid batch in `stretch`. Raises OSError."""
    with closing(files.open(stretch.path)) as file:
        header = find_batch(BlockReader(file), start=stretch.start, at=stretch.at, rules=rules)
        return None if header is None else header.log_offset


def _valid_runs(reader: BlockReader, stretch: FileStretch, rules: BatchRules) -> Iterator[tuple[int, int]]:
    """Log offsets [first, end) of each run of valid batches."""
    at = stretch.at
    while (header := find_batch(reader, start=stretch.start, at=at, rules=rules)) is not None:
        first = header.log_offset
        stop = walk(
            reader, start=stretch.start, at=first - stretch.start, until=reader.size, rules=rules, on_batch=ignore_batch
        )
        yield first, stretch.start + stop.at
        at = stop.at + ALIGNMENT
