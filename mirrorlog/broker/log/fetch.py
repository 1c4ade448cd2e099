"""Fetching: whole batches of a queue below the confirmed offset, from master or mirror; at the end a reader waits.

A fetch that has something is answered at once with views of the log. One that stands at the confirmed end waits for
the next confirm of its queue or its own deadline, in one list per queue and one heap: no timer and no task per reader.

What a queue shows is dense, but for what was given up after a loss. So no answer runs over a gap, and whoever stands in
one is told that its records are lost, and where to go on: a gap is never passed over in silence.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence, Set
from concurrent.futures import Executor
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from mirrorlog.broker.log.maintenance import PastKeeper
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.resources.budgets import OutgoingBudget
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.config import LimitSettings, LogSettings
from mirrorlog.errors import LogUnavailable, MirrorlogError, NoSuchQueue, OffsetOutOfRange, Overloaded, PositionLost
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import BATCHES, Fetch, FrameType, frame_header
from mirrorlog.wire.messages.codec import error_frame

logger = logging.getLogger(__name__)

WAIT_MS_MAX = 60_000
COLD_READS_MAX: Final = 2
"""Answers from disk that are made for one connection at a time; what it asks beyond waits, so that one that asks far
ahead does not keep the disk from all others, mirrors that catch up among them."""
ROOM_S: Final = 5.0
"""For how long an answer from disk may wait for room in the node's budget, if its reader does not wait for longer."""
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
        past: PastKeeper,
        helper: Executor,
        now: Callable[[], float],
        budget: OutgoingBudget[Endpoint] | None = None,
    ) -> None:
        """`budget`: of all readers of the node; None: without a limit."""
        self._replica = replica
        self._limits = limits
        self._settings = settings
        self._past = past
        self._helper = helper
        self._budget = budget or OutgoingBudget(sys.maxsize)
        self._turned = asyncio.Event()
        self._end: MirrorlogError | None = None
        """By what all waits were ended last."""
        self._now = now
        self._waiting: dict[int, dict[int, _Reader]] = {}
        self._deadlines: list[tuple[float, int, int]] = []
        self._serial = 0
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._cold: dict[Endpoint, asyncio.Semaphore] = {}
        self._listens = False
        replica.on_anew.append(self._began_anew)
        replica.on_deleted.append(self._deleted)

    def fetch(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int) -> None:
        """Answer with BATCHES now or later. Raises NoSuchQueue, OffsetOutOfRange, PositionLost or Overloaded."""
        self._replica.queues.check_read(fetch.queue_id, fetch.queue_offset)
        if self._has_records(fetch):
            self._answer(fetch, endpoint, correlation_id)
        elif not fetch.wait_ms:
            self._send(fetch, endpoint, correlation_id, [], 0)
        else:
            self._wait(fetch, endpoint, correlation_id)

    def forget(self, endpoint: Endpoint) -> None:
        """Its connection is gone: its readers give up their places."""
        self._cold.pop(endpoint, None)
        self._budget.forget(endpoint)
        for readers in self._waiting.values() if self._count else ():
            for serial in [serial for serial, reader in readers.items() if reader.endpoint is endpoint]:
                del readers[serial]
                self._count -= 1

    def tick(self, now: float) -> None:
        """Answer, with nothing, the readers whose deadline has come; who waits for room may ask again."""
        self._turn()
        if len(self._deadlines) > 2 * self._count + _STALE_DEADLINES_MAX:
            # Those who were answered leave their deadline behind; a busy reader would leave thousands a second.
            self._deadlines = [each for each in self._deadlines if each[1] in self._waiting.get(each[2], ())]
            heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, serial, queue_id = heappop(self._deadlines)
            reader = self._waiting.get(queue_id, {}).pop(serial, None)
            if reader is not None:
                self._count -= 1
                self._send(reader.fetch, reader.endpoint, reader.correlation_id, [], 0)

    def end_waits(self, error: MirrorlogError) -> None:
        """Nothing will come here for whoever waits: all are told `error`."""
        self._end = error
        self._turn()
        waiting, self._waiting, self._count = self._waiting, {}, 0
        for readers in waiting.values():
            for reader in readers.values():
                reader.endpoint.send([error_frame(error, reader.correlation_id)])

    def end_refused(self, refused: Callable[[Endpoint, int], MirrorlogError | None]) -> None:
        """Users have changed: who may not read a queue any more waits for nothing of it. `refused`: why not, by its
        connection and the queue's id."""
        for queue_id, readers in self._waiting.items() if self._count else ():
            for serial, reader in list(readers.items()):
                if (error := refused(reader.endpoint, queue_id)) is not None:
                    del readers[serial]
                    self._count -= 1
                    reader.endpoint.send([error_frame(error, reader.correlation_id)])

    def waiting(self, queue_id: int) -> int:
        """How many wait for records of a queue."""
        return len(self._waiting.get(queue_id, ()))

    def end_queue(self, queue_id: int, error: MirrorlogError) -> None:
        """Nothing comes here any more for whoever waits for records of a queue: all are told `error`."""
        readers = self._waiting.pop(queue_id, {})
        self._count -= len(readers)
        for reader in readers.values():
            reader.endpoint.send([error_frame(error, reader.correlation_id)])

    # --- inside ---

    def _turn(self) -> None:
        """Who waits for room looks again."""
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    def _deleted(self, queue_ids: Set[int]) -> None:
        for queue_id in queue_ids & self._waiting.keys():
            self.end_queue(queue_id, NoSuchQueue(f"the queue with the id {queue_id} was deleted", queue_id=queue_id))

    def _began_anew(self) -> None:
        """The copy is another one: whoever waits here stands at a place of the former."""
        self.end_waits(LogUnavailable(f"the copy of log {self._replica.assignment.name} begins anew; ask again"))

    def _has_records(self, fetch: Fetch) -> bool:
        """Whether a confirmed record is there. Raises OffsetOutOfRange where none ever will be, PositionLost in a gap.

        A mirror may not know yet what its master has confirmed, so it lets a reader beyond its own knowledge wait.
        """
        index = self._replica.index
        following = index.next_confirmed(fetch.queue_id)
        begin = index.begin(fetch.queue_id)
        if (go_on_at := index.gap_end(fetch.queue_id, fetch.queue_offset)) is not None:
            raise self._lost(fetch, go_on_at)
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
            raise self._overloaded(self._count, "records")
        self._serial += 1
        self._count += 1
        if not self._listens:
            self._replica.on_confirmed.insert(0, self._confirmed)  # before who gives out what is confirmed
            self._listens = True
        deadline = self._now() + min(fetch.wait_ms, WAIT_MS_MAX) / 1000
        reader = _Reader(deadline, self._serial, fetch, endpoint, correlation_id)
        self._waiting.setdefault(fetch.queue_id, {})[reader.serial] = reader
        heappush(self._deadlines, (deadline, reader.serial, fetch.queue_id))

    def _confirmed(self, gained: Set[int]) -> None:
        """More is confirmed: answer the readers of the queues that have something for them now."""
        if not self._count and self._listens:
            self._replica.on_confirmed.remove(self._confirmed)
            self._listens = False
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
        index = self._replica.index
        if (go_on_at := index.gap_end(fetch.queue_id, fetch.queue_offset)) is not None:
            # Waiters come here when the jump is confirmed.
            endpoint.send([error_frame(self._lost(fetch, go_on_at), correlation_id)])
            return
        if fetch.queue_offset < index.begin(fetch.queue_id):
            # Freed, or another copy, since it was asked for: what comes next must not pass for it.
            endpoint.send([error_frame(self._freed(fetch), correlation_id)])
            return
        max_bytes = min(fetch.max_bytes, self._settings.send_at_once_bytes)
        if index.past_until(fetch.queue_id, fetch.queue_offset) is not None:
            work = partial(self._answer_from_past, fetch, endpoint, correlation_id)
            self._spawn(work, fetch, endpoint, correlation_id)
            return
        runs = index.entries(fetch.queue_id, fetch.queue_offset, max_bytes)
        go_on_at = runs[0].base_queue_offset if runs else index.next_confirmed(fetch.queue_id)
        if go_on_at > fetch.queue_offset:
            endpoint.send([error_frame(self._lost(fetch, go_on_at), correlation_id)])
            return
        parts: list[memoryview] = []
        count = 0
        for joined in join_runs(runs):
            view = self._replica.log.read(joined.log_offset, joined.length, until=joined.log_offset + joined.length)
            if view is None or len(view) < joined.length:
                break  # batches stay in order: the rest comes with the next fetch
            parts.append(view)
            count += joined.batches
        if parts or not runs:
            self._send(fetch, endpoint, correlation_id, parts, count)
        else:
            work = partial(self._answer_cold, fetch, endpoint, correlation_id, runs)
            self._spawn(work, fetch, endpoint, correlation_id)

    async def _answer_from_past(self, fetch: Fetch, endpoint: Endpoint, correlation_id: int) -> None:
        """Only in its turn: records that are copied while it is waited for stand in memory then."""
        queue_id, at = fetch.queue_id, fetch.queue_offset
        log_start, until = self._replica.log.begin, self._replica.index.past_until(queue_id, at)
        if until is None:
            self._answer(fetch, endpoint, correlation_id)
            return
        max_bytes = min(fetch.max_bytes, self._settings.send_at_once_bytes)
        runs = await self._past.entries(queue_id, at, max_bytes, until=until)
        if at < self._replica.index.begin(queue_id):
            raise self._freed(fetch)
        if self._replica.log.begin != log_start:
            # What was found may lack what a freed segment had of it, and that is copied, in memory.
            self._answer(fetch, endpoint, correlation_id)
        elif runs and runs[0].base_queue_offset <= at:
            await self._answer_cold(fetch, endpoint, correlation_id, runs)
        elif self._replica.index.past_until(queue_id, at) == until:
            raise self._lost(fetch, runs[0].base_queue_offset if runs else until)
        else:
            # The memory is not what it was when the past was asked.
            self._answer(fetch, endpoint, correlation_id)

    async def _answer_cold(
        self, fetch: Fetch, endpoint: Endpoint, correlation_id: int, runs: Sequence[QueuedBatch]
    ) -> None:
        jobs: list[ColdRead] = []
        for joined in join_runs(runs):
            at, end = joined.log_offset, joined.log_offset + joined.length
            while at < end:  # a run ends with its segment
                jobs.append(self._replica.log.read_cold(at, end - at, until=end))
                at = jobs[-1].end
        loop = asyncio.get_running_loop()
        content = await loop.run_in_executor(self._helper, lambda: [memoryview(job.run()) for job in jobs])
        if endpoint.open:
            self._budget.gave(endpoint, sum(map(len, content)))
        self._send(fetch, endpoint, correlation_id, content, len(runs))

    @staticmethod
    def _overloaded(count: int, what: str) -> Overloaded:
        return Overloaded(f"{count} readers wait for {what} (limits.max_waiting_fetches)", limit="max_waiting_fetches")

    def _freed(self, fetch: Fetch) -> OffsetOutOfRange:
        """The log speaks of log offsets; a reader knows queue offsets."""
        index = self._replica.index
        begin, following = index.begin(fetch.queue_id), index.next_confirmed(fetch.queue_id)
        return OffsetOutOfRange(
            f"queue offset {fetch.queue_offset} was freed by retention; start at earliest, {begin} or later",
            begin=begin,
            next=following,
        )

    def _lost(self, fetch: Fetch, go_on_at: int) -> MirrorlogError:
        elsewhere = self._replica.queues.moves.elsewhere(fetch.queue_id, fetch.queue_offset)
        if elsewhere is not None and self._replica.index.gap_end(fetch.queue_id, fetch.queue_offset) is None:
            return elsewhere
        if (left := self._replica.queues.moves.left.get(fetch.queue_id)) is not None:
            go_on_at = min(go_on_at, left.next_queue_offset)  # what follows is in another log, and not lost
        # Without `begin`: it says nothing of a gap, and readers take it for what retention has left.
        return PositionLost(
            f"what stood from queue offset {fetch.queue_offset} on is lost, confirmed records perhaps: a loss of the "
            f"log's newest records was declared; go on at {go_on_at}",
            go_on_at=go_on_at,
            next=self._replica.index.next_confirmed(fetch.queue_id),
        )

    def _spawn(
        self, work: Callable[[], Awaitable[None]], fetch: Fetch, endpoint: Endpoint, correlation_id: int
    ) -> None:
        if len(self._tasks) >= self._limits.max_waiting_fetches:
            endpoint.send([error_frame(self._overloaded(len(self._tasks), "the disk"), correlation_id)])
            return
        turns = self._cold.setdefault(endpoint, asyncio.Semaphore(COLD_READS_MAX))
        log_start = self._replica.log.begin

        size = min(fetch.max_bytes, self._settings.send_at_once_bytes)
        room = partial(
            self._room, endpoint, size, self._end, self._now() + max(ROOM_S, min(fetch.wait_ms, WAIT_MS_MAX) / 1000)
        )

        async def in_turn() -> None:
            async with turns:
                if (refused := await room()) is not None:
                    endpoint.send([error_frame(refused, correlation_id)])
                else:
                    try:
                        await self._work_or_again(work, fetch, endpoint, correlation_id, log_start)
                    finally:
                        self._budget.ended(size)

        async def guarded() -> None:
            try:
                await in_turn()
            except PositionLost as error:
                endpoint.send([error_frame(error, correlation_id)])
            except OffsetOutOfRange:
                endpoint.send([error_frame(self._freed(fetch), correlation_id)])
            except MirrorlogError as error:
                endpoint.send([error_frame(error, correlation_id)])
            except Exception as error:
                logger.exception("cold_fetch_failed log=%s", self._replica.assignment.name)
                endpoint.send([error_frame(MirrorlogError(f"internal error: {type(error).__name__}"), correlation_id)])

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _room(
        self, endpoint: Endpoint, size: int, end: MirrorlogError | None, deadline: float
    ) -> MirrorlogError | None:
        """Begin in the node's budget when there is room for so much; or why it is not to be read. `end`: by what all
        waits were ended before it was asked for."""
        while endpoint.open:
            if self._end is not end:
                return self._end
            if self._budget.begin(endpoint, size):
                return None
            if self._now() >= deadline:
                break
            await self._turned.wait()
        return Overloaded("what was read for others is not taken yet; ask again", limit="outgoing_bytes_total")

    async def _work_or_again(
        self, work: Callable[[], Awaitable[None]], fetch: Fetch, endpoint: Endpoint, correlation_id: int, log_start: int
    ) -> None:
        """`log_start`: where the log began when it was found out what to read."""
        try:
            await work()
        except PositionLost:
            raise
        except OffsetOutOfRange:
            moved = self._replica.usable and self._replica.log.begin > log_start
            if not moved or fetch.queue_offset < self._replica.index.begin(fetch.queue_id):
                raise
            # Their segment went while they were looked for there; alive, they stand elsewhere now, copied.
            self._answer(fetch, endpoint, correlation_id)

    def _send(
        self, fetch: Fetch, endpoint: Endpoint, correlation_id: int, parts: Sequence[memoryview], batch_count: int
    ) -> None:
        if not self._replica.usable:
            endpoint.send([error_frame(LogUnavailable("the copy begins anew; ask again"), correlation_id)])
            return
        index = self._replica.index
        facts = BATCHES.pack(
            index.begin(fetch.queue_id),
            index.next_confirmed(fetch.queue_id),
            self._replica.log.confirmed,
            self._replica.log.epochs.current,
            batch_count,
        )
        size = len(facts) + sum(map(len, parts))
        self._replica.counters.fetched(size)
        if endpoint.meter is not None:
            endpoint.meter.read(size)
        endpoint.send([frame_header(FrameType.BATCHES, size, correlation_id) + facts, *parts])


class JoinedRuns(NamedTuple):
    """Batches that stand one after the other in the log; `length` is bytes."""

    log_offset: int
    length: int
    batches: int


def join_runs(runs: Sequence[QueuedBatch]) -> list[JoinedRuns]:
    """Neighbours as one: a read and a view for each, not for each batch."""
    found: list[JoinedRuns] = []
    for run in runs:
        last = found[-1] if found else None
        if last is not None and last.log_offset + last.length == run.log_offset:
            found[-1] = JoinedRuns(last.log_offset, last.length + run.length, last.batches + 1)
        else:
            found.append(JoinedRuns(run.log_offset, run.length, 1))
    return found
