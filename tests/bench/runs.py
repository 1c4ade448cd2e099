"""Runs and workloads for tests: no node, no clock."""

from __future__ import annotations

from bench.measure import Busy, Figure
from bench.results import Results, Run, conditions_now
from bench.workload import OWN, Measured


def run(
    round_: int, case: str, value: float | None, *, group: str = OWN, workload: str = "W1", foreign: float = 0.0
) -> Run:
    """A run that gave one throughput, or (None) failed."""
    figures = () if value is None else (Figure(workload, case, "throughput", "MB/s", value),)
    busy = Busy(own=0.5, foreign=foreign, total=0.5 + foreign)
    return Run(round_, group, workload, case, 1.0, 0.0, busy, figures, error="it broke" if value is None else None)


def results(*runs: Run) -> Results:
    """A results document of this machine, as `python -m bench` makes it."""
    return Results(conditions_now(quick=False), list(runs))


def counting(case: str, ran: list[str], *, fails: bool = False, group: str = OWN) -> Measured:
    """A workload that notes in `ran` that it ran, and gives how often; or fails each time."""

    def measure(name: str) -> list[Figure]:
        ran.append(name)
        if fails:
            raise RuntimeError("it broke")
        return [Figure("W1", name, "throughput", "MB/s", float(ran.count(name)))]

    return Measured("W1", case, measure, group=group)
