"""Workloads run round by round, one failure stops no other, and an interrupted run can be gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import runner
from bench.measure import Figure
from bench.results import Results
from bench.workload import LIMIT, OWN, PEER, Measured, Workload
from mirrorlog.errors import ConnectionLost
from tests.bench.runs import counting, results


def _measure(workloads: list[Workload], out: Path, kept: Results, *, rounds: int = 2) -> list[str]:
    told: list[str] = []
    runner.measure(workloads, rounds=rounds, results=kept, out=out, tell=told.append)
    return told


def test_every_workload_runs_in_every_round(tmp_path: Path) -> None:
    """Two workloads, three rounds: a slow minute must fall on both, so they alternate."""
    ran: list[str] = []
    kept = results()
    _measure([counting("a", ran), counting("b", ran)], tmp_path / "out.json", kept, rounds=3)
    assert ran == ["a", "b"] * 3
    assert [row.summary.rounds for row in kept.rows()] == [3, 3]


def test_a_failed_workload_is_reported_and_stops_no_other(tmp_path: Path) -> None:
    """The middle one of three raises in each round."""
    ran: list[str] = []
    kept = results()
    workloads: list[Workload] = [counting("a", ran), counting("b", ran, fails=True), counting("c", ran)]
    told = _measure(workloads, tmp_path / "out.json", kept)
    assert [row.summary.case for row in kept.rows()] == ["a", "c"]
    assert kept.errors() == {"W1 b": "RuntimeError: it broke"}
    assert sum("not measured" in line for line in told) == 2


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Interrupted in the second workload of the second round; a new run from the file makes up what is missing."""
    ran: list[str] = []

    def interrupt(name: str) -> list[Figure]:
        if ran.count(name) == 1:
            raise KeyboardInterrupt
        return counting(name, ran).run()

    first, second = counting("a", ran), Measured("W1", "b", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _measure([first, second], tmp_path / "out.json", results())
    kept = Results.load(tmp_path / "out.json")
    assert ran == ["a", "b", "a"]
    _measure([first, counting("b", ran)], tmp_path / "out.json", kept)
    assert ran == ["a", "b", "a", "b"]
    assert {row.summary.case: row.summary.rounds for row in kept.rows()} == {"a": 2, "b": 2}


def test_the_groups_are_spread_over_the_round() -> None:
    """Four own workloads and two peers: each peer stands among those that it is compared with."""
    workloads: list[Workload] = [counting(f"o{number}", [], group=OWN) for number in range(4)]
    workloads += [counting(f"p{number}", [], group=PEER) for number in range(2)]
    workloads.append(counting("l", [], group=LIMIT))
    order = [each.case for each in runner.interleaved(workloads)]
    assert sorted(order) == sorted(each.case for each in workloads)
    assert [case for case in order if case[0] == "o"] == ["o0", "o1", "o2", "o3"]
    assert order.index("o0") < order.index("p0") < order.index("l") < order.index("p1") <= order.index("o3")


def test_an_expected_error_is_told_in_its_own_words() -> None:
    """The first line and, of a node's log that follows, the last; a class's name only where nobody expected it."""

    def fail(_: str) -> list[Figure]:
        raise ConnectionLost("n1 ended before it served; its log:\nfirst\nno space left\n")

    assert runner.run_once(1, Measured("W1", "a", fail)).error == "n1 ended before it served; its log: … no space left"
