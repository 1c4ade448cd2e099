"""The coordinator brings what is to what is wanted, one step at a time, wherever it begins."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from mirrorlog.cluster.coordination.coordinator import (
    HANDOVER_AGAIN_S,
    Action,
    ChangeMembers,
    Coordinator,
    CoordinatorSettings,
    Fence,
    Observation,
    Propose,
)
from mirrorlog.cluster.coordination.handover import Away, away_from_home
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import FenceReport
from mirrorlog.cluster.raft.messages import Members
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    MasterWished,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeStarted,
    NodeStopped,
    Promoted,
    ReplicaRemoved,
    StartKind,
    VersionRaised,
)
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.versions import OWN, run_id

CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
STEPS_MAX = 200


class World:
    """Nodes that do what they are told at once: commands are applied, fences answered, new copies grow in sync."""

    def __init__(self, *, wanted: CoordinatorSettings | None = None, version: int = 1) -> None:
        """`version`: of the nodes' software."""
        self.version = version
        self.state = ClusterState(CLUSTER_ID, "c")
        self.members = Members(())
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.now = 0.0
        self.reports: dict[str, tuple[int, int]] = {}
        self.done: list[Action] = []
        self.coordinator = Coordinator(wanted or CoordinatorSettings())
        self.unregistered: set[str] = set()
        """Up, in a run that the state does not know."""
        self.behind: set[str] = set()
        """Their copies do not come into sync."""
        self.promoted: Counter[tuple[str, int]] = Counter()
        self._index = 0

    def apply(self, command: Command) -> str:
        """Why it was refused; empty if not."""
        self._index += 1
        self.state, outcome = applied(self.state, self._index, command)
        return outcome.refusal

    def join(self, node: str, *, witness: bool = False) -> None:
        assert not self.apply(NodeJoined(node=node, addresses=Addresses(), witness=witness))
        self.start(node)

    def start(self, node: str, run: int = 1, *, version: int | None = None) -> None:
        before, start_id = self.state.nodes[node].start_id, run_id(f"{node} {run}", version or self.version)
        self.down.discard(node)
        assert not self.apply(
            NodeStarted(node=node, start_id=start_id, kind=StartKind.DIED, addresses=Addresses(), before=before)
        )

    def life(self, node: str) -> Life:
        return Life.DOWN if node in self.down else Life.UP

    def life_of_run(self, node: str) -> Life:
        return Life.DOWN if node in self.unregistered else self.life(node)

    def settle(self) -> None:
        """Until there is nothing to do, or only to wait."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError(f"no end: {self.done[-5:]}")

    def step(self) -> bool:
        seen = Observation(self.members, self.life, self.life_of_run, lambda member: True, self.now)
        version, members = self.state.version, self.members
        answered = False
        for action in self.coordinator.step(self.state, seen):
            self.done.append(action)
            if isinstance(action, Propose):
                if not self.apply(action.command) and isinstance(action.command, Promoted):
                    self.promoted[action.command.log_id, action.command.epoch] += 1
            elif isinstance(action, ChangeMembers):
                self.members = action.members
            elif action.node not in self.silent:
                answered = self._fence(action) or answered
        return self._grow() or answered or self.state.version != version or self.members != members

    def _fence(self, fence: Fence) -> bool:
        epoch, end = self.reports.get(fence.node, (0, 0))
        report = FenceReport(self.state.nodes[fence.node].start_id, epoch, end, confirmed=0)
        self.coordinator.fenced(fence.log_id, fence.epoch, fence.node, report)
        return True

    def _grow(self) -> bool:
        """Masters ask for their mirrors, as they do when these have everything."""
        for log_id, log in self.state.logs.items():
            for node in [each for each in log.replicas if each not in self.behind | self.unregistered]:
                if log.master and self.life(log.master.node) is Life.UP and self.life(node) is Life.UP:
                    holder = Holder(node, self.state.nodes[node].start_id)
                    if log.in_sync.get(node) != holder.start_id:
                        assert not self.apply(InSyncGrown(log_id=log_id, seen=log.seen, holder=holder))
                        return True
        return False

    def log(self, name: str) -> LogFacts:
        return next(log for log in self.state.logs.values() if log.name == name)

    def master(self, name: str) -> str:
        log = self.log(name)
        return log.master.node if log.master else ""

    def drain(self, node: str, *, draining: bool = True) -> None:
        assert not self.apply(NodeDraining(node=node, draining=draining))

    def wish(self, name: str, node: str) -> str:
        """Why it was refused; empty if not."""
        log_id, log = next((log_id, log) for log_id, log in self.state.logs.items() if log.name == name)
        return self.apply(MasterWished(log_id=log_id, seen=log.seen, node=node))

    def fences(self, name: str) -> list[Fence]:
        log_id = next(log_id for log_id, log in self.state.logs.items() if log.name == name)
        return [action for action in self.done if isinstance(action, Fence) and action.log_id == log_id]

    def proposed(self, kind: type[Command]) -> int:
        return sum(isinstance(action, Propose) and isinstance(action.command, kind) for action in self.done)


def cluster(*nodes: str, wanted: CoordinatorSettings | None = None) -> World:
    world = World(wanted=wanted)
    for node in nodes:
        world.join(node)
        world.settle()
    return world


def test_one_node_alone_is_a_cluster() -> None:
    """It votes, is home to a log and masters it; by joining and settling."""
    world = cluster("a")
    assert len(world.members.voters) == 1
    assert world.master("a") == "a"
    assert world.log("a").in_sync == {"a": "a 1"}


def test_it_grows_to_three_and_every_node_masters_its_own() -> None:
    """Each log on all three, no epoch begun for it; by joining one after the other."""
    world = cluster("a", "b", "c")
    assert len(world.members.voters) == 3
    assert [world.master(name) for name in "abc"] == ["a", "b", "c"]
    assert all(set(log.replicas) == {"a", "b", "c"} == set(log.in_sync) for log in world.state.logs.values())
    assert {log.epoch for log in world.state.logs.values()} == {1}


def test_the_clusters_version_rises_when_all_nodes_are_updated_and_there() -> None:
    """Not while one is down, or has stopped: it may be on its way back to the software before. By updating three one
    after the other, and asking while one of them is away."""
    world = cluster("a", "b", "c")
    for node in "ab":
        world.start(node, 2, version=2)
        world.settle()
    world.start("c", 2, version=2)
    assert not world.apply(NodeStopped(node="c", start_id=world.state.nodes["c"].start_id))
    world.settle()
    world.start("c", 3, version=2)
    world.down = {"a"}
    world.settle()
    assert (world.state.cluster_version, world.proposed(VersionRaised)) == (1, 0)
    world.down = set()
    world.settle()
    assert world.state.cluster_version == 2


def test_the_version_rises_step_by_step_and_never_above_this_software() -> None:
    """Who leads may be older than the others; by nodes of much newer software."""
    world = cluster("a")
    world.start("a", 2, version=OWN + 3)
    world.settle()
    assert world.state.cluster_version == OWN
    assert world.proposed(VersionRaised) == OWN - 1


def test_copies_are_spread_evenly() -> None:
    """No node holds more than one copy above another; by six nodes that come together."""
    world = World()
    for node in "abcdef":
        world.join(node)
    world.settle()
    held = Counter(node for log in world.state.logs.values() for node in log.replicas)
    assert max(held.values()) - min(held.values()) <= 1, held
    assert {len(log.replicas) for log in world.state.logs.values()} == {3}


def test_a_dead_masters_logs_go_to_the_copy_that_has_most() -> None:
    """In one promotion with a higher epoch; by killing it, one mirror being further than the other."""
    world = cluster("a", "b", "c")
    world.reports = {"b": (1, 100), "c": (1, 200)}
    world.down = {"a"}
    world.settle()
    assert world.master("a") == "c"
    assert world.log("a").epoch == 2
    assert world.proposed(Promoted) == 3 + 1


def test_a_dead_mirror_leaves_the_sets_as_far_as_it_may() -> None:
    """Two of three copies stay, and a second death leaves both in; by killing one, then another."""
    world = cluster("a", "b", "c")
    world.down = {"c"}
    world.settle()
    assert set(world.log("a").in_sync) == {"a", "b"}
    world.down = {"b", "c"}
    world.settle()
    assert set(world.log("a").in_sync) == {"a", "b"}
    assert world.proposed(InSyncShrunk) == 3


def test_a_set_does_not_shrink_beside_a_dead_master() -> None:
    """Else nobody is left who could be promoted; by two nodes that die, and a witness."""
    world = cluster("a", "b")
    world.join("w", witness=True)
    world.settle()
    world.down = {"a", "b"}
    world.settle()
    assert {name: set(world.log(name).in_sync) for name in "ab"} == {"a": {"a", "b"}, "b": {"a", "b"}}
    world.down = {"a"}
    world.settle()
    assert (world.master("a"), world.master("b")) == ("b", "b")


def test_a_copy_whose_node_has_just_come_back_is_waited_for() -> None:
    """It may hold more than the others, and says so once it has registered; by a whole cluster that starts again, of
    which one node has registered first."""
    world = cluster("a", "b", "c")
    world.unregistered = {"a", "b"}
    world.silent = {"a", "b"}
    world.reports = {"b": (1, 200), "c": (1, 100)}
    world.settle()
    assert world.master("b") == "b"
    world.unregistered = {"a"}
    world.silent = {"a"}
    world.start("b", run=2)
    world.settle()
    world.now += 2.0
    world.settle()
    assert world.master("a") == "b"


def test_a_silent_copy_is_waited_for_and_then_not() -> None:
    """One that answers is enough for level all; by a copy that is up and does not answer."""
    world = cluster("a", "b", "c", wanted=CoordinatorSettings(promote_wait_s=2.0))
    world.down, world.silent = {"a"}, {"c"}
    world.settle()
    assert world.master("a") == "a"
    assert world.coordinator.waits[next(iter(world.state.logs))] == ("c",)
    world.now += 2.0
    world.settle()
    assert world.master("a") == "b"


def test_a_restarted_master_is_promoted_again() -> None:
    """In a new epoch, for its new run; by a restart that nobody noticed before it registered."""
    world = cluster("a")
    world.start("a", run=2)
    assert world.log("a").master is None
    world.settle()
    assert world.log("a").master == Holder("a", "a 2")
    assert world.log("a").epoch == 2


def test_a_node_that_is_gone_for_long_is_replaced() -> None:
    """Its copies are made elsewhere, then taken from it, and it keeps its place in Raft; by four nodes and time."""
    world = cluster(*"abcd", wanted=CoordinatorSettings(replace_after_s=600))
    world.down = {"d"}
    world.settle()
    before = {name: world.log(name).replicas for name in "abcd"}
    assert any("d" in replicas for replicas in before.values())
    world.now += 600
    world.settle()
    assert all("d" not in log.replicas and len(log.in_sync) == 3 for log in world.state.logs.values())
    assert len(world.members.voters) == 4


def test_a_copy_that_cannot_be_spared_yet_is_not_taken_away() -> None:
    """Nothing is proposed that is refused; by a node that is gone for long while another one, which holds the only
    other copy beside the master's, is drained."""
    world = cluster("a", "b", "c", wanted=CoordinatorSettings(replace_after_s=600))
    world.down = {"c"}
    world.settle()
    world.drain("a")
    world.settle()
    world.now += 600
    world.settle()
    assert set(world.log("b").replicas) == {"a", "b", "c"}
    assert not world.proposed(ReplicaRemoved)


def test_a_forgotten_node_leaves_raft_and_every_log() -> None:
    """By forgetting one that is dead."""
    world = cluster("a", "b", "c")
    world.down = {"c"}
    world.settle()
    assert not world.apply(NodeForgotten(node="c"))
    world.settle()
    assert len(world.members.voters) == 2
    assert all("c" not in log.replicas for log in world.state.logs.values())


def test_a_witness_votes_and_holds_nothing() -> None:
    """By two nodes and a witness."""
    world = cluster("a", "b")
    world.join("w", witness=True)
    world.settle()
    assert len(world.members.voters) == 3
    assert all("w" not in log.replicas for log in world.state.logs.values())


def test_a_new_coordinator_goes_on_where_the_old_one_stood() -> None:
    """It remembers nothing that matters; by changing it in the middle of a promotion."""
    world = cluster("a", "b", "c")
    world.down, world.silent = {"a"}, {"b", "c"}
    world.settle()
    world.coordinator, world.silent = Coordinator(CoordinatorSettings()), set()
    world.settle()
    assert world.master("a") in ("b", "c")


def test_when_everybody_who_had_everything_is_gone_it_waits_and_says_for_whom() -> None:
    """No copy from outside the set is taken; by killing the two that are in sync after a third fell out."""
    world = cluster("a", "b", "c")
    world.down = {"c"}
    world.settle()
    world.down = {"a", "b"}
    world.settle()
    log_id = next(log_id for log_id, log in world.state.logs.items() if log.name == "a")
    assert set(world.coordinator.waits[log_id]) == {"a", "b"}
    world.down = {"a"}
    world.settle()
    assert world.master("a") == "b"


def test_a_draining_node_gets_no_new_copies() -> None:
    """By draining one before a fourth joins."""
    world = cluster("a", "b")
    assert not world.apply(NodeDraining(node="b", draining=True))
    world.join("c")
    world.settle()
    assert "b" not in world.log("c").replicas


def test_a_draining_nodes_logs_are_handed_over() -> None:
    """To copies in sync, evenly, each in one epoch, and no copy is made anew; by draining one that masters two."""
    world = cluster("a", "b", "c")
    assert not world.wish("b", "a")
    world.settle()
    assert [world.master(name) for name in "abc"] == ["a", "a", "c"]
    world.drain("a")
    world.settle()
    assert Counter(world.master(name) for name in "abc") == {"b": 2, "c": 1}
    assert [world.log(name).epoch for name in "abc"] == [2, 3, 1]
    assert all(set(log.in_sync) == {"a", "b", "c"} for log in world.state.logs.values())
    assert not any(log.losses for log in world.state.logs.values())


def test_a_handover_fences_the_master_first_and_gently() -> None:
    """So that its mirrors come to its end before they are fenced; by the order of the fences."""
    world = cluster("a", "b", "c")
    world.done.clear()
    world.drain("a")
    world.settle()
    first, *others = world.fences("a")
    assert (first.node, first.gently) == ("a", True)
    assert {(fence.node, fence.gently) for fence in others} == {("b", False), ("c", False)}


def test_one_log_is_handed_over_after_the_other() -> None:
    """Each is without a master for a moment; by the masters that are fenced at any time."""
    world = cluster("a", "b", "c")
    assert not world.wish("b", "a")
    assert not world.wish("c", "a")
    world.settle()
    world.done.clear()
    world.drain("a")
    for _ in range(STEPS_MAX):
        world.step()
        fenced = {action.log_id for action in world.done if isinstance(action, Fence)}
        moved = [log for log in world.state.logs.values() if log.master and log.master.node != "a"]
        assert len(fenced) - len(moved) <= 1
    assert len(moved) == 3


def test_a_copy_that_does_not_come_to_the_masters_end_does_not_take_over() -> None:
    """Nothing that the master took is lost: it goes on in a new epoch, and it is tried again after a while; by a mirror
    that has less, then as much."""
    world = cluster("a", "b")
    world.reports = {"a": (1, 100), "b": (1, 90)}
    world.drain("a")
    world.settle()
    assert (world.master("a"), world.log("a").epoch) == ("a", 2)
    world.settle()
    assert world.log("a").epoch == 2, "not at once"
    world.reports["b"] = (1, 100)
    world.now += HANDOVER_AGAIN_S
    world.settle()
    assert (world.master("a"), world.log("a").epoch) == ("b", 3)


def test_a_log_that_nobody_can_take_over_stays() -> None:
    """A draining master is better than none; by mirrors that are down, draining, or not in sync."""
    world = cluster("a", "b", "c")
    world.down = {"c"}
    world.settle()
    world.drain("b")
    world.drain("a")
    world.settle()
    assert (world.master("a"), world.log("a").epoch) == ("a", 1)
    world.drain("b", draining=False)
    world.settle()
    assert world.master("a") == "b"


def test_a_master_that_hangs_when_it_shall_hand_over_is_waited_for_like_any_other() -> None:
    """Then the others decide; by a master that answers no fence."""
    world = cluster("a", "b", "c", wanted=CoordinatorSettings(promote_wait_s=2.0))
    world.silent = {"a"}
    world.drain("a")
    world.settle()
    assert world.master("a") == "a"
    world.now += 2.0
    world.settle()
    assert world.master("a") in ("b", "c")


def test_a_handover_is_ended_by_whoever_coordinates_next() -> None:
    """The master may be fenced already, and writes no more; by a new coordinator in the middle."""
    world = cluster("a", "b", "c")
    world.silent = {"b", "c"}
    world.drain("a")
    world.settle()
    world.coordinator, world.silent = Coordinator(CoordinatorSettings()), set()
    world.settle()
    assert world.master("a") in ("b", "c")


def test_a_wish_is_fulfilled_once_and_ends() -> None:
    """A later failover is not undone by it; by wishing, and killing who was wished."""
    world = cluster("a", "b", "c")
    assert not world.wish("a", "b")
    world.settle()
    assert (world.master("a"), world.log("a").wished) == ("b", "")
    world.down = {"b"}
    world.settle()
    assert world.master("a") in ("a", "c")
    world.start("b", run=2)
    world.settle()
    assert world.master("a") in ("a", "c")


def test_a_wish_for_a_node_that_leaves_the_set_ends() -> None:
    """It does not come true hours later; by wishing for one that dies before it can be."""
    world = cluster("a", "b", "c")
    assert not world.wish("a", "c")
    world.down = {"c"}
    world.settle()
    assert world.log("a").wished == ""
    world.start("c", run=2)
    world.settle()
    assert world.master("a") == "a"


def test_nobody_can_be_wished_who_may_lack_something() -> None:
    """By a node that is not in sync, and one that there is not."""
    world = cluster("a", "b", "c")
    world.down = {"c"}
    world.settle()
    assert "cannot be the next master of log a; in sync: a, b" in world.wish("a", "c")
    assert "cannot be the next master" in world.wish("a", "x")


def test_it_is_told_which_logs_are_not_at_home_and_why_they_stay() -> None:
    """What rebalancing does and does not do; by failovers, a drain and a death."""
    world = cluster("a", "b", "c")
    assert away_from_home(world.state, world.life) == []
    ids = {log.name: log_id for log_id, log in world.state.logs.items()}
    world.drain("a")
    world.settle()
    assert away_from_home(world.state, world.life) == [Away(ids["a"], "a", "a is draining")]
    world.drain("a", draining=False)
    assert away_from_home(world.state, world.life) == [Away(ids["a"], "a")]
    world.down = {"a"}
    assert away_from_home(world.state, world.life) == [Away(ids["a"], "a", "a is not up")]


class Storm:
    """Faults at random, on nodes that did no harm."""

    def __init__(self, world: World, names: list[str], random: Random) -> None:
        self._world = world
        self._names = names
        self._random = random
        self._runs = dict.fromkeys(names, 1)
        self._kinds = [self._kill, self._start, self._silence, self._wait, self._replace, self._report]
        self._kinds += [self._drain, self._wish]

    def rage(self) -> None:
        for _ in range(40):
            self._random.choice(self._kinds)()
            for _ in range(self._random.randrange(3)):
                self._world.step()

    def end(self) -> None:
        """Everybody is there and answers."""
        self._world.silent = set()
        for node in sorted(self._world.down):
            self._restart(node)
        for node, facts in self._world.state.nodes.items():
            if facts.draining:
                self._world.drain(node, draining=False)
        self._world.now += 10

    def _kill(self) -> None:
        self._world.down.add(self._random.choice(self._names))

    def _start(self) -> None:
        self._restart(self._random.choice(self._names))

    def _restart(self, node: str) -> None:
        self._runs[node] += 1
        self._world.start(node, self._runs[node])

    def _silence(self) -> None:
        self._world.silent = set(self._random.sample(self._names, self._random.randint(0, len(self._names))))

    def _wait(self) -> None:
        self._world.now += self._random.choice([0.5, 2.0, 700.0])

    def _drain(self) -> None:
        self._world.drain(self._random.choice(self._names), draining=self._random.random() < 0.5)

    def _wish(self) -> None:
        if self._world.state.logs:
            log = self._random.choice([log.name for log in self._world.state.logs.values()])
            self._world.wish(log, self._random.choice(self._names))

    def _replace(self) -> None:
        self._world.coordinator = Coordinator(CoordinatorSettings())

    def _report(self) -> None:
        self._world.reports[self._random.choice(self._names)] = (
            self._random.randint(0, 3),
            self._random.randrange(1000),
        )


@pytest.mark.parametrize("seed", range(100))
def test_after_any_storm_everything_is_as_it_should_be(seed: int) -> None:
    """Every log has a master that lives and all its copies in sync; by deaths, restarts, silence and new coordinators
    at random, and peace behind them."""
    random = Random(seed)
    world = World()
    names = list("abcde")[: random.randint(1, 5)]
    for node in names:
        world.join(node)
    storm = Storm(world, names, random)
    storm.rage()
    storm.end()
    world.settle()
    for log in world.state.logs.values():
        assert log.master is not None
        assert set(log.in_sync) == set(log.replicas)
        assert len(log.replicas) >= min(3, len(names))
    assert set(world.promoted.values()) == {1}, "an epoch has one master"
