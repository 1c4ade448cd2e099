"""Gives out what a subscription was granted: records, or stretches of batches, each with its grant. Thin.

What is not there any more, or nobody can open, is passed over, and its node told. With auto-ack the node sends no more
than the prefetch ahead of what the program has read, so it is told how far that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord
from mirrorlog.client.subscription.grant_buffer import GrantedBytes
from mirrorlog.client.subscription.standing import SubscriptionState
from mirrorlog.client.subscription.unacked import Granted, Range, Unacked, count, joined
from mirrorlog.errors import ConnectionLost, MirrorlogError, OffsetOutOfRange, UnreadableBatch
from mirrorlog.wire.frames import How

logger = logging.getLogger(__name__)

_TOLD_RECORDS_MAX: Final = 1_000
_IN_A_ROW_MAX: Final = 100
# After so long nothing comes any more to who has no room for another record like those that he has.
_NO_ROOM_S: Final = 0.2

_RECORD = tuple[Granted, ConsumedRecord]
_PIECE = tuple[Granted, ConsumedBatch]


class GrantReader:
    """Reads the grants of one subscription. `prefetch`, `prefetch_bytes`: 0 for the node's limit."""

    def __init__(
        self,
        queue: str,
        standing: SubscriptionState,
        unacked: Unacked,
        content: GrantedBytes,
        *,
        auto_ack: bool,
        prefetch: int,
        prefetch_bytes: int,
    ) -> None:
        self._queue = queue
        self._standing = standing
        self._unacked = unacked
        self._bytes = content
        self._auto_ack = auto_ack
        self._reading = asyncio.Lock()
        # What is given out record by record now.
        self._giving: tuple[Granted, Iterator[ConsumedRecord]] | None = None
        self._in_a_row = 0
        # With auto-ack: what was given out and the node was not told of.
        self._untold: list[Range] = []
        self.bound(prefetch, prefetch_bytes)

    def bound(self, prefetch: int, prefetch_bytes: int) -> None:
        """So many records and bytes from now on; 0 for the node's limit."""
        self._prefetch = 0 if self._auto_ack else prefetch
        self._prefetch_bytes = 0 if self._auto_ack else prefetch_bytes
        self._untold_step = max(1, min(prefetch or _TOLD_RECORDS_MAX, _TOLD_RECORDS_MAX) // 2)

    def stop(self) -> None:
        """The session is over, or the subscription: what is being given out is granted no more."""
        self._giving = None
        self._untold = []

    async def next(self) -> _RECORD:
        """Waits for as long as none comes."""
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW_MAX:
            # Records that are there already would let nothing else run: no ack would leave.
            self._in_a_row = 0
            await asyncio.sleep(0)
        while (found := self._next_at_once()) is None:
            async with self._reading:
                if self._giving is None:
                    granted, batch = await self._piece()
                    self._note(granted, batch)
                    self._giving = granted, batch.records()
        return found

    def _next_at_once(self) -> _RECORD | None:
        """The next record, if it is there without waiting."""
        if self._standing.closed:
            return None
        if self._giving is not None:
            if (found := self._next_of(*self._giving)) is not None:
                return found
            self._giving = None
        granted = self._unacked.head()
        batch = None if granted is None else self._bytes.batch_at_once(granted)
        if granted is None or batch is None:
            return None
        batch = batch.before(granted.next)
        self._note(granted, batch)
        self._giving = granted, batch.records()
        return self._next_of(*self._giving)

    def _next_of(self, granted: Granted, records: Iterator[ConsumedRecord]) -> _RECORD | None:
        # A grant that was kept back meanwhile has an earlier end.
        if granted.given >= granted.next or (record := next(records, None)) is None:
            return None
        granted.given = record.queue_offset + 1
        if self._auto_ack:
            self._was_read(granted)
        return granted, record

    async def batch(self) -> tuple[Granted, ConsumedBatch]:
        """Records of one grant that stand in one batch."""
        async with self._reading:
            granted, batch = await self._piece()
            self._giving = None
            self._note(granted, batch)
            granted.given = batch.next
            if self._auto_ack:
                self._was_read(granted)
            return granted, batch

    async def receive(
        self, max_records: int | None = None, *, timeout_ms: int, has_some: bool = False
    ) -> list[tuple[Granted, ConsumedRecord]]:
        """Up to `max_records` until the time is up, or nothing more comes before something is settled; without it what
        comes first. `has_some`: who asks has some already."""
        found: list[_RECORD] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while max_records is None or len(found) < max_records:
                    more = has_some or bool(found)
                    if more and (max_records is None or self._is_full()):
                        break
                    wanted = _TOLD_RECORDS_MAX if max_records is None else max_records - len(found)
                    async with asyncio.timeout(_NO_ROOM_S if more and self._has_no_room() else None):
                        found += await self.records(wanted)
        except TimeoutError:
            pass
        except MirrorlogError:
            if not found:
                raise
        return found

    def _is_full(self) -> bool:
        """Whether as many as the prefetch allows are out: its node sends no more."""
        return 0 < self._prefetch <= count(each for _, each in self._unacked.unsettled())

    def _has_no_room(self) -> bool:
        """Whether a record like those that are out does not fit beside them. What the node counts, and how large the
        next one is, is not known here."""
        if not self._prefetch_bytes or self._unacked.head() is not None:
            return False
        records, size = self._unacked.unsettled_size()
        return records > 0 and size + size / records > self._prefetch_bytes

    async def records(self, records_max: int) -> list[tuple[Granted, ConsumedRecord]]:
        """Waits for one; with it come those that are there at once, `records_max` together at most."""
        found = [await self.next()]
        # Nothing is waited for from here on: whoever is cancelled while he waits has got nothing yet.
        while len(found) < records_max and (following := self._next_at_once()) is not None:
            found.append(following)
        return found

    async def _piece(self) -> _PIECE:
        """What is to be given out next: records of one grant that stand in one batch, and that batch, cut to them."""
        while True:
            self._standing.check()
            granted = self._unacked.head()
            if granted is None:
                await self._standing.change()
                continue
            batch = await self._batch_of(granted)
            # Waiting for bytes the grant may have been lost, or kept back.
            if batch is not None and self._unacked.head() is granted and not self._standing.closed:
                self._skip(granted, batch.first)
                if granted.given < granted.next:
                    return granted, batch.after(granted.given).before(granted.next)

    async def _batch_of(self, granted: Granted) -> ConsumedBatch | None:
        """The batch of its first record, or the next there is; None when it is to be looked for anew."""
        try:
            return await self._bytes.batch_of(granted)
        except OffsetOutOfRange as error:
            # Freed, or lost, since it was granted: its master counts it as gone, too.
            begin = error.details.get("go_on_at", error.details.get("begin"))
            if not isinstance(begin, int) or begin <= granted.given:
                raise
            self._skip(granted, begin)
            return None
        except UnreadableBatch as error:
            # No use to anybody, now or later: it would come back for ever.
            logger.warning("unreadable_rejected queue=%s reason=%r", self._queue, error.message)
            self._skip(granted, error.details["go_on_at"], How.DEAD)
            return None
        except MirrorlogError:
            if granted.session != self._unacked.session:
                return None  # it comes again
            raise

    def _skip(self, granted: Granted, following: int, how: How = How.ACK) -> None:
        """What is not there is not given out. Its node is told, or it would be unacknowledged until the consumer
        timeout, come again, and be missing again."""
        skipped = self._unacked.skip(granted, following)
        session = self._standing.session
        if skipped is None or session is None or granted.session != self._unacked.session:
            return
        with suppress(ConnectionLost):  # then it is nobody's, and its node finds out itself
            session.give_back(How.EXTEND if self._auto_ack else how, [skipped])

    def _was_read(self, granted: Granted) -> None:
        """With auto-ack the node sends no more than the prefetch ahead of what the program has taken: it is told when a
        grant is through, or half the prefetch of it."""
        if granted.session != self._unacked.session:
            return
        for first, following in granted.open_below(granted.given):
            if granted.given < granted.next and following - first < self._untold_step:
                return
            granted.settle(first, following)
            if not self._untold:
                asyncio.get_running_loop().call_soon(self._tell_read)
            self._untold.append((first, following))

    def _tell_read(self) -> None:
        untold, self._untold = self._untold, []
        if self._standing.session is not None:
            with suppress(ConnectionLost):
                self._standing.session.give_back(How.EXTEND, joined(untold))

    def _note(self, granted: Granted, piece: ConsumedBatch) -> None:
        if not self._auto_ack:
            self._unacked.giving(granted, len(piece.raw) * len(piece) / piece.header.record_count)
