"""What it means to a reader that one copy of a queue refuses, or has not, what others may have. Pure.

A mirror that began at the last segment (`ha.start=last-segment`) shows a queue from its own start offset on, and
refuses what lies below in the words for what was freed. To follow it would pass over records that other copies have. So
what it says is held against the word of the master, which has all that is left; while that does not answer, against the
copy that begins first, which has most.

A node checks what it reads from disk, and refuses what is bad (LogCorrupt); what it has mapped it sends as it stands,
and only its reader's checksums tell that a bit of it has gone. Every copy of a log has the same bytes, so another one
has what is bad here: the reader asks for that range elsewhere, each copy once, and goes on where it was.

Rejected: to leave the node for good (its other bytes are good, and all of its readers would move at once); to ask it
again (its bytes stay as they are until it reads its files at a start).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mirrorlog.errors import (
    BadBatch,
    ConnectionLost,
    LogCorrupt,
    LogUnavailable,
    NodeStopping,
    NoSuchQueue,
    NotMaster,
    OffsetOutOfRange,
    RequestTimeout,
)
from mirrorlog.wire.messages.queues import Metadata, QueueInfo

NO_ANSWER: Final = (ConnectionLost, RequestTimeout, LogUnavailable, NodeStopping, NoSuchQueue, NotMaster)
"""What ends a request of a node that cannot say what its copy holds, or of a master while there is none."""


def views_of(queue: str, answers: Iterable[Metadata]) -> dict[str, QueueInfo]:
    """The queue as each node that knows it described it, by node id. One that is behind, and has it in a former log, is
    left out: epochs and start offsets are compared within one log."""
    found = [(answer, info) for answer in answers for info in answer.queues if info.name == queue]
    if not found:
        return {}
    _, newest = max(found, key=lambda each: (each[0].version, each[1].epoch))
    return {answer.node_id: info for answer, info in found if info.log_id == newest.log_id}


def newest_of(views: dict[str, QueueInfo]) -> QueueInfo:
    """By whoever has heard of the newest epoch. There must be a view."""
    return max(views.values(), key=lambda info: info.epoch)


def begin_of(views: dict[str, QueueInfo]) -> int:
    """Where the queue begins: as its master says, else the smallest of the copies. There must be a view."""
    said = views.get(newest_of(views).master)
    return said.begin if said is not None else min(info.begin for info in views.values())


def judged(
    error: OffsetOutOfRange, *, queue: str, node_id: str, queue_offset: int, whole: int | None
) -> OffsetOutOfRange:
    """What the refusal `error` of the mirror `node_id`, which names its start offset, means to a reader at
    `queue_offset`.

    `whole`: where the queue begins as the others say, None when none of them answers. `begin` in the details of the
    result is the queue's, if known; with `node` in them (`is_elsewhere`) the records are not gone.
    """
    following = error.details.get("next")
    if whole is None:
        told = f"{error}; whether {node_id} lacks it, or it is gone for good, no other node is there to say"
        return OffsetOutOfRange(told, next=following, node=node_id)
    begin = error.details["begin"]
    if whole >= begin:
        return error
    told = f"queue {queue!r} begins at {whole}, but its copy on {node_id} at {begin}; read from another node"
    if whole > queue_offset:
        return OffsetOutOfRange(told, begin=whole, next=following)
    return OffsetOutOfRange(told, begin=whole, next=following, node=node_id)


def is_elsewhere(error: Exception) -> bool:
    """Whether another node than the one that it names, or that one later, may have what was asked for."""
    return isinstance(error, OffsetOutOfRange) and "node" in error.details


@dataclass(slots=True, eq=False)
class DamagedRange:
    """A range of a queue whose bytes are bad on a node: from `queue_offset` on, `size` bytes. `why`: what was found at
    its first bad batch, naming queue and log offset; `log_offset`: of that, as its header says.

    `bad`: the nodes that have not got it whole; `unread`: those that could not be asked this time, and why.
    """

    queue: str
    queue_offset: int
    size: int
    log_offset: int
    why: str
    bad: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    def left(self, node_ids: Iterable[str]) -> list[str]:
        """Of those the ones that may have it whole, in their order."""
        return [node_id for node_id in node_ids if node_id and node_id not in self.bad]

    def refusal(self) -> BadBatch | ConnectionLost:
        """Why it is not there now: ConnectionLost while a node that may have it could not be asked."""
        return ConnectionLost(self._told()) if self.unread else self.verdict()

    def verdict(self, advice: str = "") -> BadBatch:
        """Why it is not there at all; details carry `queue`, `queue_offset`, `log_offset` and the bad `nodes`."""
        return BadBatch(
            self._told() + advice,
            queue=self.queue,
            queue_offset=self.queue_offset,
            log_offset=self.log_offset,
            nodes=list(self.bad),
        )

    def _told(self) -> str:
        away = "; ".join(f"{node_id}: {reason}" for node_id, reason in self.unread.items())
        return f"{self.why} on {', '.join(self.bad)}" + (f"; not read: {away}" if away else "")


def refused(queue: str, queue_offset: int, error: LogCorrupt, *, size: int) -> DamagedRange:
    """What a node refuses of its own copy to a reader at `queue_offset`. It knows its log; whose records stand there is
    known here."""
    first = error.details.get("first")
    return DamagedRange(
        queue,
        queue_offset=queue_offset,
        size=size,
        log_offset=first if isinstance(first, int) else 0,
        why=f"queue {queue!r}, queue offset {queue_offset}: {error.message}",
    )
