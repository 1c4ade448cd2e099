"""What the cluster decides of a queue that is deleted: nothing leads to it, and its name is free. No late or repeated
command meets a queue that was declared since."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog import errors, versions
from mirrorlog.cluster.state.commands import QueuesPlaced, QueuesRemoved, QueuesUnbound
from mirrorlog.cluster.state.machine import check_proposal
from mirrorlog.cluster.state.node_rules import recovered
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.cluster.state.topology_commands import VirtualHostMade
from mirrorlog.wire.names import qualified
from tests.cluster.test_topology import Decided


def removed(name: str = "q", *, epoch: int = 0, removals: int = 0) -> QueuesRemoved:
    return QueuesRemoved(names=(name,), log_id="x", epoch=epoch, removals=removals)


def unbound(*names: str, log_id: str = "x", epoch: int = 0) -> QueuesUnbound:
    return QueuesUnbound(names=names, log_id=log_id, epoch=epoch)


def test_nothing_leads_to_a_queue_that_is_about_to_go() -> None:
    """Bind two queues twice and unbind one: its bindings are gone and the routing is newer, by one step; it stays in
    its log, and the second time changes nothing."""
    decided = Decided("q", "r")
    decided.declare("e")
    for queue in ("q", "r"):
        decided.bind("e", queue, "one")
        decided.bind("e", queue, "two")
    before = decided.host.version
    decided.do(unbound("q"))
    assert {each.destination for each in decided.host.all_bindings()} == {"r"}
    assert decided.host.version == before + 1
    assert decided.state.queues == {"q": "x", "r": "x"}
    decided.do(unbound("q"), unbound("unknown"))
    assert decided.host.version == before + 1


def test_what_a_former_master_asked_for_takes_no_bindings_away() -> None:
    """Goal: a queue whose users came back to its next master keeps what leads to it. Method: the command of another
    epoch, as of a master that was cut off meanwhile, of a log that is not there, and for a queue that is elsewhere by
    now: the binding stays."""
    decided = Decided("q")
    decided.declare("e")
    decided.bind("e", "q")
    log = decided.state.logs["x"]
    decided.state = replace(decided.state, logs={"x": replace(log, epoch=2), "y": replace(log, number=2, name="y")})
    assert "moved on: epoch 2; the command knew epoch 1" in decided.ask(unbound("q", epoch=1))[1]
    assert "no log" in decided.ask(unbound("q", log_id="z"))[1]
    decided.do(unbound("q", log_id="y"))
    assert {each.destination for each in decided.host.all_bindings()} == {"q"}
    decided.do(unbound("q", epoch=2))
    assert not list(decided.host.all_bindings())


def test_a_removed_queue_leaves_its_place_and_what_was_bound_in_between() -> None:
    """A bind comes between the two commands: it goes too, and the routing is newer."""
    decided = Decided("q", "r")
    decided.declare("e")
    decided.do(unbound("q"))
    decided.bind("e", "q")
    before = decided.host.version
    decided.ask(removed())
    assert decided.state.queues == {"r": "x"}
    assert list(decided.host.all_bindings()) == []
    assert decided.host.version == before + 1
    assert decided.state.removals == {"x": 1}


def test_many_queues_go_in_one_command_that_counts_once() -> None:
    """Three of four queues, in two virtual hosts, one that is elsewhere and one that never was: what is in the log goes
    with its bindings, the routing of each virtual host is newer by one step, and the next command counts from one."""
    keys = ("q", "r", qualified("v", "q"))
    decided = Decided("s", "q", "r")
    decided.do(VirtualHostMade(name="v"), QueuesPlaced(log_id="x", names=keys))
    decided.declare("e")
    for queue in ("q", "r", "s"):
        decided.bind("e", queue)
    before = decided.host.version
    decided.do(unbound(*keys))
    assert decided.host.version == before + 1
    assert {each.destination for each in decided.host.all_bindings()} == {"s"}
    decided.ask(QueuesRemoved(names=(*keys, "never"), log_id="x", epoch=0, removals=0))
    assert (decided.state.queues, decided.state.removals) == ({"s": "x"}, {"x": 1})
    assert "moved on" in decided.ask(QueuesRemoved(names=keys, log_id="x", epoch=0, removals=0))[1]


def test_a_queue_that_was_declared_since_keeps_its_place() -> None:
    """Goal: a command that comes twice, or late, is not taken for another one. The same removal again after the name
    was placed anew; one of an older epoch; one of a log that is not there; one of a queue that is elsewhere."""
    decided = Decided("q")
    decided.ask(removed())
    decided.do(QueuesPlaced(log_id="x", names=("q",)))
    for late in (removed(), removed(epoch=1, removals=1)):
        assert "moved on" in decided.ask(late)[1]
    assert "no log" in decided.ask(QueuesRemoved(names=("q",), log_id="y", epoch=0, removals=1))[1]
    assert decided.state.queues == {"q": "x"}
    decided.do(removed("elsewhere", removals=1))
    assert decided.state.removals == {"x": 1}
    decided.ask(removed(removals=1))
    assert decided.state.queues == {}


def test_a_recovery_of_the_cluster_voids_what_was_asked_before() -> None:
    """Its epochs are other ones: what the lost majority was asked for comes too late."""
    decided = Decided("q")
    decided.state = recovered(decided.state, ["a"])
    assert "moved on" in decided.ask(removed())[1]


@pytest.mark.parametrize("command", [unbound("q"), removed()])
def test_an_older_cluster_is_not_asked(command: QueuesUnbound | QueuesRemoved) -> None:
    """Its nodes could not read it."""
    state = ClusterState("id", "name", cluster_version=versions.DELETION - 1)
    with pytest.raises(errors.UnsupportedVersion, match="until all nodes are updated"):
        check_proposal(state, command)
