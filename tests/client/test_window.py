"""The window: who is woken when, and that nobody is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mirrorlog.client.producer.window import SendWindow
from mirrorlog.errors import Overloaded

LIMIT = 1000
STEP = 100


def window_of(*, taken: int = 0, open_bytes: int = 0) -> SendWindow:
    window = SendWindow(LIMIT, step_bytes=STEP, open_bytes=lambda: open_bytes)
    window.take(taken)
    return window


async def turn() -> None:
    """Long enough for whoever was woken to go on, and for those behind him."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(window: SendWindow, *sizes: int) -> AsyncIterator[list[asyncio.Task[None]]]:
    """One waiter for each size, in that order."""
    tasks = []
    for size in sizes:
        tasks.append(asyncio.ensure_future(window.room(size)))
        await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def woken(tasks: list[asyncio.Task[None]]) -> int:
    return sum(task.done() for task in tasks)


@pytest.mark.parametrize(
    ("taken", "open_bytes", "size", "fits"),
    [
        (0, 0, LIMIT, True),
        (600, 300, 100, True),
        (600, 300, 101, False),
        (0, 0, 5 * LIMIT, True),
        (1, 0, LIMIT, False),
        (0, 1, 5 * LIMIT, False),
    ],
)
async def test_what_fits(taken: int, open_bytes: int, size: int, fits: bool) -> None:
    """The open batch counts, and what is larger than the window goes alone; by sizes at the edge."""
    window = window_of(taken=taken, open_bytes=open_bytes)
    if fits:
        window.check(size)
        return
    with pytest.raises(Overloaded, match="window_bytes") as caught:
        window.check(size)
    assert caught.value.details == {"limit": "window_bytes"}


async def test_room_for_one_batch_is_enough_to_go_on() -> None:
    """A sender overlaps with the nodes instead of waiting for a half-empty window; by releasing less, then a step."""
    window = window_of(taken=LIMIT)
    async with waiting(window, 10) as (waiter,):
        window.release(STEP - 1)
        await turn()
        assert not waiter.done(), "a few bytes are not worth waking somebody for"
        window.release(1)
        await turn()
        assert waiter.done()


async def test_as_many_are_woken_as_fit() -> None:
    """A batch's worth of room does not wake a thousand waiters; by counting them, each taking what it waited for."""
    window = window_of(taken=LIMIT)

    async def take() -> None:
        await window.room(30)
        window.take(30)

    tasks = [asyncio.ensure_future(take()) for _ in range(50)]
    await turn()
    for number in (1, 2, 3):
        window.release(STEP)
        await turn()
        assert woken(tasks) == number * STEP // 30
    for task in tasks:
        task.cancel()


async def test_room_that_the_woken_did_not_take_goes_to_the_next() -> None:
    """Nobody waits beside room; by waiters that never take any."""
    window = window_of(taken=LIMIT)
    async with waiting(window, *[STEP] * 20) as tasks:
        window.release(STEP)
        await turn()
        assert woken(tasks) > 1
        await asyncio.wait_for(asyncio.gather(*tasks), 10)


async def test_a_cancelled_waiter_holds_up_nobody() -> None:
    """By cancelling the first before there is room, and in the moment when it was woken."""
    for when in ("before", "after"):
        window = window_of(taken=LIMIT)
        async with waiting(window, 600, 600) as (first, second):
            if when == "before":
                first.cancel()
            window.release(700)
            if when == "after":
                first.cancel()
            await asyncio.wait_for(second, 10)
            assert first.cancelled()


async def test_whoever_needs_more_than_the_window_is_served_when_it_is_empty() -> None:
    """And those behind it after it; by one that needs all and one that needs little."""
    window = window_of(taken=LIMIT)
    async with waiting(window, 5 * LIMIT, 10) as (large, small):
        window.release(LIMIT - 1)
        await turn()
        assert not large.done()
        assert not small.done(), "they are served in their order"
        window.release(1)
        await turn()
        assert large.done()
        window.take(5 * LIMIT)
        window.release(5 * LIMIT)
        await asyncio.wait_for(small, 10)


async def test_who_asks_while_others_wait_goes_behind_them() -> None:
    """By asking for little where there is room for it, but not for the one that waits."""
    window = window_of(taken=LIMIT - STEP)
    async with waiting(window, 2 * STEP, 1) as (large, small):
        await turn()
        assert window.contended
        assert not small.done()
        window.release(2 * STEP)
        await asyncio.wait_for(asyncio.gather(large, small), 10)
        assert not window.contended


async def test_room_is_there_at_once_when_there_is_room() -> None:
    """No turn of the loop is spent; by asking without letting it turn."""
    window = window_of(taken=LIMIT - STEP)
    with pytest.raises(StopIteration):
        window.room(STEP).send(None)
