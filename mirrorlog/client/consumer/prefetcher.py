"""The prefetcher: a reader's answers in order, the next fetch on its way before the last answer is looked at.

Where the next fetch begins is known when an answer is there, from its headers alone. So it leaves at once, and the node
works and the answer travels while the reader checks and uses what came. A reader that is slower than its node finds up
to `ahead_bytes` waiting, and then nothing more is asked for; one that has stopped reading costs one fetch.

Rejected: several fetches on their way at once. Each would need the offset at which the one before it ends, and one is
enough to keep a node busy while the reader works: what is gained is at most one round trip per answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mirrorlog.client.connection.unclosed import on_loop
from mirrorlog.client.consumer.records import end_of


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatches:
    """What one fetch has brought. `content`: `batch_count` batches back to back, unproven; `queue_offset`: the one
    asked for, of `address`, in the log `log_id`.

    `body_bytes_max`: what the body of one may have when it is opened; `node_id`: empty when no node has answered.
    """

    content: memoryview
    batch_count: int
    queue_offset: int
    address: str
    body_bytes_max: int
    node_id: str = ""
    log_id: str = ""


Fetch = Callable[[int], Awaitable[FetchedBatches]]


class Prefetcher:
    """Fetches from `queue_offset` on, before the reader asks. `until`: no further than this."""

    def __init__(self, fetch: Fetch, *, queue_offset: int, until: int | None, ahead_bytes: int) -> None:
        self._fetch = fetch
        self._following = queue_offset
        self._until = until
        self._ahead_bytes = ahead_bytes
        self._answers: deque[FetchedBatches] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._closed = False

    async def next(self) -> FetchedBatches | None:
        """The next answer that has batches. Cancelling this loses nothing.

        None when none came while it waited: the node had nothing, another who waits was given it, or it is closed.
        Raises what a fetch raised, behind all answers before it; the one after that tries again.
        """
        if not self._answers and self._error is None and not self._closed:
            self._run()
            self._changed.clear()
            await self._changed.wait()
        if self._answers:
            return self._given()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def _given(self) -> FetchedBatches:
        answer = self._answers.popleft()
        self._waiting_bytes -= len(answer.content)
        if self._wants_more():
            self._run()
        return answer

    async def close(self) -> None:
        """Give up what is on its way; who waits gets None. Idempotent."""
        self._closed = True
        self._answers.clear()
        self._changed.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Give up what is on its way, soon, when nobody will ask for it any more. From any thread."""
        if self._task is not None and not self._task.done():
            on_loop(self._task.get_loop(), self._task.cancel)

    def _wants_more(self) -> bool:
        unread = self._until is None or self._following < self._until
        return unread and self._waiting_bytes < self._ahead_bytes and self._error is None and not self._closed

    def _run(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._fetch_on())

    async def _fetch_on(self) -> None:
        try:
            while True:
                answer = await self._fetch(self._following)
                if not answer.batch_count:
                    break  # nothing came while it waited; the next one who waits asks again
                end = end_of(answer.content, answer.batch_count)
                self._answers.append(answer)
                self._waiting_bytes += len(answer.content)
                self._changed.set()
                if end is None or end <= self._following:
                    break  # the reader will find out what is wrong with it
                self._following = end
                if not self._wants_more():
                    break
        except Exception as error:
            self._error = error
        finally:
            self._changed.set()
