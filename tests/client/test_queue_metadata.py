"""Whom to believe, and how long to pause, without any node."""

from __future__ import annotations

import itertools

import pytest

from mirrorlog.client.connection.backoff import BACKOFF_S_MAX, Backoff
from mirrorlog.client.connection.queue_metadata import FoundQueue, found_in, newest, settled
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo


def metadata(told_by: str, master: str, *, version: int = 0, epoch: int = 1) -> Metadata:
    """What one of three nodes says."""
    info = QueueInfo(name="q", queue_id=1, log_id="", epoch=epoch, master=master, mirrors=[], begin=0, next=0)
    nodes = [NodeInfo(node_id=name, client=f"{name}:1", replication="") for name in ("n1", "n2", "n3")]
    return Metadata(cluster_id="c", cluster_name="", node_id=told_by, nodes=nodes, queues=[info], version=version)


def sighting(told_by: str, master: str, *, version: int = 0, epoch: int = 1) -> FoundQueue:
    (found,) = found_in("q", [metadata(told_by, master, version=version, epoch=epoch)])
    return found


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ([("n1", "n1", 1, 1), ("n2", "n3", 2, 1)], "n3:1"),
        ([("n1", "n1", 1, 9), ("n2", "n3", 2, 1)], "n3:1"),
        ([("n1", "n1", 1, 1), ("n2", "", 2, 1)], ""),
        ([("n1", "n1", 0, 1), ("n2", "n3", 0, 2)], "n3:1"),
        ([("n2", "n9", 5, 1)], ""),
        ([], None),
    ],
    ids=["newer", "newer of an older copy", "none is news", "by epoch without versions", "no address", "nobody"],
)
def test_who_knows_most_is_believed(said: list[tuple[str, str, int, int]], address: str | None) -> None:
    """Also when that one says that there is no master; by what each says, in every order."""
    for order in itertools.permutations(said):
        answers = [metadata(told_by, master, version=version, epoch=epoch) for told_by, master, version, epoch in order]
        found = newest(found_in("q", answers))
        assert (found.address if found is not None else None) == address


def test_a_master_is_believed_about_its_queue_before_others_that_know_as_much() -> None:
    """It has the newest facts of producers and offsets; in both orders."""
    own, other = sighting("n1", "n1", version=3), sighting("n2", "n1", version=3)
    assert newest([own, other]) is newest([other, own]) is own


def test_only_a_later_word_of_another_master_moves_anybody() -> None:
    """Neither what is older or as old, nor none, nor the same again; by one of each."""
    now = sighting("n1", "n1", version=3)
    assert sighting("n2", "n2", version=4).replaces(now)
    assert not sighting("n2", "n2", version=3).replaces(now)
    assert not sighting("n2", "n2", version=2, epoch=9).replaces(now)
    assert not sighting("n2", "", version=4).replaces(now)
    assert not sighting("n2", "n1", version=4).replaces(now)


def test_others_are_waited_for_until_the_matter_is_settled() -> None:
    """By a master that says it of itself, or a later word than was known; not by who repeats what has failed."""
    before = sighting("n2", "n1", version=3)
    assert settled([sighting("n2", "n1")], None)
    assert settled([sighting("n1", "n1", version=3)], before)
    assert settled([sighting("n2", "n3", version=4)], before)
    assert not settled([sighting("n2", "n1", version=3)], before)
    assert not settled([sighting("n1", "n1", version=2)], before), "it has not heard that it was replaced"
    assert not settled([sighting("n2", "", version=4)], before)
    assert not settled([], None)


def test_a_pause_is_short_beside_the_trouble() -> None:
    """Goal: what has waited a second waits little more than a tenth longer than it must. Method: pauses that are not
    shortened, then one that is as much as can be."""
    pauses = Backoff(lambda: 1.0)
    assert pauses.next_s() == pytest.approx(0.02)
    passed_s = 0.02
    while (pause_s := pauses.next_s()) < BACKOFF_S_MAX:
        passed_s += pause_s
        assert pause_s <= passed_s / 10 + 0.0201
    assert pauses.next_s() == BACKOFF_S_MAX
    pauses.reset()
    assert pauses.next_s() == pytest.approx(0.02)
    assert Backoff(lambda: 0.0).next_s() == pytest.approx(0.01)
