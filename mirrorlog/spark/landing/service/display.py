"""What landings do, for whoever looks: on a terminal a live table of a service (`progress_view`) or a bar of a single
run, elsewhere a line per step, or a JSON object per step.

All on stderr but the JSON, which is for programs and goes to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.results import Observer, Several, StepMoment, StepResult
from mirrorlog.spark.landing.service.counts import LandingCounts, LandingTotals
from mirrorlog.spark.landing.service.metrics import LOOPBACK, serve_metrics
from mirrorlog.spark.landing.upkeep import DutyDone

_MIB: Final = 1024 * 1024

_STAGES: Final = {
    StepMoment.BEGAN: "planning",
    StepMoment.PLANNED: "writing files",
    StepMoment.WRITTEN: "committing",
    StepMoment.COMMITTED: "committed",
}
"""What a step does from a place on."""


ROWS_MAX: Final = 30
"""Queues that a terminal shows; those furthest behind first when there are more."""

_STYLES: Final = {"failed": "bold red", "behind": "yellow", "landing": "cyan", "landed": "green"}
_REASON_CHARACTERS_MAX: Final = 160


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue of one landing. `reason`: why it failed, else None; `rate`: records per second of the last step."""

    queue: str
    table: str
    records: int
    rate: float
    lag_records: int
    lag_seconds: float
    state: str
    reason: str | None = None


def queue_rows(totals: Mapping[str, LandingTotals], now_s: float) -> list[QueueRow]:
    """In the order of the landings' and the queues' names. A landing that knows no queue yet has a row of its own."""
    return [row for name in sorted(totals) for row in _rows(name, totals[name], now_s)]


def progress_table(rows: Iterable[QueueRow]) -> Table:
    """For a terminal."""
    every = list(rows)
    shown = every if len(every) <= ROWS_MAX else sorted(every, key=lambda row: -row.lag_records)[:ROWS_MAX]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    table.add_column("table", overflow="fold")
    for name in ("landed", "rate/s", "lag", "lag s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for row in shown:
        numbers = (f"{row.records:,}", f"{row.rate:,.0f}", f"{row.lag_records:,}", f"{row.lag_seconds:.1f}")
        # Text, not markup: a queue may be called [red].
        table.add_row(Text(row.queue), Text(row.table), *numbers, Text(_state(row), style=_STYLES.get(row.state, "")))
    if len(every) > len(shown):
        table.caption = f"and {len(every) - len(shown):,} queues that are less far behind"
    return table


def _rows(name: str, totals: LandingTotals, now_s: float) -> Iterator[QueueRow]:
    if not totals.queues:
        yield QueueRow(name, totals.table, 0, 0.0, 0, 0.0, totals.state, totals.error)
    for queue, counts in sorted(totals.queues.items()):
        state = totals.state
        if state in ("landed", "behind"):
            state = "behind" if counts.lag_records else "landed"
        lag = counts.lag_records, counts.lag_seconds(now_s)
        yield QueueRow(queue, totals.table, counts.records, totals.rate, *lag, state, totals.error)


def _state(row: QueueRow) -> str:
    if row.reason is None:
        return row.state
    reason = row.reason
    if len(reason) > _REASON_CHARACTERS_MAX:
        reason = f"{reason[: _REASON_CHARACTERS_MAX - 1]}…"
    return f"{row.state}: {reason}"


class LiveView(Observer):
    """Shows the counts as a table on a terminal while its block runs."""

    def __init__(self, counts: LandingCounts, console: Console | None = None) -> None:
        self._counts = counts
        self._live = Live(console=console or Console(stderr=True), get_renderable=self._table, refresh_per_second=4)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._live.stop()

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        for missed in result.missed:
            self._live.console.print(Text(f"{landing.name}: {missed}"))

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._live.console.print(Text(f"{landing.name}: upkeep failed: {_one_line(error)}"))

    def _table(self) -> RenderableType:
        return progress_table(queue_rows(*self._counts.copy()))


@contextmanager
def watching(
    landings: Sequence[Landing], *, as_json: bool, metrics_port: int | None = None, metrics_host: str | None = None
) -> Iterator[Observer]:
    """The observer of a service on this terminal, or in this log. Raises PortTaken."""
    counts = LandingCounts(landings)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(serve_metrics(counts, metrics_port, metrics_host or LOOPBACK))
        if as_json:
            yield Several(JsonLines(sys.stdout), counts)
        elif sys.stderr.isatty():
            yield Several(counts, stack.enter_context(LiveView(counts)))
        else:
            yield Several(StepLines(sys.stderr), counts)


@contextmanager
def watching_run(landing: Landing, *, as_json: bool) -> Iterator[Observer]:
    """For a run of a landing of one queue; it begins with the start of Spark."""
    if as_json:
        yield JsonLines(sys.stdout)
    elif sys.stderr.isatty():
        with RunBar(landing) as bar:
            yield bar
    else:
        yield RunLines(landing, sys.stderr)


def step_line(result: StepResult) -> str:
    """A step in one line."""
    rate = result.rows / result.seconds if result.seconds else 0.0
    parts = [
        f"{result.landing}: {result.rows:,} records in {result.seconds:.1f} s ({rate:,.0f}/s, "
        f"{result.bytes / _MIB:.1f} MiB, {result.files} files)",
        f"table version {'none' if result.table_version is None else result.table_version}",
        f"lag {result.lag:,} records, {result.lag_seconds(time.time_ns() // 1000):.1f} s",
    ]
    if result.dead_letters:
        parts.append(f"{result.dead_letters:,} dead letters")
    return ", ".join([*parts, *map(str, result.missed)])


class StepLines(Observer):
    """A line per step that added something, per failure, and per duty of upkeep."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        if result.records or result.missed:
            self._write(step_line(result))

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write(f"{landing.name}: failed: {_one_line(error)}")

    def upkeep_done(self, landing: Landing, done: DutyDone) -> None:
        files = f"{done.files_before:,} files, now {done.files_after:,}"
        self._write(f"{landing.name}: {done.duty} of {done.table}: {files}, {done.seconds:.1f} s")

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write(f"{landing.name}: upkeep failed: {_one_line(error)}")

    def _write(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()


class JsonLines(Observer):
    """The same as objects: `event` is `landed`, `failed`, `upkeep` or `upkeep_failed`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        lag_s = result.lag_seconds(time.time_ns() // 1000)
        self._write({"event": "landed", **result.as_json(), "lag_s": round(lag_s, 3)})

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write({"event": "failed", "landing": landing.name, "code": error.code, "error": _one_line(error)})

    def upkeep_done(self, landing: Landing, done: DutyDone) -> None:
        shown = {"table": done.table, "duty": str(done.duty), "files": [done.files_before, done.files_after]}
        self._write({"event": "upkeep", "landing": landing.name, **shown, "seconds": round(done.seconds, 3)})

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write({"event": "upkeep_failed", "landing": landing.name, "code": error.code, "error": _one_line(error)})

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._out.flush()


class RunLines(StepLines):
    """A line when Spark starts, for what there is to land, for each stage, and for each step. An error is told by
    whoever ends with it."""

    def __init__(self, landing: Landing, out: TextIO) -> None:
        super().__init__(out)
        self._landing = landing
        self._left = range(0)
        self._write("starting Spark")

    def planned(self, wanted: range) -> None:
        self._left = wanted
        self._write(f"{self._landing.name}: {_to_land(wanted)}")

    def moment(self, moment: StepMoment) -> None:
        stage = _STAGES.get(moment)
        if self._left and stage is not None and moment is not StepMoment.BEGAN:
            self._write(f"{self._landing.name}: {stage}")

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        super().step_ended(landing, result)
        self._left = range(_reached(result, self._left), self._left.stop)

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        pass


class RunBar(Observer):
    """A bar of what is landed of what was confirmed at first, with the stage of the step. Its lines go with it."""

    def __init__(self, landing: Landing, console: Console | None = None) -> None:
        self._wanted = range(0)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # what is printed there may be in a file
        )
        self._name = landing.name
        self._task = self._progress.add_task(f"{self._name}: starting Spark", total=None, told="")

    def __enter__(self) -> RunBar:
        self._progress.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._progress.stop()

    @property
    def line(self) -> str:
        """Its words."""
        task = self._progress.tasks[0]
        return " ".join(filter(None, (task.description, task.fields["told"])))

    def planned(self, wanted: range) -> None:
        self._wanted = wanted
        self._progress.update(self._task, total=len(wanted), told=self._told(0, 0.0))

    def moment(self, moment: StepMoment) -> None:
        if stage := _STAGES.get(moment):
            self._progress.update(self._task, description=f"{self._name}: {stage}")

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        done = _reached(result, self._wanted) - self._wanted.start
        rate = result.rows / result.seconds if result.seconds else 0.0
        # Others may have published meanwhile: a step lands that too.
        done = min(done, len(self._wanted))
        self._progress.update(self._task, completed=done, told=self._told(done, rate))

    def _told(self, done: int, rate: float) -> str:
        pace = f", {rate:,.0f}/s" if rate else ""
        return f"{done:,} of {len(self._wanted):,} records{pace}"


def _to_land(wanted: range) -> str:
    if not wanted:
        return "nothing to land"
    return f"{len(wanted):,} records to land, {wanted.start} up to {wanted.stop}"


def _reached(result: StepResult, wanted: range) -> int:
    """The queue offset behind what is landed."""
    return max([queue.next for queue in result.queues], default=wanted.start)


def _one_line(error: MirrorlogError) -> str:
    return " ".join(error.message.split())
