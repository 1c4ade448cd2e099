"""Who is subscribed to groups of a log that this node masters, and how each of them ends. Thin."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.broker.consumer_groups.active_groups import Work
from mirrorlog.broker.consumer_groups.deliveries import Deliveries
from mirrorlog.broker.ports import Receiver
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.groups import SubscriptionEnded

# What a subscription with auto-ack was sent and its program has not taken. Pure.
#
# Such records are settled as they are sent, so they are in nobody's hands, and no prefetch would bound them: a program
# that is slower than the queue would have its client's memory filled, and would lose all of that when it dies. So they
# are counted here, and the client says what its program has taken (SETTLE, how extend: there is nothing to settle).
# The prefetch bounds them; a turn that begins below it may go beyond it once.
#
# Rejected: to stop at what the connection takes alone (the client reads it at once, for others on that connection
# wait); to keep them in the subscriber's hand (hands are what comes back when a connection goes, and these do not).


@dataclass(slots=True)
class Unread:
    """`records_max`, `bytes_max`: the prefetch; `size`: bytes that were sent for `records`."""

    records_max: int
    bytes_max: int
    records: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        """Whether nothing more is to be sent; never while there is nothing."""
        return self.records >= self.records_max or (self.records > 0 and self.size >= self.bytes_max)

    def sent(self, records: int, size: int) -> None:
        self.records += records
        self.size += size

    def taken(self, records: int) -> None:
        """By the program, as its client says. More than was sent is all of it. Of the bytes they are counted in
        proportion."""
        records = min(records, self.records)
        if records > 0:
            self.size -= self.size * records // self.records
            self.records -= records


@dataclass(slots=True)
class Pushed:
    """A subscription. `last`: the base queue offset of the batch it was sent last; `unread`: with auto-ack."""

    work: Work
    receiver: Receiver
    last: int = -1
    unread: Unread | None = None

    @property
    def held(self) -> bool:
        """Whether it takes no more at the moment."""
        return not self.receiver.endpoint.takes_records or (self.unread is not None and self.unread.full)


class PushedTable:
    """By the numbers of subscriptions. Whoever leaves it leaves the book too."""

    def __init__(self, book: SubscriptionBook, deliveries: Deliveries) -> None:
        self._book = book
        self._deliveries = deliveries
        self._pushed: dict[int, Pushed] = {}

    def __len__(self) -> int:
        return len(self._pushed)

    def __getitem__(self, number: int) -> Pushed:
        """Of a number that the book knows."""
        return self._pushed[number]

    def get(self, number: int) -> Pushed | None:
        return self._pushed.get(number)

    def items(self) -> list[tuple[int, Pushed]]:
        return list(self._pushed.items())

    def add(self, number: int, pushed: Pushed) -> None:
        self._pushed[number] = pushed

    def peer(self, number: int) -> str:
        """Whose it is, for people."""
        return self._pushed[number].receiver.endpoint.peer if number in self._pushed else "?"

    def end(self, number: int, receiver: Receiver, error: MirrorlogError | None) -> None:
        """It is no more, and is told `error`; None: its connection is gone, or it has asked for that."""
        self._pushed.pop(number, None)
        self._book.remove(number)
        if error is not None:
            ended = SubscriptionEnded(
                subscription=number, code=error.code, message=error.message, details=error.details
            )
            receiver.answer(frame(FrameType.ENDED, encode(ended)))

    def forget_if_done(self, number: int, work: Work) -> None:
        """One that was unsubscribed, and has nothing in hand any more."""
        if number in self._pushed and not work.delivery.knows(number):
            del self._pushed[number]
            self._book.remove(number)
            self._deliveries.drop_if_idle(work)
