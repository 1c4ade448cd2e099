"""Who is in sync, while the cluster changes it: the set, a master's wishes, and every way in which they can cross."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mirrorlog.cluster.state.commands import Holder
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.errors import InSyncReplicasNotEnough, LogRecovering, MirrorAhead, NotAMember, ProtocolError
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.in_sync import RETRY_S, Grow, InSyncSet, LagClocks, Shrink
from mirrorlog.wire.frames import Durability
from tests.ha.stage import ALONE, LAG_S, REPLICAS, WITH_N1, Stage, both, decided


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """The master is in sync alone."""
    return Stage(tmp_path, ALONE)


# --- Who may be let in ----------------------------------------------------------------------------------------------


def test_a_copy_that_holds_everything_is_wished_in(stage: Stage) -> None:
    """Let a replica follow up to the end: the wish names it, its run and the version, and there is one at a time."""
    _, wish = stage.proposed()
    assert wish == Grow("n1", "n1a", 5)
    assert stage.wish() is None


def test_a_copy_below_the_confirmed_offset_is_not_wished_in(stage: Stage) -> None:
    """Ack up to the batch before: it is, only with the last one."""
    before = stage.replica.log.end
    stage.publish()
    link = stage.link("n1a")
    stage.ack(link, before)
    assert stage.wish() is None
    stage.ack(link)
    assert stage.wish() is not None


def test_a_copy_without_the_epochs_start_batch_is_not_wished_in(tmp_path: Path) -> None:
    """Where nothing of the epoch is confirmed yet, what a copy needs is its first batch."""
    stage = Stage(tmp_path, decided(5, "n0a", wanted=2))
    first = stage.replica.log.end
    end = stage.publish()
    stage.mastership.epoch_start_end = end
    link = stage.link("n1a")
    stage.ack(link, first)
    assert (stage.confirmed, stage.wish()) == (0, None)
    stage.ack(link)
    assert stage.wish() is not None


def test_nobody_is_wished_in_before_the_epochs_start_is_known(stage: Stage) -> None:
    """The mastership is made before its first batch is appended."""
    stage.mastership.epoch_start_end = None
    stage.ack(stage.link("n1a"))
    assert stage.wish() is None


def test_only_the_run_that_the_cluster_knows_is_wished_in(stage: Stage) -> None:
    """Let a run come that is not registered: it is wished in once it is, though the log has no new version by that."""
    stage.ack(stage.link("n1b"))
    assert stage.wish() is None
    stage.mastership.learned(decided(5, "n0a", starts="n1b"))
    assert stage.wish() == Grow("n1", "n1b", 5)


def test_a_link_without_a_run_is_not_wished_in(stage: Stage) -> None:
    """A node that joined has no run yet; a link that names none is not taken for it."""
    link = stage.link("n1a")
    link.start_id = ""
    facts = decided(6, "n0a")
    stage.mastership.learned(InSyncSet(6, REPLICAS, facts.members, frozenset(), 1, {"n0": "n0a", "n1": ""}))
    stage.ack(link)
    assert stage.wish() is None


def test_a_copy_that_lacks_old_records_is_not_wished_in(stage: Stage) -> None:
    """Let a mirror have the newest records only: not before the log has decided to begin there too."""
    begin = stage.replica.log.end
    link = stage.link("n1a", holds=stage.publish(), begin=begin)
    assert stage.wish() is None
    stage.move_start(begin)
    stage.ack(link)
    assert stage.wish() == Grow("n1", "n1a", 5)


def test_on_a_disk_log_what_is_flushed_counts(tmp_path: Path) -> None:
    """Ack in memory, then on disk."""
    stage = Stage(tmp_path, ALONE, durability=Durability.DISK)
    link = stage.link("n1a")
    stage.ack(link)
    assert stage.wish() is None
    stage.ack(link, flushed=stage.replica.log.end)
    assert stage.wish() is not None


def test_a_closed_log_asks_for_nothing(stage: Stage) -> None:
    """A master that lost something vouches for nobody."""
    stage.ack(stage.link("n1a"))
    stage.mastership.ahead(MirrorAhead("mirror n2 holds more"))
    assert stage.wish() is None


def test_a_replica_that_is_added_may_follow_and_come_in(stage: Stage) -> None:
    """Learn of one more replica: it is a mirror from then on, and one that goes is none."""
    facts = InSyncSet(6, ("n0", "n9"), {"n0": "n0a"}, frozenset(), 1, {"n0": "n0a", "n1": "n1a", "n9": "n9a"})
    link = stage.link("n1a")
    stage.mastership.learned(facts)
    stage.mastership.check_member("n9")
    with pytest.raises(NotAMember):
        stage.mastership.check_member("n1")
    stage.ack(link)
    assert stage.wish() is None
    stage.ack(stage.link("n9a"))
    assert stage.wish() == Grow("n9", "n9a", 6)
    assert stage.mastership.mirrors == ("n9",)


# --- What is proposed, and what came of it --------------------------------------------------------------------------


def test_who_is_proposed_is_waited_for_from_that_step_on(stage: Stage) -> None:
    """Publish after the wish: it is confirmed with the ack of the one who is proposed, and not before."""
    link, _ = stage.proposed()
    before, end = stage.confirmed, stage.publish()
    assert stage.confirmed == before
    stage.ack(link)
    assert stage.confirmed == end
    assert stage.mastership.copies_up == 1


def test_a_copy_that_was_let_in_is_a_member(stage: Stage) -> None:
    """Learn of it, then of the outcome: it counts as a copy, and a level of two is reached by it."""
    link, wish = stage.proposed()
    assert stage.mastership.learned(WITH_N1) == []
    assert stage.mastership.wish_ended(wish, refused=False) == []
    assert (stage.mastership.copies_up, stage.mastership.in_sync) == (2, {"n1"})
    end = stage.publish()
    assert stage.mastership.wait("p", end=end, copies=2, durability=Durability.MEMORY, deadline=9.0) == []
    assert stage.ack(link) == [Answer("p", PutStatus.PUT_OK, 2)]
    assert stage.wish() is None


def test_a_refused_copy_is_waited_for_no_more(stage: Stage) -> None:
    """Let a publish wait for a proposed copy that is silent: the refusal answers it."""
    _, wish = stage.proposed()
    end = stage.publish()
    stage.mastership.wait("p", end=end, copies=ALL_MEMBERS, durability=Durability.MEMORY, deadline=9.0)
    assert stage.mastership.wish_ended(wish, refused=True) == [Answer("p", PutStatus.PUT_OK, 1)]
    assert stage.confirmed == end


def test_a_refused_wish_is_repeated_after_a_while_only(stage: Stage) -> None:
    """Refuse it: nothing is asked for within a second, but for a set that has changed."""
    link, wish = stage.proposed()
    stage.mastership.wish_ended(wish, refused=True)
    assert stage.wish(after=RETRY_S / 2) is None
    assert stage.wish(after=RETRY_S / 2) == wish
    stage.mastership.wish_ended(wish, refused=True)
    stage.mastership.learned(decided(6, "n0a"))
    assert stage.wish() == Grow("n1", "n1a", 6)
    assert link.proven


def test_a_refused_copy_does_not_keep_another_one_out(stage: Stage) -> None:
    """Two copies are ready and the first is refused, for a reason that the master does not know yet."""
    stage.ack(stage.link("n1a"))
    stage.ack(stage.link("n2a"))
    first = stage.wish()
    assert isinstance(first, Grow)
    stage.mastership.wish_ended(first, refused=True)
    second = stage.wish(after=RETRY_S)
    assert isinstance(second, Grow)
    assert {first.node, second.node} == {"n1", "n2"}


def test_a_growth_of_unknown_outcome_is_waited_for_and_made_void(stage: Stage) -> None:
    """Lose the outcome: the copy stays waited for, however long, until a higher version is known; an empty shrink asks
    for one, once a second."""
    _, wish = stage.proposed()
    before, end = stage.confirmed, stage.publish()
    stage.mastership.wish_unknown(wish)
    void = stage.wish()
    assert void == Shrink((), 5)
    stage.mastership.wish_unknown(void)
    assert stage.wish() is None
    assert stage.wish(after=RETRY_S) == void
    stage.mastership.wish_ended(wish, refused=True)  # too late: nobody waits for this outcome any more
    assert stage.confirmed == before
    stage.mastership.learned(decided(6, "n0a"))
    assert stage.confirmed == end
    stage.mastership.wish_ended(void, refused=False)
    assert stage.confirmed == end


def test_a_void_that_changes_nothing_is_not_repeated_at_once(stage: Stage) -> None:
    """A cluster that takes an empty shrink for nothing leaves the copy waited for, and is asked once a second."""
    _, wish = stage.proposed()
    stage.mastership.wish_unknown(wish)
    void = stage.wish()
    assert void is not None
    stage.mastership.wish_ended(void, refused=False)
    assert stage.wish() is None
    before = stage.confirmed
    stage.publish()
    assert (stage.confirmed, stage.wish(after=RETRY_S)) == (before, void)


def test_a_growth_that_is_applied_late_finds_the_master_waiting(stage: Stage) -> None:
    """Lose the outcome, and let the command be applied while the void one is under way: the copy is a member, and
    nothing was confirmed without it; the void one is refused, and changes nothing."""
    link, wish = stage.proposed()
    before = stage.confirmed
    stage.mastership.wish_unknown(wish)
    void = stage.wish()
    assert void is not None
    end = stage.publish()
    stage.mastership.learned(WITH_N1)
    stage.mastership.wish_ended(void, refused=True)
    assert (stage.confirmed, stage.mastership.copies_up) == (before, 2)
    stage.ack(link)
    assert stage.confirmed == end


def test_an_outcome_that_is_read_before_the_set_settles_nothing(stage: Stage) -> None:
    """Say that the growth went through before the set was learned: the copy stays waited for."""
    _, wish = stage.proposed()
    before = stage.confirmed
    stage.publish()
    stage.mastership.wish_ended(wish, refused=False)
    assert stage.confirmed == before
    stage.mastership.learned(WITH_N1)
    assert (stage.confirmed, stage.mastership.progress.is_member("n1")) == (before, True)


def test_the_second_of_two_equal_commands_is_refused_and_takes_nobody_out(stage: Stage) -> None:
    """A command that arrives twice is applied once: the refusal of the other finds a member."""
    _, wish = stage.proposed()
    before = stage.confirmed
    stage.mastership.learned(WITH_N1)
    stage.publish()
    stage.mastership.wish_ended(wish, refused=True)
    assert (stage.confirmed, stage.mastership.progress.is_member("n1")) == (before, True)


def test_a_set_that_the_coordinator_changed_meanwhile_makes_a_growth_void(stage: Stage) -> None:
    """Learn a higher version without the copy: it is waited for no more, before the refusal is read, and may be
    proposed anew once it is."""
    _, wish = stage.proposed()
    end = stage.publish()
    stage.mastership.learned(decided(7, "n0a"))
    assert (stage.confirmed, stage.wish()) == (end, None)
    stage.mastership.wish_ended(wish, refused=True)
    stage.ack(stage.mastership.links["n1"])
    assert stage.wish() == Grow("n1", "n1a", 7)


def test_a_copy_that_was_let_in_and_out_again_is_no_member(stage: Stage) -> None:
    """Learn both changes at once."""
    _, wish = stage.proposed()
    end = stage.publish()
    stage.mastership.learned(decided(7, "n0a"))
    stage.mastership.wish_ended(wish, refused=False)
    assert (stage.confirmed, stage.mastership.copies_up) == (end, 1)


def test_what_is_old_is_not_learned(stage: Stage) -> None:
    """Tell an older version after a newer one."""
    stage.mastership.learned(WITH_N1)
    stage.mastership.learned(ALONE)
    assert stage.mastership.progress.is_member("n1")


# --- Runs -----------------------------------------------------------------------------------------------------------


def test_a_proposed_copy_whose_link_is_lost_holds_still(stage: Stage) -> None:
    """Cut the link before the outcome: what comes next is not confirmed, with the copy let in neither."""
    link, wish = stage.proposed()
    before = stage.confirmed
    stage.mastership.leave(link)
    end = stage.publish()
    assert stage.confirmed == before
    stage.mastership.learned(WITH_N1)
    stage.mastership.wish_ended(wish, refused=False)
    assert (stage.confirmed, stage.mastership.copies_up) == (before, 1)
    stage.link("n1a", holds=end)
    assert (stage.confirmed, stage.mastership.copies_up) == (end, 2)


def test_a_proposed_copy_that_comes_back_is_heard(stage: Stage) -> None:
    """Let the same run make a new link before the outcome: what it acks there counts for the proposed copy."""
    stage.proposed()
    before, end = stage.confirmed, stage.publish()
    link = stage.link("n1a", holds=before)
    assert stage.confirmed == before
    stage.ack(link)
    assert stage.confirmed == end


def test_a_run_after_the_proposed_one_does_not_speak_for_it(stage: Stage) -> None:
    """Restart the proposed node: its new run's acks do not count before the cluster has said what it is. Refused, the
    new run is proposed."""
    _, wish = stage.proposed()
    before, end = stage.confirmed, stage.publish()
    stage.link("n1b", holds=end)
    assert stage.confirmed == before
    stage.mastership.learned(decided(5, "n0a", starts="n1b"))
    assert stage.confirmed == before
    stage.mastership.wish_ended(wish, refused=True)
    assert (stage.confirmed, stage.wish(after=RETRY_S)) == (end, Grow("n1", "n1b", 5))


def test_a_node_that_died_after_it_was_let_in_is_a_member_in_its_next_run(stage: Stage) -> None:
    """Learn the growth and the new run at once, with its link there already."""
    _, wish = stage.proposed()
    before, end = stage.confirmed, stage.publish()
    link = stage.link("n1b", holds=before)
    stage.mastership.learned(decided(7, "n0a", "n1b"))
    stage.mastership.wish_ended(wish, refused=False)
    assert (stage.confirmed, stage.mastership.copies_up) == (before, 2)
    stage.ack(link)
    assert stage.confirmed == end


def test_a_node_that_lost_its_memory_after_it_was_let_in_holds_still(stage: Stage) -> None:
    """Learn the growth and the mark at once: its acks do not count, and it is let in anew."""
    _, wish = stage.proposed()
    before, end = stage.confirmed, stage.publish()
    link = stage.link("n1b")
    stage.mastership.learned(decided(7, "n0a", "n1b", marked=("n1",)))
    stage.mastership.wish_ended(wish, refused=False)
    stage.ack(link)
    assert (stage.confirmed, stage.mastership.copies_up) == (before, 1)
    assert stage.wish() == Grow("n1", "n1b", 7)
    stage.mastership.learned(decided(8, "n0a", "n1b"))
    assert (stage.confirmed, stage.mastership.copies_up) == (end, 2)


def test_a_marked_member_that_is_let_in_holds_what_its_new_run_has(tmp_path: Path) -> None:
    """Let a member prove much, lose half of it, be let in anew with the rest, and its link go before that is known."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a", "n2a"))
    half, other = stage.replica.log.end, stage.link("n2a")
    stage.ack(other)
    end = stage.publish()
    stage.ack(stage.link("n1a"))
    stage.mastership.learned(decided(6, "n0a", "n1b", "n2a", marked=("n1",)))
    link = stage.link("n1b", holds=half)
    wish = stage.wish()
    assert (stage.confirmed, wish) == (half, Grow("n1", "n1b", 6))
    stage.mastership.leave(link)
    stage.mastership.learned(decided(7, "n0a", "n1b", "n2a"))
    stage.ack(other, end)
    assert (stage.confirmed, stage.mastership.copies_up) == (half, 2)


def test_a_member_linked_in_another_run_holds_still(tmp_path: Path) -> None:
    """Restart a member: its new run's acks count once the cluster says that it is the member's."""
    stage, _ = both(tmp_path)
    before, end = stage.confirmed, stage.publish()
    stage.link("n1b", holds=end)
    assert (stage.confirmed, stage.mastership.copies_up) == (before, 1)
    stage.mastership.learned(decided(6, "n0a", "n1b"))
    assert (stage.confirmed, stage.mastership.copies_up) == (end, 2)


def test_an_ack_of_a_replaced_link_is_refused(tmp_path: Path) -> None:
    """What was on its way from the run before must not count for the one that is there now."""
    stage, old = both(tmp_path)
    stage.publish()
    old.pump(0.0)
    before = stage.confirmed
    stage.link("n1a", holds=before)
    with pytest.raises(ProtocolError):
        stage.ack(old)
    assert stage.confirmed == before


def test_a_new_link_does_not_inherit_what_another_run_said(tmp_path: Path) -> None:
    """Let a run that does not count ack everything, and a link of the member's own run come after it with less."""
    stage, _ = both(tmp_path)
    before = stage.confirmed
    end = stage.publish()
    stage.ack(stage.link("n1b", holds=end))
    stage.link("n1a", holds=before)
    assert stage.confirmed == before


def test_a_member_that_lacks_old_records_holds_still_until_it_is_complete(tmp_path: Path) -> None:
    """Let a member come back with the newest records only: its acks count once the log has decided to begin there."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a"))
    begin = stage.replica.log.end
    link = stage.link("n1a", holds=stage.publish(), begin=begin)
    assert (stage.confirmed, stage.mastership.copies_up) == (0, 1)
    stage.move_start(begin)
    stage.ack(link)
    assert (stage.confirmed, stage.mastership.copies_up) == (stage.replica.log.end, 2)


# --- Publishes ------------------------------------------------------------------------------------------------------


def test_publishes_are_refused_while_too_few_members_are_up(tmp_path: Path) -> None:
    """Two copies are wanted: a link of a copy that is no member yet does not help, nor one of another run, nor a marked
    member."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a", wanted=2))
    stage.link("n2a")
    stage.link("n1b")
    with pytest.raises(InSyncReplicasNotEnough, match="1 copies up, min_in_sync is 2; waiting for n1, n2"):
        stage.mastership.admit()
    stage.mastership.learned(decided(6, "n0a", "n1b", wanted=2))
    stage.mastership.admit()
    stage.mastership.learned(decided(7, "n0a", "n1b", marked=("n1",), wanted=2))
    with pytest.raises(InSyncReplicasNotEnough):
        stage.mastership.check_writable()
    assert stage.mastership.min_in_sync == 2


def test_a_lossy_master_does_not_wait_to_hear_a_copy_that_is_none_any_more(tmp_path: Path) -> None:
    """Lose bytes on the master: all replicas have to be heard, and only those that are left."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a"), lossy=True)
    stage.link("n1a")
    with pytest.raises(LogRecovering, match="waits to hear what n2 holds"):
        stage.mastership.check_writable()
    stage.mastership.learned(
        InSyncSet(6, ("n0", "n1"), {"n0": "n0a", "n1": "n1a"}, frozenset(), 1, {"n0": "n0a", "n1": "n1a"})
    )
    stage.mastership.check_writable()


def test_a_master_that_is_in_no_set_confirms_nothing(tmp_path: Path) -> None:
    """Tell it a set without it, which should not be: what it holds alone is not confirmed."""
    stage, _ = both(tmp_path)
    before = stage.confirmed
    stage.mastership.learned(InSyncSet(9, REPLICAS, {"n1": "n1a"}, frozenset(), 1, {"n1": "n1a"}))
    stage.ack(stage.mastership.links["n1"], stage.publish())
    assert stage.confirmed == before


# --- Who has to leave -----------------------------------------------------------------------------------------------


def test_a_member_that_is_gone_has_to_leave_after_the_lag_time(tmp_path: Path) -> None:
    """Cut the link of a member that has everything: it has to leave though nothing is published; what waits for it is
    answered when the cluster has let it go, and not before."""
    stage, link = both(tmp_path)
    assert stage.wish() is None
    stage.mastership.leave(link)
    end = stage.publish()
    stage.mastership.wait("p", end=end, copies=ALL_MEMBERS, durability=Durability.MEMORY, deadline=99.0)
    assert stage.wish(after=LAG_S - 0.1) is None
    wish = stage.wish(after=0.1)
    assert wish == Shrink(("n1",), 5)
    assert stage.confirmed < end
    assert stage.mastership.learned(decided(6, "n0a")) == [Answer("p", PutStatus.PUT_OK, 1)]
    assert stage.confirmed == end


def test_a_member_without_which_too_few_stay_does_not_have_to_leave(tmp_path: Path) -> None:
    """Two copies are wanted, and one of them is gone."""
    stage, link = both(tmp_path, wanted=2)
    stage.mastership.leave(link)
    assert [stage.wish(after=LAG_S) for _ in range(3)] == [None] * 3


def test_a_dead_member_leaves_once_another_has_come(tmp_path: Path) -> None:
    """Two copies are wanted, one member is gone and a third copy is there: it is let in first."""
    stage, link = both(tmp_path, wanted=2)
    stage.mastership.leave(link)
    other = stage.link("n2a")
    stage.ack(other)
    grow = stage.wish()
    assert grow == Grow("n2", "n2a", 5)
    stage.mastership.learned(decided(6, "n0a", "n1a", "n2a", wanted=2))
    stage.mastership.wish_ended(grow, refused=False)
    assert stage.wish(after=LAG_S) == Shrink(("n1",), 6)


def test_a_shrink_of_unknown_outcome_is_asked_for_again(tmp_path: Path) -> None:
    """Lose the outcome: nobody is waited for less, and a second later it is asked for anew."""
    stage, link = both(tmp_path)
    stage.wish()
    stage.mastership.leave(link)
    wish = stage.wish(after=LAG_S)
    assert wish is not None
    stage.mastership.wish_unknown(wish)
    before = stage.confirmed
    stage.publish()
    assert (stage.confirmed, stage.wish()) == (before, None)
    assert stage.wish(after=RETRY_S) == wish


def test_a_marked_member_that_was_let_in_anew_is_not_behind_from_before(tmp_path: Path) -> None:
    """Keep a member marked for longer than the lag time, with nothing to spare: let in, it has all the time again."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1b", marked=("n1",), wanted=2))
    assert stage.wish() is None
    assert stage.wish(after=5 * LAG_S) is None
    stage.ack(stage.link("n1b"))
    wish = stage.wish()
    assert wish == Grow("n1", "n1b", 5)
    stage.mastership.learned(decided(6, "n0a", "n1b"))
    stage.mastership.wish_ended(wish, refused=False)
    stage.publish()
    assert stage.wish() is None
    assert stage.wish(after=LAG_S) == Shrink(("n1",), 6)


def test_a_member_that_has_everything_is_never_behind() -> None:
    """Publish nothing for an hour."""
    clocks = LagClocks(LAG_S)
    assert not any(clocks.behind(float(now), end=100, reached={"n1": 100}) for now in range(3600))


def test_a_member_that_follows_steadily_is_not_behind() -> None:
    """Let a member be three seconds behind a log that never rests: it reaches each end in time."""
    clocks = LagClocks(LAG_S)
    assert all(not clocks.behind(now, end=now * 100, reached={"n1": (now - 3) * 100}) for now in range(100))


def test_a_member_that_is_slower_than_the_log_is_behind_in_the_end() -> None:
    """Let a member take half of what comes: after eight seconds it has what was there after four, and then nothing
    that is newer in time."""
    clocks = LagClocks(LAG_S)
    first = next(now for now in range(100) if clocks.behind(now, end=now * 100, reached={"n1": now * 50}))
    assert first == 4 + LAG_S


def test_a_member_that_comes_back_in_time_is_not_behind() -> None:
    """Let a member be away for most of the lag time, twice, and have everything in between."""
    clocks = LagClocks(LAG_S)
    away = [now for now in range(30) if clocks.behind(now, end=100, reached={"n1": 100 if now in (0, 9) else None})]
    assert away == list(range(19, 30))


def test_a_master_that_was_stopped_finds_nobody_behind_at_once() -> None:
    """Look again after an hour, before the acks of that time were read: whoever is behind has the lag time again."""
    clocks = LagClocks(LAG_S)
    clocks.behind(0.0, end=100, reached={"n1": 100})
    behind = [now for now in range(3600, 3620) if clocks.behind(now, end=500, reached={"n1": 400})]
    assert behind == list(range(3610, 3620))


def test_the_master_asks_only_for_what_the_cluster_lets_go() -> None:
    """Draw many sets at random: who may leave is judged as the cluster does."""
    random_ = random.Random(7)
    for _ in range(500):
        replicas = REPLICAS + ("n3", "n4")[: random_.randrange(3)]
        members = {node: f"{node}a" for node in replicas if node == "n0" or random_.random() < 0.7}
        marked = frozenset(node for node in members if node != "n0" and random_.random() < 0.3)
        nodes = [node for node in replicas if random_.random() < 0.6]
        wanted = random_.randrange(1, 4)
        log = LogFacts(
            number=1,
            name="x",
            flush="memory",
            replicas=replicas,
            copies_wanted=wanted,
            master=Holder("n0", "n0a"),
            in_sync=members,
            marked=marked,
        )
        known = InSyncSet(1, replicas, members, marked, wanted, members)
        assert known.may_leave(nodes, own="n0") == log.may_leave(nodes)
