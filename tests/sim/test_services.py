"""Real cluster services in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorlog.cluster.state.commands import NodeDraining
from sim.world import World
from tests.sim.services import SimulatedService, all_settled, found

SETTLED_S = 10.0


async def settle(world: World, nodes: Sequence[SimulatedService]) -> None:
    await world.until(lambda: all_settled(nodes), within_s=SETTLED_S, otherwise="the cluster did not settle")


def coordinator(nodes: Sequence[SimulatedService]) -> SimulatedService:
    return next(node for node in nodes if nodes[0].known.leader == node.name)


async def lose_the_coordinator(world: World, *, power: bool) -> None:
    """Another one leads, knows all that was decided, and takes its node's log away from it; it comes back."""
    nodes = found(world, "a", "b", "c")
    await settle(world, nodes)
    victim = coordinator(nodes)
    left = [node for node in nodes if node is not victim]

    async def drain(machine: object) -> None:
        assert not (await left[0].known.decisions.propose(NodeDraining(node="a", draining=True), timeout_s=5)).refusal

    asking = world.loop.create_task(drain(None), context=left[0].machine.process.context.copy())  # type: ignore[union-attr]
    await asking
    if power:
        victim.machine.lose_power()
    else:
        victim.machine.kill()
    names = {node.name for node in left}
    await world.until(
        lambda: all(node.known.leader in names for node in left), within_s=SETTLED_S, otherwise="nobody leads"
    )
    await world.until(
        lambda: all(log.master and log.master.node in names for node in left for log in node.state.logs.values()),
        within_s=SETTLED_S,
        otherwise="a log has no master",
    )
    assert all(node.state.nodes["a"].draining for node in left)
    victim.begin(nodes)
    await world.until(
        lambda: (
            all(len(log.in_sync) == 3 for node in nodes if node.started for log in node.state.logs.values())
            and victim.started
            and victim.state == left[0].state
        ),
        within_s=SETTLED_S,
        otherwise="it is not taken in again",
    )
    assert victim.state.nodes["a"].draining


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_coordinator_that_is_lost_is_replaced(seed: int, power: bool) -> None:
    """Nothing decided is lost with it; by killing it, and by cutting its power."""
    with World(f"coordinator {seed} {power}") as world:
        world.run(lose_the_coordinator(world, power=power))


def test_a_coordinator_that_is_paused_is_replaced_and_follows_when_it_goes_on() -> None:
    """Silence is noticed too; by SIGSTOP and SIGCONT."""

    async def story(world: World) -> None:
        nodes = found(world, "a", "b", "c")
        await settle(world, nodes)
        victim = coordinator(nodes)
        left = [node for node in nodes if node is not victim]
        victim.machine.pause()
        names = {node.name for node in left}
        await world.until(
            lambda: all(node.known.leader in names for node in left), within_s=SETTLED_S, otherwise="nobody leads"
        )
        victim.machine.resume()
        await world.until(
            lambda: victim.known.leader in names and victim.state == left[0].state,
            within_s=SETTLED_S,
            otherwise="it does not follow",
        )

    with World("pause") as world:
        world.run(story(world))
