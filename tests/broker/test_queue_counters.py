"""Rates from two windows: right while it flows, gone when it does not, whoever asks and how often."""

from __future__ import annotations

import pytest

from mirrorlog.broker.log.counters import WINDOW_S, LogCounters, Meter, QueueCounters
from mirrorlog.wire.frames import GRANT_REDELIVERED, Grant


def flow(meter: Meter, begin: float, end: float, step: float = 0.1, count: int = 10) -> None:
    """`count` each `step` seconds, from `begin` up to `end`."""
    for number in range(round((end - begin) / step)):
        meter.add(count, begin + number * step)


@pytest.mark.parametrize("begin", [0.0, 1.3, 1_000_003.7])
def test_a_steady_flow_has_its_rate(begin: float) -> None:
    """100 a second for 30 s, asked for at any moment of the last ten."""
    for last in range(20, 30):
        meter = Meter()
        flow(meter, begin, begin + last)
        assert meter.rate(begin + last) == pytest.approx(100, rel=0.05)
        assert meter.total == last * 100


def test_a_flow_that_ends_is_gone_after_two_windows() -> None:
    meter = Meter()
    flow(meter, 0, 20)
    rates = [meter.rate(20 + second) for second in range(11)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0
    assert meter.total == 2000


def test_asking_changes_nothing() -> None:
    asked, left = Meter(), Meter()
    for second in range(30):
        for each in (asked, left):
            each.add(second, float(second))
        asked.rate(second + 0.5)
    assert asked.rate(30.0) == left.rate(30.0)


def test_a_pause_longer_than_both_windows_leaves_nothing_behind() -> None:
    meter = Meter()
    meter.add(1000, 1.0)
    meter.add(5, 1.0 + 10 * WINDOW_S)
    assert meter.rate(1.0 + 10 * WINDOW_S) == pytest.approx(1.0)


def test_what_is_given_out_again_is_counted_twice() -> None:
    counters = QueueCounters()
    counters.given(3, 0, 1.0)
    counters.given(2, 2, 1.0)
    told = counters.told(1.0)
    assert (told.delivered, told.redelivered, told.acked) == (5, 2, 0)


def test_grants_count_by_their_records_for_the_queue_and_for_a_group_with_a_name() -> None:
    counters = LogCounters()
    grants = [Grant(0, 3, 0, 0), Grant(5, 7, GRANT_REDELIVERED, 1)]
    for group in ("", "billing"):
        counters.granted((1, group), grants, 1.0)
        counters.settled((1, group), 4, 1.0)
        counters.dead_lettered((1, group), 1)
    told = counters.queue(1).told(1.0)
    assert (told.delivered, told.redelivered, told.acked, told.dead_lettered) == (10, 4, 8, 2)
    billing = counters.groups[1, "billing"]
    assert (billing.delivered.total, billing.acked.total, billing.dead_lettered) == (5, 4, 1)
    counters.forget([1])
    assert (counters.queues, counters.groups) == ({}, {})
