"""Queues of a log that this node masters which may be so long and no longer. Thin: `queues.lengths` decides.

A publish to a queue that rejects is refused before it is stored; where what is refused goes to dead letters it is
stored as what leaves, and its producer is told when that is confirmed. The others are looked at when more of them is
confirmed, and whoever had room for it has been given it: the deliverer says when that is, however many turns of the
loop it takes. Rejected: to wait for so many turns (three hundred subscribers with room for one record each take more).
What goes is a change in the log, which nobody waits for; one that is refused is tried again with the next tick. There
is no timer per queue, and a log without such queues pays one look into an empty table per batch.

All of it follows from the log, so another master comes to the same, when more is published: not before, since what was
unacknowledged has returned by the failover, and who had it comes for it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence, Set
from typing import Final

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.log.host import Host
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.header import BatchHeader, Column
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.errors import MirrorlogError, Overloaded, QueueFull
from mirrorlog.queues.arguments import REJECT_PUBLISH_DLX, dead_letters_of
from mirrorlog.queues.changes import Change, encode_changes
from mirrorlog.queues.dead_letters.forwarding import FORWARDINGS_MAX
from mirrorlog.queues.delivery.settlement import DROPPED
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.limits.length import QueueLength, QueueLengthView
from mirrorlog.queues.queue_table import Queue

logger = logging.getLogger(__name__)

_ATTRIBUTES: Final = int(Column.ATTRIBUTES)
FORMER_AGAIN_S: Final = 5.0
"""After which a log that a queue was in before, and that did not answer, is asked again."""
_READ_BYTES: Final = 1024 * 1024
"""Of batches whose sizes are asked for in a turn of the loop."""
_READ_PAST_BYTES: Final = 16 * 1024 * 1024
"""And of the past at once."""


class QueueLengths:
    """Of one mastership. `past_helper`: where the index of the past is asked."""

    def __init__(self, replica: Replica, publisher: LogPublisher, deliverer: Deliverer, host: Host) -> None:
        self._replica = replica
        self._publisher = publisher
        self._deliverer = deliverer
        self._past_helper = host.helpers.index
        self._former_sizes = host.former_sizes
        self._known: dict[int, tuple[Queue, QueueLength]] = {}
        self._awake: set[int] = set()
        self._failed: set[int] = set()
        self._reading: dict[int, asyncio.Task[None]] = {}
        # Queues of whose records some may be given to who has room, and the watermark that it takes, as far as known.
        self._unserved: dict[int, int | None] = {}
        self._asked = False
        # Where the queues end that the master before has left: that this is confirmed now is no reason for a look.
        ends = replica.index.next_appended
        self._left = {queue_id: ends(queue_id) for queue_id in replica.queues.lengths}
        self._due = False
        self._stopped = False
        replica.on_lengths.append(self._confirmed)
        replica.on_deleted.append(self._deleted)
        replica.on_governed.append(self._governed)
        deliverer.on_pumped = self._pumped

    def admit(self, headers: Sequence[BatchHeader]) -> None:
        """Batches are about to be appended together, and nothing else stands against it. Raises QueueFull or
        Overloaded: then none of them is."""
        queues = self._replica.queues
        following: dict[int, int] = {}
        for header in headers:
            if header.columns & _ATTRIBUTES or header.queue_id in queues.ttls:
                self._replica.runs.check_room(header.queue_id)
            limits = queues.lengths.get(header.queue_id)
            if limits is not None and limits.rejects:
                self._admit(header, following)

    def leaving(self, header: BatchHeader) -> bytearray | None:
        """The change by which the records of a batch that was not admitted leave for dead letters, to be appended with
        it, behind it; None when the queue refuses it and no more: also when as much waits to leave as may, or a queue
        would grow without a limit while nobody takes its dead letters."""
        queue_id = header.queue_id
        limits = self._replica.queues.lengths.get(queue_id)
        if limits is None or limits.overflow != REJECT_PUBLISH_DLX:
            return None
        if dead_letters_of(self._replica.queues.find_id(queue_id).effective) is None:
            return None
        if len(self._replica.forwardings.of(queue_id).forwardings) >= FORWARDINGS_MAX:
            return None
        first = self._replica.index.next_appended(queue_id)
        until = first + header.record_count
        changes = [
            *self._made(queue_id),
            *self._deliverer.forwardings.die(queue_id, OWN_GROUP, [(first, until)], DROPPED),
        ]
        self._length(queue_id).arrived(first, until, 0)  # nothing of it will be ready
        return encode_changes(changes, queue_id=queue_id)

    def _admit(self, header: BatchHeader, following: dict[int, int]) -> None:
        """`following`: where the queues go on behind the batches before this one."""
        queue_id = header.queue_id
        length = self._length(queue_id)
        first = following.get(queue_id, self._replica.index.next_appended(queue_id))
        if length.limits.size is not None and not self._counts(queue_id, length, first):
            raise Overloaded(
                "how many bytes the queue has is read at the moment, right behind a failover or a start; nothing was "
                "stored, send it again",
                limit="x-max-length-bytes",
            )
        try:
            length.check(self._view(queue_id, first), header.record_count, header.length)
        except QueueFull:
            now = asyncio.get_running_loop().time()
            self._replica.counters.queue(queue_id).refused.add(header.record_count, now)
            raise
        following[queue_id] = first + header.record_count
        length.arrived(first, following[queue_id], header.length)

    def tick(self) -> None:
        """Time passes, and the mastership has begun: sizes are asked for before anybody needs them, and those whose
        change was refused are looked at again."""
        if not self._asked:
            self._asked = True
            limited = self._replica.queues.lengths
            self._awake.update(each for each in limited if limited[each].rejects)
        self._awake |= self._failed | self._unserved.keys()
        self._failed.clear()
        self._look_soon()

    async def end(self) -> None:
        """After `fence`."""
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def fence(self) -> None:
        """Another one may be the master."""
        self._stopped = True
        self._replica.on_lengths.remove(self._confirmed)
        self._replica.on_deleted.remove(self._deleted)
        self._replica.on_governed.remove(self._governed)

    # --- inside ---

    def _confirmed(self, gained: Set[int]) -> None:
        """Only noted: this may come in the middle of an append of this log."""
        there, confirmed = gained & self._replica.queues.lengths.keys(), self._replica.index.next_confirmed
        self._awake.update(each for each in there if confirmed(each) > self._left.get(each, 0))
        self._look_soon()

    def _deleted(self, queue_ids: Set[int]) -> None:
        for queue_id in queue_ids:
            self._known.pop(queue_id, None)
            self._left.pop(queue_id, None)
            self._unserved.pop(queue_id, None)

    def _governed(self, queue_id: int) -> None:
        """It may be of another length from now on, or of any."""
        self._deleted({queue_id})
        if queue_id in self._replica.queues.lengths:
            self._awake.add(queue_id)
            self._look_soon()

    def _look_soon(self) -> None:
        if self._awake and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._look)

    @property
    def _idle(self) -> bool:
        """Whether nothing may be decided at the moment."""
        return self._stopped or not self._deliverer.begun or self._publisher.cut_off

    def _look(self) -> None:
        self._due = False
        if self._idle:
            return
        awake, self._awake = self._awake, set()
        for queue_id in awake & self._replica.queues.lengths.keys():
            if self._deliverer.pump_soon(queue_id, OWN_GROUP):
                self._unserved.setdefault(queue_id)
            elif not self._idle:
                self._look_safely(queue_id)

    def _pumped(self, queue_ids: Set[int]) -> None:
        """Who has room for records of these was given some."""
        for queue_id in queue_ids & self._unserved.keys():
            if self._idle or queue_id not in self._replica.queues.lengths:
                continue
            served, watermark = self._deliverer.served(queue_id, OWN_GROUP, self._unserved[queue_id])
            if served:
                del self._unserved[queue_id]
                self._look_safely(queue_id)
            else:
                self._unserved[queue_id] = watermark

    def _look_safely(self, queue_id: int) -> None:
        """Others go on when one cannot be looked at; what nobody foresaw ends the node, or it would grow for ever."""
        try:
            length = self._length(queue_id)
            # It comes back when they are known.
            known = length.limits.size is None or self._read_sizes(queue_id, length)
            if known and not length.limits.rejects:
                self._drop(queue_id, length)
        except MirrorlogError as error:
            logger.debug("length_not_kept log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed.add(queue_id)  # the next tick looks again
        except Exception as error:
            logger.exception("length_failed log=%s", self._replica.assignment.name)
            self._replica.on_broken(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    def _drop(self, queue_id: int, length: QueueLength) -> None:
        """Settle what is too much of a queue. Raises MirrorlogError: nothing was changed."""
        self._deliverer.ends.settle_gathered(queue_id, [OWN_GROUP])
        ranges = length.to_drop(self._view(queue_id, self._replica.index.next_confirmed(queue_id)))
        if not ranges:
            return
        pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
        changes = [*self._made(queue_id), *self._deliverer.forwardings.die(queue_id, OWN_GROUP, pairs, DROPPED)]
        self._publisher.append_settlement(encode_changes(changes, queue_id=queue_id))
        self._deliverer.dropped(queue_id, OWN_GROUP, pairs)
        self._replica.counters.queue(queue_id).expired += sum(until - first for first, until in pairs)
        self._awake.add(queue_id)  # there may be more than one change has
        self._look_soon()

    def _made(self, queue_id: int) -> Iterable[Change]:
        """What makes the queue's own group, unless somebody has."""
        groups = self._replica.groups
        if groups.get(queue_id, OWN_GROUP) is None:
            begin, streams = self._replica.index.begin(queue_id), self._replica.queues.find_id(queue_id).newest
            void = self._deliverer.lease_numbers.last(queue_id) + 1
            yield groups.reset(queue_id, OWN_GROUP, begin, streams=streams, void=void)

    def _length(self, queue_id: int) -> QueueLength:
        queue, known = self._replica.queues.find_id(queue_id), self._known.get(queue_id)
        if known is None or known[0] is not queue:  # it may have been in another log meanwhile
            known = self._known[queue_id] = queue, QueueLength(self._replica.queues.lengths[queue_id])
        return known[1]

    def _view(self, queue_id: int, until: int) -> QueueLengthView:
        index = self._replica.index
        ledger = self._replica.groups.get(queue_id, OWN_GROUP)
        return QueueLengthView(ledger, index.begin(queue_id), until, index.gaps_of(queue_id))

    # --- sizes ---

    def _counts(self, queue_id: int, length: QueueLength, first: int) -> bool:
        """Whether the bytes of all that stands below `first` count: what this mastership took does at once, what was
        there before when it is confirmed and was read."""
        before = length.arriving_from(first)
        if self._read_sizes(queue_id, length):
            return self._replica.index.next_confirmed(queue_id) >= before
        return length.sizes.end >= before

    def _read_sizes(self, queue_id: int, length: QueueLength) -> bool:
        """Tell it of what is confirmed. Whether all of it is known; the queue is looked at again when more is: what is
        not in memory is read, and of what is, a part is told in a turn."""
        if queue_id in self._reading:
            return False
        index = self._replica.index
        at = max(length.sizes.end, self._view(queue_id, 0).low)
        at = index.gap_end(queue_id, at) or at
        if at >= index.next_confirmed(queue_id):
            return True
        if at < (here := self._replica.queues.moves.firsts.get(queue_id, 0)):
            self._reading[queue_id] = asyncio.ensure_future(self._read_former(queue_id, length, at, here))
            return False
        past_until = index.past_until(queue_id, at)
        if past_until is not None:
            self._reading[queue_id] = asyncio.ensure_future(self._read_past(queue_id, length, at, past_until))
            return False
        self._note(length, index.entries(queue_id, at, _READ_BYTES))
        if at < length.sizes.end < index.next_confirmed(queue_id):
            self._awake.add(queue_id)
            self._look_soon()
            return False
        return True

    async def _read_past(self, queue_id: int, length: QueueLength, at: int, until: int) -> None:
        loop, past = asyncio.get_running_loop(), self._replica.past
        try:
            if past is not None:
                runs = await loop.run_in_executor(
                    self._past_helper, lambda: past.entries(queue_id, at, _READ_PAST_BYTES, until=until)
                )
                if not self._note(length, runs):
                    length.sizes.add(at, until, 0)  # there is nothing: the memory goes on
        except (MirrorlogError, OSError) as error:  # a table that was dropped meanwhile, or cannot be opened just now
            logger.warning("sizes_not_read log=%s reason=%r", self._replica.assignment.name, str(error))
            self._failed.add(queue_id)  # the next tick looks again
        else:
            self._awake.add(queue_id)
        finally:
            self._reading.pop(queue_id, None)
            if not self._stopped:
                self._look_soon()

    async def _read_former(self, queue_id: int, length: QueueLength, at: int, until: int) -> None:
        """What logs have that the queue was in before. While one does not answer that counts for nothing: it is not to
        hold publishers up; then all is read again."""
        name, told = self._replica.queues.name_of(queue_id), True
        try:
            for first, end, size in await self._former_sizes(name, queue_id, at, until):
                length.sizes.add(first, end, size)
        except MirrorlogError as error:
            logger.warning("sizes_not_read log=%s reason=%r", self._replica.assignment.name, str(error))
            told = False
        finally:
            length.sizes.add(length.sizes.end, until, 0)
            self._reading.pop(queue_id, None)
        if not told:
            asyncio.get_running_loop().call_later(FORMER_AGAIN_S, self._known.pop, queue_id, None)
        self._awake.add(queue_id)
        if not self._stopped:
            self._look_soon()

    @staticmethod
    def _note(length: QueueLength, runs: Iterable[QueuedBatch]) -> bool:
        """Whether there was any."""
        before = length.sizes.end
        for run in runs:
            length.sizes.add(run.base_queue_offset, run.next_queue_offset, run.length)
        return length.sizes.end > before
