"""What the cluster may decide about where copies are: wishes, copies that retire, rules that change, logs that go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.state.commands import (
    LogAltered,
    LogRemoved,
    MasterWished,
    MoveBegun,
    MovingPaused,
    NodeForgotten,
    NodeLeaving,
    QueuesMoved,
    QueuesPlaced,
    ReplicaAdded,
    ReplicaRetired,
    ReplicasWished,
    StartKind,
    TransientLogMade,
)
from mirrorlog.cluster.state.log_rules import homes_for, promised
from mirrorlog.cluster.state.node_rules import recovered
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.cluster.state.state import QUEUE_IDS_GRANTED, decode_state, encode_state
from tests.cluster.test_state import Decided, in_sync


def wish(decided: Decided, *nodes: str) -> str:
    """Why it was refused; empty if not."""
    return decided.ask(ReplicasWished(log_id="x", seen=decided.log.seen, nodes=nodes))


def retire(decided: Decided, node: str) -> str:
    """Why it was refused; empty if not."""
    return decided.ask(ReplicaRetired(log_id="x", seen=decided.log.seen, node=node))


def add(decided: Decided, node: str) -> None:
    """A copy that comes in sync at once."""
    decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node=node))
    decided.do(decided.grow(node))


def target(decided: Decided) -> tuple[str, ...]:
    return decided.state.placing.place("x").target


def held_by(*nodes: str, others: tuple[str, ...] = ("d",), **fields: Any) -> Decided:
    decided = in_sync(*nodes, **fields)
    decided.join(*others)
    return decided


def test_copies_move_step_by_step_to_whom_they_are_wished() -> None:
    """A copy comes, the mastership goes, a copy goes, and the wish is over; by one move of a log from a to d."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "d", "b", "c")
    assert (target(decided), decided.log.replicas) == (("d", "b", "c"), ("a", "b", "c"))
    assert "masters log x" in retire(decided, "a")
    add(decided, "d")
    assert "masters log x" in retire(decided, "a")
    decided.promote("d")
    assert target(decided) == ("d", "b", "c")
    assert not retire(decided, "a")
    assert (target(decided), decided.log.replicas) == ((), ("d", "b", "c"))
    assert set(decided.log.in_sync) == {"b", "c", "d"}


def test_a_wish_for_another_home_alone_is_over_with_the_promotion() -> None:
    """No copy moves for it; by wishing the same nodes in another order, and promoting the first."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "b", "a", "c")
    assert decided.log.replicas == ("a", "b", "c")
    decided.promote("b")
    assert (target(decided), decided.log.replicas) == ((), ("b", "a", "c"))


def test_a_wish_that_is_so_already_is_none_and_one_can_be_taken_back() -> None:
    """By wishing what is, something else, what is again, and nothing."""
    decided = held_by("a", "b", "c")
    before = decided.state
    assert not wish(decided, "a", "b", "c")
    assert decided.state == before
    assert not wish(decided, "d", "b", "c")
    assert not wish(decided, "a", "b", "c")
    assert target(decided) == ()
    assert not wish(decided, "d", "b", "c")
    assert not wish(decided)
    assert (target(decided), decided.log.replicas) == ((), ("a", "b", "c"))
    assert decided.state.places is not None
    assert "x" not in decided.state.places.logs


def test_nobody_retires_who_is_wished_or_when_nothing_is() -> None:
    """Only a wish for others takes a copy that lives and is whole; by asking without one, and for one of the wished."""
    decided = held_by("a", "b", "c")
    assert "nobody wishes" in retire(decided, "c")
    assert not wish(decided, "a", "b", "d")
    assert "nobody wishes" in retire(decided, "b")
    before = decided.state
    assert not retire(decided, "d")  # it holds none
    assert decided.state == before


def test_no_copy_retires_below_what_is_promised() -> None:
    """Not even while as many as a confirm needs would stay; by retiring before the new copy is in sync, and after."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "a", "b", "d")
    assert decided.log.copies_wanted == 2
    assert "promises 3 copies" in retire(decided, "c")
    decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node="d"))
    assert "promises 3 copies" in retire(decided, "c")
    decided.do(decided.grow("d"))
    assert not retire(decided, "c")
    assert decided.log.replicas == ("a", "b", "d")


def test_a_marked_copy_is_no_whole_one_of_those_that_stay() -> None:
    """It may have lost something; by a member that lost its memory while another one is to retire."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "a", "b", "d")
    add(decided, "d")
    decided.start("b", StartKind.LOSSY)
    assert decided.log.marked == {"b"}
    assert "promises 3 copies" in retire(decided, "c")


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (("a", "b"), "promises 3 copies"),
        (("a", "b", "b"), "wished twice"),
        (("a", "b", "zz"), "no node zz"),
        (("a", "b", "w"), "witness"),
        (("a", "b", "e"), "node e leaves"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(nodes: tuple[str, ...], reason: str) -> None:
    """Too few, twice the same, unknown nodes, witnesses, nodes that leave; by wishing for each."""
    decided = held_by("a", "b", "c", others=("d", "e"))
    decided.join("w", witness=True)
    decided.do(NodeLeaving(node="e", leaving=True))
    assert reason in wish(decided, *nodes)


def test_fewer_are_promised_when_fewer_nodes_stay() -> None:
    """A cluster of three with three copies each can be left by one; by emptying c, and no further one."""
    decided = in_sync("a", "b", "c")
    assert "promises 3 copies" in wish(decided, "a", "b")
    decided.do(NodeLeaving(node="c", leaving=True))
    assert (homes_for(decided.state, "x"), promised(decided.state, "x")) == (["a", "b"], 2)
    assert not wish(decided, "a", "b")
    assert not retire(decided, "c")
    assert (decided.log.replicas, target(decided)) == (("a", "b"), ())


def test_the_last_node_does_not_leave() -> None:
    """It has nobody to leave its copies to; by two nodes and a witness."""
    decided = in_sync("a", "b")
    decided.join("w", witness=True)
    decided.do(NodeLeaving(node="a", leaving=True))
    assert "the only one left" in decided.ask(NodeLeaving(node="b", leaving=True))
    decided.do(NodeLeaving(node="a", leaving=False), NodeLeaving(node="b", leaving=True))
    decided.start("b")
    assert decided.state.nodes["b"].leaving, "a start ends it not"


def test_a_wish_is_over_when_one_of_the_nodes_is_forgotten() -> None:
    """By forgetting a node that was to get a copy, and by a recovery without it."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "a", "b", "d")
    assert recovered(decided.state, ["a", "b"]).placing.place("x").target == ()
    assert recovered(decided.state, ["a", "b", "d"]).placing.place("x").target == ("a", "b", "d")
    decided.do(NodeForgotten(node="d"))
    assert target(decided) == ()


def test_a_placements_nodes_are_the_only_ones() -> None:
    """Unless none of them is there: then any; by altering a log to nodes that are there, and to others."""
    decided = held_by("a", "b", "c")
    decided.do(LogAltered(log_id="x", seen=decided.log.seen, placement=Placement(nodes=("d", "b", "later"))))
    assert (homes_for(decided.state, "x"), promised(decided.state, "x")) == (["d", "b"], 2)
    assert "is not for it" in wish(decided, "d", "a")
    assert not wish(decided, "d", "b")
    decided.do(LogAltered(log_id="x", seen=decided.log.seen, placement=Placement(nodes=("later",))))
    assert (len(homes_for(decided.state, "x")), promised(decided.state, "x")) == (4, 1)
    assert target(decided) == (), "it was wished by the rule before"


def test_a_rule_with_more_copies_holds_nobody_up() -> None:
    """What a confirm needs rises with the copies that are in sync, and with the rule itself; by altering a log of one
    copy to three, of which two shall confirm, and by fewer again."""
    decided = held_by("a", copies=1, others=("b", "c"))
    rule = Placement(copies=3, min_in_sync=2)
    decided.do(LogAltered(log_id="x", seen=decided.log.seen, placement=rule))
    assert (decided.log.copies, decided.log.copies_wanted, decided.state.rule("x")) == (3, 1, rule)
    add(decided, "b")
    assert decided.log.copies_wanted == 2
    add(decided, "c")
    assert decided.log.copies_wanted == 2
    decided.do(LogAltered(log_id="x", seen=decided.log.seen, placement=Placement(copies=1)))
    assert (decided.log.copies_wanted, promised(decided.state, "x")) == (1, 1)
    assert not wish(decided, "a")
    assert not retire(decided, "b")
    assert not retire(decided, "c")
    assert (decided.log.replicas, decided.log.in_sync.keys(), target(decided)) == (("a",), {"a"}, ())


@pytest.mark.parametrize(
    ("rule", "reason"),
    [(Placement(copies=3, flush="disk"), "for ever"), (Placement(copies=2, min_in_sync=3), "not 3 of 2")],
)
def test_a_rule_that_cannot_be_is_refused(rule: Placement, reason: str) -> None:
    """By another flush mode, and by more in-sync copies than there shall be."""
    decided = in_sync("a", "b", "c")
    assert reason in decided.ask(LogAltered(log_id="x", seen=decided.log.seen, placement=rule))


@pytest.mark.parametrize("version", [versions.PLACEMENTS, versions.SYNC])
def test_a_rule_stays_for_queues_that_left_records_or_are_on_their_way(version: int) -> None:
    """What two copies confirmed keeps them; by a queue that left, and has come back, whose own records are no
    hindrance, and by one that comes. In a cluster of version 6 the rule is changed all the same."""
    decided = in_sync("a", "b", "c")
    decided.make("b", log_id="y", number=1, name="y")
    decided.do(QueuesPlaced(log_id="x", names=("q",)), QueuesPlaced(log_id="y", names=("other",)))
    decided.state = replace(decided.state, cluster_version=version)
    decided.do(MoveBegun(names=("q",), target="y"))
    decided.do(QueuesMoved(number=decided.index, first={"q": 5}))
    refused = {"left": alter(decided, 1)}
    decided.do(MoveBegun(names=("q",), target="x"))
    decided.do(QueuesMoved(number=decided.index, first={"q": 9}))
    refused["came back"] = alter(decided, 2)
    decided.do(MoveBegun(names=("other",), target="x"))
    refused["comes"] = alter(decided, 3)
    by = "log x has records of queue {}, or gets it: its rule stays for that one"
    expected = {"left": by.format("q"), "came back": "", "comes": by.format("other")}
    assert refused == (expected if version >= versions.SYNC else dict.fromkeys(expected, ""))


def alter(decided: Decided, copies: int) -> str:
    """Why it was refused; empty if not."""
    return decided.ask(LogAltered(log_id="x", seen=decided.log.seen, placement=Placement(copies=copies)))


def test_what_goes_with_its_node_does_not_move() -> None:
    """The log of what is transient has one copy; by wishing it elsewhere, and altering it."""
    decided = in_sync("a", "b", "c")
    decided.do(TransientLogMade(log_id="t", number=9, node="a"))
    seen = decided.state.logs["t"].seen
    assert "goes with its node" in decided.ask(ReplicasWished(log_id="t", seen=seen, nodes=("b",)))
    assert "goes with its node" in decided.ask(LogAltered(log_id="t", seen=seen, placement=Placement(copies=2)))


def test_every_change_of_copies_is_refused_once_the_log_has_moved_on() -> None:
    """By commands that knew the log before a master was wished."""
    decided = held_by("a", "b", "c")
    seen = decided.log.seen
    decided.do(MasterWished(log_id="x", seen=seen, node="b"))
    for command in (
        ReplicasWished(log_id="x", seen=seen, nodes=("a", "b", "d")),
        ReplicaRetired(log_id="x", seen=seen, node="c"),
        LogAltered(log_id="x", seen=seen, placement=Placement(copies=2)),
        LogRemoved(log_id="x", seen=seen),
    ):
        assert "has moved on" in decided.ask(command)


def test_an_empty_log_of_a_placement_goes_and_its_number_is_used_again() -> None:
    """From the queue ids on that it may have given out; not while a queue is placed in it, and never one that was
    founded. By removing both, and making another one with the number."""
    decided = in_sync("a", "b", "c")
    decided.make("a", log_id="y", number=1, name="y", placement=Placement(copies=1), copies=1)
    assert "was founded" in decided.ask(LogRemoved(log_id="x", seen=decided.log.seen))
    decided.do(QueuesPlaced(log_id="y", names=("q",)))
    removed = LogRemoved(log_id="y", seen=decided.state.logs["y"].seen)
    assert "has queues" in decided.ask(removed)
    decided = in_sync("a", "b", "c")
    decided.make("a", log_id="y", number=1, name="y", placement=Placement(copies=1), copies=1)
    decided.do(LogRemoved(log_id="y", seen=decided.state.logs["y"].seen))
    assert "y" not in decided.state.logs
    assert decided.state.placing.logs_removed == 1
    assert (decided.state.free_number(1), decided.state.placing.ids_given) == (1, {"1": QUEUE_IDS_GRANTED})
    decided.make("b", log_id="z", number=1, name="z", placement=Placement(copies=1), copies=1)
    assert decided.state.queue_ids("z") == 2 * QUEUE_IDS_GRANTED


def test_moving_pauses_and_goes_on_and_the_state_comes_back_as_it_was() -> None:
    """By pausing with a wish under way, encoding and decoding, and going on."""
    decided = held_by("a", "b", "c")
    assert not wish(decided, "a", "b", "d")
    decided.do(MovingPaused(paused=True), NodeLeaving(node="c", leaving=True))
    assert decided.state.placing.paused
    assert decode_state(encode_state(decided.state)) == decided.state
    decided.do(MovingPaused(paused=False))
    assert not decided.state.placing.paused
