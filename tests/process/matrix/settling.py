"""Rows: what becomes of records that were given out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from mirrorlog.client import Subscription
from mirrorlog.errors import ConsumerTimedOut, MirrorlogError, NotGranted, ReceiptStale
from tests.process.matrix.world import LONG_MS, SOON_S, World, ack_all, again, offsets, receive


async def ack_in_any_order(world: World) -> AsyncGenerator[None]:
    """What was acked never comes again, all else does, in order and flagged; what is published later is not."""
    queue = "any-order"
    await world.declare(queue)
    await world.publish(queue, 20)
    yield
    async with world.client.subscribe(queue, prefetch=20) as subscription:
        taken = await receive(subscription, 20)
        assert offsets(taken) == list(range(20))
        acked = set(world.random.sample(range(20), 10))
        await ack_all([taken[offset] for offset in acked])
        yield
        left = await receive(subscription, 10)
        again(left, sorted(set(range(20)) - acked))
        world.random.shuffle(left)
        await ack_all(left)
        await world.publish(queue, 5)
        new = await receive(subscription, 5)
        assert offsets(new) == [20, 21, 22, 23, 24]
        assert not any(each.redelivered for each in new)
        await ack_all(new[::-1])
        yield
        await world.is_settled(queue, 25)
        await world.nothing_comes(queue, subscription, below=25)


async def only_what_was_given_out_is_flagged(world: World) -> AsyncGenerator[None]:
    """The watermark: a prefetch of 5 in hand, and 7 behind it that nobody was given."""
    queue = "watermark"
    await world.declare(queue)
    await world.publish(queue, 12)
    yield
    async with world.client.subscribe(queue, prefetch=5) as subscription:
        await receive(subscription, 5)
        await world.until_group(queue, watermark=5, out=5)
        yield
        mine = await receive(subscription, 5)
        again(mine, range(5))
        await ack_all(mine)
        others = await receive(subscription, 5)
        assert offsets(others) == [5, 6, 7, 8, 9]
        assert not any(each.redelivered for each in others), others
        await ack_all(others)
        yield
        last = await receive(subscription, 2)
        assert offsets(last) == [10, 11]
        await ack_all(last)
    await world.is_settled(queue, 12)


async def an_ack_from_before_counts(world: World) -> AsyncGenerator[None]:
    """What the program holds from before the restart may be acknowledged behind it: it does not come again, unless
    somebody was given it."""
    queue = "held"
    await world.declare(queue)
    await world.publish(queue, 4)
    yield
    async with world.client.subscribe(queue, prefetch=4) as subscription:
        held = await receive(subscription, 4)
        yield
        acks = await asyncio.gather(*(held[number].ack() for number in (3, 1)), return_exceptions=True)
        refused = [number for number, error in zip((3, 1), acks, strict=True) if error is not None]
        assert all(error is None or isinstance(error, NotGranted) for error in acks), acks
        left = await receive(subscription, 2 + len(refused))
        again(left, sorted({0, 2, *refused}))
        await ack_all(left)
        yield
    await world.is_settled(queue, 4)


async def multiple_ack(world: World) -> AsyncGenerator[None]:
    """It settles what this subscription was given up to the record, on both sides of the restart."""
    queue = "multiple"
    await world.declare(queue)
    await world.publish(queue, 10)
    yield
    async with world.client.subscribe(queue, prefetch=10) as subscription:
        taken = await receive(subscription, 10)
        await taken[5].ack(multiple=True)
        assert (await world.group(queue)).floor == 6
        yield
        left = await receive(subscription, 4)
        again(left, range(6, 10))
        await left[-1].ack(multiple=True)
        yield
        await world.is_settled(queue, 10)
        await world.nothing_comes(queue, subscription, below=10)


async def nack_with_a_delay(world: World) -> AsyncGenerator[None]:
    """A record that was returned waits for its delay, which begins anew behind a restart, and comes to its place; the
    return is counted, the restart is not."""
    queue = "nack"
    await world.declare(queue)
    await world.publish(queue, 4)
    yield
    async with world.client.subscribe(queue, prefetch=4) as subscription:
        far, near, at_once, _ = await receive(subscription, 4)
        await far.nack(delay_ms=LONG_MS)
        before = time.monotonic()
        await near.nack(delay_ms=1_500)
        await at_once.nack()
        (back,) = await receive(subscription, 1)
        assert (back.offset, back.attempts, back.redelivered) == (2, 1, True)
        yield
        found = {each.offset: each for each in await receive(subscription, 3)}
        assert time.monotonic() - before >= 1.5
        assert {offset: each.attempts for offset, each in found.items()} == {1: 1, 2: 1, 3: 0}
        assert all(each.redelivered for each in found.values())
        group = await world.group(queue)
        assert group.parked == 1
        assert LONG_MS - 60_000 < group.due_ms <= LONG_MS, group
        await found[1].nack(delay_ms=300)
        (later,) = await receive(subscription, 1)
        assert (later.offset, later.attempts) == (1, 2)
        await ack_all([later, found[2], found[3]])
        yield
        assert (await world.group(queue)).unsettled == 1
    assert await world.client.admin.purge(queue) == 1
    await world.is_settled(queue, 4)


async def reject(world: World) -> AsyncGenerator[None]:
    """A rejected record is dead: it never comes again."""
    queue = "reject"
    await world.declare(queue)
    await world.publish(queue, 6)
    yield
    async with world.client.subscribe(queue, prefetch=6) as subscription:
        taken = await receive(subscription, 6)
        await asyncio.gather(taken[1].reject(), taken[4].nack(requeue=False))
        yield
        left = await receive(subscription, 4)
        again(left, [0, 2, 3, 5])
        await asyncio.gather(left[0].reject(), left[3].reject())
        await ack_all(left[1:3])
        yield
        await world.is_settled(queue, 6)
        await world.nothing_comes(queue, subscription, below=6)


async def release(world: World) -> AsyncGenerator[None]:
    """A released record comes as if it had not been seen; behind a restart it may have been seen, uncounted."""
    queue = "release"
    await world.declare(queue)
    await world.publish(queue, 2)
    yield
    async with world.client.subscribe(queue, prefetch=2) as subscription:
        first, _ = await receive(subscription, 2)
        await first.release()
        (back,) = await receive(subscription, 1)
        assert (back.offset, back.attempts, back.redelivered) == (0, 0, False)
        await back.release(delay_ms=LONG_MS)
        yield
        (other,) = await receive(subscription, 1)
        again([other], [1])
        assert (await world.group(queue)).parked == 1
        await other.release()
        (once_more,) = await receive(subscription, 1)
        again([once_more], [1])
        await once_more.ack()
        yield
    assert await world.client.admin.purge(queue) == 1
    await world.is_settled(queue, 2)


async def leases(world: World) -> AsyncGenerator[None]:
    """Holder, duration and receipt survive: what is leased is given to nobody else, can be extended and settled by
    whoever has the receipt; one whose lease is over acks unless somebody else was given the record."""
    queue, client = "leases", world.client
    await world.declare(queue)
    await world.publish(queue, 6)
    yield
    over, taken_over = await client.lease(queue, max_records=2, lease_ms=500, holder="w1")
    await world.until_group(queue, leased=0, ready=6)
    await taken_over.release()  # it lies free: that changes nothing
    by_another = await client.lease(queue, max_records=2, lease_ms=LONG_MS, holder="w2")
    assert [(each.offset, each.attempts, each.redelivered) for each in by_another] == [(0, 1, True), (1, 1, True)]
    with pytest.raises(ReceiptStale):
        await client.settle_receipt(queue, over.receipt)
    await by_another[0].release()
    held = [each for _ in range(4) for each in await client.lease(queue, max_records=1, lease_ms=LONG_MS, holder="w3")]
    assert [each.offset for each in held] == [0, 2, 3, 4]
    ending, *_ = await client.lease(queue, max_records=1, lease_ms=500)
    assert ending.offset == 5
    await held[3].extend(LONG_MS)
    await world.until_group(queue, leased=5, ready=1)
    yield
    group = await world.group(queue)
    assert (group.leased, group.ready) == (5, 1), group
    assert [each.holder for each in group.leases] == ["w2", "w3", "w3", "w3", "w3"], group
    assert LONG_MS - 60_000 < group.due_ms <= LONG_MS, group
    with pytest.raises(ReceiptStale):
        await client.settle_receipt(queue, taken_over.receipt)
    with pytest.raises(NotGranted):
        await client.extend_receipt(queue, ending.receipt, LONG_MS)
    assert await client.settle_receipt(queue, ending.receipt)
    assert await client.settle_receipt(queue, by_another[1].receipt)
    await client.extend_receipt(queue, held[0].receipt, 500)
    async with client.subscribe(queue) as subscription:
        (back,) = await receive(subscription, 1)
        assert (back.offset, back.attempts, back.redelivered) == (0, 2, True)
        await back.ack()
    assert await client.settle_receipt(queue, held[1].receipt, how="reject")
    yield
    await client.extend_receipt(queue, held[2].receipt, LONG_MS)
    assert await client.settle_receipt(queue, held[2].receipt)
    await held[3].ack()
    await world.is_settled(queue, 6)


async def auto_ack(world: World) -> AsyncGenerator[None]:
    """What came before something that is confirmed never comes again; the subscription goes on behind a restart."""
    queue = "auto-ack"
    await world.declare(queue)
    await world.publish(queue, 10)
    yield
    async with world.client.subscribe(queue, auto_ack=True) as subscription:
        assert offsets(await receive(subscription, 10)) == list(range(10))
        await world.publish("first", 1)  # one log: what was logged before is confirmed with it
        yield
        await world.until_group(queue, subscribers=1)
        await world.publish(queue, 10)
        new = await receive(subscription, 10)
        assert offsets(new) == list(range(10, 20))
        assert not any(each.redelivered for each in new)
        yield
    await world.is_settled(queue, 20)


async def delivery_limit(world: World) -> AsyncGenerator[None]:
    """With a limit of 2 a record is delivered three times, and what a restart gives out again is not counted."""
    queue = "limit"
    await world.declare(queue, x_delivery_limit=2)
    await world.publish(queue, 2)
    yield
    async with world.client.subscribe(queue, prefetch=1) as subscription:
        (first,) = await receive(subscription, 1)
        await first.nack()
        (second,) = await receive(subscription, 1)
        assert (second.offset, second.attempts) == (0, 1)
        yield
        (second,) = await receive(subscription, 1)
        again([second], [0], attempts=1)
        await second.nack()
        (third,) = await receive(subscription, 1)
        again([third], [0], attempts=2)
        await third.nack()
        (other,) = await receive(subscription, 1)
        assert (other.offset, other.attempts) == (1, 0)
        await other.ack()
        yield
        await world.is_settled(queue, 2)
        await world.nothing_comes(queue, subscription, below=2)


async def consumer_timeout(world: World) -> AsyncGenerator[None]:
    """Who has a record for longer loses his subscription, never earlier, and the record comes again, counted; a restart
    lets the time begin anew, and it does end."""
    queue, over, timeout_s = "timeout", "timeout-over-a-restart", 1.5
    for name in (queue, over):
        await world.declare(name, x_consumer_timeout=int(timeout_s * 1000))
        await world.publish(name, 1)
    yield
    await _forget_one(world, queue, attempts=0, timeout_s=timeout_s)
    async with world.client.subscribe(over) as subscription:
        await receive(subscription, 1)
        yield
        assert isinstance(await _end_of_idle(subscription), ConsumerTimedOut)
    await _forget_one(world, queue, attempts=1, timeout_s=timeout_s)
    yield
    for name in (queue, over):
        async with world.client.subscribe(name) as subscription:
            (back,) = await receive(subscription, 1)
            assert back.redelivered
            assert name == over or back.attempts == 2
            await back.ack()
        await world.is_settled(name, 1)


async def _forget_one(world: World, queue: str, *, attempts: int, timeout_s: float) -> None:
    async with world.client.subscribe(queue) as subscription:
        asked = time.monotonic()
        (one,) = await receive(subscription, 1)
        assert one.attempts == attempts
        await one.extend()
        assert isinstance(await _end_of_idle(subscription), ConsumerTimedOut)
        assert time.monotonic() - asked >= timeout_s


async def _end_of_idle(subscription: Subscription) -> MirrorlogError:
    """Why it has ended; nothing that it gives out is settled."""
    try:
        async with asyncio.timeout(SOON_S):
            async for _ in subscription:
                pass
    except MirrorlogError as error:
        return error
    raise AssertionError(f"{subscription.queue}: the subscription ended without a reason")
