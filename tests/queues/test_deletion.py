"""Deleted queues, as a log tells of them: gone from the append, back after a cut, forgotten from the confirm."""

from __future__ import annotations

from random import Random

import pytest

from mirrorlog.errors import NoSuchQueue
from mirrorlog.queues.changes import GroupReset, HoldSet, QueueDeleted, QueueStartsMoved, decode_changes, encode_change
from mirrorlog.queues.checkpoint_states import QueueState, decode_checkpoint
from mirrorlog.queues.registry import QueueRegistry
from tests.queues.statelog import Master, follow_batch
from tests.queues.test_registry import Book


def delete(book: Book, name: str) -> int:
    """The queue's id."""
    queue_id = book.registry.find(name).queue_id
    book.append(book.registry.delete(queue_id))
    return queue_id


def test_a_deletion_counts_from_its_append() -> None:
    """Delete: the queue is found neither by name nor by id, and has no limits; another one is untouched."""
    book = Book()
    book.declare("q", retention_ms=5, retention="work")
    book.declare("r")
    queue_id = delete(book, "q")
    assert [each.name for each in book.registry] == ["r"]
    for ask in (lambda: book.registry.find("q"), lambda: book.registry.find_id(queue_id)):
        with pytest.raises(NoSuchQueue):
            ask()
    with pytest.raises(NoSuchQueue):
        book.registry.delete(queue_id)
    assert (book.registry.limits, book.registry.works(set())) == ({}, set())
    assert not book.registry.is_gone(queue_id), "it may come back"
    book.registry.confirm(book.end)
    assert book.registry.is_gone(queue_id)
    assert book.registry.any_gone
    assert book.registry.take_deleted() == [queue_id]
    assert book.registry.take_deleted() == []


def test_a_queue_of_that_name_is_another_one() -> None:
    """Declare again at once, with other arguments; a position is none of it."""
    book = Book()
    book.declare("q", flush="disk")
    book.commit("q", "g", 3)
    first = delete(book, "q")
    book.declare("q")
    book.registry.confirm(book.end)
    again = book.registry.find("q")
    assert (again.queue_id, again.arguments, again.positions) == (first + 1, {}, {})
    delete(book, "q")
    book.registry.confirm(book.end)
    book.declare("q")
    assert book.registry.find("q").queue_id == first + 2


def test_a_cut_brings_the_queue_back_as_it_was() -> None:
    """Goal: what was not confirmed did not happen. A queue with limits, a confirmed position, one that is confirmed
    after the deletion was appended, and one that never was; a queue of its name that came since; then the deletion is
    cut."""
    book = Book()
    book.declare("q", retention_ms=5)
    book.commit("q", "g", 1)
    book.registry.confirm(book.end)
    confirmed = book.commit("q", "g", 2)
    book.commit("q", "h", 9)
    cut = book.end
    queue_id = delete(book, "q")
    book.declare("q")
    book.registry.confirm(confirmed.next_log_offset)
    book.registry.cut(cut)
    queue = book.registry.find("q")
    assert (queue.queue_id, len(book.registry)) == (queue_id, 1)
    assert queue.positions["g"].queue_offset == 2
    assert queue.newest["h"].queue_offset == 9
    assert book.registry.limits.keys() == {queue_id}
    book.registry.confirm(cut)
    assert queue.positions["h"].queue_offset == 9
    assert book.registry.take_deleted() == []


def test_a_queue_that_was_declared_and_deleted_behind_a_cut_never_was() -> None:
    """Both are cut: its id is free, as that of every declaration that is cut."""
    book = Book()
    book.declare("q")
    cut = book.end
    book.declare("r")
    delete(book, "r")
    book.registry.cut(cut)
    book.end = cut
    book.declare("s")
    assert [(each.name, each.queue_id) for each in book.registry] == [("q", 1), ("s", 2)]


def test_an_id_is_never_used_again() -> None:
    """Goal: readers' memories fit no other queue. The newest queue is deleted and that is confirmed; what follows is
    cut: the next id is a new one, also without any checkpoint."""
    book = Book()
    book.declare("q")
    book.declare("r")
    delete(book, "r")
    book.registry.confirm(book.end)
    cut = book.end
    book.declare("s")
    book.registry.cut(cut)
    book.end = cut
    book.declare("t")
    assert book.registry.find("t").queue_id == 3


def test_applying_again_changes_nothing() -> None:
    """Apply each batch of a history with deletions a second time, alone and all in order (invariant 8)."""
    book = Book()
    book.declare("q")
    book.commit("q", "g", 7)
    delete(book, "q")
    book.declare("q")
    book.declare("r")
    delete(book, "r")
    book.registry.confirm(book.end)
    before = repr(book.facts())
    for header, batch in [*book.batches, *book.batches[::-1], *book.batches]:
        follow_batch(book.registry, header, batch)
        book.registry.confirm(book.end)
        assert repr(book.facts()) == before
    assert book.registry.queue_id_max == 3


def test_two_deletions_of_one_queue_are_one() -> None:
    """Two masters, one after the other, each log one: the second says nothing new."""
    book = Book()
    book.declare("q")
    queue_id = delete(book, "q")
    book.append(encode_change(QueueDeleted(queue_id=queue_id)))
    book.registry.confirm(book.end)
    assert book.registry.take_deleted() == [queue_id]


def test_a_checkpoint_does_not_carry_it() -> None:
    """Goal: nothing of a deleted queue is kept for ever, not even what was said between its deletion and the confirm.
    Positions, groups, holds, begins and producers of one queue that goes and one that stays; a checkpoint while the
    deletion is not confirmed, and one after: a copy that begins there knows the other queue alone, and gives out no id
    again."""
    master = Master()
    gone, stays = master.declare("gone"), master.declare("stays")
    for queue_id, name in ((gone, "gone"), (stays, "stays")):
        master.commit(name, "g", 1)
        master.publish(queue_id, producer_id=7)
        hold = HoldSet(name="l", holder="h", epoch=1, queue_offset=0, lease_ms=1000)
        master.append(encode_change(hold, queue_id=queue_id))
        master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=queue_id))
        master.append(encode_change(QueueStartsMoved(begins={queue_id: 1})))
    master.append(master.derived.registry.delete(gone))
    for confirmed in (False, True):
        if confirmed:
            master.confirm_all()
        at = master.log.end
        stored = master.checkpoint()
        states = [state for _, batch in stored for state in decode_checkpoint(batch)]
        assert [state.queue_id for state in states if isinstance(state, QueueState)] == [stays]
        assert not [state for state in states if getattr(state, "queue_id", stays) == gone]
        late = master.rebuilt(at)
        assert [each.name for each in late.registry] == ["stays"]
        assert [queue_id for queue_id, _, _ in late.groups] == [stays]
        assert [key[1] for key in late.producers.known()] == [stays]
        assert late.registry.start_offsets == {stays: 1}
        assert not late.holds.newest(gone)
        assert late.registry.queue_id_max == stays


def test_what_a_checkpoint_did_not_come_to_is_forgotten_too() -> None:
    """A queue is deleted while a checkpoint is written, before its turn: a copy that begins there has heard of its
    groups and holds, and never of the queue."""
    master = Master()
    gone = master.declare("gone")
    writer = master.derived.writer(queues_per_batch=1, producers_per_batch=1)
    at = master.log.end
    master.append(writer.next_batch(master.log.end))
    hold = HoldSet(name="l", holder="h", epoch=1, queue_offset=0, lease_ms=1000)
    master.append(encode_change(hold, queue_id=gone))
    master.append(encode_change(GroupReset(group="", queue_offset=0), queue_id=gone))
    master.append(master.derived.registry.delete(gone))
    while (batch := writer.next_batch(master.log.end)) is not None:
        master.append(batch)
    late = master.rebuilt(at)
    assert list(late.registry) == list(late.groups) == list(late.holds.live()) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_history_is_the_same_however_it_is_confirmed_and_cut(seed: int) -> None:
    """Declare, delete, commit, confirm and cut at random: after each step the registry says what a fresh one says that
    was given the log as it is now."""
    random, book, confirmed = Random(seed), Book(), 0
    for _ in range(150):
        names = [each.name for each in book.registry]
        step = random.choices(["declare", "delete", "commit", "confirm", "cut"], [6, 4, 6, 4, 2])[0]
        if step == "declare" and (name := random.choice("abcd")) not in names:
            book.declare(name)
        elif step == "delete" and names:
            delete(book, random.choice(names))
        elif step == "commit" and names:
            book.commit(random.choice(names), "g", random.randrange(9))
        borders = [0, *(header.next_log_offset for header, _ in book.batches)]
        if step == "confirm":
            confirmed = random.choice([each for each in borders if each >= confirmed])
            book.registry.confirm(confirmed)
        elif step == "cut":
            book.end = random.choice([each for each in borders if each >= confirmed])
            book.registry.cut(book.end)
            book.batches = [each for each in book.batches if each[0].next_log_offset <= book.end]
        again = rebuilt(book, confirmed)
        found = {each.name: (each.queue_id, dict(each.positions), dict(each.newest)) for each in book.registry}
        assert found == {each.name: (each.queue_id, dict(each.positions), dict(each.newest)) for each in again}, seed
        assert (book.registry.queue_id_max, book.registry.any_gone) == (again.queue_id_max, again.any_gone), seed
        deleted = {
            change.queue_id
            for _, batch in book.batches
            for change in decode_changes(batch)
            if isinstance(change, QueueDeleted)
        }
        assert deleted.isdisjoint(book.registry.queue_ids()), seed


def rebuilt(book: Book, confirmed: int) -> QueueRegistry:
    again = Book()
    for header, batch in book.batches:
        follow_batch(again.registry, header, batch)
    again.registry.confirm(confirmed)
    return again.registry
