"""Requests of landings: the holds by which they keep the records of a queue that they have not read yet.

What a hold is, and who may take it over, is decided by `queues.limits.holds`; how long its lease runs, by the
`HoldKeeper` of the log's master.
"""

from __future__ import annotations

import asyncio

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.status import hold_info
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.retention.holds import HoldKeeper
from mirrorlog.broker.session.queue_requests import FOLLOW_LOOK_S, FOLLOW_S, Handler, Requests, Respond, loop_time
from mirrorlog.errors import LogUnavailable, MirrorlogError, NoSuchHold, UnsupportedVersion
from mirrorlog.queues.changes import HoldEnded, encode_change
from mirrorlog.queues.limits.holds import RELEASED, Hold, HoldRequest, gone, taken
from mirrorlog.queues.queue_table import Queue
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import Done, EndHold, HoldGranted, HoldsFound, ListHolds, SetHold
from mirrorlog.wire.names import shown


class HoldRequests:
    """`requests`: finds queues, and waits until what a log's master knows is whole."""

    def __init__(self, requests: Requests, view: ClusterView) -> None:
        self._requests = requests
        self._view = view
        self.handlers: dict[type[Message], Handler] = {SetHold: self._set, EndHold: self._end, ListHolds: self._list}

    # --- inside ---

    def _set(self, message: SetHold, respond: Respond) -> Message | None:
        if (older := self._older_than_holds()) is not None:
            respond(older)
            return None
        log, queue = self._requests.find(message.queue)
        self._requests.once_known(log, respond, lambda: self._set_in(log, queue, message, respond))
        return None

    def _set_in(self, log: HostedLog, queue: Queue, message: SetHold, respond: Respond) -> None:
        replica, keeper, queue_id = log.replica, self._keeper(log), queue.queue_id
        replica.queues.find_id(queue_id)  # it may have been deleted while this waited
        if self._requests.is_being_deleted(queue.name):
            raise LogUnavailable(f"queue {queue.name!r} is being deleted; ask again", queue=queue.name)
        old = replica.holds.newest(queue_id).get(message.name)
        wish = HoldRequest(
            message.name,
            message.holder,
            message.queue_offset,
            message.lease_ms,
            message.location,
            message.tiered,
            message.take_over,
            message.epoch,
        )
        left_ms = keeper.left_ms(queue_id, old, loop_time()) if old is not None else 0
        change = replica.holds.set(
            queue_id, wish, next_confirmed=replica.index.next_confirmed(queue_id), left_ms=left_ms
        )

        def done(error: MirrorlogError | None) -> None:
            if error is not None:
                respond(error)
            else:
                self._requests.later(self._answer(log, queue, wish, old, respond), respond)

        if change is not None:
            log.publisher.append_change(encode_change(change, queue_id=queue_id), done)
        else:
            # Nothing is to be written; but a node that has been replaced must not say that the lease runs.
            log.publisher.when_confirmed(done)

    async def _answer(
        self, log: HostedLog, queue: Queue, wish: HoldRequest, old: Hold | None, respond: Respond
    ) -> None:
        """When the log begins where it was decided before the hold: then `begin` tells what the landing has missed."""
        replica, keeper = log.replica, self._keeper(log)
        hold = self._standing(log, queue, wish)
        keeper.renewed(queue.queue_id, hold.name, loop_time())
        keeper.was_set(queue.queue_id, old, hold)
        decided, give_up_at = replica.derived.start_decided, loop_time() + FOLLOW_S
        while replica.usable and replica.log.begin < decided and loop_time() < give_up_at:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(FOLLOW_LOOK_S)
        hold = self._standing(log, queue, wish)
        respond(HoldGranted(hold=hold_info(replica, queue, hold, keeper, loop_time())))

    def _standing(self, log: HostedLog, queue: Queue, wish: HoldRequest) -> Hold:
        """As confirmed, while nothing else is appended: what comes behind it is not its landing's any more. Raises
        HoldTaken, LogUnavailable."""
        holds, keeper, queue_id = log.replica.holds, self._keeper(log), queue.queue_id
        hold = holds.confirmed(queue_id).get(wish.name)
        for each in (hold, holds.newest(queue_id).get(wish.name)):
            if each is None or not each.live:
                if wish.epoch:
                    raise gone(wish, each)
                raise LogUnavailable(f"the hold of landing {wish.name!r} was ended while it was asked for; ask again")
            if each.holder != wish.holder:
                raise taken(each, keeper.left_ms(queue_id, each, loop_time()))
        assert hold is not None
        return hold

    def _end(self, message: EndHold, respond: Respond) -> Message | None:
        if (older := self._older_than_holds()) is not None:
            respond(older)
            return None
        log, queue = self._requests.find(message.queue)
        self._requests.once_known(log, respond, lambda: self._end_in(log, queue, message, respond))
        return None

    def _end_in(self, log: HostedLog, queue: Queue, message: EndHold, respond: Respond) -> None:
        holds, keeper = log.replica.holds, self._keeper(log)
        hold = holds.newest(queue.queue_id).get(message.name)
        change = holds.end(queue.queue_id, message.name, RELEASED, holder=message.holder)
        if change is None or hold is None:
            missing = NoSuchHold(f"queue {shown(queue.name)} has no landing {message.name!r}")
            answer = missing if message.must_exist else Done()
            log.publisher.when_confirmed(lambda error: respond(error or answer))
            return
        ended: HoldEnded = change

        def done(error: MirrorlogError | None) -> None:
            if error is None:
                keeper.ended(queue.queue_id, hold, ended)
            respond(error or Done())

        log.publisher.append_change(encode_change(change, queue_id=queue.queue_id), done)

    def _list(self, message: ListHolds, respond: Respond) -> None:
        log, queue = self._requests.find(message.queue)

        def answer() -> None:
            holds = log.replica.holds.confirmed(queue.queue_id)
            now = loop_time()
            keeper = log.mastering.holds if log.mastering is not None else None
            found = [hold_info(log.replica, queue, hold, keeper, now) for _, hold in sorted(holds.items())]
            respond(HoldsFound(holds=found))

        self._requests.once_known(log, respond, answer)

    def _keeper(self, log: HostedLog) -> HoldKeeper:
        """Raises NotMaster."""
        if log.mastering is None:
            raise not_master(log.name, self._view.master(log.log_id))
        return log.mastering.holds

    def _older_than_holds(self) -> UnsupportedVersion | None:
        """Why no holds are written yet. To be answered, not raised: the connection is sound."""
        return versions.too_old(self._view.cluster_version(), versions.HOLDS, "holds")
