"""What all client connections of a node together may hold of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.broker.resources.budgets import OutgoingBudget, longest_begun


@dataclass(eq=False)
class Reader:
    unsent_bytes: int = 0


def give(budget: OutgoingBudget[Reader], reader: Reader, size: int) -> bool:
    """Read so much for it, if it may be, and hand it over."""
    if not budget.begin(reader, size):
        return False
    budget.gave(reader, size)
    budget.ended(size)
    reader.unsent_bytes += size
    return True


def test_who_has_not_taken_what_it_has_gets_half_of_the_budget_and_the_others_the_rest() -> None:
    """Goal: backpressure before the axe. Method: one takes nothing, up to half of 100; another one reads on beside it,
    as long as it takes what it gets."""
    budget: OutgoingBudget[Reader] = OutgoingBudget(100)
    slow, quick = Reader(), Reader()
    assert [give(budget, slow, 20) for _ in range(4)] == [True, True, False, False]
    for _ in range(10):
        assert give(budget, quick, 20)
        quick.unsent_bytes = 0
        assert budget.look() is None
    slow.unsent_bytes = 0
    assert budget.look() is None
    assert give(budget, slow, 20)


def test_what_is_being_read_counts_and_what_failed_counts_no_more() -> None:
    budget: OutgoingBudget[Reader] = OutgoingBudget(100)
    one, other = Reader(), Reader()
    assert budget.begin(one, 90)
    assert not budget.begin(other, 20)
    budget.ended(90)
    assert budget.begin(other, 20)


def test_at_the_limit_whoever_holds_most_goes_when_another_one_waits() -> None:
    """Goal: nobody is closed for what nobody else needs. Method: three take nothing and fill it; then a fourth comes,
    and has its turn when the largest is gone."""
    budget: OutgoingBudget[Reader] = OutgoingBudget(100)
    slow = [Reader(), Reader(), Reader()]
    assert [give(budget, reader, size) for reader, size in zip(slow, (30, 40, 25), strict=True)] == [True] * 3
    assert budget.look() is None
    assert not give(budget, slow[0], 10)
    assert budget.look() is None, "it waits for itself"
    fourth = Reader()
    assert not give(budget, fourth, 10)
    assert budget.look() is slow[1]
    budget.forget(slow[1])
    assert budget.look() is None
    assert give(budget, fourth, 10)


def test_nobody_goes_for_what_is_still_being_read() -> None:
    """Goal: readers that take what they get are not closed because a helper has much to do. Method: reads for a hundred
    fill the budget, none of which is done; one has a byte that has not left; another one waits."""
    budget: OutgoingBudget[Reader] = OutgoingBudget(1_000)
    readers = [Reader() for _ in range(100)]
    assert give(budget, readers[0], 9)
    readers[0].unsent_bytes = 1
    assert budget.look() is None
    assert sum(budget.begin(reader, 10) for reader in readers[1:]) == 99
    assert not budget.begin(Reader(), 10)
    assert budget.look() is None


def test_nobody_goes_who_holds_next_to_nothing() -> None:
    """Goal: who waits for more than there is room for at all waits until the others have taken theirs. Method: one has
    a byte that has not left, and another one wants all of the budget."""
    budget: OutgoingBudget[Reader] = OutgoingBudget(1_000)
    reader = Reader()
    assert give(budget, reader, 9)
    reader.unsent_bytes = 1
    assert not budget.begin(Reader(), 1_000)
    assert budget.look() is None


def test_an_answer_that_is_larger_than_all_comes_alone() -> None:
    budget: OutgoingBudget[Reader] = OutgoingBudget(100)
    one, other = Reader(), Reader()
    assert give(budget, one, 150)
    assert not give(budget, other, 10)
    assert budget.look() is one


def test_what_a_connection_got_elsewhere_is_not_counted_as_read_for_it() -> None:
    """Goal: views of mapped segments are no memory. Method: 1,000 bytes wait to be sent, 10 of which were read."""
    budget: OutgoingBudget[Reader] = OutgoingBudget(100)
    reader = Reader()
    assert give(budget, reader, 10)
    reader.unsent_bytes = 1_000
    assert budget.look() is None
    assert give(budget, Reader(), 80)


@dataclass(eq=False)
class Sender:
    begun_bytes: int
    since: float

    def begun_s(self, now: float) -> float:
        return now - self.since


def test_of_begun_frames_who_has_held_most_for_longest_goes() -> None:
    """Goal: who has stopped, and not who is about to complete one. Method: below, at and above the limit; then one by
    one until it is kept."""
    stopped, small, busy = Sender(80, since=0.0), Sender(10, since=0.0), Sender(100, since=9.9)
    everybody = [busy, small, stopped]
    assert longest_begun(everybody, 190, 10.0) is None
    assert longest_begun(everybody, 189, 10.0) is stopped
    assert longest_begun([busy, small], 100, 10.0) is small
    assert longest_begun([], 0, 10.0) is None
