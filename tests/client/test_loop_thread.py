"""A loop in a thread: its callers get results and errors, and none of them hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.client.sync.loop_thread import LoopThread
from mirrorlog.errors import BadRequest, Closed, ConnectionLost, RequestTimeout


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    running = LoopThread("test")
    yield running
    running.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_results_come_back_to_their_callers(thread: LoopThread) -> None:
    """By many calls from several threads at once."""
    with ThreadPoolExecutor(4) as callers:
        calls = [
            callers.submit(lambda number=number: thread.run(lambda: double(number), timeout_s=10, what="double"))
            for number in range(100)
        ]
        assert [call.result() for call in calls] == [2 * number for number in range(100)]


def test_errors_come_back_as_they_were_raised(thread: LoopThread) -> None:
    """A TimeoutError of the coroutine's own is not taken for the caller's time being up."""

    async def fail(error: Exception) -> None:
        raise error

    for error in (BadRequest("no"), TimeoutError("its own")):
        with pytest.raises(type(error), match=str(error)):
            thread.run(lambda error=error: fail(error), timeout_s=10, what="fail")  # type: ignore[misc]


def test_a_call_that_takes_too_long_ends_and_is_cancelled(thread: LoopThread) -> None:
    """The caller is told what was late, and nothing runs on; by a call that never ends."""
    cancelled = threading.Event()

    async def note() -> None:
        try:
            await forever()
        finally:
            cancelled.set()

    with pytest.raises(RequestTimeout, match=r"the call: no answer within 0\.05 s"):
        thread.run(note, timeout_s=0.05, what="the call")
    assert cancelled.wait(10)


def test_closing_ends_every_call_and_refuses_new_ones() -> None:
    """By one that waits for ever in another thread, and by one that comes late."""
    thread = LoopThread("test")
    begun = threading.Event()

    async def note() -> None:
        begun.set()
        await forever()

    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(thread.run, note, timeout_s=None, what="the call")
        assert begun.wait(10)
        thread.close()
        with pytest.raises(Closed, match="closed meanwhile"):
            waiting.result(20)
    with pytest.raises(Closed, match="the client is closed"):
        thread.run(forever, timeout_s=None, what="the call")
    thread.call_soon(lambda: None)
    thread.close()
    assert "test" not in [each.name for each in threading.enumerate()]


def test_a_client_that_reaches_nobody_says_so_and_leaves_no_thread() -> None:
    """By a port where nobody listens, with `with` and without."""
    before = threading.active_count()
    with pytest.raises(ConnectionLost, match="no node answers"), Client("127.0.0.1:1"):
        pass
    client = Client("127.0.0.1:1")
    with pytest.raises(ConnectionLost, match="no node answers"):
        client.admin.queues()
    client.close()
    with pytest.raises(Closed, match="the client is closed"):
        client.admin.queues()
    Client("127.0.0.1:1").close()  # one that never began
    assert threading.active_count() == before
