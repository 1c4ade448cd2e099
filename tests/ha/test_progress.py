"""What follows from how far each copy is."""

from __future__ import annotations

import random

import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.ha.progress import ALL_MEMBERS, Progress
from mirrorlog.wire.frames import Durability, Level

ALL = 3


def make_progress(make: type[Progress] = Progress, durability: Durability = Durability.MEMORY) -> Progress:
    return make(own="n0", mirrors=("n1", "n2"), durability=durability, confirmed=0)


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
    progress.leave("n2")
    progress.appended(100)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
    assert progress.confirmed == 100
    progress.appended(200)
    progress.enter("n2")
    progress.acked("n1", written=200, flushed=0)
    assert not progress.holds(200, progress.copies_for(Level.ALL), Durability.MEMORY)
    progress.acked("n2", written=200, flushed=0)
    assert progress.holds(200, progress.copies_for(Level.ALL), Durability.MEMORY)


def test_a_set_below_its_least_confirms_nothing_new() -> None:
    """Both mirrors of three begin at the last segment: what only the master has is not confirmed, and a level keeps its
    meaning."""
    progress = Progress(own="n0", mirrors=("n1", "n2"), durability=Durability.MEMORY, confirmed=100, min_in_sync=2)
    for node in ("n1", "n2"):
        progress.acked(node, written=100, flushed=0)
        progress.leave(node)
    progress.appended(500)
    assert progress.confirmed == 100
    assert (progress.copies_for(Level.MAJORITY), progress.copies_for(Level.ONE)) == (2, 2)
    progress.acked("n1", written=500, flushed=0)
    progress.enter("n1")
    progress.acked("n1", written=500, flushed=0)
    assert progress.confirmed == 500


def test_a_level_of_no_copy_waits_for_nobody() -> None:
    """Whatever the copies hold."""
    assert make_progress().holds(100, Level.NONE, Durability.MEMORY)
