"""What nodes hold of logs that are none of theirs any more, on real nodes in virtual time: told, used again, freed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, NoSuchLog, Refused
from mirrorlog.wire.messages.status import FormerStatus, Status
from sim.machines import Machine
from sim.nodes import SimulatedNode, cluster
from sim.stand_ins import node_disks
from sim.world import World

_RECORDS = 200
_LOOK_S = 0.2
_WITHIN_S = 120.0

Steps = Callable[[Client, Sequence[SimulatedNode]], Awaitable[None]]


def played(steps: Steps, *, keep_ms: int = 0) -> None:
    """A log on two of three nodes, `a` and `b`, with records in it; then `steps`, on a client."""
    done = []

    async def program(machine: Machine) -> None:
        async with await _connected(nodes) as client:
            await until(lambda: declared(client))
            async with client.producer("q", confirm="all") as producer:
                for number in range(_RECORDS):
                    await producer.send(b"%d" % number * 100)
            await steps(client, nodes)
        done.append(True)

    async def story(world: World) -> None:
        for node in nodes:
            node.start()
        world.machine("client").start(program)
        await world.until(lambda: done, within_s=10 * _WITHIN_S, otherwise="the steps are not done")

    with World("former copies") as world, node_disks(world):
        nodes = cluster(world, list("abc"), copies=2, settings={"cluster": {"former_keep_ms": keep_ms}})
        world.run(story(world))


async def _connected(nodes: Sequence[SimulatedNode]) -> Client:
    while True:
        try:
            return await Client(*(node.client_address for node in nodes)).connect()
        except MirrorlogError:
            await asyncio.sleep(_LOOK_S)


async def declared(client: Client) -> bool:
    await client.admin.declare("q")
    return True


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while True:
            try:
                if await condition():
                    return
            except MirrorlogError:
                pass  # nobody answers yet
            await asyncio.sleep(_LOOK_S)


async def status_of(client: Client, node: str) -> Status:
    return await client.admin.status(node)


async def former_on(client: Client, node: str) -> list[FormerStatus]:
    return (await status_of(client, node)).former


async def moved(client: Client, *holders: str) -> None:
    """The log is on these nodes, in sync, and on no others."""

    async def there() -> bool:
        view = (await client.admin.status("a")).cluster
        assert view is not None
        log = next(each for each in view.logs if each.name == "main")
        return set(log.replicas) == set(log.in_sync) == set(holders) and not log.target

    await until(there)


async def emptied(client: Client, node: str, *holders: str) -> None:
    """All that a node holds goes elsewhere, to these."""
    await client.admin.drain(node, empty=True)
    await moved(client, *holders)


def test_a_copy_that_is_not_wanted_any_more_is_told_and_goes_by_command() -> None:
    """Goal: bytes that nobody needs are seen, and freed by who says so, never those of a copy that the cluster names.
    Empty node b, look, try to free another log's and one that is named, then free what is there."""

    async def steps(client: Client, nodes: Sequence[SimulatedNode]) -> None:
        await emptied(client, "b", "a", "c")
        await until(lambda: former_on(client, "b"))
        (former,) = await former_on(client, "b")
        assert (former.name, former.removed, former.goes_us) == ("main", False, 0)
        assert former.size_bytes >= 100 * _RECORDS
        for node in ("a", "c"):
            assert not await former_on(client, node)
        with pytest.raises(NoSuchLog):
            await client.admin.free_former("another")
        answers = {each.node: each for each in await client.admin.free_former("main")}
        assert answers.keys() == {"a", "b", "c"}
        assert [each.log_id for each in answers["b"].freed] == [former.log_id]
        assert not any(each.kept for each in answers.values())
        assert not await former_on(client, "b")
        with pytest.raises(Refused, match="the cluster names node"):
            await client.admin.free_former("main")
        logs = nodes[1].machine.files
        assert not [path for path in logs.tree() if former.log_id in str(path)]

    played(steps)


def test_a_log_that_comes_back_goes_on_with_the_copy_that_is_there() -> None:
    """Goal: nothing is fetched anew that is here. Move the log from b to c, publish a little, and back: b takes only
    what it lacks, and its copy is a former one no more."""

    async def steps(client: Client, nodes: Sequence[SimulatedNode]) -> None:
        await emptied(client, "b", "a", "c")
        await until(lambda: former_on(client, "b"))
        (former,) = await former_on(client, "b")
        at = nodes[0].end(former.log_id)
        async with client.producer("q", confirm="all") as producer:
            await producer.send(b"since then")
        await client.admin.drain("b", draining=False)
        await emptied(client, "c", "a", "b")
        status = await status_of(client, "b")
        assert not status.former
        assert status.counts is not None
        (counts,) = status.counts.logs
        assert 0 < counts.received_bytes < 20_000 < at
        await until(lambda: former_on(client, "c"))

    played(steps)


def test_a_former_copy_goes_by_itself_after_its_time_and_since_when_survives_a_start() -> None:
    """Empty b, stop and start it: it still says since when. After `former_keep_ms` the copy is gone."""

    async def steps(client: Client, nodes: Sequence[SimulatedNode]) -> None:
        await emptied(client, "b", "a", "c")
        await until(lambda: former_on(client, "b"))
        (former,) = await former_on(client, "b")
        assert former.goes_us == former.since_us + 60_000_000
        nodes[1].machine.kill()
        nodes[1].start()
        await until(lambda: former_on(client, "b"))
        assert (await former_on(client, "b"))[0].since_us == former.since_us

        async def gone() -> bool:
            status = await status_of(client, "b")
            return not status.former and status.now_us >= former.goes_us

        await until(gone)

    played(steps, keep_ms=60_000)


def test_what_may_be_the_last_whole_copy_is_not_freed() -> None:
    """Empty b, then kill both nodes that hold the log: neither time nor command frees what b has."""

    async def steps(client: Client, nodes: Sequence[SimulatedNode]) -> None:
        await emptied(client, "b", "a", "c")
        await until(lambda: former_on(client, "b"))
        (former,) = await former_on(client, "b")
        nodes[2].machine.kill()
        log_id, holder = former.log_id, nodes[0]

        async def judged() -> bool:
            status = await status_of(client, "b")
            return status.now_us > former.goes_us + 30_000_000

        holder.machine.kill()
        await until(judged)
        assert [each.log_id for each in await former_on(client, "b")] == [log_id]

    played(steps, keep_ms=10_000)
