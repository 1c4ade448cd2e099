"""The coordinator brings what is to what is wanted, one step at a time, wherever it begins."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from mirrorlog.cluster.commands import (
    Addresses,
    AnyCommand,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeStarted,
    Promoted,
    StartKind,
)
from mirrorlog.cluster.coordinator import Action, ChangeMembers, Coordinator, Fence, Propose, Seen, Wanted
from mirrorlog.cluster.liveness import Life
from mirrorlog.cluster.promotion import Report
from mirrorlog.cluster.raft.members import Members
from mirrorlog.cluster.state import ClusterState, LogFacts, applied

CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
STEPS_MAX = 200


class World:
    """Nodes that do what they are told at once: commands are applied, fences answered, new copies grow in sync."""

    def __init__(self, *, wanted: Wanted | None = None) -> None:
        self.state = ClusterState(CLUSTER_ID, "c")
        self.members = Members(())
        self.down: set[str] = set()
        self.silent: set[str] = set()
        self.now = 0.0
        self.reports: dict[str, tuple[int, int]] = {}
        self.done: list[Action] = []
        self.coordinator = Coordinator(wanted or Wanted())
        self.promoted: Counter[tuple[str, int]] = Counter()
        self._index = 0

    def apply(self, command: AnyCommand) -> str:
        """Why it was refused; empty if not."""
        self._index += 1
        self.state, outcome = applied(self.state, self._index, command)
        return outcome.refusal

    def join(self, node: str, *, witness: bool = False) -> None:
        assert not self.apply(NodeJoined(node=node, addresses=Addresses(), witness=witness))
        self.start(node)

    def start(self, node: str, run: int = 1) -> None:
        before = self.state.nodes[node].start_id
        self.down.discard(node)
        assert not self.apply(
            NodeStarted(node=node, start_id=f"{node} {run}", kind=StartKind.DIED, addresses=Addresses(), before=before)
        )

    def life(self, node: str) -> Life:
        return Life.DOWN if node in self.down else Life.UP

    def settle(self) -> None:
        """Until there is nothing to do, or only to wait."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError(f"no end: {self.done[-5:]}")

    def step(self) -> bool:
        seen = Seen(self.members, self.life, lambda member: True, self.now)
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
        report = Report(self.state.nodes[fence.node].start_id, epoch, end, confirmed=0)
        self.coordinator.fenced(fence.log_id, fence.epoch, fence.node, report)
        return True

    def _grow(self) -> bool:
        """Masters ask for their mirrors, as they do when these have everything."""
        for log_id, log in self.state.logs.items():
            for node in log.replicas:
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

    def proposed(self, kind: type[AnyCommand]) -> int:
        return sum(isinstance(action, Propose) and isinstance(action.command, kind) for action in self.done)


def cluster(*nodes: str, wanted: Wanted | None = None) -> World:
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


def test_a_silent_copy_is_waited_for_and_then_not() -> None:
    """One that answers is enough for level all; by a copy that is up and does not answer."""
    world = cluster("a", "b", "c", wanted=Wanted(promote_wait_s=2.0))
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
    world = cluster(*"abcd", wanted=Wanted(replace_after_s=600))
    world.down = {"d"}
    world.settle()
    before = {name: world.log(name).replicas for name in "abcd"}
    assert any("d" in replicas for replicas in before.values())
    world.now += 600
    world.settle()
    assert all("d" not in log.replicas and len(log.in_sync) == 3 for log in world.state.logs.values())
    assert len(world.members.voters) == 4


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
    world.coordinator, world.silent = Coordinator(Wanted()), set()
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


class Storm:
    """Faults at random, on nodes that did no harm."""

    def __init__(self, world: World, names: list[str], random: Random) -> None:
        self._world = world
        self._names = names
        self._random = random
        self._runs = dict.fromkeys(names, 1)
        self._kinds = [self._kill, self._start, self._silence, self._wait, self._replace, self._report]

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

    def _replace(self) -> None:
        self._world.coordinator = Coordinator(Wanted())

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
