"""Real nodes and real clients in virtual time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from sim.machines import Machine
from sim.nodes import SimulatedNode, cluster
from sim.stand_ins import node_disks
from sim.world import World

RECORDS = 300


class PublishAndRead:
    """A program: publishes numbered records, then reads all that there are."""

    def __init__(self, nodes: Sequence[SimulatedNode]) -> None:
        self.confirmed: list[bytes] = []
        self.read: list[bytes] = []
        self.done = False
        self._nodes = nodes

    async def __call__(self, machine: Machine) -> None:
        async with await self._connected() as client:
            await self._declare(client)
            async with client.producer("q", confirm="all") as producer:
                for number in range(RECORDS):
                    value = b"%d" % number
                    await producer.send(value)
                    self.confirmed.append(value)
            async with client.consumer("q", start="earliest") as consumer:
                async for record in consumer:
                    self.read.append(bytes(record.value))
                    if len(self.read) == RECORDS:
                        break
        self.done = True

    async def _connected(self) -> Client:
        while True:
            try:
                return await Client(*(node.client_address for node in self._nodes)).connect()
            except MirrorlogError:
                await asyncio.sleep(0.1)

    async def _declare(self, client: Client) -> None:
        while True:
            try:
                await client.admin.declare("q")
                return
            except MirrorlogError:
                await asyncio.sleep(0.1)


async def serve(world: World, names: str, *, kill: bool = False) -> None:
    nodes = cluster(world, list(names))
    program = PublishAndRead(nodes)
    for node in nodes:
        node.start()
    world.machine("client").start(program)
    if kill:
        await world.until(lambda: len(program.confirmed) > RECORDS // 3, within_s=20, otherwise="nothing is confirmed")
        nodes[0].machine.kill()
        await asyncio.sleep(2)
        nodes[0].start()
    await world.until(lambda: program.done, within_s=60, otherwise="the client is not done")
    assert program.read == program.confirmed


def run(seed: str, names: str, *, kill: bool = False) -> int:
    with World(seed) as world, node_disks(world):
        world.run(serve(world, names, kill=kill))
        return world.trace.digest


@pytest.mark.parametrize("names", ["a", "abc"])
def test_what_was_confirmed_is_read_in_order(names: str) -> None:
    """By one node and by three; through the public client."""
    for seed in range(3):
        run(f"serve {seed}", names)


@pytest.mark.long
def test_a_seed_gives_the_same_run_everywhere() -> None:
    """Again in this process, and in others whose strings have other hashes and whose objects lie elsewhere; by
    comparing what happened, to the last callback."""
    here = [run(seed, "abc", kill=True) for seed in ("1", "2", "1")]
    assert here[0] == here[2] != here[1]
    for hash_seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-m", "tests.sim.test_nodes", "1"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert int(there.stdout) == here[0]


def test_a_killed_master_costs_nothing_that_was_confirmed() -> None:
    """Another node goes on; by killing the master in the middle of publishing."""
    for seed in range(5):
        run(f"kill {seed}", "abc", kill=True)


if __name__ == "__main__":
    print(run(sys.argv[1], "abc", kill=True))
