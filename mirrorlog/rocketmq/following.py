"""Follows a broker of RocketMQ: what it writes is published here, once, and it hears of that when all copies have it.

Where the next run begins is a record of a queue of its own, in the log of the others. Each run is a transaction: its
messages, the next place, and the acknowledgement of the place before. So nothing is repeated or missed, wherever this
process ends; and of two that follow the same broker one has the place, and a transaction of the other does not count,
for what it acknowledges is not with it any more.

Thin: `ha.rocketmq` speaks with the broker, `records` finds records, `routes` says where they go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.config import HaSettings, split_address
from mirrorlog.errors import BadInput, ConnectionLost, ExclusiveTaken, MirrorlogError, NotGranted
from mirrorlog.ha.actions import Close, Connect, Send
from mirrorlog.ha.rocketmq import Action, Dialect, ReceivedBytes, RocketFollower
from mirrorlog.rocketmq.records import RecordWalker, RocketRecord
from mirrorlog.rocketmq.routes import FollowedMessage, TopicRoutes

logger = logging.getLogger(__name__)

RUN_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of one transaction, and one record more."""
AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""ReceivedBytes, and in no transaction yet: above it nothing is read from the broker."""
_READ_BYTES: Final = 256 * 1024
_TICK_S: Final = 0.5
_RETRY_S: Final = 1.0
_CONNECT_TIMEOUT_S: Final = 10.0
_PLACE_TIMEOUT_MS: Final = 30_000
_FIRST_PLACE_MS: Final = 2_000
"""How long a place is waited for before it is taken that there is none: its queue is asked when it was just made."""


class FollowedTo(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go on. `epoch`: in which it was reached, under a controller; `store_ms`: when what stands before it was
    written there."""

    offset: int
    epoch: int = 0
    store_ms: int = 0


@dataclass(slots=True)
class FollowProgress:
    """What was done since the start. `place`: None while it is not known; `behind_ms`: from the broker's write of the
    newest record that is confirmed here to its confirm."""

    messages: int = 0
    skipped: int = 0
    transactions: int = 0
    links: int = 0
    place: FollowedTo | None = None
    behind_ms: int = 0
    last_error: str = ""


class Following:
    """`start`: where a broker is begun with of which no place is stored, and with `anew` any; None: with what it gives
    of itself. `log_group`: in which queues are declared that are not there (`x-log-group`)."""

    def __init__(
        self,
        client: Client,
        broker: str,
        routes: TopicRoutes,
        *,
        name: str,
        log_group: str,
        start: int | None = None,
        anew: bool = False,
        dialect: Dialect = Dialect.CLASSIC,
        settings: HaSettings | None = None,
    ) -> None:
        self.progress = FollowProgress()
        self._client = client
        self._host, self._port = split_address(broker)
        self._routes = routes
        self._places = f"rocketmq.place.{name}"
        self._log_group = log_group
        self._start = start
        self._anew = anew
        self._dialect = dialect
        self._settings = settings or HaSettings()

    async def run(self) -> None:
        """Until it is cancelled. Raises what does not pass: PositionLost for a broker that lost what is stored here,
        BadInput for a wrong option and for bytes that are no records."""
        await self._declare()
        while True:
            try:
                async with self._client.subscribe(self._places, prefetch=1, exclusive=True) as places:
                    await self._follow(places, await self._place(places))
            except MirrorlogError as error:
                if isinstance(error, BadInput) and not isinstance(error, NotGranted | ExclusiveTaken):
                    raise
                self.progress.last_error = error.message
                logger.warning("broker_left broker=%s:%d reason=%r", self._host, self._port, error.message)
            await asyncio.sleep(_RETRY_S)

    # --- places ---

    async def _declare(self) -> None:
        """All queues in one log. Those that are there stay as they are; a commit says when they cannot be."""
        there = {queue.name for queue in (await self._client.admin.metadata()).queues}
        for queue in dict.fromkeys((self._places, *self._routes.queues.values())):
            if queue not in there:
                await self._client.admin.declare(queue, {"x-log-group": self._log_group})

    async def _place(self, places: Subscription) -> Delivered:
        """What was stored last; a first one is made where there is none."""
        found = await places.receive(1, timeout_ms=_FIRST_PLACE_MS)
        if found and not self._anew:
            return found[0]
        await self._store(FollowedTo(offset=-1 if self._start is None else self._start), (), found)
        self._anew = False
        return await self._next_place(places)

    async def _next_place(self, places: Subscription) -> Delivered:
        found = await places.receive(1, timeout_ms=_PLACE_TIMEOUT_MS)
        if not found:
            raise ConnectionLost(f"queue {self._places} does not give where to go on")
        return found[0]

    async def _store(self, place: FollowedTo, messages: Iterable[FollowedMessage], before: Iterable[Delivered]) -> None:
        """All of it counts, or nothing."""
        async with self._client.transaction(confirm="all") as transaction:
            for each in messages:
                value, key, headers, at = each.value, each.key, each.headers, each.timestamp_us
                if each.queue:
                    transaction.send(each.queue, value, key=key, headers=headers, timestamp=at)
                else:
                    transaction.publish(each.exchange, each.routing_key, value, key=key, headers=headers, timestamp=at)
            transaction.send(self._places, msgspec.json.encode(place))
            for delivered in before:
                transaction.ack(delivered)

    # --- a link to the broker ---

    async def _follow(self, places: Subscription, delivered: Delivered) -> None:
        """One link, from the place on; it ends by an error alone. What is then on its way to the log counts or not:
        whoever takes the place next sees it."""
        place = msgspec.json.decode(delivered.value or b"", type=FollowedTo)
        follower = RocketFollower(
            position=None if place.offset < 0 else place.offset,
            settings=self._settings,
            now=time.monotonic(),
            dialect=self._dialect,
            epoch=place.epoch,
        )
        self.progress.place = place
        async with _connected(follower, self._host, self._port) as link:
            self.progress.links += 1
            logger.info("broker_followed broker=%s:%d offset=%d", self._host, self._port, place.offset)
            async for run in link.runs():
                place = FollowedTo(offset=run[-1].next_offset, epoch=link.epoch, store_ms=run[-1].store_ms)
                messages = [message for record in run if (message := self._routes.of(record)) is not None]
                await self._store(place, messages, [delivered])
                link.confirmed(place.offset)
                self._count(place, len(run), len(messages))
                delivered = await self._next_place(places)

    def _count(self, place: FollowedTo, records: int, messages: int) -> None:
        told = self.progress
        told.place, told.last_error = place, ""
        told.messages += messages
        told.skipped += records - messages
        told.transactions += 1
        told.behind_ms = max(0, round(time.time() * 1000) - place.store_ms)


class _Link:
    """A connection that stands. One task reads it ahead of what is stored."""

    def __init__(self, follower: RocketFollower, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.epoch = 0
        self._follower = follower
        self._reader = reader
        self._writer = writer
        self._walker: RecordWalker | None = None
        self._found: deque[tuple[RocketRecord, int]] = deque()
        self._found_bytes = 0
        self._changed = asyncio.Condition()
        self._failed: MirrorlogError | None = None

    async def runs(self) -> AsyncIterator[list[RocketRecord]]:
        """Records in their order, as many as came, up to `RUN_BYTES_MAX`. Raises what ended the link, behind what came
        before."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._found or self._failed)
                run, size = [], 0
                while self._found and size < RUN_BYTES_MAX:
                    record, epoch = self._found.popleft()
                    run.append(record)
                    size += record.next_offset - record.physical_offset
                    self.epoch = epoch
                self._found_bytes -= size
                self._changed.notify_all()
            if not run:
                assert self._failed is not None
                raise self._failed
            yield run

    def confirmed(self, offset: int) -> None:
        self._do(self._follower.confirmed(offset, time.monotonic()))

    async def read(self) -> None:
        """Ask, and read, until the link ends."""
        try:
            self._do(self._follower.connected(time.monotonic()))
            while True:
                content = b""
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        content = await self._reader.read(_READ_BYTES)
                        if not content:
                            raise ConnectionLost("the broker has closed the connection")
                self._do(self._follower.received(content, time.monotonic()))
                self._do(self._follower.tick(time.monotonic()))
                await self._settle()
        except OSError as error:
            await self._fail(ConnectionLost(f"the connection to the broker is gone: {error}"))
        except MirrorlogError as error:
            await self._fail(error)

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(parts):
                    self._writer.writelines(parts)
                case Close(error):
                    raise error or ConnectionLost("the broker is left")
                case ReceivedBytes(offset, epoch, content):
                    self._walker = self._walker or RecordWalker(offset)
                    for record in self._walker.feed(content):
                        self._found.append((record, epoch))
                        self._found_bytes += record.next_offset - record.physical_offset
                case Connect():
                    raise AssertionError("a link that stands is not opened")

    async def _settle(self) -> None:
        """Say what came, and wait while it is too much."""
        async with self._changed:
            if self._found:
                self._changed.notify_all()
            await self._changed.wait_for(lambda: self._found_bytes < AHEAD_BYTES_MAX)

    async def _fail(self, error: MirrorlogError) -> None:
        async with self._changed:
            self._failed = error
            self._changed.notify_all()


@contextlib.asynccontextmanager
async def _connected(follower: RocketFollower, host: str, port: int) -> AsyncIterator[_Link]:
    """Raises ConnectionLost when nobody answers there."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # a TimeoutError is one
        reason = str(error) or f"no answer within {_CONNECT_TIMEOUT_S:g} s"
        raise ConnectionLost(f"cannot reach the broker at {host}:{port}: {reason}") from None
    link = _Link(follower, reader, writer)
    reading = asyncio.create_task(link.read())
    try:
        yield link
    finally:
        reading.cancel()
        writer.close()
