"""Queues that leave a log and arrive in one: what each change does to who is found, in any order that a log may have.

Method: a master's log in a list, and what it derives; cut at each border it must be as it was there, and from a
checkpoint on it must be as from the first byte on.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import NoSuchQueue, QueueMoving
from mirrorlog.queues.changes import (
    ArrivalDropped,
    Change,
    QueueArrived,
    QueueArriving,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueReturned,
    SpanCopied,
    encode_change,
)
from mirrorlog.queues.checkpoint_states import QueueState, encode_checkpoint, encode_state
from mirrorlog.queues.limits.holds import HoldRequest
from mirrorlog.queues.queue_table import id_base_of
from tests.queues.statelog import Derived, Master

VISITOR = id_base_of(7) + 5


def say(master: Master, change: Change) -> BatchHeader:
    return master.append(encode_change(change))


def left(master: Master, queue_id: int, move: int = 3) -> BatchHeader:
    return say(master, QueueLeft(queue_id=queue_id, move=move, target="log-b", next_queue_offset=9))


def arrive(master: Master, queue_id: int = VISITOR, move: int = 3, first: int = 40) -> None:
    """Up to where all of its states are there."""
    say(master, QueueArriving(queue_id=queue_id, move=move, source="log-a", first=first, producer_epoch_floor=6))
    state = QueueState(
        queue_id, "v", "i", {"x-message-ttl": 50}, first, {"g": ("l", 1, 7)}, master.log.end, master.log.end
    )
    master.append(encode_checkpoint([encode_state(state)]))
    say(master, QueueArrived(queue_id=queue_id, move=move))


def facts(derived: Derived) -> object:
    moves = derived.registry.moves
    return (
        derived.queue_facts(),
        derived.registry.visitors,
        {each: fact._replace(until=0) for each, fact in moves.left.items()},
        {each: fact._replace(until=0) for each, fact in moves.arriving.items()},
        sorted(moves.gone),
        {each: (queue.name, queue.newest) for each, queue in moves.aside.items()},
        derived.registry.any_gone,
        {each: at for each, at in derived.registry.start_offsets.items() if not derived.registry.is_gone(each)},
    )


def test_a_queue_that_left_is_told_of_and_takes_nothing_until_it_returns() -> None:
    master = Master()
    queue_id = master.declare("q")
    left(master, queue_id)
    registry = master.derived.registry
    for refused in (lambda: registry.find("q"), lambda: registry.find_id(queue_id), lambda: registry.declare("q", {})):
        with pytest.raises(QueueMoving):
            refused()
    assert registry.find_id(master.declare("another")).name == "another"
    named = registry.named("q")
    assert named is not None
    assert named.queue_id == queue_id, "whoever asks where it is is told so, until it is elsewhere"
    assert not registry.is_gone(queue_id)
    assert registry.keeps(queue_id)
    say(master, QueueReturned(queue_id=queue_id, move=3))
    assert registry.find("q") is registry.find_id(queue_id)
    assert not registry.moves.left


def test_one_that_is_handed_over_is_known_to_be_elsewhere_when_its_records_are_dead() -> None:
    master = Master()
    queue_id = master.declare("q")
    left(master, queue_id)
    say(master, QueueHandedOver(queue_id=queue_id, move=3))
    registry = master.derived.registry
    with pytest.raises(QueueMoving, match="has moved to log log-b"):
        registry.find_id(queue_id)
    with pytest.raises(QueueMoving):
        registry.find("q")
    assert registry.named("q") is None
    assert registry.name_of(queue_id) == "q"
    registry.check_read(queue_id, 8)
    with pytest.raises(QueueMoving):
        registry.check_read(queue_id, 9)
    assert registry.left_ids() == [queue_id]
    assert registry.declare("q", {}) is not None, "the name may be another queue's by now"
    say(master, QueueHandedOver(queue_id=queue_id, move=3, freed=True))
    assert registry.left_ids() == []
    assert registry.start_offsets == {queue_id: 9}
    with pytest.raises(NoSuchQueue):
        registry.find("q")
    master.confirm_all()
    with pytest.raises(QueueMoving):
        registry.find_id(queue_id)


def test_one_that_arrives_is_found_once_it_is_opened_and_is_a_visitor() -> None:
    master = Master()
    arrive(master)
    master.confirm_all()
    registry = master.derived.registry
    with pytest.raises(QueueMoving):
        registry.find_id(VISITOR)
    with pytest.raises(NoSuchQueue):
        registry.find_id(VISITOR + 1)
    assert registry.ttls == {}
    say(master, QueueOpened(queue_id=VISITOR, move=3))
    assert registry.find("v").positions == registry.find_id(VISITOR).newest
    assert registry.visitors == {VISITOR}
    assert registry.ttls == {VISITOR: 50}
    assert master.derived.producers.epoch_floor == 6
    assert master.derived.next_queue_offset(VISITOR) == 40
    assert master.declare("own") == 1, "ids of others are none of its block"


def test_an_arrival_that_is_dropped_leaves_nothing_and_may_come_again() -> None:
    master = Master()
    arrive(master)
    say(master, ArrivalDropped(queue_id=VISITOR, move=3))
    registry = master.derived.registry
    with pytest.raises(NoSuchQueue):
        registry.find_id(VISITOR)
    arrive(master, move=4)
    say(master, QueueOpened(queue_id=VISITOR, move=4))
    assert registry.find_id(VISITOR).name == "v"


def test_a_queue_that_comes_back_is_another_one_and_old_positions_are_not_its() -> None:
    master = Master()
    queue_id = master.declare("v")
    master.commit("v", "old", 3)
    left(master, queue_id)
    say(master, QueueHandedOver(queue_id=queue_id, move=3))
    arrive(master, queue_id, move=8)
    say(master, QueueOpened(queue_id=queue_id, move=8))
    master.confirm_all()
    registry = master.derived.registry
    assert list(registry.find_id(queue_id).positions) == ["g"]
    assert not registry.visitors
    assert not registry.moves.left
    assert not registry.any_gone


def test_a_visitor_that_is_deleted_makes_its_records_dead_from_a_checkpoint_on_too() -> None:
    master = Master()
    arrive(master)
    say(master, QueueOpened(queue_id=VISITOR, move=3))
    master.append(master.derived.registry.delete(VISITOR))
    master.confirm_all()
    began = master.checkpoint()[0][0].log_offset
    again = master.rebuilt(began)
    assert again.registry.any_gone
    assert again.registry.is_gone(VISITOR)


def story(master: Master) -> None:
    """All that a queue may go through, of one that goes, one that comes, and one that does both."""
    ids = [master.declare(name) for name in ("v", "w", "x")]
    master.commit("w", "g", 2)
    holds = master.derived.holds.set(ids[1], HoldRequest("t", "h", 1, 1000), next_confirmed=5, left_ms=0)
    assert holds is not None
    master.append(encode_change(holds, queue_id=ids[1]))
    left(master, ids[0])
    left(master, ids[1])
    say(master, QueueReturned(queue_id=ids[1], move=3))
    say(master, QueueHandedOver(queue_id=ids[0], move=3))
    arrive(master, VISITOR + 1, move=4)
    say(master, ArrivalDropped(queue_id=VISITOR + 1, move=4))
    arrive(master, ids[0], move=5)
    say(master, QueueOpened(queue_id=ids[0], move=5))
    left(master, ids[0], move=9)
    say(master, QueueHandedOver(queue_id=ids[0], move=9, freed=True))
    left(master, ids[2], move=9)
    arrive(master)
    say(master, QueueOpened(queue_id=VISITOR, move=3))
    master.append(master.derived.registry.delete(VISITOR))


def test_cut_at_each_border_it_is_as_it_was_there() -> None:
    whole = Master()
    story(whole)
    for end, _ in whole.log.batches:
        before, cut = Derived(), Derived()
        before.follow_all([each for each in whole.log.batches if each[0].log_offset < end.log_offset], confirmed=0)
        cut.follow_all(whole.log.batches, confirmed=0)
        for table in (cut.registry, cut.holds, cut.groups, cut.forwardings, cut.tracker):
            table.cut(end.log_offset)
        cut.appended = before.appended  # the index's, which has tests of its own
        assert facts(cut) == facts(before), end.log_offset
        assert cut.hold_facts() == before.hold_facts()


def test_from_a_checkpoint_at_any_border_it_is_as_from_the_first_byte() -> None:
    whole = Master()
    story(whole)
    for at in range(len(whole.log.batches) + 1):
        master = Master()
        for header, batch in whole.log.batches[:at]:
            master.append(bytearray(batch), base_queue_offset=header.base_queue_offset)
        if master.derived.registry.moves.any_incomplete:
            continue
        began = master.checkpoint(queues_per_batch=1)[0][0].log_offset
        for header, batch in whole.log.batches[at:]:
            master.append(bytearray(batch), base_queue_offset=header.base_queue_offset)
        master.confirm_all()
        assert master.derived.tracker.state_from == began
        assert facts(master.rebuilt(began)) == facts(master.derived), at
        twice = Derived()
        for header, batch in master.log.batches:
            twice.follow(header, batch)
            twice.follow(header, batch)
        twice.confirm(master.log.end)
        assert facts(twice) == facts(master.derived), at


def test_a_checkpoint_that_began_within_an_arrival_does_not_count() -> None:
    master = Master()
    say(master, QueueArriving(queue_id=VISITOR, move=3, source="log-a", first=40))
    master.checkpoint()
    say(master, QueueArrived(queue_id=VISITOR, move=3))
    master.confirm_all()
    assert master.derived.tracker.state_from == 0
    began = master.checkpoint()[0][0].log_offset
    master.confirm_all()
    assert master.derived.tracker.state_from == began


@pytest.mark.parametrize("end", [QueueArrived, ArrivalDropped])
def test_a_checkpoint_that_an_arrival_began_in_counts(end: Callable[..., Change]) -> None:
    master = Master()
    writer = master.derived.writer(queues_per_batch=1, producers_per_batch=1)
    began = master.append(writer.next_batch(master.log.end)).log_offset
    say(master, QueueArriving(queue_id=VISITOR, move=3, source="log-a", first=40))
    while (batch := writer.next_batch(master.log.end)) is not None:
        master.append(batch)
    say(master, end(queue_id=VISITOR, move=3))
    master.confirm_all()
    assert master.derived.tracker.state_from == began


def test_a_number_that_an_earlier_log_had_goes_on_above_its_ids() -> None:
    master = Master(number=3)
    registry = master.derived.registry
    registry.ids_given_before(40)
    assert master.declare("q") == id_base_of(3) + 41
    assert (registry.ids_assigned, registry.any_gone) == (41, False)
    arrive(master, id_base_of(3) + 7)
    say(master, QueueOpened(queue_id=id_base_of(3) + 7, move=3))
    assert registry.visitors == {id_base_of(3) + 7}, "a queue of that earlier log is none of this one's"
    registry.cut(0)
    assert registry.queue_id_max == id_base_of(3) + 40


def test_what_nobody_can_name_any_more_is_forgotten() -> None:
    """Goal: a log that queues come to and leave for years keeps no word of each. Method: one is deleted elsewhere, one
    is used there, one is a visitor that was deleted here; while the log has bytes of them all are known, and then the
    one that is used alone. Ids are given out once all the same."""
    master = Master()
    registry = master.derived.registry
    deleted, used = master.declare("deleted"), master.declare("used")
    for move, queue_id in enumerate((deleted, used), 5):
        left(master, queue_id, move=move)
        say(master, QueueHandedOver(queue_id=queue_id, move=move, freed=True))
    arrive(master)
    say(master, QueueOpened(queue_id=VISITOR, move=3))
    master.append(registry.delete(VISITOR))
    end = master.log.end
    master.confirm_all()
    registry.moves.forget(0, is_used)
    assert (sorted(registry.moves.left), list(registry.moves.gone)) == ([deleted, used], [VISITOR])
    assert registry.any_gone
    registry.moves.forget(end, is_used)
    assert (list(registry.moves.left), list(registry.moves.gone)) == ([used], [])
    with pytest.raises(NoSuchQueue):
        registry.find_id(deleted)
    with pytest.raises(QueueMoving):
        registry.find_id(used)
    registry.cut(end)
    assert master.declare("new") not in (deleted, used)


def is_used(name: str) -> bool:
    return name == "used"


def test_of_two_queues_of_one_name_that_have_left_the_newer_one_is_kept() -> None:
    """The older one is deleted: there is one of a name."""
    master = Master()
    older = master.declare("used")
    left(master, older, move=5)
    say(master, QueueHandedOver(queue_id=older, move=5, freed=True))
    newer = master.declare("used")
    left(master, newer, move=6)
    say(master, QueueHandedOver(queue_id=newer, move=6, freed=True))
    moves = master.derived.registry.moves
    moves.forget(master.log.end, is_used)
    assert set(moves.left) == {older, newer}, "what may be cut is not forgotten"
    master.confirm_all()
    moves.forget(master.log.end, is_used)
    assert set(moves.left) == {newer}


def copied(master: Master, first: int, queue_id: int = VISITOR) -> BatchHeader:
    return say(master, SpanCopied(queue_id=queue_id, first=first))


def cut(master: Master, log_offset: int) -> None:
    master.log.cut(log_offset)
    master.derived.registry.cut(log_offset)


def test_what_was_copied_is_here_and_nobody_says_that_it_is_lost_before_that_is_confirmed() -> None:
    """From where on a queue is here goes down, never up; a cut takes it back; a checkpoint tells of it until all is
    here. While it is not confirmed a record that is not found may come."""
    master = Master()
    arrive(master)
    say(master, QueueOpened(queue_id=VISITOR, move=3))
    master.confirm_all()
    moves = master.derived.registry.moves
    assert moves.elsewhere(VISITOR, 39) is not None
    assert moves.elsewhere(VISITOR, 40) is None
    at = copied(master, 30)
    assert moves.firsts == {VISITOR: 30}
    assert moves.elsewhere(VISITOR, 35) is not None, "what was copied may not be confirmed here yet"
    cut(master, at.log_offset)
    assert moves.firsts == {VISITOR: 40}
    copied(master, 30)
    copied(master, 33)
    master.confirm_all()
    assert moves.firsts == {VISITOR: 30}
    assert [moves.elsewhere(VISITOR, each) is None for each in (29, 30, 35)] == [False, True, True]
    began = master.checkpoint()[0][0].log_offset
    restarted = Derived(number=master.number)
    for header, batch in master.log.since(began):
        restarted.follow(header, batch)
    assert restarted.registry.moves.firsts == {VISITOR: 30}
    assert restarted.registry.moves.elsewhere(VISITOR, 35) is not None
    copied(master, 0)
    master.confirm_all()
    assert moves.firsts == {}
    assert moves.elsewhere(VISITOR, 0) is None
    assert restarted.registry.find("v").queue_id == master.derived.registry.find("v").queue_id == VISITOR


def test_a_queue_that_comes_back_begins_where_its_records_elsewhere_begin() -> None:
    """Its records here were freed, for they were copied: that says nothing of those that it brings along."""
    master = Master()
    queue_id = master.declare("q")
    left(master, queue_id)
    say(master, QueueHandedOver(queue_id=queue_id, move=3, freed=True))
    master.confirm_all()
    assert master.derived.registry.start_offsets == {queue_id: 9}
    at = say(master, QueueArriving(queue_id=queue_id, move=4, source="log-b", first=20, begin=2))
    assert master.derived.registry.start_offsets == {queue_id: 2}
    cut(master, at.log_offset)
    assert master.derived.registry.start_offsets == {queue_id: 9}
    say(master, QueueArriving(queue_id=queue_id, move=4, source="log-b", first=20, begin=2))
    master.append(encode_checkpoint([encode_state(QueueState(queue_id, "q", "i", {}, 20, {}, master.log.end))]))
    say(master, QueueArrived(queue_id=queue_id, move=4))
    say(master, QueueOpened(queue_id=queue_id, move=4))
    master.confirm_all()
    assert master.derived.registry.start_offsets == {queue_id: 2}
    assert master.derived.registry.take_moved() == {queue_id: 2}


def test_what_was_copied_as_the_log_has_it() -> None:
    """The bytes are a promise: see docs/reference/format.md."""
    change = SpanCopied(queue_id=4101, first=30)
    assert bytes(parse_batch_body(encode_change(change)).values[0] or b"").hex() == (
        "83a474797065aa5370616e436f70696564a871756575655f6964cd1005a566697273741e"
    )
