"""Queues that come to logs which this node masters: their states, piece by piece, from the master of the log that each
has left (decision 0050).

What came is there as long as this mastership lasts and its sender goes on: every attempt begins with piece 0, and one
that is left alone is dropped, for a log whose arrivals are incomplete writes no checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.session.queue_deletion import confirmed, publisher_of
from mirrorlog.cluster.requests import AskArrival, QueueArrival
from mirrorlog.errors import BadBatch, LogUnavailable, MirrorlogError
from mirrorlog.queues.changes import QueueArriving, decode_changes
from mirrorlog.queues.moves import ArrivingQueue
from mirrorlog.queues.moving import Arrival, drop_arrival

GIVE_UP_S: Final = 8.0
"""A queue that has left waits no longer for a log that does not take it, and a log not for one whose sender is silent.
By then a node that hangs has been replaced."""
PROBE: Final = -1
"""The number of a piece that asks only whether more may come."""
STATE_BYTES_MAX: Final = 1024 * 1024
"""Of a piece: one state alone may be larger than others are together."""

_Place = tuple[UUID, int]
"""A log, and a queue's id."""


@dataclass(slots=True)
class _Arriving:
    """An arrival as this mastership takes it: of which `attempt` of the source, in which `epoch` of this log, and `at`
    when the last piece came (s, the loop's clock)."""

    arrival: Arrival
    attempt: str
    epoch: int
    at: float = 0.0


class Arrivals:
    """`soon`: called when something is confirmed from which more follows."""

    def __init__(self, view: ClusterView, soon: Callable[[], None]) -> None:
        self._view = view
        self._soon = soon
        self._arrivals: dict[_Place, _Arriving] = {}
        # Since when an arrival is incomplete here, without anybody who goes on with it.
        self._left_alone: dict[_Place, float] = {}

    async def take(self, log: HostedLog, asked: AskArrival) -> QueueArrival:
        """A piece, or the word that there are no more."""
        self._check(asked)
        if asked.piece == PROBE:
            publisher = publisher_of(log, self._view)
            publisher.check_admitted()
            log.replica.queues.check_room()
            # What comes then has to be on disk too, and does not wait for what is to be written now.
            await confirmed(partial(publisher.when_confirmed, on_disk=True))
            return QueueArrival(wanted=0)
        return await self._take_piece(log, asked)

    async def _take_piece(self, log: HostedLog, asked: AskArrival) -> QueueArrival:
        place, queues = (log.log_id, asked.queue_id), log.replica.queues
        there, first = queues.moves.arriving.get(asked.queue_id), _arriving(asked).first
        if there is not None and there.arrived and (there.move, there.first) == (asked.move, first):
            return await self._arrived(log)
        known = self._arrivals.get(place)
        epoch = log.replica.log.epochs.current
        if known is None or there is None or (known.attempt, known.epoch) != (asked.attempt, epoch):
            if asked.piece:
                return QueueArrival(wanted=0)
            known = self._begin_arrival(log, asked, there)
        known.at = asyncio.get_running_loop().time()
        arrival = known.arrival
        if asked.piece != arrival.next_piece:  # the one before: its answer was lost
            return QueueArrival(wanted=arrival.next_piece if asked.piece == arrival.next_piece - 1 else 0)
        try:
            self._put(log, arrival, asked)
        except MirrorlogError:
            self._arrivals.pop(place, None)  # a part of it may be there: it comes anew
            raise
        if asked.state is not None:
            return QueueArrival(wanted=arrival.next_piece)
        del self._arrivals[place]
        return await self._arrived(log)

    def _put(self, log: HostedLog, arrival: Arrival, asked: AskArrival) -> None:
        """Into the log."""
        if asked.state is None:
            self._append(log, arrival.end())
            return
        arrival.add(asked.piece, asked.state)
        while (batch := arrival.next_batch(log.replica.log.end)) is not None:
            self._append(log, batch)

    def _check(self, asked: AskArrival) -> None:
        if asked.state is not None and len(asked.state) > STATE_BYTES_MAX:
            raise BadBatch(f"a piece of {len(asked.state)} bytes is above {STATE_BYTES_MAX}")
        move = self._view.moves().get(asked.name)
        if move is None or (move.number, move.target) != (asked.move, asked.log_id):
            raise LogUnavailable(f"nothing is known here of move {asked.move}; ask again")

    def _begin_arrival(self, log: HostedLog, asked: AskArrival, there: ArrivingQueue | None) -> _Arriving:
        if there is not None and there.arrived and there.move == asked.move:
            # The cluster may be about to add its span, with the first record that it names, or has done so.
            raise LogUnavailable(f"queue {asked.queue_id} has come by move {asked.move} already, from {there.first} on")
        if there is not None:
            self.drop(log, asked.queue_id, there.move)
        epoch = log.replica.log.epochs.current
        arrival = Arrival(_arriving(asked), epoch=epoch)
        self._append(log, arrival.begin(log.replica.queues))
        known = self._arrivals[log.log_id, asked.queue_id] = _Arriving(arrival, asked.attempt, epoch)
        return known

    async def _arrived(self, log: HostedLog) -> QueueArrival:
        await confirmed(publisher_of(log, self._view).when_confirmed)
        self._soon()
        return QueueArrival(wanted=-1)

    def drop(self, log: HostedLog, queue_id: int, move: int) -> None:
        self._append(log, drop_arrival(log.replica.queues, queue_id, move))
        self._arrivals.pop((log.log_id, queue_id), None)

    def drop_what_is_left_alone(self, log: HostedLog, now: float) -> None:
        """A log whose arrivals are incomplete writes no checkpoint. Whoever comes back to one begins anew."""
        for queue_id, each in list(log.replica.queues.moves.arriving.items()):
            place = (log.log_id, queue_id)
            arrival = self._arrivals.get(place)
            if each.arrived or (arrival is not None and now - arrival.at < GIVE_UP_S):
                self._left_alone.pop(place, None)
            elif now - self._left_alone.setdefault(place, now) >= GIVE_UP_S:
                del self._left_alone[place]
                self.drop(log, queue_id, each.move)

    def _append(self, log: HostedLog, batch: bytearray) -> None:
        append(log, self._view, batch, self._soon)


def _arriving(asked: AskArrival) -> QueueArriving:
    """Raises BadBatch when it does not say that, of this queue and move."""
    match decode_changes(asked.arriving):
        case [QueueArriving() as arriving] if (arriving.queue_id, arriving.move) == (asked.queue_id, asked.move):
            return arriving
    raise BadBatch(f"queue {asked.queue_id} does not arrive by move {asked.move} with that")


def append(log: HostedLog, view: ClusterView, batch: bytearray, soon: Callable[[], None]) -> None:
    """`soon`: called when it is confirmed. Raises NotMaster, or what a log that takes nothing says."""
    publisher = publisher_of(log, view)
    publisher.append_control(batch)
    publisher.when_confirmed(lambda error: soon())
