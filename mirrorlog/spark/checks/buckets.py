"""Buckets: a log or a table as counts and checksums of equal ranges of queue offsets, and which of them differ. Pure.

Both sides become a line per bucket where their rows are, and only these lines travel: a thousand million records are
fifteen thousand lines. Two sides have equal lines when they have the same rows, in whatever order and files.

Rejected: a join of both sides by queue offset, which shuffles every row's hash to find that nothing differs; a hash of
the rows in order, which would need them sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from mirrorlog.spark.checks.differences import CHECKSUM_BITS, Difference, DifferenceKind, Side

BUCKET_OFFSETS: Final = 65_536
BUCKETS_MAX: Final = 200_000
"""More lines than these would make the driver's work more than the tasks'; then buckets are wider."""

_HALF_BITS: Final = 32
_MODULUS: Final[int] = 2**CHECKSUM_BITS


@dataclass(frozen=True, slots=True)
class OffsetBucket:
    """The rows with queue offsets `first` up to `last` (inclusive), which lie in bucket `number`.

    `low` and `high`: sums of the lower and the upper half of the rows' hashes, so that no sum of a bucket's rows
    leaves a signed 64-bit number.
    """

    number: int
    rows: int
    low: int
    high: int
    first: int
    last: int

    @property
    def checksum(self) -> int:
        return (self.low + (self.high << _HALF_BITS)) % _MODULUS

    @property
    def is_dense(self) -> bool:
        return self.rows == self.last + 1 - self.first


@dataclass(frozen=True, slots=True)
class BucketVerdict:
    """`known`: ranges that differ, told by the lines alone. `to_look_at`: numbers of buckets that differ somewhere."""

    known: tuple[Difference, ...]
    to_look_at: tuple[int, ...]

    @property
    def differ(self) -> bool:
        return bool(self.known or self.to_look_at)


def width(span: int, asked: int) -> int:
    """Queue offsets per bucket, for `span` of them: what was asked for, or more."""
    return max(asked, -(-span // BUCKETS_MAX))


def by_number(buckets: Iterable[OffsetBucket]) -> dict[int, OffsetBucket]:
    return {bucket.number: bucket for bucket in buckets}


def total(buckets: Mapping[int, OffsetBucket]) -> Side:
    """All of a side."""
    checksum = sum(bucket.checksum for bucket in buckets.values()) % _MODULUS
    return Side(sum(bucket.rows for bucket in buckets.values()), checksum)


def compared(log: Mapping[int, OffsetBucket], table: Mapping[int, OffsetBucket]) -> BucketVerdict:
    """Where the two differ. A bucket that the table lacks altogether need not be looked at: the log is dense there."""
    known, to_look_at = [], []
    for number in sorted(log.keys() | table.keys()):
        mine, its = log.get(number), table.get(number)
        if mine and its is None and mine.is_dense:
            known.append(Difference(DifferenceKind.MISSING_IN_TABLE, mine.first, mine.last + 1, 0))
        elif mine is None or its is None or (mine.rows, mine.checksum) != (its.rows, its.checksum):
            to_look_at.append(number)
    return BucketVerdict(tuple(known), tuple(to_look_at))


def runs(numbers: Sequence[int], runs_max: int) -> list[range]:
    """Buckets `numbers` (rising) covered by at most `runs_max` ranges of bucket numbers, the widest gaps left out.

    Each range is a scan of its own with a cost of its own, so neighbours that are a little apart are read together.
    """
    gaps = sorted(range(1, len(numbers)), key=lambda at: numbers[at] - numbers[at - 1], reverse=True)
    cuts = sorted(at for at in gaps[: runs_max - 1] if numbers[at] - numbers[at - 1] > 1)
    edges = [0, *cuts, len(numbers)]
    return [range(numbers[start], numbers[end - 1] + 1) for start, end in pairwise(edges) if start < end]
