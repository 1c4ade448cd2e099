"""A log whose rule accepts a loss, as people meet it: what they are told meanwhile, and what they find behind it. Whole
clusters of real nodes, with real clients, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from mirrorlog import versions
from mirrorlog.client import Client
from mirrorlog.cluster.state.commands import LogAltered, MovingPaused
from mirrorlog.cluster.state.placements import ALWAYS, Placement
from mirrorlog.cluster.state.state import LogFacts
from mirrorlog.errors import LogUnavailable, MirrorlogError, PositionLost
from mirrorlog.wire.messages.operators import Events, GetEvents
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, QueueInfo
from mirrorlog.wire.messages.status import GetStatus, Status
from sim.world import World
from tests.cluster.test_group_stories import AGAIN_S, Group, Stream, declare, publishing, reading, tell

AFTER_S = 8.0
"""So long those who have everything are waited for."""


def group_of(world: World) -> Group:
    """Three nodes, and a log that a masters and b copies."""
    return Group(
        world, copies=2, min_in_sync=1, settings={"promote_always_after_ms": round(AFTER_S * 1000), "copies": 2}
    )


def main(group: Group) -> tuple[str, LogFacts]:
    """The log as whoever knows most knows it."""
    known = [state for node in group.nodes.values() if (state := node.decided) is not None]
    state = max(known, key=lambda each: each.version)
    return next((log_id, log) for log_id, log in state.logs.items() if log.name == "main")


async def accept_losses(group: Group) -> None:
    """Of the log that its queue is in, which asks for nothing of the kind, and stays since nothing moves."""
    await group.do(declare)
    rule = Placement(copies=2, min_in_sync=1, promote_on_shutdown=ALWAYS, promote_on_failure=ALWAYS)
    node = group.nodes["c"]
    while (state := node.decided) is None or state.cluster_version < versions.PLACEMENTS:  # noqa: ASYNC110
        await asyncio.sleep(AGAIN_S)
    log_id, log = main(group)
    node.propose(MovingPaused(paused=True))
    node.propose(LogAltered(log_id=log_id, seen=log.seen, placement=rule))
    await group.world.until(
        lambda: (state := node.decided) is not None and state.rule(log_id) == rule,
        within_s=10,
        otherwise="the rule is not set",
    )


async def only_in_sync(group: Group, *nodes: str) -> None:
    await group.world.until(
        lambda: set(main(group)[1].in_sync) == set(nodes), within_s=20, otherwise=f"not only {nodes} are in sync"
    )


def asking(group: Group, node: str) -> Callable[[Client], Awaitable[tuple[QueueInfo, Status]]]:
    """What a node tells of the queue, and of itself."""

    async def ask(client: Client) -> tuple[QueueInfo, Status]:
        while True:
            with suppress(MirrorlogError):
                connection = await client.connection_to(group.nodes[node].client_address)
                told = await connection.request(GetMetadata(queues=["q"]), Metadata, timeout_ms=1_000)
                status = await connection.request(GetStatus(), Status, timeout_ms=1_000)
                if told.queues:
                    return told.queues[0], status
            await asyncio.sleep(AGAIN_S)

    return ask


def refused() -> Callable[[Client], Awaitable[MirrorlogError]]:
    async def publish(client: Client) -> MirrorlogError:
        try:
            async with client.producer("q") as producer:
                await producer.send(b"no")
        except MirrorlogError as error:
            return error
        raise AssertionError("it was taken")

    return publish


async def passing_the_gap(client: Client) -> tuple[list[bytes], int]:
    """All records, and how often a loss was told."""
    found, gaps = list[bytes](), 0
    async with client.consumer("q", start="earliest") as consumer:
        while True:
            try:
                records = await consumer.read(timeout_ms=500)
            except PositionLost as lost:
                gaps += 1
                await consumer.seek(lost.details["go_on_at"])
                continue
            if not records:
                return found, gaps
            found += [bytes(record.value or b"") for record in records]


async def kinds_and_texts(client: Client) -> list[tuple[str, str]]:
    connection = await client.any_connection()
    told = await connection.request(GetEvents(), Events, timeout_ms=1_000)
    return [(event.kind, event.text) for event in told.events]


@pytest.mark.parametrize("always", [True, False], ids=["always", "when-synced"])
def test_who_asks_for_a_log_without_a_master_is_told_what_is_missing_and_what_goes_on(*, always: bool) -> None:
    """Goal: one sentence says whom the log waits for, how many records the copy that is up lacks, and what would go on
    without. Method: the mirror is down while seven records are confirmed, then the master dies and the mirror is back;
    its queue, its log, the cluster's view and a refused publish are asked. With the rule's word the mirror is master
    soon, what was lost is declared, and a reader is told once; without it the log waits, and has everything when the
    master is back."""

    async def story(world: World) -> None:
        group = group_of(world)
        await group.formed()
        if always:
            await accept_losses(group)
        await group.do(publishing([b"%d" % number for number in range(5)]))
        await group.caught_up()
        group.nodes["b"].machine.kill()
        await only_in_sync(group, "a")
        await group.do(publishing([b"lost %d" % number for number in range(7)]))
        await asyncio.sleep(2.5)
        group.nodes["a"].machine.kill()
        group.nodes["b"].start()
        end = world.now + AFTER_S
        while True:
            info, status = await group.do(asking(group, "b"))
            if "b lacks 7 records" in info.reason:
                break
            assert world.now < end, info.reason
            await asyncio.sleep(AGAIN_S)
        assert "no in-sync mirror is up: b lacks 7 records" in info.reason
        assert "it waits for node a, which alone had everything, and went down" in info.reason
        key = "ha-promote-on-failure = " + ("always: the best" if always else "when-synced: with always")
        assert key in info.reason
        assert "mqtool promote main --accept-loss" in info.reason
        assert status.logs[0].reason == info.reason
        assert status.cluster is not None
        assert "b lacks 7 records" in status.cluster.logs[0].reason
        error = await group.do(refused(), request_timeout_ms=500)
        assert isinstance(error, LogUnavailable)
        assert "b lacks 7 records" in str(error)
        if always:
            assert await group.master_but("a") == "b"
            await group.do(publishing([b"new"]))
        group.nodes["a"].start()
        await group.whole()
        values, gaps = await group.do(passing_the_gap)
        told = await group.do(kinds_and_texts)
        before = [b"%d" % number for number in range(5)]
        if always:
            assert (values, gaps) == ([*before, b"new"], 1)
            assert any(kind == "promoted" and "ha-promote-on-failure asked for it" in text for kind, text in told)
            loss = main(group)[1].losses[0]
            assert loss.end is not None
            assert loss.end > loss.start
        else:
            assert (values, gaps) == ([*before, *(b"lost %d" % number for number in range(7))], 0)
        assert ("loss_declared" in [kind for kind, _ in told]) == always

    tell(story, f"told {always}")


def test_a_stop_waits_for_the_mirror_that_is_about_to_come_in() -> None:
    """Goal: a rolling restart loses nothing though the rule would accept it. Method: the mirror is back after it was
    down for long, over a slow network, and is not in sync when the master is asked to stop."""

    async def story(world: World) -> None:
        group = group_of(world)
        await group.formed()
        await accept_losses(group)
        stream = Stream(group, padding=2_000)
        await stream.more()
        group.nodes["b"].machine.kill()
        await only_in_sync(group, "a")
        await stream.more(50)
        world.network.lengthen("a", "b", 0.1)
        group.nodes["b"].start()
        node = group.nodes["a"].node
        assert node is not None
        await world.until(lambda: group.nodes["a"].sees_up("b"), within_s=20, otherwise="a does not see b")
        assert set(main(group)[1].in_sync) == {"a"}
        group.nodes["a"].machine.ask_to_stop(node.stop)
        assert await group.master_but("a") == "b"
        await stream.more()
        await stream.stop()
        assert not main(group)[1].losses
        group.nodes["a"].start()
        world.network.lengthen("a", "b", 0.0)
        await group.whole()
        expected = [stream.value(number) for number in range(stream.confirmed)]
        assert await group.do(reading(len(expected))) == expected

    tell(story, "a stop waits")
