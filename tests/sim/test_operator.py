"""Whom the simulated operator can spare: a storm may not take away what nobody could bring back."""

from __future__ import annotations

import pytest

from mirrorlog.cluster.state.state import ClusterState, LogFacts
from sim.cluster_faults import SimulatedCluster
from sim.cluster_plan import Plan
from sim.stand_ins import node_disks
from sim.world import World


def plan() -> Plan:
    return Plan(
        seed="spared",
        kind="by hand",
        nodes=4,
        copies=2,
        min_in_sync=0,
        logs=("memory",),
        seconds=1.0,
        unit_bytes=512,
        ordered_names=True,
        forgets=False,
        events=(),
    )


def log(in_sync: str, *, marked: str = "") -> LogFacts:
    """Of the nodes a, b and c."""
    return LogFacts(
        number=0, name="main", flush="memory", replicas=("a", "b", "c"), in_sync=dict.fromkeys(in_sync, "run"),
        marked=frozenset(marked),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "flipped", "left", "leaving", "spared"),
    [
        (log("ab"), "", "", "", True),
        (log("abc"), "a", "", "", True),
        (log("ab"), "a", "", "", False),
        (log("ab", marked="a"), "", "", "", False),
        (log("b"), "", "", "", False),
        (log("abc"), "a", "c", "", False),
        (log("abc"), "a", "", "c", False),
    ],
)
def test_a_copy_is_spared_beside_another_good_one(
    facts: LogFacts, flipped: str, left: str, leaving: str, *, spared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sync, whole, of undamaged bytes, and to stay; asked of node b, by what the cluster has decided."""
    state = ClusterState(cluster_id="x", name="simulated", logs={"x": facts})
    with World("spared") as world:
        cluster = SimulatedCluster(world, plan())
        assert not cluster.whole_beside("b"), "nobody runs, so nobody can tell"
        monkeypatch.setattr(cluster, "decided", lambda: state)
        for node in flipped:
            cluster.note_damage(node, "flip")
        cluster.left |= set(left)
        cluster.to_leave += leaving
        assert cluster.whole_beside("b") is spared
        assert cluster.whole_beside("d"), "it holds nothing"


def test_nobody_is_set_back_beside_one_that_was_away_before_it_has_heard_everything() -> None:
    """Of one mind are those who all know all that is decided: by a cluster that begins, one whose master is cut off
    while another one is promoted, one that it is back in, and one of which a node is down."""

    async def story(cluster: SimulatedCluster) -> None:
        def main(name: str) -> LogFacts:
            """As that node knows it."""
            state = cluster.nodes[name].decided
            return next(iter(state.logs.values())) if state is not None else log("")

        async def until_of_one_mind(*, epoch: int) -> None:
            await world.until(
                lambda: cluster.of_one_mind and main("a").epoch >= epoch and len(main("a").in_sync) == 2,
                within_s=10,
                otherwise="they are not of one mind",
            )

        assert not cluster.of_one_mind
        for name in cluster.nodes:
            cluster.start(name)
        await until_of_one_mind(epoch=1)
        world.network.cut_off({"a"}, {"b", "c", "d"})
        await world.until(lambda: main("b").epoch > main("a").epoch, within_s=10, otherwise="nobody is promoted")
        assert not cluster.of_one_mind
        world.network.heal()
        await until_of_one_mind(epoch=2)
        cluster.nodes["d"].machine.kill()
        assert not cluster.of_one_mind

    with World("one mind") as world, node_disks(world):
        world.run(story(SimulatedCluster(world, plan())))
