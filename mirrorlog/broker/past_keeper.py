"""What is far behind leaves the memory: sealed segments get their tables, freed ones lose their entries. Thin.

All work on tables and on the index of the past is done on one helper, one job after the other, so that LMDB has one
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from mirrorlog.broker.replica import Replica
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.index import Run
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.past import Past
from mirrorlog.commitlog.table_builder import build_table
from mirrorlog.errors import DiskFull, IndexDoubtful, LogUnavailable, MirrorlogError, Overloaded

logger = logging.getLogger(__name__)

QUESTIONS_MAX: Final = 1_000
"""Look-ups in the past of one log that may wait for its helper."""

_T = TypeVar("_T")


class PastKeeper:
    """The past of one replica. `failed` is called with what makes this node's copy untrustworthy."""

    def __init__(self, replica: Replica, *, helper: Executor, failed: Callable[[MirrorlogError], None]) -> None:
        self._replica = replica
        self._helper = helper
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._rebuilding: asyncio.Task[None] | None = None
        self._questions = 0
        self._resting: CommitLog | None = None
        self._paused = False
        self._waits_for_space = False

    def wake(self) -> None:
        """There may be something to do: after a flush, or when the begin has moved."""
        if (self._task is None or self._task.done()) and self._due():
            self._task = asyncio.ensure_future(self._work())

    async def stop(self) -> None:
        """Wait for the job that is under way; nothing more is done on this log."""
        self._resting = self._replica.log if self._replica.usable else self._resting
        if self._task is not None:
            await self._task

    async def pause(self) -> None:
        """Wait for the job that is under way; no other is begun until `resume`. Look-ups go on."""
        self._paused = True
        if self._task is not None:
            await self._task

    def resume(self) -> None:
        """After `pause`: the next `wake` may begin a job."""
        self._paused = False

    async def entries(self, queue_id: int, queue_offset: int, max_bytes: int, *, until: int) -> list[Run]:
        """See `Past.entries`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.entries(queue_id, queue_offset, max_bytes, until=until))

    async def find_time(self, queue_id: int, append_time_us: int) -> int | None:
        """See `Past.find_time`. Raises LogUnavailable while the index is made anew."""
        return await self._ask(lambda past: past.find_time(queue_id, append_time_us))

    # --- inside ---

    def _due(self) -> bool:
        if self._paused or not self._replica.usable or self._replica.log is self._resting:
            return False
        return self._replica.log.next_to_seal() is not None or self._begin_due()

    async def _work(self) -> None:
        try:
            while self._due():
                if self._begin_due():
                    await self._move_begin(self._replica.begin_decided)
                if (segment := self._replica.log.next_to_seal()) is not None:
                    await self._seal(*segment)
                self._waits_for_space = False
        except DiskFull as error:
            # The memory keeps what it has, and the next flush wakes this again.
            if not self._waits_for_space:
                logger.warning("past_waits_for_space log=%s reason=%r", self._replica.assignment.name, str(error))
            self._waits_for_space = True
        except MirrorlogError as error:
            logger.critical("past_failed log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed(error)
        except Exception as error:
            logger.critical("past_failed log=%s", self._replica.assignment.name, exc_info=error)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    async def _seal(self, start: int, end: int) -> None:
        replica = self._replica
        pieces = replica.index.rows(max(start, replica.begin), end)

        def make_table() -> None:
            content = build_table(pieces, start=start, end=end, seed=replica.log.seed)
            try:
                replica.log.tables.store(start, end, content)
            except OSError as error:
                raise disk_error(error, "write a table in", replica.log.directory) from None

        await self._run(make_table)
        await self._run(partial(replica.add_to_past, start))
        replica.log.seal(end)
        replica.index.evict(end)
        logger.info("segment_sealed log=%s start=%s end=%s", replica.assignment.name, start, end)

    def _begin_due(self) -> bool:
        replica = self._replica
        return replica.begin < replica.begin_decided <= replica.log.state_from

    async def _move_begin(self, begin: int) -> None:
        replica = self._replica
        begins = await self._run(partial(replica.begins_behind, begin))
        if not replica.usable:
            return
        replica.begin_moved(begin, begins)
        await self._run(partial(replica.drop_past, begin))
        logger.info("begin_moved log=%s begin=%s", replica.assignment.name, begin)

    async def _ask(self, question: Callable[[Past], _T]) -> _T:
        past = self._replica.past
        name = self._replica.assignment.name
        if past is None or not self._replica.usable:
            raise LogUnavailable(f"this copy of log {name} begins anew; ask again")
        if self._questions >= QUESTIONS_MAX:
            raise Overloaded(f"{QUESTIONS_MAX} look-ups in the past of log {name} wait", limit="past_lookups")
        self._questions += 1
        try:
            return await self._run(partial(question, past))
        except IndexDoubtful as error:
            await self._rebuild(str(error))
            raise LogUnavailable(f"the index of log {name} was rebuilt; ask again") from None
        except OSError as error:
            raise disk_error(error, "look into the past of", self._replica.log.directory) from None
        finally:
            self._questions -= 1

    async def _rebuild(self, reason: str) -> None:
        """Once for all who found it damaged."""
        if self._rebuilding is None or self._rebuilding.done():
            logger.warning("index_rebuilt log=%s reason=%r", self._replica.assignment.name, reason)
            self._rebuilding = asyncio.ensure_future(self._run(self._replica.rebuild_past))
        await asyncio.shield(self._rebuilding)

    async def _run(self, job: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, job)
