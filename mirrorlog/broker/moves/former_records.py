"""What queues have left in logs that this node masters, for the master of the log that each is in now (decision 0051).

Batches are given from the newest one down: so what is in the queue's own log is one stretch up to its end at any time,
and what retention will free first is copied last. A record is passed over only where it is known to be gone: freed, or
given up after a loss. Of one that is not found and should be there nobody is told anything, and the copying waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import accumulate
from typing import Final, TypeVar
from uuid import UUID

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.fetch import join_runs
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import publisher_of
from mirrorlog.cluster.requests import (
    AskBegin,
    AskHeld,
    AskOfFormer,
    AskRecords,
    BeginTold,
    HeldTold,
    RecordsTold,
    decode_answer,
    encode,
)
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.commitlog.index.gaps import gap_at
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.retention import QueueLimits, Stretch, alive_from
from mirrorlog.errors import LogCorrupt, LogUnavailable
from mirrorlog.ha.pace import MovePace
from mirrorlog.queues.changes import QueueStartsMoved, encode_change

BYTES_MAX: Final = 4 * 1024 * 1024
"""Of an answer, but for a batch that is larger."""
WAIT_S_MAX: Final = 1.0
"""How long whoever asks for records waits for his turn; then he asks again: a late answer is read for nobody."""
_SIZED_BYTES: Final = 1024 * 1024
"""Batches in memory are counted so many bytes at a time, before others have their turn of the loop."""

_A = TypeVar("_A", RecordsTold, HeldTold, BeginTold)


class FormerRecords:
    """Of one node, `own`. `helper`: for disks; `pace`: of all that is sent or copied for a move here."""

    def __init__(self, own: str, logs: HostedLogs, view: ClusterView, *, helper: Executor, pace: MovePace) -> None:
        self._own = own
        self._logs = logs
        self._view = view
        self._helper = helper
        self._pace = pace

    async def ask(self, asked: AskOfFormer, kind: type[_A]) -> _A:
        """The master of the log that it is about, which may be this node. Raises LogUnavailable when nobody is, or what
        it answers."""
        master = self._view.master(UUID(asked.log_id))
        if master is None:
            facts = self._view.log_facts(asked.log_id)
            name = facts.name if facts is not None else asked.log_id
            raise LogUnavailable(f"nobody masters log {name}, which the queue was in")
        if master.id == self._own:
            answer = await self._answer(asked)
            assert isinstance(answer, kind)
            return answer
        return decode_answer(await self._view.ask(master.id, encode(asked)), kind)

    async def asked(self, asked: AskOfFormer) -> RecordsTold | HeldTold | BeginTold:
        """By another node. Raises NotMaster, LogUnavailable while it cannot be said what is there, or others are given
        as much as may be, or what reading is refused with."""
        if isinstance(asked, AskRecords):
            wait_s = self._pace.wait_s(asyncio.get_running_loop().time())
            if wait_s > WAIT_S_MAX:
                raise LogUnavailable(f"node {self._own} gives others as much as it may (cluster.move_bytes_per_s)")
            await asyncio.sleep(wait_s)
        answer = await self._answer(asked)
        if isinstance(answer, RecordsTold):
            self._pace.spend(sum(map(len, answer.batches)))
        return answer

    async def _answer(self, asked: AskOfFormer) -> RecordsTold | HeldTold | BeginTold:
        log = self._logs.get(asked.log_id)
        if log is None or not log.knows_confirmed:
            raise not_master(asked.log_id if log is None else log.name, self._view.master(UUID(asked.log_id)))
        queues, queue_id = log.replica.queues, asked.queue_id
        unknown = not queues.has_id(queue_id) and not queues.moves.knows(queue_id)
        if isinstance(asked, AskRecords) and unknown and self._view.lost_from(log.log_id):
            return _lost(asked.first, asked.until)  # with all that it had here, and the word that it came
        if not queues.keeps(queue_id):
            raise LogUnavailable(f"log {log.name} keeps no records of queue {asked.queue_id}")
        if log.replica.index.partial:
            raise LogUnavailable(f"log {log.name} does not know yet all that it has of queue {asked.queue_id}")
        if isinstance(asked, AskHeld):
            return await self._held(log, asked)
        if isinstance(asked, AskBegin):
            return await self._begin(log, asked)
        return await self._records(log, asked)

    # --- inside ---

    async def _records(self, log: HostedLog, asked: AskRecords) -> RecordsTold:
        replica, queue_id, until = log.replica, asked.queue_id, asked.until
        left, index = replica.queues.moves.left.get(queue_id), replica.index
        begin = max(asked.first, index.begin(queue_id))
        if until <= begin:
            return RecordsTold(first=asked.first)
        if left is not None and until > left.next_queue_offset:  # it was in another log, and is lost with that
            return _lost(max(begin, left.next_queue_offset), until)
        if (gap := gap_at(index.gaps_of(queue_id), until - 1)) is not None:
            return _lost(max(asked.first, gap[0]), until)
        runs = await self._before(log, queue_id, until, min(asked.max_bytes, BYTES_MAX))
        runs = [run for run in runs if run.next_queue_offset > begin]
        if not runs or runs[-1].next_queue_offset != until:
            raise LogUnavailable(f"record {until - 1} of queue {queue_id} is not found in log {log.name}")
        batches = await self._read(replica, runs)
        for run, batch in zip(runs, batches, strict=True):
            header = read_header(batch)
            if (header.queue_id, header.base_queue_offset, header.record_count) != (queue_id, *run[1:3]):
                raise LogCorrupt(
                    f"log {log.name}: the batch at {run.log_offset} is not the one of queue {queue_id} at queue offset "
                    f"{run.base_queue_offset}",
                    first=run.log_offset,
                    last=run.log_offset + run.length,
                )
        first = runs[0].base_queue_offset
        return RecordsTold(first=asked.first if first <= begin else first, batches=tuple(batches))

    async def _begin(self, log: HostedLog, asked: AskBegin) -> BeginTold:
        """What is dead by the word of the log that the queue is in is said here too, so that its segments go."""
        queues, queue_id, index, role = log.replica.queues, asked.queue_id, log.replica.index, log.mastering
        if not queues.has_id(queue_id) and asked.begin > queues.start_offsets.get(queue_id, 0):
            begins = encode_change(QueueStartsMoved(begins={queue_id: asked.begin}))
            publisher_of(log, self._view).append_control(begins)
        assert role is not None, "it knows what is confirmed"
        limits, own = role.retention.limits, QueueLimits(asked.max_age_us, asked.max_bytes) if asked.own else None
        # Nothing goes, and nobody needs to know how many bytes that are: these count where bytes are limited.
        stays = BeginTold(begin=asked.first, size=0)
        max_bytes = limits.max_bytes if own is None else own.max_bytes
        if max_bytes is None and limits.max_age_us is None and (own is None or own.max_age_us is None):
            return stays
        segments, now, end = await role.retention.queues.surveyed(), now_us(), log.replica.log.end
        if own is None and not any(limits.expire(each, end=end, now_us=now) for each in segments[:1]):
            return stays  # the oldest goes first
        held = await self._held(
            log, AskHeld(log_id=asked.log_id, queue_id=queue_id, first=asked.first, until=asked.until)
        )
        gaps = index.gaps_of(queue_id)
        stretch = Stretch(queue_id, held.first, asked.until, held.size, asked.newer_bytes, asked.floor, gaps)
        # There may be thousands of segments, each with as many queues.
        begin, size = await asyncio.get_running_loop().run_in_executor(
            self._helper, lambda: alive_from(segments, stretch, own, end=end, now_us=now, limits=limits)
        )
        return BeginTold(begin=begin, size=size)

    async def _before(self, log: HostedLog, queue_id: int, until: int, max_bytes: int) -> list[QueuedBatch]:
        """The newest ones below: what memory has is later in the log than what the past has of it."""
        hot = log.replica.index.entries_before(queue_id, until, max_bytes)
        if log.replica.past is None or (hot and hot[-1].next_queue_offset >= until):
            return hot
        found = await log.past.entries_before(queue_id, until, max_bytes)
        return found if found and (not hot or found[-1].next_queue_offset > hot[-1].next_queue_offset) else hot

    async def _read(self, replica: Replica, runs: Sequence[QueuedBatch]) -> list[bytes]:
        content = bytearray()
        for joined in join_runs(runs):
            at, end = joined.log_offset, joined.log_offset + joined.length
            view = replica.log.read(at, joined.length, until=end)
            if view is not None and len(view) == joined.length:
                content += view
                continue
            while at < end:  # a run ends with its segment
                job = replica.log.read_cold(at, end - at, until=end)
                content += await asyncio.get_running_loop().run_in_executor(self._helper, job.run)
                at = job.end
        ends = list(accumulate(run.length for run in runs))
        return [bytes(content[end - run.length : end]) for run, end in zip(runs, ends, strict=True)]

    async def _held(self, log: HostedLog, asked: AskHeld) -> HeldTold:
        queue_id, index, size = asked.queue_id, log.replica.index, 0
        end = min(asked.until, index.next_confirmed(queue_id))
        first = at = min(asked.until, max(asked.first, index.begin(queue_id)))
        while at < end:
            behind = index.gap_end(queue_id, at)
            if behind is None and (past_until := index.past_until(queue_id, at)) is not None:
                behind = max(past_until, at + 1)
                if log.replica.past is not None:
                    size += await log.past.size(queue_id, at, min(behind, end))
            elif behind is None:
                if at < index.begin(queue_id):
                    break  # retention has passed it meanwhile
                runs = index.entries(queue_id, at, _SIZED_BYTES)
                if not runs:
                    break
                size += sum(run.length for run in runs if run.base_queue_offset < asked.until)
                behind = runs[-1].next_queue_offset
                await asyncio.sleep(0)
            at = behind
        return HeldTold(size=size, first=first)


def _lost(first: int, until: int) -> RecordsTold:
    return RecordsTold(first=first, lost=(first, until))
