"""Requests of acking groups: they concern a connection, or the group of a queue that this node masters.

A mirror sends on to the master. A master whose epoch has not begun lets whoever asks wait (invariant 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirrorlog import versions
from mirrorlog.broker.deliverer import Deliverer, Respond
from mirrorlog.broker.hosted import HostedLog
from mirrorlog.broker.publish import not_master
from mirrorlog.broker.requests import ClusterView, Requests
from mirrorlog.broker.subscription_book import Receiver, SubscriptionBook
from mirrorlog.errors import BadRequest, ProtocolError, UnsupportedVersion
from mirrorlog.queues.groups import OWN_GROUP
from mirrorlog.queues.registry import Queue
from mirrorlog.wire.frames import Frame, read_settle
from mirrorlog.wire.messages import (
    DeleteGroup,
    Done,
    ExtendLease,
    GroupInfo,
    GroupsFound,
    Lease,
    ListGroups,
    Message,
    PurgeGroup,
    SettleLease,
    Subscribe,
    Unsubscribe,
)

ACKING: Final = "acking"
STREAM: Final = "stream"

_OfQueue = Subscribe | Lease | SettleLease | ExtendLease | PurgeGroup | DeleteGroup | ListGroups
_Act = Callable[[Deliverer, Queue], None]


class GroupRequests:
    """What connections ask of groups that ack. `requests`: finds queues; `book`: the node's subscriptions."""

    def __init__(self, requests: Requests, view: ClusterView, book: SubscriptionBook) -> None:
        self._requests = requests
        self._view = view
        self._book = book

    def handles(self, message: Message) -> bool:
        return isinstance(message, _OfQueue | Unsubscribe)

    def handle(self, message: Message, receiver: Receiver, respond: Respond) -> None:
        """Answer through `respond`, now or later. Raises MirrorlogError as the answer."""
        if isinstance(message, Unsubscribe):
            self._book.deliverer(message.subscription, receiver).unsubscribe(message.subscription)
            respond(Done())
        elif isinstance(message, Subscribe):
            self._at_once(
                message, respond, lambda log, queue: respond(log.subscribe(message, queue.queue_id, receiver))
            )
        elif isinstance(message, Lease):
            self._at_once(message, respond, lambda log, queue: log.lease(message, queue.queue_id, receiver, respond))
        elif isinstance(message, SettleLease):
            self._at_once(message, respond, lambda log, queue: log.settle_lease(message, queue.queue_id, respond))
        else:
            self._handle_known(message, respond)

    def settle(self, frame_: Frame, receiver: Receiver) -> None:
        """A SETTLE frame. Raises MirrorlogError as the answer, ProtocolError when it is no such frame."""
        settle, ranges = read_settle(frame_.payload)
        if not frame_.correlation_id:
            raise ProtocolError("a SETTLE frame without a correlation id could not be answered")
        deliverer = self._book.deliverer(settle.subscription, receiver)
        deliverer.settle(settle, ranges, receiver, frame_.correlation_id)

    def writable(self, receiver: Receiver) -> None:
        """Its connection takes more."""
        for number, deliverer in self._book.of(receiver):
            deliverer.writable(number)

    def forget(self, receiver: Receiver) -> None:
        """Its connection is gone."""
        for number, deliverer in self._book.of(receiver):
            deliverer.gone(number)

    # --- inside ---

    def _handle_known(self, message: Message, respond: Respond) -> None:
        """What is answered from all that was ever confirmed, or changes it at once."""
        if isinstance(message, ExtendLease):
            self._once_known(message, respond, lambda log, queue: log.extend_lease(message, queue.queue_id, respond))
        elif isinstance(message, PurgeGroup):
            self._once_known(message, respond, lambda log, queue: log.purge(queue.queue_id, message.group, respond))
        elif isinstance(message, DeleteGroup):
            if message.group == OWN_GROUP:
                raise BadRequest("a queue's own group goes with the queue; purge it, or give the name of another one")
            self._once_known(
                message, respond, lambda log, queue: log.delete_group(queue.queue_id, message.group, respond)
            )
        elif isinstance(message, ListGroups):
            log, _ = self._requests.find(message.queue)
            self._once_known(message, respond, lambda deliverer, queue: respond(_found(log, deliverer, queue)))

    def _at_once(self, message: _OfQueue, respond: Respond, act: _Act) -> None:
        """Act on the log's master: what is given, and settled, waits there by itself. Raises NotMaster."""
        if (older := self._older()) is not None:
            respond(older)  # not raised: the connection is sound
            return
        log, queue = self._requests.find(message.queue)
        act(self._deliverer(log), queue)

    def _once_known(self, message: _OfQueue, respond: Respond, act: _Act) -> None:
        """Act on the log's master, once it knows what its predecessor confirmed. Raises NotMaster."""

        def when_known(_: Deliverer, queue: Queue) -> None:
            log, _queue = self._requests.find(message.queue)
            self._requests.once_known(log, respond, lambda: act(self._deliverer(log), queue))

        self._at_once(message, respond, when_known)

    def _deliverer(self, log: HostedLog) -> Deliverer:
        deliverer = log.deliverer
        if deliverer is None:
            raise not_master(log.name, self._view.master(log.log_id))
        return deliverer

    def _older(self) -> UnsupportedVersion | None:
        return versions.too_old(self._view.cluster_version(), versions.GROUPS, "groups that ack")


def _found(log: HostedLog, deliverer: Deliverer, queue: Queue) -> GroupsFound:
    following = log.replica.index.next_confirmed(queue.queue_id)
    groups = log.replica.groups.groups(queue.queue_id)
    acking = [
        GroupInfo(
            group=group,
            kind=ACKING,
            floor=ledger.floor,
            watermark=ledger.watermark,
            ready=ledger.ready(following),
            unsettled=ledger.unsettled_total(following),
            out=ledger.out,
            leased=ledger.leased,
            parked=ledger.parked,
            subscribers=deliverer.subscribers(queue.queue_id, group),
        )
        for group, ledger in sorted(groups.items())
    ]
    streams = [
        GroupInfo(group=group, kind=STREAM, floor=position.queue_offset)
        for group, position in sorted(queue.positions.items())
        if group not in groups
    ]
    return GroupsFound(queue=queue.name, next=following, groups=[*acking, *streams])
