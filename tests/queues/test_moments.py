"""Moments against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.queues.delivery.priorities import Moment, Moments

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 50), st.booleans()),
        st.tuples(st.just("come"), st.integers(0, 60), st.booleans()),
        st.tuples(st.just("sweep"), st.integers(0, 80), st.booleans()),
    ),
    max_size=80,
)


@given(steps)
def test_each_comes_once_in_its_time_and_a_run_that_grows_once_at_its_last(steps: list[tuple[str, int, bool]]) -> None:
    """Stretches one after the other, some of them parts of the one before; some come, some are below a floor."""
    moments, model, end, newest = Moments(), list[Moment](), 0, False
    for step, number, flag in steps:
        if step == "add":
            if flag and newest:
                last = model.pop()
                model.append(Moment(max(last.at_us, number), last.first, end + 1))
            else:
                model.append(Moment(number, end, end + 1))
            moments.add(number, end, end + 1, goes_on=flag)
            end, newest = end + 1, True
        elif step == "come":
            expected = min(model, default=None)
            found = moments.come(number)
            assert found == (expected if expected is not None and expected.at_us <= number else None)
            if found is not None:
                newest = newest and found != model[-1]
                model.remove(found)
        else:
            moments.sweep(number)
        assert moments.next_us == min((each.at_us for each in model), default=float("inf"))
        assert len(moments) == len(model)


def test_a_sweep_takes_what_is_below_the_floor_and_goes_over_little() -> None:
    """Ten thousand that nothing can be taken of, with a sweep for each: a sweep looks at them a few times in all. Then
    the floor rises over most of them."""
    moments, kept = Moments(), set[int]()
    for at in range(10_000):
        moments.add(10**9 - at, at, at + 1, goes_on=False)
        moments.sweep(0)
        kept.add(moments._kept)
    assert len(moments) == 10_000
    assert len(kept) < 12
    for at in range(10_000, 40_000):
        moments.add(10**9, at, at + 1, goes_on=False)
        moments.sweep(at - 100)
    assert len(moments) < 1000


def test_what_is_over_before_its_time_is_forgotten_from_the_front() -> None:
    """So many at once, and none behind one that is not over."""
    moments = Moments()
    for at in range(10):
        moments.add(at, at, at + 1, goes_on=False)
    moments.forget(lambda each: each.first != 6, 4)
    assert moments.next_us == 4
    moments.forget(lambda each: each.first != 6, 100)
    assert (moments.next_us, len(moments)) == (6, 4)
