"""The columns of the matrix: how many copies, and what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import FAST
from tests.process.matrix.world import World

_MIB: Final = 1024 * 1024
_SETTINGS: Final = {
    **FAST,
    "ha.haHousekeepingInterval": 5_000,
    "cluster.node_timeout_ms": 2_000,
    "limits.subscriber_return_ms": 6_000,
    # What is not in the newest segment is read from the disk, and may be let go.
    "log.kept_mapped_bytes": 0,
    "limits.max_batch_bytes": 256 * 1024,
    "limits.max_record_bytes": 128 * 1024,
}


@dataclass(frozen=True, slots=True)
class Column:
    """`restart`: one of RESTARTS."""

    copies: int
    restart: str

    def __str__(self) -> str:
        return f"{self.copies} {'copy' if self.copies == 1 else 'copies'}, {self.restart}"

    def cluster(self) -> Cluster:
        """One that gets over the loss of a master, where there is another copy: of two it takes a third node, which
        votes and holds nothing."""
        nodes = 1 if self.copies == 1 else 3
        mirrors = [f"n{number}" for number in range(2, self.copies + 1)]
        return Cluster(
            nodes,
            min_in_sync=2 if self.copies == 3 else 1,
            logs=({"mirrors": mirrors},),
            settings=_SETTINGS,
            segment_bytes=_MIB,
        )

    async def happen(self, world: World) -> None:
        """What the second half of each feature is tried behind."""
        await RESTARTS[self.restart](world)
        # Requests of operators are refused while a new master has too few copies; they may be made again.
        await world.until(partial(_answers, world), "the log has a master with enough copies")


async def kill_the_master(world: World) -> None:
    """Where there is another copy it is promoted, and the dead node stays away until `Column.mend`."""
    await asyncio.to_thread(world.first.kill)
    if len(world.cluster.nodes) == 1:
        await asyncio.to_thread(world.first.start)


async def stop_the_master(world: World) -> None:
    """It hands over, ends, and comes back."""
    await asyncio.to_thread(stop, world.first)
    await asyncio.to_thread(world.first.start)


async def kill_all(world: World) -> None:
    """At once, and start them in any order."""
    nodes = list(world.cluster.nodes.values())
    world.random.shuffle(nodes)
    for node in nodes:
        node.kill()
    world.random.shuffle(nodes)
    for node in nodes:
        node.launch()
    for node in nodes:
        await asyncio.to_thread(node.wait_serving)


async def roll(world: World) -> None:
    """One after the other is stopped and started, each when all copies are in sync again."""
    for node in world.cluster.nodes.values():
        await in_sync(world)
        await asyncio.to_thread(stop, node)
        await asyncio.to_thread(node.start)


def stop(node: Node) -> None:
    code = node.stop()
    assert code == 0, f"{node.id} ended with exit code {code}"


RESTARTS: Final[dict[str, Callable[[World], Awaitable[None]]]] = {
    "master killed": kill_the_master,
    "master stopped": stop_the_master,
    "all killed": kill_all,
    "rolling restart": roll,
}

COLUMNS: Final = (
    Column(1, "master killed"),
    Column(1, "master stopped"),
    *(Column(copies, restart) for copies in (2, 3) for restart in RESTARTS),
)
"""Of one copy the other two are these two."""

SHORT: Final = (Column(3, "master killed"), Column(1, "master stopped"))


async def mend(world: World) -> None:
    """Start who is still away, and wait until all copies are whole again."""
    for node in world.cluster.nodes.values():
        if not node.running:
            await asyncio.to_thread(node.start)
    await in_sync(world)


async def in_sync(world: World) -> None:
    """Every copy of the log that all features are in."""
    await world.until(partial(_is_whole, world), "every copy is in sync", within_s=60.0)


async def _answers(world: World) -> bool:
    await world.declare("first")
    await world.client.admin.groups("first")
    return True


async def _is_whole(world: World) -> bool:
    info = await world.client.queue_info("first")
    with suppress(MirrorlogError):
        status = await world.client.admin.status(info.master)
        (log,) = (each for each in status.logs if each.log_id == info.log_id)
        return (log.role, log.state) == ("master", "serving") and all(
            mirror.connected and mirror.proven and mirror.in_sync for mirror in log.mirrors
        )
    return False
