"""What limits say of the records that queues have left in former logs, asked by the master of the log that each is in.

Where a queue begins is decided in one place, by that master. Former logs know when their records were appended, and how
many bytes they have, and nothing of the queue's limits any more. So they are asked, from the newest to the oldest, from
where on what they have has to stay: by the queue's own limits, and where it has none by those of the log that holds it.
What is dead of a queue is its beginning, whichever log has it. Then the former logs are told where the queue begins, so
that their segments go. A queue that keeps what is not settled loses its former spans one by one, as they are settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.moves.background import ToldOnce
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.requests import AskBegin, AskHeld, BeginTold, HeldTold
from mirrorlog.cluster.state.placements import Span
from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.arguments import tier_keep_us
from mirrorlog.queues.changes import QueueStartsMoved, encode_change
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Between two looks at all queues."""


class FormerLimits:
    """Of one node. `spans`: of the queues that have records in former logs."""

    def __init__(
        self,
        logs: HostedLogs,
        view: ClusterView,
        *,
        records: FormerRecords,
        spans: Callable[[], Mapping[str, Sequence[Span]]],
    ) -> None:
        self._logs = logs
        self._view = view
        self._records = records
        self._spans = spans
        self._look_at = 0.0
        self._failures = ToldOnce()
        self._task: asyncio.Task[None] | None = None

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        if now < self._look_at or (self._task is not None and not self._task.done()):
            return
        self._look_at = now + LOOK_S
        if self._view.cluster_version() >= versions.SYNC and self._spans():
            self._task = asyncio.ensure_future(self.look())

    async def stop(self) -> None:
        """Nobody is asked any more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """At all queues whose logs this node masters, one after the other. One whose former logs do not answer keeps
        what it has."""
        for name, spans in list(self._spans().items()):
            log = self._logs.held(spans[-1].log_id)
            queue = log.replica.queues.get(name) if log is not None and log.knows_confirmed else None
            if log is None or queue is None:
                continue
            try:
                await self._look_at_one(log, queue, spans)
            except MirrorlogError as error:
                logger.debug("former_limits_not_known queue=%r reason=%r", name, str(error))
            except Exception as error:
                self._failures.tell("former_limits", error)

    async def sizes(self, name: str, queue_id: int, first: int, until: int) -> list[tuple[int, int, int]]:
        """Stretches of [first, until) that former logs have, with their bytes. Raises MirrorlogError."""
        found = []
        for span, low, high in _parts(self._view.spans(name), first, until):
            asked = AskHeld(log_id=span.log_id, queue_id=queue_id, first=low, until=high)
            told = await self._records.ask(asked, HeldTold)
            found.append((max(low, told.first), high, told.size))
        return found

    # --- inside ---

    async def _look_at_one(self, log: HostedLog, queue: Queue, spans: Sequence[Span]) -> None:
        role, queue_id, replica = log.mastering, queue.queue_id, log.replica
        assert role is not None, "it knows what is confirmed"
        kept, begin = role.retention.queues.kept, replica.index.begin(queue_id)
        floor, lowered = kept.floor(queue_id), kept.lowered
        if queue_id in kept.works:
            borders = [spans[number + 1].first for number, span in enumerate(spans[:-1]) if not span.ended]
            found = max((border for border in borders if border <= floor), default=0)
        else:
            found = await self._found(log, queue, spans, floor)
        there = log.mastering is role and log.knows_confirmed and replica.queues.get(queue.name) is queue
        if found > begin and there and kept.lowered == lowered:
            role.publisher.append_control(encode_change(QueueStartsMoved(begins={queue_id: found})))
            logger.info("queue_begins log=%s queue=%r at=%s reason=former_records", log.name, queue.name, found)

    async def _found(self, log: HostedLog, queue: Queue, spans: Sequence[Span], floor: int) -> int:
        """Where the queue may begin, by its limits, those of its logs, and by what landings say that may go."""
        queues = log.replica.queues
        found = await self._by(log, queue, spans, floor, queues.limits.get(queue.queue_id))
        if queue.queue_id in log.replica.holds.tiered():
            tiered = QueueLimits(tier_keep_us(queue.arguments), None)
            found = max(found, await self._by(log, queue, spans, floor, tiered))
        return found

    async def _by(
        self, log: HostedLog, queue: Queue, spans: Sequence[Span], floor: int, own: QueueLimits | None
    ) -> int:
        queue_id, index = queue.queue_id, log.replica.index
        begin, here = index.begin(queue_id), log.replica.queues.moves.firsts.get(queue_id, spans[-1].first)
        newer = found = 0
        if own is not None and own.max_bytes is not None:
            held = AskHeld(log_id=str(log.log_id), queue_id=queue_id, first=here, until=index.next_confirmed(queue_id))
            newer = (await self._records.ask(held, HeldTold)).size
        for span, first, until in reversed(list(_parts(spans, begin, here))):
            limits = {"max_age_us": own.max_age_us, "max_bytes": own.max_bytes} if own is not None else {}
            asked = AskBegin(
                log_id=span.log_id, queue_id=queue_id, begin=begin, first=first, until=until, floor=floor,
                own=own is not None, newer_bytes=newer, **limits,
            )  # fmt: skip
            told = await self._records.ask(asked, BeginTold)
            if told.begin > first:
                found = max(found, min(told.begin, until))
            newer += told.size
        return found


def _parts(spans: Sequence[Span], begin: int, until: int) -> Iterator[tuple[Span, int, int]]:
    """Of the former spans that have records of [begin, until), what they have of it."""
    for number, span in enumerate(spans[:-1]):
        first, end = max(span.first, begin), min(spans[number + 1].first, until)
        if not span.ended and first < end:
            yield span, first, end
