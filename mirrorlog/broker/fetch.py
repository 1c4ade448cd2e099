"""Fetching: whole batches of a queue below the confirmed offset, from master or mirror; at the end a reader waits.

A fetch that has something is answered at once with views of the log. One that stands at the confirmed end waits for
the next confirm of its queue or its own deadline, in one list per queue and one heap: no timer and no task per reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from concurrent.futures import Executor
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.cold import ColdRead
from mirrorlog.config import LimitSettings, LogSettings
from mirrorlog.errors import MirrorlogError, OffsetOutOfRange, Overloaded
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import BATCHES, Fetch, FrameType, frame_header
from mirrorlog.wire.messages import error_frame

WAIT_MS_MAX = 60_000
_STALE_DEADLINES_MAX = 1024


class _Reader(NamedTuple):
    deadline: float
    serial: int
    fetch: Fetch
    endpoint: Endpoint
    correlation_id: int


class Fetcher:
    """The readers of one log."""

    def __init__(
        self,
        replica: Replica,
        *,
        limits: LimitSettings,
        settings: LogSettings,
        helper: Executor,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._limits = limits
        self._settings = settings
        self._helper = helper
        self._now = now
        self._waiting: dict[int, dict[int, _Reader]] = {}
        self._deadlines: list[tuple[float, int, int]] = []
        self._serial = 0
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        replica.on_confirmed.append(self._confirmed)

    def fetch(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int) -> None:
        """Answer with BATCHES now or later. Raises NoSuchQueue, OffsetOutOfRange or Overloaded."""
        self._replica.queues.find_id(fetch.queue_id)
        if self._has_records(fetch):
            self._answer(fetch, endpoint, correlation_id)
        elif not fetch.wait_ms:
            self._send(fetch, endpoint, correlation_id, [])
        else:
            self._wait(fetch, endpoint, correlation_id)

    def forget(self, endpoint: Endpoint) -> None:
        """Its connection is gone: its readers give up their places."""
        for readers in self._waiting.values() if self._count else ():
            for serial in [serial for serial, reader in readers.items() if reader.endpoint is endpoint]:
                del readers[serial]
                self._count -= 1

    def tick(self, now: float) -> None:
        """Answer, with nothing, the readers whose deadline has come."""
        if len(self._deadlines) > 2 * self._count + _STALE_DEADLINES_MAX:
            # Those who were answered leave their deadline behind; a busy reader would leave thousands a second.
            self._deadlines = [each for each in self._deadlines if each[1] in self._waiting.get(each[2], ())]
            heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, serial, queue_id = heappop(self._deadlines)
            reader = self._waiting.get(queue_id, {}).pop(serial, None)
            if reader is not None:
                self._count -= 1
                self._send(reader.fetch, reader.endpoint, reader.correlation_id, [])

    # --- inside ---

    def _has_records(self, fetch: Fetch) -> bool:
        """Whether a confirmed record is there. Raises OffsetOutOfRange where none ever will be.

        A mirror may not know yet what its master has confirmed, so it lets a reader beyond its own knowledge wait.
        """
        index = self._replica.index
        following = index.next_confirmed(fetch.queue_id)
        begin = index.begin(fetch.queue_id)
        beyond = self._replica.is_master and fetch.queue_offset > index.next_appended(fetch.queue_id)
        if fetch.queue_offset < begin or beyond:
            raise OffsetOutOfRange(
                f"queue offset {fetch.queue_offset} is not among {begin} up to {following}; "
                "start at earliest or latest instead",
                begin=begin,
                next=following,
            )
        return fetch.queue_offset < following

    def _wait(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int) -> None:
        if self._count >= self._limits.max_waiting_fetches:
            raise Overloaded(
                f"{self._count} readers wait for records (limits.max_waiting_fetches)", limit="max_waiting_fetches"
            )
        self._serial += 1
        self._count += 1
        deadline = self._now() + min(fetch.wait_ms, WAIT_MS_MAX) / 1000
        reader = _Reader(deadline, self._serial, fetch, endpoint, correlation_id)
        self._waiting.setdefault(fetch.queue_id, {})[reader.serial] = reader
        heappush(self._deadlines, (deadline, reader.serial, fetch.queue_id))

    def _confirmed(self, gained: Set[int]) -> None:
        """More is confirmed: answer the readers of the queues that have something for them now."""
        if not self._count:
            return
        for queue_id in gained & self._waiting.keys():
            readers = self._waiting[queue_id]
            following = self._replica.index.next_confirmed(queue_id)
            ready = [reader for reader in readers.values() if reader.fetch.queue_offset < following]
            for reader in ready:
                del readers[reader.serial]
                self._count -= 1
                self._answer(reader.fetch, reader.endpoint, reader.correlation_id)
            if not readers:
                del self._waiting[queue_id]

    def _answer(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int) -> None:
        if not endpoint.open:
            return
        max_bytes = min(fetch.max_bytes, self._settings.send_at_once_bytes)
        parts: list[memoryview] = []
        cold: list[ColdRead] = []
        replica = self._replica
        for run in replica.index.entries(fetch.queue_id, fetch.queue_offset, max_bytes):
            end = run.log_offset + run.length
            view = replica.read(run.log_offset, run.length, until=end)
            if view is None:
                cold.append(replica.read_cold(run.log_offset, run.length, until=end))
            elif cold:
                break  # batches stay in order: the rest comes with the next fetch
            else:
                parts.append(view)
        if parts or not cold:
            self._send(fetch, endpoint, correlation_id, parts)
        else:
            self._spawn_cold(fetch, endpoint, correlation_id, cold)

    def _spawn_cold(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int, jobs: list[ColdRead]) -> None:
        async def bring() -> None:
            loop = asyncio.get_running_loop()
            try:
                runs = await loop.run_in_executor(self._helper, lambda: [job.run() for job in jobs])
            except MirrorlogError as error:
                endpoint.send([error_frame(error, correlation_id)])
                return
            self._send(fetch, endpoint, correlation_id, [memoryview(run) for run in runs])

        task = asyncio.ensure_future(bring())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int, batches: list[memoryview]) -> None:
        index = self._replica.index
        facts = BATCHES.pack(
            index.begin(fetch.queue_id),
            index.next_confirmed(fetch.queue_id),
            self._replica.confirmed,
            self._replica.epochs.current,
            len(batches),
        )
        size = len(facts) + sum(map(len, batches))
        endpoint.send([frame_header(FrameType.BATCHES, size, correlation_id) + facts, *batches])
