"""The table of the groups that somebody takes from: who is awake, who is due, and that what is gone is neither."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from mirrorlog.broker.consumer_groups.active_groups import ActiveGroup, ActiveGroups


@dataclass
class Delivery:
    """What the table asks of one."""

    taken: bool = True
    due_at: float = inf


class Turns:
    """Counts how often a turn of the loop was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def soon(self) -> None:
        self.asked += 1


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def table(turns: Turns) -> ActiveGroups:
    return ActiveGroups(turns.soon)


def added(table: ActiveGroups, queue_id: int, group: str, **facts: Any) -> ActiveGroup:
    work = ActiveGroup((queue_id, group), Delivery(**facts))  # type: ignore[arg-type]
    table.add(work)
    return work


def test_those_that_are_awake_come_once_and_in_the_order_in_which_they_were_woken(
    table: ActiveGroups, turns: Turns
) -> None:
    one, two, three = (added(table, 1, group) for group in "abc")
    for each in (three, one, three):
        table.wake(each)
    assert turns.asked == 3
    assert table.awakened() == [three, one]
    assert not table.awake
    table.wake(two)
    assert table.awakened() == [two]


def test_what_was_removed_is_neither_woken_nor_planned_even_when_its_group_is_there_again(
    table: ActiveGroups, turns: Turns
) -> None:
    before = added(table, 1, "a", due_at=1.0)
    table.wake(before)
    table.remove(before)
    added(table, 1, "a")
    assert not table.awake
    asked = turns.asked
    table.wake(before)
    table.plan(before)
    assert (turns.asked, table.awakened(), table.come(inf)) == (asked, [], [])
    assert not before.there


def test_a_confirm_wakes_those_of_its_queues_who_have_takers_and_asks_for_no_turn(
    table: ActiveGroups, turns: Turns
) -> None:
    taken = added(table, 1, "a")
    added(table, 1, "b", taken=False)
    added(table, 2, "a")
    table.gained({1, 3})
    assert turns.asked == 0
    assert table.awakened() == [taken]


def test_a_work_is_started_when_it_is_due_and_once(table: ActiveGroups) -> None:
    """The first of its times counts; a later one is no reason to come."""
    work = added(table, 1, "a", due_at=5.0)
    table.plan(work)
    work.delivery.due_at = 3.0  # type: ignore[misc]
    table.plan(work)
    assert table.come(2.9) == []
    assert table.come(3.0) == [work.key]
    assert table.start(work.key, 3.0) is work
    assert table.come(10.0) == [work.key]
    assert table.start(work.key, 10.0) is None


def test_a_thousand_plans_of_one_group_are_a_few_times(table: ActiveGroups) -> None:
    work = added(table, 1, "a")
    for number in range(1000):
        work.delivery.due_at = 1000.0 - number  # type: ignore[misc]
        table.plan(work)
    assert len(table._times) <= 2 + 64
    assert table.come(1.0)[0] == work.key


def test_who_was_refused_is_tried_again_once(table: ActiveGroups) -> None:
    refused, _ = added(table, 1, "a"), added(table, 1, "b")
    table.refuse(refused)
    table.try_again()
    assert table.awakened() == [refused]
    assert not refused.refused
    table.try_again()
    assert not table.awake


def test_nothing_is_left_of_a_queue_whose_groups_are_gone(table: ActiveGroups) -> None:
    one, two = added(table, 7, "a"), added(table, 7, "b")
    assert table.of_queue(7) == [one, two]
    for each in (one, two):
        table.remove(each)
    assert (len(table), table.of_queue(7), table._of_queue) == (0, [], {})
