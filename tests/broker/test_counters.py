"""What a node counts: each duration in one bucket, and everything told under its own name."""

from __future__ import annotations

import random
from itertools import pairwise

from mirrorlog.broker.log.counters import BOUNDS_S, Durations, LogCounters


def test_a_duration_counts_in_the_bucket_whose_bound_it_does_not_exceed() -> None:
    """Goal: `le` means less or equal. Method: each bound, and a little more than each, one at a time."""
    for number, bound in enumerate(BOUNDS_S):
        durations = Durations()
        durations.note(bound)
        durations.note(bound * 1.0001)
        told = durations.told().counts
        assert (told[number], told[number + 1], sum(told)) == (1, 1, 2)
    assert all(lower < upper for lower, upper in pairwise(BOUNDS_S))


def test_buckets_and_sum_are_those_of_what_was_noted() -> None:
    """Random durations, counted once more in the plainest way."""
    random_ = random.Random(5)
    noted = [random_.choice((0.0, random_.random() ** 8 * 20)) for _ in range(1_000)]
    durations = Durations()
    for each in noted:
        durations.note(each)
    told = durations.told()
    edges = [-1.0, *told.bounds_s, float("inf")]
    expected = [sum(lower < each <= upper for each in noted) for lower, upper in pairwise(edges)]
    assert told.counts == expected
    assert abs(told.sum_s - sum(noted)) < 1e-9


def test_what_is_told_does_not_change_afterwards() -> None:
    """Goal: an answer is of one moment. Method: count on after it was made."""
    counters = LogCounters()
    counters.unknown["MASTER_CHANGED"] += 1
    told = counters.told("main", sent_bytes={})
    counters.confirms.note(1.0)
    counters.unknown["MASTER_CHANGED"] += 1
    assert sum(told.confirms.counts) == 0
    assert told.unknown == {"MASTER_CHANGED": 1}


def test_every_count_is_told_as_it_stands() -> None:
    """Goal: none is forgotten. Method: count each so often that all numbers differ, and read them all back."""
    counters = LogCounters()
    for _ in range(3):
        counters.published(records=7, size=100)
    for _ in range(4):
        counters.fetched(50)
    for _ in range(5):
        counters.flushed(9)
    counters.received_bytes += 11
    counters.promotions += 1
    told = counters.told("main", sent_bytes={"n2": 6})
    assert (told.log, told.sent_bytes, told.received_bytes, told.promotions) == ("main", {"n2": 6}, 11, 1)
    assert (told.published_batches, told.published_records, told.published_bytes) == (3, 21, 300)
    assert (told.fetches, told.fetched_bytes, told.flushes, told.flushed_bytes) == (4, 200, 5, 45)
