"""A reset of groups on the queue's master: who stands where, and the one batch that changes it. Thin: `queues.resets`
decides.

All of it is one step of the loop: nobody can subscribe, settle or store a position between the look and the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mirrorlog.broker.deliverer import Deliverer, Respond
from mirrorlog.broker.hosted import HostedLog
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import GroupReset, PositionCommitted
from mirrorlog.queues.groups import OWN_GROUP, no_such_group
from mirrorlog.queues.registry import Queue
from mirrorlog.queues.resets import ACKING, STREAM, Place, Standing, Wish, check_idle
from mirrorlog.wire.messages import GroupMove, GroupsReset, Position, ResetGroups


class GroupResets:
    """Of one queue. `reading`: who reads as a stream group, in words; empty when nobody is known to."""

    def __init__(self, log: HostedLog, deliverer: Deliverer, queue: Queue, reading: Callable[[str], str]) -> None:
        self._replica = log.replica
        self._deliverer = deliverer
        self._queue = queue
        self._reading = reading

    def reset(self, message: ResetGroups, wish: Wish, respond: Respond) -> None:
        """Answered with GroupsReset once it is confirmed. Raises NoSuchGroup, OffsetOutOfRange, InUse, BadRequest, or
        why nothing is taken; then nothing was changed."""
        groups = self._named(message)
        self._deliverer.settle_gathered(self._queue.queue_id, groups)
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

        self._deliverer.replace(self._queue.queue_id, list(self._changes(moves)), "reset", done)

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

    def _standing(self, group: str) -> Standing:
        queue_id = self._queue.queue_id
        ledger = self._replica.groups.get(queue_id, group)
        if ledger is not None:
            floor = max(ledger.floor, self._replica.index.begin(queue_id))
            return Standing(group, ACKING, floor, self._deliverer.taken(queue_id, group))
        if group in self._queue.newest:
            return Standing(group, STREAM, self._queue.newest[group].queue_offset, self._reading(group))
        return Standing(group, ACKING, self._replica.index.begin(queue_id), "")

    def _place(self) -> Place:
        index, queue_id = self._replica.index, self._queue.queue_id
        following = index.next_confirmed(queue_id)
        # Where it is decided to begin, too: it is freed from there on in a moment.
        begin = max(index.begin(queue_id), min(self._replica.queues.begins.get(queue_id, 0), following))
        return Place(begin, following, index.gaps_of(queue_id))

    def _move(self, standing: Standing, target: int) -> GroupMove:
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
        epoch = replica.epochs.current if epoch is None else epoch
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
                    void=self._deliverer.last_lease + 1,
                )
            else:
                yield PositionCommitted(
                    group=move.group, log_id=target.log_id, epoch=target.epoch, queue_offset=target.queue_offset
                )
