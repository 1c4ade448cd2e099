"""What the cluster decides of queues that live no longer than their node's run: where they are, and that they are gone
with it, whatever became of the node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog import errors, versions
from mirrorlog.broker.membership.placing import Declared, PlacingSettings, place_for
from mirrorlog.cluster.coordination.coordinator import Propose
from mirrorlog.cluster.state.commands import (
    Addresses,
    NodeForgotten,
    NodeStarted,
    NodeStopped,
    QueuesPlaced,
    RunEnded,
    StartKind,
    TransientLogMade,
)
from mirrorlog.cluster.state.machine import check_proposal
from mirrorlog.cluster.state.node_rules import recovered
from mirrorlog.cluster.state.state import ClusterState, decode_state, encode_state, holds_transient
from tests.cluster.test_coordinator import CLUSTER_ID, World

MADE = TransientLogMade(log_id="t", number=77, node="a")


def world(*nodes: str) -> World:
    """Nodes that are at home each in a log, and `a` has a transient one with two queues."""
    found = World()
    for node in nodes:
        found.join(node)
    found.settle()
    assert not found.apply(MADE)
    found.settle()
    assert not found.apply(QueuesPlaced(log_id="t", names=("one", "two")))
    lasting = next(log_id for log_id in found.state.logs if log_id != "t")
    assert not found.apply(QueuesPlaced(log_id=lasting, names=("lasting",)))
    return found


def test_a_node_has_one_transient_log_with_one_copy_and_is_its_master() -> None:
    """Made twice it is one, whatever the second says; it is nobody's home, and gets no other copy, also when its node
    drains."""
    found = world("a", "b", "c")
    assert not found.apply(TransientLogMade(log_id="u", number=78, node="a"))
    assert found.state.transient == {"a": "t"}
    log = found.state.logs["t"]
    assert (log.replicas, log.copies, log.flush, log.number) == (("a",), 1, "memory", 77)
    assert log.master is not None
    assert log.master.node == "a"
    assert len(found.state.logs) == 4
    assert decode_state(encode_state(found.state)) == found.state


def test_it_is_made_before_its_node_is_home_to_a_log() -> None:
    """Then it gets a home all the same: what it has there goes with it."""
    found = World()
    found.join("a")
    assert not found.apply(MADE)
    found.settle()
    assert [log.name for log_id, log in found.state.logs.items() if log_id != "t"] == ["a"]


def test_no_other_queue_is_placed_there() -> None:
    """Neither one that asks for one copy, nor one that asks for nothing in a cluster of one."""
    found = world("a")
    for arguments in ({}, {"copies": 1}, {"flush": "memory"}):
        placed = place_for(found.state, Declared("q", arguments), PlacingSettings(copies=1), is_up=lambda node: True)
        assert placed != "t"


def test_no_queue_is_placed_in_what_a_forgotten_node_has_left() -> None:
    """Its log stays without copies: one that asks for a single copy gets another one."""
    found = world("a", "b", "c")
    found.down.add("a")
    found.settle()
    assert not found.apply(NodeForgotten(node="a"))
    placed = place_for(found.state, Declared("q", {"copies": 1}), PlacingSettings(), is_up=lambda node: node != "a")
    assert placed != "t"


@pytest.mark.parametrize("how", ["starts anew", "stops", "ends", "is forgotten"])
def test_its_queues_are_gone_with_the_run_of_their_node(how: str) -> None:
    """One change counts one removal; the queue of another log stays; a second time nothing changes."""
    found = world("a", "b", "c")
    start_id = found.state.nodes["a"].start_id
    if how == "starts anew":
        found.start("a", run=2)
    elif how == "stops":
        assert not found.apply(NodeStopped(node="a", start_id=start_id))
    elif how == "ends":
        assert not found.apply(RunEnded(node="a", start_id=start_id))
        assert not found.apply(RunEnded(node="a", start_id=start_id))
    else:
        found.down.add("a")
        found.settle()
        assert not found.apply(NodeForgotten(node="a"))
        assert (found.state.transient, found.state.logs["t"].replicas) == ({}, ())
    assert [log_id for log_id in found.state.logs if holds_transient(found.state, log_id)] == ["t"]
    assert list(found.state.queues) == ["lasting"]
    assert found.state.removals == {"t": 1}


def test_the_coordinator_ends_the_run_of_a_node_that_is_down_once() -> None:
    """While it is up nothing is done; when it is down, and its queues are gone, nothing more; and what a declaration
    brings that comes late goes, too."""
    found = world("a", "b", "c")
    found.done.clear()
    found.settle()
    ended = Propose(RunEnded(node="a", start_id=found.state.nodes["a"].start_id))
    assert ended not in found.done
    found.down.add("a")
    found.settle()
    assert found.done.count(ended) == 1
    assert list(found.state.queues) == ["lasting"]
    found.apply(QueuesPlaced(log_id="t", names=("late",)))
    found.settle()
    assert list(found.state.queues) == ["lasting"]


def test_queues_are_looked_through_once_while_they_stay_as_they_are() -> None:
    """Goal: a node that is down costs nothing for as long as it is down. Method: steps with queues that count how often
    they are gone through; other queues are gone through again, and what is to go among them is found."""

    class Counted(dict[str, str]):
        looks = 0

        def values(self) -> Any:
            self.looks += 1
            return super().values()

    found = world("a", "b", "c")
    found.down.add("a")
    found.settle()
    queues = Counted(found.state.queues)
    found.state = replace(found.state, queues=queues)
    for _ in range(5):
        assert not found.step()
    assert queues.looks == 1
    queues = Counted({**queues, "late": "t"})
    found.state = replace(found.state, queues=queues)
    found.settle()
    assert list(found.state.queues) == ["lasting"]


def test_an_end_of_another_run_comes_too_late() -> None:
    """The node is back already: what it has declared since stays."""
    found = world("a", "b", "c")
    late = RunEnded(node="a", start_id=found.state.nodes["a"].start_id)
    found.start("a", run=2)
    assert not found.apply(QueuesPlaced(log_id="t", names=("new",)))
    assert "runs as" in found.apply(late)
    assert set(found.state.queues) == {"lasting", "new"}


def test_a_node_of_the_same_name_gets_another_log() -> None:
    """The ids that the former one gave out are not given out again: its number is taken."""
    found = world("a", "b", "c")
    found.down.add("a")
    found.settle()
    assert not found.apply(NodeForgotten(node="a"))
    found.join("a")
    found.settle()
    assert "number" in found.apply(MADE.__class__(log_id="u", number=77, node="a"))
    assert not found.apply(TransientLogMade(log_id="u", number=78, node="a"))
    assert found.state.transient == {"a": "u"}


def test_a_recovery_of_the_cluster_gives_up_what_was_on_lost_nodes() -> None:
    """And keeps the placements of the survivors: their runs are the same."""
    found = world("a", "b", "c")
    assert set(recovered(found.state, ["b"]).queues) == {"lasting"}
    assert set(recovered(found.state, ["a"]).queues) == {"one", "two", "lasting"}


@pytest.mark.parametrize("command", [MADE, RunEnded(node="a", start_id="r")])
def test_an_older_cluster_is_not_asked(command: TransientLogMade | RunEnded) -> None:
    """Its nodes could not read it."""
    state = ClusterState(CLUSTER_ID, "name", cluster_version=versions.TRANSIENT - 1)
    with pytest.raises(errors.UnsupportedVersion, match="until all nodes are updated"):
        check_proposal(state, command)


def test_a_state_without_transient_logs_is_the_bytes_that_it_was() -> None:
    """A field that came later is not stored before it says something; a start changes nothing but the run."""
    found = World()
    found.join("a")
    assert b"transient" not in encode_state(found.state)
    started = NodeStarted(
        node="a", start_id="a 2", kind=StartKind.CLEAN, addresses=Addresses(), before=found.state.nodes["a"].start_id
    )
    assert not found.apply(started)
    assert b"transient" not in encode_state(found.state)
