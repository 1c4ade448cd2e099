"""Fetching ahead: in order, bounded, and nothing lost to whoever stops waiting. Fetches are answered here."""

from __future__ import annotations

import asyncio

import pytest

from mirrorlog.client.consumer.prefetcher import FetchedBatches, Prefetcher
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import stamp
from mirrorlog.errors import ConnectionLost

BATCH_RECORDS = 10


def batch_at(queue_offset: int) -> bytes:
    batch = encode_batch([Record(b"x" * 80)] * BATCH_RECORDS, queue_id=1)
    stamp(batch, log_offset=0, base_queue_offset=queue_offset, append_time_us=1, epoch=1, flags=0, seed=0)
    return bytes(batch)


BATCH_BYTES = len(batch_at(0))


class Node:
    """Answers fetches with one batch each, up to `end`; beyond it fetches wait for `publish`."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[int] = []
        self.fails: dict[int, Exception] = {}
        self._published = asyncio.Event()

    async def fetch(self, queue_offset: int) -> FetchedBatches:
        self.asked.append(queue_offset)
        await asyncio.sleep(0)
        if queue_offset in self.fails:
            raise self.fails.pop(queue_offset)
        while queue_offset >= self.end:
            self._published.clear()
            await self._published.wait()
        return FetchedBatches(memoryview(batch_at(queue_offset)), 1, queue_offset, "node", 2**20)

    def publish(self, end: int) -> None:
        self.end = end
        self._published.set()


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def offset_of(ahead: Prefetcher) -> int | None:
    answer = await asyncio.wait_for(ahead.next(), 10)
    return None if answer is None else answer.queue_offset


@pytest.mark.parametrize("ahead_batches", [0, 1, 3])
async def test_a_reader_that_stands_still_finds_only_so_much(ahead_batches: int) -> None:
    """Memory is bounded: no fetch leaves while as much as allowed waits; by taking one answer and stopping."""
    node = Node(end=1_000)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=None, ahead_bytes=ahead_batches * BATCH_BYTES)
    assert await offset_of(ahead) == 0
    await settle()
    assert node.asked == [BATCH_RECORDS * number for number in range(1 + ahead_batches)]
    assert await offset_of(ahead) in (BATCH_RECORDS, None)
    await ahead.close()


async def test_the_next_fetch_leaves_before_the_reader_has_its_answer() -> None:
    """The node works while the reader does; by what was asked when the first answer is in the reader's hands."""
    node = Node(end=1_000)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=None, ahead_bytes=2 * BATCH_BYTES)
    assert await offset_of(ahead) == 0
    assert node.asked[:2] == [0, BATCH_RECORDS]
    await ahead.close()


async def test_answers_come_in_order_to_whoever_reads() -> None:
    """Each once; by a reader that is sometimes slower and sometimes faster than the node."""
    node = Node(end=50 * BATCH_RECORDS)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=50 * BATCH_RECORDS, ahead_bytes=2 * BATCH_BYTES)
    found: list[int] = []
    while len(found) < 50:
        if len(found) % 3 == 0:
            await settle()
        if (offset := await offset_of(ahead)) is not None:
            found.append(offset)
    assert found == [BATCH_RECORDS * number for number in range(50)]
    await settle()
    assert node.asked == found  # nothing beyond `until`
    await ahead.close()


async def test_giving_up_waiting_loses_nothing() -> None:
    """The fetch goes on and its answer is for the next one who waits; by cancelling a wait before records come."""
    node = Node(end=0)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=None, ahead_bytes=BATCH_BYTES)
    waiting = asyncio.ensure_future(ahead.next())
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    node.publish(BATCH_RECORDS)
    assert await offset_of(ahead) == 0
    assert node.asked[0] == 0
    assert node.asked.count(0) == 1
    await ahead.close()


async def test_an_error_comes_behind_the_answers_before_it_and_is_told_once() -> None:
    """Then it is tried again, where it failed; by a node that fails at the third fetch."""
    node = Node(end=1_000)
    node.fails[2 * BATCH_RECORDS] = ConnectionLost("gone")
    ahead = Prefetcher(node.fetch, queue_offset=0, until=None, ahead_bytes=100 * BATCH_BYTES)
    assert await offset_of(ahead) == 0
    await settle()
    assert await offset_of(ahead) == BATCH_RECORDS
    with pytest.raises(ConnectionLost):
        await offset_of(ahead)
    assert [await offset_of(ahead), await offset_of(ahead)] == [2 * BATCH_RECORDS, 3 * BATCH_RECORDS]
    await ahead.close()


async def test_all_who_wait_are_woken() -> None:
    """Of two, one gets the answer and the other learns that something changed; neither waits on for what is not his."""
    node = Node(end=0)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=BATCH_RECORDS, ahead_bytes=BATCH_BYTES)
    both = [asyncio.ensure_future(ahead.next()) for _ in range(2)]
    await settle()
    node.publish(BATCH_RECORDS)
    answers = await asyncio.wait_for(asyncio.gather(*both), 10)
    assert [answer is None for answer in answers] == [False, True]
    await ahead.close()


async def test_closing_ends_the_wait_and_the_fetch() -> None:
    """Nothing is left behind; by closing under one who waits."""
    before = asyncio.all_tasks()
    node = Node(end=0)
    ahead = Prefetcher(node.fetch, queue_offset=0, until=None, ahead_bytes=BATCH_BYTES)
    waiting = asyncio.ensure_future(ahead.next())
    await settle()
    await ahead.close()
    assert await asyncio.wait_for(waiting, 10) is None
    assert await ahead.next() is None
    assert asyncio.all_tasks() == before


async def test_an_answer_without_sense_stops_the_fetching() -> None:
    """Its reader finds out what is wrong; until then nothing is asked for by what it says."""
    asked: list[int] = []

    async def fetch(queue_offset: int) -> FetchedBatches:
        asked.append(queue_offset)
        return FetchedBatches(memoryview(bytes(200)), 1, queue_offset, "node", 2**20)

    ahead = Prefetcher(fetch, queue_offset=5, until=None, ahead_bytes=2**20)
    assert await offset_of(ahead) == 5
    await ahead.close()
    assert set(asked) == {5}
    assert len(asked) <= 2
