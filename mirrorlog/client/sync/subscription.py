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
from typing import Any, Final, Self

from mirrorlog.client.arguments import checked
from mirrorlog.client.consumer.records import ConsumedRecord, GrantedRecord
from mirrorlog.client.properties import SendOptions
from mirrorlog.client.serializers import Deserializer
from mirrorlog.client.subscription.delivered import DeliveredRecord, DeliveredStretch
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.client.sync.blocking import MARGIN_S, Calls, ClosedFace, options_of, seconds
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import How

# Records that cross together.
_BUNCH_MAX: Final = 256

_Crossed = deque[tuple[Granted, ConsumedRecord]]


class BlockingDelivered(DeliveredRecord[None]):
    """A record that was given out; calls that settle it block until that is confirmed."""

    __slots__ = ()


class BlockingDeliveredBatch(DeliveredStretch[None]):
    """Records of one batch that were given out together; calls that settle them block until that is confirmed."""

    __slots__ = ()


@checked(internal=("settle", "settle_nowait", "answer", "origin", "deserializer"))
class BlockingSubscription(ClosedFace[Subscription]):
    """Of one queue's group. Made by `Client.subscribe`; use it with `with`, from any number of threads: each record
    goes to one of them. One that is let go without `close` is closed, with a ResourceWarning."""

    def __init__(self, client: Calls, queue: str, group: str, options: Mapping[str, Any]) -> None:
        """Use `Client.subscribe`. Raises BadRequest for a wrong option."""
        self.queue = queue
        self.group = group
        self._thread = client.thread
        self._crossed: _Crossed = deque()
        # Held by whoever waits for more, so that each thread that reads has its share.
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._acts: deque[Callable[[], None]] = deque()
        self._awake = False
        self._failure: MirrorlogError | None = None
        of = client.made(lambda: client.awaited.subscribe(queue, group, **options), what="subscribe")
        super().__init__(client, of, longer_s=seconds(options, "settle_timeout_ms", 30_000))
        of.kept = True

    # --- life ---

    def start(self) -> Self:
        """Find the queue's master and subscribe there. Raises as `mirrorlog.client.Subscription.start`."""
        self._client.call(self._of.start, what=f"subscription to {self.queue!r}")
        return self

    def close(self, *, requeue: bool = True) -> None:
        """Have nothing more given out, and wait until what was settled has ended; others that wait for records get
        Closed. Idempotent. `requeue`, and what it raises: as `mirrorlog.client.Subscription.close`."""
        if not self._thread.elsewhere:
            self._patiently(partial(_close, self._of, self._crossed, requeue=requeue), what="close")
            self._tell_failure()

    def _unfinished(self) -> tuple[str, Callable[[], Coroutine[Any, Any, None]], str]:
        return f"a subscription to queue {self.queue!r}", partial(_close, self._of, self._crossed, requeue=True), ""

    # --- reading ---

    def __iter__(self) -> Self:
        """Records in the order of the grants. Leave it and come back: it goes on behind the last one given out."""
        return self

    def __next__(self) -> BlockingDelivered:
        """Waits for as long as none comes. Raises as reading from `mirrorlog.client.Subscription` does."""
        while True:
            with suppress(IndexError):
                return BlockingDelivered(self, *self._crossed.popleft())
            with self._reading:
                if not self._crossed:
                    self._thread.run(self._cross, timeout_s=None, what=f"records of {self.queue!r}")

    def batches(self) -> Iterator[BlockingDeliveredBatch]:
        """Stretches of batches, each as much as was granted; for whoever does not read record by record as well."""
        while True:
            found = self._thread.run(
                lambda: self._of.read_on(self._of.reader.batch), timeout_s=None, what=f"batches of {self.queue!r}"
            )
            yield BlockingDeliveredBatch(self, *found)

    def receive(self, max_records: int | None = None, *, timeout_ms: int) -> list[BlockingDelivered]:
        """Up to `max_records` records, fewer when as much as the prefetch is unsettled, and fewer (perhaps none) when
        the time is up first; without `max_records` what comes first, as soon as it is there."""
        wanted = _BUNCH_MAX if max_records is None else max_records
        with self._reading:
            found = [self._crossed.popleft() for _ in range(min(wanted, len(self._crossed)))]
            if len(found) < wanted and not (found and max_records is None):
                left = None if max_records is None else wanted - len(found)
                found += self._thread.run(
                    lambda: self._of.reader.receive(left, timeout_ms=timeout_ms, has_some=bool(found)),
                    timeout_s=timeout_ms / 1000 + MARGIN_S,
                    what="receive",
                )
        return [BlockingDelivered(self, *each) for each in found]

    @options_of(Subscription.set_prefetch)
    def set_prefetch(self, *args: Any, **asked: Any) -> None:
        """As of `mirrorlog.client.Subscription`."""
        self._patiently(partial(self._of.set_prefetch, *args, **asked), what="the prefetch")

    def pause(self) -> None:
        """As of `mirrorlog.client.Subscription`."""
        self._patiently(self._of.pause, what="the pause")

    def resume(self) -> None:
        """As of `mirrorlog.client.Subscription`."""
        self._patiently(self._of.resume, what="the end of the pause")

    # --- settling ---

    @property
    def origin(self) -> Subscription:
        """For what it gives out: the subscription that has the grants."""
        return self._of

    @property
    def deserializer(self) -> Deserializer | None:
        """For what it gives out."""
        return self._of.deserializer

    @options_of(Subscription.settle)
    def settle(self, *records: Any, **how: Any) -> None:
        """For what it gives out: settle it behind what was settled before, and wait until that has ended."""
        self._patiently(partial(self._of.settle, *records, **how), what="the settlement's confirm")

    @options_of(Subscription.settle_nowait)
    def settle_nowait(self, *records: Any, **how: Any) -> None:
        """For what it gives out: settle it without waiting."""
        self._thread.check_open()
        with self._lock:
            self._acts.append(partial(self._of.settle_nowait, *records, **how))
            if not self._awake:
                # In this order: whoever is interrupted between the two wakes it once too often.
                self._thread.call_soon(self._act)
                self._awake = True

    def answer(self, record: GrantedRecord, value: bytes | str | None, asked: SendOptions) -> None:
        """For what it gives out: answer a request."""
        self._client.change(lambda: self._of.answer(record, value, asked), what="reply", more_s=self._longer_s)

    def flush(self) -> None:
        """Wait until everything settled so far has ended; raises the first error, since the last flush, of what nobody
        waited for."""
        self._patiently(self._of.flush, what="flush")
        self._tell_failure()

    # --- inside ---

    def _patiently(self, make: Callable[[], Coroutine[Any, Any, None]], *, what: str) -> None:
        async def behind_acts() -> None:
            self._act()  # who put one there may have been interrupted before the wake-up
            await make()

        self._client.change(behind_acts, what=what, more_s=self._longer_s)

    def _tell_failure(self) -> None:
        """Raises what something that nobody waited for failed with before it could leave."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    # --- on the loop ---

    async def _cross(self) -> None:
        # On the loop: whoever is interrupted while he waits loses nothing.
        self._crossed.extend(await self._of.read_on(lambda: self._of.reader.records(_BUNCH_MAX)))

    def _act(self) -> None:
        with self._lock:
            acts, self._acts = self._acts, deque()
            self._awake = False
        for act in acts:
            try:
                act()
            except MirrorlogError as error:
                self._failure = self._failure or error


async def _close(subscription: Subscription, crossed: _Crossed, *, requeue: bool) -> None:
    """What has crossed and nobody has read goes back as if it had not been seen."""
    with suppress(MirrorlogError):  # its session is over: it is nobody's already
        while crossed:
            granted, record = crossed.popleft()
            subscription.settle_nowait(granted, record.queue_offset, record.queue_offset + 1, How.RELEASE)
    await subscription.close(requeue=requeue)
