"""What a service does, for whoever looks: a live table on a terminal (`progress_view`), a line per step elsewhere, or a
JSON object per step.

All on stderr but the JSON, which is for programs and goes to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TextIO

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.metrics import LandingCounts, serve_metrics
from mirrorlog.spark.landing.progress_view import LiveView
from mirrorlog.spark.landing.results import Observer, Several, Silent, StepResult, Tidied

_MIB: Final = 1024 * 1024


@contextmanager
def watching(landings: Sequence[Landing], *, as_json: bool, metrics_port: int | None = None) -> Iterator[Observer]:
    """The observer of a service on this terminal, or in this log. Raises PortTaken."""
    counts = LandingCounts(landings)
    with ExitStack() as stack:
        if metrics_port is not None:
            stack.enter_context(serve_metrics(counts, metrics_port))
        if as_json:
            yield Several(JsonLines(sys.stdout), counts)
        elif sys.stderr.isatty():
            yield stack.enter_context(LiveView(counts))
        else:
            yield Several(Lines(sys.stderr), counts)


def lag_seconds(result: StepResult, now_us: int) -> float:
    """How long ago the last landed record was appended, where there are others behind it; by this machine's clock."""
    behind = [queue.landed_time_us for queue in result.queues if queue.lag and queue.landed_time_us is not None]
    return max(0.0, (now_us - min(behind)) / 1e6) if behind else 0.0


def step_line(result: StepResult) -> str:
    """A step in one line."""
    rate = result.rows / result.seconds if result.seconds else 0.0
    parts = [
        f"{result.landing}: {result.rows:,} records in {result.seconds:.1f} s ({rate:,.0f}/s, "
        f"{result.bytes / _MIB:.1f} MiB, {result.files} files)",
        f"table version {'none' if result.table_version is None else result.table_version}",
        f"lag {result.lag:,} records, {lag_seconds(result, time.time_ns() // 1000):.1f} s",
    ]
    if result.dead_letters:
        parts.append(f"{result.dead_letters:,} dead letters")
    return ", ".join([*parts, *map(str, result.missed)])


class Lines(Silent):
    """A line per step that added something, per failure, and per duty of upkeep."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        if result.records or result.missed:
            self._write(step_line(result))

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write(f"{landing.name}: failed: {_one_line(error)}")

    def upkeep_done(self, landing: Landing, done: Tidied) -> None:
        files = f"{done.files_before:,} files, now {done.files_after:,}"
        self._write(f"{landing.name}: {done.duty} of {done.table}: {files}, {done.seconds:.1f} s")

    def _write(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()


class JsonLines(Silent):
    """The same as objects: `event` is `landed`, `failed` or `upkeep`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        lag_s = lag_seconds(result, time.time_ns() // 1000)
        self._write({"event": "landed", **result.as_json(), "lag_s": round(lag_s, 3)})

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        self._write({"event": "failed", "landing": landing.name, "code": error.code, "error": _one_line(error)})

    def upkeep_done(self, landing: Landing, done: Tidied) -> None:
        shown = {"table": done.table, "duty": str(done.duty), "files": [done.files_before, done.files_after]}
        self._write({"event": "upkeep", "landing": landing.name, **shown, "seconds": round(done.seconds, 3)})

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._out.flush()


def _one_line(error: MirrorlogError) -> str:
    return " ".join(error.message.split())
