"""What the cluster decided, told to who watches it."""

from __future__ import annotations

from collections.abc import Sequence

from mirrorlog.cluster.commands import (
    Addresses,
    AnyCommand,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LeapConfirmed,
    LogMade,
    LossEndFound,
    MasterWished,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeStarted,
    NodeStopped,
    Promoted,
    QueuesPlaced,
    ReplicaAdded,
    ReplicaRemoved,
    Seen,
    StartKind,
    VersionRaised,
    encode_command,
)
from mirrorlog.cluster.events import Event, events_of
from mirrorlog.cluster.machine import Machine
from mirrorlog.cluster.raft.members import Members
from mirrorlog.cluster.raft.messages import Entry, EntryKind, Snapshot
from mirrorlog.cluster.state import ClusterState, encode_state
from mirrorlog.versions import run_id


class History:
    """Commands applied one after the other, and the events that they gave."""

    def __init__(self) -> None:
        self._machine = Machine(Snapshot(0, 0, Members((1,)), encode_state(ClusterState("id", "testing"))))

    def tell(self, *commands: AnyCommand) -> list[Event]:
        found = []
        for command in commands:
            entry = Entry(self._machine.index + 1, 1, EntryKind.COMMAND, encode_command(command))
            for step in self._machine.apply([entry]):
                found += events_of(step)
        return found

    @property
    def seen(self) -> Seen:
        return self._machine.state.logs["log"].seen


def started(*nodes: str, run: int = 1, kind: StartKind = StartKind.CLEAN) -> list[AnyCommand]:
    before = "" if run == 1 else f"{run - 1}"
    return [
        NodeStarted(node=node, start_id=f"{run}", kind=kind, addresses=Addresses(), before=before) for node in nodes
    ]


def with_log() -> History:
    """Nodes a, b and c, and a log of a and b that a masters."""
    history = History()
    history.tell(*(NodeJoined(node=node, addresses=Addresses()) for node in "abc"), *started(*"abc"))
    history.tell(LogMade(log_id="log", number=0, name="main", flush="memory", replicas=("a", "b")))
    history.tell(Promoted(log_id="log", seen=history.seen, holder=Holder("a", "1"), epoch=1))
    history.tell(InSyncGrown(log_id="log", seen=history.seen, holder=Holder("b", "1")))
    return history


def kinds(events: Sequence[Event]) -> list[tuple[str, str, str]]:
    return [(event.kind, event.node, event.log) for event in events]


def test_a_nodes_life_is_told() -> None:
    """From joining to leaving, each with its entry; by one life."""
    history = History()
    found = history.tell(
        NodeJoined(node="a", addresses=Addresses(), witness=True),
        *started("a"),
        NodeDraining(node="a", draining=True),
        NodeDraining(node="a", draining=False),
        NodeStopped(node="a", start_id="1"),
        NodeForgotten(node="a"),
    )
    assert [event.kind for event in found] == [
        "node_joined", "node_started", "node_draining", "node_undrained", "node_stopped", "node_left",
    ]  # fmt: skip
    assert [event.index for event in found] == [1, 2, 3, 4, 5, 6]
    assert {event.node for event in found} == {"a"}
    assert found[0].text == "node a joined as a witness, member 1"


def test_a_logs_life_is_told() -> None:
    """Its making, its masters, its copies and its in-sync set; by one life."""
    history = with_log()
    assert kinds(history.tell(MasterWished(log_id="log", seen=history.seen, node="b"))) == [
        ("master_wished", "b", "main")
    ]
    (promoted,) = history.tell(Promoted(log_id="log", seen=history.seen, holder=Holder("b", "1"), epoch=2))
    assert promoted.details == {"from": "a", "to": "b", "epoch": 2, "clean": True}
    assert promoted.text == "log main: b is master after a, epoch 2, clean"
    (shrunk,) = history.tell(InSyncShrunk(log_id="log", seen=history.seen, nodes=("a",)))
    assert (shrunk.kind, shrunk.node, shrunk.details["in_sync"]) == ("in_sync_shrunk", "a", ["b"])
    assert kinds(history.tell(ReplicaAdded(log_id="log", seen=history.seen, node="c"))) == [
        ("replica_added", "c", "main")
    ]
    assert kinds(history.tell(ReplicaRemoved(log_id="log", seen=history.seen, node="a"))) == [
        ("replica_removed", "a", "main")
    ]


def test_a_raise_of_the_clusters_version_is_told() -> None:
    """Once, whatever often it is asked for; by one node that can do it."""
    history = History()
    start = NodeStarted(node="a", start_id=run_id("1", 2), kind=StartKind.CLEAN, addresses=Addresses())
    history.tell(NodeJoined(node="a", addresses=Addresses()), start)
    (raised,) = history.tell(VersionRaised(version=2), VersionRaised(version=2))
    assert (raised.kind, raised.index, raised.details) == ("version_raised", 3, {"version": 2})
    assert raised.text == "the cluster runs at version 2, for good"


def test_a_loss_is_told_from_its_declaration_to_its_end() -> None:
    """By an unclean promotion, a leap, and a copy that returns."""
    history = with_log()
    unclean = Promoted(log_id="log", seen=history.seen, holder=Holder("b", "1"), epoch=2, unclean=True, lost_from=4_096)
    promoted, declared = history.tell(unclean)
    assert not promoted.details["clean"]
    assert (declared.kind, declared.details) == ("loss_declared", {"epoch": 2, "start": 4_096})
    assert promoted.index == declared.index
    assert kinds(history.tell(LeapConfirmed(log_id="log", seen=history.seen))) == [("leap_confirmed", "", "main")]
    (found,) = history.tell(LossEndFound(log_id="log", epoch=2, end=8_192))
    assert found.text == "log main: lost when epoch 2 began is 4096..8192 or further"


def test_a_start_that_has_lost_something_says_which_copies_are_marked() -> None:
    """And that nobody is left who has everything; by lossy starts of both."""
    history = with_log()
    assert [event.kind for event in history.tell(*started("b", run=2, kind=StartKind.LOSSY))] == [
        "node_started", "copy_marked",
    ]  # fmt: skip
    assert [event.kind for event in history.tell(*started("a", run=2, kind=StartKind.LOSSY))] == [
        "node_started", "copy_marked", "log_recovering",
    ]  # fmt: skip


def test_what_was_refused_or_changed_nothing_is_not_told() -> None:
    """By commands that are late, doubled, or of no concern to an operator."""
    history = with_log()
    late = Promoted(log_id="log", seen=Seen(0, 0), holder=Holder("b", "1"), epoch=9)
    assert history.tell(late, *started("a"), NodeForgotten(node="x")) == []
    assert history.tell(QueuesPlaced(log_id="log", names=("q",))) == []
