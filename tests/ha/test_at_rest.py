"""A mastership in which nothing happens has nothing to look at; whatever happens ends that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.in_sync import Grow, Shrink
from mirrorlog.wire.frames import Durability
from tests.ha.stage import LAG_S, Stage, both, decided


def at_rest(directory: Path) -> tuple[Stage, HAConnection]:
    stage, link = both(directory)
    assert not stage.mastership.at_rest
    assert stage.look() is None
    assert stage.mastership.at_rest
    return stage, link


@pytest.mark.parametrize(
    "happen",
    [
        lambda stage, link: stage.publish(),
        lambda stage, link: stage.ack(link),
        lambda stage, link: stage.mastership.leave(link),
        lambda stage, link: stage.link("n2a"),
        lambda stage, link: stage.mastership.learned(decided(9, "n0a", "n1a", "n2a")),
        lambda stage, link: stage.mastership.learned(decided(5, "n0a", "n1a", starts="n2b")),
    ],
    ids=["append", "ack", "link lost", "link made", "another set", "another run"],
)
def test_what_happens_ends_the_rest(tmp_path: Path, happen: Callable[[Stage, HAConnection], object]) -> None:
    stage, link = at_rest(tmp_path)
    happen(stage, link)
    assert not stage.mastership.at_rest


def test_it_rests_again_once_all_is_where_it_should_be(tmp_path: Path) -> None:
    stage, link = at_rest(tmp_path)
    stage.publish()
    assert stage.look() is None
    assert not stage.mastership.at_rest, "a member lacks a record: its clock runs"
    stage.ack(link)
    assert stage.look() is None
    assert stage.mastership.at_rest


def test_a_member_that_falls_behind_after_a_rest_has_its_whole_time(tmp_path: Path) -> None:
    """Goal: nobody is judged by the time in which nobody looked. Rest for an hour, publish what n1 does not ack: it is
    to leave after `lag_s`, and not before."""
    stage, _ = at_rest(tmp_path)
    stage.now += 3600
    stage.publish()
    assert stage.wish(after=LAG_S - 0.2) is None
    wish = stage.wish(after=0.5)
    assert isinstance(wish, Shrink)
    assert wish.nodes == ("n1",)


def test_nobody_rests_while_a_copy_could_be_let_in(tmp_path: Path) -> None:
    stage, _ = at_rest(tmp_path)
    other = stage.link("n2a")
    stage.ack(other)
    wish = stage.look()
    assert isinstance(wish, Grow)
    assert stage.look() is None
    assert not stage.mastership.at_rest, "its outcome is still to be read"


def test_bytes_that_are_not_on_all_disks_are_no_rest(tmp_path: Path) -> None:
    """In a log whose confirms wait for the disk a member counts by what it has flushed."""
    stage = Stage(tmp_path, decided(5, "n0a", "n1a"), durability=Durability.DISK)
    link = stage.link("n1a")
    stage.ack(link)
    assert stage.look() is None
    assert not stage.mastership.at_rest
    stage.ack(link, flushed=stage.replica.log.end)
    assert stage.look() is None
    assert stage.mastership.at_rest
