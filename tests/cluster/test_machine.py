"""Entries become state, and whoever proposed one hears what came of it."""

from __future__ import annotations

import msgspec
import pytest

from mirrorlog import versions
from mirrorlog.cluster.raft.messages import EntryKind, Members, RaftEntry, Snapshot
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Addresses, Command, NodeJoined, NodeStarted, StartKind, VersionRaised
from mirrorlog.cluster.state.machine import Machine
from mirrorlog.cluster.state.state import ClusterState, Outcome, encode_state
from mirrorlog.errors import UnsupportedVersion


def snapshot(state: ClusterState, index: int = 0, term: int = 0) -> Snapshot:
    return Snapshot(index, term, Members((1,)), encode_state(state))


def machine() -> Machine:
    return Machine(snapshot(ClusterState("id", "name")))


def entry(index: int, command: Command, term: int = 1) -> RaftEntry:
    return RaftEntry(index, term, EntryKind.COMMAND, encode_command(command))


def joins(node: str) -> NodeJoined:
    return NodeJoined(node=node, addresses=Addresses(client=f"{node}:1"))


def test_entries_become_state_in_order() -> None:
    """By two commands with an empty entry between them."""
    found = machine()
    steps = found.apply([entry(1, joins("a")), RaftEntry(2, 1, EntryKind.EMPTY), entry(3, joins("b"))])
    assert list(found.state.nodes) == ["a", "b"]
    assert (found.index, found.state.version) == (3, 3)
    assert [step.command for step in steps] == [joins("a"), None, joins("b")]
    assert steps[0].after is steps[1].before


def test_a_proposer_hears_what_came_of_it() -> None:
    """Accepted, and refused with the reason."""
    found, heard = machine(), list[Outcome | None]()
    found.wait(1, 1, heard.append)
    found.wait(2, 1, heard.append)
    found.apply([entry(1, joins("a")), entry(2, joins("a"))])
    assert heard[0] == Outcome(1)
    assert heard[1] is not None
    assert "a node a is in the cluster already" in heard[1].refusal


def test_a_command_that_another_term_replaced_is_lost() -> None:
    """And its proposer is told so; by an entry of another term in its place."""
    found, heard = machine(), list[Outcome | None]()
    found.wait(1, 1, heard.append)
    found.apply([entry(1, joins("b"), term=2)])
    assert heard == [None]


def test_a_snapshot_replaces_the_state_and_ends_all_waiting() -> None:
    """What waited may have been applied elsewhere; by restoring another's."""
    found, other, heard = machine(), machine(), list[Outcome | None]()
    other.apply([entry(1, joins("a")), entry(2, joins("b"))])
    found.wait(1, 1, heard.append)
    found.restore(Snapshot(2, 1, Members((1,)), other.snapshot_state()))
    assert heard == [None]
    assert found.state == other.state
    found.apply([entry(3, joins("c"))])
    assert list(found.state.nodes) == ["a", "b", "c"]


def test_it_stops_before_an_entry_that_it_cannot_read() -> None:
    """What a newer cluster has decided is not skipped; by a command that nobody knows."""
    found = machine()
    unknown = RaftEntry(2, 1, EntryKind.COMMAND, msgspec.msgpack.encode({"type": "DecidedTomorrow"}))
    with pytest.raises(UnsupportedVersion, match="start newer software"):
        found.apply([entry(1, joins("a")), unknown])
    assert (found.index, list(found.state.nodes)) == (1, ["a"])


def test_it_stops_before_the_cluster_leaves_its_software_behind() -> None:
    """Not when that is refused; by raising the version above its own, with nodes that can and cannot."""
    above = versions.OWN + 1
    state = ClusterState("id", "name", cluster_version=versions.OWN)
    start = NodeStarted(node="a", start_id=versions.run_id("1"), kind=StartKind.CLEAN, addresses=Addresses())
    newer = msgspec.structs.replace(start, start_id=versions.run_id("2", above), before=start.start_id)
    found = Machine(snapshot(state))
    refused = found.apply([entry(1, joins("a")), entry(2, start), entry(3, VersionRaised(version=above))])[-1]
    assert "until all nodes are updated" in refused.outcome.refusal
    with pytest.raises(UnsupportedVersion, match=f"the cluster runs at version {above}"):
        found.apply([entry(4, newer), entry(5, VersionRaised(version=above))])
    assert (found.index, found.state.cluster_version) == (4, versions.OWN)
