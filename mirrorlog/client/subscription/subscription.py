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

Its parts: `resumption` (whether it goes on), `in_hand` (what there is to give out and to settle), `settlements` (what
becomes of what is settled) are pure; `subscribing`, `settling`, `granted_bytes` talk to nodes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self
from weakref import WeakMethod, ref

import msgspec

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import Cluster
from mirrorlog.client.connection.connection import BufferPool
from mirrorlog.client.connection.let_go import on_loop, warn_unclosed
from mirrorlog.client.connection.metadata import check_same
from mirrorlog.client.connection.sightings import FoundQueue
from mirrorlog.client.connection.stall_watch import SILENCE_S, StallWatch
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord
from mirrorlog.client.options import check_delay, check_subscribing
from mirrorlog.client.subscription.delivered import Delivered, DeliveredBatch
from mirrorlog.client.subscription.grant_buffer import GrantedBytes, Sources
from mirrorlog.client.subscription.resumption import Resumption
from mirrorlog.client.subscription.session import Session
from mirrorlog.client.subscription.settlement import Settling
from mirrorlog.client.subscription.unacked import Granted, Range, Unacked, joined
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, OffsetOutOfRange, UnreadableBatch
from mirrorlog.wire.frames import Grant, How
from mirrorlog.wire.messages.groups import Subscribe
from mirrorlog.wire.messages.queues import QueueInfo

logger = logging.getLogger(__name__)

_PIECE = tuple[Granted, ConsumedBatch]
_RECORD = tuple[Granted, ConsumedRecord]
_FETCH_BYTES_MIN: Final = 64 * 1024
_TAKEN_MAX: Final = 1_000
_IN_A_ROW_MAX: Final = 100


class Subscription:
    """Of one queue's group. Made by `Client.subscribe`; use it with `async with`. Several tasks may read from it: each
    record goes to one of them. One that is let go without `close` is abandoned, with a ResourceWarning."""

    kept = False
    """By another object, which says for both when they were not closed."""
    # For one whose options were refused.
    _task: asyncio.Task[None] | None = None

    def __init__(
        self,
        client: Cluster,
        message: Subscribe,
        *,
        make_consumer: Callable[..., Consumer],
        level: int,
        settle_timeout_ms: int,
        cancel_on_failover: bool,
        read_from: str,
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
        self._client = client
        self._message = message
        self._level = level
        self._settle_timeout_s = settle_timeout_ms / 1000
        self._cancel_on_failover = cancel_on_failover
        self._buffers = BufferPool()
        fetch_bytes = max(message.prefetch_bytes, _FETCH_BYTES_MIN) if message.prefetch_bytes else 2**30
        self._bytes = GrantedBytes(make_consumer, message.queue, read_from=read_from, fetch_bytes=fetch_bytes)
        self._hand = Unacked()
        self._session: Session | None = None
        # The session before, whose place at its node the next one takes; whether it was ever granted anything.
        self._former: Session | None = None
        self._was_granted = False
        # Both are made by `start`: they need the loop.
        self._found: QueueInfo | None = None
        self._resumption: Resumption | None = None
        self._settling: Settling | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._reading = asyncio.Lock()
        # What is given out record by record now.
        self._giving: tuple[Granted, Iterator[ConsumedRecord]] | None = None
        self._in_a_row = 0
        # With auto-ack: what was given out and the node was not told of.
        self._taken: list[Range] = []
        self._taken_step = max(1, min(message.prefetch_records or _TAKEN_MAX, _TAKEN_MAX) // 2)
        self._closed = False

    # --- life ---

    async def start(self) -> Self:
        """Find the queue's master and subscribe there. Raises NoSuchQueue, NoSuchGroup, BadRequest, ExclusiveTaken,
        ConnectionLost or NotMaster when there is none within `request_timeout_ms`."""
        if self._resumption is not None:
            raise BadRequest("a subscription is started once; make another one")
        loop = asyncio.get_running_loop()
        resumption = self._resumption = Resumption(
            now=loop.time(),
            patience_s=self._client.request_timeout_ms / 1000,
            cancel_on_failover=self._cancel_on_failover,
        )
        self._settling = Settling(
            self._hand, level=self._level, timeout_s=self._settle_timeout_s, changed=_weakly(self._changed)
        )
        self._task = asyncio.ensure_future(_run(ref(self), resumption, self._settling))
        try:
            while self._session is None:
                self._check(resumption)
                await self._change()
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
        if self._closed or settling is None:
            self._closed = True
            return
        self._closed = True
        self._changed()
        try:
            await settling.drained()
            await self._stop(settling, requeue=requeue)
        finally:
            self._end(ConnectionLost("the subscription is closed"), leaves=requeue)
            await self._bytes.close()
        if (failure := settling.take_failure()) is not None:
            raise failure

    def abandon(self) -> None:
        """Close without waiting: what is settled and not confirmed ends as OutcomeUnknown. Idempotent."""
        self._closed = True
        if self._session is not None:
            with suppress(ConnectionLost):
                self._give_back(self._session, requeue=True)
        self._end(ConnectionLost("the subscription was abandoned"), leaves=True)

    def __del__(self) -> None:
        """Nobody has it, nor a record of it, any more: what it was granted goes back, as `abandon` gives it."""
        if self._task is None or not self.unclosed:
            return
        on_loop(self._task.get_loop(), self.abandon)
        if not self.kept:
            warn_unclosed(self, f"a subscription to queue {self.queue!r}")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

        Raises what ended the subscription (NoSuchQueue, ConsumerTimedOut, SubscriptionCancelled, …); ConnectionLost or
        NotMaster while no master has been found for `request_timeout_ms`, and what a consumer raises about bytes:
        behind these it may be asked again.
        """
        return Delivered(self, *await self._next())

    async def _next(self) -> _RECORD:
        self._in_a_row += 1
        if self._in_a_row >= _IN_A_ROW_MAX:
            # Records that are there already would let nothing else run: no ack would leave.
            self._in_a_row = 0
            await asyncio.sleep(0)
        while (found := self._next_at_once()) is None:
            async with self._reading:
                if self._giving is None:
                    granted, batch = await self._piece()
                    self._note(granted)
                    self._giving = granted, batch.records()
        return found

    def _next_at_once(self) -> _RECORD | None:
        """The next record, if it is there without waiting."""
        if self._closed:
            return None
        if self._giving is not None:
            if (found := self._next_of(*self._giving)) is not None:
                return found
            self._giving = None
        granted = self._hand.head()
        batch = None if granted is None else self._bytes.batch_at_once(granted)
        if granted is None or batch is None:
            return None
        self._note(granted)
        self._giving = granted, batch.before(granted.next).records()
        return self._next_of(*self._giving)

    def _next_of(self, granted: Granted, records: Iterator[ConsumedRecord]) -> _RECORD | None:
        # A grant that was kept back meanwhile has an earlier end.
        if granted.given >= granted.next or (record := next(records, None)) is None:
            return None
        granted.given = record.queue_offset + 1
        if self._message.auto_ack:
            self._was_taken(granted)
        return granted, record

    async def batches(self) -> AsyncGenerator[DeliveredBatch]:
        """Stretches of batches, each as much as was granted; waits and raises as reading records does."""
        while True:
            yield await self.next_batch()

    async def next_batch(self) -> DeliveredBatch:
        """The next one of `batches`."""
        return DeliveredBatch(self, *await self.granted_batch())

    async def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[Delivered]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up first.

        Without `max_records`: what comes first, as soon as it is there. Raises as reading does, but only when nothing
        was found before the error.
        """
        return [Delivered(self, *each) for each in await self.granted_within(max_records, timeout_ms=timeout_ms)]

    async def take_within(self, records_max: int, *, timeout_ms: int) -> list[Delivered]:
        """As `take`, but none when none has come in that time."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.take(records_max)
        except TimeoutError:
            return []

    async def take(self, records_max: int) -> list[Delivered]:
        """Waits for a record; with it come those that are there at once, `records_max` together at most."""
        return [Delivered(self, *each) for each in await self.granted_records(records_max)]

    # --- the same for a face with records of its own: each with its grant ---

    async def granted_batch(self) -> tuple[Granted, ConsumedBatch]:
        """As `next_batch`."""
        async with self._reading:
            granted, batch = await self._piece()
            self._giving = None
            self._note(granted)
            granted.given = batch.next
            if self._message.auto_ack:
                self._was_taken(granted)
            return granted, batch

    async def granted_within(
        self, max_records: int | None = None, *, timeout_ms: int
    ) -> list[tuple[Granted, ConsumedRecord]]:
        """As `receive`."""
        found: list[_RECORD] = []
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not found or (max_records is not None and len(found) < max_records):
                    wanted = _TAKEN_MAX if max_records is None else max_records - len(found)
                    found += await self.granted_records(wanted)
        except TimeoutError:
            pass
        except MirrorlogError:
            if not found:
                raise
        return found

    async def granted_records(self, records_max: int) -> list[tuple[Granted, ConsumedRecord]]:
        """As `take`."""
        found = [await self._next()]
        # Nothing is waited for from here on: whoever is cancelled while he waits has got nothing yet.
        while len(found) < records_max and (following := self._next_at_once()) is not None:
            found.append(following)
        return found

    # --- settling ---

    async def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None:
        """For what it gives out: settle it, and wait until that has ended."""
        settling = self._may_settle(delay_ms)
        settlements = settling.settle(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)
        await settling.ended(settlements, None if multiple else (first, following))

    def settle_nowait(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None:
        """The same, without waiting."""
        self._may_settle(delay_ms).settle(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)

    async def flush(self) -> None:
        """Wait until everything settled so far has ended; raises the first error, since the last flush, of what nobody
        waits for."""
        settling = self._may_settle(0)
        await settling.drained()
        if (failure := settling.take_failure()) is not None:
            raise failure

    # --- for transactions ---

    @property
    def origin(self) -> Subscription:
        """For what it gives out: itself."""
        return self

    @property
    def hand(self) -> Unacked:
        """What it has."""
        return self._hand

    @property
    def session(self) -> Session | None:
        """Where it is served; None while that is being looked for, and for good when it is closed."""
        return self._session

    @property
    def client(self) -> Cluster:
        """Whose it is."""
        return self._client

    @property
    def closed(self) -> bool:
        """Whether it was: a session that it has not got then does not come any more."""
        return self._closed

    @property
    def unclosed(self) -> bool:
        """Whether it was started, and neither closed nor abandoned."""
        return self._task is not None and not self._closed

    def wake(self) -> None:
        """Something may be given out that was kept back."""
        self._changed()

    # --- Owner of sessions ---

    def began(self, session: Session) -> None:
        assert self._settling is not None
        self._started().subscribed(session.log_id, session.epoch)
        self._session = self._former = session
        self._settling.resumed(session)
        self._changed()

    def granted(self, session: Session, grants: list[Grant], sources: list[Sources]) -> None:
        if session is not self._session:
            return
        self._was_granted = self._was_granted or bool(grants)
        for grant, source in zip(grants, sources, strict=True):
            self._hand.grant(
                Granted(
                    grant.first,
                    grant.next,
                    session=self._hand.session,
                    epoch=session.epoch,
                    redelivered=grant.redelivered,
                    attempts=grant.attempts,
                    source=source,
                )
            )
        self._changed()

    def lost(self, session: Session, error: MirrorlogError) -> None:
        if session is not self._session or self._resumption is None or self._settling is None:
            return
        self._session = None
        self._giving = None
        self._taken = []
        self._hand.lose()
        self._settling.lost()
        self._resumption.lost(error, asyncio.get_running_loop().time())
        if self._resumption.error is not None:
            self._settling.end(self._resumption.error)
        self._changed()

    def room(self, size: int) -> memoryview:
        return self._buffers.take(size)

    # --- inside: staying subscribed ---

    async def _subscribe(self) -> tuple[Session, FoundQueue]:
        client = self._client
        connection, found = await client.master_of(self.queue)
        check_same(self.queue, self._found, found.info)
        self._found = found.info
        self._started().sees(found.info.log_id, found.info.epoch)
        session = Session(connection, self._next_message(), self)
        reason = f"{connection.address} answered nothing, and is no longer master of queue {self.queue!r}"
        async with StallWatch(partial(client.has_moved, found), reason=reason):
            await session.begin(timeout_ms=client.request_timeout_ms)
        return session, found

    def _next_message(self) -> Subscribe:
        """What was granted once stands behind the group's making, which is on all copies then: a group that is not
        there any more was deleted, and is not to be made anew by whoever comes back."""
        former = self._former
        if former is None:
            return self._message
        create = self._message.create and not self._was_granted
        return msgspec.structs.replace(self._message, create=create, replaces=former.number, secret=former.secret)

    # --- inside: giving out ---

    async def _piece(self) -> _PIECE:
        """What is to be given out next: records of one grant that stand in one batch, and that batch, cut to them."""
        resumption = self._started()
        while True:
            self._check(resumption)
            granted = self._hand.head()
            if granted is None:
                await self._change()
                continue
            batch = await self._batch_of(granted)
            # Waiting for bytes the grant may have been lost, or kept back.
            if batch is not None and self._hand.head() is granted and not self._closed:
                self._skip(granted, batch.first)
                if granted.given < granted.next:
                    return granted, batch.after(granted.given).before(granted.next)

    async def _batch_of(self, granted: Granted) -> ConsumedBatch | None:
        """The batch of its first record, or the next there is; None when it is to be looked for anew."""
        try:
            return await self._bytes.batch_of(granted)
        except OffsetOutOfRange as error:
            # Freed, or lost, since it was granted: its master counts it as gone, too.
            begin = error.details.get("go_on_at", error.details.get("begin"))
            if not isinstance(begin, int) or begin <= granted.given:
                raise
            self._skip(granted, begin)
            return None
        except UnreadableBatch as error:
            # No use to anybody, now or later: it would come back for ever.
            logger.warning("unreadable_rejected queue=%s reason=%r", self.queue, error.message)
            self._skip(granted, error.details["go_on_at"], How.DEAD)
            return None
        except MirrorlogError:
            if granted.session != self._hand.session:
                return None  # it comes again
            raise

    def _skip(self, granted: Granted, following: int, how: How = How.ACK) -> None:
        """What is not there is not given out. Its node is told, or it would be in hand until the consumer timeout, come
        again, and be missing again."""
        skipped = self._hand.skip(granted, following)
        session = self._session
        if skipped is None or session is None or granted.session != self._hand.session:
            return
        with suppress(ConnectionLost):  # then it is nobody's, and its node finds out itself
            session.give_back(How.EXTEND if self._message.auto_ack else how, [skipped])

    def _was_taken(self, granted: Granted) -> None:
        """With auto-ack the node sends no more than the prefetch ahead of what the program has taken: it is told when a
        grant is through, or half the prefetch of it."""
        if granted.session != self._hand.session:
            return
        for first, following in granted.open_below(granted.given):
            if granted.given < granted.next and following - first < self._taken_step:
                return
            granted.settle(first, following)
            if not self._taken:
                asyncio.get_running_loop().call_soon(self._tell_taken)
            self._taken.append((first, following))

    def _tell_taken(self) -> None:
        taken, self._taken = self._taken, []
        if self._session is not None:
            with suppress(ConnectionLost):
                self._session.give_back(How.EXTEND, joined(taken))

    def _note(self, granted: Granted) -> None:
        if not self._message.auto_ack:
            self._hand.giving(granted)

    def _started(self) -> Resumption:
        if self._resumption is None:
            raise BadRequest("the subscription is not started; use it with `async with`, or call start()")
        return self._resumption

    def _check(self, resumption: Resumption) -> None:
        """Raises why nothing is given out."""
        self._client.check_open()
        if self._closed:
            raise ConnectionLost("the subscription is closed")
        trouble = resumption.trouble(asyncio.get_running_loop().time())
        if trouble is not None:
            raise type(trouble)(trouble.message, **trouble.details)

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def _changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- inside: settling and the end ---

    def _may_settle(self, delay_ms: int) -> Settling:
        if self._settling is None:
            raise BadRequest("the subscription is not started; use it with `async with`, or call start()")
        if self._message.auto_ack:
            raise BadRequest("what a subscription with auto_ack gives out is settled already")
        if delay_ms != 0:
            check_delay(delay_ms)
        return self._settling

    async def _stop(self, settling: Settling, *, requeue: bool) -> None:
        """Also where another master has taken the subscription meanwhile: what that one grants would stay in hand."""
        while (session := self._session) is not None:
            with suppress(MirrorlogError, TimeoutError):  # its node gives back what it had, or has done so
                await self._stop_session(session, requeue=requeue)
            if session is self._session:
                break
        await settling.drained()

    async def _stop_session(self, session: Session, *, requeue: bool) -> None:
        left: list[asyncio.Future[None]] = []
        try:
            await session.stop(timeout_ms=self._client.request_timeout_ms)
        finally:
            # Also to a node that does not answer: the connection may stay, and with it what is in hand.
            if session is self._session:
                left = self._give_back(session, requeue=requeue)
        async with asyncio.timeout(self._client.request_timeout_ms / 1000):
            for answered in left:
                await answered

    def _give_back(self, session: Session, *, requeue: bool) -> list[asyncio.Future[None]]:
        if self._message.auto_ack:
            return []
        held = [cut for _, cut in self._hand.unsettled()] if requeue else []
        left = [(How.RELEASE, sorted(self._hand.unseen())), (How.RETURN, sorted(held))]
        return [session.give_back(how, ranges, leaves=requeue) for how, ranges in left if ranges]

    def _end(self, error: MirrorlogError, *, leaves: bool) -> None:
        """`leaves`: nothing stays with the user."""
        if self._resumption is not None:
            self._resumption.end(error)
        if self._task is not None:
            self._task.cancel()
        self._giving = None
        session = self._session
        if leaves and session is not None:
            self._session = None
            session.leave()
        if self._settling is not None and (leaves or session is None):
            self._settling.end(error)
        self._changed()


# --- Staying subscribed, for as long as somebody has the subscription -------------------------------------------------


async def _run(subscription: Callable[[], Subscription | None], resumption: Resumption, settling: Settling) -> None:
    """Whatever ends this ends the subscription: nobody waits for what does not come."""
    try:
        await _stay(subscription, resumption, settling)
    except MirrorlogError as error:
        resumption.end(error)
    except Exception as error:
        resumption.end(MirrorlogError(f"the client failed: {type(error).__name__}: {error}"))
        raise
    finally:
        if (own := subscription()) is not None:
            if resumption.error is not None and not own.closed:
                settling.end(resumption.error)
            own.wake()


async def _stay(subscription: Callable[[], Subscription | None], resumption: Resumption, settling: Settling) -> None:
    """It is held while it subscribes, and not while it waits."""
    backoff = Backoff(random.random)
    while not resumption.over and (own := subscription()) is not None:
        try:
            session, found = await own._subscribe()
        except MirrorlogError as error:
            resumption.refused(error, asyncio.get_running_loop().time())
            own.wake()
            del own
            if not resumption.over:
                await asyncio.sleep(backoff.next_s())
        else:
            backoff.reset()
            client = own.client
            del own
            await _hold(client, session, found, settling)


async def _hold(client: Cluster, session: Session, found: FoundQueue, settling: Settling) -> None:
    """Until it is over. A node that is silent may have been replaced, and say nothing of it."""
    while not session.over.done():
        await asyncio.wait({session.over}, timeout=SILENCE_S)
        doubtful = session.connection.owes_answer or settling.waits(SILENCE_S)
        if not session.over.done() and doubtful and await client.has_moved(found):
            address = session.connection.address
            session.end(ConnectionLost(f"{address} is silent, and no longer master of queue {found.queue!r}"))


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """A bound method that does nothing once its object is gone."""
    found = WeakMethod(method)

    def called() -> None:
        if (still := found()) is not None:
            still()

    return called
