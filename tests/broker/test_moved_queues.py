"""In which of a node's logs a queue is when it has left the one in which it was declared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.errors import NoSuchQueue, QueueMoving
from mirrorlog.queues.changes import QueueArrived, QueueArriving, QueueHandedOver, QueueLeft, QueueOpened
from tests.queues.statelog import Master
from tests.queues.test_moves import arrive, say


def hosted(*masters: Master) -> tuple[HostedLogs, list[Any]]:
    """Logs of these, as far as a look-up needs them."""
    logs = [
        SimpleNamespace(
            log_id=UUID(int=master.number),
            state=HostedState.MASTER,
            assignment=SimpleNamespace(log_number=master.number),
            replica=SimpleNamespace(damage=None, queues=master.derived.registry),
        )
        for master in masters
    ]
    found = HostedLogs()
    for log in logs:
        found.add(cast(Any, log))
    return found, logs


def test_a_queue_is_looked_for_where_it_is_and_not_where_its_id_comes_from() -> None:
    one, other, third = Master(number=1), Master(number=2), Master(number=3)
    queue_id = one.declare("q")
    logs, (first, second, _) = hosted(one, other, third)
    assert logs.of_queue(queue_id) is first
    say(one, QueueLeft(queue_id=queue_id, move=5, target="two", next_queue_offset=0))
    arrive(other, queue_id, move=5)
    with pytest.raises(QueueMoving):
        logs.of_queue(queue_id).replica.queues.find_id(queue_id)
    say(other, QueueOpened(queue_id=queue_id, move=5))
    assert logs.of_queue(queue_id) is second
    say(one, QueueHandedOver(queue_id=queue_id, move=5, freed=True))
    assert logs.of_queue(queue_id) is second
    logs.remove(second)
    with pytest.raises(QueueMoving, match="has moved to log two"):
        logs.of_queue(queue_id).replica.queues.find_id(queue_id)


def test_a_visitor_that_left_again_is_told_of_by_the_log_that_had_it() -> None:
    one, other = Master(number=1), Master(number=2)
    queue_id = one.declare("q")
    logs, (second,) = hosted(other)
    with pytest.raises(NoSuchQueue):
        logs.of_queue(queue_id)
    say(other, QueueArriving(queue_id=queue_id, move=5, source="one", first=0))
    say(other, QueueArrived(queue_id=queue_id, move=5))
    say(other, QueueOpened(queue_id=queue_id, move=5))
    say(other, QueueLeft(queue_id=queue_id, move=6, target="three", next_queue_offset=0))
    assert logs.of_queue(queue_id) is second
    with pytest.raises(QueueMoving, match="log three"):
        second.replica.queues.find_id(queue_id)


def test_a_record_is_read_where_it_is() -> None:
    """A queue has been in three logs of one node, and two of them have records of it."""
    one, other, third = Master(number=1), Master(number=2), Master(number=3)
    queue_id = one.declare("q")
    logs, (first, second, last) = hosted(one, other, third)
    say(one, QueueLeft(queue_id=queue_id, move=5, target="two", next_queue_offset=40))
    arrive(other, queue_id, move=5)
    say(other, QueueOpened(queue_id=queue_id, move=5))
    say(one, QueueHandedOver(queue_id=queue_id, move=5))
    assert [logs.to_read(queue_id, at) for at in (0, 39, 40, 99)] == [first, first, second, second]
    say(other, QueueLeft(queue_id=queue_id, move=6, target="three", next_queue_offset=60))
    arrive(third, queue_id, move=6, first=60)
    say(third, QueueOpened(queue_id=queue_id, move=6))
    assert [logs.to_read(queue_id, at) for at in (0, 39, 40, 59, 60)] == [first, first, second, second, last]
    say(one, QueueHandedOver(queue_id=queue_id, move=5, freed=True))
    refusal = second.replica.queues.moves.elsewhere(queue_id, 39)
    assert isinstance(refusal, QueueMoving)
    assert second.replica.queues.moves.elsewhere(queue_id, 40) is None
    assert logs.to_read(queue_id, 0) is second
