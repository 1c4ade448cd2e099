"""What ends a program decides what the next one finds on its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sim.disk import SimulatedFiles
from sim.machines import ROOT, Killed, Machine
from sim.world import World

PATH = ROOT / "file"
SIZE = 4096


async def idle(machine: Machine) -> None:
    await asyncio.Event().wait()


def write(files: SimulatedFiles, content: bytes, *, sync: bool) -> None:
    with files.open(PATH, create=True) as file:
        file.allocate(len(content))
        file.pwrite(content, 0)
        if sync:
            file.fdatasync()
            files.fsync_directory(ROOT)


def found(seed: int, *, sync: bool, end: Callable[[Machine], None]) -> bytes | None:
    """What is in the file that the machine wrote before `end`."""

    async def writing(machine: Machine) -> None:
        write(machine.files, b"x" * SIZE, sync=sync)
        await idle(machine)

    async def story(machine: Machine) -> bytes | None:
        machine.start(writing)
        await asyncio.sleep(1)
        end(machine)
        return machine.files.content(PATH) if machine.files.exists(PATH) else None

    with World(seed) as world:
        return world.run(story(world.machine("a")))


@pytest.mark.parametrize("sync", [True, False])
def test_a_kill_keeps_what_was_written(sync: bool) -> None:
    """Synced or not, for the page cache is the kernel's; by killing a program that has just written."""
    for seed in range(10):
        assert found(seed, sync=sync, end=Machine.kill) == b"x" * SIZE


def test_a_loss_of_power_keeps_what_was_synced() -> None:
    """And of the rest any part; by cutting the power of one that has synced and one that has not."""
    for seed in range(10):
        assert found(seed, sync=True, end=Machine.lose_power) == b"x" * SIZE
    left = [found(seed, sync=False, end=Machine.lose_power) for seed in range(50)]
    assert None in left
    assert any(content is not None and content != b"x" * SIZE for content in left)


def test_a_kill_may_come_within_a_helpers_job() -> None:
    """Nothing of it is done, or all, or a part; by killing while one writes three files."""
    names = [ROOT / name for name in "abc"]

    def write_all(files: SimulatedFiles) -> None:
        for name in names:
            files.open(name, create=True).close()

    async def writing(machine: Machine) -> None:
        await asyncio.get_running_loop().run_in_executor(None, write_all, machine.files)

    async def story(machine: Machine) -> int:
        machine.pace.job_s = (1.0, 1.0)
        machine.start(writing)
        await asyncio.sleep(0.5)
        machine.kill()
        await asyncio.sleep(5)
        return sum(machine.files.exists(name) for name in names)

    done = set()
    for seed in range(60):
        with World(seed) as world:
            done.add(world.run(story(world.machine("a"))))
    assert done == {0, 1, 2, 3}


def test_what_a_dead_program_still_holds_is_no_way_to_the_disk() -> None:
    """The next one has it alone; by writing through the old one's file system."""

    async def story(machine: Machine) -> None:
        machine.start(idle)
        await asyncio.sleep(1)
        old = machine.files
        machine.kill()
        machine.start(idle)
        with pytest.raises(Killed):
            write(old, b"late", sync=True)
        assert not machine.files.exists(PATH)

    with World(0) as world:
        world.run(story(world.machine("a")))


def test_a_machine_goes_back_to_a_snapshot_or_to_a_blank_disk() -> None:
    """With all that was on it then; by writing, taking one, writing on and restoring it."""

    async def story(machine: Machine) -> None:
        machine.start(idle)
        write(machine.files, b"then", sync=True)
        image = machine.image()
        write(machine.files, b"later", sync=True)
        machine.kill()
        machine.restore(image)
        assert machine.files.content(PATH) == b"then"
        machine.wipe()
        assert not machine.files.exists(PATH)

    with World(0) as world:
        world.run(story(world.machine("a")))


def test_a_program_that_returns_lets_go_of_what_it_had() -> None:
    """Its port is free and its disk can be taken by the next one; by running it twice."""
    runs: list[str] = []

    async def program(machine: Machine) -> None:
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "a", 1)
        machine.files.lock(ROOT / "lock", b"")
        runs.append(repr(machine.process))

    async def story(world: World) -> None:
        machine = world.machine("a")
        for _ in range(2):
            machine.start(program)
            await world.until(lambda: not machine.up, within_s=1, otherwise="still runs")

    with World(0) as world:
        world.run(story(world))
    assert runs == ["a#1", "a#2"]
