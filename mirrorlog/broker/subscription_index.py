"""The subscriptions of a node: which number is whose, and which log serves it."""

from __future__ import annotations

from typing import Final

from mirrorlog.broker.ports import Receiver, ServesSubscriptions
from mirrorlog.errors import NoSuchSubscription, Overloaded

SUBSCRIPTIONS_MAX: Final = 100_000
_NUMBERS: Final = 1 << 32
"""Frames have 32 bits for the number of a subscription."""


class SubscriptionBook:
    """Of all connections and all logs. Numbers of subscriptions go round: one is used again when all others were, and
    it is nobody's. Who waits for a lease has a number that is in no frame, above all of these."""

    def __init__(self, subscriptions_max: int = SUBSCRIPTIONS_MAX) -> None:
        self._max = subscriptions_max
        self._last = 0
        self._last_wait = _NUMBERS
        self._deliverers: dict[int, ServesSubscriptions] = {}
        self._receivers: dict[int, Receiver] = {}
        self._numbers: dict[Receiver, set[int]] = {}

    def __len__(self) -> int:
        return len(self._deliverers)

    def next_number(self) -> int:
        """For a subscription."""
        self._last = self._last % (_NUMBERS - 1) + 1
        while self._last in self._deliverers:
            self._last = self._last % (_NUMBERS - 1) + 1
        return self._last

    def next_wait(self) -> int:
        """For whoever waits for a lease; no subscription's."""
        self._last_wait += 1
        return self._last_wait

    def add(self, number: int, receiver: Receiver, deliverer: ServesSubscriptions) -> None:
        """Raises Overloaded."""
        if len(self._deliverers) >= self._max:
            raise Overloaded(
                f"this node has {self._max} subscriptions (limits.max_subscriptions)", limit="max_subscriptions"
            )
        self._deliverers[number], self._receivers[number] = deliverer, receiver
        self._numbers.setdefault(receiver, set()).add(number)

    def remove(self, number: int) -> None:
        """It has ended."""
        self._deliverers.pop(number, None)
        receiver = self._receivers.pop(number, None)
        if receiver is not None:
            numbers = self._numbers[receiver]
            numbers.discard(number)
            if not numbers:
                del self._numbers[receiver]

    def deliverer(self, number: int, receiver: Receiver) -> ServesSubscriptions:
        """Who serves it. Raises NoSuchSubscription, for another connection's too."""
        if self._receivers.get(number) is not receiver:
            raise NoSuchSubscription(f"subscription {number} is none of this connection; subscribe again")
        return self._deliverers[number]

    def serving(self, number: int) -> ServesSubscriptions | None:
        """Who serves it, whosever it is; None when it has ended."""
        return self._deliverers.get(number)

    def count(self, receiver: Receiver) -> int:
        """How many belong to a connection."""
        return len(self._numbers.get(receiver, ()))

    def of(self, receiver: Receiver) -> list[tuple[int, ServesSubscriptions]]:
        """All that belong to a connection."""
        return [(number, self._deliverers[number]) for number in sorted(self._numbers.get(receiver, ()))]
