"""The loop in virtual time: order, processes that are killed and paused, helpers, clocks and chance."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from sim.helpers import JobState
from sim.loop import VirtualLoop
from sim.machines import Machine
from sim.processes import current_process
from sim.world import RunFailed, World


def test_time_jumps_to_what_is_next() -> None:
    """An hour of sleep costs nothing, and nobody wakes early; by sleeping side by side."""
    woken: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((asyncio.get_running_loop().time(), name))

    async def story() -> None:
        await asyncio.gather(sleeper("long", 3600), sleeper("short", 1), sleeper("middle", 60))

    began = time.monotonic()
    with World(0) as world:
        start = world.now
        world.run(story())
    assert woken == [(start + 1, "short"), (start + 60, "middle"), (start + 3600, "long")]
    assert time.monotonic() - began < 5


def test_timers_of_one_moment_run_in_an_order_that_the_seed_draws() -> None:
    """Any may be first; by setting two for the same time, with many seeds."""

    async def order(loop: asyncio.AbstractEventLoop) -> str:
        ran: list[str] = []
        for name in "abc":
            loop.call_at(200.0, ran.append, name)
        await asyncio.sleep(300)
        return "".join(ran)

    orders = set()
    for seed in range(50):
        loop = VirtualLoop(shuffle=Random(seed))  # type: ignore[abstract]
        orders.add(loop.run_until_complete(order(loop)))
        loop.close()
    assert len(orders) == 6


def test_a_loop_that_time_does_not_get_out_of_is_found() -> None:
    """Instead of hanging; by callbacks that follow each other at once."""

    async def story() -> None:
        while True:  # noqa: ASYNC110  (that is what is tested)
            await asyncio.sleep(0)

    with World(0) as world, pytest.raises(RunFailed, match="time stands still"):
        world.run(story())


def test_waiting_for_what_never_comes_is_found() -> None:
    """When nothing is left to happen; by an event that nobody sets."""

    async def story() -> None:
        await asyncio.Event().wait()

    with World(0) as world, pytest.raises(RunFailed, match="nothing is left to happen"):
        world.run(story())


@pytest.mark.parametrize("way", ["callback", "task", "program"])
def test_an_error_that_nobody_expected_ends_the_run_with_the_last_events(way: str) -> None:
    """In a callback, a forgotten task and a program; by raising one."""

    def fail() -> None:
        raise ValueError("the culprit")

    async def fail_soon() -> None:
        fail()

    async def program(machine: Machine) -> None:
        if way == "program":
            fail()
        elif way == "task":
            forgotten = asyncio.ensure_future(fail_soon())
            await asyncio.sleep(1)
            del forgotten
        else:
            asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(1)

    async def story() -> None:
        await asyncio.sleep(10)

    with World(0) as world:
        world.machine("a").start(program)
        with pytest.raises(RunFailed, match="the culprit") as told:
            world.run(story())
    assert "a        started" in str(told.value)


# --- processes ---


class Program:
    """Counts its turns, one each second; says when it was left."""

    def __init__(self) -> None:
        self.turns = 0
        self.left = False

    async def __call__(self, machine: Machine) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                self.turns += 1
        finally:
            self.left = True


def test_a_killed_process_never_runs_again() -> None:
    """Not even to clean up, and what it left behind disturbs nobody; by killing one of two."""
    one, other = Program(), Program()

    async def story(world: World) -> None:
        await asyncio.sleep(10.5)
        world.machines["a"].kill()
        assert not world.machines["a"].up
        await asyncio.sleep(10)
        assert (one.turns, one.left, other.turns) == (10, False, 20)

    with World(0) as world:
        world.machine("a").start(one)
        world.machine("b").start(other)
        world.run(story(world))


def test_a_paused_process_finds_what_came_meanwhile() -> None:
    """Its timers fire when it goes on, and its clock has not stood still; by pausing one."""
    program, ran_at = Program(), list[float]()

    async def late(machine: Machine) -> None:
        asyncio.get_running_loop().call_later(5, lambda: ran_at.append(time.monotonic()))
        await program(machine)

    async def story(world: World) -> None:
        machine = world.machine("a")
        machine.start(late)
        await asyncio.sleep(2.5)
        machine.pause()
        await asyncio.sleep(10)
        assert (program.turns, ran_at, machine.paused) == (2, [], True)
        machine.resume()
        await asyncio.sleep(0)
        await asyncio.sleep(1.5)
        assert (program.turns, machine.paused) == (4, False)
        assert ran_at == [world.now - 1.5]

    with World(0) as world:
        world.run(story(world))


def test_whatever_a_program_sets_off_is_its_own() -> None:
    """Tasks, timers, callbacks, helpers' answers; by asking in each whose it is."""
    seen: list[str] = []

    def note() -> None:
        process = current_process()
        seen.append(process.name if process is not None else "nobody")

    async def noting() -> None:
        note()

    async def program(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(note)
        loop.call_later(1, note)
        await asyncio.ensure_future(noting())
        await loop.run_in_executor(None, note)
        future = loop.create_future()
        future.add_done_callback(lambda _: note())
        loop.call_later(2, future.set_result, None)
        await asyncio.sleep(3)

    async def story() -> None:
        await asyncio.sleep(5)
        note()

    with World(0) as world:
        world.machine("a").start(program)
        world.run(story())
    assert seen == ["a"] * 5 + ["nobody"]


# --- helpers ---


def test_an_executor_does_one_job_after_the_other() -> None:
    """As many at a time as it has workers, and each takes its time; by three jobs on one worker."""
    done: list[str] = []
    times: list[float] = []

    async def program(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        helper = ThreadPoolExecutor(1)
        began = loop.time()

        async def job(name: str) -> None:
            await loop.run_in_executor(helper, done.append, name)
            times.append(loop.time() - began)

        await asyncio.gather(job("1"), job("2"), job("3"))

    async def story(world: World) -> None:
        machine = world.machine("a")
        machine.pace.job_s = (0.5, 0.5)
        machine.start(program)
        await asyncio.sleep(10)

    with World(0) as world:
        world.run(story(world))
    assert done == ["1", "2", "3"]
    assert times == pytest.approx([0.5, 1.0, 1.5])


def test_a_shutdown_waits_for_what_was_begun_and_drops_the_rest() -> None:
    """As that of a real one; by shutting down in the middle."""
    done: list[str] = []

    async def program(machine: Machine) -> None:
        loop = asyncio.get_running_loop()
        helper = ThreadPoolExecutor(1)
        first, second = (loop.run_in_executor(helper, done.append, name) for name in "12")
        await asyncio.sleep(0.1)
        helper.shutdown(wait=True, cancel_futures=True)
        assert done == ["1"]
        await first
        assert second.cancelled()
        assert [job.state for job in machine.process.jobs] == []  # type: ignore[union-attr]

    with World(0) as world:
        machine = world.machine("a")
        machine.pace.job_s = (0.5, 0.5)
        machine.start(program)
        world.run(world.until(lambda: not machine.up, within_s=5, otherwise="not done"))
    assert JobState.DONE not in done


def test_an_error_on_a_helper_is_its_callers() -> None:
    """By a job that raises."""

    def fail() -> None:
        raise OSError("no disk")

    async def program(machine: Machine) -> None:
        with pytest.raises(OSError, match="no disk"):
            await asyncio.get_running_loop().run_in_executor(None, fail)

    with World(0) as world:
        machine = world.machine("a")
        machine.start(program)
        world.run(world.until(lambda: not machine.up, within_s=5, otherwise="not done"))


# --- clocks and chance ---


def test_clocks_are_the_runs_and_off_by_what_their_machine_says() -> None:
    """Only the wall clock; by reading them on two machines."""
    read: dict[str, tuple[float, int]] = {}

    async def program(machine: Machine) -> None:
        await asyncio.sleep(7)
        read[machine.name] = (time.monotonic(), time.time_ns())

    with World(0) as world:
        right, wrong = world.machine("right"), world.machine("wrong")
        wrong.set_clock(-3_600_000_000_000)
        right.start(program)
        wrong.start(program)
        world.run(world.until(lambda: len(read) == 2, within_s=10, otherwise="not read"))
    assert read["right"][0] == read["wrong"][0]
    assert read["right"][1] - read["wrong"][1] == 3_600_000_000_000


def test_chance_is_the_seeds_and_everything_is_put_back_after_the_run() -> None:
    """The same seed draws the same, whatever is drawn from; by drawing from all of it."""

    def drawn(seed: int) -> list[object]:
        with World(seed):
            return [
                uuid.uuid4(),
                random.random(),
                secrets.randbits(63),
                Random().random(),
                random.SystemRandom().random(),
            ]

    state = random.getstate()
    assert drawn(1) == drawn(1)
    assert all(one != other for one, other in zip(drawn(1), drawn(2), strict=True))
    assert random.getstate() == state
    assert uuid.uuid4() != uuid.uuid4()
    assert abs(time.time() - time.time_ns() / 1e9) < 1


def test_what_blocks_is_an_error() -> None:
    """Nobody would ever wake it; by sleeping and by starting a thread."""

    async def sleeping() -> None:
        time.sleep(1)  # noqa: ASYNC251  (that is what is tested)

    async def threading() -> None:
        ThreadPoolExecutor(1).submit(print)

    for story in (sleeping, threading):
        with World(0) as world, pytest.raises(RunFailed, match="in virtual time"):
            world.run(story())
