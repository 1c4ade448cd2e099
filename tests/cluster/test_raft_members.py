"""Majorities and the steps from one configuration to the next."""

from __future__ import annotations

from itertools import combinations

import pytest

from mirrorlog.cluster.raft.messages import Members, decode_members, encode_members
from mirrorlog.errors import BadRequest


@pytest.mark.parametrize("voters", range(1, 8))
def test_two_majorities_share_a_member_also_across_one_step(voters: int) -> None:
    """By all smallest majorities of a configuration, of itself and of the one with a voter more."""
    before = Members(tuple(range(1, voters + 1)))
    after = before.with_learner(99).with_voter(99)
    for one in combinations(before.voters, before.majority):
        assert before.agree(one)
        assert not before.agree(one[1:])
        for other in (*combinations(before.voters, before.majority), *combinations(after.voters, after.majority)):
            assert set(one) & set(other)


def test_a_learner_counts_for_nothing() -> None:
    """Neither for a vote nor for what is held."""
    members = Members((1, 2, 3), (4, 5))
    assert not members.agree([1, 4, 5])
    assert members.agreed_index({1: 9, 4: 9, 5: 9}) == 0
    assert members.agreed_index({1: 9, 2: 7, 3: 5}) == 7
    assert members.agreed_index({1: 9, 2: 7}) == 7


def test_nobody_has_no_majority() -> None:
    """A member that was never let in decides nothing."""
    assert not Members(()).agree([1])
    assert Members(()).agreed_index({1: 9}) == 0


def test_a_member_learns_votes_and_leaves() -> None:
    """One step each."""
    members = Members((1, 3)).with_learner(2)
    assert members == Members((1, 3), (2,))
    assert members.with_voter(2) == Members((1, 2, 3))
    assert members.without(2) == Members((1, 3))
    assert members.without(1) == Members((3,), (2,))
    assert members.all == (1, 3, 2)


def test_steps_that_make_no_sense_are_refused_with_the_reason() -> None:
    """By each of them."""
    members = Members((1,), (2,))
    for step, reason in (
        (lambda: members.with_learner(1), "in the cluster already"),
        (lambda: members.with_voter(3), "no learner"),
        (lambda: members.without(3), "not in the cluster"),
        (lambda: members.without(1), "last voter"),
    ):
        with pytest.raises(BadRequest, match=reason):
            step()


def test_an_entry_says_the_same_again() -> None:
    """By encoding and decoding."""
    members = Members((1, 2), (7,))
    assert decode_members(encode_members(members)) == members
