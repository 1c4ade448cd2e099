"""Whether a subscription is served, and the task that has it served again, for as long as somebody has it. Thin."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.liveness import SILENCE_S
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.subscription.resumption import Resumption
from mirrorlog.client.subscription.session import GrantSession
from mirrorlog.client.subscription.settlement import SettlementSender
from mirrorlog.errors import Closed, ConnectionLost, InternalError, MirrorlogError

NOT_STARTED: Final = "the subscription is not started; use it with `async with`, or call start()"


class SubscriptionState:
    """The state of a subscription, for whoever gives out and whoever settles. `session`: where it is served; None while
    that is being looked for. `resumption`: None before the start."""

    def __init__(self, client: ClusterClient) -> None:
        self.session: GrantSession | None = None
        self.resumption: Resumption | None = None
        self.closed = False
        self._client = client
        self._waiters: dict[asyncio.Future[None], None] = {}

    def check(self) -> None:
        """Raises why nothing is given out."""
        if self.resumption is None:
            raise Closed(NOT_STARTED)
        self._client.check_open()
        if self.closed:
            raise Closed("the subscription is closed")
        trouble = self.resumption.trouble(asyncio.get_running_loop().time())
        if trouble is not None:
            raise type(trouble)(trouble.message, **trouble.details)

    async def change(self) -> None:
        """Wait until there may be something else to give out, or to tell."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def changed(self) -> None:
        """Wake whoever waits for a change."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Staying(Protocol):
    """A subscription that is to stay subscribed; each as there."""

    @property
    def client(self) -> ClusterClient: ...

    @property
    def closed(self) -> bool: ...

    async def subscribed_anew(self) -> tuple[GrantSession, FoundQueue]: ...

    def wake(self) -> None: ...


async def run(subscription: Callable[[], Staying | None], resumption: Resumption, settling: SettlementSender) -> None:
    """Whatever ends this ends the subscription: nobody waits for what does not come."""
    try:
        await _stay(subscription, resumption, settling)
    except MirrorlogError as error:
        resumption.end(error)
    except Exception as error:
        resumption.end(InternalError(f"the client failed: {type(error).__name__}: {error}"))
        raise
    finally:
        if (own := subscription()) is not None:
            if resumption.error is not None and not own.closed:
                settling.end(resumption.error)
            own.wake()


async def _stay(subscription: Callable[[], Staying | None], resumption: Resumption, settling: SettlementSender) -> None:
    """It is held while it subscribes, and not while it waits."""
    backoff = Backoff(random.random)
    while not resumption.over and (own := subscription()) is not None:
        try:
            session, found = await own.subscribed_anew()
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


async def _hold(client: ClusterClient, session: GrantSession, found: FoundQueue, settling: SettlementSender) -> None:
    """Until it is over. A node that is silent may have been replaced, and say nothing of it."""
    while not session.over.done():
        await asyncio.wait({session.over}, timeout=SILENCE_S)
        doubtful = session.connection.owes_answer or settling.waits(SILENCE_S)
        if not session.over.done() and doubtful and await client.has_moved(found):
            address = session.connection.address
            session.end(ConnectionLost(f"{address} is silent, and no longer master of queue {found.queue!r}"))
