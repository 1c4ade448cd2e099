"""Control requests of clients and tools: metadata, declare, offsets, positions, status. One method each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, get_args
from uuid import uuid4

from mirrorlog.broker.hosted import HostedLog
from mirrorlog.broker.hosted_logs import HostedLogs
from mirrorlog.broker.publish import not_master
from mirrorlog.config import Flush, LogAssignment, Settings
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError
from mirrorlog.queues.changes import PositionCommitted
from mirrorlog.queues.registry import Queue, no_such_queue
from mirrorlog.wire.messages import (
    CommitPosition,
    DeclareQueue,
    Done,
    FetchPosition,
    FindOffset,
    FoundOffset,
    FoundPosition,
    GetMetadata,
    GetStatus,
    Message,
    Metadata,
    NodeInfo,
    Position,
    QueueInfo,
    Status,
)

logger = logging.getLogger(__name__)

DECLARATION_BYTES_MAX: Final = 32 * 1024
"""A queue with its arguments, as a batch. Far below any `max_batch_bytes`, above which no mirror takes a batch."""

Respond = Callable[[Message | MirrorlogError], None]


class Requests:
    """Answers control messages from the state of this node's logs."""

    def __init__(
        self,
        settings: Settings,
        logs: HostedLogs,
        status: Callable[[], Status],
    ) -> None:
        self._settings = settings
        self._logs = logs
        self._status = status
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type[Message], Callable[..., Message | None]] = {
            GetMetadata: self._metadata,
            DeclareQueue: self._declare,
            FindOffset: self._find_offset,
            CommitPosition: self._commit_position,
            FetchPosition: self._fetch_position,
            GetStatus: lambda message, respond: self._status(),
        }

    def handle(self, message: Message, respond: Respond) -> None:
        """Answer through `respond`, now or when a change is confirmed. Raises MirrorlogError as the answer."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise BadRequest(f"{type(message).__name__} is no request")
        answer = handler(message, respond)
        if answer is not None:
            respond(answer)

    # --- one method per request: the answer, or None when it comes later ---

    def _metadata(self, message: GetMetadata, respond: Respond) -> Message:
        if message.queues is None:
            found = [self._queue_info(log, queue) for log in self._logs for queue in log.replica.queues]
            missing = []
        else:
            places = {name: self._place(name) for name in message.queues}
            found = [self._queue_info(*place) for place in places.values() if place is not None]
            missing = [name for name, place in places.items() if place is None]
        if self._logs.refused and (missing or not self._logs):
            raise self._unavailable()
        return self._as_metadata(found, missing)

    def _declare(self, message: DeclareQueue, respond: Respond) -> Message | None:
        log = self._home(message)
        batch = log.replica.queues.declare(message.name, message.arguments, incarnation=uuid4().hex)
        if batch is not None and len(batch) > DECLARATION_BYTES_MAX:
            raise BadRequest(f"a declaration of {len(batch)} bytes is above the limit of {DECLARATION_BYTES_MAX}")

        def answer() -> Message:
            return self._as_metadata([self._queue_info(log, log.replica.queues.find(message.name))], [])

        def done(error: MirrorlogError | None) -> None:
            respond(error or answer())

        if batch is not None:
            log.publisher.append_change(batch, done)
        elif log.replica.queues.find(message.name).declared_at >= log.replica.confirmed:
            # Declared a moment ago: its repetition, too, is answered only when all copies have it.
            log.publisher.when_confirmed(done)
        else:
            return answer()
        return None

    def _find_offset(self, message: FindOffset, respond: Respond) -> Message | None:
        log, queue = self._find(message.queue)
        index, queue_id, time_us = log.replica.index, queue.queue_id, message.append_time_us
        if not index.is_past_time(queue_id, time_us):
            return FoundOffset(queue_offset=index.find_time(queue_id, time_us))

        async def look_back() -> None:
            try:
                past = await log.past.find_time(queue_id, time_us)
            except MirrorlogError as error:
                respond(error)
                return
            except Exception as error:
                logger.exception("find_offset_failed queue=%s", message.queue)
                respond(MirrorlogError(f"internal error: {type(error).__name__}"))
                return
            found = index.find_time(queue_id, time_us)
            respond(FoundOffset(queue_offset=found if past is None else max(index.begin(queue_id), min(past, found))))

        task = asyncio.ensure_future(look_back())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _commit_position(self, message: CommitPosition, respond: Respond) -> None:
        log, queue = self._find(message.queue)
        position = message.position
        # Up to what is appended: the position is behind those records in the log, so it is confirmed after them.
        following = log.replica.index.next_appended(queue.queue_id)
        if position.log_id != str(log.replica.log_id):
            raise BadRequest(
                f"a position of log {position.log_id}, but queue {queue.name!r} is in {log.replica.log_id}"
            )
        if not 0 <= position.queue_offset <= following:
            raise BadRequest(f"position {position.queue_offset} is not within 0 and {following}, the records there are")
        change = PositionCommitted(
            group=message.group,
            log_id=position.log_id,
            epoch=position.epoch,
            queue_offset=position.queue_offset,
        )
        batch = log.replica.queues.commit_position(message.queue, change)
        log.publisher.append_change(batch, lambda error: respond(error or Done()))

    def _fetch_position(self, message: FetchPosition, respond: Respond) -> Message:
        _, queue = self._find(message.queue)
        stored = queue.positions.get(message.group)
        if stored is None:
            return FoundPosition(position=None)
        return FoundPosition(
            position=Position(log_id=stored.log_id, epoch=stored.epoch, queue_offset=stored.queue_offset)
        )

    # --- inside ---

    def _home(self, message: DeclareQueue) -> HostedLog:
        """The log of a queue; a new one goes to the first log of the cluster with the flush mode that it asks for.

        The first one whoever is asked, so that a declaration that is repeated at another node makes no second queue.
        Raises BadRequest when no log has that mode, NotMaster, or why that log is not served.
        """
        if (place := self._place(message.name)) is not None:
            return place[0]
        cluster = self._settings.cluster
        assignment = _home_of(cluster.logs, message.arguments.get("flush"))
        log = self._logs.get(str(cluster.log_id(assignment)))
        if log is None:
            raise not_master(assignment.name, cluster.member(assignment.master))
        return log

    def _find(self, name: str) -> tuple[HostedLog, Queue]:
        """Raises NoSuchQueue, or why a log that may have the queue is not served."""
        place = self._place(name)
        if place is not None:
            return place
        if self._logs.refused or not self._logs:
            raise self._unavailable()
        raise no_such_queue(name)

    def _place(self, name: str) -> tuple[HostedLog, Queue] | None:
        for log in self._logs:
            if (queue := log.replica.queues.get(name)) is not None:
                return log, queue
        return None

    def _unavailable(self) -> MirrorlogError:
        """Why there is a log less than assigned, as its own error with its details."""
        for log in self._logs.refused:
            assert log.error is not None
            return log.error.with_traceback(None)  # shared: it must not collect the frames of all who raise it
        return LogUnavailable("this node holds no log")

    def _queue_info(self, log: HostedLog, queue: Queue) -> QueueInfo:
        replica = log.replica
        return QueueInfo(
            name=queue.name,
            queue_id=queue.queue_id,
            incarnation=queue.incarnation,
            log_id=str(replica.log_id),
            epoch=replica.epochs.current,
            master=replica.assignment.master,
            mirrors=list(replica.assignment.mirrors),
            begin=replica.index.begin(queue.queue_id),
            next=replica.index.next_confirmed(queue.queue_id),
            producer_epoch=replica.producers.epoch_floor,
            arguments=queue.arguments,
        )

    def _as_metadata(self, queues: list[QueueInfo], missing: list[str]) -> Metadata:
        cluster = self._settings.cluster
        nodes = [
            NodeInfo(node_id=member.id, client=member.client, replication=member.replication, grpc=member.grpc)
            for member in cluster.members
        ]
        return Metadata(
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id=self._settings.node.id,
            nodes=nodes,
            queues=queues,
            missing=missing,
        )


def _home_of(logs: Sequence[LogAssignment], flush: object) -> LogAssignment:
    """Raises BadRequest. A mode that is none is for the registry to refuse."""
    if flush not in get_args(Flush):
        return logs[0]
    for log in logs:
        if log.flush == flush:
            return log
    raise BadRequest(
        f"no log of this cluster has flush = {flush!r}; add one that has to [[cluster.logs]] of every node"
    )
