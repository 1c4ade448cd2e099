"""The gaps of a queue as one value: joining, looking up, the bound."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.index.gaps import GAPS_MAX, NO_GAPS, Gaps, gap_at, with_gap, without

PLACES_MAX = 40
RANGE = st.tuples(st.integers(0, PLACES_MAX), st.integers(0, PLACES_MAX))


def gaps_of(*ranges: tuple[int, int]) -> Gaps:
    gaps = NO_GAPS
    for each in ranges:
        gaps = with_gap(gaps, each)
    return gaps


def places(gaps: Gaps) -> set[int]:
    return {at for first, following in gaps for at in range(first, following)}


def test_two_gaps_with_records_between_them_stay_two() -> None:
    """Goal: what stands between is not lost. A place before, in, between and behind."""
    gaps = gaps_of((3, 10), (12, 20))
    assert gaps == ((3, 10), (12, 20))
    assert [gap_at(gaps, at) for at in (2, 3, 9, 10, 11, 12, 19, 20)] == [
        *(None, (3, 10), (3, 10), None, None, (12, 20), (12, 20), None)
    ]
    assert gap_at(NO_GAPS, 0) is None


def test_gaps_that_touch_or_overlap_are_one() -> None:
    """Two leaps with no record between them, and one that is heard of twice, in any order."""
    assert gaps_of((3, 10), (10, 20)) == gaps_of((10, 20), (3, 10)) == gaps_of((3, 20), (5, 9), (3, 20)) == ((3, 20),)
    assert gaps_of((5, 5), (7, 6)) == NO_GAPS


def test_of_too_many_the_newest_stay_and_none_grows_over_records() -> None:
    """Goal: the bound. One more than are kept: the oldest is forgotten, what stands behind it is in no gap, and an
    older one that comes late takes nobody's place."""
    gaps = gaps_of(*((10 * number, 10 * number + 5) for number in range(GAPS_MAX + 1)))
    assert len(gaps) == GAPS_MAX
    assert gaps[0] == (10, 15)
    assert gap_at(gaps, 7) is None
    assert with_gap(gaps, (0, 5)) == gaps


@given(st.lists(st.tuples(st.booleans(), RANGE), max_size=20))
def test_any_gaps_are_the_places_that_were_put_in_and_not_taken_out(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    """Goal: ascending, never touching, none empty, and exact. By a plain set of places."""
    gaps, model = NO_GAPS, set[int]()
    for put, (first, following) in steps:
        gaps = with_gap(gaps, (first, following)) if put else without(gaps, first, following)
        model = model | set(range(first, following)) if put else model - set(range(first, following))
        assert places(gaps) == model
        assert all(one[1] < other[0] for one, other in pairwise(gaps))
        assert all(one < other for one, other in gaps)
        for at in range(PLACES_MAX):
            found = gap_at(gaps, at)
            assert (found is not None) == (at in model)
            assert found is None or found in gaps
