"""Subscriptions without `await`: as `mirrorlog.client.Subscription`, over the loop of the client's thread.

Records cross from the loop in bunches, and settlements that nobody waits for cross back in bunches: a wake-up of the
other thread costs more than a record. What has crossed and was not given out goes back, at the close, as if it had not
been seen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mirrorlog.client.connection.let_go import warn_unclosed
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, Views
from mirrorlog.client.subscription import delivered as awaited
from mirrorlog.client.subscription import subscription as awaited_subscription
from mirrorlog.client.sync.caller import Caller, made
from mirrorlog.client.sync.given_record import SyncGivenRecord
from mirrorlog.client.sync.with_block import SyncWithBlock
from mirrorlog.errors import MirrorlogError

if TYPE_CHECKING:
    import pyarrow as pa


# Behind the deadlines of the calls themselves: they say more about what is wrong.
_MARGIN_S: Final = 5.0
# Records that cross together.
_BUNCH_MAX: Final = 256

_T = TypeVar("_T")


class Settleable:
    """Records that their user decides about, once; as `mirrorlog.client.subscription.delivered.Settleable`."""

    __slots__ = ("_awaited", "_subscription")

    def __init__(self, subscription: Subscription, of: awaited.Settleable) -> None:
        self._subscription = subscription
        self._awaited = of

    @property
    def awaited(self) -> awaited.Settleable:
        """What is behind it, to be used on the client's thread only."""
        return self._awaited

    @property
    def offset(self) -> int:
        """The queue offset of the first, or only, record."""
        return self._awaited.offset

    @property
    def redelivered(self) -> bool:
        return self._awaited.redelivered

    @property
    def attempts(self) -> int:
        return self._awaited.attempts

    def ack(self, multiple: bool = False) -> None:
        """Done. Returns when that is confirmed at the subscription's level."""
        self._subscription.settle(lambda: self._awaited.ack(multiple))

    def ack_nowait(self, multiple: bool = False) -> None:
        """The same without waiting; `flush` tells what became of it."""
        self._subscription.settle_nowait(lambda: self._awaited.ack_nowait(multiple))

    def nack(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> None:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead."""
        self._subscription.settle(lambda: self._awaited.nack(requeue, delay_ms=delay_ms, multiple=multiple))

    def nack_nowait(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> None:
        """The same without waiting."""
        self._subscription.settle_nowait(
            lambda: self._awaited.nack_nowait(requeue, delay_ms=delay_ms, multiple=multiple)
        )

    def reject(self) -> None:
        """Dead: a dead letter, if the queue has a place for them."""
        self._subscription.settle(self._awaited.reject)

    def release(self, *, delay_ms: int = 0) -> None:
        """It comes again, as if it had not been seen."""
        self._subscription.settle(lambda: self._awaited.release(delay_ms=delay_ms))

    def extend(self) -> None:
        """The time begins anew after which the node takes it for forgotten."""
        self._subscription.settle(self._awaited.extend)

    def __repr__(self) -> str:
        return repr(self._awaited)


class Delivered(SyncGivenRecord, Settleable):
    """A record that was given out; as `mirrorlog.client.Delivered`."""

    __slots__ = ()
    _awaited: awaited.Delivered


class DeliveredBatch(Settleable):
    """Records of one batch that were given out together; as `mirrorlog.client.DeliveredBatch`."""

    __slots__ = ()
    _awaited: awaited.DeliveredBatch

    def __len__(self) -> int:
        """Records."""
        return len(self._awaited)

    @property
    def batch(self) -> ConsumedBatch:
        return self._awaited.batch

    @property
    def next(self) -> int:
        """The queue offset behind the last record."""
        return self._awaited.next

    @property
    def values(self) -> Views:
        return self._awaited.values

    @property
    def keys(self) -> Views:
        return self._awaited.keys

    def records(self) -> Iterator[ConsumedRecord]:
        """The records as objects of their own; they are settled together, by this."""
        return self._awaited.records()

    def to_arrow(self) -> pa.RecordBatch:
        """As of `ConsumedBatch`."""
        return self._awaited.to_arrow()


class Subscription(SyncWithBlock):
    """Of one queue's group. Made by `Client.subscribe`; use it with `with`, from any number of threads: each record
    goes to one of them. One that is let go without `close` is closed, with a ResourceWarning."""

    def __init__(self, client: Caller, queue: str, group: str, options: Mapping[str, Any]) -> None:
        """Use `Client.subscribe`. Raises BadRequest for a wrong option."""
        self.queue = queue
        self.group = group
        self._client = client
        self._thread = client.thread
        self._settle_s = options.get("settle_timeout_ms", 30_000) / 1000
        self._awaited: awaited_subscription.Subscription = client.call(
            lambda: made(lambda: client.awaited.subscribe(queue, group, **options)), what="subscribe"
        )
        self._awaited.kept = True
        self._crossed: deque[awaited.Delivered] = deque()
        # Held by whoever waits for more, so that each thread that reads has its share.
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._acts: deque[Callable[[], None]] = deque()
        self._awake = False
        self._failure: MirrorlogError | None = None

    # --- life ---

    def start(self) -> Self:
        """Find the queue's master and subscribe there. Raises as `mirrorlog.client.Subscription.start`."""
        self._client.call(self._awaited.start, what=f"subscription to {self.queue!r}")
        return self

    def close(self, *, requeue: bool = True) -> None:
        """Have nothing more given out, and wait until what was settled has ended; others that wait for records get
        ConnectionLost. Idempotent. `requeue`, and what it raises: as `mirrorlog.client.Subscription.close`."""
        if not self._thread.elsewhere:
            self._patiently(lambda: self._close(requeue), what="close")
            self._tell_failure()

    def abandon(self) -> None:
        """Close without waiting: what is settled and not confirmed ends as OutcomeUnknown. Idempotent."""
        self._thread.call_soon(self._awaited.abandon)

    def __del__(self) -> None:
        """Nobody has it, nor a record of it, any more: it is closed, as of `close`, without waiting."""
        awaited: awaited_subscription.Subscription | None = self.__dict__.get("_awaited")  # unless options were refused
        if awaited is None or not awaited.unclosed or self._thread.elsewhere:
            return
        what = f"a subscription to queue {self.queue!r}"
        close = partial(_close, awaited, self._crossed, requeue=True)
        self._thread.call_soon(partial(self._client.awaited.let_go.go_on, what, close))
        warn_unclosed(self, what)

    # --- reading ---

    def __iter__(self) -> Self:
        """Records in the order of the grants. Leave it and come back: it goes on behind the last one given out."""
        return self

    def __next__(self) -> Delivered:
        """Waits for as long as none comes. Raises as reading from `mirrorlog.client.Subscription` does."""
        while True:
            with suppress(IndexError):
                return Delivered(self, self._crossed.popleft())
            with self._reading:
                if not self._crossed:
                    self._cross(lambda: self._awaited.take(_BUNCH_MAX), timeout_s=None)

    def batches(self) -> Iterator[DeliveredBatch]:
        """Stretches of batches, each as much as was granted; for whoever does not read record by record as well."""
        while True:
            found = self._thread.run(self._awaited.next_batch, timeout_s=None, what=f"batches of {self.queue!r}")
            yield DeliveredBatch(self, found)

    def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[Delivered]:
        """Up to `max_records` records, fewer (perhaps none) when the time is up first; without `max_records` what comes
        first, as soon as it is there."""
        wanted = _BUNCH_MAX if max_records is None else max_records
        with self._reading:
            found = [self._crossed.popleft() for _ in range(min(wanted, len(self._crossed)))]
            if len(found) < wanted and not (found and max_records is None):
                left = None if max_records is None else wanted - len(found)
                found += self._thread.run(
                    lambda: self._awaited.receive(left, timeout_ms=timeout_ms),
                    timeout_s=timeout_ms / 1000 + _MARGIN_S,
                    what="receive",
                )
        return [Delivered(self, each) for each in found]

    # --- settling ---

    def settle(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """For what it gives out: settle it behind what was settled before, and wait until that has ended."""
        self._patiently(make, what="the settlement's confirm")

    def settle_nowait(self, act: Callable[[], None]) -> None:
        """For what it gives out: settle it without waiting."""
        self._thread.check_open()
        with self._lock:
            self._acts.append(act)
            if not self._awake:
                # In this order: whoever is interrupted between the two wakes it once too often.
                self._thread.call_soon(self._act)
                self._awake = True

    def flush(self) -> None:
        """Wait until everything settled so far has ended; raises the first error, since the last flush, of what nobody
        waited for."""
        self._patiently(self._awaited.flush, what="flush")
        self._tell_failure()

    # --- inside ---

    def _patiently(self, make: Callable[[], Coroutine[Any, Any, None]], *, what: str) -> None:
        async def behind_acts() -> None:
            self._act()  # who put one there may have been interrupted before the wake-up
            await make()

        self._client.change(behind_acts, what=what, more_s=self._settle_s)

    def _tell_failure(self) -> None:
        """Raises what something that nobody waited for failed with before it could leave."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _cross(
        self, make: Callable[[], Coroutine[Any, Any, list[awaited.Delivered]]], *, timeout_s: float | None
    ) -> None:
        async def crossed() -> None:
            # On the loop: whoever is interrupted while he waits loses nothing.
            self._crossed.extend(await make())

        self._thread.run(crossed, timeout_s=timeout_s, what=f"records of {self.queue!r}")

    # --- on the loop ---

    def _act(self) -> None:
        with self._lock:
            acts, self._acts = self._acts, deque()
            self._awake = False
        for act in acts:
            try:
                act()
            except MirrorlogError as error:
                self._failure = self._failure or error

    async def _close(self, requeue: bool) -> None:
        self._act()
        await _close(self._awaited, self._crossed, requeue=requeue)


async def _close(
    subscription: awaited_subscription.Subscription, crossed: deque[awaited.Delivered], *, requeue: bool
) -> None:
    """What has crossed and nobody has read goes back as if it had not been seen."""
    with suppress(MirrorlogError):  # its session is over: it is nobody's already
        while crossed:
            crossed.popleft().release_nowait()
    await subscription.close(requeue=requeue)


__all__ = ["Delivered", "DeliveredBatch", "Subscription"]
