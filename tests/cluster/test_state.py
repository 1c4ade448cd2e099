"""What the cluster may decide: every command, taken and refused, and that a refused or doubled one changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LogMade,
    LossEndFound,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeStarted,
    NodeStopped,
    OffsetJumpConfirmed,
    Promoted,
    QueueIdsGranted,
    QueueSyncWished,
    RecordsCopied,
    ReplicaAdded,
    ReplicaRemoved,
    Seen,
    SpanSeen,
    StartKind,
    VersionRaised,
)
from mirrorlog.cluster.state.log_rules import LOSSES_KEPT
from mirrorlog.cluster.state.machine import applied, check_proposal
from mirrorlog.cluster.state.node_rules import EPOCHS_RAISED, QUEUE_IDS_RAISED, recovered
from mirrorlog.cluster.state.state import (
    EPOCH_MAX,
    QUEUE_IDS_GRANTED,
    QUEUE_IDS_MAX,
    ClusterState,
    LogFacts,
    Loss,
    NodeFacts,
    decode_state,
    encode_state,
)
from mirrorlog.cluster.state.topology_commands import PolicySet
from mirrorlog.errors import BadRequest, NotAMember, UnsupportedVersion
from mirrorlog.versions import run_id
from mirrorlog.wire.policies import Policy

GOLDEN = Path(__file__).parent / "golden"


class Decided:
    """A state and the commands that lead on from it. The log is `x`; runs are called a1, a2, …"""

    def __init__(self, state: ClusterState | None = None) -> None:
        self.state = state or ClusterState("id", "name")
        self.index = 0
        self.commands: list[Command] = []

    @property
    def log(self) -> LogFacts:
        return self.state.logs["x"]

    def ask(self, command: Command) -> str:
        """The refusal; empty when it was taken. Applied twice is applied once, and refused is not at all."""
        self.index += 1
        before = self.state
        self.state, outcome = applied(before, self.index, command)
        assert outcome.index == self.index
        if outcome.refusal:
            assert self.state is before
        assert applied(self.state, self.index + 1, command)[0] == self.state
        self.commands.append(command)
        return outcome.refusal

    def do(self, *commands: Command) -> None:
        for command in commands:
            refusal = self.ask(command)
            assert not refusal, f"{command}: {refusal}"

    # --- about nodes ---

    def join(self, *nodes: str, witness: bool = False) -> None:
        for node in nodes:
            self.do(NodeJoined(node=node, addresses=Addresses(), witness=witness))
            self.do(self.start_of(node))

    def start_of(self, node: str, kind: StartKind = StartKind.DIED, **fields: Any) -> NodeStarted:
        before = self.state.nodes[node].start_id
        start_id = f"{node}{int(before.removeprefix(node).partition('.')[0] or 0) + 1}"
        values = {"node": node, "start_id": start_id, "kind": kind, "addresses": Addresses(), "before": before} | fields
        return NodeStarted(**values)

    def start(self, node: str, kind: StartKind = StartKind.DIED, **fields: Any) -> None:
        self.do(self.start_of(node, kind, **fields))

    # --- about the log ---

    def make(self, *replicas: str, **fields: Any) -> None:
        values = {"log_id": "x", "number": 0, "name": "x", "flush": "memory", "replicas": replicas}
        self.do(LogMade(**(values | fields)))

    def holder(self, node: str) -> Holder:
        return Holder(node, self.state.nodes[node].start_id)

    def promotion(self, node: str, **fields: Any) -> Promoted:
        values = {"log_id": "x", "seen": self.log.seen, "holder": self.holder(node), "epoch": self.log.epoch + 1}
        return Promoted(**(values | fields))

    def promote(self, node: str, **fields: Any) -> None:
        self.do(self.promotion(node, **fields))

    def shrink(self, *nodes: str) -> InSyncShrunk:
        return InSyncShrunk(log_id="x", seen=self.log.seen, nodes=nodes)

    def grow(self, node: str) -> InSyncGrown:
        return InSyncGrown(log_id="x", seen=self.log.seen, holder=self.holder(node))


def in_sync(*nodes: str, **fields: Any) -> Decided:
    """`nodes` hold the log, the first masters it, all are in sync."""
    decided = Decided()
    decided.join(*nodes)
    decided.make(*nodes, **fields)
    decided.promote(nodes[0])
    for node in nodes[1:]:
        decided.do(decided.grow(node))
    return decided


# --- Nodes ----------------------------------------------------------------------------------------------------------


def test_a_node_that_joins_is_the_member_of_its_entry() -> None:
    """By joining two."""
    decided = Decided()
    decided.join("a")
    decided.join("w", witness=True)
    assert decided.state.nodes["a"] == NodeFacts(member=1, addresses=Addresses(), start_id="a1", kind=StartKind.DIED)
    assert decided.state.nodes["w"].member == 3
    assert decided.state.nodes["w"].witness
    assert decided.state.version == 4


def test_a_second_node_of_a_name_is_refused_and_a_retry_is_not() -> None:
    """A node that died while it joined finds itself in by its token; by joining again with it, and with another."""
    decided = Decided()
    decided.do(NodeJoined(node="a", addresses=Addresses(), token="t"))
    decided.do(NodeJoined(node="a", addresses=Addresses(), token="t"))
    assert decided.state.nodes["a"].member == 1
    for token in ("", "u"):
        joined = NodeJoined(node="a", addresses=Addresses(), token=token)
        assert "already, as member 1; forget it first" in decided.ask(joined)


def test_a_start_of_an_unknown_node_is_refused() -> None:
    """By starting one that never joined."""
    started = NodeStarted(node="a", start_id="a1", kind=StartKind.CLEAN, addresses=Addresses())
    assert Decided().ask(started) == "no node a is in the cluster; there are none"


def test_a_start_brings_new_addresses_and_ends_a_stop_and_a_drain() -> None:
    """Whoever drained a node to restart it has it back; by a stop, a drain and a start."""
    decided = Decided()
    decided.join("a")
    decided.do(NodeDraining(node="a", draining=True), NodeStopped(node="a", start_id="a1"))
    assert decided.state.nodes["a"].stopped
    assert decided.state.nodes["a"].draining
    decided.start("a", StartKind.CLEAN, addresses=Addresses(client="h:1"))
    assert decided.state.nodes["a"] == NodeFacts(
        member=1, addresses=Addresses(client="h:1"), start_id="a2", kind=StartKind.CLEAN
    )


def test_a_stop_of_a_run_that_is_over_is_refused() -> None:
    """It came late; by the stop of a run before."""
    decided = Decided()
    decided.join("a")
    decided.start("a")
    assert decided.ask(NodeStopped(node="a", start_id="a1")) == "node a runs as a2, not as a1"


def test_a_drain_can_be_taken_back() -> None:
    """By both."""
    decided = Decided()
    decided.join("a")
    decided.do(NodeDraining(node="a", draining=True), NodeDraining(node="a", draining=False))
    assert not decided.state.nodes["a"].draining


@pytest.mark.parametrize("kind", [StartKind.CLEAN, StartKind.DIED])
def test_a_member_that_kept_its_memory_keeps_its_place(kind: StartKind) -> None:
    """It holds what it acked; under its new run. By restarting a mirror."""
    decided = in_sync("a", "b", "c")
    decided.start("b", kind)
    assert decided.log.in_sync == {"a": "a1", "b": "b2", "c": "c1"}
    assert decided.log.master == Holder("a", "a1")
    assert not decided.log.marked


def test_a_master_that_restarts_masters_nothing_and_stays_in_sync() -> None:
    """It may be promoted again, in a new epoch; by restarting it."""
    decided = in_sync("a", "b")
    decided.start("a")
    assert decided.log.master is None
    assert decided.log.promotable == ("a", "b")
    assert decided.log.epoch == 1
    decided.promote("a")
    assert (decided.log.master, decided.log.epoch) == (Holder("a", "a2"), 2)
    assert decided.log.in_sync == {"a": "a2", "b": "b1"}


@pytest.mark.parametrize(("flush", "marked"), [("memory", {"b"}), ("disk", set())])
def test_a_machine_that_went_down_loses_what_was_in_memory(flush: str, marked: set[str]) -> None:
    """By a lossy start of a mirror of either kind of log."""
    decided = in_sync("a", "b", flush=flush)
    decided.start("b", StartKind.LOSSY)
    assert decided.log.marked == marked
    assert "b" in decided.log.in_sync


def test_a_damaged_copy_is_marked_whatever_the_start() -> None:
    """By a clean start that names the log, and one that names another."""
    decided = in_sync("a", "b", flush="disk")
    decided.start("b", StartKind.CLEAN, damaged=("y",))
    assert not decided.log.marked
    decided.start("b", StartKind.CLEAN, damaged=("x",))
    assert decided.log.marked == {"b"}
    decided.start("b", StartKind.CLEAN)
    assert decided.log.marked == {"b"}, "a further start makes nothing whole"


def test_a_copy_that_is_not_in_sync_is_not_marked() -> None:
    """It is compared with the master's before it is let in; by a lossy start of one."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    version = decided.log.version
    decided.start("c", StartKind.LOSSY)
    assert (decided.log.marked, decided.log.version) == (frozenset(), version)


def test_a_disk_that_was_set_back_is_refused_until_its_node_says_so_and_then_nothing_on_it_counts() -> None:
    """By a start whose disk knows an earlier run than the cluster."""
    decided = in_sync("a", "b", flush="disk")
    decided.start("b")
    late = decided.start_of("b", StartKind.CLEAN, before="b1")
    assert "b2, which its disk does not know" in decided.ask(late)
    assert "b2, which its disk does not know" in decided.ask(replace(late, seen="b1"))
    decided.do(replace(late, seen="b2"))
    assert decided.log.marked == {"b"}
    assert decided.state.nodes["b"].kind is StartKind.LOSSY


def test_a_late_start_does_not_end_a_newer_run() -> None:
    """Its sender tried twice and died; by the same command behind the next run's."""
    decided = in_sync("a", "b")
    late = decided.start_of("b")
    decided.do(late)
    decided.start("b")
    state = decided.state
    assert "run b2 is over" in decided.ask(late)
    assert decided.state is state


def test_a_run_that_died_before_it_knew_that_it_was_registered_sets_nothing_back() -> None:
    """The disk tells of it too; by a start that knows it as one of those since, registered or not."""
    decided = in_sync("a", "b")
    decided.start("b")
    decided.start("b", before="b1", since=("b2",))
    assert not decided.log.marked
    decided.start("b", before="b3", since=("never registered",))
    assert not decided.log.marked


def test_a_member_that_was_forgotten_does_not_start_as_the_next_of_its_name() -> None:
    """Its disk is another; by starting it after its name has joined again."""
    decided = Decided()
    decided.join("a")
    decided.do(NodeForgotten(node="a", member=1))
    decided.do(NodeJoined(node="a", addresses=Addresses()))
    assert "node a is member 4; member 1 was forgotten" in decided.ask(decided.start_of("a", member=1))
    decided.start("a", member=4)


def test_a_forgotten_node_is_gone_from_everywhere() -> None:
    """Nothing waits for it any more; by forgetting a mirror, and a master."""
    decided = in_sync("a", "b", "c")
    decided.do(NodeForgotten(node="c"))
    assert "c" not in decided.state.nodes
    assert (decided.log.replicas, set(decided.log.in_sync)) == (("a", "b"), {"a", "b"})
    assert decided.log.copies_wanted == 1
    decided.do(NodeForgotten(node="a"))
    assert (decided.log.replicas, decided.log.master) == (("b",), None)
    assert decided.log.promotable == ("b",)


def test_a_late_forgetting_does_not_meet_the_next_node_of_that_name() -> None:
    """By the same command after it has joined again."""
    decided = Decided()
    decided.join("a")
    forgotten = NodeForgotten(node="a", member=1)
    decided.do(forgotten)
    decided.join("a")
    decided.do(forgotten)
    assert decided.state.nodes["a"].member == 4


def test_the_last_whole_copy_is_not_forgotten() -> None:
    """What it alone holds would be lost in silence; by forgetting it beside a marked one, and with none beside it."""
    decided = in_sync("a", "b")
    decided.start("b", StartKind.LOSSY)
    assert "node a holds the last copy of log x that may be whole" in decided.ask(NodeForgotten(node="a"))
    decided.do(NodeForgotten(node="b"))
    assert "accept the loss" in decided.ask(NodeForgotten(node="a"))


def test_a_recovering_log_does_not_wait_for_a_forgotten_copy() -> None:
    """That something may be lost is known; by forgetting one of two marked ones, and not the other."""
    decided = in_sync("a", "b")
    decided.start("a", StartKind.LOSSY)
    decided.start("b", StartKind.LOSSY)
    assert decided.log.recovering
    decided.do(NodeForgotten(node="a"))
    assert (decided.log.marked, decided.log.recovering) == ({"b"}, True)
    assert "accept the loss" in decided.ask(NodeForgotten(node="b"))


def test_the_only_copy_of_a_log_that_was_never_used_can_be_forgotten() -> None:
    """Nothing is lost with it; the log waits for other copies."""
    decided = Decided()
    decided.join("a", "b")
    decided.make("a")
    decided.do(NodeForgotten(node="a"), ReplicaAdded(log_id="x", seen=Seen(0, 1), node="b"))
    assert decided.log.replicas == ("b",)


# --- Making logs ----------------------------------------------------------------------------------------------------


def test_a_log_begins_without_a_master() -> None:
    """By making one."""
    decided = Decided()
    decided.join("a", "b", "c")
    decided.make("a", "b", "c")
    assert decided.log == LogFacts(number=0, name="x", flush="memory", replicas=("a", "b", "c"), copies_wanted=2)
    assert not decided.log.recovering
    assert not decided.log.owes_jump


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"log_id": "y"}, "log x has the id x and the number 0"),
        ({"log_id": "y", "name": "y"}, "log x has the id x and the number 0"),
        ({"log_id": "y", "number": 1}, "log x has the id x and the number 0"),
        ({"name": "y", "number": 1}, "log x has the id x and the number 0"),
        ({"number": 1}, "log x has the id x and the number 0"),
        ({"log_id": "y", "name": "y", "number": 256}, "its number is 0 to 255, not 256"),
        ({"log_id": "y", "name": "y", "number": -1}, "its number is 0 to 255, not -1"),
        ({"log_id": "y", "name": "y", "number": 1, "flush": "tape"}, "flush is memory or disk, not tape"),
        ({"log_id": "y", "name": "y", "number": 1, "replicas": ()}, "needs nodes to hold it, each once"),
        ({"log_id": "y", "name": "y", "number": 1, "replicas": ("a", "a")}, "needs nodes to hold it, each once"),
        ({"log_id": "y", "name": "y", "number": 1, "replicas": ("z",)}, "no node z is in the cluster; there are a, w"),
        ({"log_id": "y", "name": "y", "number": 1, "replicas": ("w",)}, "node w is a witness"),
        ({"log_id": "y", "name": "y", "number": 1, "copies": 0}, "min_in_sync is 1 up to copies"),
        ({"log_id": "y", "name": "y", "number": 1, "min_in_sync": 4}, "not 4 of 3"),
        ({"log_id": "y", "name": "y", "number": 1, "min_in_sync": 0}, "not 0 of 3"),
    ],
)
def test_a_log_that_cannot_be_is_refused(fields: dict[str, Any], reason: str) -> None:
    """Ids, names and numbers are one log's for ever, and its facts are never written over; by each way to be wrong."""
    decided = in_sync("a")
    decided.join("w", witness=True)
    values = {"log_id": "x", "number": 0, "name": "x", "flush": "memory", "replicas": ("a",)}
    assert reason in decided.ask(LogMade(**(values | fields)))


def test_a_log_that_is_made_again_is_as_it_was() -> None:
    """The retry of a command that was applied; by making it after its first promotion."""
    decided = in_sync("a")
    before = decided.state
    decided.make("a")
    assert decided.state is before


# --- Replicas -------------------------------------------------------------------------------------------------------


def test_copies_are_added_behind_the_others() -> None:
    """By adding one, and it again."""
    decided = in_sync("a")
    decided.join("b")
    decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node="b"))
    assert decided.log.replicas == ("a", "b")
    version = decided.log.version
    decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node="b"))
    assert decided.log.version == version


@pytest.mark.parametrize("node", ["w", "z"])
def test_a_copy_is_held_by_a_node_that_can(node: str) -> None:
    """By adding a witness and an unknown node."""
    decided = in_sync("a")
    decided.join("w", witness=True)
    assert decided.ask(ReplicaAdded(log_id="x", seen=decided.log.seen, node=node))


def test_one_node_grows_to_three_and_is_not_held_up() -> None:
    """More copies ask for more in sync only once they are; by adding two at once and letting them in."""
    decided = in_sync("a")
    decided.join("b", "c")
    for node in ("b", "c"):
        decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node=node))
        assert decided.log.copies_wanted == 1
    decided.do(decided.grow("b"))
    assert decided.log.copies_wanted == 2
    decided.do(decided.grow("c"))
    assert decided.log.copies_wanted == 2


def test_a_copy_that_is_replaced_holds_nobody_up() -> None:
    """A fourth copy for a while asks for no third in sync; by adding one, and removing the dead one."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    decided.join("d")
    decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node="d"))
    assert decided.log.copies_wanted == 2
    decided.do(ReplicaRemoved(log_id="x", seen=decided.log.seen, node="c"))
    assert (decided.log.replicas, decided.log.copies_wanted) == (("a", "b", "d"), 2)


def test_removing_copies_does_not_lower_what_a_confirm_needs() -> None:
    """Another is added first; by removing one of three, with the default and with a number."""
    for fields in ({}, {"min_in_sync": 3}):
        decided = in_sync("a", "b", **fields)
        decided.join("c")
        decided.do(ReplicaAdded(log_id="x", seen=decided.log.seen, node="c"))
        wanted = decided.log.copies_wanted
        removed = ReplicaRemoved(log_id="x", seen=decided.log.seen, node="c")
        assert f"needs {wanted} in-sync copies, and 2 copies are too few" in decided.ask(removed)


def test_a_member_of_the_set_is_not_removed() -> None:
    """It leaves that set first; by removing a mirror, and the master."""
    decided = in_sync("a", "b")
    for node in ("a", "b"):
        removed = ReplicaRemoved(log_id="x", seen=decided.log.seen, node=node)
        assert "it leaves that set first" in decided.ask(removed)
    decided.do(ReplicaRemoved(log_id="x", seen=decided.log.seen, node="z"))


# --- Masters --------------------------------------------------------------------------------------------------------


def test_the_first_master_is_alone_in_sync() -> None:
    """The others are let in by it; by the first promotion."""
    decided = Decided()
    decided.join("a", "b")
    decided.make("a", "b")
    decided.promote("b", epoch=7)
    assert (decided.log.master, decided.log.epoch, decided.log.in_sync) == (Holder("b", "b1"), 7, {"b": "b1"})


def test_a_clean_promotion_keeps_the_set() -> None:
    """Who died with everything may come back with it; by promoting the mirror of a dead master."""
    decided = in_sync("a", "b")
    decided.promote("b")
    assert (decided.log.master, decided.log.epoch) == (Holder("b", "b1"), 2)
    assert decided.log.in_sync == {"a": "a1", "b": "b1"}


def test_promotions_that_may_lose_something_are_refused() -> None:
    """By one from outside the set, and of a marked member."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    assert "node c may lack what was confirmed of log x; in sync: a, b" in decided.ask(decided.promotion("c"))
    decided.start("b", StartKind.LOSSY)
    assert "node b may lack what was confirmed of log x; in sync: a, b (marked)" in decided.ask(decided.promotion("b"))


def test_an_unclean_promotion_says_what_may_be_lost_and_owes_a_leap() -> None:
    """Until a master says that the leap is confirmed, whoever follows has to do it; by its master's death."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    assert "has to say what may be lost" in decided.ask(decided.promotion("c", unclean=True))
    decided.promote("c", unclean=True, lost_from=4096)
    assert decided.log.in_sync == {"c": "c1"}
    assert decided.log.losses == (Loss(2, 4096),)
    decided.start("c")
    decided.promote("c")
    assert decided.log.owes_jump
    decided.do(OffsetJumpConfirmed(log_id="x", seen=decided.log.seen))
    assert not decided.log.owes_jump
    assert decided.log.losses == (Loss(2, 4096, leapt=True),)


def test_a_leap_is_confirmed_by_a_master_of_now() -> None:
    """By one whose run has ended, and one that does not know of the last loss."""
    decided = in_sync("a", "b")
    seen = decided.log.seen
    decided.start("a")
    assert "has no master" in decided.ask(OffsetJumpConfirmed(log_id="x", seen=decided.log.seen))
    decided.promote("b", lost_from=10)
    assert "has moved on" in decided.ask(OffsetJumpConfirmed(log_id="x", seen=seen))
    assert decided.log.owes_jump


def test_the_end_of_a_loss_becomes_known_as_copies_return() -> None:
    """The farthest counts; by three copies, one late, and of a loss that never was."""
    decided = in_sync("a", "b")
    decided.promote("b", lost_from=100)
    version = decided.log.version
    for end in (300, 700, 200):
        decided.do(LossEndFound(log_id="x", epoch=2, end=end))
    assert decided.log.losses == (Loss(2, 100, 700),)
    assert decided.log.version == version
    assert "knows of no loss" in decided.ask(LossEndFound(log_id="x", epoch=1, end=5))
    assert "no log" in decided.ask(LossEndFound(log_id="y", epoch=1, end=5))


def test_the_numbers_that_queues_may_have_only_rise() -> None:
    """By grants out of order, one beyond what an id can hold, and one of a log that never was. Nobody's view of the log
    is out of date by them."""
    decided = in_sync("a", "b")
    version, before = decided.log.version, decided.state.queue_ids("x")
    assert before == QUEUE_IDS_GRANTED
    for until, granted in ((5, before), (9_000, 9_000), (8_000, 9_000), (1 << 40, QUEUE_IDS_MAX)):
        decided.do(QueueIdsGranted(log_id="x", until=until))
        assert (decided.state.queue_ids("x"), decided.log.version) == (granted, version)
    assert "no log" in decided.ask(QueueIdsGranted(log_id="y", until=5))


def test_numbers_of_queues_that_a_lost_majority_has_granted_unseen_are_left_out() -> None:
    """By recovering a log with its first numbers, one with more, and one of an older cluster, which grants none."""
    state = recovered(msgspec.structs.replace(in_sync("a", "b").state, cluster_version=versions.DELETION), ["b"])
    assert state.queue_ids("x") == QUEUE_IDS_GRANTED + QUEUE_IDS_RAISED
    assert recovered(state, ["b"]).queue_ids("x") == QUEUE_IDS_GRANTED + 2 * QUEUE_IDS_RAISED
    assert recovered(in_sync("a", "b").state, ["b"]).granted_ids == {}


def test_a_promotion_of_a_whole_member_takes_nothing_from_the_others() -> None:
    """Whoever said that it may lose something was wrong; by an unclean one of an in-sync mirror."""
    decided = in_sync("a", "b")
    decided.promote("b", unclean=True)
    assert set(decided.log.in_sync) == {"a", "b"}


def test_a_recovering_log_is_promoted_by_accepting_the_loss() -> None:
    """Then the marks are settled; by power loss of all."""
    decided = in_sync("a", "b")
    for node in ("a", "b"):
        decided.start(node, StartKind.LOSSY)
    assert decided.log.recovering
    assert "may lack" in decided.ask(decided.promotion("a"))
    decided.promote("a", unclean=True, lost_from=5)
    assert not decided.log.recovering
    assert (decided.log.in_sync, decided.log.marked) == ({"a": "a2"}, frozenset())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epoch": 1}, "log x is in epoch 1; 1 is not above it"),
        ({"epoch": EPOCH_MAX + 1}, "is not above it"),
        ({"holder": Holder("b", "b0")}, "run b0 of node b has ended"),
        ({"holder": Holder("z", "z1")}, "no node z is in the cluster"),
        ({"holder": Holder("d", "d1")}, "node d holds no copy of log x"),
        ({"seen": Seen(0, 1)}, "log x has moved on: epoch 1, version 2; the command knew epoch 0, version 1"),
        ({"log_id": "y"}, "there is no log y"),
    ],
)
def test_a_promotion_that_does_not_fit_is_refused(fields: dict[str, Any], reason: str) -> None:
    """By each way to be wrong."""
    decided = in_sync("a", "b")
    decided.join("d")
    assert reason in decided.ask(decided.promotion("b", **fields))


def test_a_run_that_stopped_is_neither_promoted_nor_let_in() -> None:
    """It is gone; by a clean stop just before."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"), NodeStopped(node="b", start_id="b1"), NodeStopped(node="c", start_id="c1"))
    assert "has ended" in decided.ask(decided.promotion("b"))
    assert "has ended" in decided.ask(decided.grow("c"))


def test_the_oldest_losses_are_forgotten() -> None:
    """A state has a limit; by more losses than are kept."""
    losses = tuple(Loss(epoch, 0) for epoch in range(2, LOSSES_KEPT + 2))
    decided = in_sync("a")
    log = replace(decided.log, losses=losses, epoch=LOSSES_KEPT + 1)
    decided.state = replace(decided.state, logs={"x": log})
    decided.promote("a", lost_from=9)
    assert decided.log.losses == (*losses[1:], Loss(LOSSES_KEPT + 2, 9))


# --- In-sync sets ---------------------------------------------------------------------------------------------------


def test_a_set_shrinks_down_to_what_a_confirm_needs() -> None:
    """And never below; with three copies, two, and a number."""
    decided = in_sync("a", "b", "c")
    assert "needs 2 whole in-sync copies; b, c cannot leave; in sync: a, b, c" in decided.ask(decided.shrink("b", "c"))
    decided.do(decided.shrink("c"))
    assert "b cannot leave" in decided.ask(decided.shrink("b"))
    two = in_sync("a", "b")
    two.do(two.shrink("b"))
    assert two.log.in_sync == {"a": "a1"}
    refusing = in_sync("a", "b", min_in_sync=2)
    assert "needs 2 whole in-sync copies" in refusing.ask(refusing.shrink("b"))


def test_the_master_never_leaves_its_set() -> None:
    """Nor does anybody when there is none; by shrinking by the master, and after its death."""
    decided = in_sync("a", "b", "c")
    assert "its master is always in sync" in decided.ask(decided.shrink("a"))
    decided.start("a")
    assert "its master is always in sync" in decided.ask(decided.shrink("c"))


def test_a_whole_copy_stays_while_those_beside_it_are_marked() -> None:
    """A dead one that is whole may be needed yet; by a marked mirror beside it, which is let in again."""
    decided = in_sync("a", "b", "c")
    decided.start("b", StartKind.LOSSY)
    assert "c cannot leave" in decided.ask(decided.shrink("c"))
    assert decided.log.may_leave(["a", "b", "c"]) == ("b",)
    decided.do(decided.grow("b"))
    assert not decided.log.marked
    decided.do(decided.shrink("c"))


def test_marked_members_leave_as_far_as_others_hold_the_confirmed_offset_still() -> None:
    """By two marked of three, with two needed."""
    decided = in_sync("a", "b", "c")
    for node in ("b", "c"):
        decided.start(node, StartKind.LOSSY)
    assert "b, c cannot leave" in decided.ask(decided.shrink("b", "c"))
    decided.do(decided.shrink("c"))
    assert (set(decided.log.in_sync), decided.log.marked) == ({"a", "b"}, {"b"})


def test_who_is_not_in_the_set_can_leave_it() -> None:
    """It says what is already so; by shrinking twice."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    version = decided.log.version
    decided.do(decided.shrink("c", "z"))
    assert decided.log.version == version


@pytest.mark.parametrize(
    ("node", "reason"), [("d", "node d holds no copy of log x"), ("z", "no node z is in the cluster")]
)
def test_only_replicas_are_let_in(node: str, reason: str) -> None:
    """By a node without a copy, and one that there is not."""
    decided = in_sync("a", "b")
    decided.join("d")
    grown = InSyncGrown(log_id="x", seen=decided.log.seen, holder=Holder(node, f"{node}1"))
    assert reason in decided.ask(grown)


def test_nobody_is_let_in_without_a_master_or_in_a_run_that_is_over() -> None:
    """By a mirror's earlier run, and after the master's death."""
    decided = in_sync("a", "b", "c")
    decided.do(decided.shrink("c"))
    earlier = decided.grow("c")
    decided.start("c")
    assert "run c1 of node c has ended" in decided.ask(earlier)
    decided.start("a")
    assert "no master that could vouch for c" in decided.ask(decided.grow("c"))


def test_every_change_of_a_log_is_refused_once_it_has_moved_on() -> None:
    """One mutator, by the order of the entries; by commands of all kinds that saw the version before."""
    decided = in_sync("a", "b", "c")
    seen = decided.log.seen
    decided.do(decided.shrink("c"))
    for command in (
        ReplicaAdded(log_id="x", seen=seen, node="a"),
        ReplicaRemoved(log_id="x", seen=seen, node="c"),
        decided.promotion("b", seen=seen),
        InSyncShrunk(log_id="x", seen=seen, nodes=("b",)),
        InSyncGrown(log_id="x", seen=seen, holder=Holder("c", "c1")),
        OffsetJumpConfirmed(log_id="x", seen=seen),
    ):
        assert "log x has moved on" in decided.ask(command)


# --- A majority that is lost ----------------------------------------------------------------------------------------


def test_what_is_left_of_a_cluster_recovers_every_log_from_all_its_copies() -> None:
    """The lost ones may have mastered any of them; by going on with two of three nodes."""
    decided = in_sync("a", "b", "c", flush="disk")
    decided.do(decided.shrink("c"))
    left = Decided(recovered(decided.state, ["b", "c"]))
    assert left.state.incarnation == 2
    assert set(left.state.nodes) == {"b", "c"}
    assert (left.log.replicas, left.log.master, left.log.epoch) == (("b", "c"), None, 1 + EPOCHS_RAISED)
    assert left.log.last_led == 1
    assert recovered(left.state, ["b", "c"]).logs["x"].last_led == 1
    assert left.log.in_sync == {"b": "b1", "c": "c1"}
    assert left.log.recovering
    left.start("b")
    assert left.log.recovering
    assert left.ask(left.promotion("b"))
    left.promote("b", unclean=True, lost_from=7)
    assert left.log.last_led == left.log.epoch
    assert "no node a is in the cluster" in left.ask(
        NodeStarted(node="a", start_id="a2", kind=StartKind.CLEAN, addresses=Addresses(), before="a1")
    )


def test_a_log_whose_copies_are_all_lost_waits_for_a_decision() -> None:
    """An empty copy is promoted by hand, and the loss is said; by a log on one node that is lost."""
    decided = in_sync("a")
    decided.join("b")
    left = Decided(recovered(decided.state, {"b"}))
    assert (left.log.replicas, left.log.promotable, left.log.recovering) == ((), (), False)
    left.do(ReplicaAdded(log_id="x", seen=left.log.seen, node="b"))
    assert left.ask(left.promotion("b"))
    left.promote("b", unclean=True, lost_from=0)


@pytest.mark.parametrize("survivors", [[], ["z"], ["a", "z"]])
def test_only_known_nodes_survive(survivors: Sequence[str]) -> None:
    """By none, and by one that never was."""
    with pytest.raises(BadRequest):
        recovered(in_sync("a", "b").state, survivors)


# --- Versions -------------------------------------------------------------------------------------------------------


def of_versions(**nodes: int) -> Decided:
    """Nodes, each with software of that version."""
    decided = Decided()
    for node, version in nodes.items():
        decided.do(NodeJoined(node=node, addresses=Addresses()))
        decided.do(decided.start_of(node, start_id=run_id(f"{node}1", version)))
    return decided


def test_the_version_rises_when_every_node_can_do_it() -> None:
    """By one step for good, and not before the last one is updated; one that never ran is not, as far as is known."""
    decided = of_versions(a=2, b=1)
    assert "until all nodes are updated; not updated: b" in decided.ask(VersionRaised(version=2))
    decided.do(decided.start_of("b", start_id=run_id("b2", 2), before="b1"))
    decided.do(NodeJoined(node="c", addresses=Addresses()))
    assert "not updated: c" in decided.ask(VersionRaised(version=2))
    decided.do(decided.start_of("c", start_id=run_id("c1", 2)))
    assert decided.state.cluster_version == 1
    decided.do(VersionRaised(version=2))
    assert decided.state.cluster_version == 2
    before = decided.state
    decided.do(VersionRaised(version=1), VersionRaised(version=2))
    assert decided.state == before


def test_the_version_rises_by_one() -> None:
    """Each step is what some software does in between; by nodes that could do more at once."""
    decided = of_versions(a=3)
    assert "3 is not the next one" in decided.ask(VersionRaised(version=3))
    decided.do(VersionRaised(version=2))
    decided.do(VersionRaised(version=3))
    assert decided.state.cluster_version == 3


def test_software_that_is_too_old_is_not_let_in() -> None:
    """It is told which to start; before the version rose it was. By the node that goes back, and one that is new."""
    decided = of_versions(a=2, b=2)
    decided.do(decided.start_of("b", start_id="b2", before=run_id("b1", 2)))
    decided.do(decided.start_of("b", start_id=run_id("b3", 2), before="b2"))
    decided.do(VersionRaised(version=2), NodeJoined(node="c", addresses=Addresses()))
    back = decided.start_of("b", start_id="b4", before=run_id("b3", 2))
    new = decided.start_of("c", start_id="c1")
    for command in (back, new, replace(back, before="", seen=run_id("b3", 2))):
        assert "start the node with software of version 2 or 3" in decided.ask(command)
        with pytest.raises(NotAMember, match="start the node with software of version 2 or 3"):
            check_proposal(decided.state, command)
    check_proposal(decided.state, replace(back, start_id=run_id("b4", 2)))
    decided.do(replace(back, start_id=run_id("b4", 2)))


def test_a_command_that_not_everybody_can_read_is_not_proposed() -> None:
    """Whoever wants it is told what the cluster waits for; by the raise itself, before and after the last update."""
    decided = of_versions(a=2, b=1)
    check_proposal(decided.state, NodeDraining(node="a", draining=True))
    with pytest.raises(UnsupportedVersion, match=r"runs at version 1 until all nodes are updated, .*not updated: b"):
        check_proposal(decided.state, VersionRaised(version=2))
    decided.do(decided.start_of("b", start_id=run_id("b2", 2), before="b1"))
    check_proposal(decided.state, VersionRaised(version=2))


def test_what_version_1_wrote_is_what_this_software_makes_of_it() -> None:
    """Goal: at version 1 both are the same machine: nobody's state parts from another's. Method: bytes that version 1
    wrote are read, applied and written; each is the same again."""
    decided, state = Decided(), b""
    for line in (GOLDEN / "version-1.txt").read_text().splitlines():
        kind, _, data = line.partition(" ")
        if kind == "command":
            raw = bytes.fromhex(data)
            command = decode_command(raw)
            assert encode_command(command) == raw
            decided.ask(command)
        elif kind == "state":
            state = bytes.fromhex(data)
    assert len({type(command) for command in decided.commands}) == 15
    assert encode_state(decided.state) == state
    assert decode_state(state) == decided.state
    assert decided.state.cluster_version == 1


def test_what_version_6_wrote_is_what_this_software_makes_of_it() -> None:
    """As of version 1; and what version 7 adds changes no byte of a state that has none of it, and comes back."""
    lines = [line.split(" ") for line in (GOLDEN / "version-6.txt").read_text().splitlines() if line[0] != "#"]
    decided = Decided(decode_state(bytes.fromhex(lines[0][1])))
    for kind, data in lines[1:-1]:
        assert kind == "command"
        command = decode_command(bytes.fromhex(data))
        assert encode_command(command).hex() == data
        assert not decided.ask(command)
    assert encode_state(decided.state).hex() == lines[-1][1]
    assert decided.state.cluster_version == 6
    with pytest.raises(UnsupportedVersion, match="QueueSyncWished came with version 7"):
        check_proposal(decided.state, QueueSyncWished(name="q"))
    policy = PolicySet(virtual_host="/", name="p", policy=Policy("^q", {"max-length": 1}))
    with pytest.raises(UnsupportedVersion, match="PolicySet came with version 7"):
        check_proposal(decided.state, policy)
    decided.ask(QueueSyncWished(name="q"))
    decided.ask(RecordsCopied(name="q", log_id="B", first=15, span=SpanSeen("A", 0, 10)))
    assert encode_command(decided.commands[-2]).hex() == "82a474797065af517565756553796e63576973686564a46e616d65a171"
    decided.ask(policy)
    written = (
        b"\x84\xa4type\xa9PolicySet\xacvirtual_host\xa1/\xa4name\xa1p\xa6policy\x82\xa7pattern\xa2^q\xaadefinition"
    )
    assert encode_command(policy).startswith(written)
    assert decode_state(encode_state(decided.state)) == decided.state


def test_a_state_of_a_newer_cluster_is_not_taken() -> None:
    """What it says cannot all be known; by the version behind this software's."""
    state = of_versions(a=versions.OWN + 1).state
    assert decode_state(encode_state(replace(state, cluster_version=versions.OWN))).cluster_version == versions.OWN
    with pytest.raises(UnsupportedVersion, match="start the node with software of version"):
        decode_state(encode_state(replace(state, cluster_version=versions.OWN + 1)))


# --- As bytes -------------------------------------------------------------------------------------------------------


def everything() -> Decided:
    decided = in_sync("a", "b", "c")
    decided.join("w", witness=True)
    decided.start("c", StartKind.LOSSY, damaged=("x",))
    decided.do(decided.grow("c"), NodeDraining(node="b", draining=True))
    decided.promote("b", lost_from=77)
    decided.do(LossEndFound(log_id="x", epoch=2, end=99), NodeStopped(node="w", start_id="w1"))
    decided.do(OffsetJumpConfirmed(log_id="x", seen=decided.log.seen))
    decided.do(decided.shrink("a"))
    decided.do(ReplicaRemoved(log_id="x", seen=decided.log.seen, node="z"), NodeForgotten(node="w", member=7))
    return decided


def test_commands_and_states_come_back_as_they_were() -> None:
    """By one that has everything in it."""
    decided = everything()
    for command in decided.commands:
        assert decode_command(encode_command(command)) == command
    assert decode_state(encode_state(decided.state)) == decided.state


def test_equal_states_are_equal_bytes() -> None:
    """Whatever order they came about in; by a set that two nodes joined in either order."""
    one, other = in_sync("a", "b", "c"), in_sync("a", "b", "c")
    log = one.log
    backwards = {node: log.in_sync[node] for node in reversed(log.in_sync)}
    other.state = replace(one.state, logs={"x": replace(log, in_sync=backwards)})
    assert other.state == one.state
    assert encode_state(other.state) == encode_state(one.state)


def test_more_fields_of_a_newer_version_are_ignored() -> None:
    """In commands, in what they hold, and in states; by adding one to every map and to every array of named parts."""

    def more(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: more(each) for key, each in value.items()} | {"new": 1}
        return value

    decided = everything()
    for command in decided.commands:
        raw = msgspec.msgpack.decode(encode_command(command))
        for key in ("seen", "holder"):
            if isinstance(raw.get(key), list):
                raw[key].append("new")
        assert decode_command(msgspec.msgpack.encode(more(raw))) == command
    raw = msgspec.msgpack.decode(encode_state(decided.state))
    for part in (raw, *raw["nodes"].values(), *raw["logs"].values(), *raw["logs"]["x"]["losses"]):
        part["new"] = 1
    assert decode_state(msgspec.msgpack.encode(raw)) == decided.state


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xc1", msgspec.msgpack.encode({"type": "Unknown"})])
def test_what_is_no_command_is_named(data: bytes) -> None:
    """By bytes that are none."""
    with pytest.raises(UnsupportedVersion, match="cannot read"):
        decode_command(data)
