"""What a channel has given out: neighbours are settled as one, and whoever lives keeps what he works on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.doors.amqp.consuming import AmqpConsumer, Consuming, HeldGrant
from mirrorlog.errors import NoSuchQueue
from mirrorlog.wire.frames import How

ADDED = [(1, 0), (1, 1), (1, 2), (2, 3), (1, 9)]
"""(grant, queue offset) of what is unacknowledged, by tag from 1 on."""


class Subscription:
    """Notes what is settled. `gone`: its queue is not there any more."""

    def __init__(self, *, gone: bool = False) -> None:
        self.settled: list[tuple[int, int, int, How]] = []
        self._gone = gone

    def settle_nowait(self, granted: Granted, first: int, following: int, how: How) -> None:
        if self._gone:
            raise NoSuchQueue("it was deleted")
        self.settled.append((granted.session, first, following, how))


def consuming(subscription: Subscription) -> Consuming:
    found = Consuming(cast(Any, SimpleNamespace()), 1)
    consumer = cast(AmqpConsumer, SimpleNamespace(subscription=subscription))
    grants = {number: Granted(0, 10, session=number, epoch=1) for number in (1, 2)}
    found.restore([(at, HeldGrant(consumer, grants[grant], offset)) for at, (grant, offset) in enumerate(ADDED, 1)])
    return found


def test_neighbours_are_settled_as_one() -> None:
    """Goal: an ack of many is a few settlements. Method: all, of two grants, with a hole."""
    subscription = Subscription()
    consuming(subscription).settle(5, How.ACK, multiple=True)
    assert subscription.settled == [(1, 0, 3, How.ACK), (2, 3, 4, How.ACK), (1, 9, 10, How.ACK)]


def test_who_lives_keeps_what_he_works_on() -> None:
    """Goal: a long task is not taken for forgotten (celery#6760). Method: one is settled; the time of the others begins
    anew, and they are unacknowledged as before."""
    subscription = Subscription()
    channel = consuming(subscription)
    channel.settle(2, How.ACK, multiple=False)
    subscription.settled.clear()
    channel.extend()
    expected = [(1, 0, 1), (1, 2, 3), (2, 3, 4), (1, 9, 10)]
    assert subscription.settled == [(*each, How.EXTEND) for each in expected]
    subscription.settled.clear()
    channel.recover()
    assert subscription.settled == [(*each, How.RETURN) for each in expected]


def test_an_ack_of_a_deleted_queues_message_is_no_fault() -> None:
    """Goal: as RabbitMQ has it: the channel stays. Method: its subscription says that the queue is gone."""
    channel = consuming(Subscription(gone=True))
    channel.settle(0, How.ACK, multiple=True)
    channel.extend()
