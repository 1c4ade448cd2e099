"""Where a step begins and ends: at what the table says, and at the exact place of a loss, or past it when told so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.config import RECORD_BYTES_MAX
from mirrorlog.errors import NoSuchQueue
from mirrorlog.spark.errors import BeginUnknown, HistoryChanged, RecordsMissing, TableOutOfStep
from mirrorlog.spark.landing.commit.delta_log import TableState
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.planning import (
    QueuePlan,
    limited,
    lookup_options,
    queue_plans,
    queues_of,
    record_bytes,
    source_options,
    unmirrored,
)
from mirrorlog.spark.landing.positions import MissedRange, QueueIds, begin_set
from mirrorlog.spark.landing.runner import _sets
from mirrorlog.spark.plan import QueuePlace, Seen
from tests.spark.fake_log import LOG_ID, OTHER_LOG, FakeLog, FakeQueue


def plan(
    log: FakeLog, landed: int | None = None, *, epoch: int | None = None, skip: bool = False, queue: str = "q"
) -> QueuePlan:
    """Of one queue, with a table that has it up to `landed`, the last record being of `epoch`."""
    made = landing({"queue": queue, "table": "/t", "servers": "n1:7401", "on_data_loss": "skip" if skip else "fail"})
    (facts,) = queues_of(made, log)
    ids = QueueIds(facts)
    versions = {**dict.fromkeys(ids), ids.offset: landed, ids.epoch(landed or 0): epoch}
    (found,) = queue_plans(made, log, [facts], TableState(None if landed is None else 3, versions))
    return found


def test_the_epoch_that_counts_is_that_of_the_log_in_which_the_last_landed_record_stands() -> None:
    """Goal: a landing goes on over a border, and a log that lost its tail is noticed before and behind it. Method: a
    queue moves twice; plans from a table in each span, with the epochs that were landed and with others."""
    log, queue = FakeLog(), FakeQueue()
    log.queues["q"] = queue
    for count, epoch, moves_to in ((100, 7, OTHER_LOG), (100, 2, LOG_ID), (50, 9, None)):
        queue.publish(count, epoch=epoch)
        if moves_to is not None:
            queue.move(moves_to)
    assert [(each.log_id, each.first, each.next) for each in plan(log, 40, epoch=7).pieces] == [
        (LOG_ID, 40, 100), (OTHER_LOG, 100, 200), (LOG_ID, 200, 250)
    ]  # fmt: skip
    assert stretches(plan(log, 100, epoch=7)) == [(100, 200), (200, 250)]
    assert stretches(plan(log, 200, epoch=2)) == [(200, 250)]
    for landed, epoch in ((40, 6), (100, 2), (150, 7), (200, 9), (240, 7)):
        with pytest.raises(HistoryChanged, match="another history"):
            plan(log, landed, epoch=epoch)
    (facts,) = log.facts(["q"])
    ids = QueueIds(facts)
    assert [*ids][-2:] == [f"mirrorlog:c:first:log:{each}" for each in (LOG_ID, OTHER_LOG)]
    written = {("q", 150): 2}
    cut = replace(plan(log, 40, epoch=7), next=150)
    assert _sets([cut], written, TableState(3, dict.fromkeys(ids))) == {
        ids.begin: 40, ids.offset: 150, f"mirrorlog:c:first:log:{OTHER_LOG}": 2
    }  # fmt: skip


def test_a_loss_in_a_former_log_is_met_where_it_begins_however_short_it_is() -> None:
    """Goal: what stands before a loss is landed, and the loss is named. The log that a queue has left loses the last of
    its records; the queue's own log loses none."""
    log, queue = FakeLog(), FakeQueue()
    log.queues["q"] = queue
    queue.publish(100)
    queue.move(OTHER_LOG)
    queue.publish(50)
    queue.stretches[0] = (0, 90, 1)
    assert stretches(plan(log, 40)) == [(40, 90)]
    with pytest.raises(RecordsMissing, match="90 up to 100 are a declared loss"):
        plan(log, 90)
    skipped = plan(log, 40, skip=True)
    assert stretches(skipped) == [(40, 90), (100, 150)]
    assert [(each.first, each.next) for each in skipped.missed] == [(90, 100)]
    log.looks.clear()
    assert stretches(plan(log, 100)) == [(100, 150)]
    assert log.looks == []


def stretches(found: QueuePlan) -> list[tuple[int, int]]:
    return [(piece.first, piece.next) for piece in found.pieces]


def one_queue(count: int = 100) -> FakeLog:
    log = FakeLog()
    log.add("q", count)
    return log


def test_a_step_goes_from_what_the_table_has_to_what_is_confirmed() -> None:
    log = one_queue()
    assert stretches(plan(log)) == [(0, 100)]
    found = plan(log, 40, epoch=1)
    assert (found.first, found.next, stretches(found), found.moves) == (40, 100, [(40, 100)], True)
    found = plan(log, 100, epoch=1)
    assert (stretches(found), found.moves) == ([], False)
    assert not plan(one_queue(0)).moves


def test_a_late_restart_after_retention_names_what_is_gone_or_goes_on_behind_it() -> None:
    log = one_queue()
    log.queues["q"].free_below(60)
    with pytest.raises(RecordsMissing, match="40 up to 60") as refused:
        plan(log, 40, epoch=1)
    assert (refused.value.details["first"], refused.value.details["next"]) == (40, 60)
    found = plan(log, 40, epoch=1, skip=True)
    assert (found.first, found.next, stretches(found)) == (40, 100, [(60, 100)])
    assert [(each.first, each.next) for each in found.missed] == [(40, 60)]
    assert stretches(plan(log)) == [(60, 100)], "a new table begins where the queue does"


def test_a_loss_at_the_very_end_moves_the_position_too() -> None:
    """Goal: a table says what it passed over, also when no record is left. Everything is freed."""
    log = one_queue()
    log.queues["q"].free_below(100)
    found = plan(log, 40, epoch=1, skip=True)
    assert (stretches(found), found.next, found.moves) == ([], 100, True)


def test_what_stands_before_a_declared_loss_is_landed_before_it_is_an_error() -> None:
    log = one_queue()
    queue = log.queues["q"]
    queue.lose_from(70)
    begin = queue.next
    queue.publish(30, epoch=2)
    found = plan(log, 40, epoch=1)
    assert (found.next, stretches(found)) == (70, [(40, 70)])
    with pytest.raises(RecordsMissing, match=f"70 up to {begin} are a declared loss") as refused:
        plan(log, 70, epoch=1)
    assert (refused.value.details["first"], refused.value.details["next"]) == (70, begin)
    found = plan(log, 40, epoch=1, skip=True)
    assert stretches(found) == [(40, 70), (begin, begin + 30)]
    assert [(each.first, each.next) for each in found.missed] == [(70, begin)]


def test_who_stood_at_the_end_when_records_were_lost_behind_it_is_told() -> None:
    log = one_queue()
    queue = log.queues["q"]
    queue.lose_from(100)
    queue.publish(5, epoch=2)
    with pytest.raises(RecordsMissing, match="declared loss"):
        plan(log, 100, epoch=1)
    assert len(plan(log, 100, epoch=1, skip=True).missed) == 1


def test_another_history_is_noticed_and_not_passed_over() -> None:
    """Goal: positions are (log, epoch, offset). The last landed record is of another epoch now."""
    log = FakeLog()
    log.add("q").publish(100, epoch=5)
    assert stretches(plan(log, 50, epoch=5)) == [(50, 100)]
    with pytest.raises(HistoryChanged, match="epoch 4"):
        plan(log, 50, epoch=4)
    found = plan(log, 50, epoch=4, skip=True)
    assert stretches(found) == [(50, 100)]
    assert "epoch 4" in found.missed[0].why
    assert stretches(plan(log, 50, epoch=None)) == [(50, 100)], "a table of an older landing has no epoch to compare"


def test_a_table_that_is_ahead_of_the_nodes_waits_for_them() -> None:
    with pytest.raises(TableOutOfStep, match="up to 101"):
        plan(one_queue(), 101, epoch=1)


def test_nobody_says_what_is_gone_while_the_master_is_silent() -> None:
    """Goal: a landing that is allowed to skip does not skip what is only out of reach."""
    log = one_queue()
    queue = log.queues["q"]
    queue.free_below(60)
    queue.silent_master = "n1"
    for skip in (False, True):
        for landed in (None, 40):
            with pytest.raises(BeginUnknown, match="n1"):
                plan(log, landed, epoch=1, skip=skip)
        assert stretches(plan(log, 60, epoch=1, skip=skip)) == [(60, 100)]


def test_a_bounded_step_over_a_loss_moves_over_it_only_when_it_comes_there() -> None:
    log = one_queue()
    queue = log.queues["q"]
    queue.lose_from(70)
    begin = queue.next
    queue.publish(30, epoch=2)
    whole = plan(log, 40, epoch=1, skip=True)
    (short,) = limited([whole], 10)
    assert (stretches(short), short.next, short.missed) == ([(40, 50)], 50, ())
    (long,) = limited([whole], 35)
    assert (stretches(long), long.next) == ([(40, 70), (begin, begin + 5)], begin + 5)
    assert long.missed == (MissedRange("q", 70, begin, "a declared loss"),)


def test_queues_are_named_or_match_a_pattern() -> None:
    log = FakeLog()
    for name in ("orders-1", "orders-2", "other"):
        log.add(name, 5)
    made = landing({"queue_pattern": "orders-.*", "table": "/t", "servers": "n1:7401"})
    assert [facts.name for facts in queues_of(made, log)] == ["orders-1", "orders-2"]
    with pytest.raises(NoSuchQueue, match="'gone'"):
        queues_of(landing({"queue": "other,gone", "table": "/t", "servers": "n1:7401"}), log)


# --- How much a commit takes ---


@dataclass
class SizedLog(FakeLog):
    """Batches of ten records, which have so many bytes from a queue offset on."""

    sizes: dict[int, int] = field(default_factory=dict)

    def headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        return [self._sized(place, seen) for place, seen in zip(places, super().headers_at(places), strict=True)]

    def _sized(self, place: QueuePlace, seen: Seen) -> Seen:
        if not isinstance(seen, BatchHeader):
            return seen
        size = self.sizes[max(first for first in self.sizes if first <= place.queue_offset)]
        return seen._replace(length=10 * size, record_count=10)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({0: 100}, 100),
        ({0: 5_000, 1: 100}, 5_000),
        ({0: 100, 5_000: 70_000, 5_001: 100}, 70_000),
        ({0: 100, 9_999: 1_000_000}, 1_000_000),
    ],
)
def test_a_commit_is_bounded_by_the_largest_records_that_a_look_finds(sizes: dict[int, int], expected: int) -> None:
    """Goal: max_bytes counts from the first step on. Records are larger at the begin, in the middle, at the end."""
    log = SizedLog(sizes=sizes)
    log.add("q", 10_000)
    found = plan(log)
    assert record_bytes(log, [found], 1 << 30) == expected
    assert log.looks == [("q", 0), ("q", 5_000), ("q", 9_999)]
    (cut,) = limited([found], 1_000_000 // expected)
    assert sum(map(len, cut.pieces)) * expected <= 1_000_000


def test_the_largest_of_all_queues_counts_and_what_is_gone_does_not() -> None:
    """Goal: no queue hides behind another, and what is lost is not looked at. Two queues, one with a loss inside."""
    log = SizedLog(sizes={0: 10, 70: 300})
    log.add("small", 70)
    queue = log.add("q", 100)
    queue.lose_from(70)
    queue.publish(30, epoch=2)
    plans = [plan(log, queue="small"), plan(log, skip=True)]
    log.looks.clear()
    assert record_bytes(log, plans, 1) == 300
    assert log.looks == [("small", 0), ("small", 35), ("small", 69), ("q", 0), ("q", 50), ("q", queue.next - 1)]
    queue.free_below(queue.next)
    assert record_bytes(log, plans, 1) == 10


def test_nobody_looks_where_so_little_is_pending_that_it_fits_anyhow() -> None:
    """Goal: a step of few records costs no look. As many of the largest records as fit, and one more; none."""
    log = SizedLog(sizes={0: 10})
    log.add("q", 5)
    found = plan(log)
    assert record_bytes(log, [found], 5 * RECORD_BYTES_MAX) == 0
    assert record_bytes(log, [plan(log, 5, epoch=1)], 1) == 0
    assert record_bytes(log, [found], 5 * RECORD_BYTES_MAX - 1) == 10


# --- Whom a landing reads from ---


def test_mirrors_are_read_where_there_are_any_and_the_master_of_a_queue_of_one_copy() -> None:
    """Goal: a word means what it says, and a queue of one copy is landed too. Two queues, each word."""
    log = one_queue()
    both = plan(log)
    alone = replace(both, facts=replace(both.facts, name="alone", mirrored=False))
    for word in ("nearest", "mirror", "master", "n2"):
        made = landing({"queue": "q", "table": "/t", "servers": "n1:7401", "read_from": word})
        assert source_options(made).read_from == word
        assert unmirrored(made, [both, alone]) == ({"alone"} if word == "mirror" else set())
        assert lookup_options(made).read_from == {"mirror": "nearest"}.get(word, word)


def test_an_epoch_that_nobody_knows_proves_nothing() -> None:
    """Goal: what was landed from a copy that was moved has no epoch to compare, which the table has as 0."""
    log = FakeLog()
    log.add("q").publish(100, epoch=5)
    assert stretches(plan(log, 50, epoch=0)) == [(50, 100)]


def test_where_a_table_begins_is_noted_by_the_first_commit_alone() -> None:
    log = one_queue()
    log.queues["q"].free_below(30)
    (facts,) = log.facts(["q"])
    ids = QueueIds(facts)
    found = plan(log)
    assert begin_set(ids, dict.fromkeys(ids), found.first) == {ids.begin: 30}
    for begin in (30, None):
        assert begin_set(ids, {**dict.fromkeys(ids), ids.offset: 40, ids.begin: begin}, 40) == {}
    assert {ids.offset, ids.epoch(40), ids.fence, ids.dead, ids.begin} == {*ids}
