"""Consumers of a channel: each a subscription, whose records leave as deliveries; and single ones by `get`. Thin.

What is with the client and not acknowledged is known by its tag (`tags`): a subscription's grant and a queue offset, or
a lease. A consumer that is cancelled leaves what it has given out with the channel. Whoever has a record keeps it as
long as its connection lives: its time is begun anew again and again (`extend`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

from mirrorlog.client import Client
from mirrorlog.client.consumer.records import ConsumedRecord
from mirrorlog.client.subscription.leases import Leased
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.doors.amqp.codec import cancel, deliver, get_ok, short
from mirrorlog.doors.amqp.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    AmqpError,
    not_to_be_used,
)
from mirrorlog.doors.amqp.message import REPLY_TO, outgoing
from mirrorlog.doors.amqp.tags import DeliveryTags, UnknownTag
from mirrorlog.doors.amqp.topology import AmqpTopology
from mirrorlog.errors import ExclusiveTaken, MirrorlogError, NoSuchQueue, QueueExclusive
from mirrorlog.wire.frames import How
from mirrorlog.wire.names import qualified

logger = logging.getLogger(__name__)

LEASE_MS: Final = 60_000
"""Of what `get` gives out; extended while the connection lives."""
EXTEND_S: Final = 20.0
FIRST_S: Final = 0.01
"""How long a consumer's answer waits for the first that it gets."""
RECORDS_MAX: Final = 1_000
"""Delivered before it is seen whether the client takes them."""
_PRIORITY_MAX: Final = 2**31 - 1
_NAME_CHARS_MAX: Final = 128


class Output(Protocol):
    """The connection that deliveries leave by."""

    @property
    def frame_max(self) -> int: ...

    def write(self, frames: bytes) -> None: ...

    async def writable(self) -> None:
        """Until the client takes what is sent."""


class ConsumingSide(Output, Protocol):
    """The same, with whom it is asked for. `wants_cancels`: the client is told of consumers that end;
    `prefetch_of_living`: what it says of a prefetch it means of consumers that are there, too."""

    virtual_host: str
    wants_cancels: bool
    prefetch_of_living: bool

    @property
    def client(self) -> Client: ...

    @property
    def topology(self) -> AmqpTopology: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, beside."""


class HeldGrant(NamedTuple):
    """A delivery that is not acknowledged: of a subscription's grant."""

    consumer: AmqpConsumer
    granted: Granted
    offset: int


class HeldLease(NamedTuple):
    """The same, of a lease."""

    leased: Leased


Unsettled = HeldGrant | HeldLease


class AmqpConsumer:
    """One consumer. `ended`: is called when it ends by itself."""

    def __init__(
        self,
        tag: str,
        queue: str,
        subscription: Subscription,
        *,
        no_ack: bool,
        channel: int,
        tags: DeliveryTags[Unsettled],
        output: Output,
        ended: Callable[[AmqpConsumer, MirrorlogError], None],
    ) -> None:
        self.tag = tag
        self.queue = queue
        self.subscription = subscription
        self.no_ack = no_ack
        self._channel = channel
        self._tags = tags
        self._output = output
        self._ended = ended
        self._short_tag = short(tag.encode())
        self._name = queue.encode()
        self._task: asyncio.Task[None] | None = None

    async def begin(self, answer: bytes) -> None:
        """Deliver from now on, behind the answer."""
        first = asyncio.ensure_future(self._next())
        await asyncio.wait({first}, timeout=FIRST_S)
        self._output.write(answer)
        self._task = asyncio.ensure_future(self._run(first))

    async def stop(self, *, requeue: bool) -> None:
        """Nothing is delivered any more. `requeue`: what it has given out, too."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(MirrorlogError):
            await self.subscription.close(requeue=requeue)

    async def _next(self) -> list[tuple[Granted, ConsumedRecord]]:
        """Waits for a record; with it come those that are there: who publishes one by one has batches of one."""
        subscription = self.subscription
        return await subscription.read_on(partial(subscription.reader.records, RECORDS_MAX))

    async def _run(self, first: asyncio.Future[list[tuple[Granted, ConsumedRecord]]]) -> None:
        try:
            found = await first
            while True:
                self._output.write(b"".join([self._delivery(granted, record) for granted, record in found]))
                await self._output.writable()
                found = await self._next()
        except MirrorlogError as error:
            self._ended(self, error)

    def _delivery(self, granted: Granted, record: ConsumedRecord) -> bytes:
        _, offset, value, key, headers, _, _, attributes = record
        tags = self._tags
        tag = tags.next() if self.no_ack else tags.add(HeldGrant(self, granted, offset))
        route, properties = outgoing(headers, key, self._name, attributes)
        return deliver(
            self._channel, self._short_tag, tag, granted.redelivered,
            route=route, properties=properties, body=value or b"", frame_max=self._output.frame_max,
        )  # fmt: skip


class Consuming:
    """What a channel consumes, and has not acknowledged."""

    def __init__(self, connection: ConsumingSide, number: int) -> None:
        # The queue that answers come to, once they are consumed.
        self.replies: str | None = None
        # Of consumers to come; and of all of them together, which is shared out among them.
        self._prefetch = 0
        self._shared = 0
        self._connection = connection
        self._number = number
        self._tags: DeliveryTags[Unsettled] = DeliveryTags()
        self._consumers: dict[str, AmqpConsumer] = {}
        # Cancelled ones, with what they have given out.
        self._former: list[AmqpConsumer] = []
        self._leases: set[asyncio.Task[None]] = set()
        self._over = False

    # --- consumers ---

    async def qos(self, prefetch: int, *, shared: bool) -> None:
        """So many are unacknowledged at most, of each consumer to come; or, `shared`, of all together. py-amqp says the
        former and means those that are there as well: so it is done to its."""
        if shared:
            self._shared = prefetch
            await self._share()
            return
        self._prefetch = prefetch
        if self._connection.prefetch_of_living and not self._shared:
            for consumer in self._acknowledging():
                await consumer.subscription.set_prefetch(prefetch)

    async def consume(self, queue: str, tag: str, *, no_ack: bool, exclusive: bool, arguments: dict[str, Any]) -> None:
        """Deliver from now on, behind the answer. Raises AmqpError, MirrorlogError."""
        if tag in self._consumers:
            raise AmqpError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int):
            raise AmqpError(PRECONDITION_FAILED, "invalid arg 'x-priority' for consumer: it is a number")
        connection, host = self._connection, self._connection.virtual_host
        if queue == REPLY_TO:
            queue = await self._replies(no_ack=no_ack)
        subscription = connection.client.subscribe(
            qualified(host, queue),
            prefetch=0 if no_ack else self._share_of(1) or self._prefetch,
            auto_ack=no_ack,
            exclusive=exclusive,
            priority=max(-_PRIORITY_MAX, min(priority, _PRIORITY_MAX)),
            name=tag[:_NAME_CHARS_MAX],
            cancel_on_failover=arguments.get("x-cancel-on-ha-failover") is True,
        )
        try:
            await subscription.start()
        except (NoSuchQueue, QueueExclusive) as error:
            raise not_to_be_used(error, queue, host) from None
        except ExclusiveTaken:
            raise AmqpError(ACCESS_REFUSED, f"queue '{queue}' in vhost '{host}' in exclusive use") from None
        if self._over:
            await subscription.close()
            return
        self._consumers[tag] = AmqpConsumer(
            tag, queue, subscription, no_ack=no_ack, channel=self._number, tags=self._tags, output=connection,
            ended=self._ended,
        )  # fmt: skip
        await self._share()

    async def _replies(self, *, no_ack: bool) -> str:
        """Direct reply-to. Raises AmqpError."""
        if self.replies is not None:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer already set")
        if not no_ack:
            raise AmqpError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
        found = await self._connection.topology.declare_queue(
            "", durable=False, exclusive=True, auto_delete=True, arguments={}
        )
        self.replies = found.name
        return found.name

    async def begin(self, tag: str, answer: bytes) -> None:
        """With the answer that the client waits for, or none. What is there already comes with it: there are programs
        that take a queue for empty when nothing has come right behind."""
        consumer = self._consumers.get(tag)
        if consumer is not None:
            await consumer.begin(answer)

    async def cancel(self, tag: str) -> None:
        """By the client: what it has it keeps."""
        if (consumer := self._consumers.pop(tag, None)) is not None:
            if consumer.queue == self.replies:
                self.replies = None
            await consumer.stop(requeue=False)
            self._former.append(consumer)
            await self._share()

    async def queue_goes(self, queue: str) -> bytes:
        """It is deleted here; what its consumers are told behind the answer to that, for whoever waits for the answer
        must not meet it."""
        gone = [each for each in self._consumers.values() if each.queue == queue]
        for consumer in gone:
            del self._consumers[consumer.tag]
            await consumer.stop(requeue=False)
            self._former.append(consumer)
        told = gone if self._connection.wants_cancels else []
        return b"".join(cancel(self._number, each.tag.encode()) for each in told)

    async def get(self, queue: str, *, no_ack: bool) -> bytes | None:
        """The frames of one message; None where there is none. Raises AmqpError, MirrorlogError."""
        connection, host = self._connection, self._connection.virtual_host
        try:
            found = await connection.client.lease(qualified(host, queue), max_records=1, lease_ms=LEASE_MS)
            if not found:
                return None
            record = found[0]
            if no_ack:
                await record.ack()
        except (NoSuchQueue, QueueExclusive) as error:
            raise not_to_be_used(error, queue, host) from None
        left = max(0, record.ready)
        route, properties = outgoing(record.headers, record.key, queue.encode(), record.attributes)
        tag = self._tags.next() if no_ack else self._tags.add(HeldLease(record))
        return get_ok(
            self._number, tag, record.redelivered,
            route=route, left=left, properties=properties, body=record.value or b"", frame_max=connection.frame_max,
        )  # fmt: skip

    # --- settling ---

    def settle(self, tag: int, how: How, *, multiple: bool) -> None:
        """Raises AmqpError for what is not unacknowledged."""
        try:
            found = self._tags.settle(tag, multiple)
        except UnknownTag as error:
            raise AmqpError(PRECONDITION_FAILED, str(error)) from None
        self.settle_held(found, how)

    def take(self, tag: int, *, multiple: bool) -> list[tuple[int, Unsettled]]:
        """What will be settled by that, with its tags. Raises AmqpError."""
        try:
            return self._tags.take(tag, multiple)
        except UnknownTag as error:
            raise AmqpError(PRECONDITION_FAILED, str(error)) from None

    def restore(self, deliveries: Iterable[tuple[int, Unsettled]]) -> None:
        """What was taken is not settled after all."""
        self._tags.restore(deliveries)

    def settle_held(self, deliveries: Sequence[Unsettled], how: How) -> None:
        """Without waiting: neighbours as one."""
        at, count = 0, len(deliveries)
        while at < count:
            first = deliveries[at]
            at += 1
            if type(first) is HeldLease:
                self._settle_lease(first.leased, how)
                continue
            consumer, granted, offset = cast(HeldGrant, first)
            following = offset + 1
            while at < count:
                each = deliveries[at]
                if type(each) is not HeldGrant or each.granted is not granted or each.offset != following:
                    break
                following += 1
                at += 1
            with contextlib.suppress(MirrorlogError):  # it is nobody's any more, or its queue is gone
                consumer.subscription.settle_nowait(granted, offset, following, how)

    def recover(self) -> None:
        """All that is unacknowledged comes again, to anybody."""
        self.settle_held(self._tags.take_all(), How.RETURN)

    async def flush(self) -> None:
        """What was settled has ended."""
        for consumer in [*self._consumers.values(), *self._former]:
            if not consumer.no_ack:
                with contextlib.suppress(MirrorlogError):
                    await consumer.subscription.flush()
        if self._leases:
            await asyncio.wait(set(self._leases))

    def extend(self) -> None:
        """Begin the time of all that is unacknowledged anew: its client lives."""
        self.settle_held(list(self._tags), How.EXTEND)

    async def release(self) -> None:
        """Nothing is delivered any more, and what is unacknowledged goes back."""
        self._over = True
        consumers, self._consumers = list(self._consumers.values()), {}
        former, self._former = self._former, []
        held = self._tags.take_all()
        rest = [each for each in held if type(each) is HeldLease or each.consumer in former]  # type: ignore[union-attr]
        with contextlib.suppress(MirrorlogError):
            self.settle_held(rest, How.RETURN)
        await asyncio.gather(*(each.stop(requeue=True) for each in consumers))
        for consumer in former:
            with contextlib.suppress(MirrorlogError):
                await consumer.subscription.flush()
        if self._leases:
            await asyncio.wait(set(self._leases))

    # --- inside ---

    def _acknowledging(self) -> list[AmqpConsumer]:
        return [each for each in self._consumers.values() if not each.no_ack]

    def _share_of(self, more: int = 0) -> int:
        """What one has of what all share, with so many more; 0 where they share nothing. Each has one at least."""
        count = len(self._acknowledging()) + more
        return max(1, self._shared // count) if self._shared and count else 0

    async def _share(self) -> None:
        if share := self._share_of():
            for consumer in self._acknowledging():
                with contextlib.suppress(MirrorlogError):  # it has ended, or begins anew with it
                    await consumer.subscription.set_prefetch(min(share, self._prefetch or share))

    def _settle_lease(self, leased: Leased, how: How) -> None:
        task = asyncio.ensure_future(_settled(leased, how))
        self._leases.add(task)
        task.add_done_callback(self._leases.discard)

    def _ended(self, consumer: AmqpConsumer, error: MirrorlogError) -> None:
        """By itself: its queue is gone, or it has another master and the client is to be told so."""
        if self._consumers.get(consumer.tag) is consumer:
            del self._consumers[consumer.tag]
            logger.info("consumer_cancelled queue=%r tag=%r reason=%r", consumer.queue, consumer.tag, error.message)
            self._connection.spawn(self._cancelled(consumer))

    async def _cancelled(self, consumer: AmqpConsumer) -> None:
        await consumer.stop(requeue=False)
        self._former.append(consumer)
        if self._connection.wants_cancels and not self._over:
            self._connection.write(cancel(self._number, consumer.tag.encode()))


async def _settled(leased: Leased, how: How) -> None:
    with contextlib.suppress(MirrorlogError):  # then it comes again
        if how == How.ACK:
            await leased.ack()
        elif how == How.EXTEND:
            await leased.extend(LEASE_MS)
        else:
            await leased.nack(how != How.DEAD)
