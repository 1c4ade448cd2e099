"""Which runs of other nodes are heard, and what a run's word is worth."""

from __future__ import annotations

import pytest

from mirrorlog.cluster.coordination import liveness
from mirrorlog.cluster.coordination.liveness import RIVAL_HEARD_S, Life, Liveness, Runs, unknown_to
from mirrorlog.cluster.raft.messages import EntryKind, RaftEntry
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Addresses, NodeDraining, NodeStarted, StartKind
from mirrorlog.errors import NotLeader

ADDRESSES = Addresses()


def started(start_id: str, *, node: str = "b", seen: str = "") -> NodeStarted:
    return NodeStarted(node=node, start_id=start_id, kind=StartKind.DIED, addresses=ADDRESSES, seen=seen)


def registering(index: int, start_id: str, *, node: str = "b") -> RaftEntry:
    return RaftEntry(index, 1, EntryKind.COMMAND, encode_command(started(start_id, node=node)))


def test_a_run_has_ended_when_another_one_of_its_node_is_heard_and_it_is_not() -> None:
    """At once when it never was; a moment later when it was. By hearing one run after the other."""
    runs, liveness = Runs(), Liveness(timeout_s=60.0)
    liveness.watch({"b"}, 0.0)
    assert runs.life_of("b", "first", liveness, 0.0) is Life.UNKNOWN
    for now, run in ((1.0, "first"), (2.0, "second")):
        runs.heard("b", run, now)
        liveness.heard("b", run, now)
    assert runs.life_of("b", "second", liveness, 2.0) is Life.UP
    assert runs.life_of("b", "never heard", liveness, 2.0) is Life.DOWN
    assert runs.life_of("b", "first", liveness, 1.0 + RIVAL_HEARD_S - 0.01) is Life.UNKNOWN
    assert runs.life_of("b", "first", liveness, 1.0 + RIVAL_HEARD_S) is Life.DOWN


def test_a_run_is_not_replaced_while_it_is_heard() -> None:
    """A copy of its disk says that it is the node; by a start that names the run that is there, and one that does
    not."""
    runs = Runs()
    runs.heard("b", "first", 1.0)
    runs.check_rival(started("second"), ("a", "own"), 1.0)
    with pytest.raises(NotLeader, match="run first of node b is there") as refused:
        runs.check_rival(started("second", seen="first"), ("a", "own"), 1.5)
    assert refused.value.details["rival"] == "first"
    runs.check_rival(started("second", seen="first"), ("a", "own"), 1.0 + RIVAL_HEARD_S)
    with pytest.raises(NotLeader):
        runs.check_rival(started("second", node="a", seen="own"), ("a", "own"), 60.0)


def test_silent_runs_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that restarts for years fills no memory; by more runs than are kept."""
    monkeypatch.setattr(liveness, "RUNS_MAX", 10)
    runs = Runs()
    for number in range(100):
        runs.heard("b", str(number), float(number))
    assert len(runs._heard) <= 10
    with pytest.raises(NotLeader):
        runs.check_rival(started("new", seen="99"), ("a", "own"), 99.5)


@pytest.mark.parametrize(
    ("known", "registered", "undecided", "unknown"),
    [
        (("first",), "first", [], ""),
        (("first", "second"), "second", [], ""),
        ((), "first", [], "first"),
        (("first",), "second", [], "second"),
        (("first",), "first", [registering(5, "second")], "second"),
        (("second",), "first", [registering(5, "second")], ""),
        (("first",), "first", [registering(5, "second", node="c")], ""),
        (("first",), "now", [], ""),
        ((), "", [], ""),
        (None, "first", [], ""),
        (("first",), "first", [registering(5, "second"), registering(6, "now")], ""),
    ],
)
def test_a_disk_that_forgot_is_told_by_the_runs_that_it_knows(
    known: tuple[str, ...] | None, registered: str, undecided: list[RaftEntry], unknown: str
) -> None:
    """It knows the run that registered last, decided or not, or it was set back, or is blank. Of a run that did not say
    what it knows nothing is held against it."""
    other = RaftEntry(4, 1, EntryKind.COMMAND, encode_command(NodeDraining(node="b", draining=True)))
    entries = [RaftEntry(3, 1, EntryKind.EMPTY), other, *undecided]
    assert unknown_to("b", "now", runs=known, registered=registered, undecided=entries) == unknown
