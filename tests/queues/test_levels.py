"""Levels of priority against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.queues.delivery.priorities import STEPS_MAX, Levels
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.ledger_update import LedgerUpdate

RECORDS = 60

steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, RECORDS), st.integers(1, 9)),
        st.tuples(st.just("settle"), st.integers(0, RECORDS), st.integers(1, 9)),
        st.tuples(st.just("back"), st.integers(0, RECORDS), st.integers(1, 9)),
        st.tuples(st.just("ask"), st.integers(0, RECORDS), st.just(0)),
    ),
    max_size=60,
)


@given(st.lists(st.integers(0, 3), min_size=RECORDS, max_size=RECORDS), steps)
def test_the_first_free_ones_of_the_highest_level(priorities: list[int], steps: list[tuple[str, int, int]]) -> None:
    """What is given out, settled and comes back, in any order; level 0 is nobody's business here."""
    ledger, out = Ledger(), set[int]()
    levels = Levels(ledger)
    free = set(range(RECORDS))
    for at, priority in enumerate(priorities):
        if priority:
            levels.add(priority, at, at + 1)
    for step, first, count in [*steps, ("ask", RECORDS, 0)]:
        until = min(RECORDS, first + count)
        asked = set(range(first, until))
        if step == "take":
            ledger.take(first, until)
            out |= asked & free
            free -= asked
        elif step == "settle" and asked:
            LedgerUpdate(ledger).settle(first, until)
            free, out = free - asked, out - asked
        elif step == "back":
            for at in sorted(asked & out):
                ledger.give_back(at, at + 1)
                if priorities[at]:
                    levels.add(priorities[at], at, at + 1)
            free, out = free | asked & out, out - asked
        elif step == "ask":
            check(levels.next_free(first), {at for at in free if at < first and priorities[at]}, priorities)
            levels.rest()


def check(found: tuple[int, int] | None, free: set[int], priorities: list[int]) -> None:
    expected = min(free, key=lambda at: (-priorities[at], at), default=None)
    if found is None:
        assert expected is None
        return
    assert found[0] == expected
    assert {priorities[at] for at in range(*found)} == {priorities[found[0]]}
    assert set(range(*found)) <= free
    assert found[1] not in free or priorities[found[1]] != priorities[found[0]]


def test_a_search_through_very_much_goes_on_where_it_stopped() -> None:
    """Three times as many settled ones as one search goes over, free ones of another level between, one free at the
    end."""
    ledger = Ledger()
    levels = Levels(ledger)
    count = 3 * STEPS_MAX
    for at in range(0, 2 * count, 2):
        levels.add(9, at, at + 1)
        LedgerUpdate(ledger).settle(at, at + 1)
    levels.add(9, 2 * count, 2 * count + 1)
    asked = 1
    while (found := levels.next_free(2 * count + 1)) is None:
        assert levels.tired
        levels.rest()
        asked += 1
    assert (found, asked) == ((2 * count, 2 * count + 1), 4)
    assert (levels.records, len(levels)) == (1, 1)
