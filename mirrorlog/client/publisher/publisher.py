"""Publisher: messages to an exchange. It routes at the edge, and publishes to each queue under its own sequence.

It holds the exchanges and bindings of its virtual host at one version, and producers for the queues that it met lately.
Every batch says by which version it was routed. A node that knows a newer one refuses it: then nothing more leaves, all
that is on its way ends, what has changed of the routing is fetched, and what was refused is routed again, in the order
in which it was published. So order is kept in every queue, and a publish behind the answer to a bind meets the binding.
The same is done when a newer version is met in any other way. The default exchange has no bindings: it needs none of
this.

A publish is confirmed when every queue has it. If one refuses it while another has it, it is neither stored nor
refused: that is OutcomeUnknown, naming the queues. What leads to no queue is unroutable, and that is only decided by a
routing that a node has vouched for since the message was handed over: no batch of it meets a node that would refuse it.
The question is for the version alone, and one for all messages that wait for it, which hold up no others. A queue that
is bound and cannot be found is not passed over: its node may be down. It is looked for until the message's deadline;
then that is said, naming it.

Rejected: exchanges on the node, which would have to look into every record; one batch for several queues, which would
tie their order and their sequences together; to call unroutable what a word of the last second says so of: who is told
so, binds, and publishes again within that second was told so again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any, Final, Self, Unpack
from weakref import WeakMethod

from mirrorlog.client.arguments import checked, is_text, refuse
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.queue_metadata import is_outage
from mirrorlog.client.connection.unclosed import unended_text, warn_unclosed
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.producer.record import as_headers, as_timestamp_us, record_size
from mirrorlog.client.properties import Headers, SendOptions, as_bytes, parted
from mirrorlog.client.publisher.publications import (
    Publication,
    Published,
    PublisherStats,
    QueuedMessage,
    checked_keys,
    version_of,
)
from mirrorlog.client.publisher.queue_producers import StartedProducers
from mirrorlog.client.publisher.routes import PublishRoutes
from mirrorlog.client.serializers import Serializer, serialized
from mirrorlog.client.with_block import WithBlock
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, RecordOptions, asked_attributes
from mirrorlog.errors import (
    Closed,
    MirrorlogError,
    NoSuchQueue,
    OutcomeUnknown,
    Overloaded,
    StaleRouting,
    Unroutable,
)
from mirrorlog.wire.names import check_routing_key
from mirrorlog.wire.routing import VERSION_FIRST

_OUTSTANDING_MAX: Final = 100_000
_UNHEARD_MAX: Final = 1_000


@checked(but=("publish", "hand_over"), internal=("kept", "started", "unended"))
class Publisher(WithBlock):
    """Publishes to one exchange. Made by `Client.publisher`; use it with `async with`. One that is let go without
    `close` sees to what it was given first; then it goes, with a ResourceWarning."""

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    started = False

    def __init__(
        self,
        client: ClusterClient,
        exchange: str,
        *,
        virtual_host: str,
        mandatory: bool,
        delivery_timeout_ms: int,
        make_producer: Callable[[str], Producer],
        serializer: Serializer | None = None,
    ) -> None:
        """`make_producer`: of a queue's qualified name. `delivery_timeout_ms`: how long a message is routed anew, and
        its queues are looked for; what is sent until then has as long for its confirm."""
        self.exchange = exchange
        self.virtual_host = virtual_host
        self.stats = PublisherStats()
        self._client = client
        self._mandatory = mandatory
        self._serializer = serializer
        self._delivery_s = delivery_timeout_ms / 1000
        self._routes = PublishRoutes(
            client, virtual_host, closed=_or_gone(WeakMethod(self._nobody_asks)), only_version=not exchange
        )
        self._starting = StartedProducers(client, self._routes, exchange, make_producer)
        self._producers = self._starting.kept
        self._loop = asyncio.get_running_loop()
        self._order = asyncio.Lock()
        self._outstanding: deque[Publication] = deque()
        self._tending: asyncio.Task[None] | None = None
        self._resending = False
        self._failed: deque[Publication] = deque(maxlen=_UNHEARD_MAX)
        self._closed = False

    # --- life ---

    async def start(self) -> Self:
        """Fetch the routing. Raises NoSuchExchange, AccessRefused for an internal one, NoSuchVirtualHost,
        ConnectionLost."""
        await self._refresh(VERSION_FIRST)
        self._check_exchange()
        self.started = True
        return self

    def _nobody_asks(self) -> bool:
        return self._closed or self._client.closed

    async def close(self) -> None:
        """Flush, then close the producers. Raises as `flush`. Idempotent."""
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            await self._end()

    def abandon(self) -> None:
        """Close without waiting: what is on its way ends as OutcomeUnknown or Refused. Idempotent."""
        self._closed = True
        for producer in self._producers:
            producer.abandon()

    def __del__(self) -> None:
        """Nobody has it any more, and nothing is under way, unless its loop has ended. Its producers go with it."""
        if self.unclosed and not self.kept:
            warn_unclosed(self, f"a publisher to exchange {self.exchange!r}", self.unended)

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"Publisher(exchange={self.exchange!r}, virtual_host={self.virtual_host!r}{closed})"

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and neither closed nor abandoned."""
        return self.started and not self._closed

    @property
    def unended(self) -> str:
        """What of the messages handed over has not ended, or has failed and nobody was told; in words, if any."""
        failed = sum(not each.heard for each in list(self._failed))
        return unended_text(len(self._outstanding), failed, loop=self._loop)

    async def _end(self) -> None:
        self._closed = True
        for producer in self._producers:
            with suppress(MirrorlogError):  # told already, of its publication
                await producer.close()

    # --- messages ---

    async def publish(
        self,
        routing_key: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool | None = None,
        also_keys: Sequence[str] = (),
        **asked: Unpack[SendOptions],
    ) -> Published:
        """Publish one message and await its confirm from every queue that it is routed to.

        `key`: of the record; the routing key, unless it is given. `headers`: also what a headers exchange looks at.
        `priority`, `ttl_ms`, `delay_ms` and the properties: as of `Producer.send`, in every queue.
        `mandatory`: raise Unroutable when it leads to no queue, which drops and counts it else; by default as of the
        publisher. `also_keys`: routed by these, too; a queue that several lead to has it once, and its place says
        nothing of them. Raises Unroutable, Refused (nothing was stored), OutcomeUnknown or BadInput; details `queue`.
        """
        publication = await self.hand_over(
            routing_key, value, key=key, headers=headers, timestamp=timestamp, mandatory=mandatory,
            also_keys=also_keys, **asked,
        )  # fmt: skip
        return await publication

    async def hand_over(
        self,
        routing_key: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool | None = None,
        also_keys: Sequence[str] = (),
        **asked: Unpack[SendOptions],
    ) -> Publication:
        """As `publish`, without awaiting the confirm: await the Publication for that. It waits for room only, for the
        first message to a queue, and while messages are routed anew. Messages keep the order of these calls."""
        if not is_text(routing_key):
            raise refuse("routing_key", routing_key, "str")
        if mandatory is not None and not isinstance(mandatory, bool):
            raise refuse("mandatory", mandatory, "bool or None")
        check_routing_key(routing_key)
        options: RecordOptions = {}
        if asked:
            options, headers = parted(asked, headers)
        if self._serializer is not None:
            value = serialized(self._serializer, value, f"exchange {self.exchange!r}, routing key {routing_key!r}")
        value, pairs = as_bytes(value), tuple(as_headers(headers))
        record_key = routing_key.encode() if key is None else as_bytes(key)
        record_size(value, record_key, pairs)
        message = QueuedMessage(
            routing_key,
            value,
            record_key,
            pairs,
            as_timestamp_us(timestamp),
            asked_attributes(**options),
            self._mandatory if mandatory is None else mandatory,
            checked_keys(also_keys),
        )
        handed_over_at = self._loop.time()
        while len(self._outstanding) >= _OUTSTANDING_MAX:
            await self._outstanding[0].ended()  # what leads nowhere takes no window
        async with self._order:
            if self._closed:
                raise Closed("the publisher is closed")
            publication = Publication(message, handed_over_at, self._loop.time() + self._delivery_s)
            if self.exchange and self._routes.is_old:
                # Before it is routed; what was routed by an older version, and was refused, goes first.
                await self._renew(self._routes.table.version, give_up_at=publication.give_up_at)
            await self._send(publication)
            self._producers.let_idle_go(self._loop.time())
            self.stats.published += 1
            self._outstanding.append(publication)
            if self._tending is None:
                self._tending = asyncio.ensure_future(self._tend())
        return publication

    async def flush(self) -> None:
        """Wait until every message handed over so far has ended. Raises the first error that nobody has heard of."""
        for publication in list(self._outstanding):
            await publication.ended()
        failed, self._failed = self._failed, deque(maxlen=_UNHEARD_MAX)
        for publication in failed:
            if not publication.heard:
                publication.result()

    # --- sending: under `_order`, so that messages keep theirs ---

    async def _send(self, publication: Publication) -> None:
        """To all queues that it leads to and that have not been asked, or asked for another routing."""
        message = publication.message
        queues = [
            queue
            for queue in self._find(message)
            if queue not in publication.receipts and queue not in publication.failures
        ]
        await self._starting.start_missing(queues, publication)
        if publication.nothing_left and any(map(is_outage, publication.failures.values())):
            return  # one of its queues waits for somebody to start a node: nothing of it is stored anywhere
        for queue in queues:
            if queue in publication.stale or queue in publication.failures:
                continue
            try:
                producer = await self._starting.started(queue, publication)
                if producer is not None:
                    publication.deliveries[queue] = producer, await self._deliver(producer, message)
                    self._producers.sent(queue, self._loop.time())
            except StaleRouting as error:
                publication.stale[queue] = error
            except MirrorlogError as error:
                publication.failures[queue] = error

    async def _renew(self, at_least: int, *, give_up_at: float) -> None:
        """Raises as `_refresh`, NoSuchExchange, AccessRefused."""
        before = self._routes.table.version
        await self._refresh(at_least, give_up_at=give_up_at)
        self._check_exchange()
        if self._routes.table.version != before:
            await self._resend()

    def _find(self, message: QueuedMessage) -> tuple[str, ...]:
        if not self.exchange:
            found = self._routes.table.route("", message.routing_key, also=message.also_keys)
            return tuple(filter(None, found))
        if self.exchange not in self._routes.table.exchanges:
            return ()  # gone since the start; before that is said, the routing is fetched
        headers = dict(message.headers) if message.headers else {}
        return self._routes.table.route(self.exchange, message.routing_key, headers, also=message.also_keys)

    def _check_exchange(self) -> None:
        """Raises NoSuchExchange, AccessRefused."""
        if self.exchange:
            self._routes.check(self.exchange)

    async def _deliver(self, producer: Producer, message: QueuedMessage) -> Delivery:
        while True:
            try:
                return producer.send_nowait(
                    message.value,
                    key=message.key,
                    headers=message.headers,
                    timestamp=message.timestamp,
                    **(message.attributes or NO_ATTRIBUTES)._asdict(),
                )
            except Overloaded:
                await producer.room()

    # --- what becomes of them ---

    async def _tend(self) -> None:
        """See to messages in their order, until there are none."""
        try:
            while self._outstanding:
                publication = self._outstanding[0]
                await self._hear(publication)
                if publication.stale or self._resending:
                    async with self._order:
                        if publication.stale:
                            await self._resend()
                elif self._is_doubtful(publication):
                    await self._look_again(publication)
                else:
                    self._outstanding.popleft()
                    self._end_one(publication)
        except Exception as error:  # nobody waits for ever, whatever went wrong; each is told what it was
            outstanding = list(self._outstanding)
            self._outstanding.clear()
            for publication in outstanding:
                self._fail(publication, OutcomeUnknown(f"the publisher failed ({error!r}); stored perhaps"))
        finally:
            self._tending = None

    async def _hear(self, publication: Publication) -> None:
        """Wait until all queues that were asked have answered, and note what they said."""
        while publication.deliveries:
            queue, under_way = next(iter(publication.deliveries.items()))
            producer, delivery = under_way
            outcome: Receipt | MirrorlogError
            try:
                outcome = await delivery
            except MirrorlogError as error:
                outcome = error
            if publication.deliveries.get(queue) is under_way:  # else another one has heard it, and gone on
                del publication.deliveries[queue]
                self._producers.heard(queue, producer)
                self._note(publication, queue, outcome)

    def _note(self, publication: Publication, queue: str, outcome: Receipt | MirrorlogError) -> None:
        if isinstance(outcome, Receipt):
            publication.receipts[queue] = outcome
        elif isinstance(outcome, StaleRouting):
            publication.stale[queue] = outcome
        elif isinstance(outcome, NoSuchQueue):
            # It was deleted, and its bindings with it; it may have been declared anew, with another id.
            self._producers.drop(queue)
            publication.stale[queue] = StaleRouting(outcome.message, version=self._routes.table.version)
        else:
            publication.failures[queue] = outcome

    def _is_doubtful(self, publication: Publication) -> bool:
        """Whether it leads nowhere by a word that is older than it."""
        return (
            bool(self.exchange) and self._routes.vouched_at < publication.handed_over_at and publication.leads_nowhere()
        )

    async def _look_again(self, publication: Publication) -> None:
        """Ask a node whether that is so. Its answer is one for all that lead nowhere by now, and so is that there is
        none: these are told why."""
        version, give_up_at = self._routes.table.version, publication.give_up_at
        try:
            newest = await self._routes.newest(give_up_at=give_up_at)
            if newest > version:
                async with self._order:
                    await self._renew(max(newest, self._routes.table.version), give_up_at=give_up_at)
            self._check_exchange()
        except MirrorlogError as error:
            for each in self._outstanding:
                if each.leads_nowhere():
                    each.not_routed = error

    async def _resend(self) -> None:
        """Nothing leaves until all that is on its way has ended and what was refused, or led nowhere, is routed again,
        in its order. Under `_order`."""
        self._resending = True
        try:
            for publication in list(self._outstanding):
                await self._hear(publication)
            stale = [publication for publication in self._outstanding if publication.stale]
            if stale and not await self._renewed_for(stale):
                return
            for publication in list(self._outstanding):
                if publication.stale:
                    await self._send_again(publication)
                elif self.exchange and publication.leads_nowhere():
                    # Whatever its deadline, for it has not been sent before.
                    await self._send(publication)
                    self.stats.rerouted += not publication.leads_nowhere()
        finally:
            self._resending = False

    async def _renewed_for(self, stale: list[Publication]) -> bool:
        """Whether the routing is one that no node has refused them by; else they have ended."""
        if not self.exchange:
            return True
        newest = max(version_of(error) for each in stale for error in each.stale.values())
        try:
            until = max(publication.give_up_at for publication in stale)
            await self._refresh(max(newest, self._routes.table.version), give_up_at=until)
            self._check_exchange()
        except MirrorlogError as error:
            for publication in stale:
                publication.failures.update(dict.fromkeys(publication.stale, error))
                publication.stale = {}
            return False
        return True

    async def _send_again(self, publication: Publication) -> None:
        """Unless it is over: bindings that change without an end hold nobody for ever."""
        refused, publication.stale = publication.stale, {}
        if self._loop.time() >= publication.give_up_at:
            publication.failures.update(refused)
            return
        self.stats.rerouted += 1
        await self._send(publication)

    def _end_one(self, publication: Publication) -> None:
        outcome = publication.conclusion(self.exchange)
        if isinstance(outcome, MirrorlogError):
            self.stats.unroutable += isinstance(outcome, Unroutable)
            self._fail(publication, outcome)
        else:
            self.stats.confirmed += outcome.routed
            self.stats.unroutable += not outcome.routed
            publication.resolve(outcome)

    def _fail(self, publication: Publication, error: MirrorlogError) -> None:
        self.stats.failed += 1
        publication.resolve(error)
        if not publication.heard:
            self._failed.append(publication)

    # --- the routing ---

    async def _refresh(self, at_least: int, *, give_up_at: float = inf) -> None:
        """Have the routing at that version or a later one, from a node that has it. Raises NoSuchVirtualHost,
        AccessRefused, or why no node that answers has it."""
        self.stats.refreshed += 1
        await self._routes.refresh(at_least, give_up_at=give_up_at)


def _or_gone(method: WeakMethod[Callable[[], bool]]) -> Callable[[], bool]:
    """As the method, and True once its object is gone."""
    return lambda: (still := method()) is None or still()
