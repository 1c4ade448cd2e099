"""The bytes of granted records: those that came with the grants, and those that must be fetched. Thin.

A node sends a batch with the first grant out of it, if it has it in memory, and not again with the next grants: so the
last batch that came is kept, and each grant remembers which ones its records stand in. What did not come is fetched as
any reader fetches: from the copy that was asked for, or the table that has it. Batches are proven when somebody comes
to them; one that is damaged is fetched instead, and what is fetched is damaged no more or refused.

What is held is what was granted and the last batch: the prefetch bounds it. One batch at a time is opened, for a
compressed one may hold a thousand times as much. Where grants are scattered, as by key, both are more: the newest that
came, and those opened last, as many as have the bytes of the prefetch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mirrorlog.client.consumer.records import ConsumedBatch, headers_in, proven_batches
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.errors import BadBatch
from mirrorlog.wire.frames import Grant, SentBefore

if TYPE_CHECKING:
    from mirrorlog.client.consumer.consumer import Consumer

_FETCH_BYTES_MAX: Final = 4 * 1024 * 1024
_WAIT_MS: Final = 500
BODY_BYTES_MIN: Final = 8 * 1024 * 1024
"""What a body may have at least, whatever the node's limit is now."""


@dataclass(frozen=True, slots=True, eq=False)
class GrantedBatch:
    """A batch of the log `log_id` that came with a grant, unproven: records `first` up to `next`, if its header is
    right. `body_bytes_max`: what its body may have when it is opened."""

    first: int
    next: int
    content: memoryview
    log_id: str
    body_bytes_max: int

    def opened(self, queue: str) -> ConsumedBatch:
        """Proven and opened. Raises BadBatch."""
        proven = proven_batches(self.content, 1, queue=queue, log_id=self.log_id, body_bytes_max=self.body_bytes_max)
        return proven[0].opened()


Sources = tuple[GrantedBatch, ...]
"""The batches that came of a grant, in order; perhaps not all of them."""


class SentBatches:
    """The batches of one session: which one a grant's records stand in. `log_id`, `body_bytes_max`: see
    `GrantedBatch`; `kept_bytes`: see `SentBefore`."""

    __slots__ = ("_body_bytes_max", "_kept", "_log_id", "_sent")

    def __init__(self, log_id: str, *, body_bytes_max: int, kept_bytes: int = 0) -> None:
        self._log_id = log_id
        self._body_bytes_max = body_bytes_max
        self._sent = SentBefore(kept_bytes)
        self._kept: dict[int, GrantedBatch] = {}

    def sources(self, grants: Sequence[Grant], content: memoryview, count: int) -> list[Sources]:
        """For each grant of a frame: its batches, of the `count` ones in `content` and those that are kept.

        Raises BadBatch when these are no batches.
        """
        at, forgotten = 0, list[int]()
        for first, following, length in headers_in(content, count):
            part = content[at : at + length]
            self._kept[first] = GrantedBatch(first, following, part, self._log_id, self._body_bytes_max)
            forgotten += self._sent.add(first, length)
            at += length
        found = sorted(self._kept.values(), key=_first_of)
        for base in forgotten:
            if base not in self._sent:
                self._kept.pop(base, None)
        return [_holders_of(grant, found) for grant in grants]


def _first_of(batch: GrantedBatch) -> int:
    return batch.first


def _holders_of(grant: Grant, batches: list[GrantedBatch]) -> Sources:
    """Of some in the order of the queue."""
    at = max(0, bisect_right(batches, grant.first, key=_first_of) - 1)
    end = bisect_left(batches, grant.next, key=_first_of)
    return tuple(each for each in batches[at:end] if each.first < grant.next and grant.first < each.next)


def _sent_of(granted: Granted) -> GrantedBatch | None:
    """Which of the batches that came holds the record that is to be given out next; None if none does."""
    sources: Sources = granted.source or ()
    return next((each for each in sources if each.first <= granted.given < each.next), None)


class GrantedBytes:
    """Finds the bytes of granted records, for one subscription or lease. Used by one at a time."""

    def __init__(
        self,
        make_consumer: Callable[..., Consumer],
        queue: str,
        *,
        read_from: str,
        fetch_bytes: int,
        kept_bytes: int = 0,
    ) -> None:
        """`make_consumer`: as `Client.consumer`. `fetch_bytes`: of one answer, as far as batches are not larger.
        `kept_bytes`: of batches that are opened, beside the last one."""
        self._make_consumer = make_consumer
        self._queue = queue
        self._read_from = read_from
        self._fetch_bytes = max(1, min(fetch_bytes, _FETCH_BYTES_MAX))
        self._consumer: Consumer | None = None
        self._kept_bytes = kept_bytes
        # By base queue offset, the one that was used last behind; None: it was fetched.
        self._open: OrderedDict[int, tuple[GrantedBatch | None, ConsumedBatch]] = OrderedDict()

    async def batch_of(self, granted: Granted) -> ConsumedBatch:
        """The batch of the first record of a grant that was not given out yet, from there on; see `fetched`."""
        batch = self.batch_at_once(granted)
        return batch if batch is not None else await self.fetched(granted.given)

    def batch_at_once(self, granted: Granted) -> ConsumedBatch | None:
        """The same if it came with the grant; None when it must be fetched."""
        sent = _sent_of(granted)
        if sent is None:
            return None
        try:
            return self._opened(sent).after(granted.given)
        except BadBatch:
            granted.source = ()  # the log has it, and other copies
            return None

    async def fetched(self, queue_offset: int) -> ConsumedBatch:
        """The batch of a record, from there on; if the log has it no more, the next one there is.

        Raises what a consumer raises.
        """
        for base, (_, kept) in self._open.items() if self._kept_bytes else ():
            if base <= queue_offset < kept.next:
                self._open.move_to_end(base)
                return kept.after(queue_offset)
        consumer = await self._reader(queue_offset)
        cursor = consumer.cursor
        if cursor.next <= queue_offset <= cursor.fetched:
            cursor.next = queue_offset
        else:
            await consumer.seek(queue_offset)
        while (batch := cursor.current()) is None:
            await consumer.take()
        if self._kept_bytes:
            base = batch.header.base_queue_offset
            self._keep(base, None, replace(batch, first=base, next=batch.header.next_queue_offset))
        return batch

    async def close(self) -> None:
        """Idempotent."""
        self._open.clear()
        if self._consumer is not None:
            await self._consumer.close()

    def _opened(self, sent: GrantedBatch) -> ConsumedBatch:
        known = self._open.get(sent.first)
        if known is not None and known[0] is sent:
            self._open.move_to_end(sent.first)
            return known[1]
        if not self._kept_bytes:
            self._open.clear()  # its memory is free before the next one needs some
        return self._keep(sent.first, sent, sent.opened(self._queue))

    def _keep(self, base: int, sent: GrantedBatch | None, batch: ConsumedBatch) -> ConsumedBatch:
        self._open[base] = sent, batch
        self._open.move_to_end(base)
        size = sum(_size_of(each) for _, each in self._open.values()) if self._kept_bytes else 0
        while size > self._kept_bytes and len(self._open) > 1:
            _, (_, oldest) = self._open.popitem(last=False)
            size -= _size_of(oldest)
        return batch

    async def _reader(self, first: int) -> Consumer:
        if self._consumer is None:
            # No further than what is granted: it may be far to the next grant.
            consumer = self._make_consumer(
                self._queue,
                start=first,
                read_from=self._read_from,
                max_bytes=self._fetch_bytes,
                max_wait_ms=_WAIT_MS,
                prefetch_bytes=0,
            )
            consumer.kept = True
            self._consumer = await consumer.start()
        return self._consumer


def _size_of(batch: ConsumedBatch) -> int:
    return max(len(batch.raw), batch.header.body_length)
