"""Requests of acking groups: they concern a connection, or the group of a queue that this node masters.

A mirror sends on to the master. A master whose epoch has not begun lets whoever asks wait (invariant 4).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from mirrorlog import versions
from mirrorlog.broker.consumer_groups.coordinator import Deliverer, Respond
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.log.refusals import not_master
from mirrorlog.broker.ports import ClusterView, Receiver, ServesSubscriptions
from mirrorlog.broker.session.queue_requests import Requests
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.commitlog.index.gaps import counted_gone, counted_there
from mirrorlog.errors import BadRequest, ExclusiveTaken, MirrorlogError, ProtocolError, UnsupportedVersion
from mirrorlog.queues.changes import GroupReset, PositionCommitted
from mirrorlog.queues.groups.resets import ACKING, STREAM, Place, ResetPosition, ResetRequest, check_idle
from mirrorlog.queues.groups.table import OWN_GROUP, no_such_group
from mirrorlog.queues.queue_table import Queue, no_such_queue
from mirrorlog.wire.frames import Frame, read_settle
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import (
    REDRIVE_MAX,
    DeleteGroup,
    ExtendLease,
    GroupInfo,
    GroupMove,
    GroupsFound,
    GroupsReset,
    Lease,
    LeaseInfo,
    ListGroups,
    PurgeGroup,
    Redrive,
    ResetGroups,
    SetPrefetch,
    SettleLease,
    Subscribe,
    Unsubscribe,
)
from mirrorlog.wire.messages.queues import CommitPosition, Done, FetchPosition, Position
from mirrorlog.wire.names import check_name, qualified, shown, split

# Who reads as a stream group now, as far as a node can know: a stream group is a position and nothing more.
#
# Whoever has asked for the group's position, or stored it, within the last ten seconds, on a connection that is still
# there. One that reads on without a word of its position is not seen; nor is one that was last heard by the master
# before this one. What is remembered is bounded by time and number: the longest ago goes.
#
# Of two that read as one group each would overwrite the other's position. So who names itself as the reader has the
# group while its connection lasts and the mastership does, and another one is refused. Who names nobody, as older
# clients do, is neither.
#
# Pure: `now` comes in, in seconds of one monotonic clock.


class _Holder(NamedTuple):
    reader: str
    session: object
    epoch: int
    peer: str


ACTIVE_S: Final = 10.0
_REMEMBERED_MAX: Final = 10_000
_NAME_CHARS_MAX: Final = 512


class StreamReaders:
    """Of one node. `session`: a connection."""

    def __init__(self) -> None:
        # The latest one of each queue and group, in the order of their times.
        self._heard: dict[tuple[str, str], tuple[object, float]] = {}
        self._holders: dict[tuple[str, str], _Holder] = {}

    def claim(self, queue: str, group: str, reader: str, session: object, *, epoch: int, peer: str) -> None:
        """This one reads as that group from here on. `epoch`: of the mastership; `peer`: the address of the connection.
        Raises ExclusiveTaken."""
        holder = self._holders.get((queue, group))
        if holder is not None and holder.reader != reader and holder.epoch == epoch:
            raise ExclusiveTaken(
                f"queue {shown(queue)} is read as group {group!r} already, by {holder.peer}: give this reader "
                'a group of its own, or have several share one with subscribe(ordered_by="key")'
            )
        if holder is not None or len(self._holders) < _REMEMBERED_MAX:
            self._holders[queue, group] = _Holder(reader, session, epoch, peer)

    def leave(self, queue: str, group: str, reader: str) -> None:
        """It reads no more, and that it was heard a moment ago says nothing."""
        holder = self._holders.get((queue, group))
        if holder is not None and holder.reader == reader:
            del self._holders[queue, group]
            self._heard.pop((queue, group), None)

    def note(self, queue: str, group: str, session: object, now: float) -> None:
        """A connection asked for that group's position, or stored it."""
        if len(queue) > _NAME_CHARS_MAX or len(group) > _NAME_CHARS_MAX:
            return  # no group has such a name
        self._heard.pop((queue, group), None)
        self._heard[queue, group] = session, now
        while self._heard:
            oldest = next(iter(self._heard))
            if len(self._heard) <= _REMEMBERED_MAX and self._heard[oldest][1] + ACTIVE_S > now:
                break
            del self._heard[oldest]

    def forget(self, session: object) -> None:
        """A connection is gone."""
        for key in [key for key, (heard, _) in self._heard.items() if heard is session]:
            del self._heard[key]
        for key in [key for key, holder in self._holders.items() if holder.session is session]:
            del self._holders[key]

    def active(self, queue: str, group: str, *, now: float) -> str:
        """Who reads there, in words; empty when nobody does."""
        _, at = self._heard.get((queue, group), (None, -ACTIVE_S))
        return f"heard {now - at:.1f} s ago" if now < at + ACTIVE_S else ""


# A reset of groups on the queue's master: who stands where, and the one batch that changes it. Thin: `groups.resets`
# decides.
#
# All of it is one step of the loop: nobody can subscribe, settle or store a position between the look and the change.


class GroupResets:
    """Of one queue. `reading`: who reads as a stream group, in words; empty when nobody is known to."""

    def __init__(self, log: HostedLog, deliverer: Deliverer, queue: Queue, reading: Callable[[str], str]) -> None:
        self._replica = log.replica
        self._deliverer = deliverer
        self._queue = queue
        self._reading = reading

    def reset(self, message: ResetGroups, wish: ResetRequest, respond: Respond) -> None:
        """Answered with GroupsReset once it is confirmed. Raises NoSuchGroup, OffsetOutOfRange, InUse, BadRequest, or
        why nothing is taken; then nothing was changed."""
        groups = self._named(message)
        self._deliverer.ends.settle_gathered(self._queue.queue_id, groups)
        standings, place = [self._standing(group) for group in groups], self._place()
        targets = [wish.target(each, place) for each in standings]
        moves = [self._move(each, target) for each, target in zip(standings, targets, strict=True)]
        answer = GroupsReset(
            queue=self._queue.name, begin=place.begin, next=place.next, groups=moves, done=not message.dry_run
        )
        if not message.dry_run and not message.force:
            check_idle(standings)
        if message.dry_run or not moves:
            respond(answer)
            return

        def done(error: MirrorlogError | None) -> None:
            respond(error or answer)

        self._deliverer.ends.replace(self._queue.queue_id, list(self._changes(moves)), "reset", done)

    # --- inside ---

    def _named(self, message: ResetGroups) -> list[str]:
        """Raises NoSuchGroup. The queue's own group is always there."""
        acking, streams = self._replica.groups.groups(self._queue.queue_id), self._queue.newest
        if message.groups is None:
            return sorted({*acking, *streams})
        for group in message.groups:
            if group not in acking and group not in streams and group != OWN_GROUP:
                raise no_such_group(group)
        return sorted(set(message.groups))

    def _standing(self, group: str) -> ResetPosition:
        queue_id = self._queue.queue_id
        ledger = self._replica.groups.get(queue_id, group)
        if ledger is not None:
            floor = max(ledger.floor, self._replica.index.begin(queue_id))
            return ResetPosition(group, ACKING, floor, self._deliverer.in_use(queue_id, group))
        if group in self._queue.newest:
            return ResetPosition(group, STREAM, self._queue.newest[group].queue_offset, self._reading(group))
        return ResetPosition(group, ACKING, self._replica.index.begin(queue_id), "")

    def _place(self) -> Place:
        index, queue_id = self._replica.index, self._queue.queue_id
        following = index.next_confirmed(queue_id)
        # Where it is decided to begin, too: it is freed from there on in a moment.
        begin = max(index.begin(queue_id), min(self._replica.queues.start_offsets.get(queue_id, 0), following))
        return Place(begin, following, index.gaps_of(queue_id))

    def _move(self, standing: ResetPosition, target: int) -> GroupMove:
        position = None if standing.kind == ACKING else self._queue.newest[standing.group]
        return GroupMove(
            group=standing.group,
            kind=standing.kind,
            source=self._position(standing.queue_offset, position.epoch if position is not None else None),
            target=self._position(target),
            active=standing.active,
        )

    def _position(self, queue_offset: int, epoch: int | None = None) -> Position:
        replica = self._replica
        epoch = replica.log.epochs.current if epoch is None else epoch
        return Position(log_id=str(replica.log_id), epoch=epoch, queue_offset=queue_offset)

    def _changes(self, moves: list[GroupMove]) -> Iterator[GroupReset | PositionCommitted]:
        """Raises BadRequest or Overloaded."""
        for move in moves:
            target = move.target
            if move.kind == ACKING:
                yield self._replica.groups.reset(
                    self._queue.queue_id,
                    move.group,
                    target.queue_offset,
                    streams=self._queue.newest,
                    void=self._deliverer.lease_numbers.last(self._queue.queue_id) + 1,
                )
            else:
                yield PositionCommitted(
                    group=move.group, log_id=target.log_id, epoch=target.epoch, queue_offset=target.queue_offset
                )


_OfQueue = Subscribe | Lease | SettleLease | ExtendLease | PurgeGroup | DeleteGroup | ListGroups | ResetGroups | Redrive
_Act = Callable[[Deliverer, Queue], None]
_T = TypeVar("_T")

ENDED_AT_ONCE: Final = 64
"""Subscriptions of a connection that is gone, in a turn of the loop: each takes 10 to 30 µs."""
NAMED_IN_ANSWER_MAX: Final = 1_000
"""Of each sort: 255 characters each are 1 MB at most."""


class GroupRequests:
    """What connections ask of groups that ack. `requests`: finds queues; `book`: the node's subscriptions."""

    def __init__(self, requests: Requests, view: ClusterView, book: SubscriptionBook) -> None:
        self._requests = requests
        self._view = view
        self._book = book
        self._readers = StreamReaders()
        # Secrets of subscriptions are made of their numbers by it: so none is kept.
        self._key = secrets.token_bytes(32)

    def note(self, message: Message, receiver: Receiver) -> None:
        """Whatever a connection asks for: whoever asks for a stream group's position, or stores it, is at work. Raises
        ExclusiveTaken for a second reader, or as what follows would."""
        if isinstance(message, CommitPosition | FetchPosition):
            if message.reader:
                self._claim(message, receiver)
            if not (isinstance(message, FetchPosition) and message.leaves):
                self._readers.note(message.queue, message.group, receiver, time.monotonic())

    def handles(self, message: Message) -> bool:
        return isinstance(message, _OfQueue | SetPrefetch | Unsubscribe)

    def handle(self, message: Message, receiver: Receiver, respond: Respond) -> None:
        """Answer through `respond`, now or later. Raises MirrorlogError as the answer."""
        if isinstance(message, Unsubscribe):
            deliverer = self._book.deliverer(message.subscription, receiver)
            (deliverer.gone if message.leaves else deliverer.unsubscribe)(message.subscription)
            respond(Done())
        elif isinstance(message, SetPrefetch):
            self._book.deliverer(message.subscription, receiver).set_prefetch(message)
            respond(Done())
        elif isinstance(message, Subscribe):
            self._at_once(message, respond, lambda log, queue: self._subscribe(message, log, queue, receiver, respond))
        elif isinstance(message, Lease):
            self._at_once(
                message, respond, lambda log, queue: log.leasing.lease(message, queue.queue_id, receiver, respond)
            )
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
        self._readers.forget(receiver)
        leaving = self._book.of(receiver)
        for number, deliverer in leaving:
            deliverer.held(number)
        self._end_some(leaving)

    # --- inside ---

    def _claim(self, message: CommitPosition | FetchPosition, receiver: Receiver) -> None:
        log, _ = self._requests.find(message.queue)
        if isinstance(message, FetchPosition) and message.leaves:
            self._readers.leave(message.queue, message.group, message.reader)
        elif log.masters:  # else whoever asks is sent there
            self._readers.claim(
                message.queue, message.group, message.reader, receiver,
                epoch=log.replica.log.epochs.current, peer=receiver.endpoint.peer,
            )  # fmt: skip

    def _end_some(self, leaving: list[tuple[int, ServesSubscriptions]]) -> None:
        """Those of a connection that is gone, which are given nothing more. It may have had thousands, and the loop has
        others to serve; the oldest ones last, for one that is active alone is replaced by the next one."""
        for _ in range(min(len(leaving), ENDED_AT_ONCE)):
            number, deliverer = leaving.pop()
            deliverer.gone(number)
        if leaving:
            asyncio.get_running_loop().call_soon(self._end_some, leaving)

    def _subscribe(
        self, message: Subscribe, log: Deliverer, queue: Queue, receiver: Receiver, respond: Respond
    ) -> None:
        """Whoever comes back over a new connection need not wait until the node has missed the old one."""
        if (former := self._book.serving(message.replaces)) is not None and self._proven(message):
            former.gone(message.replaces)
        answer = log.subscribing.subscribe(message, queue.queue_id, receiver)
        respond(msgspec.structs.replace(answer, secret=self._secret(answer.subscription)))

    def _proven(self, message: Subscribe) -> bool:
        return hmac.compare_digest(message.secret.encode(), self._secret(message.replaces).encode())

    def _secret(self, number: int) -> str:
        return hmac.digest(self._key, number.to_bytes(8, "little"), "sha256").hex()

    def _handle_known(self, message: Message, respond: Respond) -> None:
        """What is answered from all that was ever confirmed, or changes it at once."""
        if isinstance(message, SettleLease):
            # A receipt may name no more than was confirmed: it is that of a lease which a master before has answered.
            self._once_known(message, respond, lambda log, queue: log.leasing.settle(message, queue.queue_id, respond))
        elif isinstance(message, ExtendLease):
            self._once_known(message, respond, lambda log, queue: log.leasing.extend(message, queue.queue_id, respond))
        elif isinstance(message, PurgeGroup):
            self._once_known(
                message, respond, lambda log, queue: log.ready.purge(queue.queue_id, message.group, respond)
            )
        elif isinstance(message, DeleteGroup):
            if message.group == OWN_GROUP:
                raise BadRequest("a queue's own group goes with the queue; purge it, or give the name of another one")
            self._once_known(
                message, respond, lambda log, queue: log.ends.delete(queue.queue_id, message.group, respond)
            )
        elif isinstance(message, Redrive):
            self._redrive(message, respond)
        elif isinstance(message, ResetGroups):
            self._reset(message, respond)
        elif isinstance(message, ListGroups):
            log, _ = self._requests.find(message.queue)
            self._once_known(message, respond, lambda deliverer, queue: respond(_found(log, deliverer, queue)))

    def _redrive(self, message: Redrive, respond: Respond) -> None:
        if not 1 <= message.records_max <= REDRIVE_MAX:
            raise BadRequest(f"records_max {message.records_max} is not within 1 and {REDRIVE_MAX}")
        if message.to:
            check_name("queue", message.to)
            name = qualified(split(message.queue)[0], message.to)
            if self._view.placed(name) is None:
                raise no_such_queue(name)
        self._once_known(message, respond, lambda log, queue: log.ready.redrive(message, queue.queue_id, respond))

    def _reset(self, message: ResetGroups, respond: Respond) -> None:
        """A time is looked up first: it may be long past."""
        wish = ResetRequest.of(message)

        def reset(deliverer: Deliverer, queue: Queue, wish: ResetRequest) -> None:
            active = partial(self._readers.active, message.queue, now=time.monotonic())
            log, _ = self._requests.find(message.queue)
            GroupResets(log, deliverer, queue, active).reset(message, wish, respond)

        async def look_up(queue: Queue) -> None:
            log, _ = self._requests.find(message.queue)
            found = await wish.at_time(log.replica.index, log.past, queue.queue_id)
            self._once_known(message, respond, lambda deliverer, queue: reset(deliverer, queue, found))

        def act(deliverer: Deliverer, queue: Queue) -> None:
            if wish.needs_time:
                self._requests.later(look_up(queue), respond)
            else:
                reset(deliverer, queue, wish)

        self._once_known(message, respond, act)

    def _at_once(self, message: _OfQueue, respond: Respond, act: _Act) -> None:
        """Act on the log's master: what is given to subscribers waits there by itself. Raises NotMaster: before the
        cluster's version is asked for, since who has not heard the cluster yet knows that of its founding."""
        log, queue = self._requests.find(message.queue)
        deliverer = self._deliverer(log)
        if (older := self._older(message)) is not None:
            respond(older)  # not raised: the connection is sound
            return
        act(deliverer, queue)

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

    def _older(self, message: _OfQueue) -> UnsupportedVersion | None:
        active = self._view.cluster_version()
        if isinstance(message, Subscribe | Lease) and message.ordered_by:
            return versions.too_old(active, versions.ORDERED_GROUPS, "groups that are ordered by key")
        return versions.too_old(active, versions.GROUPS, "groups that ack")


def _found(log: HostedLog, deliverer: Deliverer, queue: Queue) -> GroupsFound:
    index = log.replica.index
    following = index.next_confirmed(queue.queue_id)
    begin, gaps = index.begin(queue.queue_id), index.gaps_of(queue.queue_id)
    groups = log.replica.groups.groups(queue.queue_id)
    named = _Named(deliverer, queue)
    acking = [
        GroupInfo(
            group=group,
            kind=ACKING,
            floor=max(ledger.floor, begin),
            watermark=ledger.watermark,
            ready=counted_there(ledger.ready, begin, gaps, following),
            unsettled=counted_there(ledger.unsettled_total, begin, gaps, following),
            out=ledger.out - (held := deliverer.held_back(queue.queue_id, group)),
            leased=ledger.leased - (departing := deliverer.forwardings.forwarding(queue.queue_id, group)),
            departing=departing,
            departing_waits=log.mastering.forwardings.waits(queue.queue_id) if departing and log.mastering else "",
            parked=ledger.parked + held,
            subscribers=deliverer.subscribers(queue.queue_id, group),
            gone=counted_gone(ledger.unsettled_total, begin, gaps),
            leases=named.leases(group),
            **named.consumers(group),
        )
        for group, ledger in sorted(groups.items())
    ]
    streams = [
        GroupInfo(group=group, kind=STREAM, floor=position.queue_offset)
        for group, position in sorted(queue.positions.items())
        if group not in groups
    ]
    return GroupsFound(queue=queue.name, next=following, groups=[*acking, *streams], now_us=deliverer.clock())


class _Named:
    """Who takes from the groups of a queue: so many in one answer that a frame holds it, however many groups there
    are."""

    def __init__(self, deliverer: Deliverer, queue: Queue) -> None:
        self._deliverer = deliverer
        self._queue_id = queue.queue_id
        self._left = dict[str, int]()

    def consumers(self, group: str) -> dict[str, Any]:
        """The fields of GroupInfo that `GroupConsumers` has."""
        found = self._deliverer.consumers(self._queue_id, group)
        facts = {each.name: getattr(found, each.name) for each in fields(found)}
        return {name: self._some(name, each) if isinstance(each, tuple) else each for name, each in facts.items()}

    def leases(self, group: str) -> list[LeaseInfo]:
        return self._some("leases", self._deliverer.leases(self._queue_id, group))

    def _some(self, what: str, found: Sequence[_T]) -> list[_T]:
        left = self._left.get(what, NAMED_IN_ANSWER_MAX)
        some = list(found[:left])
        self._left[what] = left - len(some)
        return some
