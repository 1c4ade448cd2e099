"""How far a record walks through the code: calls and files that one send, one acknowledgement and one failover take.

A way that grows by a look at what a queue does not use shows in no other test, and in no profile of a single run. The
simulator repeats to the last callback, so the numbers are the same each time. They are caps that only go down: one that
is passed by more than a twentieth is to be lowered, as those of `test_imports`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import mirrorlog
from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from sim.machines import Machine
from sim.nodes import SimulatedNode, cluster
from sim.stand_ins import node_disks
from sim.world import World

CAPS: Final = {
    "send": (360, 40),
    "ack": (535, 55),
    "failover": (3_060, 113),
}
"""Calls and files at most, of the client and of all nodes together."""
_SLACK: Final = 0.05
_TIMES: Final = 20
_REST_S: Final = 0.73
_PACKAGE: Final = str(Path(mirrorlog.__file__).parent)


@dataclass
class Walk:
    """What ran between `begin` and `end`, by file of the package."""

    calls: int = 0
    files: set[str] = field(default_factory=set)
    running: bool = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and self.running and frame.f_code.co_filename.startswith(_PACKAGE):
            self.calls += 1
            self.files.add(frame.f_code.co_filename)


class Walks:
    """Programs of a client that publishes to a queue of three nodes, and takes from it."""

    def __init__(
        self, nodes: Sequence[SimulatedNode], walks: dict[str, Walk], begin: Callable[[Walk | None], None]
    ) -> None:
        self.kill = self.done = False
        self._nodes = nodes
        self._walks = walks
        self._begin = begin

    async def __call__(self, machine: Machine) -> None:
        async with await _repeated(lambda: Client(*(node.client_address for node in self._nodes)).connect()) as client:
            await _repeated(lambda: client.admin.declare("q"))
            async with client.producer("q", confirm="all") as producer:
                for _ in range(_TIMES):
                    await asyncio.sleep(_REST_S)
                    with self._walking("send"):
                        await producer.send(b"one", key=b"k")
                async with client.subscribe("q", prefetch=1) as subscription:
                    for _ in range(_TIMES):
                        delivery = await anext(subscription)
                        await asyncio.sleep(_REST_S)
                        with self._walking("ack"):
                            await delivery.ack()
                await asyncio.sleep(_REST_S)
                self.kill = True
                await asyncio.sleep(0.01)
                with self._walking("failover"):
                    await producer.send(b"one")
        self.done = True

    @contextmanager
    def _walking(self, name: str) -> Iterator[None]:
        """The shortest one counts: into others falls what nodes do by the clock."""
        walk = Walk(running=True)
        self._begin(walk)
        yield
        walk.running = False
        self._begin(None)
        known = self._walks.get(name)
        if known is None or walk.calls < known.calls:
            self._walks[name] = walk


async def _repeated(attempt: Callable[[], Any]) -> Any:
    while True:
        try:
            return await attempt()
        except MirrorlogError:
            await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    """Goal: what one send, one ack and a failover up to the next confirm run. Method: three simulated nodes, a client,
    and a profiler that is told of each call of the package."""
    found: dict[str, Walk] = {}

    async def story(world: World) -> None:
        nodes = cluster(world, list("abc"))
        program = Walks(nodes, found, sys.setprofile)
        for node in nodes:
            node.start()
        world.machine("client").start(program)
        await world.until(lambda: program.kill, within_s=200, otherwise="nobody came so far")
        nodes[0].machine.kill()
        await world.until(lambda: program.done, within_s=60, otherwise="no master was found")

    former = sys.getprofile()
    try:
        # In some worlds the client asks a moment too early who is master now, and waits for its next attempt.
        for seed in ("walk", "hike", "saunter"):
            with World(seed) as world, node_disks(world):
                world.run(story(world))
    finally:
        sys.setprofile(former)
    return found


@pytest.mark.parametrize("name", CAPS)
def test_a_way_gets_no_longer(walks: dict[str, Walk], name: str) -> None:
    calls, files = CAPS[name]
    walk = walks[name]
    assert walk.calls <= calls, sorted(walk.files)
    assert len(walk.files) <= files, sorted(walk.files)
    assert walk.calls >= calls * (1 - _SLACK), "lower this cap"
    assert len(walk.files) >= files * (1 - _SLACK), "lower this cap"
