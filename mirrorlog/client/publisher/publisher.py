"""Publisher: messages to an exchange. Routes here, at the edge, and publishes to each queue under its own sequence.

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
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Any, Final, Generic, Protocol, Self, TypeVar, Unpack
from weakref import WeakMethod

from mirrorlog.client.connection.cluster import Cluster
from mirrorlog.client.connection.let_go import said_of, warn_unclosed
from mirrorlog.client.connection.metadata import is_outage
from mirrorlog.client.producer.batch import Headers, as_headers
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.producer.receipts import Receipt
from mirrorlog.client.publisher.routes import ASK_MS, Routes
from mirrorlog.client.with_block import WithBlock
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes, RecordOptions, asked_attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    LogUnavailable,
    MirrorlogError,
    NoSuchQueue,
    NoSuchVirtualHost,
    NotCurrent,
    OutcomeUnknown,
    Overloaded,
    RequestTimeout,
    SentToDeadLetters,
    StaleRouting,
    Unroutable,
)
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from mirrorlog.wire.messages.topology import GetRouting, Routing
from mirrorlog.wire.names import check_routing_key, qualified
from mirrorlog.wire.routing import VERSION_FIRST

# The producers of a publisher, one for each queue that it has met lately. Pure.
#
# Whoever publishes answers meets a new queue with each, and would fill its memory, and that of nodes, with producers
# that nobody needs again. So beyond a thousand those go that have nothing under way and had nothing to do for some
# seconds; beyond ten thousand all that have nothing under way. One that is needed again is made anew: everything that
# its predecessor sent has ended by then, so order is kept.


KEPT_MAX: Final = 1_000
IDLE_S: Final = 5.0
IDLE_KEPT_MAX: Final = 10_000
_LOOKED_AT: Final = 64
"""Producers, in one look: it is taken for each message."""


class Abandonable(Protocol):
    def abandon(self) -> None: ...


_P = TypeVar("_P", bound=Abandonable)


@dataclass(slots=True)
class _Kept(Generic[_P]):
    """`under_way`: messages that were handed to it and have not been heard of."""

    producer: _P
    used_at: float
    under_way: int = 0


class QueueProducers(Generic[_P]):
    """By queue; the one that was used longest ago comes first."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept[_P]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[_P]:
        return iter([kept.producer for kept in self._kept.values()])

    def get(self, queue: str) -> _P | None:
        kept = self._kept.get(queue)
        return kept.producer if kept is not None else None

    def add(self, queue: str, producer: _P, now: float) -> None:
        """A started one, in place of none."""
        self._kept[queue] = _Kept(producer, now)

    def drop(self, queue: str) -> None:
        """Its queue is gone, and what is under way ends with it."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            kept.producer.abandon()

    def sent(self, queue: str, now: float) -> None:
        """A message was handed to it."""
        kept = self._kept.pop(queue)
        kept.used_at = now
        kept.under_way += 1
        self._kept[queue] = kept

    def heard(self, queue: str, producer: _P) -> None:
        """What has become of one message that was handed to that producer."""
        kept = self._kept.get(queue)
        if kept is not None and kept.producer is producer:
            kept.under_way -= 1

    def let_idle_go(self, now: float) -> None:
        """Those beyond the limits, a few at a time."""
        beyond = len(self._kept) - KEPT_MAX
        if beyond <= 0:
            return
        for queue, kept in [item for item, _ in zip(self._kept.items(), range(_LOOKED_AT), strict=False)]:
            if beyond <= 0 or (len(self._kept) <= IDLE_KEPT_MAX and now - kept.used_at < IDLE_S):
                return
            if not kept.under_way:
                self.drop(queue)
                beyond -= 1


_LOOK_AGAIN_S: Final = 0.2
"""Between two looks for a queue that is bound, or placed, and that no node has."""
_STARTS_AT_ONCE: Final = 64
"""Producers, for one message."""
_OUTSTANDING_MAX: Final = 100_000
_UNHEARD_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Published:
    """Where a message is now: by queue (names within the virtual host). None: it was unroutable, and dropped."""

    receipts: Mapping[str, Receipt]

    @property
    def routed(self) -> bool:
        return bool(self.receipts)


@dataclass(slots=True)
class _Message:
    routing_key: str
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp: datetime | int | None
    attributes: Attributes | None
    mandatory: bool


@dataclass(slots=True)
class PublisherStats:
    """Messages since the publisher was made. `rerouted`: were refused because bindings had changed, and sent again."""

    published: int = 0
    confirmed: int = 0
    failed: int = 0
    unroutable: int = 0
    rerouted: int = 0
    refreshed: int = 0


@dataclass(slots=True, eq=False)
class Publication:
    """A message that was handed over: await it for where it is, or for what became of it."""

    _message: _Message
    _handed_over_at: float
    _give_up_at: float
    _deliveries: dict[str, tuple[Producer, Delivery]] = field(default_factory=dict)
    _receipts: dict[str, Receipt] = field(default_factory=dict)
    _stale: dict[str, StaleRouting] = field(default_factory=dict)
    _failures: dict[str, MirrorlogError] = field(default_factory=dict)
    _not_routed: MirrorlogError | None = None
    _outcome: Published | MirrorlogError | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _heard: bool = False

    @property
    def _nothing_left(self) -> bool:
        """Whether no queue was asked to store it, as far as that is known."""
        return not (self._deliveries or self._receipts)

    def done(self) -> bool:
        return self._outcome is not None

    def result(self) -> Published:
        """Raises what it ended with; BadRequest before the end."""
        outcome = self._outcome
        if outcome is None:
            raise BadRequest("the message has not ended yet; await it, or look at done() first")
        self._heard = True
        if isinstance(outcome, MirrorlogError):
            raise type(outcome)(outcome.message, **outcome.details)
        return outcome

    def __await__(self) -> Generator[Any, None, Published]:
        self._heard = True
        yield from self.ended().__await__()
        return self.result()

    async def ended(self) -> None:
        """Wait until it has, well or not; an error is not heard by that."""
        if self._outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def _leads_nowhere(self) -> bool:
        """By the routing that it was held against last."""
        return not (self._deliveries or self._receipts or self._stale or self._failures or self._not_routed)

    def _resolve(self, outcome: Published | MirrorlogError) -> None:
        self._outcome = outcome
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Publisher(WithBlock):
    """Publishes to one exchange. Made by `Client.publisher`; use it with `async with`. One that is let go without
    `close` sees to what it was given first; then it goes, with a ResourceWarning."""

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _started = False

    def __init__(
        self,
        client: Cluster,
        exchange: str,
        *,
        virtual_host: str,
        mandatory: bool,
        delivery_timeout_ms: int,
        make_producer: Callable[[str], Producer],
    ) -> None:
        """`make_producer`: of a queue's qualified name. `delivery_timeout_ms`: how long a message is routed anew, and
        its queues are looked for; what is sent until then has as long for its confirm."""
        self.exchange = exchange
        self.virtual_host = virtual_host
        self.stats = PublisherStats()
        self._client = client
        self._mandatory = mandatory
        self._delivery_s = delivery_timeout_ms / 1000
        self._make_producer = make_producer
        self._producers: QueueProducers[Producer] = QueueProducers()
        self._routes = Routes(
            client, virtual_host, closed=_or_gone(WeakMethod(self._nobody_asks)), only_version=not exchange
        )
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
        self._started = True
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

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and neither closed nor abandoned."""
        return self._started and not self._closed

    @property
    def unended(self) -> str:
        """What of the messages handed over has not ended, or has failed and nobody was told; in words, if any."""
        failed = sum(not each._heard for each in list(self._failed))
        return said_of(len(self._outstanding), failed, loop=self._loop)

    async def _end(self) -> None:
        self._closed = True
        for producer in self._producers:
            with suppress(MirrorlogError):  # told already, of its publication
                await producer.close()

    # --- messages ---

    async def publish(
        self,
        routing_key: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool | None = None,
        **asked: Unpack[RecordOptions],
    ) -> Published:
        """Publish one message and await its confirm from every queue that it is routed to.

        `key`: of the record; the routing key, unless it is given. `headers`: also what a headers exchange looks at.
        `priority`, `ttl_ms`, `delay_ms`: as of `Producer.send`, in every queue.
        `mandatory`: raise Unroutable when it leads to no queue, which drops and counts it else; by default as of the
        publisher. Raises Unroutable, Refused (nothing was stored), OutcomeUnknown or BadInput; details `queue`.
        """
        return await (
            await self.hand_over(
                routing_key,
                value,
                key=key,
                headers=headers,
                timestamp=timestamp,
                mandatory=mandatory,
                **asked,
            )
        )

    async def hand_over(
        self,
        routing_key: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool | None = None,
        **asked: Unpack[RecordOptions],
    ) -> Publication:
        """As `publish`, without awaiting the confirm: await the Publication for that. It waits for room only, for the
        first message to a queue, and while messages are routed anew. Messages keep the order of these calls."""
        check_routing_key(routing_key)
        message = _Message(
            routing_key,
            value,
            routing_key.encode() if key is None else key,
            tuple(as_headers(headers)),
            timestamp,
            asked_attributes(**asked),
            self._mandatory if mandatory is None else mandatory,
        )
        handed_over_at = self._loop.time()
        while len(self._outstanding) >= _OUTSTANDING_MAX:
            await self._outstanding[0].ended()  # what leads nowhere takes no window
        async with self._order:
            if self._closed:
                raise ConnectionLost("the publisher is closed")
            publication = Publication(message, handed_over_at, self._loop.time() + self._delivery_s)
            await self._renew_if_old(publication)
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
            if not publication._heard:
                publication.result()

    # --- sending: under `_order`, so that messages keep theirs ---

    async def _send(self, publication: Publication) -> None:
        """To all queues that it leads to and that have not been asked, or asked for another routing."""
        message = publication._message
        queues = [
            queue
            for queue in self._find(message)
            if queue not in publication._receipts and queue not in publication._failures
        ]
        await self._start_missing(queues, publication)
        if publication._nothing_left and any(map(is_outage, publication._failures.values())):
            return  # one of its queues waits for somebody to start a node: nothing of it is stored anywhere
        for queue in queues:
            if queue in publication._stale or queue in publication._failures:
                continue
            try:
                producer = await self._producer(queue, publication)
                if producer is not None:
                    publication._deliveries[queue] = producer, await self._deliver(producer, message)
                    self._producers.sent(queue, self._loop.time())
            except StaleRouting as error:
                publication._stale[queue] = error
            except MirrorlogError as error:
                publication._failures[queue] = error

    async def _start_missing(self, queues: list[str], publication: Publication) -> None:
        """Some at a time: the first message of a wide fanout waits for the slowest node, and not for each in turn."""
        missing = [queue for queue in queues if self._producers.get(queue) is None]
        turns = asyncio.Semaphore(_STARTS_AT_ONCE)

        async def start(queue: str) -> None:
            async with turns:
                try:
                    await self._producer(queue, publication)
                except StaleRouting as error:
                    publication._stale[queue] = error
                except MirrorlogError as error:
                    publication._failures[queue] = error

        await asyncio.gather(*map(start, missing))

    async def _renew_if_old(self, publication: Publication) -> None:
        """Before it is routed. What was routed by an older version, and was refused, goes first."""
        if self.exchange and self._routes.is_old:
            await self._renew(self._routes.table.version, give_up_at=publication._give_up_at)

    async def _renew(self, at_least: int, *, give_up_at: float) -> None:
        """Raises as `_refresh`, NoSuchExchange, AccessRefused."""
        before = self._routes.table.version
        await self._refresh(at_least, give_up_at=give_up_at)
        self._check_exchange()
        if self._routes.table.version != before:
            await self._resend()

    def _find(self, message: _Message) -> tuple[str, ...]:
        if not self.exchange:
            return (message.routing_key,) if message.routing_key else ()
        if self.exchange not in self._routes.table.exchanges:
            return ()  # gone since the start; before that is said, the routing is fetched
        headers = dict(message.headers) if message.headers else {}
        return self._routes.table.route(self.exchange, message.routing_key, headers)

    def _check_exchange(self) -> None:
        """Raises NoSuchExchange, AccessRefused."""
        if self.exchange:
            self._routes.check(self.exchange)

    async def _producer(self, queue: str, publication: Publication) -> Producer | None:
        """Of a queue, started; None when nothing leads there. Raises StaleRouting when that may have changed; why it
        cannot be reached, LogUnavailable when it is there and no node that answers has it, not even in time."""
        while (producer := self._producers.get(queue)) is None:
            made = self._make_producer(qualified(self.virtual_host, queue))
            made.kept = True
            try:
                self._producers.add(queue, await made.start(), self._loop.time())
            except NoSuchQueue:
                made.abandon()
                if not await self._is_there(queue):
                    return None
                if self._is_over(publication):
                    raise LogUnavailable(
                        "it is there, and no node that answers has it; is the node down that does? Nothing was stored"
                    ) from None
                await asyncio.sleep(_LOOK_AGAIN_S)
            except LogUnavailable:  # the cluster says which node is down
                made.abandon()
                # Who names the queue is told at once. Behind a binding others may have the message already: it waits.
                if not self.exchange or publication._nothing_left or self._is_over(publication):
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)
        producer.routed_by(self._routes.stamp)
        return producer

    def _is_over(self, publication: Publication) -> bool:
        """Whether its queues are not looked for any more."""
        return self._closed or self._loop.time() >= publication._give_up_at

    async def _is_there(self, queue: str) -> bool:
        """Of a queue that no node has found. Behind a binding it is, for a queue that is deleted takes its bindings
        along; else the cluster says so. Raises StaleRouting when the binding is perhaps not there any more."""
        if self.exchange:
            version = await self._version()
            if version > self._routes.table.version:
                raise StaleRouting(f"bindings have changed since this was routed to {queue!r}", version=version)
            return True
        key = qualified(self.virtual_host, queue)
        for address in self._client.addresses():
            with suppress(ConnectionLost, RequestTimeout):
                connection = await self._client.reach(address)
                told = await connection.request(GetMetadata(queues=[key]), Metadata, timeout_ms=ASK_MS)
                if key in told.placed or not told.missing:
                    return True
        return False

    async def _version(self) -> int:
        """Of the routing, as some node knows it; what is known here, when none says."""
        for address in self._client.addresses():
            with suppress(ConnectionLost, RequestTimeout, NotCurrent, NoSuchVirtualHost):
                connection = await self._client.reach(address)
                asked = GetRouting(virtual_host=self.virtual_host, to_publish=True, only_version=True)
                return (await connection.request(asked, Routing, timeout_ms=ASK_MS)).version
        return self._routes.table.version

    async def _deliver(self, producer: Producer, message: _Message) -> Delivery:
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
                if publication._stale or self._resending:
                    await self._reroute(publication)
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
        while publication._deliveries:
            queue, under_way = next(iter(publication._deliveries.items()))
            producer, delivery = under_way
            outcome: Receipt | MirrorlogError
            try:
                outcome = await delivery
            except MirrorlogError as error:
                outcome = error
            if publication._deliveries.get(queue) is under_way:  # else another one has heard it, and gone on
                del publication._deliveries[queue]
                self._producers.heard(queue, producer)
                self._note(publication, queue, outcome)

    def _note(self, publication: Publication, queue: str, outcome: Receipt | MirrorlogError) -> None:
        if isinstance(outcome, Receipt):
            publication._receipts[queue] = outcome
        elif isinstance(outcome, StaleRouting):
            publication._stale[queue] = outcome
        elif isinstance(outcome, NoSuchQueue):
            # It was deleted, and its bindings with it; it may have been declared anew, with another id.
            self._producers.drop(queue)
            publication._stale[queue] = StaleRouting(outcome.message, version=self._routes.table.version)
        else:
            publication._failures[queue] = outcome

    async def _reroute(self, publication: Publication) -> None:
        async with self._order:
            if publication._stale:
                await self._resend()

    def _is_doubtful(self, publication: Publication) -> bool:
        """Whether it leads nowhere by a word that is older than it."""
        return (
            bool(self.exchange)
            and self._routes.vouched_at < publication._handed_over_at
            and publication._leads_nowhere()
        )

    async def _look_again(self, publication: Publication) -> None:
        """Ask a node whether that is so. Its answer is one for all that lead nowhere by now, and so is that there is
        none: these are told why."""
        version, give_up_at = self._routes.table.version, publication._give_up_at
        try:
            newest = await self._routes.newest(give_up_at=give_up_at)
            if newest > version:
                async with self._order:
                    await self._renew(max(newest, self._routes.table.version), give_up_at=give_up_at)
            self._check_exchange()
        except MirrorlogError as error:
            for each in self._outstanding:
                if each._leads_nowhere():
                    each._not_routed = error

    async def _resend(self) -> None:
        """Nothing leaves until all that is on its way has ended and what was refused, or led nowhere, is routed again,
        in its order. Under `_order`."""
        self._resending = True
        try:
            for publication in list(self._outstanding):
                await self._hear(publication)
            stale = [publication for publication in self._outstanding if publication._stale]
            if stale and not await self._renewed_for(stale):
                return
            for publication in list(self._outstanding):
                if publication._stale:
                    await self._send_again(publication)
                elif self.exchange and publication._leads_nowhere():
                    await self._send_at_last(publication)
        finally:
            self._resending = False

    async def _renewed_for(self, stale: list[Publication]) -> bool:
        """Whether the routing is one that no node has refused them by; else they have ended."""
        if not self.exchange:
            return True
        newest = max(_version_of(error) for each in stale for error in each._stale.values())
        try:
            until = max(publication._give_up_at for publication in stale)
            await self._refresh(max(newest, self._routes.table.version), give_up_at=until)
            self._check_exchange()
        except MirrorlogError as error:
            for publication in stale:
                publication._failures.update(dict.fromkeys(publication._stale, error))
                publication._stale = {}
            return False
        return True

    async def _send_again(self, publication: Publication) -> None:
        """Unless it is over: bindings that change without an end hold nobody for ever."""
        refused, publication._stale = publication._stale, {}
        if self._loop.time() >= publication._give_up_at:
            publication._failures.update(refused)
            return
        self.stats.rerouted += 1
        await self._send(publication)

    async def _send_at_last(self, publication: Publication) -> None:
        """One that led nowhere, if it leads anywhere now: whatever its deadline, for it has not been sent before."""
        await self._send(publication)
        self.stats.rerouted += not publication._leads_nowhere()

    def _end_one(self, publication: Publication) -> None:
        receipts, failures = publication._receipts, publication._failures
        if failures:
            self._fail(publication, _whole(receipts, failures))
        elif publication._not_routed is not None:
            self._fail(publication, publication._not_routed)
        elif receipts or not publication._message.mandatory:
            self.stats.confirmed += bool(receipts)
            self.stats.unroutable += not receipts
            publication._resolve(Published(receipts))
        else:
            self.stats.unroutable += 1
            key = publication._message.routing_key
            self._fail(
                publication,
                Unroutable(
                    f"no binding of exchange {self.exchange!r} leads key {key!r} to a queue; nothing was stored",
                    exchange=self.exchange,
                    key=key,
                ),
            )

    def _fail(self, publication: Publication, error: MirrorlogError) -> None:
        self.stats.failed += 1
        publication._resolve(error)
        if not publication._heard:
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


def _version_of(error: StaleRouting) -> int:
    version = error.details.get("version", 0)
    return version if isinstance(version, int) else 0


def _doubt(error: MirrorlogError) -> int:
    """Which of several a message ends with: the least first."""
    if isinstance(error, OutcomeUnknown):
        return 0
    return 2 if isinstance(error, SentToDeadLetters) else 1


def _whole(receipts: Mapping[str, Receipt], failures: Mapping[str, MirrorlogError]) -> MirrorlogError:
    """What a message ends with that some queue did not confirm: what may be stored somewhere is not refused."""
    queue, error = min(failures.items(), key=lambda item: _doubt(item[1]))
    details = {**error.details, "queue": queue, "confirmed": list(receipts)}
    sent_on = [f"the dead letters of {each}" for each in failures if isinstance(failures[each], SentToDeadLetters)]
    there = [*receipts, *sent_on]
    if there and not isinstance(error, OutcomeUnknown | SentToDeadLetters):
        return OutcomeUnknown(f"stored in {', '.join(there)}, and not in queue {queue!r}: {error.message}", **details)
    return type(error)(f"queue {queue!r}: {error.message}", **details)
