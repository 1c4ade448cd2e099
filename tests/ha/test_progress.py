"""What follows from how far each copy is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Progress
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.wire.frames import Durability, Level
from tests.ha.links import everybody

ALL = 3


NODES = ("n0", "n1", "n2")


def make_progress(make: type[Progress] = Progress, durability: Durability = Durability.MEMORY) -> Progress:
    """Everybody is in sync and has a link."""
    progress = make(own="n0", in_sync=everybody(NODES), durability=durability, confirmed=0)
    progress.count(everybody(NODES), up=("n1", "n2"))
    return progress


def members(*nodes: str, marked: tuple[str, ...] = (), copies_wanted: int = 1) -> InSyncSet:
    """Of three copies these are in sync."""
    return replace(
        everybody(NODES, copies_wanted=copies_wanted), members=dict.fromkeys(nodes, "s"), marked=frozenset(marked)
    )


def check_one_mirror_does_not_speak_for_all(make: type[Progress] = Progress) -> None:
    progress = make_progress(make)
    progress.appended(100)
    progress.acked("n1", written=100, flushed=0)
    assert progress.reached_by(ALL, Durability.MEMORY) == 0
    assert progress.confirmed == 0
    progress.acked("n2", written=40, flushed=0)
    assert progress.reached_by(ALL, Durability.MEMORY) == 40
    assert progress.confirmed == 40


@pytest.mark.story("002:229-253")
def test_one_mirror_does_not_speak_for_all() -> None:
    """With two mirrors, let one ack everything and the other less: only what both hold counts for all."""
    check_one_mirror_does_not_speak_for_all()


@pytest.mark.story("002:231-235")
def test_the_confirmed_offset_never_goes_back() -> None:
    """Let a mirror that had everything come back with less: its own count falls, the confirmed offset stays."""
    progress = make_progress()
    progress.appended(100)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
    progress.acked("n1", written=30, flushed=0)
    assert progress.confirmed == 100
    assert progress.reached_by(ALL, Durability.MEMORY) == 30


def test_on_disk_is_counted_apart_from_in_memory() -> None:
    """Ack bytes in memory, flush fewer: each durability has its own offset, and a disk log confirms the flushed."""
    progress = make_progress(durability=Durability.DISK)
    progress.appended(100)
    progress.flushed(90)
    progress.acked("n1", written=100, flushed=50)
    progress.acked("n2", written=100, flushed=70)
    assert progress.reached_by(ALL, Durability.MEMORY) == 100
    assert progress.reached_by(ALL, Durability.DISK) == 50
    assert progress.reached_by(2, Durability.DISK) == 70
    assert progress.confirmed == 50


def test_offsets_and_counts_agree() -> None:
    """Draw many states at random: `reached_by(k)` is the largest offset that `copies_of` finds on k copies."""
    random_ = random.Random(20)
    for _ in range(300):
        progress = make_progress()
        progress.appended(random_.randrange(50))
        for node in ("n1", "n2"):
            progress.acked(node, written=random_.randrange(50), flushed=0)
        for copies in (1, 2, 3):
            reached = progress.reached_by(copies, Durability.MEMORY)
            assert progress.copies_of(reached, Durability.MEMORY) >= copies
            assert progress.copies_of(reached + 1, Durability.MEMORY) < copies


@pytest.mark.parametrize(
    ("level", "copies"),
    [(Level.NONE, 0), (Level.MASTER, 1), (Level.ONE, 2), (3, 3), (Level.MAJORITY, 2), (Level.ALL, ALL_MEMBERS)],
)
def test_levels_mean_numbers_of_copies(level: int, copies: int) -> None:
    """Ask for each level of a log with three copies."""
    assert make_progress().copies_for(level) == copies


def test_a_level_above_the_copies_is_refused() -> None:
    """Ask for four copies of three: such a publish could never be confirmed."""
    with pytest.raises(BadRequest, match="4 copies, but this log has 3"):
        make_progress().copies_for(4)


def test_all_means_the_members_of_the_moment_that_it_is_answered() -> None:
    """A mirror enters while a confirm of all waits: the confirm waits for it too."""
    progress = make_progress()
    progress.count(members("n0", "n1"), up=("n1",))
    progress.appended(100)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
    assert progress.confirmed == 100
    progress.appended(200)
    progress.count(everybody(NODES), up=("n1", "n2"))
    progress.acked("n1", written=200, flushed=0)
    assert not progress.holds(200, progress.copies_for(Level.ALL), Durability.MEMORY)
    progress.acked("n2", written=200, flushed=0)
    assert progress.holds(200, progress.copies_for(Level.ALL), Durability.MEMORY)


def test_a_set_below_its_least_confirms_nothing_new() -> None:
    """Let the set shrink to the master where two are wanted: what only the master has is not confirmed, and a level
    keeps its meaning; when a mirror is in again it goes on."""
    progress = Progress(own="n0", in_sync=members("n0", copies_wanted=2), durability=Durability.MEMORY, confirmed=100)
    progress.appended(500)
    progress.acked("n1", written=500, flushed=0)
    assert progress.confirmed == 100
    assert (progress.copies_for(Level.MAJORITY), progress.copies_for(Level.ONE)) == (2, 2)
    assert (progress.reached_by(ALL_MEMBERS, Durability.MEMORY), progress.copies) == (0, 2)
    progress.count(members("n0", "n1", copies_wanted=2), up=("n1",))
    assert progress.confirmed == 500


def test_a_marked_member_fills_no_place_but_holds_still() -> None:
    """Mark one of two: it is too few for two copies; where one is enough what it had proved bounds what is confirmed,
    and it is no copy of a level."""
    progress = make_progress()
    progress.appended(100)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
    progress.appended(200)
    progress.count(members("n0", "n1", marked=("n1",)), up=())
    progress.acked("n1", written=200, flushed=0)
    assert (progress.confirmed, progress.reached_by(2, Durability.MEMORY)) == (100, 0)
    assert (progress.copies_of(200, Durability.MEMORY), progress.held("n1").written) == (1, 200)
    progress.count(members("n0", "n1", marked=("n1",), copies_wanted=2))
    assert progress.reached_by(ALL_MEMBERS, Durability.MEMORY) == 0


def test_a_member_whose_acks_do_not_count_keeps_what_it_proved() -> None:
    """Let a member be away, then come with less and with more over a link that does not count, and over one that
    does."""
    progress = make_progress()
    progress.appended(100)
    progress.acked("n2", written=100, flushed=0)
    progress.acked("n1", written=60, flushed=0)
    progress.count(everybody(NODES), up=("n2",))
    assert (progress.confirmed, progress.reached_by(ALL, Durability.MEMORY)) == (60, 60)
    progress.linked("n1", written=10)
    progress.count(everybody(NODES), up=("n2",))
    progress.acked("n1", written=100, flushed=0)
    assert (progress.confirmed, progress.reached_by(ALL, Durability.MEMORY)) == (60, 60)
    progress.count(everybody(NODES), up=("n1", "n2"))
    assert progress.confirmed == 100


def test_a_member_that_never_came_holds_still() -> None:
    """A new mastership knows nothing of a member that has no link yet."""
    progress = Progress(own="n0", in_sync=everybody(NODES), durability=Durability.MEMORY, confirmed=30)
    progress.appended(100)
    progress.acked("n1", written=100, flushed=0)
    progress.count(everybody(NODES), up=("n1",))
    assert progress.confirmed == 30


def test_a_proposed_copy_is_waited_for_and_is_no_copy_of_a_level() -> None:
    """Propose a mirror that has caught up: what comes next waits for it, until it is refused; levels never count
    it."""
    progress = make_progress()
    progress.count(members("n0", "n1"), up=("n1",))
    progress.appended(100)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
    progress.propose("n2")
    progress.count(members("n0", "n1"), up=("n1",), proposed_up=True)
    progress.appended(200)
    progress.acked("n1", written=200, flushed=0)
    assert (progress.confirmed, progress.reached_by(2, Durability.MEMORY)) == (100, 200)
    progress.acked("n2", written=150, flushed=0)
    assert (progress.confirmed, progress.reached_by(3, Durability.MEMORY), progress.copies) == (150, 0, 2)
    progress.settle(members("n0", "n1"))
    progress.count(members("n0", "n1"), up=("n1",))
    assert progress.confirmed == 200


def test_a_copy_that_was_let_in_holds_what_it_proved_while_it_was_proposed() -> None:
    """Let the link of a proposed copy go, and another run of it come, before it is known that it is a member."""
    progress = make_progress()
    progress.count(members("n0"))
    progress.acked("n1", written=100, flushed=0)
    progress.appended(100)
    progress.propose("n1")
    progress.linked("n1", written=200)
    progress.count(members("n0"), proposed_up=False)
    progress.appended(200)
    assert progress.confirmed == 100
    progress.settle(members("n0", "n1"))
    progress.count(members("n0", "n1"))
    assert (progress.confirmed, progress.reached_by(2, Durability.MEMORY)) == (100, 100)


def test_a_marked_member_that_is_let_in_holds_what_its_new_run_has() -> None:
    """What a run proved before the mark may be lost: once the mark is taken away, only what was proved since counts."""
    progress = make_progress()
    progress.appended(100)
    progress.acked("n1", written=100, flushed=0)
    progress.acked("n2", written=50, flushed=0)
    marked = members("n0", "n1", "n2", marked=("n1",))
    progress.count(marked, up=("n2",))
    progress.linked("n1", written=50)
    progress.count(marked, up=("n2",))
    progress.propose("n1")
    progress.count(marked, up=("n2",), proposed_up=True)
    progress.acked("n2", written=100, flushed=0)
    assert progress.confirmed == 50
    progress.settle(everybody(NODES))
    progress.count(everybody(NODES), up=("n1", "n2"))
    assert (progress.confirmed, progress.reached_by(3, Durability.MEMORY)) == (50, 50)
    progress.acked("n1", written=100, flushed=0)
    assert progress.confirmed == 100


def test_a_level_of_no_copy_waits_for_nobody() -> None:
    """Whatever the copies hold."""
    assert make_progress().holds(100, Level.NONE, Durability.MEMORY)
