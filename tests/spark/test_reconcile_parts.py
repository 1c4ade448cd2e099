"""What decides in a reconciliation, without Spark: buckets, ranges, gaps."""

from __future__ import annotations

import random

import pytest

from mirrorlog.spark.checks.buckets import OffsetBucket, by_number, compared, runs, total, width
from mirrorlog.spark.checks.differences import Difference, DifferenceKind, joined
from mirrorlog.spark.reading.declared_gaps import GAP_OFFSETS_MIN, Gap, answered, between, search


def bucket(number: int, rows: int = 10, checksum: int = 7) -> OffsetBucket:
    return OffsetBucket(number, rows, low=checksum, high=0, first=number * 10, last=number * 10 + 9)


def test_only_buckets_whose_lines_differ_are_looked_at() -> None:
    """Goal: equal parts cost nothing more, and a hole of whole buckets is known at once. One bucket of each kind."""
    log = by_number(bucket(number) for number in (0, 1, 2, 3, 4))
    table = by_number([bucket(0), bucket(1, checksum=8), bucket(2, rows=11), bucket(4), bucket(9)])
    verdict = compared(log, table)
    assert verdict.known == (Difference(DifferenceKind.MISSING_IN_TABLE, 30, 40, 0),)
    assert verdict.to_look_at == (1, 2, 9)
    assert not compared(log, dict(log)).differ


def test_sums_of_halves_are_the_sum() -> None:
    """Goal: no sum is too large for 64 bits and none loses a bit. Random hashes, both ways; print the seed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    hashes = [random.Random(seed).randrange(-(2**63), 2**63) for _ in range(1000)]
    low = sum(value & 0xFFFFFFFF for value in hashes)
    high = sum((value % 2**64) >> 32 for value in hashes)
    side = total({0: OffsetBucket(0, len(hashes), low, high, 0, 999)})
    assert (side.rows, side.checksum) == (1000, sum(hashes) % 2**64)


def test_buckets_grow_with_the_range_and_never_shrink_below_what_was_asked() -> None:
    """Goal: the driver's work is bounded. A small and a huge range."""
    assert width(1000, 64) == 64
    assert 10**12 / width(10**12, 64) <= 200_000


@pytest.mark.parametrize(
    ("numbers", "runs_max", "expected"),
    [
        ([4], 8, [range(4, 5)]),
        ([1, 2, 3], 8, [range(1, 4)]),
        ([1, 2, 9, 10], 8, [range(1, 3), range(9, 11)]),
        ([1, 3, 100, 103], 2, [range(1, 4), range(100, 104)]),
        ([1, 3, 100], 1, [range(1, 101)]),
    ],
)
def test_what_is_looked_at_is_read_in_few_runs(numbers: list[int], runs_max: int, expected: list[range]) -> None:
    """Goal: far apart, read apart, but never in more scans than are allowed. Some lists of buckets."""
    assert runs(numbers, runs_max) == expected


def test_neighbours_that_differ_alike_become_one_range() -> None:
    """Goal: ranges are as wide as the damage, whatever the buckets. Pieces of three kinds, in any order."""
    pieces = [
        Difference(DifferenceKind.CONTENT, 5, 7, 2, ("key",)),
        Difference(DifferenceKind.MISSING_IN_TABLE, 10, 20, 0),
        Difference(DifferenceKind.CONTENT, 7, 8, 1, ("key",)),
        Difference(DifferenceKind.CONTENT, 8, 9, 1, ("value",)),
        Difference(DifferenceKind.MISSING_IN_TABLE, 20, 30, 0),
    ]
    assert joined(reversed(pieces)) == [
        Difference(DifferenceKind.CONTENT, 5, 8, 3, ("key",)),
        Difference(DifferenceKind.CONTENT, 8, 9, 1, ("value",)),
        Difference(DifferenceKind.MISSING_IN_TABLE, 10, 30, 0),
    ]


def test_every_declared_gap_is_found_with_its_exact_edges() -> None:
    """Goal: no gap is missed, whatever the range, and no record is counted as lost. Random queues with leaps as wide
    as leaps are, random ranges of them; the seed is printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        gaps, at = [], chance.randrange(0, 3)
        for epoch in range(1, chance.randrange(1, 5)):
            first = at + chance.choice([0, 1, 7, 1000, GAP_OFFSETS_MIN + 5])
            at = first + GAP_OFFSETS_MIN * epoch + chance.randrange(0, 3)
            gaps.append((first, at))
        end = at + chance.choice([0, 1, 50])
        first, following = sorted((chance.randrange(0, end + 1), chance.choice([end, chance.randrange(0, end + 1)])))

        def go_on_at(place: int, gaps: list[tuple[int, int]] = gaps) -> int | None:
            return next((after for begin, after in gaps if begin <= place < after), None)

        found = answered(search(first, following), go_on_at)
        records = between(first, following, found)
        cut = [(max(begin, first), min(after, following)) for begin, after in gaps]
        expected = [(begin, after) for begin, after in cut if begin < after]
        assert merged([(gap.first, gap.next) for gap in found]) == merged(expected)
        assert sum(b - a for a, b in records) + sum(gap.next - gap.first for gap in found) == following - first


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that touch as one: of two losses without a record between them nobody can tell them apart."""
    found: list[tuple[int, int]] = []
    for first, following in ranges:
        begin = found.pop()[0] if found and found[-1][1] == first else first
        found.append((begin, following))
    return found


def test_a_queue_without_losses_costs_two_questions() -> None:
    """Goal: looking for gaps is no scan. Count the places asked for."""
    asked: list[int] = []

    def none(place: int) -> None:
        asked.append(place)

    assert answered(search(10, 1_000_000), none) == []
    assert asked == [10, 999_999]
    assert answered(search(5, 5), none) == []
    assert between(0, 10, [Gap(0, 4), Gap(6, 10)]) == [(4, 6)]
