"""Publisher: messages to an exchange. Routes here, at the edge, and publishes to each queue under its own sequence.

It holds the exchanges and bindings of its virtual host at one version, and a producer for each queue that it has met.
Every batch says by which version it was routed. A node that knows a newer one refuses it: then nothing more leaves, all
that is on its way ends, what has changed of the routing is fetched, and what was refused is routed again, in the order
in which it was published. So order is kept in every queue, and a publish behind the answer to a bind meets the binding.
The same is done when a newer version is met in any other way. The default exchange has no bindings: it needs none of
this.

A publish is confirmed when every queue has it. If one refuses it while another has it, it is neither stored nor
refused: that is OutcomeUnknown, naming the queues. What leads to no queue is unroutable, and that is only decided by a
routing that a node has vouched for within the last second. A queue that is bound and cannot be found is not passed
over: its node may be down. It is looked for until the message's deadline; then that is said, naming it.

What a batch says of its version are 16 bits, which come round. So a version is used for ten seconds only, until a node
has vouched for it anew: within these, and the time that a batch may be under way, no cluster makes half as many
changes.

Rejected: exchanges on the node, which would have to look into every record; one batch for several queues, which would
tie their order and their sequences together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from mirrorlog.client.batching import Headers, as_headers
from mirrorlog.client.deliveries import Delivery
from mirrorlog.client.producer import Producer
from mirrorlog.client.receipts import Receipt
from mirrorlog.commitlog.attributes import NO_ATTRIBUTES, Asked, Attributes, asked_attributes
from mirrorlog.commitlog.body import Header
from mirrorlog.errors import (
    AccessRefused,
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
    StaleRouting,
    Unroutable,
)
from mirrorlog.wire.messages import GetMetadata, GetRouting, Metadata, Routing
from mirrorlog.wire.names import check_routing_key, qualified
from mirrorlog.wire.routing import VERSION_FIRST, RoutingTable, no_such_exchange, stamp

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

VOUCHED_S: Final = 1.0
"""How old a node's word may be by which a message is called unroutable."""
FRESH_S: Final = 10.0
"""How old it may be when anything is routed by it."""
_ASK_MS: Final = 2_000
_REFRESH_S: Final = 10.0
"""How long nodes may take to tell the routing that one of them knows already."""
_RETRY_S: Final = 0.02
_LOOK_AGAIN_S: Final = 0.2
"""Between two looks for a queue that is bound, or placed, and that no node has."""
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
    _give_up_at: float
    _deliveries: dict[str, Delivery] = field(default_factory=dict)
    _receipts: dict[str, Receipt] = field(default_factory=dict)
    _stale: dict[str, StaleRouting] = field(default_factory=dict)
    _failures: dict[str, MirrorlogError] = field(default_factory=dict)
    _outcome: Published | MirrorlogError | None = None
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _heard: bool = False

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

    def _resolve(self, outcome: Published | MirrorlogError) -> None:
        self._outcome = outcome
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Publisher:
    """Publishes to one exchange. Made by `Client.publisher`; use it with `async with`."""

    def __init__(
        self,
        client: Client,
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
        self._producers: dict[str, Producer] = {}
        self._table = RoutingTable({}, [])
        self._stamp = 0
        self._vouched_at = 0.0
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
        return self

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
        for producer in self._producers.values():
            producer.abandon()

    async def _end(self) -> None:
        self._closed = True
        for producer in self._producers.values():
            with suppress(MirrorlogError):  # told already, of its publication
                await producer.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            with suppress(MirrorlogError):  # what the block ended with is the one to tell
                await self.close()
        else:
            self.abandon()

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
        **asked: Unpack[Asked],
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
        **asked: Unpack[Asked],
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
        while len(self._outstanding) >= _OUTSTANDING_MAX:
            await self._outstanding[0].ended()  # what leads nowhere takes no window
        async with self._order:
            if self._closed:
                raise ConnectionLost("the publisher is closed")
            publication = Publication(message, self._loop.time() + self._delivery_s)
            await self._renew_if_old(publication)
            await self._send(publication)
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
        for queue in self._find(message):
            if queue in publication._receipts or queue in publication._failures:
                continue
            try:
                producer = await self._producer(queue, publication)
                if producer is not None:
                    publication._deliveries[queue] = await self._deliver(producer, message)
            except StaleRouting as error:
                publication._stale[queue] = error
            except MirrorlogError as error:
                publication._failures[queue] = error

    async def _renew_if_old(self, publication: Publication) -> None:
        """Before it is routed. What was routed by an older version, and was refused, goes first."""
        if not self.exchange:
            return
        age = self._loop.time() - self._vouched_at
        if age <= VOUCHED_S or (age <= FRESH_S and self._find(publication._message)):
            return
        before = self._table.version
        await self._refresh(before, give_up_at=publication._give_up_at)
        self._check_exchange()
        if self._table.version != before:
            await self._resend()

    def _find(self, message: _Message) -> tuple[str, ...]:
        if not self.exchange:
            return (message.routing_key,) if message.routing_key else ()
        if self.exchange not in self._table.exchanges:
            return ()  # gone since the start; before that is said, the routing is fetched
        headers = dict(message.headers) if message.headers else {}
        return self._table.route(self.exchange, message.routing_key, headers)

    def _check_exchange(self) -> None:
        """Raises NoSuchExchange, AccessRefused."""
        if not self.exchange:
            return
        exchange = self._table.exchanges.get(self.exchange)
        if exchange is None:
            raise no_such_exchange(self.exchange)
        if exchange.internal:
            raise AccessRefused(f"exchange {self.exchange!r} is internal: only other exchanges give it messages")

    async def _producer(self, queue: str, publication: Publication) -> Producer | None:
        """Of a queue, started; None when nothing leads there. Raises StaleRouting when that may have changed; why it
        cannot be reached, LogUnavailable when it is there and no node that answers has it, not even in time."""
        while (producer := self._producers.get(queue)) is None:
            made = self._make_producer(qualified(self.virtual_host, queue))
            try:
                self._producers[queue] = await made.start()
            except NoSuchQueue:
                made.abandon()
                if not await self._is_there(queue):
                    return None
                if self._closed or self._loop.time() >= publication._give_up_at:
                    raise LogUnavailable(
                        "it is there, and no node that answers has it; is the node down that does? Nothing was stored"
                    ) from None
                await asyncio.sleep(_LOOK_AGAIN_S)
        producer.routed_by(self._stamp)
        return producer

    async def _is_there(self, queue: str) -> bool:
        """Of a queue that no node has found. Behind a binding it is, for a queue that is deleted takes its bindings
        along; else the cluster says so. Raises StaleRouting when the binding is perhaps not there any more."""
        if self.exchange:
            version = await self._version()
            if version > self._table.version:
                raise StaleRouting(f"bindings have changed since this was routed to {queue!r}", version=version)
            return True
        key = qualified(self.virtual_host, queue)
        for address in self._client.addresses():
            with suppress(ConnectionLost, RequestTimeout):
                connection = await self._client.reach(address)
                told = await connection.request(GetMetadata(queues=[key]), Metadata, timeout_ms=_ASK_MS)
                if key in told.placed or not told.missing:
                    return True
        return False

    async def _version(self) -> int:
        """Of the routing, as some node knows it; what is known here, when none says."""
        for address in self._client.addresses():
            with suppress(ConnectionLost, RequestTimeout, NotCurrent, NoSuchVirtualHost):
                connection = await self._client.reach(address)
                asked = GetRouting(virtual_host=self.virtual_host, to_publish=True, only_version=True)
                return (await connection.request(asked, Routing, timeout_ms=_ASK_MS)).version
        return self._table.version

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
            queue, delivery = next(iter(publication._deliveries.items()))
            outcome: Receipt | MirrorlogError
            try:
                outcome = await delivery
            except MirrorlogError as error:
                outcome = error
            if publication._deliveries.get(queue) is delivery:  # else another one has heard it, and gone on
                del publication._deliveries[queue]
                self._note(publication, queue, outcome)

    def _note(self, publication: Publication, queue: str, outcome: Receipt | MirrorlogError) -> None:
        if isinstance(outcome, Receipt):
            publication._receipts[queue] = outcome
        elif isinstance(outcome, StaleRouting):
            publication._stale[queue] = outcome
        elif isinstance(outcome, NoSuchQueue):
            # It was deleted, and its bindings with it; it may have been declared anew, with another id.
            if (producer := self._producers.pop(queue, None)) is not None:
                producer.abandon()
            publication._stale[queue] = StaleRouting(outcome.message, version=self._table.version)
        else:
            publication._failures[queue] = outcome

    async def _reroute(self, publication: Publication) -> None:
        async with self._order:
            if publication._stale:
                await self._resend()

    async def _resend(self) -> None:
        """Nothing leaves until all that is on its way has ended and what was refused is sent again, in its order. Under
        `_order`."""
        self._resending = True
        try:
            for publication in list(self._outstanding):
                await self._hear(publication)
            stale = [publication for publication in self._outstanding if publication._stale]
            if stale and await self._renewed_for(stale):
                for publication in stale:
                    await self._send_again(publication)
        finally:
            self._resending = False

    async def _renewed_for(self, stale: list[Publication]) -> bool:
        """Whether the routing is one that no node has refused them by; else they have ended."""
        if not self.exchange:
            return True
        newest = max(_version_of(error) for each in stale for error in each._stale.values())
        try:
            until = max(publication._give_up_at for publication in stale)
            await self._refresh(max(newest, self._table.version), give_up_at=until)
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

    def _end_one(self, publication: Publication) -> None:
        receipts, failures = publication._receipts, publication._failures
        if failures:
            self._fail(publication, _whole(receipts, failures))
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
        give_up_at = min(give_up_at, self._loop.time() + _REFRESH_S)
        while True:
            failures: list[MirrorlogError] = []
            for address in self._client.addresses():
                try:
                    if await self._learn(address, at_least):
                        return
                except (ConnectionLost, RequestTimeout, NotCurrent, NoSuchVirtualHost) as error:
                    failures.append(error)
            told = [error for error in failures if not isinstance(error, ConnectionLost)]
            if told and all(isinstance(error, NoSuchVirtualHost) for error in told):
                raise told[0]
            if self._closed or self._client.closed or self._loop.time() >= give_up_at:
                raise failures[-1] if failures else self._not_known(at_least)
            await asyncio.sleep(_RETRY_S)

    def _not_known(self, version: int) -> RequestTimeout:
        host = self.virtual_host
        return RequestTimeout(f"no node that answers knows the routing of virtual host {host} at version {version}")

    async def _learn(self, address: str, at_least: int) -> bool:
        """Whether that node knows enough. Raises what it answers, ConnectionLost, RequestTimeout."""
        asked_at = self._loop.time()
        connection = await self._client.reach(address)
        table = self._table
        asked = GetRouting(
            virtual_host=self.virtual_host, version=table.version, to_publish=True, only_version=not self.exchange
        )
        answer = await connection.request(asked, Routing, timeout_ms=_ASK_MS)
        if answer.version < at_least:
            return False
        if answer.changed:
            if answer.since and answer.since == table.version:
                table.change(
                    answer.version,
                    exchanges=answer.exchanges,
                    deleted=answer.deleted,
                    bindings=answer.bindings,
                    unbound=answer.unbound,
                )
            else:
                self._table = RoutingTable(answer.exchanges, answer.bindings, version=answer.version)
            self._stamp = stamp(answer.version)
        self._vouched_at = asked_at
        return True


def _version_of(error: StaleRouting) -> int:
    version = error.details.get("version", 0)
    return version if isinstance(version, int) else 0


def _whole(receipts: Mapping[str, Receipt], failures: Mapping[str, MirrorlogError]) -> MirrorlogError:
    """What a message ends with that some queue did not confirm: what may be stored somewhere is not refused."""
    by_unknown = sorted(failures.items(), key=lambda item: not isinstance(item[1], OutcomeUnknown))
    queue, error = by_unknown[0]
    details = {**error.details, "queue": queue, "confirmed": list(receipts)}
    if receipts and not isinstance(error, OutcomeUnknown):
        there = ", ".join(receipts)
        return OutcomeUnknown(f"stored in {there}, and not in queue {queue!r}: {error.message}", **details)
    return type(error)(f"queue {queue!r}: {error.message}", **details)
