"""In which of a node's logs a queue is when it has left the one in which it was declared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.cluster.state.placements import Span
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
    other.confirm_all()
    refusal = second.replica.queues.moves.elsewhere(queue_id, 39)
    assert isinstance(refusal, QueueMoving)
    assert second.replica.queues.moves.elsewhere(queue_id, 40) is None
    assert logs.to_read(queue_id, 0) is second


def came(master: Master, queue_id: int, move: int, first: int) -> None:
    arrive(master, queue_id, move=move, first=first)
    say(master, QueueOpened(queue_id=queue_id, move=move))


def test_a_log_that_the_queue_has_come_back_to_has_what_is_before_and_behind_another_ones() -> None:
    """By the spans, in one log and the other by turns; without them the smallest end decided, and it was the other
    one's. What nobody has any more is for the log that the queue is in to tell."""
    one, other = Master(number=1), Master(number=2)
    queue_id = one.declare("q")
    logs, (first, second) = hosted(one, other)
    spans = [Span(str(log.log_id), at) for log, at in ((first, 0), (second, 40), (first, 60), (second, 80))]
    known: list[Span] = []
    logs.spans = {"q": known, "v": known}  # the name by which it comes to other logs here
    say(one, QueueLeft(queue_id=queue_id, move=5, target="two", next_queue_offset=40))
    came(other, queue_id, move=5, first=40)
    say(other, QueueLeft(queue_id=queue_id, move=6, target="one", next_queue_offset=60))
    came(one, queue_id, move=6, first=60)
    known += spans[:3]
    assert [logs.to_read(queue_id, at) for at in (0, 39, 40, 59, 60)] == [first, first, second, second, first]
    say(one, QueueLeft(queue_id=queue_id, move=7, target="two", next_queue_offset=80))
    came(other, queue_id, move=7, first=80)
    known[:] = spans
    by_turns = [first, first, second, second, first, first, second]
    assert [logs.to_read(queue_id, at) for at in (0, 39, 40, 59, 60, 79, 80)] == by_turns
    known[0] = Span(spans[0].log_id, 0, ended=True)
    assert [logs.to_read(queue_id, at) for at in (0, 40, 60)] == [second, second, first]


def test_what_does_not_move_is_found_by_one_look() -> None:
    """In the log that gave its id out, however many others there are."""
    one = Master(number=1)
    queue_id = one.declare("q")
    logs, (first,) = hosted(one)
    broken: Any = SimpleNamespace(
        log_id=UUID(int=9), state=HostedState.MASTER, assignment=SimpleNamespace(log_number=9), replica=None
    )
    logs.add(broken)
    assert logs.to_read(queue_id, 7) is first


def test_of_several_copies_that_have_a_queue_the_one_that_it_is_in_is_asked() -> None:
    """Goal: nobody is sent around by a copy that has not heard that a queue has left. Method: a queue went from its own
    log to a second and a third one; of the first two there are copies here that are behind, and it may be back. Without
    the log that it is in, it is elsewhere."""
    copies = [Master(number=number) for number in (1, 2, 3)]
    queue_id = copies[0].declare("q")
    logs, hosted_logs = hosted(*copies)
    known: list[Span] = []
    logs.spans = {"q": known, "v": known}  # the name by which it comes to other logs here
    for number in (1, 2):
        came(copies[number], queue_id, move=4 + number, first=10 * number)
    for last in ([0], [0, 1], [0, 1, 2], [0, 2, 1], [0, 1, 2, 0]):
        known[:] = [Span(str(hosted_logs[number].log_id), 10 * at) for at, number in enumerate(last)]
        assert logs.of_queue(queue_id) is hosted_logs[last[-1]], last
    logs.remove(hosted_logs[0])
    with pytest.raises(QueueMoving, match="is in log"):
        logs.of_queue(queue_id)


def test_a_copy_that_does_not_know_that_a_queue_has_left_gives_its_records_and_takes_none() -> None:
    """It is behind, or a loss has taken that word: where the queue is the cluster says."""
    one = Master(number=1)
    queue_id = one.declare("q")
    logs, (first,) = hosted(one)
    logs.spans = {"q": [Span(str(first.log_id), 0), Span(str(UUID(int=9)), 40)]}
    with pytest.raises(QueueMoving) as refused:
        logs.of_queue(queue_id)
    assert refused.value.details["log"] == str(UUID(int=9))
    assert logs.to_read(queue_id, 39) is first
    with pytest.raises(QueueMoving):
        logs.to_read(queue_id, 40)


def test_a_log_that_is_named_is_looked_in_as_long_as_the_queue_has_records_there() -> None:
    one, other = Master(number=1), Master(number=2)
    queue_id = one.declare("q")
    logs, (first, second) = hosted(one, other)
    log_id = str(first.log_id)
    assert logs.with_records(log_id, "q") == (first, queue_id)
    say(one, QueueLeft(queue_id=queue_id, move=5, target="two", next_queue_offset=40))
    say(other, QueueArriving(queue_id=queue_id, move=5, source="one", first=40))
    say(one, QueueHandedOver(queue_id=queue_id, move=5))
    assert logs.with_records(log_id, "q") == (first, queue_id)
    for wrong_log, queue in ((log_id, "another"), (str(second.log_id), "q"), (str(UUID(int=9)), "q"), ("no id", "q")):
        with pytest.raises(QueueMoving, match="ask for its spans"):
            logs.with_records(wrong_log, queue)
    say(one, QueueHandedOver(queue_id=queue_id, move=5, freed=True))
    with pytest.raises(QueueMoving, match="no records of queue 'q'"):
        logs.with_records(log_id, "q")
