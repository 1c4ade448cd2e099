"""Rows: records that die and come to other queues, and come back from there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection
from functools import partial
from typing import Any, Final

import pytest

from mirrorlog.errors import SentToDeadLetters
from tests.process.matrix.world import World, ack_all, receive

TTL_MS: Final = 1_000

# What each queue is declared with, by what its records die of.
_DIES_OF: Final[dict[str, dict[str, Any]]] = {
    "rejected": {},
    "delivery_limit": {"x_delivery_limit": 1},
    "expired": {"x_message_ttl": TTL_MS},
    "maxlen": {"x_max_length": 2},
}


async def dead_letters(world: World) -> AsyncGenerator[None]:
    """Whatever a record dies of, it comes once to where its queue sends what dies, with the reason, also when the
    restart meets it on its way; what was not to die does not."""
    topology = world.client.admin.topology
    await topology.declare_exchange("letters", "direct")
    for reason, arguments in _DIES_OF.items():
        await world.declare(f"letters-{reason}")
        await topology.bind("letters", f"letters-{reason}", reason)
        way = {"x_dead_letter_exchange": "letters", "x_dead_letter_routing_key": reason}
        await world.declare(f"dies-{reason}", **way, **arguments)
    yield
    await _let_die(world, b"before")
    yield
    await _let_die(world, b"behind")
    yield
    for reason in _DIES_OF:
        # Of a length the oldest go: all but the two that were published last.
        dead = {b"before 0", b"before 1", b"behind 0", b"behind 1"}
        if reason == "maxlen":
            dead = {b"before 0", b"before 1", b"before 2", b"behind 0"}
        await _are_dead(world, reason, dead)
        await world.until_group(f"dies-{reason}", unsettled=2 if reason == "maxlen" else 0, departing=0)


async def _let_die(world: World, word: bytes) -> None:
    """Three records in each queue; nobody waits for where they go."""
    for reason in _DIES_OF:
        count = 2 if reason == "expired" else 3
        await _publish(world, f"dies-{reason}", [b"%s %d" % (word, number) for number in range(count)])
    async with world.client.subscribe("dies-rejected") as subscription:
        first, second, third = await receive(subscription, 3)
        await third.ack()
        await asyncio.gather(first.reject(), second.nack(requeue=False))
    async with world.client.subscribe("dies-delivery_limit") as subscription:
        first, second, third = await receive(subscription, 3)
        await third.ack()
        await asyncio.gather(first.nack(), second.nack())
        for each in await receive(subscription, 2):
            assert each.attempts == 1
            await each.nack()


async def _publish(world: World, queue: str, values: Collection[bytes]) -> None:
    async with world.client.producer(queue, batch_bytes=64) as producer:
        for value in values:
            await producer.send(value)


async def _are_dead(world: World, reason: str, dead: Collection[bytes]) -> None:
    """These, each once, and what each says of its end."""
    queue = f"letters-{reason}"

    async def there() -> bool:
        return len(await world.values(queue)) >= len(dead)

    await world.until(there, f"{queue} has {len(dead)} records")
    async with world.client.consumer(queue, start="earliest", until="confirmed") as consumer:
        letters = [record async for record in consumer]
    assert sorted(letter.value or b"" for letter in letters) == sorted(dead), queue
    for letter in letters:
        headers = dict(letter.headers)
        (death,) = json.loads(headers["x-death"] or b"")
        assert (death["queue"], death["reason"], death["count"]) == (f"dies-{reason}", reason, 1), death
        assert headers["x-first-death-reason"] == reason.encode()


async def redrive(world: World) -> AsyncGenerator[None]:
    """What is sent back comes once to the queue in which it died, as it was, though the restart meets it on its way."""
    queue, dead = "redriven", "redriven-dead"
    await world.declare(dead)
    await world.declare(queue, x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    values = await world.publish(queue, 6)
    assert values == list(range(6))
    yield
    async with world.client.subscribe(queue) as subscription:
        for each in await receive(subscription, 6):
            await each.reject()
    await world.until(partial(_has, world, dead, 6), "all letters are there")
    assert await world.client.admin.redrive(dead, records_max=2) == 2
    yield
    assert await world.client.admin.redrive(dead) == 4
    yield
    async with world.client.subscribe(queue) as subscription:
        back = await receive(subscription, 6)
        assert sorted(each.value or b"" for each in back) == [b"record %d" % number for number in range(6)]
        assert not any(each.headers or each.attempts for each in back)
        await ack_all(back)
        await world.until_group(dead, floor=6, unsettled=0)
        await world.nothing_comes(queue, subscription, below=12)


async def _has(world: World, queue: str, count: int) -> bool:
    return len(await world.values(queue)) == count


async def refused_for_dead_letters(world: World) -> AsyncGenerator[None]:
    """What a full queue refuses comes once to where it sends what dies, also when the restart meets it on its way, and
    who published it knows; what the queue has taken it keeps."""
    await world.declare("refused")
    way = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "refused"}
    await world.declare("refuses", x_max_length=2, x_overflow="reject-publish-dlx", **way)
    await _publish(world, "refuses", [b"kept 0", b"kept 1"])
    yield
    await _refuse(world, b"before")
    yield
    await _refuse(world, b"behind")
    yield
    await world.until_group("refuses", ready=2, unsettled=2, departing=0)
    expected = sorted(b"%s %d" % (word, number) for word in (b"before", b"behind") for number in range(3))
    assert sorted(await world.values("refused")) == expected
    async with world.client.subscribe("refuses") as subscription:
        kept = await receive(subscription, 2)
        assert [record.value for record in kept] == [b"kept 0", b"kept 1"]
        await ack_all(kept)


async def _refuse(world: World, word: bytes) -> None:
    async with world.client.producer("refuses", batch_bytes=64) as producer:
        for number in range(3):
            with pytest.raises(SentToDeadLetters):
                await producer.send(b"%s %d" % (word, number))
