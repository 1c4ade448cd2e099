"""The queues that a log has now, by name and id; the ids that it gives out; and what the queues' arguments say that has
to be at hand. Pure.

Ids come from a block of numbers for each log, one after another and never twice. A queue takes its id along when it
moves (decision 0050). So an id says in which log a queue was declared, and not where it is: a log has *visitors*, whose
ids are of other blocks, and lacks some of its own that are elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.errors import NoSuchQueue
from mirrorlog.queues.arguments import is_work_queue, leaves_retention_open, lengths_of, limits_of, message_ttl_ms
from mirrorlog.queues.changes import PositionCommitted, QueueAltered, QueueGoverned
from mirrorlog.queues.checkpoint_states import GovernedState, QueueState
from mirrorlog.queues.limits.length import LengthLimits
from mirrorlog.queues.limits.lifetime import Lifetime, lifetime_of

IDS_PER_LOG: Final = 1 << 24
"""Queue id = number of the log << 24 | number of the queue in it, from 1."""


Governs = Callable[[int, str, Mapping[str, Any]], QueueGoverned | None]
"""What is to be logged of what policies make of a queue: by its id, name and arguments."""


def nobody_governs(queue_id: int, name: str, arguments: Mapping[str, Any]) -> None:
    """There are no policies."""


def id_base_of(log_number: int) -> int:
    """Below all queue ids of the log with this number."""
    return log_number * IDS_PER_LOG


def log_number_of(queue_id: int) -> int:
    """The number of the log in which the queue with this id was declared."""
    return queue_id // IDS_PER_LOG


class IdBlock:
    """What a log has given out. `base`: see `id_base_of`."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.first = base
        """Below all that this log gives out: numbers up to there were an earlier log's."""
        self.highest = self.first
        """The largest id that was ever given out; none is below that of an earlier log's."""
        # The largest of queues that are gone for good.
        self._gone = self.first
        # (log offset, largest id) of the newest confirmed checkpoint or jump, and of those behind it.
        self.told_at: deque[tuple[int, int]] = deque()

    def given_before(self, number: int) -> None:
        """An earlier log of the same number has given out those up to this number."""
        self.first = max(self.first, self.base + number)
        self.highest = max(self.highest, self.first)

    def owns(self, queue_id: int) -> bool:
        """Whether it is for this log to give out."""
        return self.first < queue_id < self.base + IDS_PER_LOG

    @property
    def next(self) -> int | None:
        """The next one; None when all are given out."""
        following = self.highest + 1
        return following if following < self.base + IDS_PER_LOG else None

    def given(self, queue_id: int) -> None:
        """It is a queue's."""
        if queue_id > self.highest and self.owns(queue_id):
            self.highest = queue_id

    def gone(self, queue_id: int) -> None:
        """Its queue is there no more, and that is confirmed."""
        if queue_id > self._gone and self.owns(queue_id):
            self._gone = queue_id

    def told(self, log_offset: int, highest: int) -> None:
        """The batch at `log_offset` says that all ids up to this one were given out."""
        self.told_at.append((log_offset, highest))
        self.highest = max(self.highest, highest)

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while len(self.told_at) > 1 and self.told_at[1][0] < log_offset:
            self.told_at.popleft()

    def cut(self, log_offset: int, left: Iterable[int]) -> None:
        """The log now ends at `log_offset`; `left`: the ids of all queues that it has told of."""
        while self.told_at and self.told_at[-1][0] >= log_offset:
            self.told_at.pop()
        told = self.told_at[-1][1] if self.told_at else self.first
        self.highest = max(told, self._gone, *(each for each in left if self.owns(each)), self.first)


@dataclass(slots=True)
class Queue:
    """`declared_at`: log offset of its declaration; `used_at`: of its QueueUsed, -1 without one. `positions`: the
    confirmed ones by group; `newest`: the appended. `kept_by_use`: see `QueueDeclared`.

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
    governed: GovernedState | None = None
    kept_by_use: bool = False

    @property
    def effective(self) -> dict[str, Any]:
        """What holds for it: its arguments, together with what policies say."""
        governed = self.governed
        if governed is None or not (governed.policy or governed.operator_policy):
            return self.arguments
        return governed.arguments

    def state(self, groups: Iterable[str], next_queue_offset: int) -> QueueState:
        """As appended up to now, with the positions of these groups, for a checkpoint."""
        found = [self.newest[group] for group in groups if group in self.newest]
        return QueueState(
            queue_id=self.queue_id,
            name=self.name,
            incarnation=self.incarnation,
            arguments=self.arguments,
            next_queue_offset=next_queue_offset,
            positions={each.group: (each.log_id, each.epoch, each.queue_offset) for each in found},
            declared_at=self.declared_at,
            used_at=self.used_at,
            governed=self.governed,
            kept_by_use=self.kept_by_use,
        )


class QueueTable:
    """Those that are found. `visitors`: the ids of those that were declared in another log."""

    def __init__(self, ids: IdBlock) -> None:
        self._ids = ids
        self.altered: deque[tuple[int, int, dict[str, Any], GovernedState | None]] = deque()
        """Of queues whose arguments were changed, or what policies say, and that is not confirmed: where it ends in the
        log, the queue's id, and what both were."""
        self.by_name: dict[str, Queue] = {}
        self.by_id: dict[int, Queue] = {}
        self.visitors: set[int] = set()
        self.limits: dict[int, QueueLimits] = {}
        """Of the queues that have retention limits of their own, by queue id."""
        self.work_queues: set[int] = set()
        """Ids of the queues that keep what is not settled, and nothing else: declared with retention = "work"."""
        self.kept_by_use: set[int] = set()
        """Ids of those that are such queues while somebody acknowledges in them, and nobody reads them as a stream."""
        self.lengths: dict[int, LengthLimits] = {}
        """Of the queues that may have so many records, or bytes, and no more, by queue id."""
        self.ttls: dict[int, int] = {}
        """Of the queues whose records live no longer (`x-message-ttl`, ms), by queue id."""
        self.lifetimes: dict[int, Lifetime] = {}
        """Of the queues that go by themselves (`auto-delete`, `x-expires`), by queue id."""

    def works(self, acking: Set[int]) -> set[int]:
        """Ids of the queues that keep what is not settled, and nothing else: declared so, or left to their use, and in
        them (`acking`) is a group that acknowledges, and none that reads a stream."""
        by_use = self.kept_by_use & acking
        return {*self.work_queues, *(each for each in by_use if not self.by_id[each].newest)}

    def alter(self, header: BatchHeader, change: QueueAltered | QueueGoverned) -> None:
        """A change was appended."""
        queue = self.by_id.get(change.queue_id)
        if queue is None:
            return
        arguments, governed = queue.arguments, queue.governed
        if isinstance(change, QueueAltered):
            arguments = change.arguments
        else:
            governed = GovernedState(change.version, change.policy, change.operator_policy, change.arguments)
        if (arguments, governed) != (queue.arguments, queue.governed):
            self.altered.append((header.next_log_offset, change.queue_id, queue.arguments, queue.governed))
            self._set(queue, arguments, governed)

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while self.altered and self.altered[0][0] <= log_offset:
            self.altered.popleft()

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`: arguments are what they were there."""
        while self.altered and self.altered[-1][0] > log_offset:
            _, queue_id, arguments, governed = self.altered.pop()
            if (queue := self.by_id.get(queue_id)) is not None:
                self._set(queue, arguments, governed)

    def _set(self, queue: Queue, arguments: dict[str, Any], governed: GovernedState | None) -> None:
        self.remove(queue)
        queue.arguments, queue.governed = arguments, governed
        self.put(queue)

    def put(self, queue: Queue) -> None:
        """It is here."""
        self.by_name[queue.name] = self.by_id[queue.queue_id] = queue
        if not self._ids.owns(queue.queue_id):
            self.visitors.add(queue.queue_id)
        holds = queue.effective
        if (limits := limits_of(holds)) is not None:
            self.limits[queue.queue_id] = limits
        if is_work_queue(holds):
            self.work_queues.add(queue.queue_id)
        elif queue.kept_by_use and leaves_retention_open(holds):
            self.kept_by_use.add(queue.queue_id)
        if (lifetime := lifetime_of(holds)) is not None:
            self.lifetimes[queue.queue_id] = lifetime
        if (ttl_ms := message_ttl_ms(holds)) is not None:
            self.ttls[queue.queue_id] = ttl_ms
        if (lengths := lengths_of(holds)) is not None:
            self.lengths[queue.queue_id] = lengths

    def gone(self, queue_id: int) -> None:
        """It is nobody's any more, and never will be anybody else's."""
        self._ids.gone(queue_id)

    def remove(self, queue: Queue) -> None:
        """It is here no more."""
        del self.by_name[queue.name]
        self.work_queues.discard(queue.queue_id)
        self.kept_by_use.discard(queue.queue_id)
        self.visitors.discard(queue.queue_id)
        for by_id in (self.by_id, self.limits, self.lifetimes, self.ttls, self.lengths):
            by_id.pop(queue.queue_id, None)


def no_such_queue(name: str) -> NoSuchQueue:
    return NoSuchQueue(f"no queue {name!r}; make it with: mqtool declare {name}", queue=name)
