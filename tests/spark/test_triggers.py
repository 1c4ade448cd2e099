"""How much goes into a trigger: in proportion, never more than the limit, and nobody waits for ever. No JVM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.spark.options import NO_LIMITS, TriggerLimits
from mirrorlog.spark.reading.triggers import Backlog, shares, waits

sizes = st.lists(st.integers(0, 10_000), min_size=1, max_size=8)


@given(st.integers(1, 20_000), sizes, st.integers(0, 100))
def test_a_trigger_takes_the_limit_or_everything(limit: int, has: list[int], turn: int) -> None:
    """Goal: maxOffsetsPerTrigger is met exactly, and no queue gives what it does not have. Random queues."""
    given_out = shares(limit, has, turn)
    assert sum(given_out) == min(limit, sum(has))
    assert all(0 <= share <= size for share, size in zip(given_out, has, strict=True))


def test_shares_are_in_proportion_to_what_there_is() -> None:
    """Goal: large queues do not fall behind small ones. Method: queues of 9 to 1, and one that has nothing."""
    assert shares(1_000, [900_000, 100_000, 0], 0) == [900, 100, 0]


def test_a_small_queue_is_not_starved_by_large_ones() -> None:
    """Goal: each queue moves in each trigger, or in turn. Method: one record beside a million, with room for both; and
    three queues with room for one, over three triggers."""
    assert shares(10, [1_000_000, 1], 0) == [9, 1]
    assert [shares(1, [1_000_000, 1, 5], turn) for turn in range(3)] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), st.data())
def test_a_reader_stands_behind_as_many_records_as_it_has_read(
    stretches: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Goal: positions count records, not the numbers of a gap. Method: random pieces with holes between, and the
    records laid out one by one."""
    pieces, at = [], 10
    for length, hole in stretches:
        pieces.append((at, at + length))
        at += length + hole
    backlog = Backlog(tuple(pieces), end=at)
    offsets = [offset for first, following in pieces for offset in range(first, following)]
    assert len(backlog) == len(offsets)
    read = data.draw(st.integers(1, len(offsets)))
    expected = at if read == len(offsets) else offsets[read - 1] + 1
    assert backlog.after(read) == expected


def test_a_queue_with_nothing_but_a_gap_ends_behind_it() -> None:
    """Goal: a reader is not stuck before a gap that nothing has followed yet."""
    assert (len(Backlog((), 50)), Backlog((), 50).after(1)) == (0, 50)


@pytest.mark.parametrize(
    ("available", "idle_ms", "expected"),
    [
        pytest.param(9, 0.0, True, id="too few"),
        pytest.param(10, 0.0, False, id="enough"),
        pytest.param(9, 999.0, True, id="too few, not long enough"),
        pytest.param(9, 1_000.0, False, id="too few for too long"),
        pytest.param(9, None, False, id="the first trigger"),
    ],
)
def test_a_trigger_waits_for_enough_records_but_not_for_ever(
    available: int, idle_ms: float | None, expected: bool
) -> None:
    """Goal: minOffsetsPerTrigger and maxTriggerDelay. Each side of each limit; without them nothing waits."""
    assert waits(TriggerLimits(None, 10, 1_000), available, idle_ms=idle_ms) is expected
    assert waits(NO_LIMITS, available, idle_ms=idle_ms) is False
