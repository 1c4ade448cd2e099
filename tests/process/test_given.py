"""A check that has gone blind fails here: each thing that `given` looks for, made up, is found, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.process.given import ACK, ENDS, MOVE, NEWEST, OVER, REJECT, Book, Move, check_ends


def taken(book: Book, number: int, how: str | None = ACK, *, epoch: int = 1, redelivered: bool = False) -> None:
    """Given to `a`, and settled, confirmed."""
    book.gave("a", number, number, redelivered=redelivered, epoch=epoch)
    if how is not None:
        book.tries("a", [number], how)
        book.confirmed("a", [number], how, epoch=epoch)


def found(book: Book) -> dict[str, int]:
    return {kind: count for kind, count in book.counts.items() if count}


def test_what_is_as_promised_is_not_complained_of() -> None:
    """Given, returned and given again, in order, flagged."""
    book = Book("q")
    for number in (0, 1):
        taken(book, number)
    taken(book, 2, "return")
    taken(book, 3)
    taken(book, 2, redelivered=True)
    assert (found(book), book.wrong) == ({}, [])


def test_what_was_acknowledged_and_comes_is_found_and_its_story_told() -> None:
    book = Book("q")
    taken(book, 0, epoch=2)
    book.gave("b", 0, 0, redelivered=True, epoch=2)
    assert found(book) == {"came_again": 1}
    [told] = book.wrong
    assert "a did ack in epoch 2" in told
    assert "b was given offset 0 in epoch 2 redelivered" in told


@pytest.mark.parametrize("how", [ACK, REJECT, MOVE])
def test_each_way_to_settle_counts(how: str) -> None:
    book = Book("q")
    taken(book, 0, how)
    book.gave("b", 0, 0, redelivered=True, epoch=2)
    assert found(book) == {"came_again": 1}


def test_a_lease_may_give_out_nothing_that_was_acknowledged_unless_it_was_over() -> None:
    book = Book("q")
    taken(book, 0, epoch=3)
    book.gave("b", 0, 0, redelivered=True, epoch=OVER)
    assert found(book) == {"stale": 1}
    book.gave("b", 0, 0, redelivered=True, epoch=NEWEST)
    assert found(book) == {"stale": 1, "came_again": 1}


def test_what_an_earlier_master_gave_may_come_behind_a_lease_of_its_successor() -> None:
    """It was sent before that master died. In the epoch of the lease it may not."""
    for epoch, what in ((1, "stale"), (2, "unflagged")):
        book = Book("q")
        book.gave("a", 0, 0, redelivered=True, epoch=NEWEST, numbered=2)
        book.gave("b", 0, 0, redelivered=False, epoch=epoch)
        assert found(book) == {what: 1}


def test_an_earlier_master_may_give_out_what_its_successor_had_settled() -> None:
    book = Book("q")
    taken(book, 0, epoch=2, redelivered=True)
    book.gave("b", 0, 0, redelivered=True, epoch=1)
    assert (found(book), book.wrong) == ({"stale": 1}, [])


def test_what_comes_twice_unflagged_is_found() -> None:
    """In the same epoch; in a later one; and twice unflagged, whatever the epochs."""
    book = Book("q")
    for number, epochs in enumerate([(1, 1), (1, 2), (2, 1)]):
        for epoch in epochs:
            taken(book, number, None, epoch=epoch)
    assert found(book) == {"unflagged": 3}


def test_an_earlier_master_may_give_out_unflagged_what_its_successor_gave_out_flagged() -> None:
    book = Book("q")
    taken(book, 0, None, epoch=2, redelivered=True)
    taken(book, 0, None, epoch=1)
    assert found(book) == {"stale": 1}
    taken(book, 1, None, epoch=2, redelivered=True)
    taken(book, 1, None, epoch=2)
    assert found(book) == {"stale": 1, "unflagged": 1}


def test_first_deliveries_out_of_order_are_found_unless_a_lease_gave_them_back_unseen() -> None:
    """Of one taker; what comes again may come in any order; what a failed lease had given back comes late."""
    book = Book("q")
    for number in (0, 2):
        taken(book, number)
    taken(book, 1, redelivered=True)
    assert found(book) == {}
    taken(book, 3, "return")
    book.gave("b", 9, 9, redelivered=False, epoch=1)
    book.gave("b", 8, 8, redelivered=False, epoch=1)
    assert found(book) == {"out_of_turn": 1}
    book.unordered_below(8)
    book.gave("b", 7, 7, redelivered=False, epoch=1)
    assert found(book) == {"out_of_turn": 1}


def work() -> Book:
    """0 was acknowledged, 1 moved in transaction 5 with 2, 3 rejected."""
    book = Book("work")
    for number, how in enumerate([ACK, MOVE, MOVE, REJECT]):
        taken(book, number, how)
    return book


def ends(
    book: Book, *, moved: tuple[int, ...] = (1, 2), dead: tuple[int, ...] = (3,), outcome: str = "confirmed"
) -> set[str]:
    """What is found of `work`, whose target and dead letter queue hold these."""
    given = {"moved": Book("moved"), "dead": Book("dead")}
    for number in {1, 2, *moved} - {7}:
        taken(given["moved"], number)
    for number in {3, *dead} - {7}:
        taken(given["dead"], number)
    told = check_ends(
        book, published=[0, 1, 2, 3], moves={5: Move([1, 2], outcome)}, moved=[(number, 5) for number in moved],
        dead=dead, given=given,
    )  # fmt: skip
    assert told.keys() == set(ENDS)
    return {kind for kind, count in told.items() if count}


def test_ends_that_are_as_promised_are_not_complained_of() -> None:
    assert ends(work()) == set()
    assert ends(work(), outcome="unknown") == set()


def test_what_is_nowhere_is_lost() -> None:
    """One that nobody was given, and one that was only returned."""
    book = work()
    del book.fates[0]
    assert ends(book) == {"lost"}
    taken(book, 0, "return")
    assert ends(book) == {"lost"}


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lambda book: ends(book, moved=(1, 2, 1)), {"moved_twice", "moved_torn"}),
        (lambda book: ends(book, moved=()), {"moved_missing", "lost"}),
        (lambda book: ends(book, moved=(1,)), {"moved_torn", "lost"}),
        (lambda book: ends(book, outcome="refused"), {"moved_unasked"}),
        (lambda book: ends(book, dead=(3, 3)), {"dead_twice"}),
        (lambda book: ends(book, dead=()), {"dead_missing", "lost"}),
        (lambda book: ends(book, dead=(3, 0)), {"dead_unasked", "settled_twice"}),
        (lambda book: ends(book, dead=(3, 2)), {"dead_unasked", "settled_twice"}),
        (lambda book: ends(book, dead=(3, 7)), {"dead_unasked", "never_given"}),
    ],
)
def test_each_wrong_end_is_found(spoil: Callable[[Book], set[str]], kinds: set[str]) -> None:
    assert spoil(work()) == kinds


def test_a_rejection_that_somebody_elses_settlement_came_before_needs_no_letter() -> None:
    """It was answered as the first time."""
    book = work()
    book.tries("b", [3], ACK)
    assert ends(book, dead=()) == set()
