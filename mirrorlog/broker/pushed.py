"""Who is subscribed to groups of a log that this node masters, and how each of them ends. Thin."""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.broker.deliveries import Deliveries
from mirrorlog.broker.subscription_book import Receiver, SubscriptionBook
from mirrorlog.broker.unread import Unread
from mirrorlog.broker.works import Work
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages import SubscriptionEnded, encode


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
        return self.receiver.endpoint.paused or (self.unread is not None and self.unread.full)


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
