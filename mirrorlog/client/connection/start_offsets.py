"""Where a queue begins, when a mirror that began late says otherwise. Pure.

A mirror that began at the last segment (`ha.start=last-segment`) shows a queue from its own begin on, and refuses what
lies below in the words for what was freed. To follow it would pass over records that other copies have. So what it
says is held against the word of the master, which has all that is left; while that does not answer, against the copy
that begins first, which has most.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirrorlog.errors import (
    ConnectionLost,
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
    """The queue as each node that knows it described it, by node id."""
    return {answer.node_id: info for answer in answers for info in answer.queues if info.name == queue}


def newest_of(views: dict[str, QueueInfo]) -> QueueInfo:
    """By whoever has heard of the newest epoch. There must be a view."""
    return max(views.values(), key=lambda info: info.epoch)


def begin_of(views: dict[str, QueueInfo]) -> int:
    """Where the queue begins: as its master says, else the smallest begin of the copies. There must be a view."""
    said = views.get(newest_of(views).master)
    return said.begin if said is not None else min(info.begin for info in views.values())


def judged(
    error: OffsetOutOfRange, *, queue: str, node_id: str, queue_offset: int, whole: int | None
) -> OffsetOutOfRange:
    """What the refusal `error` of the mirror `node_id`, which names its begin, means to a reader at `queue_offset`.

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
