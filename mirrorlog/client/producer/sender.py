"""Sender: drives a pipeline over the connection to its queue's master. Thin: the pipeline decides.

It sends what may be sent, tells the pipeline what came back, keeps the timer for retries and deadlines, and finds the
master again when the connection is gone. While a master refuses, or answers nothing for half a second, other nodes are
asked whether the queue has a new one: a master that hangs or is cut off is the last to hear of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.masters import MOVED, REPLACED_PERHAPS
from mirrorlog.client.connection.queue_metadata import FoundQueue, is_another
from mirrorlog.client.events import Blocked, Unblocked
from mirrorlog.client.options import ProducerOptions, level_for
from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.client.producer.pipeline import Allowance, Pipeline
from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES
from mirrorlog.client.producer.window import SendWindow
from mirrorlog.errors import (
    BadInput,
    BadRequest,
    Closed,
    ConnectionLost,
    MasterChanged,
    MirrorlogError,
    NotMaster,
    Overloaded,
    RequestTimeout,
)
from mirrorlog.wire.frames import Confirm, Credit, Level
from mirrorlog.wire.messages.handshake import NodeLimits

# Failed batches that are remembered until `flush` tells of them.
_FAILED_MAX: Final = 1000
_LOOK_S: Final = 0.25
# So many looks without an answer between them: what is unanswered is so for half a second at least.
_SILENT_LOOKS: Final = 3
_LOOKS_BETWEEN: Final = 2
# One that is held by its credit alone asks less often: copies that are behind are the usual reason, not a new master.
_LOOKS_BETWEEN_HELD: Final = 8
_CREDIT_LIMITS: Final = frozenset({"credit_bytes", "credit_batches", "max_unconfirmed_bytes", "max_waiting_confirms"})


class Sender:
    """Sends one producer's batches. What is added holds its place in `window` until it has ended. `failed`: the last
    batches that ended in an error.

    `turned`: set by whoever holds an open batch, for as long; it is called whenever batches may have moved on.
    `alone_bytes_max`: what a record may have that goes in a batch of its own; 0 before the start.
    """

    def __init__(
        self,
        client: ClusterClient,
        queue: str,
        options: ProducerOptions,
        *,
        pipeline: Pipeline,
        producer_id: int,
        window: SendWindow,
    ) -> None:
        self.turned: Callable[[], None] | None = None
        self.alone_bytes_max = 0
        self.routing = 0
        """What batches that are added say of how they were routed; see `Producer.routed_by`."""
        self._limits: NodeLimits | None = None
        self._client = client
        self._queue = queue
        self._pipeline = pipeline
        self._producer_id = producer_id
        self._asked_level = options.level
        self._level = Level.ALL
        self._durability = options.durability
        self._window = window
        self.failed: deque[PendingBatch] = deque(maxlen=_FAILED_MAX)
        self._queue_id = 0
        self._connection: Connection | None = None
        self._credited_by: Connection | None = None
        # The queue's master when it was found, and the connection that was left for another with batches unanswered.
        self._found: FoundQueue | None = None
        self._left: Connection | None = None
        self._asking: asyncio.Task[None] | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._silent_looks = 0
        # By flow control: at the last look; and for so long that it was told.
        self._was_held = self._blocked = False
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # --- for the producer ---

    @property
    def limits(self) -> NodeLimits:
        """Of the master that was reached last. Raises Closed before the start."""
        if self._limits is None:
            raise Closed("the producer is not started; use it with `async with`, or await start()")
        return self._limits

    @property
    def started(self) -> bool:
        """Whether a master was ever reached."""
        return self._limits is not None

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

    def check_attributes(self) -> None:
        """Raises BadRequest when the cluster did not take batches with attributes at the time its master was found."""
        if self._found is not None and not self._found.info.attributes:
            raise BadRequest(
                f"the cluster of queue {self._queue!r} takes no priority, ttl_ms or delay_ms before all its nodes are "
                "updated; then start this producer anew"
            )

    def unresolved(self) -> list[PendingBatch]:
        return self._pipeline.unresolved()

    async def start(self, timeout_ms: int | None = None) -> None:
        """Find the queue and reach its master; while there is none, or no node answers any more, for `timeout_ms`.

        Raises NoSuchQueue, ConnectionLost or NotMaster.
        """
        started_at = self._loop.time()
        backoff = Backoff(random.random)
        while True:
            try:
                return await self.connect()
            except (ConnectionLost, RequestTimeout, NotMaster):
                waited_ms = (self._loop.time() - started_at) * 1000
                patience_ms = self._client.request_timeout_ms if timeout_ms is None else timeout_ms
                if not self._client.reached or waited_ms >= patience_ms:
                    raise
                await asyncio.sleep(backoff.next_s())

    async def connect(self, found: FoundQueue | None = None) -> None:
        """Find the queue, unless it was `found`, and reach its master. Raises NoSuchQueue, ConnectionLost or NotMaster
        while there is none."""
        if found is None:
            connection, found = await self._client.master_of(self._queue)
        else:
            connection = await self._client.reach(found.address)
        found = await self._client.vouched(found)
        if self._found is not None and found.newer_than(self._found):
            self._pipeline.moved(self._loop.time())
        self._found = found
        self._use(connection, found.queue_id, level_for(self._asked_level, found.info))
        self._pipeline.begin_at(found.producer_epoch)

    def _use(self, connection: Connection, queue_id: int, level: int) -> None:
        """Publish over it from now on. A node counts anew with a connection, and goes on with one it has."""
        limits, before = connection.welcome.limits, self._level
        self._level = level
        if connection is not self._credited_by or queue_id != self._queue_id or level != before:
            self._end_credit()
            allowance = self._pipeline.allowance = Allowance(
                connection.credit_bytes, limits.credit_batches, confirms_tell=self._level == Level.ALL
            )
            if allowance.limited:
                self._credited_by = connection
                connection.on_credit(self._producer_id, queue_id, self._credited)
        self._connection, self._queue_id, self._limits = connection, queue_id, limits
        self.alone_bytes_max = min(limits.max_record_bytes, limits.max_batch_bytes - BATCH_OVERHEAD_BYTES)

    def _end_credit(self) -> None:
        if self._credited_by is not None:
            self._credited_by.off_credit(self._producer_id, self._queue_id, self._credited)
        self._credited_by = None

    def _credited(self, credit: Credit) -> None:
        """The node has said what may be open: what waits for that goes on."""
        self._pipeline.allowance.told(credit)
        if self._blocked:
            self._tell_flow()
        if self._closed:
            return
        error = self._pipeline.last_error
        if isinstance(error, Overloaded) and error.details.get("limit") in _CREDIT_LIMITS:
            self._pipeline.moved(self._loop.time())
        self.pump()

    def add(self, batch: PendingBatch) -> None:
        """Send a closed batch as soon as it may go."""
        batch.ended = self._ended
        batch.routing = self.routing
        self._window.take(batch.size_bytes + BATCH_OVERHEAD_BYTES)
        self._pipeline.add(batch)
        self._advance()

    def _ended(self, batch: PendingBatch) -> None:
        if isinstance(batch.outcome, MirrorlogError):
            self.failed.append(batch)
        self._window.release(batch.size_bytes + BATCH_OVERHEAD_BYTES)

    def abandon(self, reason: MirrorlogError, last: Iterable[PendingBatch]) -> None:
        """End without waiting: what was not sent ends with `reason`, also those of `last`, which were not added yet."""
        self._closed = True
        self._end_credit()
        self._cancel_timer()
        if self._look_timer is not None:
            self._look_timer.cancel()
        for task in (self._connecting, self._asking):
            if task is not None:
                task.cancel()
        for batch in last:
            batch.ended = self._ended
            self._window.take(batch.size_bytes + BATCH_OVERHEAD_BYTES)
            self._pipeline.add(batch)
        self._pipeline.fail_all(reason)

    def pump(self) -> None:
        """Send what may be sent, and be woken when more may; then see to the open batch."""
        self._advance()
        if self.turned is not None:
            self.turned()

    def _advance(self) -> None:
        now = self._loop.time()
        # Deadlines only become later: nothing but a retry comes before what the timer was set for.
        due = now >= self._timer_at
        if due:
            self._pipeline.expire(now)
        connection = self._connection
        try:
            if connection is None or not connection.usable:
                self._reconnect()
            else:
                while (batch := self._pipeline.next_to_send(now)) is not None:
                    self._send(connection, batch, now)
                if self._look_timer is None:
                    self._look_timer = self._loop.call_later(_LOOK_S, self._look)
        finally:
            # Whatever went wrong, every batch keeps its deadline.
            if due or self._pipeline.last_error is not None:
                self._set_timer(now)

    # --- batches ---

    def _send(self, connection: Connection, batch: PendingBatch, now: float) -> None:
        allowance = self._pipeline.allowance
        self._left = None  # the pipeline waits for all answers after a failure, before anything is sent again
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
                routing=batch.routing,
                done=partial(self._answered, connection, batch, allowance, len(data)),
            )
            allowance.sent(len(data))
        except ConnectionLost as error:
            self._pipeline.failed(batch, error, now)
        except Exception as error:
            batch.unknown = True  # no answer will come, and how much of it has left is not known
            self._pipeline.failed(batch, BadInput(f"the connection did not take the batch: {error!r}"), now)

    def _answered(
        self,
        connection: Connection,
        batch: PendingBatch,
        allowance: Allowance,
        size: int,
        result: Confirm | MirrorlogError,
    ) -> None:
        now = self._loop.time()
        self._silent_looks = 0
        if isinstance(result, MirrorlogError):
            allowance.refused(size)
            if connection is self._connection:
                if isinstance(result, MOVED):
                    self._leave()
                elif isinstance(result, REPLACED_PERHAPS):
                    self._ask_others()
            self._pipeline.failed(batch, result, now)
        else:
            allowance.confirmed(result, size)
            if self._pipeline.confirmed(batch, result, now) and not self._closed:
                if self.turned is not None:
                    self.turned()  # the timer sees to the deadlines
                return
        if not self._closed:
            self.pump()

    def _set_timer(self, now: float) -> None:
        """A timer that fires too early does no harm, and costs less than a new one for each batch."""
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

    def _leave(self) -> None:
        """What is unanswered there still waits for its answers. What it counted of what may be open is void."""
        self._end_credit()
        self._left, self._connection = self._connection, None

    def _look(self) -> None:
        """Whether what is in flight is unanswered for long, or what is held not told of. One timer for all of it, and
        none while there is neither."""
        self._look_timer = None
        if self._closed or not (self._pipeline.in_flight or self._held):
            self._silent_looks = 0
            self._tell_flow()
            return
        looks_between = _LOOKS_BETWEEN if self._pipeline.in_flight else _LOOKS_BETWEEN_HELD
        self._silent_looks += 1
        self._look_timer = self._loop.call_later(_LOOK_S, self._look)
        self._tell_flow()
        if self._silent_looks < _SILENT_LOOKS:
            return
        if self._left is not None:
            self._left.give_up(f"{self._left.address} has been replaced and answers nothing")
            self._left = None
        elif (self._silent_looks - _SILENT_LOOKS) % looks_between == 0:
            self._ask_others()

    def _tell_flow(self) -> None:
        """Twice in a row: what is held for a moment is the usual pace of a full window."""
        held = self._held and not self._closed
        if held and self._was_held and not self._blocked:
            self._blocked = True
            self._client.events.tell(Blocked(self._queue, str(self._pipeline.allowance.why())))
        elif not held and self._blocked:
            self._blocked = False
            self._client.events.tell(Unblocked(self._queue))
        self._was_held = held

    @property
    def _held(self) -> bool:
        """Whether batches wait for credit: a node that hangs, or masters the log no more, may never give it."""
        return not self._pipeline.allowance.open and not self.idle

    def _ask_others(self) -> None:
        if self._asking is None and not self._closed and self._connection is not None and self._found is not None:
            self._asking = asyncio.ensure_future(self._follow(self._connection, self._found))

    async def _follow(self, connection: Connection, found: FoundQueue) -> None:
        """To a new master, if the other nodes know of one."""
        try:
            newer = await self._client.newer_master(found)
        except Closed:
            newer = None  # the client is closed
        finally:
            self._asking = None
        if newer is None or self._closed or connection is not self._connection:
            return
        self._leave()
        self._pipeline.left(MasterChanged(f"{newer.master} has become master of queue {self._queue!r}"))
        if self._pipeline.in_flight and self._silent_looks >= _SILENT_LOOKS:
            connection.give_up(f"{connection.address} answers nothing, and {newer.master} has become master")
            self._left = None
        self._reconnect(newer)

    def _reconnect(self, found: FoundQueue | None = None) -> None:
        if self._connecting is None and not self._closed and not self.idle:
            self._connecting = asyncio.ensure_future(self._connect_until_done(found))

    async def _connect_until_done(self, found: FoundQueue | None) -> None:
        backoff = Backoff(random.random)
        try:
            while not self.idle:
                try:
                    await self.connect(found)
                    break
                except MirrorlogError as error:
                    # Why it fails is the batches' to tell, at their deadline. No such queue is no exception: while
                    # the master is away, a mirror may answer that has not heard of it yet; unless that is for good.
                    found = None
                    if is_another(error):
                        self._pipeline.gone(error, self._loop.time())
                        break
                    self._pipeline.not_connected(error)
                    await asyncio.sleep(backoff.next_s())
                    self._pipeline.expire(self._loop.time())
        finally:
            self._connecting = None
        self.pump()
