"""What landings have done and how far behind they are, counted.

`LandingCounts` is an observer of the service. It only counts: times come in as arguments of a clock, and whoever shows
the numbers (`metrics`, `progress_view`) computes from a copy, so a slow scraper holds no landing up.

Lag in seconds is the age of the oldest record not landed, and an upper bound: its append time is not known before it is
read, that of the last landed record is, and it is older (`QueueStep.lag_seconds`). Between steps, and for a queue of
which nothing was landed yet, it is counted from the look that first saw the record. It grows while a landing fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Final

from mirrorlog.errors import MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.results import Observer, QueueStep, StepResult
from mirrorlog.spark.landing.upkeep import DutyDone

STATES: Final = ("waiting", "landing", "landed", "behind", "failed")
"""Before the first step; in a step; everything is landed; some is not; the last step failed."""


@dataclass(slots=True)
class LandedTotals:
    """Of one queue of a landing. `behind_since_s`: since when at least its oldest record not landed has been there, of
    the counts' clock; None when all is landed."""

    records: int = 0
    missed_records: int = 0
    next_offset: int = 0
    confirmed_offset: int = 0
    behind_since_s: float | None = None

    @property
    def lag_records(self) -> int:
        return max(0, self.confirmed_offset - self.next_offset)

    def lag_seconds(self, now_s: float) -> float:
        return 0.0 if self.behind_since_s is None else max(0.0, now_s - self.behind_since_s)


@dataclass(slots=True)
class DutyCounts:
    """Of one duty on one table. `files_removed`: fewer than before, of the files that the duty is about."""

    runs: int = 0
    files_removed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class LandingTotals:
    """Of one landing since the service began. `phases`: seconds by name; `failures` of steps and
    `upkeep_failures`: by error code; `success_us`, `failure_us`: µs since 1970, UTC, of the last steps."""

    table: str
    mode: str = "raw"
    write: str = "append"
    rows: int = 0
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    dead_letters: int = 0
    commits: int = 0
    steps: int = 0
    retries: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    upkeep_failures: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    table_version: int | None = None
    rate: float = 0.0
    state: str = "waiting"
    error: str | None = None
    success_us: int | None = None
    failure_us: int | None = None
    queues: dict[str, LandedTotals] = field(default_factory=dict)
    duties: dict[tuple[str, str], DutyCounts] = field(default_factory=dict)

    @property
    def conflicts(self) -> int:
        """Steps that another landing of the table was faster with."""
        return self.failures.get("LANDING_CONFLICT", 0)

    @property
    def lag_records(self) -> int:
        return sum(queue.lag_records for queue in self.queues.values())

    def lag_seconds(self, now_s: float) -> float:
        """Of the queue that is furthest behind."""
        return max((queue.lag_seconds(now_s) for queue in self.queues.values()), default=0.0)


class LandingCounts(Observer):
    """An observer of the service that counts. May be read from another thread (`copy`).

    `now_s`: a monotonic clock; `now_us`: the time of day, µs since 1970.
    """

    def __init__(
        self,
        landings: Iterable[Landing] = (),
        *,
        now_s: Callable[[], float] = time.monotonic,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._now_s = now_s
        self._now_us = now_us
        self._lock = threading.Lock()
        self._totals: dict[str, LandingTotals] = {}
        for landing in landings:
            self._of(landing)

    def copy(self) -> tuple[dict[str, LandingTotals], float]:
        """All totals by the landings' names, and the time they are of, for lags in seconds."""
        with self._lock:
            return deepcopy(self._totals), self._now_s()

    def step_began(self, landing: Landing) -> None:
        with self._lock:
            totals = self._of(landing)
            totals.retries += totals.state == "failed"
            totals.state = "landing"

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        with self._lock:
            totals = self._of(landing)
            self._add(totals, result)
            for step in result.queues:
                self._add_queue(totals.queues.setdefault(step.queue, LandedTotals()), step)
            totals.state, totals.error = "behind" if totals.lag_records else "landed", None
            totals.success_us = self._now_us()

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        with self._lock:
            totals = self._of(landing)
            totals.failures[error.code] = totals.failures.get(error.code, 0) + 1
            totals.state, totals.error = "failed", " ".join(error.message.split())
            totals.failure_us = self._now_us()

    def looked(self, landing: Landing, confirmed: Mapping[str, int]) -> None:
        """Between steps: where the queues end now, by name. So lag is known while a landing waits or fails."""
        with self._lock:
            totals = self._of(landing)
            for name, following in confirmed.items():
                queue = totals.queues.setdefault(name, LandedTotals())
                queue.confirmed_offset = max(queue.confirmed_offset, following)
                if queue.lag_records and queue.behind_since_s is None:
                    queue.behind_since_s = self._now_s()
            if totals.state == "landed" and totals.lag_records:
                totals.state = "behind"

    def upkeep_done(self, landing: Landing, done: DutyDone) -> None:
        """A duty of upkeep was done on one of the landing's tables."""
        with self._lock:
            totals = self._of(landing)
            duty = totals.duties.setdefault((done.table, str(done.duty)), DutyCounts())
            duty.runs += 1
            duty.files_removed += max(0, done.files_before - done.files_after)
            duty.seconds += done.seconds
            totals.phases["upkeep"] = totals.phases.get("upkeep", 0.0) + done.seconds

    def upkeep_failed(self, landing: Landing, error: MirrorlogError) -> None:
        """A duty of upkeep failed; the landing goes on."""
        with self._lock:
            totals = self._of(landing)
            totals.upkeep_failures[error.code] = totals.upkeep_failures.get(error.code, 0) + 1

    def _of(self, landing: Landing) -> LandingTotals:
        if landing.name not in self._totals:
            self._totals[landing.name] = LandingTotals(landing.table, landing.mode, landing.write)
        return self._totals[landing.name]

    def _add(self, totals: LandingTotals, result: StepResult) -> None:
        moved = any(step.first != step.next for step in result.queues)
        totals.steps += 1
        totals.commits += moved
        totals.rows += result.rows
        totals.bytes += result.bytes
        totals.files += result.files
        totals.file_bytes += result.file_bytes
        totals.dead_letters += result.dead_letters
        totals.table_version = result.table_version
        totals.rate = result.records / result.seconds if result.seconds else 0.0
        for name, seconds in result.parts.items():
            totals.phases[name] = totals.phases.get(name, 0.0) + seconds

    def _add_queue(self, queue: LandedTotals, step: QueueStep) -> None:
        missed = sum(each.next - each.first for each in step.missed)
        queue.records += max(0, step.next - step.first - missed)
        queue.missed_records += missed
        queue.next_offset, queue.confirmed_offset = step.next, max(queue.confirmed_offset, step.confirmed)
        # A look may have seen more confirmed than the step did.
        lag_s = replace(step, confirmed=queue.confirmed_offset).lag_seconds(self._now_us())
        if not queue.lag_records:
            queue.behind_since_s = None
        elif lag_s is not None:
            queue.behind_since_s = self._now_s() - lag_s
        elif queue.behind_since_s is None:
            queue.behind_since_s = self._now_s()
