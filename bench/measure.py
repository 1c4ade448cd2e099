"""What a benchmark run gives: named figures, their minimum, median and maximum over rounds, the machine's load."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one round. `workload`: e.g. W1; `case`: what was varied; `unit`: of `value`."""

    workload: str
    case: str
    name: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all rounds."""

    workload: str
    case: str
    name: str
    unit: str
    minimum: float
    median: float
    maximum: float
    rounds: int


def summarise(figures: Iterable[Figure]) -> list[Summary]:
    """One summary per (workload, case, name), in order of first appearance."""
    grouped: dict[tuple[str, str, str, str], list[float]] = {}
    for figure in figures:
        grouped.setdefault((figure.workload, figure.case, figure.name, figure.unit), []).append(figure.value)
    return [
        Summary(*key, minimum=min(values), median=statistics.median(values), maximum=max(values), rounds=len(values))
        for key, values in grouped.items()
    ]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Load:
    """How busy the machine's cores were with anything since this was made, from /proc/stat; 0..1."""

    def __init__(self) -> None:
        self._before = self._read()

    def busy(self) -> float:
        idle, total = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return 1 - idle / total if total else 0.0

    @staticmethod
    def _read() -> tuple[int, int]:
        with Path("/proc/stat").open() as stat:
            ticks = [int(field) for field in stat.readline().split()[1:]]
        return ticks[3] + ticks[4], sum(ticks)


def load_average() -> float:
    """Of the last minute: what else ran when the benchmark began."""
    return os.getloadavg()[0]
