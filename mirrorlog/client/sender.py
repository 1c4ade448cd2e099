"""Sender: drives a pipeline over the connection to its queue's master. Thin: the pipeline decides.

It sends what may be sent, tells the pipeline what came back, keeps the timer for retries and deadlines, and finds the
master again when the connection is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mirrorlog.client.batching import PendingBatch
from mirrorlog.client.connection import Connection
from mirrorlog.client.pipeline import BACKOFF_S_MAX, BACKOFF_S_MIN, Pipeline
from mirrorlog.errors import BadInput, ConnectionLost, MasterChanged, MirrorlogError, NotMaster, RequestTimeout
from mirrorlog.wire.frames import Confirm, Durability
from mirrorlog.wire.messages import Limits

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

_MOVED = (ConnectionLost, RequestTimeout, NotMaster, MasterChanged)
"""After these the master is looked for again."""


class Sender:
    """`ended` is called once for every batch that was added.

    `turned`: to be set by whoever holds an open batch; it is called whenever batches may have moved on.
    """

    def __init__(
        self,
        client: Client,
        queue: str,
        *,
        pipeline: Pipeline,
        producer_id: int,
        level: int,
        durability: Durability,
        ended: Callable[[PendingBatch], None],
    ) -> None:
        self.turned: Callable[[], None] = _nothing
        self._limits: Limits | None = None
        self._client = client
        self._queue = queue
        self._pipeline = pipeline
        self._producer_id = producer_id
        self._level = level
        self._durability = durability
        self._ended = ended
        self._queue_id = 0
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # --- for the producer ---

    @property
    def limits(self) -> Limits:
        """Of the master that was reached last. Raises ConnectionLost before the start."""
        if self._limits is None:
            raise ConnectionLost("the producer is not started; use it with `async with`, or await start()")
        return self._limits

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.usable

    @property
    def idle(self) -> bool:
        """Whether no batch is on its way."""
        return self._pipeline.empty

    @property
    def ready(self) -> bool:
        """Whether a batch that is added now is sent at once."""
        return self.connected and self._pipeline.ready(self._loop.time())

    def unresolved(self) -> list[PendingBatch]:
        return self._pipeline.unresolved()

    async def connect(self) -> None:
        """Find the queue and reach its master. Raises NoSuchQueue or ConnectionLost."""
        connection, queue = await self._client.master_of(self._queue)
        self._connection = connection
        self._queue_id = queue.queue_id
        self._pipeline.begin_at(queue.producer_epoch)
        self._limits = connection.welcome.limits

    def add(self, batch: PendingBatch) -> None:
        """Send a closed batch as soon as it may go."""
        batch.ended = self._ended
        self._pipeline.add(batch)
        self._advance()

    def abandon(self, reason: MirrorlogError, last: PendingBatch | None) -> None:
        """End without waiting: what was not sent ends with `reason`, also `last`, which was not added yet."""
        self._closed = True
        self._cancel_timer()
        if self._connecting is not None:
            self._connecting.cancel()
        if last is not None:
            last.ended = self._ended
            self._pipeline.add(last)
        self._pipeline.fail_all(reason)

    def pump(self) -> None:
        """Send what may be sent, and be woken when more may; then see to the open batch."""
        self._advance()
        self.turned()

    def _advance(self) -> None:
        now = self._loop.time()
        self._pipeline.expire(now)
        connection = self._connection
        try:
            if connection is None or not connection.usable:
                self._reconnect()
            else:
                while (batch := self._pipeline.next_to_send(now)) is not None:
                    self._send(connection, batch, now)
        finally:
            # Whatever went wrong, every batch keeps its deadline.
            self._set_timer(now)

    # --- batches ---

    def _send(self, connection: Connection, batch: PendingBatch, now: float) -> None:
        try:
            data = batch.encoded(self._queue_id, self._producer_id)
        except Exception as error:  # of whatever kind: a batch that never left must not count as in flight
            self._pipeline.failed(batch, BadInput(f"the batch cannot be sent: {error!r}"), now)
            return
        try:
            connection.produce(
                data,
                level=self._level,
                durability=self._durability,
                deadline_ms=max(1, int((batch.deadline - now) * 1000)),
                done=partial(self._answered, connection, batch),
            )
        except ConnectionLost as error:
            self._pipeline.failed(batch, error, now)
        except Exception as error:
            batch.unknown = True  # no answer will come, and how much of it has left is not known
            self._pipeline.failed(batch, BadInput(f"the connection did not take the batch: {error!r}"), now)

    def _answered(self, connection: Connection, batch: PendingBatch, result: Confirm | MirrorlogError) -> None:
        now = self._loop.time()
        if isinstance(result, MirrorlogError):
            if isinstance(result, _MOVED) and connection is self._connection:
                self._connection = None
            self._pipeline.failed(batch, result, now)
        else:
            self._pipeline.confirmed(batch, result, now)
        if self._closed:
            return
        if self._pipeline.calm:
            self.turned()  # the timer sees to the deadlines
        else:
            self.pump()

    def _set_timer(self, now: float) -> None:
        """A timer that fires too early does no harm, and costs less than a new one for each batch."""
        if now < self._timer_at and self._pipeline.last_error is None:
            return  # deadlines only become later: nothing but a retry comes before what it was set for
        due = self._pipeline.next_due(now)
        if due is None or now < self._timer_at <= due:
            return
        self._cancel_timer()
        self._timer_at = due
        self._timer = self._loop.call_at(due + 0.001, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer, self._timer_at = None, 0.0
        self.pump()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, 0.0

    # --- connecting ---

    def _reconnect(self) -> None:
        if self._connecting is None and not self._closed and not self.idle:
            self._connecting = asyncio.ensure_future(self._connect_until_done())

    async def _connect_until_done(self) -> None:
        pause_s = BACKOFF_S_MIN
        try:
            while not self.idle:
                try:
                    await self.connect()
                    break
                except MirrorlogError as error:
                    # Why it fails is the batches' to tell, at their deadline. No such queue is no exception: while
                    # the master is away, a mirror may answer that has not heard of it yet.
                    self._pipeline.not_connected(error)
                    await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
                    pause_s = min(2 * pause_s, BACKOFF_S_MAX)
                    self._pipeline.expire(self._loop.time())
        finally:
            self._connecting = None
        self.pump()


def _nothing() -> None:
    pass
