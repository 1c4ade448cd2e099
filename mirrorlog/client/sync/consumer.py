"""The consumer that blocks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Self

from mirrorlog.client.arguments import checked
from mirrorlog.client.consumer.consumer import Consumer, enough
from mirrorlog.client.consumer.cursor import Cursor, Preview
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord
from mirrorlog.client.sync.blocking import MARGIN_S, Calls, ClosedFace, changes
from mirrorlog.client.sync.loop_thread import LoopThread
from mirrorlog.errors import Closed, MirrorlogError
from mirrorlog.wire.messages.queues import Position


@checked()
class BlockingConsumer(ClosedFace[Consumer]):
    """Reads one queue. Made by `Client.consumer`; use it with `with`. One that is let go without `close` is closed,
    with a ResourceWarning."""

    def __init__(self, client: Calls, of: Consumer) -> None:
        """Use `Client.consumer`."""
        super().__init__(client, of)
        of.kept = True
        self.queue = of.queue
        # Held while the cursor moves, never while somebody waits for records.
        self._lock = threading.Lock()

    @property
    def group(self) -> str | None:
        return self._of.group

    # --- life ---

    def start(self) -> Self:
        """Find the queue and where to begin. Raises NoSuchQueue, BadRequest, ConnectionLost."""
        self._client.call(self._of.start, what=f"consumer of {self.queue!r}")
        return self

    def close(self) -> None:
        """End reading, in other threads too: who waits for records there gets Closed.

        Idempotent. Commits nothing.
        """
        with self._lock, suppress(Closed):  # the client is closed, and this with it
            self._client.call(self._of.close, what="close")

    def abandon(self) -> None:
        """As `close`: there is nothing to wait for."""
        self.close()

    def _unfinished(self) -> tuple[str, Callable[[], Coroutine[Any, Any, None]], str]:
        return f"a consumer of queue {self.queue!r}", self._of.close, ""

    # --- reading ---

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Records in queue order, as `batches`. Leave it and come back: it goes on behind the last one given out."""
        cursor, lock = self._of.cursor, self._lock
        while (found := self._current(cursor)) is not None:
            batch, at = found
            cursor.epoch, cursor.log_id = batch.header.epoch, batch.log_id
            for following, record in enumerate(batch.records(), batch.first + 1):
                with lock:
                    if cursor.next != at:
                        break  # moved on from elsewhere meanwhile
                    cursor.next = at = following
                yield record

    def batches(self) -> Iterator[ConsumedBatch]:
        """Batches in queue order. Ends at `until`; otherwise it waits for new records.

        Raises OffsetOutOfRange when the position is gone, BadBatch naming queue and log offset, ConnectionLost after
        `outage_timeout_ms` without any node that answers.
        """
        while (batch := self._claim()) is not None:
            yield batch

    def read(self, max_records: int | None = None, *, timeout_ms: int) -> list[ConsumedRecord]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up or `until` is reached first.

        Without `max_records`: what comes first, as soon as it is there. Raises as `batches`, but only when nothing was
        found before the error; the next call meets it then. An interrupted read leaves the position as it was.
        """
        until_s = time.monotonic() + timeout_ms / 1000
        while True:
            with self._lock:
                preview = Preview(self._of.cursor)
            found = self._collect(preview, max_records, until_s)
            with self._lock:
                if preview.claim():
                    return found

    @property
    def position(self) -> Position:
        """Behind the last record, or the last batch, that was given out."""
        with self._lock:
            return self._of.position

    @property
    def served_by(self) -> str | None:
        """The node that answered last."""
        return self._of.served_by

    def seek(self, queue_offset: int) -> None:
        """Go on at `queue_offset`, an iteration that is under way too. Raises BadRequest for one that cannot be."""
        with self._lock:
            self._client.call(lambda: self._of.seek(queue_offset), what="seek")

    commit = changes(Consumer.commit)

    # --- inside ---

    def _claim(self) -> ConsumedBatch | None:
        """The next batch, for the caller alone."""
        cursor = self._of.cursor
        while (found := self._current(cursor)) is not None:
            batch, at = found
            with self._lock:
                if cursor.next == at:
                    cursor.passed(batch)
                    return batch
        return None

    def _collect(self, preview: Preview, max_records: int | None, until_s: float) -> list[ConsumedRecord]:
        """Records for one `read`, as many as come in time."""
        found: list[ConsumedRecord] = []
        try:
            while not enough(found, max_records) and (at_place := self._current(preview, until_s)) is not None:
                batch, _ = at_place
                if max_records is not None:
                    batch = batch.before(batch.first + max_records - len(found))
                found += batch.records()
                preview.passed(batch)
        except MirrorlogError:
            if not found:
                raise
        return found

    def _current(self, place: Cursor | Preview, until_s: float | None = None) -> tuple[ConsumedBatch, int] | None:
        """The batch at `place`, and the cursor's position; None at `until` or when the time is up."""
        thread = self._client.thread
        while True:
            thread.check_open()
            with self._lock:
                if (batch := place.current()) is not None:
                    return batch, self._of.cursor.next
                if place.ended:
                    return None
            if not self._wait(thread, place, until_s):
                return None

    def _wait(self, thread: LoopThread, place: Cursor | Preview, until_s: float | None) -> bool:
        """For more batches; False when the time is up. A fetch leaves even if it is up already."""
        if until_s is None:
            thread.run(
                lambda: self._of.read_on(lambda: self._more(place)), timeout_s=None, what=f"records of {self.queue!r}"
            )
            return True
        left_s = max(0.0, until_s - time.monotonic())
        return thread.run(lambda: _in_time(lambda: self._more(place), left_s), timeout_s=left_s + MARGIN_S, what="read")

    async def _more(self, place: Cursor | Preview) -> None:
        """Let the cursor hold more; on the loop, the only place where it comes to hold something."""
        if not self._lock.acquire(blocking=False):
            return  # somebody moves the cursor: look again
        try:
            # Another thread's wait may have brought it meanwhile, and perhaps the end: then nothing would come.
            if not place.lacks:
                return
        finally:
            self._lock.release()
        await self._of.take()


async def _in_time(act: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> bool:
    """Whether it ended within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await act()
    except TimeoutError:
        return False
    return True
