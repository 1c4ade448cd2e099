"""Schedules by the number, on all cores: `python -m sim.cluster_main --seed 1 --n 1000`.

    --seed S, --n N      the seeds S, S + 1, … S + N - 1; without a seed it goes on where the last run stopped
    --minutes M          no new schedule begins after so long
    --resume FILE        where the totals of all runs are kept; .build/sim/totals.json
    --plan FILE          replays a plan that was saved, alone, and shrinks it when it fails
    --kind K             every plan of this kind
    --trace              with --plan, or --n 1: every event as it happens
    --json               the totals as JSON on the last line

A schedule that fails is shrunk and saved, with both plans and the last events, in .build/sim/. Exit code 1 when
one did.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from sim.alarm import GoesRound, alarm
from sim.cluster_plan import ALL_KINDS, Plan, draw
from sim.cluster_run import run
from sim.cluster_shrink import Shrunk, shrink
from sim.trace import Trace, words
from sim.world import RunFailed

FOLDER: Final = Path(".build/sim")
SHRINK_S: Final = 60.0
EVENTS_KEPT: Final = 300
ATTEMPT_S: Final = 120.0
"""Of the processor, for one schedule; most take less than a hundredth."""
_PROGRESS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A schedule that failed: `report` has its last events."""

    plan: Plan
    report: str

    @property
    def reason(self) -> str:
        return self.report.partition("\n")[0]


@dataclass(slots=True)
class Totals:
    """Of all runs: `next_seed` is where the next one goes on."""

    next_seed: int = 1
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Totals:
        if not path.exists():
            return cls()
        found = json.loads(path.read_text())
        return cls(found["next_seed"], found["seconds"], Counter(found["counts"]), found["failed"])

    def write(self, path: Path) -> None:
        """Replaced at once: a run that is interrupted leaves those of the one before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(self.to_json(indent=2) + "\n")
        new.replace(path)

    def to_json(self, *, indent: int | None = None) -> str:
        facts = {
            "next_seed": self.next_seed,
            "seconds": round(self.seconds, 1),
            "failed": self.failed,
            "counts": dict(sorted(self.counts.items())),
        }
        return json.dumps(facts, indent=indent)


def attempt(plan: Plan, trace: Trace | None = None, *, within_s: float = ATTEMPT_S) -> Counter[str] | Failure:
    """One schedule. `within_s`: of the processor; one that goes round within a callback ends no other way."""
    trace = trace or Trace(kept=EVENTS_KEPT)
    try:
        with alarm(within_s):
            return run(plan, trace=trace)
    except RunFailed as failed:
        return Failure(plan, str(failed))
    except GoesRound as where:
        return Failure(
            plan, "\n".join([f"seed cluster {plan.seed}: AssertionError: it goes round: {where}", *trace.lines()])
        )


def attempt_seed(seed: int, kind: str | None) -> Counter[str] | Failure:
    return attempt(draw(seed, kind=kind))


def shrunk(failure: Failure, *, within_s: float = SHRINK_S) -> Shrunk:
    """In bounded time."""
    give_up_at = time.monotonic() + within_s

    def reason(plan: Plan) -> str:
        found = attempt(plan)
        return found.reason if isinstance(found, Failure) else ""

    return shrink(failure.plan, failure.reason, reason, go_on=lambda: time.monotonic() < give_up_at)


def report(failure: Failure, smaller: Shrunk, folder: Path = FOLDER) -> str:
    """What is told of a failure; the plans are saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"failed-{failure.plan.seed}"
    (folder / f"{name}.json").write_text(failure.plan.to_json() + "\n")
    (folder / f"{name}-shrunk.json").write_text(smaller.plan.to_json() + "\n")
    last = attempt(smaller.plan)
    events = (last if isinstance(last, Failure) else failure).report
    (folder / f"{name}.txt").write_text(f"{failure.plan}\n\n{smaller.plan}\n\n{events}\n")
    return "\n".join(
        [
            f"FAILED {failure.reason}",
            f"the plan: {failure.plan}",
            f"shrunk in {smaller.runs} runs, fails with: {smaller.failure}",
            str(smaller.plan),
            f"the last events are in {folder / name}.txt",
            f"replay: python -m sim.cluster_main --trace --plan {folder / name}-shrunk.json",
        ]
    )


def _begin() -> None:
    """In a new process: what was imported stays, and is not looked through for garbage after every schedule."""
    gc.freeze()


class Batch:
    """Runs seeds on several processes, and says how far it is."""

    def __init__(self, totals: Totals, path: Path, *, kind: str | None, quiet: bool = False) -> None:
        self.failures: list[Failure] = []
        self._totals = totals
        self._path = path
        self._kind = kind
        self._quiet = quiet
        self._told_at = 0.0
        self._begun_at = time.monotonic()
        self._done = 0

    def run(self, seeds: Iterable[int], *, until: float, workers: int) -> None:
        """`until`: of the monotonic clock; no schedule begins after it."""
        waiting = iter(seeds)
        # Spawned: what one schedule patches must not be there when the next process begins.
        spawn = get_context("spawn")
        with ProcessPoolExecutor(workers, spawn, initializer=_begin, max_tasks_per_child=200) as pool:
            running: dict[Future[Counter[str] | Failure], int] = {}
            while True:
                while len(running) < 2 * workers and time.monotonic() < until:
                    if (seed := next(waiting, None)) is None:
                        break
                    running[pool.submit(attempt_seed, seed, self._kind)] = seed
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    self._note(running.pop(each), each.result())

    def _note(self, seed: int, found: Counter[str] | Failure) -> None:
        totals = self._totals
        self._done += 1
        totals.next_seed = max(totals.next_seed, seed + 1)
        if isinstance(found, Failure):
            self.failures.append(found)
            totals.failed.append(found.reason)
            print(f"FAILED {found.reason}", flush=True)
        else:
            totals.counts.update(found)
        now = time.monotonic()
        if now - self._told_at > _PROGRESS_S and not self._quiet:
            self._told_at = now
            took_s = now - self._begun_at
            print(
                f"{self._done} schedules, {len(self.failures)} failed, {took_s:.0f} s, "
                f"{took_s / self._done:.2f} s each; seed {seed}",
                flush=True,
            )
            totals.write(self._path)


def coverage(counts: Counter[str]) -> str:
    """Every count, a line each; what was never come through is marked."""
    return "\n".join(f"  {'!' if not count else ' '} {name}: {count}" for name, count in sorted(counts.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = _parse(arguments)
    trace = Trace(kept=EVENTS_KEPT)
    if options.trace:
        trace.watcher = lambda note: print(words(note))
    if options.plan is not None:
        return _replay(Plan.from_json(Path(options.plan).read_text()), trace)
    path = Path(options.resume)
    totals = Totals.read(path)
    first = options.seed if options.seed is not None else totals.next_seed
    if options.trace and options.n == 1:
        return _replay(draw(first, kind=options.kind), trace)
    begun_at = time.monotonic()
    batch = Batch(totals, path, kind=options.kind)
    until = begun_at + options.minutes * 60
    seeds = range(first, first + options.n) if options.n else count(first)
    batch.run(seeds, until=until, workers=options.workers)
    totals.seconds += time.monotonic() - begun_at
    totals.write(path)
    for failure in batch.failures:
        print(report(failure, shrunk(failure)))
    print(totals.to_json() if options.json else f"all runs so far, in {path}:\n{coverage(totals.counts)}")
    return 1 if batch.failures else 0


def _replay(plan: Plan, trace: Trace) -> int:
    print(plan)
    found = attempt(plan, trace)
    if not isinstance(found, Failure):
        print(f"it holds:\n{coverage(found)}")
        return 0
    print(report(found, shrunk(found)))
    return 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim.cluster_main", description="Simulated clusters in storms.")
    parser.add_argument("--seed", type=int, help="the first seed; by default the one behind the last run's")
    parser.add_argument("--n", type=int, default=200, help="how many; 0: until the time is over")
    parser.add_argument("--minutes", type=float, default=60.0, help="no new schedule begins after so long")
    parser.add_argument("--resume", default=str(FOLDER / "totals.json"), help="where the totals of all runs are")
    parser.add_argument("--kind", choices=list(ALL_KINDS), help="every plan of this kind")
    parser.add_argument("--plan", help="replay this saved plan")
    parser.add_argument("--trace", action="store_true", help="every event as it happens, for one plan")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="the totals as JSON on the last line")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
