"""Consumer: reads a queue in order, whole batches at a time, from its master or a mirror.

The next fetch is under way while the user handles what the last one brought. What comes is received into memory that
is used again once nobody looks into it, and given out as it stands there. When the node goes away, the reader connects
again, to another mirror if it reads from mirrors, and goes on where it stood.

Its parts: `cursor` (where it stands), `replica_choice` (which copy it reads), `fetcher` (what stands at an offset) and
`prefetcher` (the next answer on its way).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sized
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar
from uuid import uuid4

from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.outages import read_on
from mirrorlog.client.connection.queue_metadata import is_known, not_known
from mirrorlog.client.connection.unclosed import on_loop, warn_unclosed
from mirrorlog.client.consumer.cursor import Cursor, Preview
from mirrorlog.client.consumer.fetcher import QueueFetcher
from mirrorlog.client.consumer.prefetcher import Prefetcher
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, record_kind
from mirrorlog.client.consumer.replica_choice import ReplicaChoice
from mirrorlog.client.consumer.tier import TierOptions, Tiers
from mirrorlog.client.options import ConsumerOptions
from mirrorlog.client.producer.record import as_timestamp_us
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    Closed,
    ExclusiveTaken,
    MirrorlogError,
    OffsetOutOfRange,
    PositionLost,
)
from mirrorlog.wire.messages.queues import FetchPosition, FoundPosition, Position, QueueInfo

if TYPE_CHECKING:
    from mirrorlog.client.admin import Admin

_QUEUE_OFFSET_MAX: Final = 2**63 - 1
_TELL_S: Final = 1.0

_T = TypeVar("_T")


@checked(internal=("take", "abandon", "kept", "cursor", "read_on"))
class Consumer:
    """Reads one queue. Made by `Client.consumer`; use it with `async with`. One that is let go without `close` is gone
    with the fetch that is under way, with a ResourceWarning.

    `cursor`: where it stands; reading moves it.
    """

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _started = False

    def __init__(self, client: ClusterClient, queue: str, options: ConsumerOptions, tiers: TierOptions) -> None:
        self.queue = queue
        self.group = options.group
        self._client = client
        self._start = options.start if options.start is not None else ("committed" if self.group else "earliest")
        self._until_asked = options.until
        self._prefetch_bytes = options.prefetch_bytes
        self._wants_end = options.until == "confirmed" or options.start == "latest"
        self.cursor = cursor = Cursor(record_kind(options.deserializer))
        self._prefetcher: Prefetcher | None = None
        self._started = False
        self._closed = False
        # By which the master knows it from others that read as its group; empty: it does not know it.
        self._reader = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outage_timeout_ms = options.outage_timeout_ms
        # Where the queue began when it was asked for that, as long as nothing has come from there.
        self._begin: int | None = None
        self._copies = Copies(client, queue)
        self._read_from = options.read_from
        self._choice = ReplicaChoice(client, queue, self._copies, read_from=options.read_from, turn=options.turn)
        self._tiers = Tiers(tiers)
        self._fetcher = QueueFetcher(
            client,
            queue,
            self._choice,
            self._copies,
            self._tiers,
            epoch=lambda log_id: cursor.epoch if cursor.log_id == log_id else 0,
            max_bytes=options.max_bytes,
            max_wait_ms=options.max_wait_ms,
        )

    # --- life ---

    async def start(self) -> Self:
        """Find the queue and where to begin. Raises NoSuchQueue, BadRequest, ConnectionLost; NotCurrent when it shall
        begin or end with what is confirmed now, and nobody masters the queue who can tell in time; ExclusiveTaken when
        another consumer reads as its group."""
        if isinstance(self._start, int) and self._choice.names_node:
            # The node may have old records alone, of a log that the queue was in before.
            self._choice.aim(self._start)
        info = await self._choice.insist(self._own_info)
        self._begin = None
        self.cursor.epoch, self.cursor.log_id = info.epoch, info.log_id
        self.cursor.until = self._resolve_until(info)
        self._loop = asyncio.get_running_loop()
        self._reader = self._reader or (uuid4().hex if self.group is not None else "")
        self.cursor.seek(_checked_offset(await self._resolve_start(info)))
        await self._claim()
        self._started, self._closed = True, False
        return self

    async def close(self) -> None:
        """End reading, of others that wait for records too: they get Closed. Idempotent. Commits nothing."""
        was_open, self._closed = self.unclosed, True
        if was_open and self._reader:
            await _leave(self._client, self.queue, self.group or "", self._reader)
        self.cursor.seek(self.cursor.next)
        await self._drop_prefetched()

    async def abandon(self) -> None:
        """As `close`, when the client is closed. The cursor is left as it is: another thread may be looking at it."""
        self._closed = True
        await self._drop_prefetched()

    def __repr__(self) -> str:
        return f"Consumer(queue={self.queue!r}, next={self.cursor.next}{', closed' if self._closed else ''})"

    def __del__(self) -> None:
        """Nobody has it any more: nobody will ask for what the fetch under way brings."""
        if not self.unclosed:
            return
        if self._prefetcher is not None:
            self._prefetcher.abandon()
        if self._reader and self._loop is not None:
            leave = partial(_leave, self._client, self.queue, self.group or "", self._reader)
            on_loop(self._loop, partial(self._client.background.run, f"a reader of {self.queue!r}", leave))
        if not self.kept:
            warn_unclosed(self, f"a consumer of queue {self.queue!r}")

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and not closed."""
        return self._started and not self._closed

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.close()

    # --- reading ---

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Records in queue order, as `batches`. Leave it and come back: it goes on behind the last one given out."""
        cursor = self.cursor
        while (batch := await self.read_on(self._current)) is not None:
            cursor.epoch, cursor.log_id = batch.header.epoch, batch.log_id
            for following, record in enumerate(batch.records(), batch.first + 1):
                cursor.next = following
                yield record
                if cursor.next != following:
                    break  # moved on from elsewhere meanwhile

    async def batches(self) -> AsyncGenerator[ConsumedBatch]:
        """Batches in queue order. Ends at `until`; otherwise it waits for new records.

        Raises OffsetOutOfRange when the position is gone, BadBatch naming queue, log offset and nodes when no copy that
        answers is whole there, ConnectionLost after `outage_timeout_ms` without any node that answers (`read`:
        `request_timeout_ms`). Records that the log has no more come from the Delta table of a tiered landing, if there
        is one: TierUnreachable, TierBroken or MissingDependency say why not.

        At a batch that an older node took unopened, and that nobody can open, it raises UnreadableBatch each time;
        `seek` to its `details["go_on_at"]` passes it.

        Where a loss was declared it raises PositionLost, behind the last record that is left, wherever the reader
        began; nothing is left out in silence. `seek` to its `details["go_on_at"]` goes on behind the gap.
        """
        while (batch := await self.read_on(self._current)) is not None:
            self.cursor.passed(batch)
            yield batch

    async def read_on(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """For its own iterations, and those of a face: see `outages.read_on`."""
        return await read_on(
            read,
            queue=self.queue,
            patience_ms=self._client.request_timeout_ms,
            outage_timeout_ms=self._outage_timeout_ms,
        )

    async def read(self, max_records: int | None = None, *, timeout_ms: int) -> list[ConsumedRecord]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up or `until` is reached first.

        Without `max_records`: what comes first, as soon as it is there. Raises as `batches`, but only when nothing was
        found before the error; the next call meets it then. A read that is cancelled leaves the position as it was.
        """
        give_up_at = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            preview = Preview(self.cursor)
            found = await self._collect(preview, max_records, give_up_at)
            if preview.claim():
                return found

    @property
    def position(self) -> Position:
        """Behind the last record, or the last batch, that was given out. Raises Closed before the start."""
        self._check_started()
        cursor = self.cursor
        return Position(log_id=cursor.log_id, epoch=cursor.epoch, queue_offset=cursor.next)

    @property
    def served_by(self) -> str | None:
        """The node that answered last, or the location of the table that did."""
        return self._fetcher.served_by

    async def seek(self, queue_offset: int) -> None:
        """Go on at `queue_offset`, an iteration that is under way too. Raises BadRequest for one that cannot be."""
        offset = _checked_offset(queue_offset)
        self._begin = None
        self.cursor.seek(offset)
        await self._drop_prefetched()

    async def commit(self) -> None:
        """Store the position for the group. Raises BadRequest without a group, Refused or OutcomeUnknown; or
        ExclusiveTaken, when another consumer has come to read as this group while this one was cut off."""
        if self.group is None:
            raise BadRequest("a consumer without a group has nothing to commit; give group=… to Client.consumer")
        await self._admin().commit_position(self.queue, self.group, self.position, reader=self._reader)

    # --- fetching ---

    async def _current(self, place: Cursor | Preview | None = None) -> ConsumedBatch | None:
        """The batch at the position, or at `place`, cut to what is the reader's; None at `until`. Waits for one."""
        place = place or self.cursor
        while (batch := place.current()) is None and not place.ended:
            await self.take()
        if batch is not None and self._closed:
            self._check_open()
        return batch

    async def _collect(self, preview: Preview, max_records: int | None, give_up_at: float) -> list[ConsumedRecord]:
        """Records for one `read`, as many as come before `give_up_at`, of the loop's clock."""
        found: list[ConsumedRecord] = []
        try:
            async with asyncio.timeout_at(give_up_at):
                while not enough(found, max_records) and (batch := await self._current(preview)) is not None:
                    if max_records is not None:
                        batch = batch.before(batch.first + max_records - len(found))
                    found += batch.records()
                    preview.passed(batch)
        except TimeoutError:
            pass
        except MirrorlogError:
            if not found:
                raise
        return found

    async def take(self) -> None:
        """Let the cursor hold the next batches, none perhaps. What follows is on its way before they are looked at.

        For a face that walks the cursor by itself; whoever iterates needs it not. Raises as `batches`.
        """
        self._check_open()
        prefetcher = self._prefetcher = self._prefetcher or self._make_prefetcher()
        try:
            answer = await prefetcher.next()
        except OffsetOutOfRange as error:
            if not await self._follow_begin(error):
                raise
            return
        if answer is None or self._prefetcher is not prefetcher:
            return  # a seek came between
        try:
            self.cursor.hold(self._fetcher.proven(answer))
            self._begin = None
        except MirrorlogError as error:
            sound = self._fetcher.sound_part(answer, error) if isinstance(error, BadBatch) else None
            if sound:
                self.cursor.hold(sound)
                self._begin = None
            # What follows was asked for by headers that are not to be believed.
            await self._drop_prefetched()
            if sound is None:
                raise

    async def _follow_begin(self, error: OffsetOutOfRange) -> bool:
        """Whether the queue's start offset, where this reader starts, has moved on since it was asked for; then stand
        there."""
        if isinstance(error, PositionLost):
            return False  # retention was asked for, a loss was not
        begin = error.details.get("begin")
        if self._begin != self.cursor.next or not isinstance(begin, int) or begin <= self.cursor.next:
            return False
        self._begin = _checked_offset(begin)
        self.cursor.seek(begin)
        await self._drop_prefetched()
        return True

    def _check_started(self) -> None:
        if not self._started:
            raise Closed("the consumer is not started; use it with `with`, or call start()")

    def _check_open(self) -> None:
        self._check_started()
        self._client.check_open()
        if self._closed:
            raise Closed("the consumer is closed")

    def _make_prefetcher(self) -> Prefetcher:
        return Prefetcher(
            self._fetcher.fetch,
            queue_offset=self.cursor.fetched,
            until=self.cursor.until,
            ahead_bytes=self._prefetch_bytes,
        )

    async def _drop_prefetched(self) -> None:
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is not None:
            await prefetcher.close()

    async def _own_info(self) -> QueueInfo:
        """The queue as the node that is read from knows it. Raises NotCurrent when its end is wanted, and not known."""
        connection = await self._choice.connected()
        async with self._fetcher.silence(connection, partial(self._choice.is_misplaced, connection)):
            info, node_id = await self._choice.ask()
        if self._wants_end and self._read_from == "master" and not is_known(info, told_by=node_id):
            raise not_known(info, told_by=node_id)
        return info

    def _admin(self) -> Admin:
        from mirrorlog.client.admin import Admin  # groups alone ask it

        return Admin(self._client)

    # --- where to start and to end ---

    async def _claim(self) -> None:
        """Have its group for itself, if that can be told now: else its first commit says it. Raises ExclusiveTaken."""
        if self.group is None or self._start == "committed":
            return
        try:
            async with asyncio.timeout(_TELL_S):
                await self._admin().position(self.queue, self.group, reader=self._reader)
        except ExclusiveTaken:
            raise
        except (MirrorlogError, TimeoutError):
            pass

    async def _resolve_start(self, info: QueueInfo) -> int:
        start = self._start
        if isinstance(start, Position):
            if not info.was_in(start.log_id):
                raise BadRequest(f"a position of log {start.log_id}, but queue {self.queue!r} is in {info.log_id}")
            self.cursor.epoch, self.cursor.log_id = start.epoch, start.log_id
            return start.queue_offset
        if isinstance(start, datetime):
            # Should retention free that record, all that is left was appended later.
            self._begin = await self._first_at(as_timestamp_us(start) or 0, info)
            return self._begin
        if start == "committed":
            if self.group is None:
                raise BadRequest("start=committed needs a group")
            stored = await self._admin().position(self.queue, self.group, reader=self._reader)
            if stored is not None:
                return stored.queue_offset
            start = "earliest"
        if isinstance(start, int):
            return start
        if start == "earliest":
            self._begin = await self._earliest(info)
            return self._begin
        if start == "latest":
            return info.next
        raise BadRequest(f"start {start!r} is none of earliest, latest, committed, a queue offset, a time")

    async def _first_at(self, append_time_us: int, info: QueueInfo) -> int:
        """The first queue offset of that append time, µs UTC."""
        found = await self._copies.first_at(append_time_us)
        if self._tiers.known(info):
            return await self._tiers.find_time(append_time_us, found, info, await self._fetcher.cluster_id())
        return found

    async def _earliest(self, info: QueueInfo) -> int:
        """Where the queue begins. Whoever named a node wants what that one has; from any mirror, what the queue has.
        What was tiered is the queue's, too."""
        begin = info.begin
        if self._choice.any_mirror and (node_id := self._choice.node_id) is not None:
            begin = await self._copies.earliest(info, node_id)
        if self._tiers.known(info):
            begin = min(begin, await self._tiers.begin(info, await self._fetcher.cluster_id()))
        return begin

    def _resolve_until(self, info: QueueInfo) -> int | None:
        if self._until_asked is None:
            return None
        if isinstance(self._until_asked, int):
            return _checked_offset(self._until_asked)
        if self._until_asked == "confirmed":
            return info.next
        raise BadRequest(f"until {self._until_asked!r} is neither a queue offset nor `confirmed`")


async def _leave(client: ClusterClient, queue: str, group: str, reader: str) -> None:
    """Tell the master that it reads no more, if that is reached at once: else it sees it by the connection's end."""
    message = FetchPosition(queue=queue, group=group, reader=reader, leaves=True)
    with suppress(MirrorlogError, TimeoutError):
        async with asyncio.timeout(_TELL_S):
            connection, _ = await client.master_of(queue)
            await connection.request(message, FoundPosition, timeout_ms=int(_TELL_S * 1000))


def enough(found: Sized, max_records: int | None) -> bool:
    """Whether one `read` of at most `max_records` has what it waits for: without a limit, anything."""
    return len(found) > 0 if max_records is None else len(found) >= max_records


def _checked_offset(queue_offset: int) -> int:
    if not 0 <= queue_offset <= _QUEUE_OFFSET_MAX:
        raise BadRequest(f"queue offset {queue_offset} is not within 0 and {_QUEUE_OFFSET_MAX}")
    return queue_offset
