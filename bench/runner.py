"""Runs workloads round by round, so that a slow minute of the machine falls on all of them alike.

What fails is reported and does not stop the others. Every outcome is in the results file before the next one begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import Figure, Load, adopt_orphans, collect_orphans, load_average
from bench.results import Results, Run
from bench.workload import Workload

Tell = Callable[[str], None]


def measure(workloads: Sequence[Workload], *, rounds: int, results: Results, out: Path, tell: Tell) -> None:
    """Run what `results` does not have yet, and add it there. Raises nothing that a workload raises."""
    adopt_orphans()
    due = [
        (round_, workload)
        for round_ in range(1, rounds + 1)
        for workload in interleaved(workloads)
        if not results.has(round_, workload)
    ]
    began = time.monotonic()
    for number, (round_, workload) in enumerate(due, start=1):
        run = run_once(round_, workload)
        results.add(run)
        results.save(out)
        left = (time.monotonic() - began) / number * (len(due) - number)
        tell(f"[{number}/{len(due)}, {left / 60:.0f} min left] round {round_}: {told(run)}")


def run_once(round_: int, workload: Workload) -> Run:
    """One workload in one round."""
    before, load, began = load_average(), Load(), time.monotonic()
    figures: list[Figure] = []
    reason = None
    try:
        figures = workload.run()
    except Exception as error:
        reason = _reason(error)
    seconds = time.monotonic() - began
    # Whatever the workload started has ended by now.
    collect_orphans()
    busy = load.busy()
    return Run(
        round_, workload.group, workload.workload, workload.case, seconds, before, busy, tuple(figures), error=reason
    )


def interleaved(workloads: Sequence[Workload]) -> list[Workload]:
    """Each group spread evenly over the round: what is compared stands close together."""
    sizes: dict[str, int] = {}
    for workload in workloads:
        sizes[workload.group] = sizes.get(workload.group, 0) + 1
    seen: dict[str, int] = {}
    places: list[tuple[float, int]] = []
    for number, workload in enumerate(workloads):
        at = seen.get(workload.group, 0)
        seen[workload.group] = at + 1
        places.append(((at + 0.5) / sizes[workload.group], number))
    return [workloads[number] for _, number in sorted(places)]


def told(run: Run) -> str:
    """One line: what was measured, or why not."""
    name = f"{run.workload} {run.case}"
    if run.error is not None:
        return f"{name}: not measured: {run.error}"
    shown = ", ".join(f"{each.name} {each.value:,.4g} {each.unit}" for each in run.figures[:4])
    more = f" and {len(run.figures) - 4} more" if len(run.figures) > 4 else ""
    return f"{name}: {shown}{more} ({run.seconds:.0f} s; others' load {run.busy.foreign:.0%})"


def _reason(error: Exception) -> str:
    """In one line: the first of its text and, where a node's log follows, the last, which says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " … ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else ""
    expected = bool(text) and type(error).__module__.partition(".")[0] in ("bench", "mirrorlog")
    return text if expected else f"{type(error).__name__}: {text}"
