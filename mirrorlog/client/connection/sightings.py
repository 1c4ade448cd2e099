"""Who is master of a queue, by what several nodes say of it, and whom to believe. Pure.

While the cluster changes, nodes differ: one that is behind, or cut off, still names the former master. Each says up to
which decision of the cluster it knows (`Metadata.version`), so the one that knows most is believed, also when it says
that there is no master: then whoever names one speaks of the past. Nodes that do not tell a version are compared by
the epoch of their copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirrorlog.errors import LogUnavailable
from mirrorlog.wire.messages.queues import Metadata, QueueInfo


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A queue as one node, `told_by`, described it at a `version` of the cluster.

    `address`: where its master is reached; empty while that node names none. `outage`: why there will be none. `heard`:
    whether that node had heard its cluster (`Metadata.heard`).
    """

    info: QueueInfo
    version: int
    told_by: str
    address: str
    outage: LogUnavailable | None = None
    heard: bool = True

    @property
    def queue(self) -> str:
        return self.info.name

    @property
    def queue_id(self) -> int:
        return self.info.queue_id

    @property
    def producer_epoch(self) -> int:
        """Where a new producer begins."""
        return self.info.producer_epoch

    @property
    def master(self) -> str:
        """Its node id; empty while there is none."""
        return self.info.master

    @property
    def by_master(self) -> bool:
        """Whether the master says it of itself."""
        return self.told_by == self.info.master

    def newer_than(self, other: FoundQueue) -> bool:
        """Whether the node that told this knew more."""
        return (self.version, self.info.epoch) > (other.version, other.info.epoch)

    def replaces(self, other: FoundQueue) -> bool:
        """Whether the queue has another master now than `other` says."""
        return bool(self.address) and self.master != other.master and self.newer_than(other)


def sightings_of(queue: str, answers: Iterable[Metadata]) -> list[FoundQueue]:
    """One for each node that knows the queue."""
    return [
        FoundQueue(info, answer.version, answer.node_id, _address_of(info.master, answer), heard=answer.heard)
        for answer in answers
        for info in answer.queues
        if info.name == queue
    ]


def newest(sightings: Iterable[FoundQueue]) -> FoundQueue | None:
    """The one to believe: of those that know as much the master's own, which has the newest facts. None of none."""
    return max(sightings, key=lambda each: (each.version, each.info.epoch, each.by_master), default=None)


def settled(sightings: Iterable[FoundQueue], before: FoundQueue | None) -> bool:
    """Whether others need not be waited for: a node names a master that `before` did not know of, or is one itself."""
    return any(
        each.address and (before is None or each.newer_than(before) or (each.by_master and not before.newer_than(each)))
        for each in sightings
    )


def _address_of(node_id: str, answer: Metadata) -> str:
    return next((node.client for node in answer.nodes if node.node_id == node_id), "") if node_id else ""
