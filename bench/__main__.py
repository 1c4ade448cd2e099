"""Runs the workloads, interleaved over the rounds, prints one table and writes it with its raw figures as JSON.

python -m bench --rounds 3 --out bench/results/latest.json
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import w1_publish, w2_one_outstanding
from bench.measure import Figure, Load, load_average, summarise
from mirrorlog import __version__

_MIB = 1024 * 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("bench/results/latest.json"))
    options = parser.parse_args(arguments)
    scale = 10 if options.quick else 1
    workloads: list[Callable[[], list[Figure]]] = [
        *(lambda copies=copies: w1_publish.run(copies, 1024, 512 * _MIB // scale) for copies in (1, 2, 3)),
        lambda: w1_publish.run(3, 100, 64 * _MIB // scale),
        lambda: w1_publish.run(3, 64 * 1024, 1024 * _MIB // scale),
        lambda: w1_publish.run(3, 1024, 256 * _MIB // scale, flush="disk"),
        *(lambda copies=copies: w2_one_outstanding.run(copies, 1024, 5000 // scale) for copies in (1, 2, 3)),
    ]
    before, load = load_average(), Load()
    # Round by round and not workload by workload, so that a slow minute of the machine falls on all of them.
    rounds = [workload for _ in range(options.rounds) for workload in workloads]
    figures = [figure for workload in track(rounds, "Measuring") for figure in workload()]
    report(figures, options.out, load_before=before, busy=load.busy())


def report(figures: list[Figure], out: Path, *, load_before: float, busy: float) -> None:
    """Print the medians and write everything."""
    summaries = summarise(figures)
    table = Table(title=f"mirrorlog {__version__}; load before {load_before:.1f}, cores busy meanwhile {busy:.0%}")
    for name in ("", "case", "figure", "min", "median", "max", "unit"):
        table.add_column(name, justify="right" if name in ("min", "median", "max") else "left")
    for each in summaries:
        numbers = (f"{number:,.0f}" for number in (each.minimum, each.median, each.maximum))
        table.add_row(each.workload, each.case, each.name, *numbers, each.unit)
    Console(width=130).print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "version": __version__,
        "machine": {"python": platform.python_version(), "kernel": platform.release(), "load_before": load_before},
        "summaries": [asdict(each) for each in summaries],
        "figures": [asdict(each) for each in figures],
    }
    out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
