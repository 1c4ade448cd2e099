"""The command line: `python -m bench --help`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from bench import registry, report, runner
from bench.results import Results, conditions_now
from bench.workload import OWN, Workload, name_of
from mirrorlog.errors import BadInput

LATEST: Final = Path("bench/results/latest.json")

_WIDTH: Final = 170


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all of mirrorlog's own workloads were measured, 1 when one was not or stdout took no more, 2 for bad
    options, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        code = _report(options.report) if options.report else _measure(options)
        sys.stdout.flush()
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # `… --list | head`: the reader has what it wanted.
        _leave_stdout()
        return 1
    except OSError as error:
        # What stdout raises has no file name.
        if error.filename is not None:
            raise
        _leave_stdout()
        print(f"error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 1
    return code


def _leave_stdout() -> None:
    """Let nothing more be written there: Python would complain when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """All options."""
    found = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures mirrorlog and the limits of the machine; prints tables, writes JSON and a picture.",
        epilog="Example: python -m bench --only W1 --rounds 1 --out w1.json",
    )
    found.add_argument("--only", metavar="REGEX", help="workloads whose `group workload case` fits (see --list)")
    found.add_argument("--rounds", type=int, metavar="N", help="default 3, with --quick 1")
    found.add_argument("--quick", action="store_true", help="little data, to see that all of it runs")
    found.add_argument("--peers", action="store_true", help="other systems too, and only what they are compared with")
    found.add_argument("--all", action="store_true", help="with --peers: all of mirrorlog's own workloads beside them")
    found.add_argument("--list", action="store_true", help="print the workloads and run nothing")
    found.add_argument("--resume", action="store_true", help="go on with the rounds that --out does not have yet")
    found.add_argument("--out", type=Path, default=LATEST, help=f"results as JSON (default {LATEST}); a .png beside it")
    found.add_argument("--report", type=Path, metavar="JSON", help="print a results file as markdown and run nothing")
    return found


def _report(path: Path) -> int:
    print(report.markdown(Results.load(path)), end="")
    return 0


def _measure(options: argparse.Namespace) -> int:
    workloads = chosen(registry.select(quick=options.quick, peers=options.peers, everything=options.all), options.only)
    if options.list:
        print("\n".join(name_of(each) for each in workloads))
        return 0
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    results = _results(options)
    code = 0
    rounds = options.rounds or (1 if options.quick else 3)
    try:
        runner.measure(workloads, rounds=rounds, results=results, out=options.out, tell=_tell)
    except KeyboardInterrupt:
        print(f"interrupted; go on with --resume --out {options.out}", file=sys.stderr)
        code = 130
    report.show(results, console)
    _draw(results, options.out.with_suffix(".png"))
    return code or (1 if results.errors(OWN) else 0)


def chosen(workloads: Sequence[Workload], only: str | None) -> list[Workload]:
    """Those whose name fits. Raises BadInput when none does."""
    try:
        found = [each for each in workloads if only is None or re.search(only, name_of(each))]
    except re.error as error:
        raise BadInput(f"--only {only!r} is no regular expression: {error}") from None
    if not found:
        raise BadInput(f"no workload fits --only {only!r}; see --list")
    return found


def _results(options: argparse.Namespace) -> Results:
    conditions = conditions_now(quick=options.quick)
    if not options.resume:
        return Results(conditions)
    results = Results.load(options.out)
    results.check_same(conditions)
    return results


def _tell(line: str) -> None:
    print(line, flush=True)


def _draw(results: Results, path: Path) -> None:
    # Late: the library is an extra, and takes a second to load.
    try:
        from bench.picture import draw
    except ImportError as error:
        print(f"no picture ({error}): pip install -e '.[bench]'", file=sys.stderr)
        return
    if draw(results, path):
        print(f"{path}")
