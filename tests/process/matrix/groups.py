"""Rows: what is done with whole groups, and with queues as streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from tests.process.matrix.world import LONG_MS, World, ack_all, again, receive

_KEPT = 3 * 1024 * 1024


async def purge(world: World) -> AsyncGenerator[None]:
    """All that is in nobody's hands is settled, and stays settled; what is in hand stays there."""
    queue = "purge"
    await world.declare(queue)
    await world.publish(queue, 6)
    yield
    async with world.client.subscribe(queue, prefetch=2) as subscription:
        await receive(subscription, 2)
        assert await world.client.admin.purge(queue) == 4
        yield
        mine = await receive(subscription, 2)
        again(mine, [0, 1])
        assert await world.publish(queue, 3) == [6, 7, 8]
        assert await world.client.admin.purge(queue) == 3
        await ack_all(mine)
        yield
        await world.is_settled(queue, 9)
        await world.nothing_comes(queue, subscription, below=9)


async def group_reset(world: World) -> AsyncGenerator[None]:
    """A group that is reset begins anew: nothing above is settled, flagged or counted; all move or none."""
    queue, admin = "reset", world.client.admin
    await world.declare(queue, retention="limits")  # the second group comes when the first one has settled all
    await world.publish(queue, 10)
    yield
    for group in ("one", "two"):
        async with world.client.subscribe(queue, group) as subscription:
            taken = await receive(subscription, 10)
            await taken[0].nack()
            (back,) = await receive(subscription, 1)
            await ack_all([back, *taken[1:]])
    told = await admin.reset_groups(queue, ["one", "two"], to=4)
    assert {each.group: each.target.queue_offset for each in told.groups} == {"one": 4, "two": 4}
    yield
    async with world.client.subscribe(queue, "one") as subscription:
        left = await receive(subscription, 6)
        assert [(each.offset, each.attempts, each.redelivered) for each in left] == [
            (offset, 0, False) for offset in range(4, 10)
        ]
        await ack_all(left)
    await admin.reset_groups(queue, ["one"], shift=-2)
    assert (await world.group(queue, "one")).floor == 8
    await admin.reset_groups(queue, to="latest")
    yield
    for group in ("one", "two"):
        await world.is_settled(queue, 10, group)


async def stream_positions(world: World) -> AsyncGenerator[None]:
    """A group that reads the queue as a stream goes on where it has said it is, and sees every record once."""
    queue, admin = "stream", world.client.admin
    await world.declare(queue)
    await world.publish(queue, 10)
    yield
    async with world.client.consumer(queue, group="s", start="committed") as consumer:
        seen = [each.queue_offset for each in await consumer.read(4, timeout_ms=10_000)]
        await consumer.commit()
    yield
    position = await admin.position(queue, "s")
    assert position is not None
    assert position.queue_offset == 4
    async with world.client.consumer(queue, group="s") as consumer:
        seen += [each.queue_offset for each in await consumer.read(6, timeout_ms=10_000)]
        await consumer.commit()
        await world.publish(queue, 2)
        seen += [each.queue_offset for each in await consumer.read(2, timeout_ms=10_000)]
    assert seen == list(range(12))
    yield
    position = await admin.position(queue, "s")
    assert position is not None
    assert position.queue_offset == 10
    assert (await world.group(queue, "s")).kind == "stream"


async def work_retention(world: World) -> AsyncGenerator[None]:
    """What is not settled is kept, whatever the limits; what is settled goes, and neither comes back."""
    queue = "work"
    await world.declare(queue, retention="work", retention_ms=1)
    async with world.client.producer(queue, batch_bytes=16 * 1024) as producer:
        await producer.send_many([b"%1024d" % number for number in range(_KEPT // 1024)])
    count = _KEPT // 1024
    settled = 2 * count // 3
    yield
    async with world.client.subscribe(queue, prefetch=count) as subscription:
        taken = await receive(subscription, count)
        await taken[settled - 1].ack(multiple=True)
        await world.until(partial(_begins_above, world, queue, 0), "the begin moves")
        assert 0 < (await world.client.queue_info(queue)).begin <= settled
        yield
        left = await receive(subscription, count - settled)
        again(left, range(settled, count))
        assert [int(each.value or b"") for each in left] == list(range(settled, count))
        await ack_all(left[1:])
        yield
        found = await world.group(queue)
        assert (found.floor, found.unsettled) == (settled, 1), found
        assert (await world.client.queue_info(queue)).begin <= settled
        await left[0].ack()
    await world.is_settled(queue, count)


async def _begins_above(world: World, queue: str, offset: int) -> bool:
    return (await world.client.queue_info(queue)).begin > offset


async def groups_of_one_queue(world: World) -> AsyncGenerator[None]:
    """Each has every record; what one settles is nothing to another, nor is its end."""
    queue = "two-groups"
    await world.declare(queue)
    await world.publish(queue, 4)
    yield
    async with world.client.subscribe(queue) as own, world.client.subscribe(queue, "other") as other:
        await ack_all(await receive(own, 4))
        (first, *_) = await receive(other, 4)
        await first.ack()
        yield
        left = await receive(other, 3)
        again(left, [1, 2, 3])
        await left[0].nack(delay_ms=LONG_MS)
        await world.nothing_comes(queue, own, below=4)
        yield
    await world.client.admin.delete_group(queue, "other")
    assert [each.group for each in (await world.client.admin.groups(queue)).groups] == [""]
    await world.is_settled(queue, 5)
