"""The benchmark of the producer's own cost runs, and measures what it says."""

from __future__ import annotations

from bench.micro_producer import run


def test_every_way_of_sending_is_measured() -> None:
    """Each way hands all its records over and has them confirmed (the benchmark asserts that); by a short round."""
    figures = run(2_000)
    assert len({figure.case for figure in figures}) == len(figures) == 12
    assert all(figure.value > 0 for figure in figures)
