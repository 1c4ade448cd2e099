"""The checkers of dead letters can fail: bugs put into real nodes are found, each by a plan that gives it a chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from typing import Any

import pytest
from msgspec import structs

from mirrorlog.broker.consumer_groups.deliveries import GroupForwarding
from mirrorlog.broker.dead_letters import forwarder as departure_sending
from mirrorlog.broker.dead_letters.forwarder import DeadLetterForwarder
from mirrorlog.broker.dead_letters.journal import DeadLetterJournal
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Addressed, Change, ForwardingStarted
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN, Forwarding, ForwardingTable, QueueForwarding
from mirrorlog.queues.dead_letters.message import Death
from mirrorlog.queues.delivery.settlement import Outcomes, deaths
from mirrorlog.queues.groups.ledger import State
from mirrorlog.queues.limits.length import QueueLengthView
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.frames import How
from sim import cluster_groups
from sim.cluster_dead_letters import letter_queues_of
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from tests.sim.seeded import found_in, small_plan

SEEDS_MAX = 4
SEED = "seeded letters {}"
PEACE: tuple[Event, ...] = ()
SESSIONS = (
    Event(0.4, "doze", ("takers1", 0.6)),
    Event(0.5, "desert", ("takers1", 0.2)),
    Event(1.2, "doze", ("takers2", 0.5)),
    Event(1.3, "reset", ("@master", "takers2")),
)
SENT_BACK = tuple(Event(0.4 + 0.3 * number, "redrive", ()) for number in range(9))
AT_SOURCES = tuple(Event(0.3 + 0.7 * at, "intercept", ("source", "kill", 0.6, 0.006 * at, 0.2)) for at in range(5))
AT_TARGETS = tuple(Event(0.3 + number, "intercept", ("target", "kill", 0.8, 0.003, 0.3)) for number in range(3))
CUT_OFF = tuple(Event(at_s, "intercept", ("source", "isolate", 0.8, 0.003, 2.0)) for at_s in (0.3, 3.0))
BEHIND = (Event(0.3, "cut", ("a", "b", 1.2)), Event(0.35, "intercept", ("source", "kill", 1.0, 0.05, 2.0)))


def caught(
    monkeypatch: pytest.MonkeyPatch,
    *events: Event,
    by: tuple[str, ...],
    source: str = "court",
    groups: bool = False,
    apart: bool = False,
    begin: int = 0,
) -> bool:
    """Whether one of those checks finds something in the first schedules, from one on, in which that queue is.
    `groups`: checks of groups, too; without these, nobody else can find it before. `apart`: letters go where no copy of
    the sources is."""
    if not groups:
        monkeypatch.setattr(cluster_groups, "check_groups", lambda groups: None)
    plans = [
        made for number in range(begin, begin + 40) if source in letter_queues_of((made := plan(number, events)).seed)
    ]
    far = {"nodes": 4, "copies": 2, "logs": ("memory", "memory", "disk")} if apart else {}
    return found_in((replace(each, **far) for each in plans[:SEEDS_MAX]), by)


def plan(number: int, events: tuple[Event, ...]) -> Plan:
    kinds = {"groups": True, "letters": True}
    return small_plan(SEED.format(number), events, logs=("memory", "disk"), seconds=3.5, **kinds)


@pytest.mark.long
@pytest.mark.parametrize("events", [(*AT_SOURCES, *SENT_BACK), (*AT_TARGETS, *SESSIONS), CUT_OFF])
def test_nothing_is_found_without_a_bug(events: tuple[Event, ...]) -> None:
    """By such plans, with nothing put in; and each of them hits what it aims at."""
    found = attempt(plan(0, events))
    assert not isinstance(found, Failure), found.reason
    assert found["fault: intercept"]
    assert found["letters: rejected"]


# --- once ---


@pytest.mark.long
def test_letters_that_are_sent_again_under_other_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By masters each of which sends as a producer of its own."""
    numbers = count(1)
    monkeypatch.setattr(DeadLetterJournal, "producer", lambda self, queue_id: next(numbers))
    assert caught(monkeypatch, *AT_SOURCES, by=("letters come once",))


@pytest.mark.long
def test_letters_of_which_nobody_knows_are_found_when_they_are_taken_for_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a master that does not wait for who does not answer."""
    hand_over = DeadLetterLinks.hand_over

    async def once(self: DeadLetterLinks, *args: Any, **facts: Any) -> None:
        try:
            await hand_over(self, *args, **facts)
        except MirrorlogError:
            return

    monkeypatch.setattr(DeadLetterLinks, "hand_over", once)
    assert caught(monkeypatch, *AT_TARGETS, by=("letters come once",))


@pytest.mark.long
def test_letters_that_are_sent_before_it_is_known_where_they_go_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a master that sends what it has addressed, and waits for no copy. The only one is cut off, and the letters go
    to other nodes."""

    async def at_once(self: DeadLetterJournal) -> None:
        return

    monkeypatch.setattr(DeadLetterJournal, "confirmed", at_once)
    assert caught(monkeypatch, *BEHIND, by=("letters come once", "letters keep their order"), apart=True, begin=20)


def test_records_that_die_without_a_letter_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By settling what was rejected as in a queue that has none."""

    def die(self: GroupForwarding, queue_id: int, group: str, ranges: Sequence[Range], why: str) -> list[Change]:
        return deaths(group, ranges, why)

    monkeypatch.setattr(GroupForwarding, "die", die)
    assert caught(monkeypatch, *PEACE, by=("letters come once",))


@pytest.mark.long
def test_a_record_that_is_sent_back_and_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a departure that gives everything back when it is done."""
    settle = DeadLetterJournal.settle

    def stay(self: DeadLetterJournal, queue_id: int, departure: Forwarding, piece: Addressed) -> None:
        if departure.reason == REDRIVEN:
            piece = structs.replace(piece, kept=piece.ranges)
        settle(self, queue_id, departure, piece)

    monkeypatch.setattr(DeadLetterJournal, "settle", stay)
    assert caught(monkeypatch, *SENT_BACK, by=("what is sent back comes once",))


@pytest.mark.long
def test_a_departure_that_gives_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that never goes on after it had to wait."""
    pause = DeadLetterForwarder._pause

    def for_ever(self: DeadLetterForwarder, queue_id: int, why: str) -> None:
        pause(self, queue_id, why)
        self._pauses[queue_id].until = inf

    monkeypatch.setattr(DeadLetterForwarder, "_pause", for_ever)
    storm = (*AT_TARGETS, Event(3.3, "intercept", ("target", "kill", 3.0, 0.0, 0.1)))
    assert caught(monkeypatch, *storm, by=("a group is not done",))


# --- of what, and in which order ---


def test_a_rejection_that_is_taken_for_an_ack_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that settles what is rejected."""
    monkeypatch.setattr(Outcomes, "settlement", _as({How.DEAD: How.ACK}))
    assert caught(monkeypatch, *PEACE, by=("what is rejected leaves",))


def test_an_ack_that_is_taken_for_a_rejection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that has everything die."""
    monkeypatch.setattr(Outcomes, "settlement", _as({How.ACK: How.DEAD}))
    assert caught(monkeypatch, *PEACE, by=("records die for a reason", "what is acknowledged stays"))


def _as(others: dict[How, How]) -> Any:
    settlement = Outcomes.settlement

    def another(self: Outcomes, number: int, how: How, *args: Any, **facts: Any) -> Any:
        return settlement(self, number, others.get(how, how), *args, **facts)

    return another


@pytest.mark.long
def test_an_ack_that_is_answered_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that answers as soon as it has it itself: what it knew alone dies after all."""
    wait_at = LogPublisher.wait_at

    def at_once(self: LogPublisher, end: int, level: int, tell: Any) -> None:
        wait_at(self, end, 1, tell)

    monkeypatch.setattr(LogPublisher, "wait_at", at_once)
    storm = tuple(Event(0.3 + 0.8 * number, "isolate", ("@master", "nodes", 0.7)) for number in range(4))
    assert caught(monkeypatch, *storm, by=("what is acknowledged stays", "what is rejected leaves"), source="brief")


def test_a_letter_that_tells_of_another_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that takes the one for the other."""
    letter = departure_sending.dead_letter

    def elsewhere(record: Record, death: Death, **facts: Any) -> Record:
        return letter(record, death._replace(queue="elsewhere"), **facts)

    monkeypatch.setattr(departure_sending, "dead_letter", elsewhere)
    assert caught(monkeypatch, *PEACE, by=("letters tell how they died",))


def test_letters_that_overtake_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes that begin with the departure that came last."""
    departing = QueueForwarding._started

    def first(self: QueueForwarding, change: ForwardingStarted) -> QueueForwarding:
        made = departing(self, change)
        if made is self:
            return made
        return replace(made, forwardings=(made.forwardings[-1], *made.forwardings[:-1]))

    monkeypatch.setattr(QueueForwarding, "_started", first)
    storm = (Event(0.4, "isolate", ("b", "nodes", 2.5)), Event(0.4, "isolate", ("c", "nodes", 2.5)))
    assert caught(monkeypatch, *storm, by=("letters keep their order",), source="fresh")


@pytest.mark.long
def test_a_letter_of_what_somebody_has_in_hand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By taking for ready what is out, in a queue that is too long."""

    def all_of_it(self: QueueLengthView) -> Iterator[tuple[int, int]]:
        if self.ledger is not None:
            for low, high, state in self.ledger.runs(self.low, self.until):
                if state in (State.FREE, State.OUT):
                    yield low, high

    monkeypatch.setattr(QueueLengthView, "ranges", all_of_it)
    assert caught(monkeypatch, *SESSIONS, by=("nothing leaves from a hand",), source="brief")


# --- what copies know ---


@pytest.mark.long
def test_a_departure_that_is_not_taken_back_at_a_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a former master that goes on with what its log has lost."""
    monkeypatch.setattr(ForwardingTable, "cut", lambda self, log_offset: None)
    assert caught(monkeypatch, *CUT_OFF, by=("copies know the same",), groups=True)


@pytest.mark.long
def test_a_checkpoint_without_what_leaves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that tells nothing of departures."""
    monkeypatch.setattr(ForwardingTable, "state", lambda self, queue_id: None)
    found = ("a checkpoint tells the same", "copies know the same")
    assert caught(monkeypatch, *AT_SOURCES, by=found, groups=True)
