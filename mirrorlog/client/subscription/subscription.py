"""Subscription: records of an acking group, pushed by the queue's master, each to be settled by its user.

    async with client.subscribe("flights") as subscription:
        async for delivery in subscription:
            handle(delivery.value)
            delivery.ack_nowait()

Whoever can handle many at once takes `batches()`: as much of a batch as was granted, as columns, settled as one.

When the master goes, or the way to it, the subscription finds the queue's new master and goes on there by itself: what
was settled and not answered is told again, what was given out and not settled comes again, flagged redelivered. An ack
that was answered at level `all` holds: that record never comes again. Whoever must know of it (RabbitMQ's
`x-cancel-on-ha-failover`) asks for `cancel_on_failover`.

Its parts: `resumption` (whether it goes on), `unacked` (what there is to give out and to settle), `settlements` (what
becomes of what is settled) are pure; `session`, `settlement`, `grant_reader` and `grant_buffer` talk to nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeVar
from weakref import ref

import msgspec

from mirrorlog import versions
from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.buffers import BufferPool
from mirrorlog.client.connection.cluster import ClusterClient, check_software
from mirrorlog.client.connection.liveness import StallWatch
from mirrorlog.client.connection.outages import read_on
from mirrorlog.client.connection.queue_metadata import FoundQueue, check_same
from mirrorlog.client.connection.unclosed import on_loop, warn_unclosed
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import GrantedRecord
from mirrorlog.client.options import check_delay, check_subscribing, check_timeout
from mirrorlog.client.properties import SendOptions
from mirrorlog.client.serializers import Deserializer
from mirrorlog.client.subscription.delivered import Delivered, DeliveredBatch
from mirrorlog.client.subscription.grant_buffer import GrantedBytes, Sources
from mirrorlog.client.subscription.grant_reader import GrantReader
from mirrorlog.client.subscription.resumption import Resumption
from mirrorlog.client.subscription.session import GrantSession
from mirrorlog.client.subscription.settlement import SettlementSender
from mirrorlog.client.subscription.standing import NOT_STARTED, SubscriptionState, run
from mirrorlog.client.subscription.unacked import Granted, Unacked
from mirrorlog.errors import BadRequest, Closed, ConnectionLost, MirrorlogError, NoSuchSubscription
from mirrorlog.wire.frames import Grant, How
from mirrorlog.wire.messages.groups import Subscribe
from mirrorlog.wire.messages.queues import QueueInfo

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FETCH_BYTES_MIN: Final = 64 * 1024
_KEPT_BYTES: Final = 16 * 1024 * 1024
_CREDIT: Final = ("prefetch_records", "prefetch_bytes", "paused")
_PREFETCH: Final = "a prefetch that changes"
_INTERNAL: Final = (
    *("settle", "settle_nowait", "answer", "began", "granted", "lost", "room", "wake", "read_on", "subscribed_anew"),
    *("origin", "session", "client", "reader", "unacked", "kept", "deserializer"),
)


@checked(internal=_INTERNAL)
class Subscription:
    """Of one queue's group. Made by `Client.subscribe`; use it with `async with`. Several tasks may read from it: each
    record goes to one of them. One that is let go without `close` is abandoned, with a ResourceWarning.

    `client`: whose it is; `reader`: what it gives out, each with its grant; `unacked`: what it has."""

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _task: asyncio.Task[None] | None = None

    def __init__(
        self,
        client: ClusterClient,
        message: Subscribe,
        *,
        make_consumer: Callable[..., Consumer],
        reply: Callable[..., Awaitable[None]],
        level: int,
        settle_timeout_ms: int,
        cancel_on_failover: bool,
        read_from: str,
        outage_timeout_ms: int | None = None,
        retry_delays_ms: Sequence[int] = (),
        deserializer: Deserializer | None = None,
    ) -> None:
        """Use `Client.subscribe`."""
        check_subscribing(
            prefetch=message.prefetch_records,
            prefetch_bytes=message.prefetch_bytes,
            priority=message.priority,
            settle_timeout_ms=settle_timeout_ms,
        )
        self.queue = message.queue
        self.group = message.group
        self.client = client
        self.deserializer = deserializer
        self._message = message
        self._reply = reply
        self._level = level
        self._settle_timeout_s = settle_timeout_ms / 1000
        self._cancel_on_failover = cancel_on_failover
        if outage_timeout_ms is not None:
            check_timeout("outage_timeout_ms", outage_timeout_ms)
        self._outage_timeout_ms = outage_timeout_ms
        for delay_ms in retry_delays_ms:
            check_delay(delay_ms)
        self._retry_delays_ms = tuple(retry_delays_ms)
        self._buffers = BufferPool()
        fetch_bytes = max(message.prefetch_bytes, _FETCH_BYTES_MIN) if message.prefetch_bytes else 2**30
        kept_bytes = 0
        if message.ordered_by:  # scattered: no more than the batch, which is kept for its other records
            fetch_bytes, kept_bytes = _FETCH_BYTES_MIN, message.prefetch_bytes or _KEPT_BYTES
        self._bytes = GrantedBytes(
            make_consumer, message.queue, read_from=read_from, fetch_bytes=fetch_bytes, kept_bytes=kept_bytes
        )
        self.unacked = Unacked()
        self._standing = SubscriptionState(client)
        self.reader = GrantReader(
            self.queue, self._standing, self.unacked, self._bytes,
            auto_ack=message.auto_ack, prefetch=message.prefetch_records, prefetch_bytes=message.prefetch_bytes,
        )  # fmt: skip
        # The session before, whose place at its node the next one takes; whether it was ever granted anything.
        self._former: GrantSession | None = None
        self._was_granted = False
        self._found: QueueInfo | None = None
        # Made by `start`: it needs the loop.
        self._settling: SettlementSender | None = None

    # --- life ---

    async def start(self) -> Self:
        """Find the queue's master and subscribe there. Raises NoSuchQueue, NoSuchGroup, BadRequest, ExclusiveTaken,
        ConnectionLost or NotMaster when there is none within `request_timeout_ms`."""
        if self._standing.resumption is not None:
            raise BadRequest("a subscription is started once; make another one")
        loop = asyncio.get_running_loop()
        resumption = self._standing.resumption = Resumption(
            now=loop.time(),
            patience_s=self.client.request_timeout_ms / 1000,
            cancel_on_failover=self._cancel_on_failover,
        )
        self._settling = SettlementSender(
            self.unacked,
            level=self._level,
            timeout_s=self._settle_timeout_s,
            auto_ack=self._message.auto_ack,
            changed=self._standing.changed,
        )
        self._task = asyncio.ensure_future(run(ref(self), resumption, self._settling))
        try:
            while self._standing.session is None:
                self._standing.check()
                await self._standing.change()
        except BaseException:
            self.abandon()
            raise
        return self

    async def close(self, *, requeue: bool = True) -> None:
        """Have nothing more given out, and wait until what was settled has ended. Idempotent.

        What was not given out yet goes back as if it had not been seen. What was, and is not settled, goes back
        counted, with `requeue`; without, it stays with its user, who may settle it as long as the client is open and
        this connection lasts. Raises the first error of a settlement that nobody has heard of.
        """
        settling = self._settling
        if self._standing.closed or settling is None:
            self._standing.closed = True
            return
        self._standing.closed = True
        self._standing.changed()
        try:
            await settling.drained()
            await self._stop(settling, requeue=requeue)
        finally:
            self._end(Closed("the subscription is closed"), leaves=requeue)
            await self._bytes.close()
        if (failure := settling.take_failure()) is not None:
            raise failure

    def abandon(self) -> None:
        """Close without waiting: what is settled and not confirmed ends as OutcomeUnknown. Idempotent."""
        self._standing.closed = True
        if self._standing.session is not None:
            with suppress(ConnectionLost):
                self._give_back(self._standing.session, requeue=True)
        self._end(Closed("the subscription was abandoned"), leaves=True)

    def __repr__(self) -> str:
        return f"Subscription(queue={self.queue!r}, group={self.group!r}{', closed' if self._standing.closed else ''})"

    def __del__(self) -> None:
        """Nobody has it, nor a record of it, any more: what it was granted goes back, as `abandon` gives it."""
        if self._task is None or not self.unclosed:
            return
        on_loop(self._task.get_loop(), self.abandon)
        if not self.kept:
            warn_unclosed(self, f"a subscription to queue {self.queue!r}")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, Exception):
            # Cancelled or interrupted: whoever did that is not to wait for confirms.
            self.abandon()
            await self._bytes.close()
            return
        try:
            await self.close()
        except MirrorlogError:
            if error is None:  # else what the block ended with is the one to tell
                raise

    # --- reading ---

    def __aiter__(self) -> Self:
        """Records in the order of the grants. Leave it and come back: it goes on behind the last one given out."""
        return self

    async def __anext__(self) -> Delivered:
        """Waits for as long as none comes.

        Raises what ended the subscription (NoSuchQueue, ConsumerTimedOut, SubscriptionCancelled, …), ConnectionLost or
        NotMaster when no master has been found for `outage_timeout_ms`, and what a consumer raises about bytes: behind
        these it may be asked again. `receive` and `take` raise after `request_timeout_ms` without a master.
        """
        return Delivered(self, *await self.read_on(self.reader.next))

    async def batches(self) -> AsyncGenerator[DeliveredBatch]:
        """Stretches of batches, each as much as was granted; waits and raises as reading records does."""
        while True:
            yield await self.next_batch()

    async def next_batch(self) -> DeliveredBatch:
        """The next one of `batches`."""
        return DeliveredBatch(self, *await self.read_on(self.reader.batch))

    async def read_on(self, read: Callable[[], Awaitable[_T]]) -> _T:
        """For its own iterations, and those of a face: see `outages.read_on`."""
        patience_ms = self.client.request_timeout_ms
        return await read_on(read, queue=self.queue, patience_ms=patience_ms, outage_timeout_ms=self._outage_timeout_ms)

    async def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[Delivered]:
        """Up to `max_records` records; fewer with as much unsettled as the prefetch, or (perhaps none) when time is up.

        Without `max_records`: what comes first, as soon as it is there. Raises as reading does, but only when nothing
        was found before the error.
        """
        return [Delivered(self, *each) for each in await self.reader.receive(max_records, timeout_ms=timeout_ms)]

    async def take_within(self, records_max: int, *, timeout_ms: int) -> list[Delivered]:
        """As `take`, but none when none has come in that time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.take(records_max)
        except TimeoutError:
            return []

    async def take(self, records_max: int) -> list[Delivered]:
        """Waits for a record; with it come those that are there at once, `records_max` together at most."""
        return [Delivered(self, *each) for each in await self.reader.records(records_max)]

    # --- what may be with it ---

    async def set_prefetch(self, prefetch: int, prefetch_bytes: int | None = None) -> None:
        """So many records, and bytes, at most are with this subscription and not settled from now on, as of
        `Client.subscribe`; also at a master that comes later. Nothing is taken back: when it has more, it gets nothing
        until enough is settled. None: as many bytes as before. Raises UnsupportedVersion for an older node."""
        size = self._message.prefetch_bytes if prefetch_bytes is None else prefetch_bytes
        check_subscribing(prefetch=prefetch, prefetch_bytes=size)
        await self._change_prefetch(prefetch_records=prefetch, prefetch_bytes=size)

    async def pause(self) -> None:
        """Have nothing more given until `resume`; what is here is settled as ever. Raises as `set_prefetch`."""
        await self._change_prefetch(paused=True)

    async def resume(self) -> None:
        """Have records given again, behind a `pause`."""
        await self._change_prefetch(paused=False)

    async def _change_prefetch(self, **changed: int) -> None:
        session = self._standing.session
        if session is not None:
            check_software(session.connection, versions.PREFETCH, _PREFETCH)
        self._message = msgspec.structs.replace(self._message, **changed)
        self.reader.bound(self._message.prefetch_records, self._message.prefetch_bytes)
        if session is not None:
            await self._tell_prefetch(session)

    async def _catch_up(self, session: GrantSession) -> None:
        """It was set while that one began; where it cannot be told, the next one begins with it."""
        try:
            check_software(session.connection, versions.PREFETCH, _PREFETCH)
            await self._tell_prefetch(session)
        except MirrorlogError as error:
            session.end(ConnectionLost(f"what was set meanwhile was not told: {error}"))

    async def _tell_prefetch(self, session: GrantSession) -> None:
        """One that has ended meanwhile is followed by one that begins with it."""
        with suppress(ConnectionLost, NoSuchSubscription):
            await session.set_prefetch(self._message, timeout_ms=self.client.request_timeout_ms)

    # --- settling ---

    def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> Coroutine[Any, Any, None]:
        """For what it gives out: settle it, and wait until that has ended."""
        if self._settling is None:
            raise Closed(NOT_STARTED)
        delay_ms = delay_ms or self._retry_delay(granted, how)
        return self._settling.settle(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)

    def settle_nowait(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None:
        """The same, without waiting."""
        if self._settling is None:
            raise Closed(NOT_STARTED)
        delay_ms = delay_ms or self._retry_delay(granted, how)
        self._settling.add(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)

    async def answer(self, record: GrantedRecord, value: bytes | str | None, asked: SendOptions) -> None:
        """For what it gives out: answer a request."""
        await self._reply(record.properties, value, **asked)

    def _retry_delay(self, granted: Granted, how: How) -> int:
        if how is not How.RETURN or not self._retry_delays_ms:
            return 0
        return self._retry_delays_ms[min(granted.attempts, len(self._retry_delays_ms) - 1)]

    async def flush(self) -> None:
        """Wait until everything settled so far has ended; raises the first error, since the last flush, of what nobody
        waits for."""
        if self._settling is None:
            raise Closed(NOT_STARTED)
        self._settling.check_used()
        await self._settling.drained()
        if (failure := self._settling.take_failure()) is not None:
            raise failure

    # --- for transactions, and for a face with records of its own ---

    @property
    def origin(self) -> Subscription:
        """For what it gives out: itself."""
        return self

    @property
    def session(self) -> GrantSession | None:
        """Where it is served; None while that is being looked for, and for good when it is closed."""
        return self._standing.session

    @property
    def closed(self) -> bool:
        """Whether it was: a session that it has not got then does not come any more."""
        return self._standing.closed

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and neither closed nor abandoned."""
        return self._task is not None and not self._standing.closed

    def wake(self) -> None:
        """Something may be given out that was kept back."""
        self._standing.changed()

    # --- Owner of sessions ---

    def began(self, session: GrantSession) -> None:
        assert self._settling is not None
        assert self._standing.resumption is not None
        self._standing.resumption.subscribed(session.log_id, session.epoch)
        self._standing.session = self._former = session
        self._settling.resumed(session)
        self._standing.changed()

    def granted(self, session: GrantSession, grants: list[Grant], sources: list[Sources]) -> None:
        if session is not self._standing.session:
            return
        self._was_granted = self._was_granted or bool(grants)
        for grant, source in zip(grants, sources, strict=True):
            self.unacked.grant(
                Granted(
                    grant.first,
                    grant.next,
                    session=self.unacked.session,
                    epoch=session.epoch,
                    redelivered=grant.redelivered,
                    attempts=grant.attempts,
                    source=source,
                )
            )
        self._standing.changed()

    def lost(self, session: GrantSession, error: MirrorlogError) -> None:
        if session is not self._standing.session or self._standing.resumption is None or self._settling is None:
            return
        self._standing.session = None
        self.reader.stop()
        self.unacked.lose()
        self._settling.lost()
        self._standing.resumption.lost(error, asyncio.get_running_loop().time())
        if self._standing.resumption.error is not None:
            self._settling.end(self._standing.resumption.error)
        self._standing.changed()

    def room(self, size: int) -> memoryview:
        return self._buffers.take(size)

    # --- staying subscribed ---

    async def subscribed_anew(self) -> tuple[GrantSession, FoundQueue]:
        """At the queue's master."""
        client = self.client
        connection, found = await client.master_of(self.queue)
        check_same(self.queue, self._found, found.info)
        self._found = found.info
        # A node of older software would take no notice.
        if self._message.ordered_by:
            check_software(connection, versions.ORDERED_GROUPS, "groups that are ordered by key")
        if self._message.paused:
            check_software(connection, versions.PREFETCH, _PREFETCH)
        assert self._standing.resumption is not None
        self._standing.resumption.sees(found.info.log_id, found.info.epoch)
        session = GrantSession(connection, self._next_message(), self)
        reason = f"{connection.address} answered nothing, and is no longer master of queue {self.queue!r}"
        async with StallWatch(partial(client.has_moved, found), reason=reason):
            await session.begin(timeout_ms=client.request_timeout_ms)
            if any(getattr(self._message, name) != getattr(session.message, name) for name in _CREDIT):
                await self._catch_up(session)
        return session, found

    def _next_message(self) -> Subscribe:
        """What was granted once stands behind the group's making, which is on all copies then: a group that is not
        there any more was deleted, and is not to be made anew by whoever comes back."""
        former = self._former
        if former is None:
            return self._message
        create = self._message.create and not self._was_granted
        return msgspec.structs.replace(self._message, create=create, replaces=former.number, secret=former.secret)

    # --- inside: settling and the end ---

    async def _stop(self, settling: SettlementSender, *, requeue: bool) -> None:
        """Also where another master has taken the subscription meanwhile: what that one grants would stay
        unacknowledged."""
        while (session := self._standing.session) is not None:
            with suppress(MirrorlogError, TimeoutError):  # its node gives back what it had, or has done so
                await self._stop_session(session, requeue=requeue)
            if session is self._standing.session:
                break
        await settling.drained()

    async def _stop_session(self, session: GrantSession, *, requeue: bool) -> None:
        left: list[asyncio.Future[None]] = []
        try:
            await session.stop(timeout_ms=self.client.request_timeout_ms)
        finally:
            # Also to a node that does not answer: the connection may stay, and with it what is unacknowledged.
            if session is self._standing.session:
                left = self._give_back(session, requeue=requeue)
        async with asyncio.timeout(self.client.request_timeout_ms / 1000):
            for answered in left:
                await answered

    def _give_back(self, session: GrantSession, *, requeue: bool) -> list[asyncio.Future[None]]:
        if self._message.auto_ack:
            return []
        held = [cut for _, cut in self.unacked.unsettled()] if requeue else []
        left = [(How.RELEASE, sorted(self.unacked.unseen())), (How.RETURN, sorted(held))]
        return [session.give_back(how, ranges, leaves=requeue) for how, ranges in left if ranges]

    def _end(self, error: MirrorlogError, *, leaves: bool) -> None:
        """`leaves`: nothing stays with the user."""
        if self._standing.resumption is not None:
            self._standing.resumption.end(error)
        if self._task is not None:
            self._task.cancel()
        self.reader.stop()
        session = self._standing.session
        if leaves and session is not None:
            self._standing.session = None
            session.leave()
        if self._settling is not None and (leaves or session is None):
            self._settling.end(error)
        self._standing.changed()
