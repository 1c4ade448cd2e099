"""Asynchronous items taken from synchronous code: in order, not too far ahead, with their errors, and ended in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from mirrorlog.errors import BadBatch, RequestTimeout
from mirrorlog.spark.reading.rows import PREFETCHED_MAX, ThreadedIterator

PATIENCE_S = 30.0


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


def test_all_items_come_in_order() -> None:
    """Goal: nothing is lost between the threads. More items than are read ahead; none at all."""
    for count in (PREFETCHED_MAX * 10, 0):
        with ThreadedIterator(lambda count=count: numbers(count), patience_s=PATIENCE_S, what="numbers") as items:
            assert list(items) == list(range(count))


def test_an_error_comes_after_the_items_before_it() -> None:
    """Goal: the reader's error is the task's error. Items, then an error."""

    async def failing() -> AsyncIterator[int]:
        yield 1
        raise BadBatch("the second is broken")

    with ThreadedIterator(failing, patience_s=PATIENCE_S, what="numbers") as items:
        taken = iter(items)
        assert next(taken) == 1
        with pytest.raises(BadBatch, match="the second is broken"):
            next(taken)


def test_a_consumer_that_stops_early_ends_the_iterator() -> None:
    """Goal: `limit` in a query leaves no connection open. Take one item of endless ones and leave."""
    ended = threading.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.set()

    with ThreadedIterator(endless, patience_s=PATIENCE_S, what="numbers") as items:
        assert next(iter(items)) == 1
    assert ended.wait(PATIENCE_S)


def test_a_slow_consumer_is_not_run_away_from() -> None:
    """Goal: memory is bounded. Take one of many items and see how many were made once the pump stands still."""
    made: list[int] = []
    full = threading.Event()

    async def counted() -> AsyncIterator[int]:
        for number in range(PREFETCHED_MAX * 10):
            made.append(number)
            if number > PREFETCHED_MAX:
                full.set()
            yield number

    with ThreadedIterator(counted, patience_s=PATIENCE_S, what="numbers") as items:
        assert next(iter(items)) == 0
        assert full.wait(PATIENCE_S)
        # One in the consumer's hand, PREFETCHED_MAX waiting, one that waits for its place.
        assert len(made) == PREFETCHED_MAX + 2


def test_silence_is_a_timeout_that_says_what_for() -> None:
    """Goal: a task never hangs. An iterator that never gives anything."""

    async def silent() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    with (
        pytest.raises(RequestTimeout, match=r"numbers: nothing came for 0\.05 s"),
        ThreadedIterator(silent, patience_s=0.05, what="numbers") as items,
    ):
        list(items)
