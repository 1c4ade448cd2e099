"""The arithmetic under every benchmark's table."""

from __future__ import annotations

from bench.measure import Figure, Load, percentile, summarise


def test_rounds_become_minimum_median_maximum() -> None:
    """Three rounds of one figure, with one of another in between, stay apart and in order."""
    rounds = [Figure("W1", "a", "rate", "msg/s", value) for value in (30.0, 10.0, 20.0)]
    rounds.insert(1, Figure("W2", "a", "p50", "µs", 5.0))
    first, second = summarise(rounds)
    assert (first.workload, first.minimum, first.median, first.maximum, first.rounds) == ("W1", 10.0, 20.0, 30.0, 3)
    assert (second.workload, second.median, second.rounds) == ("W2", 5.0, 1)


def test_a_percentile_is_a_measured_value() -> None:
    """Of 1..100 in any order; also of a single one."""
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.50) == 51.0
    assert percentile(values, 0.99) == 100.0
    assert percentile([7.0], 0.99) == 7.0


def test_the_load_is_a_share() -> None:
    """Between nothing and all cores."""
    assert 0.0 <= Load().busy() <= 1.0
