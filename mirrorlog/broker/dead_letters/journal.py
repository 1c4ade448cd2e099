"""What the log of one mastership says of records that leave its queues, and is told of them. Thin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.group_transfer import ALL_MEMBERS
from mirrorlog.queues.changes import Addressed, Change, PieceForwarded, Returned, Settled, encode_changes
from mirrorlog.queues.dead_letters.forwarding import HELD, REDRIVEN, Forwarding, QueueForwarding, producer_of
from mirrorlog.queues.dead_letters.message import Death
from mirrorlog.queues.delivery.settlement import WHYS
from mirrorlog.queues.ranges import Range, flat, pairs, set_of
from mirrorlog.wire.names import split

logger = logging.getLogger(__name__)


class DeadLetterJournal:
    """Of one mastership."""

    def __init__(self, replica: Replica, publisher: LogPublisher, deliverer: Deliverer) -> None:
        self._replica = replica
        self._publisher = publisher
        self._deliverer = deliverer
        self._why: dict[int, str] = {}
        """What was last held of a queue, and for which reason."""
        self.closed = False
        """Another one may be the master."""

    # --- asking ---

    @property
    def takes(self) -> bool:
        return not (self.closed or self._publisher.cut_off or self._publisher.stopping)

    @property
    def leaving(self) -> set[int]:
        """The queues that something leaves."""
        return self._replica.forwardings.leaving

    def of(self, queue_id: int) -> QueueForwarding:
        return self._replica.forwardings.of(queue_id)

    def name(self, queue_id: int) -> str:
        """Qualified."""
        queues = self._replica.queues
        return queues.find_id(queue_id).name if queues.has_id(queue_id) else str(queue_id)

    def death(self, queue_id: int, forwarding: Forwarding) -> Death:
        """Raises NoSuchQueue."""
        queue = self._replica.queues.find_id(queue_id)
        return Death(split(queue.name)[1], forwarding.reason, forwarding.at_us)

    def producer(self, queue_id: int) -> int:
        """Under which producer id its records leave. Raises NoSuchQueue."""
        queue = self._replica.queues.find_id(queue_id)
        return producer_of(queue.incarnation, str(self._replica.log_id), queue_id)

    def is_confirmed(self, queue_id: int, until: int) -> bool:
        """Whether records below that queue offset are known to be on all copies, so that they can be read."""
        return until <= self._replica.index.next_confirmed(queue_id)

    def held(self, queue_id: int) -> str:
        """What of a queue is held, for people; empty for nothing."""
        for forwarding in self.of(queue_id).forwardings:
            first = self._first_there(queue_id, forwarding) if forwarding.reason == HELD else None
            if first is not None:
                told = "letters_held in a node's log says why"
                return (
                    f"{self._records(queue_id, forwarding)} records cannot be sent, and are held, the first at queue "
                    f"offset {first} ({self._why.get(queue_id) or told}); a reset of the group ends that"
                )
        return ""

    def left(self, queue_id: int, forwarding: Forwarding) -> Iterator[Range]:
        """What of the group leaves by it, still; to be asked in one step of the loop."""
        ledger = self._replica.groups.get(queue_id, forwarding.group)
        return iter(()) if ledger is None else ledger.lease_ranges(forwarding.number)

    def note(self, queue_id: int, event: str, **facts: object) -> None:
        """A log line: state changes, and records that are dropped."""
        level = logging.WARNING if event in ("letters_dropped", "letters_held") else logging.INFO
        told = " ".join(f"{name}={value!r}" for name, value in facts.items())
        logger.log(level, "%s log=%s queue=%r %s", event, self._replica.assignment.name, self.name(queue_id), told)

    # --- telling ---

    async def address(self, queue_id: int, piece: Addressed) -> None:
        """Have it on all copies where a piece goes: before anything is sent so. Raises MirrorlogError."""
        self._append(queue_id, [piece])
        await self.confirmed()

    async def confirmed(self) -> None:
        """Wait until all copies have what is in the log now. Raises MirrorlogError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell(error: MirrorlogError | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        self._publisher.wait_at(self._replica.log.end, ALL_MEMBERS, tell)
        await done

    def settle(self, queue_id: int, forwarding: Forwarding, piece: Addressed) -> None:
        """What of the piece still leaves is done, or free again. Only the piece is looked at, however much leaves.
        Raises MirrorlogError."""
        there = self._of_piece(queue_id, forwarding, pairs(piece.ranges))
        kept = set_of(piece.kept)
        back = [part for run in there for part in kept.within(*run)]
        done = [part for run in there for part in kept.without(*run)]
        last = self._records(queue_id, forwarding) == sum(until - first for first, until in there)
        changes = [*_settled(forwarding, done)]
        if back:
            changes.append(self._kept(queue_id, forwarding, back))
        self._append(queue_id, [*changes, PieceForwarded(departure=forwarding.number, last=last)])
        self._deliverer.dropped(queue_id, forwarding.group, done)
        if forwarding.reason != REDRIVEN:
            left = sum(until - first for first, until in done)
            self._replica.counters.dead_lettered((queue_id, forwarding.group), left)
        self._tell_kept(queue_id, forwarding, back)

    def keep(self, queue_id: int, forwarding: Forwarding, ranges: Sequence[Range], why: str = "") -> None:
        """What nobody can send is in no piece: it is held, or free again. Raises MirrorlogError."""
        if why:
            self._why[queue_id] = f"queue offset {ranges[0][0]}: {why}"
        there = self._of_piece(queue_id, forwarding, ranges)
        if there:
            self._append(queue_id, [self._kept(queue_id, forwarding, there)])
            self._tell_kept(queue_id, forwarding, there)

    def settle_gone(self, queue_id: int, forwarding: Forwarding, gone: Sequence[Range]) -> None:
        """What is not there any more is done, and in no piece. Raises MirrorlogError."""
        there = self._of_piece(queue_id, forwarding, gone)
        if there:
            self._append(queue_id, _settled(forwarding, there))
            self._deliverer.dropped(queue_id, forwarding.group, there)

    def end_empty(self, queue_id: int, forwarding: Forwarding) -> None:
        """A forwarding of which nothing is left is done. Raises MirrorlogError."""
        if not self._records(queue_id, forwarding):
            self._append(queue_id, [PieceForwarded(departure=forwarding.number, last=True)])

    def give_up_piece(self, queue_id: int, piece: Addressed) -> None:
        """Its forwarding is over. Raises MirrorlogError."""
        self._append(queue_id, [PieceForwarded(departure=piece.departure)])

    # --- inside ---

    def _kept(self, queue_id: int, forwarding: Forwarding, ranges: Sequence[Range]) -> Change:
        """What somebody wanted to have elsewhere is free again; what died is held, for it was to be in no hands."""
        if forwarding.reason == REDRIVEN:
            return Returned(group=forwarding.group, ranges=flat(ranges))
        return self._deliverer.forwardings.holding(queue_id, forwarding.group, ranges)

    def _tell_kept(self, queue_id: int, forwarding: Forwarding, ranges: Sequence[Range]) -> None:
        if ranges and forwarding.reason == REDRIVEN:
            self._deliverer.stayed(queue_id, forwarding.group, ranges)

    def _first_there(self, queue_id: int, forwarding: Forwarding) -> int | None:
        """The first queue offset that it has, of what is not freed."""
        ledger, index = self._replica.groups.get(queue_id, forwarding.group), self._replica.index
        if ledger is None:
            return None
        there = ledger.lease_within(forwarding.number, index.begin(queue_id), index.next_appended(queue_id))
        return next((first for first, _ in there), None)

    def _of_piece(self, queue_id: int, forwarding: Forwarding, ranges: Sequence[Range]) -> list[Range]:
        ledger = self._replica.groups.get(queue_id, forwarding.group)
        if ledger is None:
            return []
        return [part for run in ranges for part in ledger.lease_within(forwarding.number, *run)]

    def _records(self, queue_id: int, forwarding: Forwarding) -> int:
        ledger = self._replica.groups.get(queue_id, forwarding.group)
        return 0 if ledger is None else ledger.lease_records(forwarding.number)

    def _append(self, queue_id: int, changes: Sequence[Change]) -> None:
        """Raises MirrorlogError."""
        if self.closed:
            raise asyncio.CancelledError
        self._publisher.append_settlement(encode_changes(changes, queue_id=queue_id))


def _settled(forwarding: Forwarding, ranges: Sequence[Range]) -> list[Change]:
    if not ranges:
        return []
    return [Settled(group=forwarding.group, ranges=flat(ranges), why=WHYS[forwarding.reason])]
