"""What long checks add up to, over any number of runs: a JSON file with the sums and a line per run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def runs_of(path: Path) -> list[dict[str, Any]]:
    """The runs that were added, oldest first."""
    if not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return runs


def add_run(path: Path, *, counts: Mapping[str, int], seconds: float, **facts: object) -> Counter[str]:
    """Add a run of `counts` that took `seconds`; `facts`, such as its seed, say how to repeat it. The counts of all
    runs. The file is replaced at once, so an interrupted run leaves the sums of those before it."""
    runs = [*runs_of(path), {**facts, "seconds": round(seconds, 1), "counts": dict(counts)}]
    sums: Counter[str] = Counter()
    for run in runs:
        sums.update(run["counts"])
    whole = {"counts": dict(sums), "seconds": round(sum(run["seconds"] for run in runs), 1), "runs": runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(whole, indent=2) + "\n")
    new.replace(path)
    return sums
