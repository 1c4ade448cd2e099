"""Places without queues, which a log's new master takes away: what becomes of that while the cluster refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.session.queue_deletion import Deletions
from mirrorlog.errors import MirrorlogError, NotLeader, OutcomeUnknown, UnsupportedVersion
from mirrorlog.wire.messages.queues import DeleteQueue


class Refusing:
    """A cluster that takes no places away from some logs, by `error`, and from the others does."""

    def __init__(self, *logs: UUID, error: MirrorlogError) -> None:
        self.logs, self.error = logs, error
        self.places: dict[str, UUID] = {}
        self.asked: asyncio.Queue[UUID] = asyncio.Queue()

    def cluster_version(self) -> int:
        return versions.DELETION

    def master(self, log_id: UUID) -> None:
        return None

    def placed(self, queue: str) -> UUID | None:
        return self.places.get(queue)

    def moves(self) -> dict[str, Any]:
        return {}

    def placed_in(self, log_id: UUID) -> list[str]:
        return [name for name, where in self.places.items() if where == log_id]

    def lost_from(self, log_id: UUID) -> bool:
        return False

    async def unbind_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        raise AssertionError("there is nothing to unbind")

    async def remove_queues(self, queues: Sequence[str], log_id: UUID, epoch: int) -> None:
        self.asked.put_nowait(log_id)
        if log_id in self.logs:
            raise self.error
        for name in queues:
            del self.places[name]


def log_of(log_id: UUID) -> HostedLog:
    """One that this node masters, without queues."""
    publisher: Any = LogPublisher.__new__(LogPublisher)
    publisher.stopping = False
    publisher.when_confirmed = lambda done: done(None)
    moves = SimpleNamespace(refusal_of=lambda name: None, aside={})
    queues = SimpleNamespace(get=lambda name: None, moves=moves)
    replica = SimpleNamespace(queues=queues, log=SimpleNamespace(epochs=SimpleNamespace(current=7)))
    return cast(HostedLog, SimpleNamespace(log_id=log_id, name="x", publisher=publisher, replica=replica))


async def test_an_older_cluster_is_asked_once_and_the_name_is_free() -> None:
    """Goal: a name that was placed and never declared can be declared while the cluster is being updated. Method: the
    cluster does not know the command yet: one question, its error, and no deletion of the name under way."""
    log_id = uuid4()
    cluster = Refusing(log_id, error=UnsupportedVersion("until all nodes are updated"))
    cluster.places["orders"] = log_id
    deletions = Deletions(cast(Any, cluster))
    with pytest.raises(UnsupportedVersion):
        async with asyncio.timeout(5):
            await deletions.finish(log_of(log_id))
    assert cluster.asked.qsize() == 1
    assert not deletions.is_under_way("orders")


async def test_a_log_whose_places_cannot_be_taken_away_holds_no_other_one_up() -> None:
    """Goal: one that is refused again and again does not keep the others from theirs. Method: it is under way when
    another log's is begun: that comes to its end."""
    stuck, other = uuid4(), uuid4()
    cluster = Refusing(stuck, error=NotLeader("log x has moved on"))
    cluster.places.update(orders=stuck, invoices=other)
    deletions = Deletions(cast(Any, cluster))
    waiting = asyncio.ensure_future(deletions.finish(log_of(stuck)))
    assert await cluster.asked.get() == stuck
    async with asyncio.timeout(5):
        await deletions.finish(log_of(other))
    assert cluster.places == {"orders": stuck}
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("error", [UnsupportedVersion("until all nodes are updated"), NotLeader("log x has moved on")])
async def test_who_deletes_a_queue_whose_name_stays_is_not_told_that_nothing_was_done(error: MirrorlogError) -> None:
    """Goal: a refusal means that the queue is as it was. Method: its records are gone, and the cluster leaves it its
    place: at once, or until another node masters the log."""
    log_id = uuid4()
    cluster = Refusing(log_id, error=error)
    cluster.places["orders"] = log_id
    log = log_of(log_id)

    async def master_elsewhere() -> None:
        await cluster.asked.get()
        cast(Any, log).publisher.stopping = True

    moving = asyncio.ensure_future(master_elsewhere())
    with pytest.raises(OutcomeUnknown, match="is deleted"):
        async with asyncio.timeout(5):
            await Deletions(cast(Any, cluster)).delete(log, DeleteQueue(name="orders"), lambda answer: None)
    await moving
