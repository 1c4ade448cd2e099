"""The retention of a log on the node that masters it, and of its queues with limits of their own, held by landings, or
kept until they are settled. Thin: `commitlog.retention` decides.

A round says, in the log, where queues begin now; then it moves the log's begin behind the segments in which nothing is
alive; and of the first one that is worth it, it appends what is alive once more. Only when all copies that count have
confirmed that does the segment pass for dead. So a crash at any moment leaves every live record in at least one place
that counts; what it leaves twice costs some space until both places are dead.

Nothing of this is remembered but in the log: another round, after a restart too, finds what the last one has left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.retention.kept_records import ALL_DEAD, KeptRecords
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.commitlog.index.live import LiveRun, LiveRuns, segment_parts
from mirrorlog.commitlog.index.past import Past
from mirrorlog.commitlog.retention import (
    Pin,
    RetentionLimits,
    SegmentLife,
    SegmentParts,
    decide,
    first_queue_offsets,
    next_start,
)
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.errors import IndexDoubtful, LogUnavailable, MirrorlogError
from mirrorlog.queues.changes import LogStartMoved, QueueStartsMoved, encode_change

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 1024 * 1024
"""Read and confirmed at once."""

AT_ONCE: Final = 32
"""Batches of a piece that are appended in one step of the loop: half a millisecond."""

PAUSE: Final = 20
"""A decision is followed by a pause of so many times its length: it takes 50 ms for 10,000 queues in 100 segments, and
what it would find the next time waits well."""

SURVEYED_AT_ONCE: Final = 16
BEGINS_PER_CHANGE: Final = 1000

_T = TypeVar("_T")


class QueueRetention:
    """One log that this node masters. `unread`: see `KeptRecords`. `copy_share` and `copy_bytes`: see
    `log.retention_copy_percent` and `log.retention_copy_bytes`. `past_helper`: the one that has the past for itself;
    `read_helper`: for cold reads."""

    def __init__(
        self,
        replica: Replica,
        publisher: LogPublisher,
        *,
        copy_share: float,
        copy_bytes: int,
        past_helper: Executor,
        read_helper: Executor,
        now: Callable[[], float],
        now_us: Callable[[], int],
        unread: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self.kept = KeptRecords(replica, unread)
        self._replica = replica
        self._publisher = publisher
        self._copy_share = copy_share
        self._copy_bytes = copy_bytes
        self._past_helper = past_helper
        self._read_helper = read_helper
        self._now = now
        self._now_us = now_us
        self._limits = RetentionLimits()
        self._parts: dict[int, SegmentParts] = {}
        # See `decide`.
        self._copied: dict[int, bool] = {}
        self._copied_to = 0
        self._held_at = 0
        self._deleted: frozenset[int] = frozenset()
        self._asked = 0
        self._walk: LiveRuns | None = None
        self._allowed_bytes = float(copy_bytes)
        self._allowed_at = now()
        self._not_before = now()
        self._task: asyncio.Task[None] | None = None
        self._confirm: asyncio.Future[None] | None = None
        self._trouble = ""
        self.pin: Pin | None = None
        """As the last round has found it."""

    @property
    def ready(self) -> bool:
        """Whether a round begins if it is asked for now."""
        resting = self._task is None or self._task.done()
        return resting and self._now() >= self._not_before and not self._publisher.stopping

    def wake(self, limits: RetentionLimits) -> None:
        """Begin a round under the log's `limits`, unless one is under way, or was a moment ago."""
        self._limits = limits
        # Of a segment that is appended to nothing goes.
        if self.ready and not self._replica.log.is_one_segment:
            self._task = asyncio.ensure_future(self._round(limits))

    async def stop(self) -> None:
        """Wait for the job that is under way; nothing is appended any more. After `LogPublisher.stopping`."""
        if self._confirm is not None:
            self._confirm.cancel()
        if self._task is not None:
            await self._task

    # --- inside ---

    async def _round(self, limits: RetentionLimits) -> None:
        """Those of a low disk hold until a segment went, whatever is checked meanwhile, and not as long as a round may
        take."""
        try:
            asked = self._asked
            while await self._step(limits):
                if self._asked > asked:
                    limits = self._limits
            self._trouble = ""
        except asyncio.CancelledError:
            # Only a stop does that, to the wait for a confirm.
            return
        except Exception as error:
            if self._publisher.stopping:
                return
            # The next round tries again: meanwhile the log keeps more than it must.
            if self._trouble != str(error):
                self._trouble = str(error)
                expected = isinstance(error, MirrorlogError)
                logger.warning(
                    "retention_waits log=%s reason=%r", self._name, str(error), exc_info=None if expected else error
                )

    async def _step(self, limits: RetentionLimits) -> bool:
        """One step; whether another one may follow at once."""
        await self._survey()
        log = self._replica.log
        if self.kept.lowered != self._held_at:
            # What a hold, or a group, keeps now may not be among what was copied before it.
            self._copied.clear()
            self._walk = None
        held_at = self._held_at = self.kept.lowered
        decision, seconds = await self._run(
            self._past_helper,
            partial(
                _timed,
                decide,
                self._segments(),
                self.kept.queues(),
                begin=self._begin,
                end=log.end,
                at_most=min(log.confirmed, log.state_from),
                now_us=self._now_us(),
                limits=limits,
                copied=dict(self._copied),
                copy_share=self._copy_share,
            ),
        )
        self._not_before = self._now() + PAUSE * seconds
        self._deleted, self.pin = decision.deleted, decision.pin
        self._check_running()
        if not await self._raise_begins(decision.queue_starts, held_at=held_at):
            return True
        if decision.begin is not None:
            self._publisher.append_control(encode_change(LogStartMoved(log_offset=decision.begin)))
            self._asked = decision.begin
        return decision.copy is not None and await self._copy(decision.copy)

    async def surveyed(self) -> list[SegmentParts]:
        """What there is, once all of it was looked at that is not appended to any more."""
        log, hot_from = self._replica.log, self._replica.index.hot_from
        while any(self._begin < info.end <= hot_from and info.start not in self._parts for info in log.segments()):
            await self._survey()
            self._check_running()
        return self._segments()

    @property
    def _name(self) -> str:
        return self._replica.assignment.name

    @property
    def _begin(self) -> int:
        return max(self._replica.begin_ahead, self._asked)

    # --- what there is ---

    async def _survey(self) -> None:
        """Look into the tables that are new, the oldest first; forget those of segments that are gone."""
        log = self._replica.log
        infos = [info for info in log.segments() if info.end > self._begin]
        starts = {info.start for info in infos}
        self._parts = {start: parts for start, parts in self._parts.items() if start in starts}
        self._copied = {start: expired for start, expired in self._copied.items() if start in starts}
        new = (info for info in infos if info.start not in self._parts and info.end <= self._replica.index.hot_from)
        for info in islice(new, SURVEYED_AT_ONCE):
            table_parts = partial(_parts_of, start=info.start, last_append_time_us=info.last_append_time_us)
            self._parts[info.start] = await self._ask(table_parts)

    def _segments(self) -> list[SegmentParts]:
        """Those that were looked at, from the begin on and without a gap."""
        found: list[SegmentParts] = []
        for info in self._replica.log.segments():
            if info.end > self._begin:
                if info.start not in self._parts:
                    break
                found.append(self._parts[info.start])
        return found

    async def _raise_begins(self, begins: Mapping[int, int], *, held_at: int) -> bool:
        """Whether nobody has come to hold more since `held_at`: what is to be freed is to be decided anew then. When it
        is true it was so a moment ago, in this step of the loop."""
        items = iter(begins.items())
        while self.kept.lowered == held_at:
            some = dict(islice(items, BEGINS_PER_CHANGE))
            if not some:
                return True
            # Of one that was deleted meanwhile nothing is said any more.
            there = {queue_id: begin for queue_id, begin in some.items() if self._replica.queues.keeps(queue_id)}
            if there:
                self._publisher.append_control(encode_change(QueueStartsMoved(begins=there)))
            await self._let_others()
        return False

    # --- copies ---

    async def _copy(self, segment: SegmentLife) -> bool:
        """Append what is alive of a segment once more; whether all of it is confirmed elsewhere now."""
        if self._replica.log.confirmed < self._copied_to:
            return False
        runs = self._walk_over(segment)
        total, held_at = 0, self.kept.lowered
        while not self._publisher.data_refused and self._may_copy():
            # A piece that fails is met again.
            self._walk = None
            piece = await self._ask(lambda past: runs.next_piece(past, PIECE_BYTES))
            self._check_running()
            if self.kept.lowered != held_at:
                return True  # there may be more to copy than was looked for
            if not piece:
                self._copied[segment.start] = segment.expired
                if total:
                    logger.info("live_batches_copied log=%s segment=%s bytes=%s", self._name, segment.start, total)
                return True
            total += await self._copy_piece([each for each in piece if not self._is_copied(each)])
            self._walk = runs
        return False

    def _walk_over(self, segment: SegmentLife) -> LiveRuns:
        """From where the last round stopped, for its pieces are confirmed; from the segment's start when a queue's
        limits came or went since. What died since is copied for nothing, once."""
        queues = self._replica.queues
        own = frozenset(queues.limits)
        walk = self._walk
        if walk is not None and (walk.start, walk.own, walk.expired) == (segment.start, own, segment.expired):
            return walk
        return LiveRuns(
            segment.start,
            log_start=self._replica.log.begin,
            begins={**queues.start_offsets, **dict.fromkeys(self._deleted, ALL_DEAD)},
            own=own,
            expired=segment.expired,
            floors=self.kept.floors(),
        )

    def _may_copy(self) -> bool:
        now = self._now()
        gained = (now - self._allowed_at) * self._copy_bytes
        self._allowed_bytes = min(self._allowed_bytes + gained, float(self._copy_bytes))
        self._allowed_at = now
        return self._allowed_bytes > 0

    def _is_copied(self, live: LiveRun) -> bool:
        """Whether memory has the batch: then that is a copy, for its segment has left the memory."""
        return self._replica.index.holds(live.queue_id, live.run.base_queue_offset)

    async def _copy_piece(self, piece: Sequence[LiveRun]) -> int:
        """Bytes that were appended; confirmed by all copies when this returns."""
        if not piece:
            return 0
        replica = self._replica
        in_order = sorted(live.run for live in piece)
        jobs: list[ColdRead] = []
        for some in _few(in_order):
            jobs += [
                replica.log.read_cold(run.log_offset, run.length, until=run.log_offset + run.length) for run in some
            ]
            await self._let_others()
        batches = await self._run(self._read_helper, lambda: [job.run() for job in jobs])
        self._check_running()
        await self._say_begins({live.queue_id for live in piece} - replica.queues.start_offsets.keys())
        for few in _few(batches):
            self._append(few)
            await self._let_others()
        await self._confirmed()
        return sum(map(len, batches))

    async def _say_begins(self, queue_ids: Set[int]) -> None:
        """Before the first copies of these queues. Not where the log begins now, but where it will by what is decided:
        other nodes may have let go already what is below."""
        firsts = first_queue_offsets(self._segments(), queue_ids) if queue_ids else {}
        index = self._replica.index
        begins = {queue_id: max(base, index.begin(queue_id)) for queue_id, base in firsts.items()}
        # They are begun at what is there: no hold can be below.
        while not await self._raise_begins(begins, held_at=self.kept.lowered):
            pass

    def _append(self, batches: Sequence[memoryview]) -> None:
        """Raises MirrorlogError; some may be there then, and are met again."""
        assert self._publisher.log is not None
        mastership = self._publisher.log.mastership
        mastership.check_writable()
        try:
            for batch in batches:
                header = read_header(batch)
                if not self._replica.queues.keeps(header.queue_id):
                    continue  # deleted while it was read
                self._replica.append_copied(batch)
                self._allowed_bytes -= header.length
        finally:
            self._copied_to = self._replica.log.end
            self._publisher.log.progressed(mastership.appended(self._replica.log.end))

    async def _confirmed(self) -> None:
        """Until all copies have what stands in the log now. Raises MirrorlogError at the deadline."""
        confirm = self._confirm = asyncio.get_running_loop().create_future()

        def done(error: MirrorlogError | None) -> None:
            if confirm.done():
                return
            if error is None:
                confirm.set_result(None)
            else:
                confirm.set_exception(error)

        self._publisher.when_confirmed(done)
        try:
            await confirm
        finally:
            self._confirm = None

    # --- helpers ---

    async def _let_others(self) -> None:
        """Have the loop do what waits for it, in the middle of a piece."""
        await asyncio.sleep(0)
        self._check_running()

    def _check_running(self) -> None:
        if self._publisher.stopping or not self._replica.usable:
            raise LogUnavailable("the node is stopping")

    async def _ask(self, question: Callable[[Past], _T]) -> _T:
        past = self._replica.past
        assert past is not None
        try:
            return await self._run(self._past_helper, partial(question, past))
        except IndexDoubtful as error:
            logger.warning("index_rebuilt log=%s reason=%r", self._name, str(error))
            assert self._replica.past_upkeep is not None
            await self._run(self._past_helper, partial(self._replica.past_upkeep.rebuild, self._replica.log))
            raise LogUnavailable(f"the index of log {self._name} was rebuilt") from None

    async def _run(self, helper: Executor, job: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(helper, job)


def _few(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """All of them, as many at a time as the loop takes in one step."""
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))


def _timed(job: Callable[..., _T], *args: Any, **options: Any) -> tuple[_T, float]:
    """What a job gives, and how many seconds it took without its wait for the helper."""
    began = time.perf_counter()
    return job(*args, **options), time.perf_counter() - began


def _parts_of(past: Past, start: int, last_append_time_us: int) -> SegmentParts:
    if start not in past.tables.heads:
        raise LogUnavailable(f"segment {start} is gone")
    return segment_parts(past.tables.get(start), last_append_time_us=last_append_time_us)


class Retention:
    """Of one log that this node masters: the decision to free its begin, which every copy follows. `queues`: takes
    over while the log has queues with limits of their own, or held by landings."""

    def __init__(
        self,
        replica: Replica,
        publisher: LogPublisher,
        *,
        limits: RetentionLimits,
        now_us: Callable[[], int],
        queues: QueueRetention,
    ) -> None:
        self._replica = replica
        self._publisher = publisher
        self.limits = limits
        self._now_us = now_us
        self.queues = queues
        self._asked = 0
        self._disk_low = False

    def disk_is_low(self) -> None:
        """The next check that can decide frees the oldest segment too.

        One per measurement: it takes a moment until what goes is seen on the disk, and more would go for nothing.
        """
        self._disk_low = True

    def check(self) -> None:
        """Move the begin if anything can go; after a flush, a few times a second at most."""
        log = self._replica.log
        segments, known = log.segments(), max(self._replica.begin_ahead, self._asked)
        limits = self.limits
        queues_due = self.queues.kept.any
        if self._disk_low and (self.queues.ready or not queues_due):
            limits = limits.without_oldest(segments, begin=known, end=log.end)
            self._disk_low = False
        if queues_due:
            self.queues.wake(limits)
            return
        begin = next_start(
            segments,
            begin=known,
            end=log.end,
            at_most=min(log.confirmed, log.state_from),
            now_us=self._now_us(),
            limits=limits,
        )
        if begin is None or self._publisher.stopping:
            return
        try:
            self._publisher.append_control(encode_change(LogStartMoved(log_offset=begin)))
            self._asked = begin
        except MirrorlogError as error:
            # The next check tries again; meanwhile the log keeps more than it must.
            logger.debug("begin_not_moved log=%s reason=%r", self._replica.assignment.name, str(error))

    async def stop(self) -> None:
        """Nothing is appended any more. After `LogPublisher.stopping`."""
        await self.queues.stop()
