"""`SyncQueue`: what a queue has left in former logs is to be copied, or no more of it, or how far that is."""

from __future__ import annotations

from mirrorlog import versions
from mirrorlog.broker.moves.sync_service import SyncService
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_requests import Handler, Requests, Respond
from mirrorlog.cluster.state.commands import QueueSyncWished
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import SyncQueue


class SyncRequests:
    """Answered by the master of the queue's log."""

    def __init__(self, requests: Requests, view: ClusterView, syncs: SyncService) -> None:
        self.handlers: dict[type[Message], Handler] = {SyncQueue: self._sync}
        self._requests = requests
        self._view = view
        self._syncs = syncs

    def _sync(self, message: SyncQueue, respond: Respond) -> None:
        active = self._view.cluster_version()
        if message.wish and (older := versions.too_old(active, versions.SYNC, "sync of queues that have moved")):
            respond(older)
            return
        log = self._requests.mastered(message.queue)
        self._requests.once_known(log, respond, lambda: self._requests.later(self._done(message, respond), respond))

    async def _done(self, message: SyncQueue, respond: Respond) -> None:
        if message.wish:
            wished = QueueSyncWished(name=message.queue, wished=message.wish == "sync")
            outcome = await self._view.decide_once(wished)
            if outcome.refusal:
                raise outcome.error
        respond(await self._syncs.told(message.queue))
