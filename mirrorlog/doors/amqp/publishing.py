"""Publishes of one connection: routed here, handed to a producer for each queue, and heard of. Thin.

As `client.publisher` does it, and for all exchanges of a virtual host at once, at a fifth of its cost: what a message
leads to is found, and it is handed over, without a turn of the loop, as long as the routing is fresh, the queues'
producers are there and have room. Everything else waits (`publish`), and with it its channel: so a channel keeps its
order in each queue. What a node refuses because bindings have changed is routed again, in its order, before anything
new leaves. What leads nowhere does so by a node's word that is younger than the message; one question is for all that
wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from mirrorlog.client import Client
from mirrorlog.client.amqp import AMQP
from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.producer.record import record_size
from mirrorlog.client.publisher.publications import version_of
from mirrorlog.client.publisher.queue_producers import QueueProducers
from mirrorlog.client.publisher.routes import PublishRoutes
from mirrorlog.doors.amqp.errors import ACCESS_REFUSED, AmqpError, no_exchange
from mirrorlog.doors.amqp.message import AmqpMessage, queue_named
from mirrorlog.errors import (
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    OutcomeUnknown,
    RecordTooLarge,
    StaleRouting,
)
from mirrorlog.errors import Overloaded as NoRoom
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import HEADERS, VERSION_FIRST

logger = logging.getLogger(__name__)

GIVE_UP_S: Final = 30.0
"""How long a message is routed anew, and its queues are looked for."""
_LOOK_AGAIN_S: Final = 0.2
_RECORD_BYTES: Final = record_size(b"", b"", ((AMQP, b""),))
"""Of a record, beside its value, its key and the value of its one header."""
_NO_HEADERS: Final[dict[str, object]] = {}

Ended = Callable[["AmqpPublication"], None]


class AmqpPublication:
    """A message until it has ended: then `ended` is called. `routed`: whether it came to any queue; `error`: what some
    queue's has ended with."""

    __slots__ = (
        "answered", "confirmed", "ended", "error", "give_up_at", "handed_over_at", "message", "routed", "serial",
        "stale", "tag", "waiting",
    )  # fmt: skip

    def __init__(self, message: AmqpMessage, tag: int, ended: Ended) -> None:
        self.message = message
        self.tag = tag
        self.ended = ended
        self.routed = False
        self.error: MirrorlogError | None = None
        self.waiting = 0
        self.confirmed: list[str] = []
        self.answered: set[str] = set()
        self.stale: dict[str, StaleRouting] = {}
        self.serial = 0
        self.handed_over_at = self.give_up_at = 0.0


class _BatchEnd:
    """Waits for the end of a batch, for the messages that joined it one after the other."""

    __slots__ = ("_publishing", "batch", "producer", "publications", "queue")

    def __init__(self, publishing: Publishing, queue: str, producer: Producer, batch: PendingBatch) -> None:
        self.queue = queue
        self.producer = producer
        self.batch = batch
        self.publications: list[AmqpPublication] = []
        self._publishing = publishing

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        self._publishing.batch_ended(self)


class Publishing:
    """Of one connection in one virtual host. Made on its loop."""

    def __init__(self, client: Client, virtual_host: str) -> None:
        self._client = client
        self._virtual_host = virtual_host
        self._routes = PublishRoutes(client, virtual_host, closed=lambda: client.closed)
        self._producers = QueueProducers()
        # The newest of each queue.
        self._open: dict[str, _BatchEnd] = {}
        self._loop = asyncio.get_running_loop()
        self._order = asyncio.Lock()
        self._serial = 0
        self._under_way = 0
        self._changed: asyncio.Future[None] | None = None
        # What was refused for its routing, and what leads nowhere by a word that is older than it.
        self._stale: list[AmqpPublication] = []
        self._doubtful: list[AmqpPublication] = []
        self._again: asyncio.Task[None] | None = None
        self._headers_version = -1
        self._needs_headers = False

    # --- for channels ---

    def publish_nowait(self, publication: AmqpPublication) -> bool:
        """Hand it over, if nothing has to be waited for; whether that was done. Raises AmqpError."""
        exchange = publication.message.exchange
        if self._order.locked() or self._again is not None:
            return False
        if exchange and (self._routes.is_old or exchange not in self._routes.table.exchanges):
            return False
        queues = self._queues(publication.message)
        producers = [self._producers.get(queue) for queue in queues]
        if None in producers:
            return False
        self._begin(publication)
        for at, queue in enumerate(queues):
            producer = producers[at]
            assert producer is not None
            try:
                self._hand(publication, queue, producer)
            except NoRoom:
                if not at:
                    return False
                self._stale_as(publication, queue, StaleRouting("no room yet", version=self._routes.table.version))
            except MirrorlogError as error:
                self._note(publication, queue, producer, error)
        if not queues:
            self._led_nowhere(publication)
        self._handed(publication)
        return True

    async def publish(self, publication: AmqpPublication) -> None:
        """Hand it over; waits for the routing, for producers, for room. Raises AmqpError."""
        async with self._order:
            while self._again is not None:
                await asyncio.wait({self._again})
            self._begin(publication)
            exchange = publication.message.exchange
            if exchange and (self._routes.is_old or exchange not in self._routes.table.exchanges):
                await self._routes.refresh(VERSION_FIRST, give_up_at=publication.give_up_at)
            await self._send(publication, waits=True)
            self._producers.let_idle_go(self._loop.time())
        self._handed(publication)

    async def changed(self) -> None:
        """This connection has changed bindings: what it publishes from now on is routed by them."""
        if self._routes.table.version:
            async with self._order:
                await self._routes.refresh(VERSION_FIRST)

    def check(self, exchange: str) -> None:
        """Whether it may be published to, as far as it is known. Raises AmqpError."""
        if not exchange:
            return
        facts = self._routes.table.exchanges.get(exchange)
        if facts is None:
            raise no_exchange(exchange, self._virtual_host)
        if facts.internal:
            text = f"cannot publish to internal exchange '{exchange}' in vhost '{self._virtual_host}'"
            raise AmqpError(ACCESS_REFUSED, text)

    async def drained(self) -> None:
        """Until nothing is under way."""
        while self._under_way or self._again is not None:
            if self._again is not None:
                await asyncio.wait({self._again})
                continue
            await self._change()

    async def _change(self) -> None:
        """Until something has ended."""
        self._changed = self._changed or self._loop.create_future()
        await asyncio.shield(self._changed)

    # --- inside: on their way ---

    def _begin(self, publication: AmqpPublication) -> None:
        self._serial += 1
        publication.serial = self._serial
        publication.waiting = 1  # for its handing over: a first queue may have it before a second one is found
        publication.handed_over_at = now = self._loop.time()
        publication.give_up_at = now + GIVE_UP_S

    def _queues(self, message: AmqpMessage) -> tuple[str, ...]:
        """Each once, however many keys lead there. Raises AmqpError."""
        if not message.exchange:
            return tuple(queue_named(key) for key in message.keys if key)
        self.check(message.exchange)
        table = self._routes.table
        if table.version != self._headers_version:
            self._headers_version = table.version
            self._needs_headers = any(each.kind == HEADERS for each in table.exchanges.values())
        if table.exchanges[message.exchange].arguments:  # of a delayed one alone
            message.delay()
        headers = message.headers if self._needs_headers and message.scan.headers[1] else _NO_HEADERS
        return table.route(message.exchange, message.keys[0], headers, also=message.keys[1:])

    def _hand(self, publication: AmqpPublication, queue: str, producer: Producer) -> None:
        """Raises Overloaded without room, and what is wrong with it."""
        message = publication.message
        # The default exchange needs no routing: what it sends is stamped as others are, while that is fresh.
        if message.exchange or self._routes.is_old:
            producer.routed_by(0 if self._routes.is_old else self._routes.stamp)
        body, key, header = message.body, message.key.encode(), message.header
        size = _RECORD_BYTES + len(body) + len(key) + len(header[1] or b"")
        if size > (limit := producer.limits.max_record_bytes):
            raise RecordTooLarge(f"a message of {size} bytes is above max_record_bytes ({limit})")
        batch = producer.batch_for(size, message.attributes)
        batch.add(body, key, (header,), None, size)
        end = self._open.get(queue)
        if end is None or end.batch is not batch:
            end = self._open[queue] = _BatchEnd(self, queue, producer, batch)
            batch.waiters.append(end)
            self._producers.sent(queue, self._loop.time())
        end.publications.append(publication)
        publication.routed = True
        publication.waiting += 1
        self._under_way += 1

    async def _send(self, publication: AmqpPublication, *, waits: bool = False) -> None:
        """To the queues that it leads to and that have not answered. `waits`: behind what is routed again; when that
        begins in the midst of it, it goes on there. Raises AmqpError."""
        queues = [each for each in self._queues(publication.message) if each not in publication.answered]
        found = 0
        for queue in queues:
            try:
                producer = await self._started(queue, publication)
                if producer is None:
                    continue
                found += 1
                await self._hand_with_room(publication, queue, producer, waits=waits)
            except MirrorlogError as error:
                found += 1
                self._note(publication, queue, None, error)
            if waits and self._again is not None:
                for each in queues[queues.index(queue) + 1 :]:
                    self._stale_as(publication, each, StaleRouting("behind others", version=VERSION_FIRST))
                return
        if not found and not publication.answered:
            self._led_nowhere(publication)

    async def _hand_with_room(
        self, publication: AmqpPublication, queue: str, producer: Producer, *, waits: bool
    ) -> None:
        while True:
            if waits and self._again is not None:
                raise StaleRouting("behind others", version=VERSION_FIRST)
            try:
                self._hand(publication, queue, producer)
                return
            except NoRoom:
                await producer.room()

    def _led_nowhere(self, publication: AmqpPublication) -> None:
        if publication.message.exchange and self._routes.vouched_at < publication.handed_over_at:
            self._doubtful.append(publication)
            publication.waiting += 1
            self._under_way += 1
            self._go_again()

    async def _started(self, queue: str, publication: AmqpPublication) -> Producer | None:
        """The producer of a queue; None where the default exchange has no such queue. Raises StaleRouting where a
        binding may be gone, and why it cannot be reached."""
        producer = self._producers.get(queue)
        bound = bool(publication.message.exchange)
        while producer is None:
            made = self._client.producer(qualified(self._virtual_host, queue), retry_full=False)
            made.kept = True
            left_ms = int(max(0.0, publication.give_up_at - self._loop.time()) * 1000)
            try:
                producer = await made.start(timeout_ms=min(left_ms, self._client.request_timeout_ms))
                self._producers.add(queue, producer, self._loop.time())
            except (NoSuchQueue, NotMaster, LogUnavailable) as error:
                made.abandon()
                if isinstance(error, NoSuchQueue):
                    if not bound:
                        return None
                    version = await self._routes.version_known()
                    if version > self._routes.table.version:
                        raise StaleRouting(error.message, version=version) from None
                if isinstance(error, LogUnavailable) or self._loop.time() >= publication.give_up_at:
                    raise LogUnavailable(f"{error.message}; nothing was stored", queue=queue) from None
                await asyncio.sleep(_LOOK_AGAIN_S)
        return producer

    # --- inside: what becomes of them ---

    def batch_ended(self, end: _BatchEnd) -> None:
        """All messages that it has of a batch have ended."""
        queue, producer, outcome = end.queue, end.producer, end.batch.outcome
        end.batch.heard = True
        if self._open.get(queue) is end:
            del self._open[queue]
        self._producers.heard(queue, producer)
        for publication in end.publications:
            publication.waiting -= 1
            self._under_way -= 1
            if isinstance(outcome, MirrorlogError):
                self._note(publication, queue, producer, outcome)
            else:
                publication.confirmed.append(queue)
                publication.answered.add(queue)
            self._settle(publication)

    def _note(self, publication: AmqpPublication, queue: str, producer: Producer | None, error: MirrorlogError) -> None:
        if isinstance(error, StaleRouting):
            self._stale_as(publication, queue, error)
        elif isinstance(error, NoSuchQueue):
            # Deleted, and its bindings with it; perhaps declared anew since.
            if producer is not None and self._producers.get(queue) is producer:
                self._producers.drop(queue)
            self._stale_as(publication, queue, StaleRouting(error.message, version=self._routes.table.version))
        else:
            publication.answered.add(queue)
            publication.error = worse(publication.error, error)

    def _stale_as(self, publication: AmqpPublication, queue: str, error: StaleRouting) -> None:
        if not publication.stale:
            self._stale.append(publication)
        publication.stale[queue] = error
        self._go_again()

    def _handed(self, publication: AmqpPublication) -> None:
        """To all queues that it leads to."""
        publication.waiting -= 1
        self._settle(publication)

    def _settle(self, publication: AmqpPublication) -> None:
        """It has ended, unless something of it is under way."""
        if self._changed is not None:
            changed, self._changed = self._changed, None
            changed.set_result(None)
        if not publication.waiting and not publication.stale:
            self._end(publication)

    def _end(self, publication: AmqpPublication) -> None:
        error = publication.error
        if error is not None and publication.confirmed and not isinstance(error, OutcomeUnknown):
            there = ", ".join(publication.confirmed)
            publication.error = OutcomeUnknown(f"stored in {there}, and not elsewhere: {error.message}")
        publication.routed = bool(publication.confirmed) or error is not None
        publication.ended(publication)

    # --- inside: routed again ---

    def _go_again(self) -> None:
        if self._again is None:
            self._again = asyncio.ensure_future(self._route_again())

    async def _route_again(self) -> None:
        """Ask what has changed; once all that is on its way has ended, what was refused, or led nowhere, is routed
        again, in its order. Nothing new leaves meanwhile."""
        try:
            while self._stale or self._doubtful:
                await self._one_round()
        finally:
            self._again = None

    async def _one_round(self) -> None:
        doubtful, self._doubtful = self._doubtful, []
        version = self._routes.table.version
        try:
            newest = await self._routes.newest(give_up_at=self._loop.time() + GIVE_UP_S) if doubtful else version
            if newest > version or self._stale:
                # All that is under way: their refusals are still to come.
                await self._until_quiet(len(doubtful))
                newest = max([newest, *(version_of(each) for one in self._stale for each in one.stale.values())])
            if newest > version or self._stale:
                await self._routes.refresh(max(newest, version))
        except MirrorlogError as error:
            self._fail_round(doubtful, error)
            return
        stale, self._stale = self._stale, []
        again = sorted([*stale, *(doubtful if self._routes.table.version != version else ())], key=_serial)
        held = set(map(id, doubtful))
        for publication in again:
            publication.stale = {}
            publication.waiting += 1
            if id(publication) in held:
                self._release(publication)
            if self._loop.time() >= publication.give_up_at:
                text = "bindings changed as often as it was routed, until its time was up"
                publication.error = worse(publication.error, OutcomeUnknown(text))
            else:
                try:
                    await self._send(publication)
                except AmqpError as error:
                    publication.error = worse(publication.error, NoSuchQueue(error.text))
            self._handed(publication)
        if self._routes.table.version == version:
            for publication in doubtful:
                self._release(publication)
                self._settle(publication)

    def _release(self, publication: AmqpPublication) -> None:
        publication.waiting -= 1
        self._under_way -= 1

    def _fail_round(self, doubtful: list[AmqpPublication], error: MirrorlogError) -> None:
        stale, self._stale = self._stale, []
        for publication in doubtful:
            self._release(publication)
        for publication in sorted({*stale, *doubtful}, key=_serial):
            publication.stale = {}
            publication.error = worse(publication.error, error)
            self._settle(publication)

    async def _until_quiet(self, doubtful: int) -> None:
        """Until nothing is under way but those that lead nowhere."""
        while self._under_way > doubtful + len(self._doubtful):
            await self._change()


def worse(known: MirrorlogError | None, error: MirrorlogError) -> MirrorlogError:
    """What a message has ended with of which two queues say different things: what may be stored is not refused."""
    if known is None or (isinstance(error, OutcomeUnknown) and not isinstance(known, OutcomeUnknown)):
        return error
    return known


def _serial(publication: AmqpPublication) -> int:
    return publication.serial
