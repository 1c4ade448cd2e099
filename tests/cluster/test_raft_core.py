"""The rules of the Raft core one by one, each in a situation made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from mirrorlog.cluster.raft.core import Raft
from mirrorlog.cluster.raft.leadership import RaftLimits
from mirrorlog.cluster.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskVote,
    Effects,
    EntryKind,
    HardState,
    Members,
    PartTaken,
    RaftEntry,
    Snapshot,
    SnapshotPart,
    Stored,
    Vote,
)
from mirrorlog.errors import BadRequest, NotLeader, Overloaded
from tests.cluster.raft_bugs import TakesEverySnapshot
from tests.cluster.raft_by_hand import ByHand, Certain

THREE: Final = Members((1, 2, 3))


def entries(first: int, last: int, term: int = 1) -> tuple[RaftEntry, ...]:
    return tuple(RaftEntry(index, term, EntryKind.COMMAND, b"%d" % index) for index in range(first, last + 1))


def member(
    own: int = 2,
    members: Members = THREE,
    *,
    term: int = 1,
    vote: int = 0,
    held: tuple[RaftEntry, ...] = (),
    make_raft: Callable[..., Raft] = Raft,
    limits: RaftLimits | None = None,
) -> Raft:
    """One that has just started, from this disk."""
    stored = Stored(HardState(term, vote), Snapshot(0, 0, members, b""), held)
    return make_raft(own, stored, chance=Certain(), now=0.0, limits=limits)


def answers(raft: Raft, message: AnyMessage, now: float = 0.0) -> tuple[AnyMessage, ...]:
    """What it says to that, once it is stored."""
    raft.step(message, now)
    effects = raft.take(now)
    raft.done()
    return effects.messages


def led(*voters: int) -> ByHand:
    """A cluster whose first member leads, and everybody knows of its first entry."""
    cluster = ByHand(*voters)
    cluster.elect(voters[0])
    cluster.elapse(0.05, voters[0])
    cluster.deliver()
    return cluster


# --- storing ---


def test_a_leader_counts_its_own_copy_only_once_it_is_stored() -> None:
    """By a cluster of one: nothing is committed between `take` and `done`."""
    raft = member(1, Members((1,)))
    raft.tick(1.0)
    assert raft.take(1.0).committed == ()
    assert raft.commit == 0
    raft.done()
    assert raft.commit == 1
    assert [entry.index for entry in raft.take(1.0).committed] == [1]


def test_what_comes_while_a_bundle_is_stored_is_not_taken_for_stored() -> None:
    """By a proposal between `take` and `done`."""
    raft = member(1, Members((1,)))
    raft.tick(1.0)
    raft.take(1.0)
    raft.propose(b"late")
    raft.done()
    assert (raft.commit, raft.matched(1)) == (1, 1)
    assert [entry.data for entry in raft.take(1.0).entries] == [b"late"]


def test_entries_that_are_cut_while_they_are_stored_are_stored_anew() -> None:
    """By another leader's Append between `take` and `done`: the next bundle replaces all of them."""
    raft = member(2)
    raft.step(Append(1, 2, 1, 0, 0, 0, 0, entries(1, 3)), 0.0)
    assert raft.take(0.0).entries == entries(1, 3)
    raft.step(Append(3, 2, 2, 1, 1, 0, 0, entries(2, 2, term=2)), 0.0)
    raft.done()
    assert raft.matched(2) == 1
    effects = raft.take(0.0)
    assert effects.entries == entries(2, 2, term=2)
    assert effects.hard_state == HardState(2, 0)
    raft.done()
    assert raft.matched(2) == 2


def test_what_is_cut_is_not_stored_any_more() -> None:
    """Though the disk had it; by another leader's Append over entries that were stored."""
    raft = member(2, held=entries(1, 3))
    raft.step(Append(3, 2, 2, 1, 1, 0, 0, entries(2, 3, term=2)), 0.0)
    assert raft.matched(2) == 1


def test_nothing_is_saved_behind_a_snapshot_older_than_one_that_is_coming_in() -> None:
    """Entries that were answered for would be gone from the disk; by asking for them in between."""
    raft = member(2, held=entries(1, 5))
    raft.step(Append(1, 2, 1, 5, 1, 3, 0), 0.0)
    raft.take(0.0)
    raft.step(SnapshotPart(1, 2, 1, 9, 1, THREE, 0, 1, b"s"), 0.0)
    raft.done()
    with pytest.raises(AssertionError):
        raft.saved_entries(3)


def test_a_snapshot_of_the_same_history_cuts_nothing() -> None:
    """What was answered for stays, however late the snapshot comes; by one behind which entries are held."""

    def after_a_late_snapshot(make_raft: Callable[..., Raft]) -> tuple[int, int]:
        raft = member(2, held=entries(1, 6), make_raft=make_raft)
        answers(raft, SnapshotPart(1, 2, 1, 4, 1, THREE, 0, 1, b"s"))
        return raft.log.last_index, raft.commit

    assert after_a_late_snapshot(Raft) == (6, 4)
    assert after_a_late_snapshot(TakesEverySnapshot) == (4, 4)


def test_a_snapshot_of_another_history_replaces_the_log() -> None:
    """By one whose last entry is of another term here."""
    raft = member(2, held=entries(1, 6))
    raft.step(SnapshotPart(3, 2, 4, 4, 3, Members((2, 3)), 0, 1, b"s"), 0.0)
    effects = raft.take(0.0)
    assert effects.snapshot == Snapshot(4, 3, Members((2, 3)), b"s")
    assert (raft.log.last_index, raft.commit, raft.members) == (4, 4, Members((2, 3)))
    assert effects.messages == (Appended(2, 3, 4, ok=True, round=0, matched=4),)


def test_pieces_of_two_leaders_are_not_mixed() -> None:
    """Two snapshots of one index need not be the same bytes; by a leader that falls after the first piece."""
    raft = member(2)
    assert answers(raft, SnapshotPart(1, 2, 1, 9, 1, THREE, 0, 4, b"ab")) == (PartTaken(2, 1, 1, 9, at=2),)
    assert answers(raft, SnapshotPart(3, 2, 2, 9, 1, THREE, 2, 4, b"YZ")) == (PartTaken(2, 3, 2, 9, at=0),)
    raft.step(SnapshotPart(3, 2, 2, 9, 1, THREE, 0, 4, b"WXYZ"), 0.0)
    assert raft.take(0.0).snapshot == Snapshot(9, 1, THREE, b"WXYZ")


# --- votes ---


def test_one_vote_in_a_term_and_a_restart_does_not_change_that() -> None:
    """By two candidates with a restart between them."""
    raft = member(2)
    raft.step(AskVote(1, 2, 5, 0, 0), 0.0)
    effects = raft.take(0.0)
    assert effects.hard_state == HardState(5, 1)
    assert effects.messages == (Vote(2, 1, 5, granted=True),)
    again = member(2, term=5, vote=1)
    assert answers(again, AskVote(3, 2, 5, 0, 0)) == (Vote(2, 3, 5, granted=False),)
    assert answers(again, AskVote(1, 2, 5, 0, 0)) == (Vote(2, 1, 5, granted=True),)


@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"), [(2, 9, False), (3, 4, False), (3, 5, True), (4, 1, True)]
)
def test_only_a_log_that_may_hold_everything_gets_a_vote(last_term: int, last_index: int, granted: bool) -> None:
    """By candidates with older, shorter, equal and newer logs."""
    raft = member(2, term=3, held=(*entries(1, 4), *entries(5, 5, term=3)))
    assert answers(raft, AskVote(1, 2, 4, last_index, last_term)) == (Vote(2, 1, 4, granted=granted),)


def test_a_trial_changes_nothing() -> None:
    """Neither term nor vote; by asking whether it would, and then who else would."""
    raft = member(2)
    assert answers(raft, AskVote(1, 2, 2, 0, 0, trial=True)) == (Vote(2, 1, 2, granted=True, trial=True),)
    assert answers(raft, AskVote(3, 2, 2, 0, 0, trial=True)) == (Vote(2, 3, 2, granted=True, trial=True),)
    assert raft.term == 1


def test_nobody_is_voted_for_while_a_leader_is_heard_unless_it_wants_that() -> None:
    """By a question within an election time of a heartbeat, after the leader is known to be lost, and handed over."""
    for lost, handed_over, heeded in ((False, False, False), (True, False, True), (False, True, True)):
        raft = member(2)
        answers(raft, Append(1, 2, 1, 0, 0, 0, 0))
        if lost:
            raft.lost(1, 0.1)
        said = answers(raft, AskVote(3, 2, 2, 0, 0, handed_over=handed_over), 0.1)
        assert said == ((Vote(2, 3, 2, granted=True),) if heeded else ())


def test_who_is_known_to_be_lost_is_replaced_at_once() -> None:
    """Within one heartbeat's time, not an election's; and only the leader's loss counts."""
    raft = member(2)
    answers(raft, Append(1, 2, 1, 0, 0, 0, 0))
    raft.lost(3, 0.0)
    assert raft.next_deadline > 0.25
    raft.lost(1, 0.0)
    assert raft.next_deadline <= 0.05


# --- sending ---


def test_a_new_member_learns_what_there_is_though_nothing_is_proposed() -> None:
    """By adding one to a cluster at rest."""
    cluster = led(1, 2, 3)
    cluster.add(4)
    cluster.change(1, lambda members: members.with_learner(4))
    cluster.deliver()
    assert cluster[1].matched(4) == cluster[1].log.last_index


def test_all_hear_of_a_commit_at_once() -> None:
    """Without waiting for a heartbeat, also who answered last."""
    cluster = led(1, 2, 3)
    cluster.propose(1, "a")
    cluster.deliver()
    assert [hand.applied for hand in cluster.members.values()] == [[b"a"]] * 3


def test_who_is_behind_the_log_is_not_told_of_commits_without_end() -> None:
    """By an answer that comes after the entry that it is for was compacted away."""
    cluster = led(1, 2, 3)
    for command in "abc":
        cluster.propose(1, command)
    cluster.deliver(lambda message: 3 not in (message.sender, message.to))
    cluster.members[1].compact(0)
    cluster.arrive(Appended(3, 1, 1, ok=True, round=1, matched=2))
    assert len(cluster.flying) < 10


def test_a_dead_member_gets_heartbeats_alone() -> None:
    """Not the same entries again and again; by ten heartbeats to one that is gone."""
    cluster = led(1, 2, 3)
    cluster.kill(3)
    cluster.propose(1, "a")
    cluster.deliver()
    cluster.trace.clear()
    for _ in range(10):
        cluster.elapse(0.06, 1)
        cluster.deliver()
    to_3 = [line for line in cluster.trace if line.startswith("1>3")]
    assert len(to_3) == 10
    assert all("heartbeat" in line for line in to_3)


def test_a_slow_member_gets_nothing_twice() -> None:
    """What was sent before a heartbeat is lost only when that one is answered; by one that answers nothing yet."""
    cluster = led(1, 2, 3)
    cluster.propose(1, "a")
    for _ in range(5):
        cluster.elapse(0.05, 1)
        cluster.deliver(lambda message: 3 not in (message.sender, message.to))
    cluster.deliver()
    assert sum(line.startswith("1>3") and "append 2.1(a)" in line for line in cluster.trace) == 1


def test_pieces_of_a_snapshot_do_not_multiply() -> None:
    """Though each answer comes twice and heartbeats go on; by counting the pieces."""
    cluster = led(1, 2, 3)
    cluster.kill(3)
    for number in range(20):
        cluster.propose(1, f"command-{number}")
        cluster.deliver()
    cluster.members[1].compact(0)
    cluster.start(3)
    cluster.elapse(0.05, 1)
    arrived: Counter[str] = Counter()
    while cluster.flying:
        message = cluster.flying.popleft()
        arrived[type(message).__name__] += 1
        assert arrived.total() < 1000, "messages without end"
        cluster.arrive(message)
        if isinstance(message, PartTaken):
            cluster.arrive(message)
        if arrived[type(message).__name__] % 7 == 0:
            cluster.elapse(0.05, 1)
    size = len(cluster[1].log.snapshot.state)
    assert cluster.members[3].applied == cluster.members[1].applied
    assert arrived["SnapshotPart"] < size / 8 * 1.5


def test_only_so_many_appends_are_in_flight() -> None:
    """By proposals to a member that answers nothing."""
    cluster = led(1, 2)
    for _ in range(50):
        cluster.propose(1, "a")
    assert sum(isinstance(message, Append) for message in cluster.flying) == 32


def test_commands_that_nobody_confirms_are_refused_in_the_end() -> None:
    """By a leader that was cut off, with room for ten bytes."""
    raft = member(1, Members((1, 2)), limits=RaftLimits(uncommitted_bytes_max=10))
    raft.tick(1.0)
    raft.step(Vote(2, 1, 2, granted=True, trial=True), 1.0)
    raft.step(Vote(2, 1, 2, granted=True), 1.0)
    raft.propose(b"123456")
    with pytest.raises(Overloaded):
        raft.propose(b"78901")


# --- members ---


@pytest.mark.parametrize(
    "after", [Members(()), Members((1,)), Members((1, 2, 3, 4, 5)), Members((1, 2, 2, 3)), Members((1, 2, 3), (3,))]
)
def test_members_change_one_voter_at_a_time(after: Members) -> None:
    """Two majorities must share one; by configurations that are further away, or cannot be."""
    cluster = led(1, 2, 3)
    with pytest.raises(BadRequest):
        cluster[1].propose_members(after)


def test_a_new_leader_changes_members_only_after_an_entry_of_its_own() -> None:
    """An older change may be on its way, committed or not; by a leader whose first entry nobody has."""
    raft = member(1)
    raft.tick(1.0)
    raft.step(Vote(2, 1, 2, granted=True, trial=True), 1.0)
    raft.step(Vote(2, 1, 2, granted=True), 1.0)
    assert raft.leader == 1
    with pytest.raises(Overloaded):
        raft.propose_members(Members((1, 2)))


def test_a_change_that_is_cut_never_was() -> None:
    """The configuration before it holds again; by a leader that adds a member while it is cut off."""
    cluster = led(1, 2, 3)
    cluster.cut({1}, {2, 3})
    cluster.change(1, lambda members: members.with_learner(4))
    assert cluster[1].members == Members((1, 2, 3), (4,))
    cluster.elect(2)
    cluster.heal()
    cluster.elapse(0.05, 2)
    cluster.deliver()
    assert cluster[1].members == cluster[2].members == THREE


def test_nothing_changes_during_a_hand_over() -> None:
    """Neither commands nor members; and it is over after an election's time."""
    cluster = led(1, 2, 3)
    cluster.cut({1}, {2})
    cluster.hand_over(1, 2)
    with pytest.raises(NotLeader):
        cluster[1].propose(b"a")
    with pytest.raises(NotLeader):
        cluster[1].propose_members(Members((1, 2)))
    for _ in range(6):
        cluster.elapse(0.05, 1)
        cluster.deliver()
    assert cluster.propose(1, "a")


def test_a_read_is_answered_when_the_voter_that_it_waits_for_is_removed() -> None:
    """A majority may be smaller by then; by removing the other of two."""
    cluster = led(1, 2)
    cluster.kill(2)
    cluster.read(1, "x")
    assert cluster.reads == []
    cluster.change(1, lambda members: members.without(2))
    assert cluster.reads[0][0] == "x"
    assert cluster.reads[0][1]


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """After two election times, and says no to who waits for a read."""
    cluster = led(1, 2, 3)
    cluster.cut({1}, {2, 3})
    cluster.read(1, "x")
    for _ in range(9):
        cluster.elapse(0.05, 1)
    assert cluster[1].leader == 1
    for _ in range(2):
        cluster.elapse(0.05, 1)
    assert cluster[1].leader == 0
    assert cluster.reads == [("x", None)]


def test_messages_of_the_past_and_for_others_are_ignored() -> None:
    """An old leader learns the present term from the answer; nothing else comes of it."""
    raft = member(2, term=7)
    assert answers(raft, Append(1, 2, 6, 0, 0, 0, 0, entries(1, 1))) == (Appended(2, 1, 7, ok=False, round=0),)
    assert answers(raft, Append(1, 3, 7, 0, 0, 0, 0, entries(1, 1))) == ()
    assert raft.log.last_index == 0
    assert raft.take(0.0) == Effects()
