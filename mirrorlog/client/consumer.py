"""Consumer: reads a queue in order, whole batches at a time, from its master or a mirror.

The next fetch is under way while the user handles what the last one brought. Every batch is checked against its
checksums before any of it is given out. When the node goes away, the reader finds another one and goes on where it
stood.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from mirrorlog.client.connection import Connection
from mirrorlog.commitlog.body import Body, Header, parse_body
from mirrorlog.commitlog.format import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    check_body,
    check_stamped,
    log_seed,
    read_header,
)
from mirrorlog.errors import BadBatch, BadRequest, ConnectionLost, NotMaster, RequestTimeout
from mirrorlog.wire.messages import Position, QueueInfo

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

_RETRY_S: Final = 0.1
_BATCH_BYTES_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """`timestamp`: event time, µs UTC, None when the producer gave none; `append_time_us`: of its batch, µs UTC."""

    queue: str
    queue_offset: int
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    timestamp: int | None
    append_time_us: int


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """A checked batch. Of its records those with queue offsets `first` up to `next` (exclusive) are the reader's.

    `raw`: header and body as they stand in the log; `body`: views into it.
    """

    queue: str
    log_id: str
    header: BatchHeader
    body: Body
    raw: memoryview
    first: int
    next: int

    def __len__(self) -> int:
        return self.next - self.first

    def records(self) -> Iterator[ConsumedRecord]:
        """The reader's records as objects of their own."""
        base = self.header.base_queue_offset
        for queue_offset in range(self.first, self.next):
            record = self.body.record(queue_offset - base)
            yield ConsumedRecord(
                self.queue,
                queue_offset,
                record.value,
                record.key,
                list(record.headers),
                record.timestamp_us,
                self.header.append_time_us,
            )


class Consumer:
    """Reads one queue. Made by `Client.consumer`; use it with `async with`."""

    def __init__(
        self,
        client: Client,
        queue: str,
        *,
        start: str | int | Position | datetime | None,
        until: int | str | None,
        group: str | None,
        read_from: str,
        max_bytes: int,
        max_wait_ms: int,
    ) -> None:
        self.queue = queue
        self.group = group
        self._client = client
        self._start = start if start is not None else ("committed" if group else "earliest")
        self._until_asked = until
        self._until: int | None = None
        self._read_from = read_from
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._connection: Connection | None = None
        self._info: QueueInfo | None = None
        self._seed = 0
        self._next = 0
        self._fetched_to = 0
        self._epoch = 0
        self._ahead: asyncio.Task[list[ConsumedBatch]] | None = None
        self._served_by: str | None = None

    # --- life ---

    async def start(self) -> Self:
        """Find the queue and where to begin. Raises NoSuchQueue, BadRequest, ConnectionLost."""
        info = await self._client.queue_info(self.queue)
        self._follow(info)
        self._until = await self._resolve_until(info)
        self._next = self._fetched_to = await self._resolve_start(info)
        return self

    async def close(self) -> None:
        """Idempotent. Commits nothing."""
        await self._drop_ahead()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- reading ---

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        async for batch in self.batches():
            for record in batch.records():
                self._next = record.queue_offset + 1
                yield record

    async def batches(self) -> AsyncGenerator[ConsumedBatch]:
        """Batches in queue order. Ends at `until`; otherwise it waits for new records.

        Raises OffsetOutOfRange when the position is gone, BadBatch naming queue and log offset, ConnectionLost after
        `request_timeout_ms` without any node that answers.
        """
        while self._until is None or self._next < self._until:
            for batch in await self._take():
                if batch.first < self._next:
                    continue  # moved on by seek meanwhile
                yield batch
                self._next = max(self._next, batch.next)

    async def read(self, *, max_records: int, timeout_ms: int) -> list[ConsumedRecord]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up first."""
        found: list[ConsumedRecord] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                async for record in self:
                    found.append(record)
                    if len(found) >= max_records:
                        break
        await self._drop_ahead()
        self._fetched_to = self._next
        return found

    @property
    def position(self) -> Position:
        """Before the next record that the user will get."""
        assert self._info is not None, "the consumer is not started"
        return Position(log_id=self._info.log_id, epoch=self._epoch, queue_offset=self._next)

    @property
    def served_by(self) -> str | None:
        """The node that answered last."""
        return self._served_by

    async def seek(self, queue_offset: int) -> None:
        """Go on at `queue_offset`."""
        await self._drop_ahead()
        self._next = self._fetched_to = queue_offset

    async def commit(self) -> None:
        """Store the position for the group. Raises BadRequest without a group, Refused or OutcomeUnknown."""
        if self.group is None:
            raise BadRequest("a consumer without a group has nothing to commit; give group=… to Client.consumer")
        await self._client.admin.commit_position(self.queue, self.group, self.position)

    # --- fetching ---

    async def _take(self) -> list[ConsumedBatch]:
        """The next batches; asks for the following ones before it returns."""
        task = self._ahead or asyncio.ensure_future(self._fetch(self._fetched_to))
        self._ahead = task
        try:
            batches = await task
        finally:
            if task.done():
                self._ahead = None
        if batches:
            self._fetched_to = batches[-1].next
            if self._until is None or self._fetched_to < self._until:
                self._ahead = asyncio.ensure_future(self._fetch(self._fetched_to))
        return batches

    async def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _fetch(self, queue_offset: int) -> list[ConsumedBatch]:
        """What stands at `queue_offset` or, after `max_wait_ms` without a record, nothing."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._client.request_timeout_ms / 1000
        while True:
            try:
                return await self._fetch_once(queue_offset)
            except (ConnectionLost, RequestTimeout, NotMaster):
                self._connection = None
                if loop.time() >= give_up_at:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _fetch_once(self, queue_offset: int) -> list[ConsumedBatch]:
        connection = self._connection
        if connection is None or not connection.usable:
            connection = self._connection = await self._connect()
        assert self._info is not None
        facts, content = await connection.fetch(
            queue_id=self._info.queue_id,
            epoch=self._epoch,
            queue_offset=queue_offset,
            max_bytes=self._max_bytes,
            wait_ms=self._max_wait_ms,
            timeout_ms=self._client.request_timeout_ms,
        )
        self._served_by = connection.welcome.node_id
        return list(self._batches_in(content, facts.batch_count, queue_offset))

    async def _connect(self) -> Connection:
        """To the node that shall be read from. Raises ConnectionLost, BadRequest for a node without this queue."""
        info = await self._client.queue_info(self.queue)
        self._follow(info)
        wanted = {"master": [info.master], "mirror": info.mirrors}.get(self._read_from, [self._read_from])
        if not set(wanted) <= {info.master, *info.mirrors} or not wanted:
            raise BadRequest(f"queue {self.queue!r} is on {info.master}, {', '.join(info.mirrors)}; not {wanted}")
        reasons: list[str] = []
        for node_id in wanted:
            try:
                return await self._client.connection_to(await self._client.node_address(node_id))
            except ConnectionLost as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(reasons))

    def _batches_in(self, content: bytes, count: int, queue_offset: int) -> Iterator[ConsumedBatch]:
        view = memoryview(content)
        at = 0
        for _ in range(count):
            batch = self._checked(view, at)
            at += batch.header.length
            first = max(queue_offset, batch.header.base_queue_offset)
            last = batch.header.next_queue_offset if self._until is None else min(
                batch.header.next_queue_offset, self._until
            )  # fmt: skip
            if first < last:
                yield ConsumedBatch(self.queue, batch.log_id, batch.header, batch.body, batch.raw, first, last)
                queue_offset = last

    def _checked(self, content: memoryview, at: int) -> ConsumedBatch:
        assert self._info is not None
        place = read_header(content, at).log_offset
        try:
            header = check_stamped(content, at, log_offset=place, seed=self._seed, max_batch_bytes=_BATCH_BYTES_MAX)
            check_body(content, at, header)
            if header.codec != Codec.NONE:
                raise BadBatch(f"codec {header.codec} is not known to this client; update it")
            raw = content[at : at + header.length]
            body = parse_body(raw[HEADER_SIZE:], record_count=header.record_count, columns=header.columns)
        except BadBatch as error:
            raise BadBatch(f"queue {self.queue!r}, log offset {place}: {error}") from None
        return ConsumedBatch(
            self.queue, self._info.log_id, header, body, raw, header.base_queue_offset, header.next_queue_offset
        )

    # --- where to begin and to end ---

    def _follow(self, info: QueueInfo) -> None:
        self._info = info
        self._epoch = info.epoch
        self._seed = log_seed(UUID(info.log_id))

    async def _resolve_start(self, info: QueueInfo) -> int:
        start = self._start
        if isinstance(start, Position):
            if start.log_id != info.log_id:
                raise BadRequest(f"a position of log {start.log_id}, but queue {self.queue!r} is in {info.log_id}")
            return start.queue_offset
        if isinstance(start, datetime):
            return await self._client.admin.find_offset(self.queue, start)
        if start == "committed":
            if self.group is None:
                raise BadRequest("start=committed needs a group")
            stored = await self._client.admin.position(self.queue, self.group)
            return stored.queue_offset if stored is not None else info.begin
        if isinstance(start, int):
            return start
        try:
            return {"earliest": info.begin, "latest": info.next}[start]
        except KeyError:
            raise BadRequest(
                f"start {start!r} is none of earliest, latest, committed, a queue offset, a time"
            ) from None

    async def _resolve_until(self, info: QueueInfo) -> int | None:
        if self._until_asked is None or isinstance(self._until_asked, int):
            return self._until_asked
        if self._until_asked == "confirmed":
            return info.next
        raise BadRequest(f"until {self._until_asked!r} is neither a queue offset nor `confirmed`")
