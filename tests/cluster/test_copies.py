"""The coordinator moves copies one safe step at a time: to a node that joins, off one that leaves, by altered rules."""

from __future__ import annotations

from random import Random

import pytest

from mirrorlog.cluster.coordination.coordinator import PLAN_AGAIN_S, Coordinator, CoordinatorSettings, Propose
from mirrorlog.cluster.coordination.copies import REMOVE_AFTER_S
from mirrorlog.cluster.state.commands import (
    Command,
    InSyncShrunk,
    LogAltered,
    LogMade,
    LogRemoved,
    MovingPaused,
    NodeForgotten,
    NodeLeaving,
    QueuesPlaced,
    ReplicaAdded,
    ReplicaRetired,
    ReplicasWished,
)
from mirrorlog.cluster.state.log_rules import homes_for, promised
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.versions import OWN
from tests.cluster.test_coordinator import Storm, World


class Moving(World):
    """Without homes, of this software's version. Whatever is decided, no log has fewer whole copies than it promises by
    it, if it had as many before."""

    def __init__(self, *nodes: str, wanted: CoordinatorSettings | None = None) -> None:
        super().__init__(wanted=wanted, version=OWN)
        self.state = self.state.__class__(self.state.cluster_id, "c", homes=False)
        for node in nodes:
            self.join(node)
        self.settle()

    def settle(self) -> None:
        """Also what is planned when it is quiet."""
        settle_planned(self)

    def apply(self, command: Command) -> str:
        before = self.state
        refusal = super().apply(command)
        if isinstance(command, ReplicaRetired | ReplicasWished) and not refusal:
            log = self.state.logs[command.log_id]
            had = len(before.logs[command.log_id].promotable)
            assert len(log.promotable) >= min(had, max(log.copies_wanted, promised(self.state, command.log_id)))
        return refusal

    def make(self, name: str, *replicas: str, copies: int = 2, used: bool = True, **fields: object) -> None:
        """`used`: a queue is in it."""
        number = len(self.state.logs) + self.state.placing.logs_removed
        values = {"log_id": f"id-{name}", "number": number, "name": name, "flush": "memory"} | fields
        assert not self.apply(LogMade(**values, replicas=replicas, copies=copies))  # type: ignore[arg-type]
        if used:
            assert not self.apply(QueuesPlaced(log_id=str(values["log_id"]), names=(f"of {name}",)))

    def held(self) -> dict[str, str]:
        return {log.name: "".join(log.replicas) for log in self.state.logs.values()}

    def wish_copies(self, name: str, *nodes: str) -> str:
        return self.apply(ReplicasWished(log_id=f"id-{name}", seen=self.log(name).seen, nodes=nodes))

    def alter(self, name: str, rule: Placement) -> None:
        assert not self.apply(LogAltered(log_id=f"id-{name}", seen=self.log(name).seen, placement=rule))

    def leave(self, node: str, *, leaving: bool = True) -> None:
        assert not self.apply(NodeLeaving(node=node, leaving=leaving))

    def commands(self, *kinds: type[Command]) -> list[Command]:
        """Those that were proposed, in order."""
        proposed = [action.command for action in self.done if isinstance(action, Propose)]
        return [command for command in proposed if isinstance(command, kinds)]


def settle_planned(world: World) -> None:
    """Until also a look later finds nothing to do."""
    version = -1
    World.settle(world)
    while version != world.state.version:
        version = world.state.version
        world.now += PLAN_AGAIN_S
        World.settle(world)


def three_with(*logs: str, **fields: object) -> Moving:
    """Nodes a, b and c, and logs by their nodes, named in order."""
    world = Moving("a", "b", "c")
    for number, replicas in enumerate(logs):
        world.make(f"l{number}", *replicas, copies=len(replicas), **fields)
    world.settle()
    return world


def test_a_wished_log_goes_copy_by_copy_and_its_master_with_it() -> None:
    """A copy comes, the mastership goes, a copy goes, then the next; by wishing a log of two to two others."""
    world = three_with("ab")
    world.apply(MovingPaused(paused=True))
    world.join("d")
    assert not world.wish_copies("l0", "d", "c")
    world.settle()
    assert world.held() == {"l0": "ab"}, "paused"
    world.done.clear()
    world.apply(MovingPaused(paused=False))
    world.settle()
    assert (world.held(), world.master("l0"), world.log("l0").in_sync.keys()) == ({"l0": "dc"}, "d", {"c", "d"})
    steps = world.commands(ReplicaAdded, ReplicaRetired)
    assert [(type(step).__name__, step.node) for step in steps if isinstance(step, ReplicaAdded | ReplicaRetired)] == [
        ("ReplicaAdded", "d"), ("ReplicaAdded", "c"), ("ReplicaRetired", "a"), ("ReplicaRetired", "b"),
    ]  # fmt: skip
    assert world.log("l0").wished == ""


def test_a_node_that_joins_takes_its_share_and_one_that_leaves_is_emptied() -> None:
    """Then it can be forgotten; by a fourth node beside six logs, and the first one leaving."""
    world = three_with("ab", "bc", "ca", "ab", "bc", "ca")
    world.join("d")
    world.settle()
    held = world.held()
    assert sum("d" in replicas for replicas in held.values()) == 3
    assert sorted(world.master(name) for name in held).count("d") in (1, 2)
    world.leave("a")
    world.settle()
    held = world.held()
    assert not any("a" in replicas for replicas in held.values())
    assert all(len(replicas) == 2 for replicas in held.values())
    assert all(world.master(name) == replicas[0] for name, replicas in held.items())
    world.down = {"a"}
    assert not world.apply(NodeForgotten(node="a"))
    world.settle()
    assert world.held() == held


def test_a_node_that_leaves_gets_nothing_and_homes_none() -> None:
    """Neither a log of its own nor a lost copy; by homes, a death, and time."""
    world = World(version=OWN, wanted=CoordinatorSettings(copies=2, replace_after_s=10))
    for node in "abcd":
        world.join(node)
    settle_planned(world)
    assert not world.apply(NodeLeaving(node="d", leaving=True))
    settle_planned(world)
    assert not any("d" in log.replicas for log in world.state.logs.values())
    world.down = {"c"}
    settle_planned(world)
    world.now += 10
    settle_planned(world)
    assert {node for log in world.state.logs.values() for node in log.replicas} == {"a", "b"}
    assert len(world.state.logs) == 4


def test_copies_beyond_the_rule_go_and_missing_ones_come() -> None:
    """By altering a log of three copies to one, and to all."""
    world = three_with("abc")
    world.alter("l0", Placement(copies=1))
    world.settle()
    assert world.held() == {"l0": "a"}
    world.alter("l0", Placement(copies=0))
    world.settle()
    assert set(world.held()["l0"]) == set("abc")
    world.join("d")
    world.settle()
    assert set(world.held()["l0"]) == set("abcd"), "all grows with the nodes"


def test_a_placement_keeps_to_its_nodes() -> None:
    """Also when one of them is gone for long, or comes later; by a log that shall be on a, d and e."""
    world = three_with("ab")
    world.alter("l0", Placement(nodes=("a", "d", "e")))
    assert not world.apply(QueuesPlaced(log_id="id-l0", names=("q",)))
    world.settle()
    assert world.held() == {"l0": "a"}
    world.join("d")
    world.settle()
    assert set(world.held()["l0"]) == {"a", "d"}
    world.down = {"d"}
    world.settle()
    world.now += 1000
    world.settle()
    assert set(world.held()["l0"]) <= {"a", "d"}
    world.down = set()
    world.join("e")
    world.settle()
    assert set(world.held()["l0"]) == {"a", "d", "e"}


def test_a_rules_own_time_says_when_a_lost_copy_is_replaced() -> None:
    """By two logs on a node that dies, one of which has five seconds."""
    world = three_with("ab", "ab")
    world.alter("l0", Placement(copies=2, replace_after_ms=5_000))
    world.down = {"b"}
    world.settle()
    world.now += 5
    world.settle()
    assert world.held() == {"l0": "ca", "l1": "ab"}, "and homes are even"


def test_a_log_of_a_placement_goes_when_nothing_is_in_it_for_a_while() -> None:
    """One that was made for a queue that is being declared stays meanwhile; by time, and by a queue."""
    world = three_with("ab")
    world.make("used", "a", "b", used=False, placement=Placement(copies=2))
    world.make("unused", "b", "a", used=False, placement=Placement(copies=2))
    made = world.now
    world.settle()
    world.now = made + REMOVE_AFTER_S - 5
    assert not world.apply(QueuesPlaced(log_id="id-used", names=("q",)))
    world.settle()
    assert set(world.held()) == {"l0", "used", "unused"}
    world.now = made + REMOVE_AFTER_S + 5
    world.settle()
    assert set(world.held()) == {"l0", "used"}, "a founded one stays"
    assert len(world.commands(LogRemoved)) == 1


def test_a_move_that_fails_begins_elsewhere() -> None:
    """Nothing is lost by it; by the death of a node that is filled, for long, and of a master meanwhile."""
    world = three_with("ab")
    world.join("d")
    world.apply(MovingPaused(paused=True))
    world.settle()
    world.leave("a")
    world.down = {"d"}
    assert not world.wish_copies("l0", "d", "b")
    world.apply(MovingPaused(paused=False))
    world.settle()
    assert world.state.placing.place("id-l0").target == ("d", "b")
    world.now += 1000
    world.settle()
    world.now += 1000
    world.settle()
    assert set(world.held()["l0"]) == {"b", "c"}


def test_a_new_coordinator_goes_on_with_what_is_wished() -> None:
    """It stands in the state; by another one after each step."""
    world = three_with("ab", "bc", "ca")
    world.leave("a")
    for _ in range(60):
        world.coordinator = Coordinator(CoordinatorSettings())
        for _ in range(3):
            world.step()
            world.now += 1.1
    assert not any("a" in replicas for replicas in world.held().values())


class MovingStorm(Storm):
    """And wishes, rules, pauses, and nodes that leave or come back."""

    def __init__(self, world: Moving, names: list[str], random: Random) -> None:
        super().__init__(world, names, random)
        self._moving, self._chance, self._all = world, random, names
        self._kinds += [self._wish_copies, self._wish_copies, self._leave, self._pause, self._alter]

    def _any_log(self) -> LogFacts | None:
        return self._chance.choice(list(self._moving.state.logs.values()) or [None])

    def _wish_copies(self) -> None:
        if (log := self._any_log()) is not None:
            self._moving.wish_copies(log.name, *self._chance.sample(self._all, self._chance.randint(0, len(self._all))))

    def _leave(self) -> None:
        self._moving.apply(NodeLeaving(node=self._chance.choice(self._all), leaving=self._chance.random() < 0.6))

    def _pause(self) -> None:
        self._moving.apply(MovingPaused(paused=self._chance.random() < 0.3))

    def _alter(self) -> None:
        if (log := self._any_log()) is not None:
            rule = Placement(
                copies=self._chance.randint(0, 3),
                nodes=tuple(self._chance.sample(self._all, self._chance.choice([0, 0, 1, 2]) % (len(self._all) + 1))),
                min_in_sync=self._chance.choice([None, None, 1]),
            )
            self._moving.apply(LogAltered(log_id=f"id-{log.name}", seen=log.seen, placement=rule))

    def end(self) -> None:
        super().end()
        self._moving.reports.clear()  # every copy in sync comes to the master's end
        self._moving.apply(MovingPaused(paused=False))


@pytest.mark.parametrize("seed", range(100))
def test_after_any_storm_copies_are_where_they_should_be(seed: int) -> None:
    """As many as promised, on nodes that stay, all in sync, mastered, nothing under way; by wishes, rules, nodes that
    leave, pauses, deaths and new coordinators at random, and peace behind them."""
    random = Random(seed)
    names = list("abcdef")[: random.randint(2, 6)]
    world = Moving(*names)
    for number in range(random.randint(1, 5)):
        replicas = random.sample(names, random.randint(1, min(3, len(names))))
        world.make(f"l{number}", *replicas, copies=random.randint(len(replicas), 3))
    storm = MovingStorm(world, names, random)
    storm.rage()
    storm.end()
    for _ in range(60):  # a handover that came to nothing is tried again after a second
        world.now += 1.1
        world.settle()
    for log_id, log in world.state.logs.items():
        assert log.master is not None
        assert log.in_sync.keys() == set(log.replicas) <= set(homes_for(world.state, log_id)), log
        # Where none of the nodes that a rule names may hold it, what there is stays.
        named = set(world.state.rule(log_id).nodes)
        homeless = named and not any(world.state.nodes[node].stays for node in named & world.state.nodes.keys())
        assert len(log.replicas) == promised(world.state, log_id) or (homeless and log.replicas), log
        assert not world.state.placing.place(log_id).target
    assert set(world.promoted.values()) <= {1}, "an epoch has one master"
    assert not any(
        isinstance(action, Propose) and isinstance(action.command, InSyncShrunk) for action in world.done[-1:]
    )
