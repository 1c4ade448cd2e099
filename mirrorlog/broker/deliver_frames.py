"""The frames by which subscribers are given records: the grants, and the bytes of their batches as far as the log's
memory has them and they were not sent to this one before (docs/decisions/0034). Thin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirrorlog.broker.pushed import Pushed
from mirrorlog.broker.reached_batches import ReachedBatches
from mirrorlog.broker.replica import Replica
from mirrorlog.broker.subscription_book import SubscriptionBook
from mirrorlog.wire.frames import Grant, deliver_head


class DeliverFrames:
    """`bytes_max`: of batches in one frame, but for a larger one; `now`: the loop's clock in s."""

    def __init__(
        self,
        replica: Replica,
        book: SubscriptionBook,
        reached: ReachedBatches,
        *,
        bytes_max: int,
        now: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._book = book
        self._reached = reached
        self._bytes_max = bytes_max
        self._now = now

    def send(self, number: int, pushed: Pushed, grants: Sequence[Grant]) -> None:
        """To the subscription of that number."""
        parts, sent = self._reached.read(grants, pushed.last, self._bytes_max)
        if sent:
            pushed.last = sent[-1].base_queue_offset
        queue_id, size = pushed.work.key[0], sum(map(len, parts))
        head = deliver_head(
            subscription=number,
            epoch=self._replica.epochs.current,
            next_confirmed=self._replica.index.next_confirmed(queue_id),
            grants=grants,
            batch_count=len(sent),
            batches_bytes=size,
        )
        self._replica.counters.queue(queue_id).granted(grants, self._now())
        pushed.receiver.endpoint.send([head, *parts])
        if pushed.unread is not None:
            pushed.unread.sent(sum(each.next - each.first for each in grants), size)
            pushed.work.delivery.hold(number, pushed.held)
        if pushed.receiver.endpoint.paused:
            self._hold_all(pushed)

    def _hold_all(self, pushed: Pushed) -> None:
        """All that its connection has, or each of a thousand would put one more frame into its buffer."""
        for each, deliverer in self._book.of(pushed.receiver):
            deliverer.held(each)
