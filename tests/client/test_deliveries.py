"""Handles of records in batches: what they raise, whom a cancellation hurts, and what counts as heard."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.client.producer.deliveries import BulkDelivery, Delivery, wait_for_end
from mirrorlog.errors import BadRequest, DiskFull, OutcomeUnknown
from mirrorlog.wire.frames import Confirm


def batch_of(count: int) -> PendingBatch:
    batch = PendingBatch(1.0)
    for _ in range(count):
        batch.add(b"", None, (), None, 1)
    return batch


def confirm(base: int) -> Confirm:
    return Confirm(base * 100, base, 1, 3, 0, 0)


async def test_a_bulk_ends_with_the_receipts_of_all_its_batches() -> None:
    """In the order of the records, though the batches end in another; by two batches."""
    first, second = batch_of(2), batch_of(3)
    delivery = BulkDelivery([first, second])
    waiter = asyncio.ensure_future(_receipts(delivery))
    await asyncio.sleep(0)
    second.resolve(confirm(12))
    assert not delivery.done()
    first.resolve(confirm(10))
    assert delivery.done()
    assert len(delivery) == 5
    assert await waiter == delivery.result()
    assert [receipt.queue_offset for receipt in await waiter] == [10, 11, 12, 13, 14]


async def test_a_failure_in_a_bulk_says_which_records_it_is_for() -> None:
    """The others are confirmed; by failing the second and the fourth of four batches."""
    batches = [batch_of(2) for _ in range(4)]
    delivery = BulkDelivery(batches)
    waiter = asyncio.ensure_future(_receipts(delivery))
    await asyncio.sleep(0)
    batches[0].resolve(confirm(0))
    assert not delivery.failed()
    batches[1].resolve(DiskFull("full"))
    assert delivery.failed()
    assert not waiter.done(), "it ends when all its batches have"
    batches[2].resolve(confirm(2))
    batches[3].resolve(OutcomeUnknown("lost"))
    with pytest.raises(DiskFull):
        await waiter
    failures = delivery.failures()
    assert [records for records, _ in failures] == [range(2, 4), range(6, 8)]
    assert [type(error) for _, error in failures] == [DiskFull, OutcomeUnknown]
    assert not any(batch.failed_unheard for batch in batches)


async def _receipts(delivery: BulkDelivery) -> object:
    return await delivery


def test_a_result_that_is_not_there_yet_is_the_callers_mistake() -> None:
    """With what to do instead; by asking before the end, for one record and for a bulk that has ended in part."""
    ended, waiting = batch_of(1), batch_of(1)
    ended.resolve(confirm(0))
    with pytest.raises(BadRequest, match="not ended yet"):
        Delivery(waiting, 0).result()
    with pytest.raises(BadRequest, match="not ended yet"):
        BulkDelivery([ended, waiting]).result()


async def test_nothing_to_deliver_is_delivered() -> None:
    """An empty column; by awaiting a delivery without batches."""
    delivery = BulkDelivery()
    assert delivery.done()
    assert len(await delivery) == 0


async def test_a_failure_is_heard_by_whoever_awaits_it_or_asks_for_it() -> None:
    """What was heard is not told again by a flush; by one waiter, one that gave up, one question, and nobody."""
    awaited, given_up, asked, nobody = (batch_of(1) for _ in range(4))
    waiter = asyncio.ensure_future(_receipt(Delivery(awaited, 0)))
    impatient = asyncio.ensure_future(_receipt(Delivery(given_up, 0)))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    for batch in (awaited, given_up, asked, nobody):
        batch.resolve(DiskFull("full"))
    assert not awaited.failed_unheard, "it is being told now"
    with pytest.raises(DiskFull):
        await waiter
    with pytest.raises(DiskFull):
        Delivery(asked, 0).result()
    unheard = [batch.failed_unheard for batch in (awaited, given_up, asked, nobody)]
    assert unheard == [False, True, False, True]


async def _receipt(delivery: Delivery) -> object:
    return await delivery


async def test_waiting_for_the_end_hears_nothing() -> None:
    """A flush that waits for a batch still has its error to tell; by a batch that fails meanwhile."""
    batch = batch_of(1)
    flush = asyncio.ensure_future(wait_for_end([batch]))
    await asyncio.sleep(0)
    batch.resolve(DiskFull("full"))
    await flush
    assert batch.failed_unheard
