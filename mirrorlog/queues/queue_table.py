"""The queues that a log has now, by name and id, and what their arguments say that has to be at hand. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.queues.arguments import is_work_queue, lengths_of, limits_of, message_ttl_ms
from mirrorlog.queues.changes import PositionCommitted
from mirrorlog.queues.ids import IdBlock
from mirrorlog.queues.limits.length import LengthLimits
from mirrorlog.queues.limits.lifetime import Lifetime, lifetime_of


@dataclass(slots=True)
class Queue:
    """`declared_at`: log offset of its declaration; `used_at`: of its QueueUsed, -1 without one. `positions`: the
    confirmed ones by group; `newest`: the appended.

    `next_queue_offset`: of the record that followed when the newest confirmed checkpoint was written; 0 without one.
    Records may have come since; but there may be none left from before, and then only this says where to go on.
    """

    name: str
    queue_id: int
    incarnation: str
    arguments: dict[str, Any]
    declared_at: int
    positions: dict[str, PositionCommitted] = field(default_factory=dict)
    newest: dict[str, PositionCommitted] = field(default_factory=dict)
    next_queue_offset: int = 0
    used_at: int = -1


class QueueTable:
    """Those that are found. `visitors`: the ids of those that were declared in another log."""

    def __init__(self, ids: IdBlock) -> None:
        self._ids = ids
        self.by_name: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.visitors: set[int] = set()
        self.limits: dict[int, QueueLimits] = {}
        """Of the queues that have retention limits of their own, by queue id."""
        self.work_queues: set[int] = set()
        """Ids of the queues that keep what is not settled, and nothing else: declared with retention = "work"."""
        self.lengths: dict[int, LengthLimits] = {}
        """Of the queues that may have so many records, or bytes, and no more, by queue id."""
        self.ttls: dict[int, int] = {}
        """Of the queues whose records live no longer (`x-message-ttl`, ms), by queue id."""
        self.lifetimes: dict[int, Lifetime] = {}
        """Of the queues that go by themselves (`auto-delete`, `x-expires`), by queue id."""

    def put(self, queue: Queue) -> None:
        """It is here."""
        self.by_name[queue.name] = self.by_id[queue.queue_id] = queue
        if not self._ids.owns(queue.queue_id):
            self.visitors.add(queue.queue_id)
        if (limits := limits_of(queue.arguments)) is not None:
            self.limits[queue.queue_id] = limits
        if is_work_queue(queue.arguments):
            self.work_queues.add(queue.queue_id)
        if (lifetime := lifetime_of(queue.arguments)) is not None:
            self.lifetimes[queue.queue_id] = lifetime
        if (ttl_ms := message_ttl_ms(queue.arguments)) is not None:
            self.ttls[queue.queue_id] = ttl_ms
        if (lengths := lengths_of(queue.arguments)) is not None:
            self.lengths[queue.queue_id] = lengths

    def remove(self, queue: Queue) -> None:
        """It is here no more."""
        del self.by_name[queue.name]
        self.work_queues.discard(queue.queue_id)
        self.visitors.discard(queue.queue_id)
        for by_id in (self.by_id, self.limits, self.lifetimes, self.ttls, self.lengths):
            by_id.pop(queue.queue_id, None)
