"""The session of a subscription at one node, from the request to its end. Thin.

Grants come right behind the answer, or before anybody has looked at it, and go on coming until the node has heard that
they shall not. So this listens from the first byte on; and once nobody wants what comes, it gives that back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import ref

from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.subscription.grant_buffer import BODY_BYTES_MIN, SentBatches, Sources
from mirrorlog.client.subscription.unacked import RANGES_MAX, Range, flat
from mirrorlog.errors import BadBatch, MirrorlogError, NotMaster, ProtocolError, RequestTimeout, SubscriptionCancelled
from mirrorlog.wire.frames import Deliver, Grant, How, Level, read_grants
from mirrorlog.wire.messages.groups import SetPrefetch, Subscribe, Subscribed
from mirrorlog.wire.messages.queues import Done


class Owner(Protocol):
    """The subscription whose grants these are."""

    def began(self, session: GrantSession) -> None:
        """Before anything is granted. Raises NotMaster for a node that has been replaced, SubscriptionCancelled for one
        that it is not to go on at."""

    def granted(self, session: GrantSession, grants: list[Grant], sources: list[Sources]) -> None: ...

    def lost(self, session: GrantSession, error: MirrorlogError) -> None:
        """Called once for each session that began."""

    def room(self, size: int) -> memoryview: ...


class GrantSession:
    """One session. `number`: of the subscription at its node; `epoch`, `log_id`: of its grants; `secret`: lets the next
    one take its place. `message`: what was asked for, last. `over` is done when it has ended."""

    def __init__(self, connection: Connection, message: Subscribe, owner: Owner) -> None:
        self.connection = connection
        self.number = 0
        self.epoch = 0
        self.log_id = ""
        self.secret = ""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.message = message
        # Not kept by it: who let go of his subscription wants nothing more.
        self._owner_of: Callable[[], Owner | None] = ref(owner)
        self._left = False
        self._began: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches: SentBatches | None = None
        # The node was asked to grant no more; it has said that it does not; what comes nevertheless is given back.
        self._stopped = False
        self._silenced = False
        self._unwanted = False

    async def begin(self, *, timeout_ms: int) -> None:
        """Ask, and wait for the answer. Raises what the node answers, ConnectionLost, RequestTimeout."""
        self.connection.subscribe(self.message, self)
        try:
            await self._within(self._began, timeout_ms)
        except BaseException:
            self.leave()
            raise

    async def set_prefetch(self, message: Subscribe, *, timeout_ms: int) -> None:
        """Have so much granted as that one asks for. Raises what the node answers, ConnectionLost, RequestTimeout."""
        self.message = message
        asked = SetPrefetch(
            subscription=self.number,
            prefetch_records=message.prefetch_records,
            prefetch_bytes=message.prefetch_bytes,
            paused=message.paused,
        )
        await self.connection.request(asked, Done, timeout_ms=timeout_ms)

    async def stop(self, *, timeout_ms: int) -> None:
        """Have no more granted; what was on its way has come then. Raises what the node answers, ConnectionLost,
        RequestTimeout; then what comes later is given back."""
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._silence(partial(_resolve, stopped))
            await self._within(stopped, timeout_ms)
        except BaseException:
            self._unwanted = True
            raise

    def give_back(
        self, how: How, ranges: list[Range], *, epoch: int | None = None, leaves: bool = False
    ) -> asyncio.Future[None]:
        """Return or release what is unacknowledged, by default under its own epoch. The future is done when the last
        frame was answered, well or not. `leaves`: nobody settles what is left then. So what is refused goes back as if
        the connection were lost: the log may take nothing now, and the connection lasts. Raises ConnectionLost."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for at in range(0, len(ranges), RANGES_MAX):
            last = at + RANGES_MAX >= len(ranges)
            self.connection.settle(
                flat(ranges[at : at + RANGES_MAX]),
                subscription=self.number,
                epoch=self.epoch if epoch is None else epoch,
                how=how,
                level=Level.MASTER,
                delay_ms=0,
                again=False,
                done=partial(self._given_back, answered if last else None, leaves),
            )
        return answered

    def leave(self) -> None:
        """Nobody wants what comes any more: it is given back. Idempotent."""
        left, self._left = self._left, True
        if not left and self.number and self.connection.usable:
            self._unsubscribe()
        self._end()

    def end(self, error: MirrorlogError) -> None:
        """It is over for its owner, whatever the node thinks."""
        owner = self._owner
        self.leave()
        if owner is not None and self.number:
            owner.lost(self, error)

    # --- Subscriber ---

    def subscribed(self, answer: Subscribed) -> None:
        self.number, self.epoch, self.log_id = answer.subscription, answer.epoch, answer.log_id
        self.secret = answer.secret
        if (owner := self._owner) is None:
            self._unsubscribe()
            return
        limits = self.connection.welcome.limits
        self._batches = SentBatches(
            answer.log_id,
            body_bytes_max=max(limits.max_batch_bytes, BODY_BYTES_MIN),
            kept_bytes=answer.prefetch_bytes if self.message.ordered_by else 0,
        )
        try:
            owner.began(self)
        except (NotMaster, SubscriptionCancelled) as error:
            self.leave()
            self._began.set_exception(error)
            self._began.exception()  # who asked may be gone
            return
        if not self._began.done():
            self._began.set_result(None)

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        grants, batches = read_grants(content, facts.grant_count)
        owner = self._owner
        if owner is None or self._batches is None or self._unwanted:
            self._return_unwanted(facts.epoch, grants)
            return
        try:
            sources = self._batches.sources(grants, batches, facts.batch_count)
        except BadBatch as error:
            raise ProtocolError(f"a DELIVER frame of {self.connection.address}: {error}") from None
        owner.granted(self, grants, sources)

    def ended(self, error: MirrorlogError) -> None:
        owner, self._left = self._owner, True
        if not self.number:
            if not self._began.done():
                self._began.set_exception(error)
                self._began.exception()  # who asked may be gone
        elif owner is not None:
            owner.lost(self, error)
        self._end()

    def room(self, size: int) -> memoryview:
        return memoryview(bytearray(size)) if (owner := self._owner) is None else owner.room(size)

    # --- inside ---

    @property
    def _owner(self) -> Owner | None:
        """None when it was left, or when nobody has it any more."""
        return None if self._left else self._owner_of()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    async def _within(self, outcome: asyncio.Future[None], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await outcome
        except TimeoutError:
            raise RequestTimeout(f"{self.connection.address} did not answer within {timeout_ms} ms") from None

    def _unsubscribe(self) -> None:
        """Until the node has heard it, what comes is given back; so it must not be forgotten before."""
        if self._silenced:
            self.connection.forget(self.number)
        elif not self._stopped:
            self._silence(_nothing)

    def _silence(self, done: Callable[[MirrorlogError | None], None]) -> None:
        def answered(error: MirrorlogError | None) -> None:
            self._silenced = True
            if self._owner is None:
                self.connection.forget(self.number)
            done(error)

        self._stopped = True
        self.connection.unsubscribe(self.number, done=answered)

    def _given_back(self, answered: asyncio.Future[None] | None, leaves: bool, error: MirrorlogError | None) -> None:
        done = _nothing if answered is None else partial(_note, answered)
        if error is not None and leaves and self.connection.usable:
            self.connection.unsubscribe(self.number, leaves=True, done=done)
        else:
            done(error)

    def _return_unwanted(self, epoch: int, grants: list[Grant]) -> None:
        if grants and not self.message.auto_ack and self.connection.usable:
            self.give_back(How.RELEASE, sorted((grant.first, grant.next) for grant in grants), epoch=epoch)


def _resolve(outcome: asyncio.Future[None], error: MirrorlogError | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _note(outcome: asyncio.Future[None], _: MirrorlogError | None) -> None:
    if not outcome.done():
        outcome.set_result(None)


def _nothing(_: MirrorlogError | None) -> None:
    pass
