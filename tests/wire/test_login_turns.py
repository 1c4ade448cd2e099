"""Whose password is compared next, and how long who was wrong waits to be told so."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.wire.auth.login_turns import (
    ADDRESS_FAILURES,
    FORGOTTEN_S,
    HOLD_S,
    HOLD_S_MAX,
    REMEMBERED_MAX,
    LoginFailures,
    LoginTurns,
)


@dataclass(eq=False)
class Try:
    user: str
    address: str = "a"
    failures: int = 0
    name: str = ""


def names(turns: LoginTurns[Try]) -> list[str]:
    """In the order of their turns, until nobody waits."""
    found = []
    while (each := turns.next()) is not None:
        found.append(each.name)
    return found


def waiting(*tries: Try, room: int = 100) -> LoginTurns[Try]:
    turns: LoginTurns[Try] = LoginTurns(room)
    for each in tries:
        assert turns.add(each) is None
    return turns


def test_addresses_take_turns_and_within_one_its_users() -> None:
    """Goal: forty guesses at one user are one turn, not forty. Method: guesses first, then two others from there and
    one from elsewhere."""
    guesses = [Try("ann", name=f"guess {at}", failures=1) for at in range(4)]
    turns = waiting(*guesses, Try("bob", name="bob"), Try("cid", name="cid"), Try("ann", "b", name="elsewhere"))
    assert names(turns)[:5] == ["guess 3", "elsewhere", "bob", "cid", "guess 2"]


def test_of_one_user_who_failed_least_comes_first_and_the_newest_of_these() -> None:
    turns = waiting(
        Try("ann", name="old"), Try("ann", failures=2, name="twice"), Try("ann", failures=1, name="once"),
        Try("ann", name="new"),
    )  # fmt: skip
    assert names(turns) == ["new", "old", "once", "twice"]


def test_who_does_not_wait_any_more_has_no_turn() -> None:
    """Goal: what nobody waits for is not compared. Method: the only one of an address, one of several, one twice."""
    alone, one, other = Try("ann", "b", name="alone"), Try("ann", name="one"), Try("ann", name="other")
    turns = waiting(alone, one, other)
    for each in (alone, other, alone, Try("zoe", "z")):
        turns.remove(each)
    assert len(turns) == 1
    assert names(turns) == ["one"]
    assert len(turns) == 0


def test_when_too_many_wait_one_of_whoever_has_most_goes() -> None:
    """Goal: memory is bounded, and guessers fill their own places. Method: room for five: four guesses of one user, of
    which one failed before, and one of another; another one comes, from elsewhere."""
    worst = Try("ann", failures=1, name="worst")
    turns = waiting(*(Try("ann", name=str(at)) for at in range(3)), worst, Try("bob", name="bob"), room=5)
    assert turns.add(Try("cid", "b", name="cid")) is worst
    assert len(turns) == 5
    assert sorted(names(turns)) == ["0", "1", "2", "bob", "cid"]


def test_each_failure_of_a_user_from_an_address_is_told_later_up_to_a_bound() -> None:
    """Goal: others are not held for it. Method: eight failures, then another user there and the same one elsewhere."""
    failures = LoginFailures()
    held = [failures.failed("ann", "a", 1.0) for _ in range(8)]
    assert held == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S, *[HOLD_S_MAX] * 4]
    assert failures.failed("bob", "a", 1.0) == failures.failed("ann", "b", 1.0) == HOLD_S
    assert failures.failed("ann", "a", 1.0 + FORGOTTEN_S) == HOLD_S_MAX
    assert failures.failed("ann", "a", 1.1 + 2 * FORGOTTEN_S) == HOLD_S


def test_guesses_at_many_users_count_for_their_address() -> None:
    """Goal: a new name for each guess saves a guesser nothing. Method: as many as are free, and some more."""
    failures = LoginFailures()
    held = [failures.failed(f"u{at}", "a", 1.0) for at in range(ADDRESS_FAILURES + 4)]
    assert held == [HOLD_S] * (ADDRESS_FAILURES + 1) + [2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]
    assert failures.failed("u", "b", 1.0) == HOLD_S


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    """As many addresses as are remembered after one that was at the bound."""
    failures = LoginFailures()
    for _ in range(9):
        failures.failed("ann", "a", 1.0)
    for at in range(REMEMBERED_MAX):
        failures.failed("u", str(at), 2.0)
    assert failures.failed("ann", "a", 3.0) == HOLD_S
