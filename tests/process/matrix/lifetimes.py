"""Rows: how queues come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mirrorlog.client import Subscription
from mirrorlog.errors import MirrorlogError, NoSuchQueue, QueueExclusive, QueueExists
from tests.process.matrix.world import LONG_MS, SOON_S, World, receive


async def declaring_again(world: World) -> AsyncGenerator[None]:
    """The same arguments find the queue, others are refused naming the difference; one that was deleted is another
    queue, with nothing of the former's."""
    queue, admin = "declared", world.client.admin
    first = await world.declare(queue, x_max_length=100)
    yield
    await _is_declared(world, queue, first.queue_id)
    await world.declare("deleted")
    await world.publish("deleted", 3)
    former = await world.client.queue_info("deleted")
    assert await admin.delete_queue("deleted") == 3
    await admin.delete_queue(queue)
    second = await world.declare(queue, x_max_length=100)
    assert second.queue_id > first.queue_id
    yield
    await _is_declared(world, queue, second.queue_id)
    assert not await world.is_there("deleted")
    anew = await world.declare("deleted", x_delivery_limit=3)
    assert anew.queue_id > former.queue_id
    assert anew.incarnation != former.incarnation
    assert await world.publish("deleted", 1) == [0]
    yield
    assert len(await world.values("deleted")) == 1
    assert (await world.client.queue_info("deleted")).arguments == {"x-delivery-limit": 3}
    await admin.delete_queue(queue)
    assert not await world.is_there(queue)


async def _is_declared(world: World, queue: str, queue_id: int) -> None:
    assert (await world.declare(queue, x_max_length=100)).queue_id == queue_id
    with pytest.raises(QueueExists, match="x-max-length"):
        await world.declare(queue, x_max_length=101)
    with pytest.raises(QueueExists, match="x-max-length"):
        await world.declare(queue)


async def auto_delete(world: World) -> AsyncGenerator[None]:
    """It stays before its first subscriber and over a restart that takes its subscriber away for a while, and goes with
    the last one, and with it what was bound."""
    queue, waits = "auto-delete", "auto-delete-before-its-first"
    info = await world.declare(queue, auto_delete=True)
    await world.declare(waits, auto_delete=True)
    await world.client.admin.topology.bind("amq.fanout", queue)
    yield
    async with world.client.subscribe(queue) as subscription:
        yield
        await world.until_group(queue, subscribers=1)
        await world.publish(queue, 1)
        (one,) = await receive(subscription, 1)
        await one.ack()
    await world.gone(queue)
    yield
    assert await world.is_there(waits)
    await _is_free(world, queue, info.queue_id)


async def x_expires(world: World) -> AsyncGenerator[None]:
    """A queue that nobody uses goes, whether that time began before the restart or behind it; one that is used does
    not."""
    used, later = "expires-used", "expires-later"
    await world.declare(used, x_expires=6_000)
    await world.declare(later, x_expires=LONG_MS)
    yield
    await world.declare("expires-1", x_expires=500)
    info = await world.declare("expires-2", x_expires=4_000)
    async with world.client.subscribe(used) as subscription:
        await world.gone("expires-1")
        yield
        assert not await world.is_there("expires-1")
        await world.gone("expires-2")
        await world.publish(used, 1)
        (one,) = await receive(subscription, 1)
        await one.ack()
    await world.gone(used)
    yield
    assert await world.is_there(later)
    await _is_free(world, "expires-2", info.queue_id)


async def _is_free(world: World, queue: str, former: int) -> None:
    """The name may be used, nothing leads to it, and the id is not used again."""
    bindings = (await world.client.admin.topology.routing()).bindings
    assert queue not in {each.destination for each in bindings}
    assert (await world.declare(queue)).queue_id > former
    assert await world.values(queue) == []


async def exclusive_queue(world: World) -> AsyncGenerator[None]:
    """It is its client's alone, and goes with that one's connection, and so with its node; its name is free then."""
    async for _ in _passing(world, "exclusive-queue", exclusive=True):
        yield


async def queue_that_is_not_durable(world: World) -> AsyncGenerator[None]:
    """It goes with the run of its node, and who is subscribed is told."""
    async for _ in _passing(world, "not-durable", durable=False):
        yield


async def _passing(world: World, queue: str, **arguments: bool) -> AsyncGenerator[None]:
    mine = "exclusive" in arguments
    owner = await world.connect(world.first.client, request_timeout_ms=10_000)
    info = await owner.admin.declare(queue, arguments)
    assert (info.master, info.mirrors) == (world.first.id, [])
    await world.client.admin.topology.declare_exchange(f"to-{queue}", "fanout")
    await owner.admin.topology.bind(f"to-{queue}", queue)
    async with owner.producer(queue) as producer:
        await producer.send(b"old")
    yield
    subscription = await owner.subscribe(queue).start()
    await receive(subscription, 1)
    if mine:
        with pytest.raises(QueueExclusive):
            await world.client.subscribe(queue).start()
    reading = asyncio.ensure_future(_end_of(subscription))
    yield
    async with asyncio.timeout(SOON_S):
        error = await reading
    assert isinstance(error, NoSuchQueue), error
    await world.gone(queue)
    assert not [each for each in (await world.client.admin.topology.routing()).bindings if each.destination == queue]
    await _is_free(world, queue, -1)
    if mine:
        await _goes_with_its_connection(world, f"{queue}-behind")
    yield
    await world.publish(queue, 1)
    assert len(await world.values(queue)) == 1


async def _goes_with_its_connection(world: World, queue: str) -> None:
    owner = await world.connect()
    await owner.admin.declare(queue, {"exclusive": True})
    async with owner.producer(queue) as producer:
        await producer.send(b"x")
    await owner.close()
    await world.gone(queue)


async def _end_of(subscription: Subscription) -> MirrorlogError:
    try:
        async for delivered in subscription:
            await delivered.ack()
    except MirrorlogError as error:
        return error
    raise AssertionError("it ended without a reason")
