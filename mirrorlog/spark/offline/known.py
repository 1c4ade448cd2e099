"""What a log says of its queues in its own control and checkpoint batches: names, begins, gaps. Pure.

The same rules as the nodes' (`queues.registry`, `commitlog.index`), for one who reads a log once and of which only what
is confirmed counts: nothing is ever cut here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.commitlog.format.header import BatchHeader, Buffer, Kind
from mirrorlog.queues.changes import (
    BeginMoved,
    BeginsState,
    Change,
    GapsState,
    OffsetsLeapt,
    QueueBeginsMoved,
    QueueDeclared,
    QueueDeleted,
    QueueState,
    State,
    decode_changes,
    decode_checkpoint,
)

TELLING: Final = frozenset({int(Kind.CONTROL), int(Kind.CHECKPOINT)})
"""The kinds of batches that are to be followed here. Positions of groups are nobody's business."""


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """As its declaration says."""

    name: str
    queue_id: int
    incarnation: str


@dataclass(slots=True)
class KnownQueues:
    """Follows the batches of a log that are confirmed, in log order.

    `begins`: logged begins by queue id. `nexts`: at least so far is each queue, by queue id. `gap_ends`: where queues
    went on after losses. `begin_decided`: the newest decision on the log's begin.
    """

    queues: dict[int, KnownQueue] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    nexts: dict[int, int] = field(default_factory=dict)
    gap_ends: set[int] = field(default_factory=set)
    begin_decided: int = 0

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """The next batch of a kind in TELLING. Raises BadBatch for a change that does not fit."""
        follow: dict[type, Callable[..., None]] = {
            QueueDeclared: self._declared,
            QueueDeleted: self._deleted,
            QueueState: self._restored,
            QueueBeginsMoved: self._begins_moved,
            BeginsState: self._begins_said,
            BeginMoved: self._begin_moved,
            OffsetsLeapt: self._leapt,
            GapsState: self._gaps_said,
        }
        changes: Iterable[Change | State] = (
            decode_checkpoint(batch) if header.kind == Kind.CHECKPOINT else decode_changes(batch)
        )
        for change in changes:
            if (apply := follow.get(type(change))) is not None:
                apply(change)

    def _declared(self, change: QueueDeclared | QueueState) -> None:
        queue = KnownQueue(change.name, change.queue_id, change.incarnation)
        self.queues.setdefault(change.queue_id, queue)
        self.nexts.setdefault(change.queue_id, 0)

    def _deleted(self, change: QueueDeleted) -> None:
        """Its records may be there for a while; nobody reads them any more."""
        self.queues.pop(change.queue_id, None)

    def _restored(self, state: QueueState) -> None:
        self._declared(state)
        self.nexts[state.queue_id] = max(self.nexts[state.queue_id], state.next_queue_offset)

    def _begins_moved(self, change: QueueBeginsMoved | BeginsState) -> None:
        for queue_id, begin in change.begins.items():
            self.begins[queue_id] = max(begin, self.begins.get(queue_id, 0))

    def _begins_said(self, state: BeginsState) -> None:
        self._begins_moved(state)
        self.begin_decided = max(self.begin_decided, state.log_begin)

    def _begin_moved(self, change: BeginMoved) -> None:
        self.begin_decided = max(self.begin_decided, change.log_offset)

    def _leapt(self, change: OffsetsLeapt) -> None:
        """Every queue that was declared before goes on there, if it was below."""
        self.gap_ends.add(change.go_on_at)
        for queue_id, following in self.nexts.items():
            self.nexts[queue_id] = max(following, change.go_on_at)

    def _gaps_said(self, state: GapsState) -> None:
        self.gap_ends.update(following for _, (_, following) in state.each())
