"""Which segments go when the disk is low."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from mirrorlog.commitlog.retention import RetentionLimits, next_start


class Segment(NamedTuple):
    end: int
    last_append_time_us: int = 0


SEGMENTS = [Segment(end) for end in (100, 200, 300)]


def freed(limits: RetentionLimits, *, begin: int, at_most: int = 1000) -> int | None:
    """The new begin of a log that ends at 350, at the time 0."""
    return next_start(SEGMENTS, begin=begin, end=350, at_most=at_most, now_us=0, limits=limits)


@pytest.mark.parametrize(("begin", "expected"), [(0, 100), (100, 200), (150, 200), (200, 300), (300, None)])
def test_a_low_disk_takes_the_oldest_segment_and_no_other(begin: int, expected: int | None) -> None:
    """Without other limits, from each begin; the segment that is appended to stays."""
    limits = RetentionLimits().without_oldest(SEGMENTS, begin=begin, end=350)
    assert freed(limits, begin=begin) == expected


def test_a_tighter_limit_holds_on_a_low_disk() -> None:
    """With a limit of bytes that frees more by itself."""
    limits = RetentionLimits(max_bytes=50).without_oldest(SEGMENTS, begin=0, end=350)
    assert freed(limits, begin=0) == 300


def test_a_low_disk_frees_nothing_that_is_needed() -> None:
    """Nothing above what may go: the last state checkpoint, the confirmed offset."""
    limits = RetentionLimits().without_oldest(SEGMENTS, begin=0, end=350)
    assert freed(limits, begin=0, at_most=99) is None
    assert RetentionLimits().without_oldest([], begin=0, end=350) == RetentionLimits()
