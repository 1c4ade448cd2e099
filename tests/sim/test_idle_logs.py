"""What a log costs in which nothing happens, on real nodes in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from mirrorlog.broker.log.maintenance import LOOK_S, REST_S
from mirrorlog.commitlog.segments.chain import KEPT_MAPPED_S
from sim.disk import Moment
from sim.machines import Machine
from sim.nodes import SimulatedNode, cluster
from sim.stand_ins import node_disks
from sim.world import World
from tests.sim.test_nodes import PublishAndRead

_REST_S = 120.0
_WORK = 100
_WORK_BYTES = 16 * 1024


class PublishOne(PublishAndRead):
    """A program: one record more, in the same queue."""

    async def __call__(self, machine: Machine) -> None:
        async with await self._connected() as client, client.producer("q", confirm="all") as producer:
            await producer.send(b"one more")
        self.done = True


def test_a_log_at_rest_is_left_alone_and_wakes_with_the_next_record() -> None:
    """Goal: a log in which nothing happens costs no disk, and forgets nothing. Publish, rest for two minutes: no log
    syncs or writes a byte, and few look whether their files are there. Publish once more: all copies flush it."""
    synced: Counter[tuple[str, str]] = Counter()

    def note(node: str, moment: Moment) -> None:
        if moment.when == "after" and "logs" in moment.path.parts:
            synced[node, moment.operation] += 1

    def all_flushed(nodes: Sequence[SimulatedNode], log_id: str) -> bool:
        return len({node.flushed(log_id) for node in nodes} | {node.end(log_id) for node in nodes}) == 1

    async def story(world: World) -> None:
        nodes = cluster(world, list("abc"))
        first, more = PublishAndRead(nodes), PublishOne(nodes)
        for node in nodes:
            node.start()
        world.machine("client").start(first)
        await world.until(lambda: first.done, within_s=200, otherwise="nothing was read")
        decided = nodes[0].decided
        assert decided is not None
        (log_id,) = decided.logs
        await world.until(lambda: all_flushed(nodes, log_id), within_s=5, otherwise="not flushed")
        until = world.loop.time() + REST_S + LOOK_S
        await world.until(lambda: world.loop.time() >= until, within_s=100, otherwise="time stands still")
        for node in nodes:
            node.machine.files.observer = partial(note, node.name)
        until = world.loop.time() + _REST_S
        await world.until(lambda: world.loop.time() >= until, within_s=200, otherwise="time stands still")
        assert not synced
        end = nodes[0].end(log_id)
        world.machine("late client").start(more)
        await world.until(lambda: more.done, within_s=60, otherwise="no confirm")
        await world.until(
            lambda: all_flushed(nodes, log_id) and nodes[0].end(log_id) > end, within_s=2, otherwise="not flushed"
        )
        assert {node for node, operation in synced if operation == "fdatasync"} == {"a", "b", "c"}

    with World("idle logs") as world, node_disks(world):
        world.run(story(world))


class WorkThrough(PublishAndRead):
    """A program: publishes to a work queue, and settles all of it."""

    async def __call__(self, machine: Machine) -> None:
        async with await self._connected() as client:
            await self._declare(client)
            async with client.producer("q", confirm="all") as producer:
                for _ in range(_WORK):
                    await producer.send(bytes(_WORK_BYTES))
            async with client.subscribe("q") as subscription:
                for _ in range(_WORK):
                    (await anext(subscription)).ack_nowait()
        self.done = True


def test_what_is_settled_goes_though_nothing_comes_after_it() -> None:
    """Goal: a work queue that goes quiet gives its space back. Several segments are filled, near the log's end, and all
    is settled; then nothing is written. All copies free everything but the active segment."""

    async def story(world: World) -> None:
        nodes = cluster(world, list("abc"))
        program = WorkThrough(nodes)
        for node in nodes:
            node.start()
        world.machine("client").start(program)
        await world.until(lambda: program.done, within_s=200, otherwise="not all is settled")
        decided = nodes[0].decided
        assert decided is not None
        (log_id,) = decided.logs

        def given_back() -> bool:
            return all(node.end(log_id) - node.begin(log_id) < 300 * 1024 for node in nodes)

        assert not given_back()
        within = KEPT_MAPPED_S + REST_S + 2 * LOOK_S
        await world.until(given_back, within_s=within, otherwise="what is settled stays")

    with World("quiet work") as world, node_disks(world):
        world.run(story(world))
