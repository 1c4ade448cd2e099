"""The results of a run, in one JSON file that is whole after every workload: an interrupted run is not lost.

Each entry of `runs` is one workload in one round with its figures, or the reason why there are none.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from bench.measure import Busy, Figure, Summary, load_average, summarise
from bench.workload import Workload
from mirrorlog import __version__
from mirrorlog.errors import BadInput

FORMAT: Final = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One workload in one round. `seconds`: all that it took, starting nodes included; `busy`: the cores meanwhile.

    `error`: why there are no figures.
    """

    round: int
    group: str
    workload: str
    case: str
    seconds: float
    load_before: float
    busy: Busy
    figures: tuple[Figure, ...] = ()
    error: str | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """As `asdict` wrote it. Raises TypeError or KeyError for anything else."""
        figures = tuple(Figure(**figure) for figure in entry["figures"])
        return cls(**{**entry, "busy": Busy(**entry["busy"]), "figures": figures})

    def is_of(self, round_: int, workload: Workload) -> bool:
        """Whether this is what `workload` gave in that round."""
        mine = (self.round, self.group, self.workload, self.case)
        return mine == (round_, workload.group, workload.workload, workload.case)


@dataclass(frozen=True, slots=True)
class Row:
    """A figure over all rounds, with what else the machine did meanwhile: shares of all cores, medians."""

    group: str
    summary: Summary
    own: float
    foreign: float


@dataclass(slots=True)
class Results:
    """All runs so far and the conditions that they share."""

    conditions: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises BadInput."""
        try:
            document = json.loads(path.read_text())
            if document.get("format") != FORMAT:
                raise BadInput(f"{path}: format {document.get('format')}, this program reads {FORMAT}")
            return cls(document["conditions"], [Run.from_json(entry) for entry in document["runs"]])
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(f"{path} is no results file ({type(error).__name__}: {error})") from None

    def save(self, path: Path) -> None:
        """Replace the file at once: a reader sees the old one or the new one."""
        document = {
            "format": FORMAT,
            "conditions": self.conditions,
            "summaries": [{"group": row.group, **asdict(row.summary)} for row in self.rows()],
            "runs": [asdict(run) for run in self.runs],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(document, indent=1) + "\n")
        unfinished.replace(path)

    def has(self, round_: int, workload: Workload) -> bool:
        """Whether that workload has figures of that round."""
        return any(run.error is None and run.is_of(round_, workload) for run in self.runs)

    def add(self, run: Run) -> None:
        """Take it in; a failure of the same workload in the same round is forgotten."""
        key = (run.round, run.group, run.workload, run.case)
        self.runs = [each for each in self.runs if (each.round, each.group, each.workload, each.case) != key]
        self.runs.append(run)

    def check_same(self, conditions: Mapping[str, Any]) -> None:
        """Raises BadInput when rounds under `conditions` cannot stand beside those that are there."""
        for name in ("version", "quick", "machine"):
            if self.conditions.get(name) != conditions.get(name):
                raise BadInput(f"another {name} than that of the run that is to be gone on with; start a new one")

    def rows(self, group: str | None = None) -> list[Row]:
        """Every figure over all rounds, in order of first appearance; of one group, or of all."""
        found: list[Row] = []
        for each in dict.fromkeys(run.group for run in self.runs):
            if group is None or each == group:
                found += _rows(each, [run for run in self.runs if run.group == each])
        return found

    def errors(self, group: str | None = None) -> dict[str, str]:
        """Why what was not measured was not: the last reason by workload and case; of one group, or of all."""
        measured = {(run.group, run.workload, run.case) for run in self.runs if run.error is None}
        return {
            f"{run.workload} {run.case}".strip(): run.error
            for run in self.runs
            if run.error is not None
            and group in (None, run.group)
            and (run.group, run.workload, run.case) not in measured
        }

    @property
    def rounds(self) -> int:
        return max((run.round for run in self.runs), default=0)


def _rows(group: str, runs: Sequence[Run]) -> list[Row]:
    busy: dict[tuple[str, str], list[Busy]] = {}
    for run in runs:
        for key in {(figure.workload, figure.case) for figure in run.figures}:
            busy.setdefault(key, []).append(run.busy)
    return [
        Row(
            group,
            summary,
            own=statistics.median(each.own for each in busy[summary.workload, summary.case]),
            foreign=statistics.median(each.foreign for each in busy[summary.workload, summary.case]),
        )
        for summary in summarise(figure for run in runs for figure in run.figures)
    ]


# --- Conditions -------------------------------------------------------------------------------------------------------


def conditions_now(*, quick: bool) -> dict[str, Any]:
    """What a run is made under: version, machine, date, and the load before it."""
    return {
        "version": __version__,
        "quick": quick,
        "machine": machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "load_before": round(load_average(), 2),
    }


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "processor": _first_of(Path("/proc/cpuinfo"), "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _first_of(file: Path, name: str) -> str:
    """The value of the first `name : value` line."""
    try:
        lines = (line.partition(":") for line in file.read_text().splitlines())
        return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")
    except OSError:
        return "unknown"
