"""The in-memory queue index, against a plain list."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format import BatchHeader, Kind, read_header
from mirrorlog.commitlog.index import QueueIndex
from mirrorlog.errors import LogCorrupt, OffsetOutOfRange
from tests.commitlog.logs import make_batch

_TEMPLATE = read_header(make_batch())


def header(
    log_offset: int, *, queue_id: int = 1, base: int, records: int = 10, time_us: int = 0, kind: Kind = Kind.DATA
) -> BatchHeader:
    return _TEMPLATE._replace(
        log_offset=log_offset,
        length=400,
        queue_id=queue_id,
        base_queue_offset=base,
        record_count=records,
        append_time_us=time_us,
        kind=kind,
        epoch=3,
    )


def filled() -> QueueIndex:
    """Queue 1: 0..9, 10..19, 20..29 at log offsets 0, 800, 1200; queue 2: 0..9 at 400; confirmed up to 1200."""
    index = QueueIndex()
    index.add(header(0, base=0, time_us=100))
    index.add(header(400, queue_id=2, base=0, time_us=150))
    index.add(header(800, base=10, time_us=200))
    index.add(header(1200, base=20, time_us=300))
    index.confirm(1200)
    return index


def test_only_confirmed_batches_are_visible() -> None:
    """Goal: invariant 4. The batch at the confirmed offset itself is pending until it moves."""
    index = filled()
    assert (index.begin(1), index.next_confirmed(1), index.next_appended(1)) == (0, 20, 30)
    assert (index.next_confirmed(2), index.next_appended(2)) == (10, 10)
    with pytest.raises(OffsetOutOfRange) as caught:
        index.find(1, 20)
    assert caught.value.details == {"begin": 0, "next": 20}
    index.confirm(1600)
    assert index.find(1, 20).log_offset == 1200
    index.confirm(0)
    assert index.next_confirmed(1) == 30


def test_an_offset_is_found_in_the_batch_that_holds_it() -> None:
    """Goal: lookups inside, at the first and at the last record of a batch."""
    index = filled()
    assert index.find(1, 15) == (800, 10, 10, 400, 3)
    assert [index.find(1, offset).log_offset for offset in (0, 9, 10, 19)] == [0, 0, 800, 800]
    assert index.find(2, 3).log_offset == 400


def test_unknown_queues_are_empty() -> None:
    """Goal: a queue without records counts from 0 to 0."""
    index = filled()
    assert (index.begin(9), index.next_confirmed(9), index.next_appended(9), index.find_time(9, 0)) == (0, 0, 0, 0)
    assert index.entries(9, 0, 100) == []
    with pytest.raises(OffsetOutOfRange):
        index.find(9, 0)
    assert sorted(index.queue_ids()) == [1, 2]


def test_a_leap_is_answered_with_the_batch_after_it() -> None:
    """Goal: queue offsets may leap after a loss. Ask within the gap between 10 and 1000."""
    index = QueueIndex()
    index.add(header(0, base=0))
    index.add(header(400, base=1000))
    index.confirm(800)
    assert index.find(1, 500).base_queue_offset == 1000
    assert index.next_confirmed(1) == 1010


def test_queue_offsets_that_go_back_are_a_broken_log() -> None:
    """Goal: a broken invariant is named. Add a batch that begins inside the one before it."""
    index = filled()
    with pytest.raises(LogCorrupt, match="queue 1: the batch at log offset 1600 begins at queue offset 29, below 30"):
        index.add(header(1600, base=29))


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


def test_control_batches_are_passed_over_and_recovered_ones_are_visible_at_once() -> None:
    """Goal: only records are indexed; recovery adds below a confirmed offset that it already knows."""
    index = QueueIndex()
    index.confirm(800)
    index.add(header(0, queue_id=0, base=0, kind=Kind.CONTROL))
    index.add(header(400, base=0))
    index.add(header(800, base=10))
    assert index.queue_ids() == [1]
    assert (index.next_confirmed(1), index.next_appended(1)) == (10, 20)


def test_records_between_counts_exactly() -> None:
    """Goal: lag in records. Count over borders, over nothing, and backwards."""
    index = filled()
    assert index.records_between(0, 1600) == 40
    assert index.records_between(400, 1200) == 20
    assert index.records_between(401, 1201) == 20
    assert index.records_between(1600, 5000) == 0
    assert index.records_between(800, 0) == 0


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
