"""Where a reader stands: what it is given next, whatever batches are held."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.client.consumer.cursor import Cursor, Preview
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, checked_batches
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import log_seed, stamp

LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"


def batch(base: int, count: int, epoch: int = 1) -> ConsumedBatch:
    content = encode_batch([Record(b"")] * count, queue_id=1)
    seed = log_seed(UUID(LOG_ID))
    stamp(content, log_offset=0, base_queue_offset=base, append_time_us=1, epoch=epoch, flags=0, seed=seed)
    return checked_batches(bytes(content), 1, queue="q", log_id=LOG_ID)[0]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=6),
    st.integers(0, 30),
    st.none() | st.integers(0, 30),
    st.lists(st.integers(1, 7), min_size=40, max_size=40),
)
def test_what_is_given_out_is_exactly_what_lies_between_the_position_and_the_end(
    shapes: list[tuple[int, int]], start: int, until: int | None, steps: list[int]
) -> None:
    """Any batches, with leaps between them, any start and end, taken in any steps; compared with a plain list."""
    cursor = Cursor()
    cursor.until = until
    cursor.seek(start)
    expected: list[int] = []
    base = 0
    for count, jump in shapes:
        base += jump
        cursor.hold([batch(base, count)])
        expected += range(base, base + count)
        base += count
    found: list[int] = []
    for step in steps:
        if (current := cursor.current()) is None:
            break
        part = current.before(current.first + step)
        found += range(part.first, part.next)
        cursor.passed(part)
    assert found == [offset for offset in expected if start <= offset < (base if until is None else until)]
    beyond = [offset for offset in expected if offset >= (until or 0)]
    assert cursor.ended == (until is not None and (cursor.next >= until or bool(beyond)))


def test_a_seek_forgets_what_is_held_and_the_epoch_is_of_what_was_given() -> None:
    """The next batches begin at the new place; by seeking before what is held."""
    cursor = Cursor()
    cursor.hold([batch(10, 5, epoch=3)])
    current = cursor.current()
    assert current is not None
    cursor.passed(current)
    assert (cursor.next, cursor.epoch) == (15, 3)
    cursor.hold([batch(15, 5)])
    cursor.seek(2)
    assert cursor.current() is None
    assert not cursor.ended


def test_a_preview_gives_what_the_cursor_would_and_moves_it_only_when_claimed() -> None:
    """What is given up is not lost; by collecting twice, with batches that come to be held meanwhile."""
    cursor = Cursor()
    cursor.until = 9
    cursor.hold([batch(0, 3, epoch=1), batch(3, 3, epoch=2)])
    for _ in range(2):
        preview = Preview(cursor)
        found: list[int] = []
        while (current := preview.current()) is not None:
            found += range(current.first, current.next)
            preview.passed(current)
        assert found == list(range(6))
        assert (cursor.next, cursor.fetched) == (0, 6)
    cursor.hold([batch(6, 4, epoch=2)])
    current = preview.current()
    assert current is not None
    preview.passed(current.before(8))
    assert not preview.ended
    assert preview.claim()
    assert (cursor.next, cursor.epoch) == (8, 2)
    last = cursor.current()
    assert last is not None
    assert (last.first, last.next) == (8, 9)


def test_a_preview_of_a_cursor_that_was_moved_claims_nothing() -> None:
    """No record goes to two who collect; by moving it from elsewhere, with a seek too."""
    cursor = Cursor()
    cursor.hold([batch(0, 3), batch(3, 3)])
    first, second = Preview(cursor), Preview(cursor)
    for preview in (first, second):
        current = preview.current()
        assert current is not None
        preview.passed(current)
    assert first.claim()
    assert second.ended
    assert not second.lacks
    assert not second.claim()
    assert cursor.next == 3
    assert cursor.current() is not None  # the first batch is dropped
    current = first.current()
    assert current is not None
    assert current.first == 3
    third = Preview(cursor)
    cursor.seek(0)
    assert not third.claim()
    assert third.current() is None


class CountedBatch:
    """A held batch that counts how often somebody asks where it ends."""

    def __init__(self, held: ConsumedBatch) -> None:
        self._held = held
        self.looks = 0

    @property
    def first(self) -> int:
        return self._held.first

    @property
    def next(self) -> int:
        self.looks += 1
        return self._held.next

    def opened(self, kind: type[ConsumedRecord]) -> ConsumedBatch:
        return self._held


def test_reading_batch_by_batch_looks_at_each_a_few_times_only() -> None:
    """Many small batches that are held do not make each read dearer; by counting the looks of 300 previews in a row."""
    cursor = Cursor()
    held = [CountedBatch(batch(base, 1)) for base in range(300)]
    cursor.hold(held)
    for _ in held:
        preview = Preview(cursor)
        current = preview.current()
        assert current is not None
        preview.passed(current)
        assert preview.claim()
    assert cursor.next == len(held)
    assert max(each.looks for each in held) < 10
