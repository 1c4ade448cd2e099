"""What is alive in a sealed segment, by its table and those behind it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.commitlog.format.header import BatchHeader, Kind
from mirrorlog.commitlog.index.live import LiveRuns, segment_parts
from mirrorlog.commitlog.index.past import DIRECTORY_NAME, Past, PastIndex
from mirrorlog.errors import IndexDoubtful
from tests.commitlog.rows import LENGTH, header, table_of, tables_in

FOREVER = 1 << 60


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    """Segment 0: of queue 1 the records 0..30, of queue 2 0..20, of queue 3 0..10 and, behind a leap, 50..60, by tens.
    Segment 10000: newer ones of queue 1, and copies of 10..20 of it and of all of queue 2's."""
    first = batches(0, (1, 0), (2, 0), (1, 10), (3, 0), (1, 20), (2, 10), (3, 50), state=True)
    second = batches(10000, (1, 30), (1, 10, True), (2, 0, True), (2, 10, True))
    tables = tables_in(tmp_path)
    for segment in (first, second):
        start = segment[0].log_offset
        tables.store(start, segment[-1].next_log_offset, memoryview(table_of(segment, start)))
    opened = Past(PastIndex.open(tmp_path / DIRECTORY_NAME, tables), tables)
    yield opened
    opened.close()


def batches(start: int, *places: tuple[int, int] | tuple[int, int, bool], state: bool = False) -> list[BatchHeader]:
    """Batches of (queue id, first queue offset, whether copied), appended at their log offset."""
    found = []
    if state:
        found.append(header(start, queue_id=0, base=0, kind=Kind.CONTROL))
    for queue_id, base, *copied in places:
        at = start + len(found) * LENGTH
        found.append(header(at, queue_id=queue_id, base=base, time_us=at, copied=bool(copied)))
    return found


def pieces(runs: LiveRuns, past: Past, max_bytes: int = FOREVER) -> list[list[tuple[int, int]]]:
    """(queue id, first queue offset) of what comes, piece by piece."""
    found = []
    while piece := runs.next_piece(past, max_bytes):
        found.append([(live.queue_id, live.run.base_queue_offset) for live in piece])
    return found


def live(past: Past, *, begins: dict[int, int] | None = None, **options: object) -> list[tuple[int, int]]:
    given = {"log_start": 0, "own": frozenset(), "expired": False, **options}
    runs = LiveRuns(0, begins=begins or {}, **given)  # type: ignore[arg-type]
    return [each for piece in pieces(runs, past) for each in piece]


def test_the_parts_of_a_segment(past: Past) -> None:
    """Each dense part of a queue, with its bytes and the time of its last batch; what is no data is left out."""
    parts = segment_parts(past.tables.get(0), last_append_time_us=7)
    assert (parts.start, parts.end, parts.last_append_time_us) == (0, 8 * LENGTH, 7)
    assert parts.parts.tolist() == [
        (1, 0, 30, 3 * LENGTH, 5 * LENGTH),
        (2, 0, 20, 2 * LENGTH, 6 * LENGTH),
        (3, 0, 10, LENGTH, 4 * LENGTH),
        (3, 50, 60, LENGTH, 7 * LENGTH),
    ]


def test_what_stands_in_a_later_table_is_left_out(past: Path) -> None:
    """Of queue 1 one batch of three was copied, of queue 2 all, of queue 3 none."""
    assert live(past) == [(1, 0), (1, 20), (3, 0), (3, 50)]


def test_what_is_dead_is_left_out(past: Past) -> None:
    """Below a queue's begin, a batch that holds the begin itself counts; queues without own limits, when the log's let
    the segment go; and what stands below the log's begin."""
    assert live(past, begins={1: 10, 3: 55}) == [(1, 20), (3, 50)]
    assert live(past, own=frozenset({3}), expired=True) == [(3, 0), (3, 50)]
    assert live(past, floors={1: 30, 3: 10}, expired=True) == [(3, 50)], "what a landing holds is alive, in whole parts"
    assert live(past, floors={1: 29, 3: 60}, expired=True) == [(1, 0), (1, 20)]
    assert live(past, log_start=4 * LENGTH) == [(1, 20), (3, 0), (3, 50)]
    assert live(past, begins={1: 30, 3: 60}) == []


@pytest.mark.parametrize(("queue_id", "base"), [(1, 0), (1, 20), (3, 0), (3, 50)])
def test_a_place_that_the_index_lost_is_not_taken_for_dead(past: Past, queue_id: int, base: int) -> None:
    """Goal: a segment is not freed because of a damaged index. Take one place out of it: at the first, a middle and the
    last one of a queue the walk says that the index is doubtful; where the queue begins behind it, nothing is amiss."""
    place = past.index.segment_of(queue_id, base)
    assert place is not None
    following = place.next

    def lose(transaction: Any) -> None:
        assert transaction.delete(struct.pack(">IQ", queue_id, base), db=past.index._places)

    past.index._write(lose)
    with pytest.raises(IndexDoubtful, match=f"queue {queue_id}"):
        live(past)
    assert (queue_id, base) not in live(past, begins={1: 30, 3: 60, queue_id: following})


@pytest.mark.parametrize(
    ("max_bytes", "sizes"),
    [(1, [1, 1, 1, 1]), (LENGTH, [1, 1, 1, 1]), (2 * LENGTH, [2, 2]), (3 * LENGTH, [3, 1]), (4 * LENGTH, [4])],
)
def test_a_piece_has_its_limit_of_bytes(past: Past, max_bytes: int, sizes: list[int]) -> None:
    """Pieces of at least one batch that together are all, each once."""
    runs = LiveRuns(0, log_start=0, begins={}, own=frozenset(), expired=False)
    found = pieces(runs, past, max_bytes)
    assert [len(piece) for piece in found] == sizes
    assert [each for piece in found for each in piece] == live(past)


def test_the_last_leap_of_each_queue(past: Past) -> None:
    """Of a dense queue it is its first record, copies of its records make none; of one with a gap it is where it goes
    on."""
    assert past.index.last_jumps() == {1: 0, 2: 0, 3: 50}
    past.drop(0)
    assert past.index.last_jumps() == {1: 30, 2: 0}
