"""Consumer: reads a queue in order, whole batches at a time, from its master or a mirror.

The next fetch is under way while the user handles what the last one brought. What comes is received into memory that
is used again once nobody looks into it, and given out as it stands there. Every batch is checked against its checksums
before any of it is given out; what is bad, or refused as bad by its node, is asked of another copy (`bad_stretch`),
unless a node was named to be read from. When the node goes away, the reader connects again, to another mirror if it
reads from mirrors, and goes on where it stood.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sized
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from msgspec.structs import replace

from mirrorlog.client.admin import Admin
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.bad_stretch import BadStretch, refused
from mirrorlog.client.connection.cluster import Cluster
from mirrorlog.client.connection.connection import BufferPool, Connection
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.let_go import warn_unclosed
from mirrorlog.client.connection.metadata import check_same, is_another, is_known, is_outage, not_known
from mirrorlog.client.connection.sightings import FoundQueue
from mirrorlog.client.connection.stall_watch import SILENCE_S, StallWatch
from mirrorlog.client.connection.start_offsets import is_elsewhere
from mirrorlog.client.consumer.cursor import Cursor, Preview
from mirrorlog.client.consumer.prefetcher import Answer, Prefetcher
from mirrorlog.client.consumer.records import ClosedBatch, ConsumedBatch, ConsumedRecord, proven_batches
from mirrorlog.client.consumer.tier import TierOptions, Tiers
from mirrorlog.client.options import check_reading
from mirrorlog.client.producer.batch import as_timestamp_us
from mirrorlog.commitlog.format.header import HEADER_SIZE, place_of
from mirrorlog.config import split_address
from mirrorlog.errors import (
    BadBatch,
    BadRequest,
    ConnectionLost,
    LogCorrupt,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotCurrent,
    OffsetOutOfRange,
    PositionLost,
    ProtocolError,
    RequestTimeout,
)
from mirrorlog.wire.messages.queues import GetMetadata, Metadata, Position, QueueInfo

# Which node is the nearest: one on the host of whoever reads. Thin.
#
# An address is one of this host's if a socket can be bound to it: that needs no list of network interfaces, which each
# system tells in another way, and it is right behind a name, in a container and on loopback. Rejected: comparing host
# names (a node may be advertised under any), measuring round trips (they change, and readers would flap).


async def is_here(address: str) -> bool:
    """Whether the `host:port` of a node is on this host. A name that cannot be resolved is not."""
    host, port = split_address(address)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_ours(family, place) for family, _, _, _, place in found)


def _is_ours(family: int, place: tuple[object, ...]) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((place[0], 0, *place[2:]))
    except OSError:
        return False
    return True


_QUEUE_OFFSET_MAX: Final = 2**63 - 1
# What a batch may have on any node that was not told otherwise: a node whose limit is lower now may hold such ones.
_BODY_BYTES: Final = 8 * 1024 * 1024

# Read from like this, a copy that does not serve is left for another one.
_ANY_COPY: Final = ("mirror", "nearest")
# All that is not a node's id: who names a node wants its copy, whatever that is like.
_NO_NODE: Final = ("master", *_ANY_COPY)

_T = TypeVar("_T")


class Consumer:
    """Reads one queue. Made by `Client.consumer`; use it with `async with`. One that is let go without `close` is gone
    behind the fetch that is under way, with a ResourceWarning.

    `cursor`: where it stands; reading moves it.
    """

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _started = False

    def __init__(
        self,
        client: Cluster,
        queue: str,
        *,
        start: str | int | Position | datetime | None,
        until: int | str | None,
        group: str | None,
        read_from: str,
        max_bytes: int,
        max_wait_ms: int,
        prefetch_bytes: int,
        tiers: TierOptions,
        turn: int = 0,
    ) -> None:
        check_reading(max_bytes=max_bytes, max_wait_ms=max_wait_ms, prefetch_bytes=prefetch_bytes)
        self.queue = queue
        self.group = group
        self._client = client
        self._start = start if start is not None else ("committed" if group else "earliest")
        self._until_asked = until
        self._read_from = read_from
        self._turn = turn
        # The nodes on this host, as far as that was asked.
        self._here: dict[str, bool] = {}
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._prefetch_bytes = prefetch_bytes
        self._connection: Connection | None = None
        self._info: QueueInfo | None = None
        self._found: FoundQueue | None = None
        self.cursor = Cursor()
        self._buffers = BufferPool()
        self._ahead: Prefetcher | None = None
        self._served_by: str | None = None
        self._started = False
        self._closed = False
        # Where the queue began when it was asked for that, as long as nothing has come from there.
        self._begin: int | None = None
        # The node that failed last: others are tried before it.
        self._failed_node: str | None = None
        self._copies = Copies(client, queue)
        # Where the next fetch begins when what stands there was bad.
        self._bad: BadStretch | None = None
        self._tiers = Tiers(tiers)

    # --- life ---

    async def start(self) -> Self:
        """Find the queue and where to begin. Raises NoSuchQueue, BadRequest, ConnectionLost; NotCurrent when it shall
        begin or end with what is confirmed now, and nobody masters the queue who can tell in time."""
        info = await self._insist(self._own_info)
        self._begin = None
        self.cursor.epoch = info.epoch
        self.cursor.until = self._resolve_until(info)
        self.cursor.seek(_checked_offset(await self._resolve_start(info)))
        self._started, self._closed = True, False
        return self

    async def close(self) -> None:
        """End reading, of others that wait for records too: they get ConnectionLost. Idempotent. Commits nothing."""
        self._closed = True
        self.cursor.seek(self.cursor.next)
        await self._drop_ahead()

    async def abandon(self) -> None:
        """As `close`, when the client is closed. The cursor is left as it is: another thread may be looking at it."""
        self._closed = True
        await self._drop_ahead()

    def __del__(self) -> None:
        """Nobody has it any more, and no fetch is under way: that would have it."""
        if self.unclosed and not self.kept:
            warn_unclosed(self, f"a consumer of queue {self.queue!r}")

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and not closed."""
        return self._started and not self._closed

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- reading ---

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Records in queue order, as `batches`. Leave it and come back: it goes on behind the last one given out."""
        cursor = self.cursor
        while (batch := await self._current()) is not None:
            cursor.epoch = batch.header.epoch
            for following, record in enumerate(batch.records(), batch.first + 1):
                cursor.next = following
                yield record
                if cursor.next != following:
                    break  # moved on from elsewhere meanwhile

    async def batches(self) -> AsyncGenerator[ConsumedBatch]:
        """Batches in queue order. Ends at `until`; otherwise it waits for new records.

        Raises OffsetOutOfRange when the position is gone, BadBatch naming queue, log offset and nodes when no copy that
        answers is whole there, ConnectionLost after `request_timeout_ms` without any node that answers. Records that
        the log has no more come from the Delta table of a tiered landing, if there is one: TierUnreachable, TierBroken
        or MissingDependency say why not.

        At a batch that an older node took unopened, and that nobody can open, it raises UnreadableBatch each time;
        `seek` to its `details["go_on_at"]` passes it.

        Where a loss was declared it raises PositionLost, behind the last record that is left, wherever the reader
        began; nothing is left out in silence. `seek` to its `details["go_on_at"]` goes on behind the gap.
        """
        while (batch := await self._current()) is not None:
            self.cursor.passed(batch)
            yield batch

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
        """Behind the last record, or the last batch, that was given out. Raises BadRequest before the start."""
        self._check_started()
        assert self._info is not None
        return Position(log_id=self._info.log_id, epoch=self.cursor.epoch, queue_offset=self.cursor.next)

    @property
    def served_by(self) -> str | None:
        """The node that answered last, or the location of the table that did."""
        return self._served_by

    async def seek(self, queue_offset: int) -> None:
        """Go on at `queue_offset`, an iteration that is under way too. Raises BadRequest for one that cannot be."""
        offset = _checked_offset(queue_offset)
        self._begin = None
        self.cursor.seek(offset)
        await self._drop_ahead()

    async def commit(self) -> None:
        """Store the position for the group. Raises BadRequest without a group, Refused or OutcomeUnknown."""
        if self.group is None:
            raise BadRequest("a consumer without a group has nothing to commit; give group=… to Client.consumer")
        await Admin(self._client).commit_position(self.queue, self.group, self.position)

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
        ahead = self._ahead = self._ahead or self._fetch_ahead()
        try:
            answer = await ahead.next()
        except OffsetOutOfRange as error:
            if not await self._follow_begin(error):
                raise
            return
        if answer is None or self._ahead is not ahead:
            return  # a seek came between
        try:
            self.cursor.hold(self._proven(answer))
            self._begin = None
        except MirrorlogError as error:
            mendable = isinstance(error, BadBatch) and self._passed_bad(answer, error)
            # What follows was asked for by headers that are not to be believed.
            await self._drop_ahead()
            if not mendable:
                raise

    async def _follow_begin(self, error: OffsetOutOfRange) -> bool:
        """Whether the begin, where this reader starts, has moved on since it was asked for; then stand there."""
        if isinstance(error, PositionLost):
            return False  # retention was asked for, a loss was not
        begin = error.details.get("begin")
        if self._begin != self.cursor.next or not isinstance(begin, int) or begin <= self.cursor.next:
            return False
        self._begin = _checked_offset(begin)
        self.cursor.seek(begin)
        await self._drop_ahead()
        return True

    def _check_started(self) -> None:
        if not self._started:
            raise BadRequest("the consumer is not started; use it with `with`, or call start()")

    def _check_open(self) -> None:
        self._check_started()
        self._client.check_open()
        if self._closed:
            raise ConnectionLost("the consumer is closed")

    def _proven(self, answer: Answer) -> list[ClosedBatch]:
        found = self._checked(answer.content, answer.batch_count, answer.body_bytes_max)
        if found[-1].next <= answer.queue_offset:
            raise ProtocolError(f"{answer.address} answered with records below queue offset {answer.queue_offset}")
        return found

    def _checked(self, content: memoryview, count: int, body_bytes_max: int) -> list[ClosedBatch]:
        assert self._info is not None
        return proven_batches(content, count, queue=self.queue, log_id=self._info.log_id, body_bytes_max=body_bytes_max)

    def _passed_bad(self, answer: Answer, error: BadBatch) -> bool:
        """Take in what is good in front of the bad batch, and have that asked of another copy next; False when there is
        no other one."""
        assert self._info is not None
        if not answer.node_id or not {self._info.master, *self._info.mirrors} - {"", answer.node_id}:
            return False
        sound: list[ClosedBatch] = []
        rest = answer.content
        while (batch := self._sound(rest, answer)) is not None:
            sound.append(batch)
            rest = rest[batch.header.length :]
        self.cursor.hold(sound)
        self._begin = None if sound else self._begin
        self._bad = BadStretch(
            self.queue,
            queue_offset=max(answer.queue_offset, sound[-1].next if sound else 0),
            size=len(rest),
            log_offset=place_of(rest) if len(rest) >= HEADER_SIZE else 0,
            why=str(error),
        )
        self._copies.met_bad(self._bad, answer.node_id, error)
        return True

    def _sound(self, content: memoryview, answer: Answer) -> ClosedBatch | None:
        """The first batch in what is left of an answer, unless it is bad."""
        try:
            return self._checked(content, 1, answer.body_bytes_max)[0]
        except BadBatch:
            return None

    def _fetch_ahead(self) -> Prefetcher:
        return Prefetcher(
            self._fetch,
            queue_offset=self.cursor.fetched,
            until=self.cursor.until,
            ahead_bytes=self._prefetch_bytes,
        )

    async def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.close()

    async def _insist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask again, over another connection, until `request_timeout_ms` have passed since the first failure."""
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        backoff = Backoff(random.random)
        while True:
            try:
                return await ask()
            except MirrorlogError as error:
                if self._connection is not None:
                    self._failed_node = self._connection.welcome.node_id
                    self._connection = None
                give_up_at = give_up_at or loop.time() + self._client.request_timeout_ms / 1000
                # A mirror may not have heard yet of a queue that others know.
                passing = error.retriable or (isinstance(error, NoSuchQueue) and self._info is not None)
                # A copy that its node refuses to serve is not the only one.
                passing = passing or is_elsewhere(error) or isinstance(error, LogUnavailable)
                passing = passing and not (is_outage(error) and self._info is None)
                if not passing or is_another(error) or loop.time() >= give_up_at or self._client.closed:
                    raise
                await asyncio.sleep(backoff.next_s())

    async def _fetch(self, queue_offset: int) -> Answer:
        """From the log; what it has no more, from the table that has it."""
        if (more := await self._tiers.go_on(queue_offset)) is not None:
            return more
        try:
            return await self._fetch_logged(queue_offset)
        except PositionLost:
            raise
        except OffsetOutOfRange as error:
            begin = error.details.get("begin")
            if not isinstance(begin, int) or begin <= queue_offset or is_elsewhere(error):
                raise
            return await self._fetch_landed(queue_offset, begin, error)

    async def _fetch_landed(self, queue_offset: int, begin: int, error: OffsetOutOfRange) -> Answer:
        # The tables may have come since this reader was told of the queue.
        info = replace(await self._insist(self._queue_now), begin=begin)
        if not self._tiers.known(info):
            raise error
        cluster_id = await self._cluster_id()
        answer = await self._tiers.answer(info, cluster_id, queue_offset, until=begin, epoch=self.cursor.epoch)
        if answer is None:
            raise await self._tiers.lowest(info, cluster_id, error, queue_offset)
        self._served_by = answer.address
        return answer

    async def _queue_now(self) -> QueueInfo:
        connection = await self._connected()
        asked = GetMetadata(queues=[self.queue])
        answer = await connection.request(asked, Metadata, timeout_ms=self._client.request_timeout_ms)
        if not answer.queues:
            raise NoSuchQueue(f"no queue {self.queue!r} on node {answer.node_id}", queue=self.queue)
        return answer.queues[0]

    async def _cluster_id(self) -> str:
        return (await self._connected()).welcome.cluster_id

    async def _fetch_logged(self, queue_offset: int) -> Answer:
        """From the node that is read from, or, where bad bytes have come from it, from another one."""
        bad = self._bad
        if bad is None or bad.queue_offset != queue_offset:
            found = await self._insist(lambda: self._fetch_once(queue_offset))
            if isinstance(found, Answer):
                return found
            bad = self._bad = found
        try:
            return await self._insist(lambda: self._fetch_elsewhere(bad))
        except ConnectionLost:
            if self._client.closed:
                raise
            raise bad.verdict() from None
        finally:
            if self._bad is bad:
                self._bad = None

    def _has_others(self, node_id: str) -> bool:
        """Whether other nodes than that one have copies that may be read."""
        assert self._info is not None
        return self._read_from in _NO_NODE and bool({self._info.master, *self._info.mirrors} - {"", node_id})

    def _refused_bad(self, queue_offset: int, error: LogCorrupt, node_id: str) -> BadStretch:
        """What that node has found bad in its own copy, by then."""
        self._failed_node, self._connection = node_id, None
        bad = refused(self.queue, queue_offset, error, size=self._max_bytes)
        self._copies.met_bad(bad, node_id, error)
        return bad

    async def _fetch_elsewhere(self, bad: BadStretch) -> Answer:
        """From another node than those that are bad there. Raises BadBatch, or ConnectionLost, as `Copies.whole`."""
        if self._read_from not in _NO_NODE:
            raise bad.verdict("; with read_from master, mirror or nearest another copy is asked for it")
        info = await self._find()
        in_order = sorted([*self._mirrors(info), info.master], key=self._rank)
        return await self._copies.whole(bad, in_order, partial(self._fetch_sound, bad))

    async def _fetch_sound(self, bad: BadStretch, node_id: str) -> Answer:
        """That stretch from one node. Raises BadBatch when it begins with bad bytes there, too."""
        connection = await self._client.reach(await self._client.node_address(node_id))
        misplaced = partial(self._is_mute, connection)
        answer = await self._fetch_from(connection, bad.queue_offset, max_bytes=max(bad.size, 1), misplaced=misplaced)
        if not answer.batch_count:
            raise NotCurrent(f"node {node_id} does not show queue offset {bad.queue_offset} yet")
        self._checked(answer.content, 1, answer.body_bytes_max)
        return answer

    async def _fetch_once(self, queue_offset: int) -> Answer | BadStretch:
        """What comes, or what its node refuses as bad while others have copies: those are asked at once."""
        connection = await self._connected()
        misplaced = partial(self._misplaced, connection)
        try:
            return await self._fetch_from(connection, queue_offset, max_bytes=self._max_bytes, misplaced=misplaced)
        except LogCorrupt as error:
            if not self._has_others(connection.welcome.node_id):
                raise
            return self._refused_bad(queue_offset, error, connection.welcome.node_id)

    async def _fetch_from(
        self, connection: Connection, queue_offset: int, *, max_bytes: int, misplaced: Callable[[], Awaitable[bool]]
    ) -> Answer:
        assert self._info is not None
        silence = self._silence(connection, misplaced, self._max_wait_ms / 1000)

        def room(size: int) -> memoryview:
            silence.broken()
            return self._buffers.take(size)

        node_id = connection.welcome.node_id
        try:
            async with silence:
                facts, content = await connection.fetch(
                    queue_id=self._info.queue_id,
                    epoch=self.cursor.epoch,
                    queue_offset=queue_offset,
                    max_bytes=max_bytes,
                    wait_ms=self._max_wait_ms,
                    timeout_ms=self._client.request_timeout_ms,
                    room=room,
                )
        except PositionLost:
            raise  # it is in the log, so every copy says the same
        except OffsetOutOfRange as error:
            raise await self._copies.judged(error, self._info, node_id, queue_offset) from None
        self._served_by = node_id
        body_bytes_max = max(connection.welcome.limits.max_batch_bytes, _BODY_BYTES)
        return Answer(content, facts.batch_count, queue_offset, connection.address, body_bytes_max, node_id)

    async def _own_info(self) -> QueueInfo:
        """The queue as the node that is read from knows it: what another one has confirmed may be further on."""
        connection = await self._connected()
        asked = GetMetadata(queues=[self.queue])
        async with self._silence(connection, partial(self._misplaced, connection)):
            answer = await connection.request(asked, Metadata, timeout_ms=self._client.request_timeout_ms)
        if not answer.queues:
            raise NoSuchQueue(f"no queue {self.queue!r} on node {answer.node_id}", queue=self.queue)
        info = answer.queues[0]
        wants_end = self._until_asked == "confirmed" or self._start == "latest"
        if wants_end and self._read_from == "master" and not is_known(info, told_by=answer.node_id):
            raise not_known(info, told_by=answer.node_id)
        return info

    def _silence(
        self, connection: Connection, misplaced: Callable[[], Awaitable[bool]], wait_s: float = 0.0
    ) -> StallWatch:
        """Around a request that may take `wait_s` without anything being wrong."""
        reason = f"{connection.address} answers nothing; queue {self.queue!r} is read elsewhere"
        return StallWatch(misplaced, after_s=wait_s + SILENCE_S, reason=reason)

    async def _misplaced(self, connection: Connection) -> bool:
        """Whether a node that is silent is to be left: for a new master, or, of several mirrors, for another one when
        it does not answer a simple question either."""
        assert self._found is not None
        if self._read_from == "master":
            return await self._client.has_moved(self._found)
        if self._read_from not in _ANY_COPY or len(self._found.info.mirrors) < 2:
            return False
        return await self._is_mute(connection)

    async def _is_mute(self, connection: Connection) -> bool:
        """Whether a node that is silent does not answer a simple question either."""
        try:
            await connection.request(GetMetadata(queues=[]), Metadata, timeout_ms=int(SILENCE_S * 1000))
        except RequestTimeout:
            return True
        return False

    async def _connected(self) -> Connection:
        if self._connection is None or not self._connection.usable:
            self._connection = await self._connect()
        return self._connection

    async def _find(self) -> QueueInfo:
        """The queue as it is now. Raises NoSuchQueue, also when it is another one under the same name."""
        found = await self._client.find(self.queue)
        check_same(self.queue, self._info, found.info)
        self._found, self._info = found, found.info
        return found.info

    async def _connect(self) -> Connection:
        """To the node that shall be read from. Raises ConnectionLost, BadRequest for a node without this queue."""
        info = await self._find()
        wanted = self._wanted(info)
        reasons: list[str] = []
        await self._look_nearby(wanted)
        for node_id in sorted(wanted, key=self._rank):
            try:
                return await self._client.reach(await self._client.node_address(node_id))
            except ConnectionLost as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(reasons))

    def _wanted(self, info: QueueInfo) -> list[str]:
        """The nodes that may be read from; of mirrors another one first for each turn. Raises BadRequest."""
        mirrors = self._mirrors(info)
        wanted = {"master": [info.master], "mirror": mirrors, "nearest": mirrors}.get(
            self._read_from, [self._read_from]
        )
        if self._read_from in _ANY_COPY and info.master:
            wanted = [*wanted, info.master]  # before a mirror that began late, and behind those that have all
        no_mirror = self._read_from == "mirror" and not mirrors
        if not set(wanted) <= {info.master, *info.mirrors} or not wanted or no_mirror:
            raise BadRequest(
                f"queue {self.queue!r} is on {info.master}, {', '.join(info.mirrors)}; not {self._read_from!r}"
            )
        return wanted

    def _mirrors(self, info: QueueInfo) -> list[str]:
        """Another one first for each turn."""
        start = self._turn % max(1, len(info.mirrors))
        return [*info.mirrors[start:], *info.mirrors[:start]]

    async def _look_nearby(self, node_ids: list[str]) -> None:
        if self._read_from != "nearest":
            return
        for node_id in node_ids:
            if node_id not in self._here:
                self._here[node_id] = await is_here(await self._client.node_address(node_id))

    def _rank(self, node_id: str) -> tuple[bool, bool, bool, bool]:
        """Whom to read from, the best first: who lacks nothing, has not failed, is on this host if the nearest was
        asked for, is a mirror if one was."""
        is_master = self._info is not None and node_id == self._info.master
        far = not self._here.get(node_id, False)
        return self._copies.lacks(node_id), node_id == self._failed_node, far, is_master

    # --- where to begin and to end ---

    async def _resolve_start(self, info: QueueInfo) -> int:
        start = self._start
        if isinstance(start, Position):
            if start.log_id != info.log_id:
                raise BadRequest(f"a position of log {start.log_id}, but queue {self.queue!r} is in {info.log_id}")
            self.cursor.epoch = start.epoch
            return start.queue_offset
        if isinstance(start, datetime):
            # Should retention free that record, all that is left was appended later.
            self._begin = await self._first_at(as_timestamp_us(start) or 0, info)
            return self._begin
        if start == "committed":
            if self.group is None:
                raise BadRequest("start=committed needs a group")
            stored = await Admin(self._client).position(self.queue, self.group)
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
            return await self._tiers.find_time(append_time_us, found, info, await self._cluster_id())
        return found

    async def _earliest(self, info: QueueInfo) -> int:
        """Where the queue begins. Whoever named a node wants what that one has; from any mirror, what the queue has.
        What was tiered is the queue's, too."""
        begin = info.begin
        if self._read_from in _ANY_COPY and self._connection is not None:
            begin = await self._copies.earliest(info, self._connection.welcome.node_id)
        if self._tiers.known(info):
            begin = min(begin, await self._tiers.begin(info, await self._cluster_id()))
        return begin

    def _resolve_until(self, info: QueueInfo) -> int | None:
        if self._until_asked is None:
            return None
        if isinstance(self._until_asked, int):
            return _checked_offset(self._until_asked)
        if self._until_asked == "confirmed":
            return info.next
        raise BadRequest(f"until {self._until_asked!r} is neither a queue offset nor `confirmed`")


def enough(found: Sized, max_records: int | None) -> bool:
    """Whether one `read` of at most `max_records` has what it waits for: without a limit, anything."""
    return len(found) > 0 if max_records is None else len(found) >= max_records


def _checked_offset(queue_offset: int) -> int:
    if not 0 <= queue_offset <= _QUEUE_OFFSET_MAX:
        raise BadRequest(f"queue offset {queue_offset} is not within 0 and {_QUEUE_OFFSET_MAX}")
    return queue_offset
