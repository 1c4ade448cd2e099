"""Who waits until all nodes that are up have applied something."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.commands import NodeDraining
from tests.cluster.members import ServiceNode, founded
from tests.cluster.ports import WAIT_S, until


async def all_see_each_other(nodes: list[ServiceNode]) -> None:
    names = [node.name for node in nodes]
    await until(
        lambda: all(
            node.service is not None and all(node.service.life(name) is Life.UP for name in names) for node in nodes
        )
    )


def test_what_is_applied_everywhere_is(tmp_path: Path) -> None:
    """Goal: nobody that is up is behind the answer. Method: decide through each node in turn, and look at all states
    without waiting: a follower hears of what is decided a moment after the leader."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await all_see_each_other(list(nodes))
            for number in range(30):
                asked = nodes[number % 3].service
                assert asked is not None
                command = NodeDraining(node="a", draining=number % 2 == 0)
                outcome = await asked.decisions.decide(command, timeout_s=WAIT_S)
                assert await asked.decisions.applied_everywhere(outcome.index, timeout_s=WAIT_S)
                behind = [
                    node.name
                    for node in nodes
                    if node.service is not None and node.service.driver.machine.index < outcome.index
                ]
                assert not behind

    asyncio.run(run())


def test_a_node_that_is_down_is_not_waited_for_and_one_that_is_slow_for_a_moment(tmp_path: Path) -> None:
    """Goal: an answer in time, and the truth. Method: an index that is not there yet, so all are behind it; then with
    one node dead, of what is decided."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await all_see_each_other(list(nodes))
            a, b, c = nodes
            assert a.service is not None
            assert not await a.service.decisions.applied_everywhere(
                a.service.driver.machine.index + 1_000, timeout_s=0.05
            )
            await c.die()
            await until(lambda: a.service is not None and a.service.life("c") is Life.DOWN)
            outcome = await a.service.decisions.decide(NodeDraining(node="b", draining=True), timeout_s=WAIT_S)
            assert await a.service.decisions.applied_everywhere(outcome.index, timeout_s=WAIT_S)
            assert b.state.nodes["b"].draining

    asyncio.run(run())
