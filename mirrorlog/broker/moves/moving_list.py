"""`ListMoves`: queues that are on their way to another log, or shall go there, as this node knows it."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.broker.moves.wanted_places import WantedPlaces
from mirrorlog.broker.ports import ClusterView
from mirrorlog.cluster.decisions import asker
from mirrorlog.cluster.state.placements import MovingQueue
from mirrorlog.errors import BadRequest
from mirrorlog.queues.access import may_see
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.queues import ListMoves, MoveOfQueue, MovesFound


class MovingList:
    """What `service` and `wanted` of this node know, and of the others what the cluster has decided."""

    def __init__(self, logs: HostedLogs, view: ClusterView, service: MoveService, wanted: WantedPlaces) -> None:
        self._logs = logs
        self._view = view
        self._service = service
        self._wanted = wanted

    def found(self, asked: ListMoves) -> MovesFound:
        """All that whoever asks may see."""
        rows = sorted((*self._under_way(), *self._astray()), key=lambda row: row.queue)
        user = self._view.users().get(asker())
        return MovesFound(
            moves=[row for row in rows if user is None or may_see(user, row.queue)],
            paused=self._view.moving_paused(),
        )

    def _under_way(self) -> Iterator[MoveOfQueue]:
        for name, move in self._view.moves().items():
            log = self._logs.held(move.source)
            here = log if log is not None and log.knows_confirmed else None
            queue = here.replica.queues.named(name) if here is not None else None
            row = MoveOfQueue(
                queue=name, source=self._name(move.source), target=self._name(move.target), number=move.number
            )
            yield row if here is None or queue is None else self._told(here, queue, move)

    def _told(self, log: HostedLog, queue: Queue, move: MovingQueue) -> MoveOfQueue:
        name = queue.name
        return MoveOfQueue(
            queue=name,
            source=log.name,
            target=self._name(move.target),
            number=move.number,
            stage=self._service.stage(log, queue.queue_id),
            why=self._why(log, queue),
            records=_records(log, queue.queue_id),
            pieces=self._service.sent.get(name, 0),
            reason=self._service.waits.get(name, ""),
            told=True,
        )

    def _astray(self) -> Iterator[MoveOfQueue]:
        moving = self._view.moves()
        for name, each in self._wanted.astray.items():
            log = self._logs.held(str(each.log_id))
            queue = log.replica.queues.get(name) if log is not None else None
            if name in moving or log is None or queue is None or not self._view.unlike(queue.arguments, log.log_id):
                continue
            try:
                target, reason = self._view.rule_for(queue.arguments).words, each.reason
            except BadRequest as error:
                target, reason = "", error.message
            yield MoveOfQueue(
                queue=name,
                source=log.name,
                target=target,
                stage="wanted",
                why=self._why(log, queue),
                records=_records(log, queue.queue_id),
                reason=reason or self._service.given_up.get(name, ""),
                told=True,
            )

    def _why(self, log: HostedLog, queue: Queue) -> str:
        """What the queue asks for that its log has not."""
        there = self._view.unlike(queue.arguments, log.log_id)
        words = [f"{name} = {queue.arguments.get(name)!r}, not {has!r}" for name, has in there.items()]
        return ", ".join(words) or "its log group goes there, or masters are evened out"

    def _name(self, log_id: str) -> str:
        log = self._view.logs().get(UUID(log_id))
        return log.name if log is not None else log_id


def _records(log: HostedLog, queue_id: int) -> int:
    index = log.replica.index
    return max(0, index.next_confirmed(queue_id) - index.begin(queue_id))
