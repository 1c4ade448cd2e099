"""The log in memory: what it holds behind its snapshot, and the configurations in it."""

from __future__ import annotations

import pytest

from mirrorlog.cluster.raft.log import RaftLog
from mirrorlog.cluster.raft.messages import EntryKind, Members, RaftEntry, Snapshot, encode_members

THREE = Members((1, 2, 3))
FOUR = Members((1, 2, 3, 4))


def entry(index: int, term: int = 1, data: bytes = b"x") -> RaftEntry:
    return RaftEntry(index, term, EntryKind.COMMAND, data)


def change(index: int, members: Members, term: int = 1) -> RaftEntry:
    return RaftEntry(index, term, EntryKind.MEMBERS, encode_members(members))


@pytest.fixture
def log() -> RaftLog:
    """Terms 1 1 1 3 3 behind a snapshot of 10, whose term is 1; entry 12 brings a fourth member."""
    return RaftLog(
        Snapshot(10, 1, THREE, b""), (entry(11), change(12, FOUR), entry(13), entry(14, term=3), entry(15, term=3))
    )


def test_terms_are_known_from_the_snapshot_to_the_end(log: RaftLog) -> None:
    """And nowhere else."""
    assert [log.term_of(index) for index in (9, 10, 13, 14, 15, 16)] == [None, 1, 1, 3, 3, None]
    assert (log.last_index, log.last_term, log.commit) == (15, 3, 10)


def test_who_may_lack_something_is_not_current(log: RaftLog) -> None:
    """The last term decides, then the length."""
    assert log.is_current(15, 3)
    assert log.is_current(1, 4)
    assert not log.is_current(14, 3)
    assert not log.is_current(99, 2)


def test_entries_are_cut_to_size_but_one_always_goes(log: RaftLog) -> None:
    """By limits of two bytes and of none."""
    assert [each.index for each in log.entries_from(13, 2)] == [13, 14]
    assert [each.index for each in log.entries_from(13, 0)] == [13]
    assert log.entries_from(16, 100) == ()


def test_only_a_difference_is_taken_over(log: RaftLog) -> None:
    """What both have stays, also what stands behind it."""
    assert log.take_over([entry(13), entry(14, term=3)]) is None
    assert log.last_index == 15
    assert log.take_over([entry(14, term=3), entry(15, term=4), entry(16, term=4)]) == 15
    assert [log.term_of(index) for index in (14, 15, 16)] == [3, 4, 4]


def test_a_cut_takes_its_configuration_along(log: RaftLog) -> None:
    """By another history from before the change on."""
    assert (log.members, log.members_index) == (FOUR, 12)
    log.take_over([entry(12, term=4)])
    assert (log.members, log.members_index) == (THREE, 10)


def test_what_is_committed_does_not_change(log: RaftLog) -> None:
    """The algorithm is broken then; by another history below the commit."""
    log.commit = 14
    with pytest.raises(AssertionError, match="committed"):
        log.take_over([entry(14, term=5)])


def test_a_conflict_is_looked_for_below_the_term_of_the_other(log: RaftLog) -> None:
    """Behind that entry the logs must differ; never below the base."""
    assert log.last_with_term_up_to(15, 2) == 13
    assert log.last_with_term_up_to(99, 3) == 15
    assert log.last_with_term_up_to(15, 0) == 10


def test_compacting_keeps_some_and_the_members_as_of_then(log: RaftLog) -> None:
    """By a snapshot of 14 behind which one entry is kept: 13 is known by its term alone."""
    log.commit = 15
    log.compact(Snapshot(14, 3, FOUR, b""), keep=1)
    assert (log.base_index, log.term_of(13), log.term_of(12)) == (13, 1, None)
    assert [each.index for each in log.entries(1, 99)] == [14, 15]
    assert (log.members, log.members_at(13)) == (FOUR, FOUR)
    log.compact(Snapshot(15, 3, FOUR, b""), keep=100)
    assert log.base_index == 13


def test_a_restored_snapshot_is_all_there_is(log: RaftLog) -> None:
    """By one from a leader of another history."""
    log.restore(Snapshot(20, 5, THREE, b"s"))
    assert (log.last_index, log.last_term, log.commit, log.members) == (20, 5, 20, THREE)
    assert log.entries(1, 99) == ()
    assert log.members_at(20) == THREE
