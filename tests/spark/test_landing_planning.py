"""Where a step begins and ends: at what the table says, and at the exact place of a loss, or past it when told so."""

from __future__ import annotations

import pytest

from mirrorlog.errors import NoSuchQueue
from mirrorlog.spark.errors import BeginUnknown, HistoryChanged, RecordsMissing, TableOutOfStep
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.delta_log import TableState
from mirrorlog.spark.landing.planning import QueuePlan, limited, queue_plans, queues_of
from mirrorlog.spark.landing.positions import MissedRange, QueueIds
from tests.spark.fake_log import FakeLog


def plan(
    log: FakeLog, landed: int | None = None, *, epoch: int | None = None, skip: bool = False, queue: str = "q"
) -> QueuePlan:
    """Of one queue, with a table that has it up to `landed`, the last record being of `epoch`."""
    made = landing({"queue": queue, "table": "/t", "servers": "n1:7401", "on_data_loss": "skip" if skip else "fail"})
    (facts,) = queues_of(made, log)
    ids = QueueIds.of(facts)
    versions = {ids.offset: landed, ids.epoch: epoch, ids.fence: None}
    (found,) = queue_plans(made, log, [facts], TableState(None if landed is None else 3, versions))
    return found


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
