"""Ranges of numbers against a plain set."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.queues.ranges import CHUNK, RangeSet

numbers = st.one_of(st.integers(0, 30), st.integers(CHUNK - 6, CHUNK + 6), st.integers(0, 3 * CHUNK))
changes = st.lists(st.tuples(st.booleans(), numbers, st.one_of(st.integers(0, 8), st.integers(0, 2 * CHUNK))))


def runs_of(numbers: set[int]) -> list[tuple[int, int]]:
    ordered = sorted(numbers)
    begins = [each for each in ordered if each - 1 not in numbers]
    ends = [each + 1 for each in ordered if each + 1 not in numbers]
    return list(zip(begins, ends, strict=True))


@given(changes, numbers, st.integers(0, 5000))
def test_it_holds_what_a_plain_set_holds(changes: list[tuple[bool, int, int]], at: int, size: int) -> None:
    """Add and remove ranges that touch, overlap and cross chunks; look at counts, runs and what is within a range."""
    ranges, model = RangeSet(), set[int]()
    for inside, first, length in changes:
        asked = set(range(first, first + length))
        changed = ranges.add(first, first + length) if inside else ranges.remove(first, first + length)
        assert changed == len(asked - model if inside else asked & model)
        model = model | asked if inside else model - asked
        assert len(ranges) == len(model)
        assert list(ranges) == runs_of(model)
        assert ranges.lowest() == next(iter(runs_of(model)), None)
    asked = set(range(at, at + size))
    assert {each for run in ranges.within(at, at + size) for each in range(*run)} == asked & model
    assert {each for run in ranges.without(at, at + size) for each in range(*run)} == asked - model


def test_a_million_records_in_hand_are_a_few_megabytes() -> None:
    """Every second of two million: the worst there is for runs."""
    ranges = RangeSet()
    ranges.add(0, 2_000_000)
    assert sum(map(len, ranges._chunks.values())) == 2, "whole chunks are one range"
    for each in range(0, 2_000_000, 2):
        ranges.remove(each, each + 1)
    assert len(ranges) == 1_000_000
    assert sum(borders.itemsize * len(borders) for borders in ranges._chunks.values()) == 4_000_000


@given(st.lists(st.tuples(numbers, st.integers(1, 8)), max_size=6), numbers)
def test_a_range_that_is_far_longer_than_what_is_there_costs_what_is_there(
    runs: list[tuple[int, int]], first: int
) -> None:
    """A loss leaves gaps of 2^32, and nobody waits for as many steps."""
    ranges, model = RangeSet(), set[int]()
    for at, length in runs:
        ranges.add(at, at + length)
        model |= set(range(at, at + length))
    behind = {each for each in model if each >= first}
    assert {each for run in ranges.within(first, 2**62) for each in range(*run)} == behind
    assert ranges.meets(first, 2**62) == bool(behind)
    assert list(ranges.without(2**40, 2**62)) == [(2**40, 2**62)]
    assert ranges.remove(first, 2**62) == len(behind)
    assert list(ranges) == runs_of(model - behind)


@given(st.lists(st.tuples(st.booleans(), numbers, numbers), max_size=8), numbers, numbers)
def test_a_gap_of_2_to_the_62_is_put_in_and_taken_out_as_quickly(
    runs: list[tuple[bool, int, int]], first: int, beyond: int
) -> None:
    """Put in all from a number on; take pieces out and in; ask for what is there, in both parts; take all out."""
    ranges, until = RangeSet(), 2**62 + beyond
    ranges.add(first + 3, first + 5)
    assert ranges.add(first, until) == until - first - 2
    out = set[int]()
    for inside, at, length in runs:
        piece = set(range(max(first, at), max(first, at) + length))
        (ranges.add if inside else ranges.remove)(max(first, at), max(first, at) + length)
        out = out - piece if inside else out | piece
    assert len(ranges) == until - first - len(out)
    assert [each for run in ranges.without(first, until) for each in range(*run)] == sorted(out)
    border = max(out, default=first - 1) + 1
    assert ranges.runs()[-1] == (border, until)
    assert ranges.remove(border, until) == until - border
    assert ranges.runs() == runs_of(set(range(first, border)) - out)


def test_what_is_asked_for_takes_no_more_steps_than_there_are_chunks() -> None:
    """Every sixteenth number of 64 chunks; 16,384 long ranges, each of them behind it or over all of it: the steps are
    those of what is looked at. Counted, not timed."""
    ranges = RangeSet()
    for at in range(0, 64 * CHUNK, 16):
        ranges.add(at, at + 1)
    looked_at: list[int] = []

    class Counting(dict[int, Any]):
        def __getitem__(self, key: int) -> Any:
            looked_at.append(key)
            return super().__getitem__(key)

    ranges._chunks = Counting(ranges._chunks)
    assert not any(ranges.meets(2**40 * each, 2**40 * (each + 1)) for each in range(1, 16_384))
    assert looked_at == []
    assert all(ranges.meets(0, 2**62) for _ in range(16_384))
    assert len(looked_at) == 16_384
    assert len(ranges.within(0, 2**62)) == 64 * CHUNK // 16
    assert len(looked_at) == 16_384 + 64
