"""Rows: what is said of records as they are published, and how many a queue takes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from mirrorlog.errors import OutcomeUnknown, QueueFull
from tests.process.matrix.world import LONG_MS, World, ack_all, again, offsets, reached, receive

TTL_MS = 1_000
# Neighbours expire together, up to a hundredth of their time later.
_OVER_S = TTL_MS / 1000 * 1.02
_LARGE = b"x" * 1_000
# A batch of one such record has some 110 bytes beside it.
_FIVE_BYTES = 5_700


async def message_ttl(world: World) -> AsyncGenerator[None]:
    """What has expired is given to nobody, whoever is master by then; the rest is."""
    queue = "message-ttl"
    await world.declare(queue)
    await world.publish(queue, 2, ttl_ms=TTL_MS)
    await world.publish(queue, 1)
    await world.publish(queue, 1, ttl_ms=LONG_MS)
    expired_at = time.monotonic() + _OVER_S
    yield
    await reached(expired_at)
    async with world.client.subscribe(queue, prefetch=1) as subscription:
        (one,) = await receive(subscription, 1)
        assert one.offset == 2
    await world.publish(queue, 1, ttl_ms=TTL_MS)
    yield
    await world.publish(queue, 2, ttl_ms=TTL_MS)
    await reached(time.monotonic() + _OVER_S)
    await world.publish(queue, 1)
    async with world.client.subscribe(queue) as subscription:
        left = await receive(subscription, 3)
        assert [(each.offset, each.attempts) for each in left] == [(2, 1), (3, 0), (7, 0)]
        await ack_all(left)
        yield
        await world.is_settled(queue, 8)
        await world.nothing_comes(queue, subscription, below=8)


async def no_time_to_live(world: World) -> AsyncGenerator[None]:
    """With a time to live of 0 a record is given to who has room when it comes, or to nobody: not to who comes later,
    be he the first."""
    queue, unseen = "ttl-0", "ttl-0-unseen"
    for name in (queue, unseen):
        await world.declare(name)
        await world.publish(name, 1, ttl_ms=0)
        await world.publish(name, 1)
    yield
    async with world.client.subscribe(queue, prefetch=2) as subscription:
        (one,) = await receive(subscription, 1)
        assert one.offset == 1
        await one.ack()
        yield
        await world.until_group(queue, subscribers=1)
        await world.publish(queue, 1, ttl_ms=0)
        (at_once,) = await receive(subscription, 1)
        assert at_once.offset == 2
        await at_once.ack()
    async with world.client.subscribe(unseen) as subscription:
        (one,) = await receive(subscription, 1)
        assert one.offset == 1
        await one.ack()
    yield
    await world.is_settled(queue, 3)
    await world.is_settled(unseen, 2)


async def queue_ttl(world: World) -> AsyncGenerator[None]:
    """The queue's own time to live, the shorter one counts; what expires goes though nobody is there."""
    queue = "queue-ttl"
    await world.declare(queue, x_message_ttl=TTL_MS)
    await world.publish(queue, 3)
    yield
    await world.until_group(queue, floor=3, unsettled=0)
    await world.publish(queue, 2, ttl_ms=LONG_MS)
    yield
    await world.until_group(queue, floor=5, unsettled=0)
    await world.publish(queue, 2)
    await world.until_group(queue, floor=7, unsettled=0)
    async with world.client.subscribe(queue) as subscription:
        await world.publish(queue, 1)
        (one,) = await receive(subscription, 1)
        assert one.offset == 7
        await one.ack()
        yield
        await world.is_settled(queue, 8)


async def delay(world: World) -> AsyncGenerator[None]:
    """A delayed record comes at its time, unflagged, whoever is master by then, and holds nobody up."""
    queue = "delay"
    await world.declare(queue)
    yield
    begun = time.monotonic()
    await world.publish(queue, 1, delay_ms=LONG_MS)
    await world.publish(queue, 2, delay_ms=2_000)
    await world.publish(queue, 1)
    async with world.client.subscribe(queue) as subscription:
        (at_once,) = await receive(subscription, 1)
        assert at_once.offset == 3
        await at_once.ack()
        yield
        late = await receive(subscription, 2)
        assert time.monotonic() - begun >= 2.0
        assert sorted(offsets(late)) == [1, 2]
        assert all(each.attempts == 0 for each in late)
        await ack_all(late)
        begun = time.monotonic()
        await world.publish(queue, 1, delay_ms=500)
        (last,) = await receive(subscription, 1)
        assert time.monotonic() - begun >= 0.5
        assert (last.offset, last.redelivered) == (4, False)
        await last.ack()
        yield
        found = await world.group(queue)
        assert (found.floor, found.unsettled, found.parked) == (0, 1, 1), found
    assert await world.client.admin.purge(queue) == 1


async def priority_of_records(world: World) -> AsyncGenerator[None]:
    """The highest first, the queue's order within a level, what is above the highest counts as that; what comes again
    goes to its place."""
    queue = "record-priority"
    await world.declare(queue, x_max_priority=5)
    for priority in (0, 3, 5, 9, 3):
        await world.publish(queue, 1, priority=priority)
    yield
    async with world.client.subscribe(queue, prefetch=1) as subscription:
        (highest,) = await receive(subscription, 1)
        assert (highest.offset, highest.priority) == (2, 5)
        yield
        (highest,) = await receive(subscription, 1)
        again([highest], [2])
        await world.publish(queue, 1, priority=4)
        got = [2]
        await highest.nack()
        while len(got) < 7:
            (one,) = await receive(subscription, 1)
            got.append(one.offset)
            await one.ack()
        assert got == [2, 2, 3, 5, 1, 4, 0]
        yield
        await world.is_settled(queue, 6)


async def max_length_drop_head(world: World) -> AsyncGenerator[None]:
    """The oldest go, and nothing else does; a restart drops nothing, and the limit holds behind it."""
    queue = "drop-head"
    await world.declare(queue, x_max_length=5)
    await world.publish(queue, 8)
    yield
    await world.until_group(queue, ready=5, unsettled=5)
    yield
    await world.until_group(queue, ready=5, unsettled=5)
    await world.publish(queue, 3)
    await world.until_group(queue, ready=5, unsettled=5)
    yield
    async with world.client.subscribe(queue) as subscription:
        left = await receive(subscription, 5)
        assert offsets(left) == [6, 7, 8, 9, 10]
        await ack_all(left)
        await world.nothing_comes(queue, subscription, below=11)


async def max_length_reject_publish(world: World) -> AsyncGenerator[None]:
    """Who publishes to a full queue is refused, behind a restart too, and nothing of it is stored; one that is settled
    makes room for one."""
    queue = "reject-publish"
    await world.declare(queue, x_max_length=5, x_overflow="reject-publish")
    await world.publish(queue, 5)
    yield
    await _is_full(world, queue)
    yield
    await _is_full(world, queue)
    async with world.client.subscribe(queue, prefetch=1) as subscription:
        (one,) = await receive(subscription, 1)
        await one.ack()
    await world.until_group(queue, ready=4)
    assert await world.publish(queue, 1) == [5]
    await _is_full(world, queue)
    yield
    await _is_full(world, queue)
    async with world.client.subscribe(queue) as subscription:
        left = await receive(subscription, 5)
        assert offsets(left) == [1, 2, 3, 4, 5]
        await ack_all(left)
    await world.is_settled(queue, 6)


async def max_length_bytes(world: World) -> AsyncGenerator[None]:
    """The same of bytes: five such records fit, and six do not, whoever counts them."""
    drops, rejects = "drop-head-bytes", "reject-publish-bytes"
    await world.declare(drops, x_max_length_bytes=_FIVE_BYTES)
    await world.declare(rejects, x_max_length_bytes=_FIVE_BYTES, x_overflow="reject-publish")
    await _publish_large(world, drops, 8)
    await _publish_large(world, rejects, 5)
    yield
    await world.until_group(drops, ready=5, unsettled=5)
    await _is_full(world, rejects, _LARGE)
    yield
    await _is_full(world, rejects, _LARGE)
    await _publish_large(world, drops, 3)
    await world.until_group(drops, ready=5, unsettled=5)
    yield
    for queue, expected in ((drops, [6, 7, 8, 9, 10]), (rejects, [0, 1, 2, 3, 4])):
        async with world.client.subscribe(queue) as subscription:
            left = await receive(subscription, 5)
            assert offsets(left) == expected
            await ack_all(left)
            await world.nothing_comes(queue, subscription, below=5)


async def _publish_large(world: World, queue: str, count: int) -> None:
    """Each a batch of its own."""
    async with world.client.producer(queue, batch_bytes=64) as producer:
        for _ in range(count):
            await producer.send(_LARGE)


async def _is_full(world: World, queue: str, value: bytes = b"too many") -> None:
    """Right behind a restart a try may lose its answer, and then be refused: that is unknown, and is tried again. That
    nothing was stored the next record's queue offset says."""

    async def is_refused() -> bool:
        with suppress(OutcomeUnknown):
            async with world.client.producer(queue, delivery_timeout_ms=1_000) as producer:
                with pytest.raises(QueueFull):
                    await producer.send(value)
            return True
        return False

    await world.until(is_refused, f"{queue} is full")
