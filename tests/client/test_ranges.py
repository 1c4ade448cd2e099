"""Ranges of queue offsets against plain sets of them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from mirrorlog.client.subscription.unacked import Range, common, count, flat, joined, without


def offsets(ranges: list[Range]) -> set[int]:
    return {offset for first, following in ranges for offset in range(first, following)}


def some_ranges(chance: random.Random, size: int) -> list[Range]:
    found = []
    for _ in range(size):
        first = chance.randrange(60)
        found.append((first, first + chance.randint(1, 9)))
    return found


@pytest.mark.parametrize("seed", range(50))
def test_joining_keeps_every_offset_in_as_few_ranges_as_can_be(seed: int) -> None:
    """Goal: what is joined is the same offsets. Method: random ranges, overlapping and not, against a set."""
    ranges = some_ranges(random.Random(seed), seed % 12)
    found = joined(ranges)
    assert offsets(found) == offsets(ranges)
    assert count(found) == len(offsets(ranges))
    assert all(one[1] < other[0] for one, other in pairwise(found))


@pytest.mark.parametrize("seed", range(50))
def test_cutting_splits_a_range_into_what_is_common_and_what_is_not(seed: int) -> None:
    """Goal: nothing is lost or doubled by a cut. Method: random ranges against sets."""
    chance = random.Random(seed)
    cuts = joined(some_ranges(chance, seed % 6))
    first = chance.randrange(60)
    following = first + chance.randint(1, 30)
    whole = set(range(first, following))
    assert offsets(common(first, following, cuts)) == whole & offsets(cuts)
    assert offsets(without(first, following, cuts)) == whole - offsets(cuts)


def test_flat_is_what_frames_have() -> None:
    """Goal: the order of a frame's numbers. Method: two ranges."""
    assert flat([(1, 3), (7, 8)]) == [1, 3, 7, 8]
