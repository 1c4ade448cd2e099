"""The master's decision to free the begin of its log, appended as a change and followed by every copy. Thin."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.retention.queue_retention import QueueRetention
from mirrorlog.commitlog.retention import RetentionLimits, next_start
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import LogStartMoved, encode_change

logger = logging.getLogger(__name__)


class Retention:
    """One log that this node masters. `queues`: takes over while the log has queues with limits of their own, or
    held by landings."""

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
        self._limits = limits
        self._now_us = now_us
        self._queues = queues
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
        limits = self._limits
        queues_due = self._queues.due
        if self._disk_low and (self._queues.ready or not queues_due):
            limits = limits.without_oldest(segments, begin=known, end=log.end)
            self._disk_low = False
        if queues_due:
            self._queues.wake(limits)
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
        await self._queues.stop()
