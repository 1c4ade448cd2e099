"""Whom to believe, and how long to pause, without any node."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from mirrorlog.client.connection.backoff import BACKOFF_S_MAX, Backoff
from mirrorlog.client.connection.queue_metadata import FoundQueue, found_in, newest, settled, whole
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


# --- all queues of a cluster, by what each node has ---


def has(told_by: str, *queues: str, master: str = "", version: int = 3, epoch: int = 1, **also: list[str]) -> Metadata:
    """What a node says of all queues that it has; the master is itself unless another one is given."""
    infos = [
        QueueInfo(name=name, queue_id=1, log_id="", epoch=epoch, master=master or told_by, mirrors=[], begin=0, next=0)
        for name in queues
    ]
    return msgspec.structs.replace(metadata(told_by, "", version=version), queues=infos, **also)


def names(answer: Metadata) -> list[tuple[str, str]]:
    return [(info.name, info.master) for info in answer.queues]


def test_the_list_of_all_queues_is_what_all_nodes_have_together() -> None:
    """Each once, as its master describes it, by name; what is placed elsewhere was found there."""
    own, copies = has("n3", "a", placed=["c"]), has("n3", "b", master="n1")
    answers = [
        has("n1", "b", placed=["a", "c"], version=4),
        has("n2", "c", placed=["a", "b"]),
        msgspec.structs.replace(own, queues=copies.queues + own.queues),
    ]
    for order in itertools.permutations(answers):
        found = whole(order, None)
        assert names(found) == [("a", "n3"), ("b", "n1"), ("c", "n2")]
        assert (found.version, found.missing, found.placed, found.outages) == (4, [], [], [])


def test_a_queue_that_only_a_silent_node_has_is_a_row_with_its_reason() -> None:
    """It is told while some member does not answer; else its place was taken and nobody has declared it."""
    here, there = has("n1", "a", placed=["b"], version=4), has("n2", placed=["a", "b"])
    found = whole([here, there], None)
    assert names(found) == [("a", "n1")]
    assert [(each.name, each.node) for each in found.outages] == [("b", "n3")]
    assert found.outages[0].reason == "queue 'b' is on none of the nodes that answer; n3 does not"
    assert not whole([here, there, has("n3", placed=["a", "b"])], None).outages


def test_a_queue_that_its_master_has_no_more_is_gone_from_the_list() -> None:
    """A mirror that has not heard of a deletion lists it, and is not believed; who knows more of the cluster is."""
    assert names(whole([has("n1"), has("n2", "q", master="n1")], None)) == []
    assert names(whole([has("n1", version=2), has("n2", "q", master="n1")], None)) == [("q", "n1")]


def test_queues_that_were_named_are_found_together_on_several_nodes() -> None:
    """What is on none is missing; by two nodes that have one of three each."""
    found = whole(
        [has("n1", "a", missing=["b", "c"], placed=["b"]), has("n2", "b", missing=["a", "c"])], ["a", "b", "c"]
    )
    assert names(found) == [("a", "n1"), ("b", "n2")]
    assert (found.missing, found.placed, found.outages) == (["c"], [], [])
