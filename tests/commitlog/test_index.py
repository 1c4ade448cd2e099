"""The hot index in memory, against a plain list. What it does together with the past: see test_past."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.header import Kind
from mirrorlog.commitlog.format.rows import RowCollector, pack_row
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.errors import LogCorrupt, OffsetOutOfRange
from tests.commitlog.rows import header

CHUNK_ROWS = 4096


def filled() -> QueueIndex:
    """Queue 1: 0..9, 10..19, 20..29 at log offsets 0, 800, 1200; queue 2: 0..9 at 400; confirmed up to 1200."""
    index = QueueIndex()
    index.add(header(0, base=0, time_us=100))
    index.add(header(400, queue_id=2, base=0, time_us=150))
    index.add(header(800, base=10, time_us=200))
    index.add(header(1200, base=20, time_us=300))
    index.confirm(1200)
    return index


def long(batches: int, *, queues: int = 3) -> QueueIndex:
    """`batches` of one record and 400 bytes, queue after queue in turn, appended at 0, 1, 2, … µs; all confirmed."""
    index = QueueIndex()
    for number in range(batches):
        place = {"queue_id": 1 + number % queues, "base": number // queues}
        index.add(header(400 * number, records=1, time_us=number, **place))
    index.confirm(400 * batches)
    return index


def test_only_confirmed_batches_are_visible() -> None:
    """Goal: invariant 4. The batch at the confirmed offset itself is pending until it moves."""
    index = filled()
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (0, 20, 30)
    assert (index.next_confirmed(2), index.next_appended(2)) == (10, 10)
    with pytest.raises(OffsetOutOfRange) as caught:
        index.find(1, 20)
    assert caught.value.details == {"begin": 0, "next": 20}
    assert index.find_time(1, 250) == 20
    assert index.confirm(1600) == {1}
    assert index.find(1, 20).log_offset == 1200
    index.confirm(0)
    assert index.next_confirmed(1) == 30


def test_an_offset_is_found_in_the_batch_that_holds_it() -> None:
    """Goal: lookups inside, at the first and at the last record of a batch."""
    index = filled()
    assert index.find(1, 15) == (800, 10, 10, 400)
    assert [index.find(1, offset).log_offset for offset in (0, 9, 10, 19)] == [0, 0, 800, 800]
    assert index.find(2, 3).log_offset == 400


def test_unknown_queues_are_empty() -> None:
    """Goal: a queue without records counts from 0 to 0."""
    index = filled()
    assert (index.begin(9), index.next_confirmed(9), index.next_appended(9), index.find_time(9, 0)) == (0, 0, 0, 0)
    assert index.entries(9, 0, 100) == []
    assert index.past_until(9, 0) is None
    with pytest.raises(OffsetOutOfRange):
        index.find(9, 0)
    assert sorted(index.queue_ids()) == [1, 2]


def test_a_leap_is_answered_with_the_batch_after_it() -> None:
    """Goal: queue offsets may leap after a loss, and no answer runs over it. Ask below, within and behind the gap
    between 10 and 1000."""
    index = QueueIndex()
    index.add(header(0, base=0))
    index.add(header(400, base=1000))
    index.confirm(800)
    assert index.find(1, 500).base_queue_offset == 1000
    for asked, found in ((0, [0]), (10, [1000]), (500, [1000]), (1000, [1000]), (1010, [])):
        assert [run.base_queue_offset for run in index.entries(1, asked, 1000)] == found
    assert index.next_confirmed(1) == 1010


def test_queue_offsets_that_go_back_are_a_broken_log() -> None:
    """Goal: a broken invariant is named. Add a batch that begins inside the one before it, then a copy that reaches
    beyond what was ever appended."""
    index = filled()
    with pytest.raises(LogCorrupt, match="queue 1: the batch at log offset 1600 begins at queue offset 29, below 30"):
        index.add(header(1600, base=29))
    with pytest.raises(LogCorrupt):
        index.add(header(1600, base=29, copied=True))
    assert index.next_appended(1) == 30


def test_entries_fill_the_limit_and_give_at_least_one() -> None:
    """Goal: what a fetch gets. Limits below one batch, of exactly two, and at the next queue offset."""
    index = filled()
    index.confirm(1600)
    assert [run.log_offset for run in index.entries(1, 5, 1)] == [0]
    assert [run.log_offset for run in index.entries(1, 5, 800)] == [0, 800]
    assert [run.log_offset for run in index.entries(1, 5, 10_000)] == [0, 800, 1200]
    assert index.entries(1, 30, 1000) == []
    with pytest.raises(OffsetOutOfRange):
        index.entries(1, 31, 1000)


def test_times_are_found_by_batch() -> None:
    """Goal: the first batch appended at or after a time, among confirmed ones."""
    index = filled()
    assert [index.find_time(1, time_us) for time_us in (0, 100, 101, 200, 201, 300)] == [0, 0, 10, 10, 20, 20]


def test_a_cut_forgets_pending_batches_and_their_queue_offsets() -> None:
    """Goal: the index follows a truncation. Cut the pending batch and append another in its place."""
    index = filled()
    index.cut(1200)
    assert index.next_appended(1) == 20
    index.add(header(1200, base=20, records=3))
    index.confirm(1600)
    assert index.find(1, 22).record_count == 3


def test_control_batches_are_rows_but_no_records() -> None:
    """Goal: state and control batches reach the table and count nowhere else; recovery adds below a confirmed offset
    that it already knows."""
    index = QueueIndex()
    index.confirm(800)
    index.add(header(0, queue_id=0, base=0, kind=Kind.CONTROL))
    index.add(header(400, base=0))
    index.add(header(800, base=10))
    index.add(header(1200, base=0, kind=Kind.QUEUE_STATE))
    assert index.queue_ids() == [1]
    assert (index.next_confirmed(1), index.next_appended(1)) == (10, 20)
    assert index.records_between(0, 1600) == 20
    assert index.confirm(1600) == {1}
    assert sum(map(len, index.rows(0, 1600))) == 4 * 40


def test_records_between_counts_exactly() -> None:
    """Goal: lag in records. Count over borders, over nothing, and backwards."""
    index = filled()
    assert index.records_between(0, 1600) == 40
    assert index.records_between(400, 1200) == 20
    assert index.records_between(401, 1201) == 20
    assert index.records_between(1600, 5000) == 0
    assert index.records_between(800, 0) == 0


def test_append_time_from_names_the_oldest_batch_that_is_missing() -> None:
    """Goal: lag in seconds. Ask at borders, between them and at the end."""
    index = filled()
    assert [index.append_time_from(at) for at in (0, 400, 401, 1200)] == [100, 150, 200, 300]
    assert index.append_time_from(1600) is None
    assert QueueIndex().append_time_from(0) is None


def test_rows_are_what_was_added_and_stay_so() -> None:
    """Goal: a helper reads rows while the loop goes on. Take rows over three chunks, go on adding, evict, and compare
    with what was added."""
    index = long(2 * CHUNK_ROWS + 100)
    first, end = 400 * 50, 400 * (2 * CHUNK_ROWS + 50)
    pieces = index.rows(first, end)
    index.evict(end)
    for number in range(2 * CHUNK_ROWS + 100, 3 * CHUNK_ROWS):
        index.add(header(400 * number, queue_id=1 + number % 3, base=number // 3, records=1, time_us=number))
    expected = b"".join(
        pack_row(header(400 * number, queue_id=1 + number % 3, base=number // 3, records=1, time_us=number))
        for number in range(50, 2 * CHUNK_ROWS + 50)
    )
    assert b"".join(pieces) == expected
    assert len(pieces) == 3
    assert all(piece.readonly for piece in pieces)


def test_a_walk_gathers_the_same_rows() -> None:
    """Goal: a table made from a segment equals one made from memory. Collect the batches of an index."""
    index = filled()
    collector = RowCollector()
    for each in (header(0, base=0, time_us=100), header(400, queue_id=2, base=0, time_us=150)):
        collector(each, memoryview(b""))
    assert b"".join(collector.rows()) == b"".join(index.rows(0, 800))


def test_what_was_evicted_is_asked_of_the_past() -> None:
    """Goal: the border between memory and past. Evict two of three chunks and ask on both sides of the border."""
    index = long(3 * CHUNK_ROWS)
    border = 2 * CHUNK_ROWS
    index.evict(400 * border)
    first_held = -(-border // 3)  # of queue 1: batches 0, 3, 6, …
    assert index.hot_from == 400 * border
    assert (index.begin(1), index.hot_start(1)) == (0, first_held)
    assert index.past_until(1, first_held) is None
    assert index.find(1, first_held).log_offset == 400 * 3 * first_held
    assert index.past_until(1, first_held - 1) == first_held
    assert index.past_until(1, 0) == first_held
    assert index.is_past_time(1, border - 1)
    assert not index.is_past_time(1, border)
    assert index.find_time(1, border) == first_held


def test_evicting_keeps_what_is_pending_or_above() -> None:
    """Goal: only confirmed batches are forgotten. Evict far beyond the confirmed offset."""
    index = filled()
    index.evict(5000)
    assert index.hot_from == 1200
    assert (index.begin(1), index.hot_start(1), index.next_appended(1)) == (0, 20, 30)
    assert index.past_until(2, 3) == 10
    index.confirm(1600)
    assert index.find(1, 25).log_offset == 1200


def test_totals_outlive_eviction() -> None:
    """Goal: lag stays known. Evict and compare with the exact numbers: equal where memory is asked, within a chunk
    where it is not."""
    batches = 3 * CHUNK_ROWS + 7
    index = long(batches)
    index.evict(400 * (2 * CHUNK_ROWS + 5))
    assert index.records_between(0, 400 * batches) == batches
    assert index.records_between(400 * (2 * CHUNK_ROWS + 5), 400 * batches) == CHUNK_ROWS + 2
    assert abs(index.records_between(400 * 1000, 400 * batches) - (batches - 1000)) <= 1
    assert index.append_time_from(400 * 5000) == CHUNK_ROWS
    index.evict(400 * batches)
    assert index.records_between(400 * CHUNK_ROWS, 400 * batches) == 2 * CHUNK_ROWS + 7
    assert index.append_time_from(400 * batches) is None
    index.add(header(400 * batches, base=batches, time_us=batches))
    assert index.records_between(400 * CHUNK_ROWS, 400 * batches + 400) == 2 * CHUNK_ROWS + 17


def test_totals_survive_a_cut_to_a_chunk_border() -> None:
    """Goal: no chunk is left, but the count is. Evict the first chunk while one batch of the second is pending, then
    cut that batch."""
    index = long(CHUNK_ROWS)
    index.add(header(400 * CHUNK_ROWS, base=CHUNK_ROWS))
    index.evict(400 * CHUNK_ROWS)
    index.cut(400 * CHUNK_ROWS)
    assert index.records_between(0, 400 * CHUNK_ROWS) == CHUNK_ROWS
    index.add(header(400 * CHUNK_ROWS, base=CHUNK_ROWS))
    assert index.records_between(0, 400 * CHUNK_ROWS + 400) == CHUNK_ROWS + 10


def test_queues_that_nobody_asks_for_are_trimmed_too() -> None:
    """Goal: memory of idle queues. Evict everything, confirm a few times without a lookup, look inside."""
    index = long(3000, queues=100)
    index.evict(400 * 3000)
    for _ in range(100 // 16 + 2):
        index.confirm(0)
    assert [len(queue.numbers) for queue in index._queues.values()] == [0] * 100


def test_after_a_restart_queues_go_on_where_the_past_ends() -> None:
    """Goal: what the past knows. Set a queue to 100..250 in the past and add the tail's first batch."""
    index = QueueIndex()
    index.set_past(first=0, end=8000, first_append_time_us=50, records=400)
    index.set_queue(1, begin=100, next_offset=250)
    index.confirm(8400)
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (100, 250, 250)
    with pytest.raises(LogCorrupt):
        index.add(header(8000, base=249))
    index.add(header(8000, base=250, time_us=90))
    assert index.find(1, 255).log_offset == 8000
    assert index.past_until(1, 249) == 250
    assert index.is_past_time(1, 90)
    assert index.records_between(0, 8400) == 410
    assert index.records_between(4000, 8000) == 200
    assert index.append_time_from(10) == 50


def test_the_begin_moves_and_never_back() -> None:
    """Goal: retention. Move the begin of two queues, once beyond their ends, then back."""
    index = filled()
    index.start_moved(800, {1: 10, 2: 99})
    assert (index.begin(1), index.begin(2)) == (10, 10)
    with pytest.raises(OffsetOutOfRange):
        index.find(1, 9)
    index.start_moved(800, {1: 0})
    assert index.begin(1) == 10
    assert index.records_between(800, 1600) == 20


def test_a_copied_batch_takes_the_place_of_the_older_one() -> None:
    """Goal: re-appended batches. Copy the first batch of queue 1 to the tail: pending it changes nothing, confirmed it
    is the one that is found, and the queue's next offsets stay."""
    index = filled()
    index.confirm(1600)
    index.add(header(1600, base=0, time_us=100, copied=True))
    assert index.find(1, 5).log_offset == 0
    index.confirm(2000)
    assert index.find(1, 5).log_offset == 1600
    assert [run.log_offset for run in index.entries(1, 0, 10_000)] == [1600, 800, 1200]
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (0, 30, 30)
    assert index.find_time(1, 0) == 0


def test_copies_below_the_hot_part_stay_reachable() -> None:
    """Goal: an evicted queue whose first and third batch were copied. The memory answers for the copies, the past for
    what lies between them."""
    index = filled()
    index.add(header(1600, base=30, time_us=400))
    index.add(header(2000, base=0, time_us=100, copied=True))
    index.add(header(2400, base=20, time_us=300, copied=True))
    index.confirm(2800)
    index.evict(2000)
    assert index.hot_start(1) == 40
    assert [index.past_until(1, offset) for offset in (0, 9, 10, 19, 20, 29, 30, 39, 40)] == [
        None, None, 20, 20, None, None, 40, 40, None,
    ]  # fmt: skip
    assert [run.log_offset for run in index.entries(1, 0, 10_000)] == [2000]
    assert [run.log_offset for run in index.entries(1, 25, 10_000)] == [2400]
    assert index.is_past_time(1, 400)


@dataclass
class Entry:
    log_offset: int
    queue_id: int
    base: int
    records: int


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 3), st.integers(1, 5)),
            st.tuples(st.just("confirm"), st.integers(0, 40), st.just(0)),
            st.tuples(st.just("cut"), st.integers(0, 40), st.just(0)),
        ),
        max_size=40,
    )
)
def test_the_index_is_a_list_of_batches(steps: list[tuple[str, int, int]]) -> None:
    """Goal: any order of add, confirm and cut equals filtering a plain list. Hypothesis prints the steps that fail."""
    index, model, confirmed = QueueIndex(), list[Entry](), 0
    for what, first, records in steps:
        if what == "add":
            held = [entry for entry in model if entry.queue_id == first]
            base = held[-1].base + held[-1].records if held else 0
            end = model[-1].log_offset + 400 if model else 0
            model.append(Entry(end, first, base, records))
            index.add(header(end, queue_id=first, base=base, records=records))
        elif what == "confirm":
            confirmed = max(confirmed, min(first * 400, model[-1].log_offset + 400 if model else 0))
            index.confirm(confirmed)
        else:
            cut = max(first * 400, confirmed)
            model = [entry for entry in model if entry.log_offset < cut]
            index.cut(cut)
    for queue_id in (1, 2, 3):
        held = [entry for entry in model if entry.queue_id == queue_id]
        visible = [entry for entry in held if entry.log_offset < confirmed]
        assert index.next_appended(queue_id) == sum(entry.records for entry in held)
        assert index.next_confirmed(queue_id) == sum(entry.records for entry in visible)
        found = [index.find(queue_id, offset).log_offset for offset in range(index.next_confirmed(queue_id))]
        assert found == [entry.log_offset for entry in visible for _ in range(entry.records)]
        assert [run.log_offset for run in index.entries(queue_id, 0, 1 << 30)] == [e.log_offset for e in visible]
    assert index.records_between(0, 1 << 40) == sum(entry.records for entry in model)


def test_copies_come_from_the_border_down_and_are_found_as_they_are_confirmed() -> None:
    """Goal: a queue that came from another log at 60 gets what it left there, piece by piece, the newest first. After
    each piece everything from it on is found, in order, and what is below it is not; `entries_before` gives the same
    from the other side. A piece that came twice is where it came last, and what is evicted stays in its place."""
    index, ends = QueueIndex(), 400
    index.add(header(0, kind=Kind.CONTROL, queue_id=0, base=0, records=1))
    index.jump(0, [1], 60, lost=False)

    def append(base: int, *, copied: bool) -> None:
        nonlocal ends
        index.add(header(ends, queue_id=1, base=base, time_us=base, copied=copied))
        ends += 400

    for base in (60, 70):
        append(base, copied=False)
    index.confirm(ends)
    index.set_start(1, 0)
    for piece in ((40, 50), (40, 50), (20, 30), (0, 10)):
        for base in piece:
            append(base, copied=True)
        assert index.past_until(1, piece[0]) is not None or index.holds(1, piece[0])
        index.confirm(ends)
        runs = index.entries(1, piece[0], 1 << 20)
        assert [run.base_queue_offset for run in runs] == list(range(piece[0], 80, 10))
        assert index.entries_before(1, 80, 1 << 20) == runs
        assert index.entries_before(1, 80, 800) == runs[-2:]
        if piece[0]:
            assert index.past_until(1, piece[0] - 1) == piece[0], "the past has nothing there, and the former log has"
    assert index.find(1, 45).log_offset == 2000
    assert index.find_time(1, 31) == 40
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (0, 80, 80)
    assert index.entries_before(1, 1, 1) == index.entries(1, 0, 1)
    assert index.entries_before(1, 0, 1 << 20) == index.entries_before(2, 9, 1) == []
    index.evict(2800)
    assert [index.past_until(1, at) for at in (0, 25, 35, 45, 65, 75)] == [None, None, None, 80, 80, 80]
