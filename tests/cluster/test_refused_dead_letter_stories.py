"""What a full queue refuses and sends to its dead letters, through what befalls a cluster: whole clusters of real
nodes, in virtual time. Each record that was published is in one place, once, and its producer was told which."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, SentToDeadLetters
from sim.world import World
from tests.cluster.test_dead_letter_stories import WAY, held, insist, mastered, reading
from tests.cluster.test_group_stories import SEEDS, Group, handing_over, tell

RECORDS: Final = 400
MOST: Final = 5
"""Records that may be ready."""


async def declare(client: Client) -> None:
    """Two logs, one for each queue."""
    await insist(client, "dead", {"flush": "disk", "copies": 3})
    await insist(client, "q", {**WAY, "x-max-length": MOST, "x-overflow": "reject-publish-dlx"})


class Publishing:
    """Of numbered records, each a batch: which were confirmed, and which it was told of that they were sent on."""

    def __init__(self) -> None:
        self.confirmed: list[bytes] = []
        self.refused: list[bytes] = []
        self.done = False

    async def __call__(self, client: Client) -> None:
        async with client.producer("q", batch_bytes=1) as producer:
            for begin in range(0, RECORDS, 20):
                values = [b"%d" % number for number in range(begin, begin + 20)]
                ended = await asyncio.gather(*map(producer.send, values), return_exceptions=True)
                for value, outcome in zip(values, ended, strict=True):
                    if isinstance(outcome, BaseException) and not isinstance(outcome, SentToDeadLetters):
                        raise outcome
                    (self.refused if isinstance(outcome, SentToDeadLetters) else self.confirmed).append(value)
        self.done = True


def taking(publishing: Publishing) -> object:
    """One who acks what he is given, one after the other, until he has met all that were confirmed."""

    async def take(client: Client) -> set[bytes]:
        met: set[bytes] = set()
        async with client.subscribe("q", prefetch=1) as subscription:
            while not publishing.done or not met.issuperset(publishing.confirmed):
                with suppress(MirrorlogError):
                    for record in await subscription.take_within(1, timeout_ms=200):
                        met.add(record.value or b"")
                        await record.ack()
        return met

    return take


async def check(group: Group, publishing: Publishing, met: set[bytes]) -> None:
    refused = publishing.refused
    assert len(refused) > 50, "hardly anything was refused"
    assert len(publishing.confirmed) > 20, "hardly anything was taken"
    assert sorted(await group.do(reading("dead", len(refused)))) == sorted(refused)
    assert met == set(publishing.confirmed), "given what was refused, or not given what was taken"


async def sent_on(group: Group, count: int) -> None:
    await group.world.until(lambda: held(group, "dead") >= count, within_s=60, otherwise=f"never {count} letters")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whose", ["q", "dead"])
def test_a_master_killed_in_the_middle_loses_nothing_and_sends_nothing_on_twice(whose: str, seed: int) -> None:
    """Goal: a publish is in the queue or among its dead letters, never in both, twice, or in none, and its producer
    knows. Method: somebody takes slower than another one publishes; the master of either queue is killed after some
    letters, and started again."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(declare)
        await group.whole()
        publishing = Publishing()
        published, taken = group.send(publishing), group.send(taking(publishing))  # type: ignore[arg-type]
        await sent_on(group, 20 + 15 * seed)
        there = mastered(group, whose)
        assert there is not None
        group.nodes[there[0]].machine.kill()
        await sent_on(group, 60 + 15 * seed)
        group.nodes[there[0]].start()
        await group.back(published)
        await check(group, publishing, await group.back(taken))  # type: ignore[arg-type]

    tell(story, f"refused {whose} {seed}")


def test_a_handover_in_the_middle_costs_nothing() -> None:
    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(declare)
        publishing = Publishing()
        published, taken = group.send(publishing), group.send(taking(publishing))  # type: ignore[arg-type]
        await sent_on(group, 30)
        there = mastered(group, "q")
        assert there is not None
        await group.do(handing_over(there[0]))
        await group.back(published)
        await check(group, publishing, await group.back(taken))  # type: ignore[arg-type]

    tell(story, "refused handover")
