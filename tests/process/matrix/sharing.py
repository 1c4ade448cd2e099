"""Rows: who of several gets what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from mirrorlog.client import Delivered, Subscription
from mirrorlog.errors import ExclusiveTaken, SubscriptionCancelled
from tests.process.matrix.world import SOON_S, World, ack_all, again, offsets, receive


async def exclusive_consumer(world: World) -> AsyncGenerator[None]:
    """Nobody else comes into the group while it is there, also behind a restart, once it is back; then anybody does."""
    queue = "exclusive-consumer"
    await world.declare(queue)
    await world.publish(queue, 3)
    yield
    async with world.client.subscribe(queue, prefetch=1, exclusive=True) as alone:
        await receive(alone, 1)
        await _is_refused(world, queue)
        yield
        (mine,) = await receive(alone, 1)
        again([mine], [0])
        await _is_refused(world, queue)
        await mine.ack()
        yield
    async with world.client.subscribe(queue) as another:
        left = await receive(another, 2)
        assert offsets(left) == [1, 2]
        await ack_all(left)
    await world.is_settled(queue, 3)


async def _is_refused(world: World, queue: str) -> None:
    with pytest.raises(ExclusiveTaken):
        await world.client.subscribe(queue).start()
    with pytest.raises(ExclusiveTaken):
        await world.client.lease(queue)


async def single_active_consumer(world: World) -> AsyncGenerator[None]:
    """One of two has all of it, in order; behind a restart it is one of the two, and when that goes, the other."""
    queue = "single-active"
    await world.declare(queue, x_single_active_consumer=True)
    await world.publish(queue, 6)
    yield
    async with (
        world.client.subscribe(queue, prefetch=3) as first,
        world.client.subscribe(queue, prefetch=3) as second,
    ):
        taken = await receive(first, 3)
        await world.until_group(queue, subscribers=2, idle_for_another=1)
        await ack_all(taken[:2])
        yield
        await world.until_group(queue, subscribers=2, idle_for_another=1)
        one, active, idle = await _first_of(first, second)
        again([one], [2])
        await one.ack()
        for expected in (3, 4, 5):
            (next_one,) = await receive(active, 1)
            assert next_one.offset == expected
            await next_one.ack()
        await active.close()
        await world.publish(queue, 2)
        left = await receive(idle, 2)
        assert offsets(left) == [6, 7]
        await ack_all(left)
        yield
    await world.is_settled(queue, 8)


async def _first_of(*subscriptions: Subscription) -> tuple[Delivered, Subscription, Subscription]:
    """Who of two is given something: what, who, and the other one."""
    first, second = subscriptions
    tasks = {asyncio.ensure_future(anext(each)): (each, other) for each, other in ((first, second), (second, first))}
    done, waiting = await asyncio.wait(tasks, timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    assert len(done) == 1, f"of two, {len(done)} were given something"
    (task,) = done
    return task.result(), *tasks[task]


async def cancel_on_failover(world: World) -> AsyncGenerator[None]:
    """Who has asked for it is told of the failover, and given nothing behind it; what he had comes to others."""
    queue = "cancelled"
    await world.declare(queue)
    await world.publish(queue, 3)
    yield
    told = await world.client.subscribe(queue, prefetch=3, cancel_on_failover=True).start()
    async with world.client.subscribe(queue, "other") as unaware:
        taken = await receive(told, 3)
        await taken[0].ack()
        await ack_all(await receive(unaware, 3))
        yield
        with pytest.raises(SubscriptionCancelled):
            await receive(told, 1)
        told.abandon()
        async with world.client.subscribe(queue) as another:
            left = await receive(another, 2)
            again(left, [1, 2])
            await ack_all(left)
        await world.publish(queue, 1)
        (fresh,) = await receive(unaware, 1)
        await fresh.ack()
        yield
    await world.is_settled(queue, 4, "other")
    found = await world.group(queue)
    assert (found.floor, found.ready) == (3, 1), found


async def priority_of_consumers(world: World) -> AsyncGenerator[None]:
    """The higher one is served first, while it has room; the lower one gets what is beyond that."""
    queue = "consumer-priority"
    await world.declare(queue)
    yield
    async with (
        world.client.subscribe(queue, prefetch=100) as low,
        world.client.subscribe(queue, prefetch=8, priority=5) as high,
    ):
        for first in (0, 10):
            await world.until_group(queue, subscribers=2)
            await world.publish(queue, 10)
            preferred = await receive(high, 8)
            rest = await receive(low, 2)
            assert offsets(preferred) == list(range(first, first + 8))
            assert offsets(rest) == [first + 8, first + 9]
            assert not any(each.redelivered for each in (*preferred, *rest))
            await ack_all((*preferred, *rest))
            yield
    await world.is_settled(queue, 20)
