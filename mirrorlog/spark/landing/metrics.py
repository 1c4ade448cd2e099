"""What landings have done and how far behind they are: counted, as Prometheus metrics, and as JSON lines.

`LandingCounts` is an observer of the service. It only counts: times come in as arguments of a clock, and what a scrape
shows is computed from a copy, so a slow scraper holds no landing up. `LandingMetrics` is the exposition over it, with
a registry of its own, and `serve_metrics` a thin HTTP server.

Names and units follow those of the nodes' metrics: bytes and seconds, what only grows ends in `_total`, a state is 0
or 1 for each of its values. The label `landing` is the landing's name; what belongs to one queue has the label `queue`
besides.

Lag in seconds is that of the oldest record not landed, and an upper bound: its append time is not known before it is
read, that of the last landed record is, and it is older. It grows while a landing fails.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirrorlog.errors import MirrorlogError, PortTaken
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.results import Observer, QueueStep, StepResult

STATES: Final = ("waiting", "landing", "landed", "behind", "failed")
"""Before the first step; in a step; everything is landed; some is not; the last step failed."""


class UpkeepDone(Protocol):
    """A duty that was done, as `upkeep_duties.Done` is one."""

    @property
    def table(self) -> str: ...
    @property
    def duty(self) -> str: ...
    @property
    def files_before(self) -> int: ...
    @property
    def files_after(self) -> int: ...
    @property
    def seconds(self) -> float: ...


@dataclass(slots=True)
class QueueCounts:
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
    """Of one landing since the service began. `phases`: seconds by name; `failures`: by error code; `success_us`,
    `failure_us`: µs since 1970, UTC, of the last ones."""

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
    phases: dict[str, float] = field(default_factory=dict)
    table_version: int | None = None
    rate: float = 0.0
    state: str = "waiting"
    error: str | None = None
    success_us: int | None = None
    failure_us: int | None = None
    queues: dict[str, QueueCounts] = field(default_factory=dict)
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


class LandingCounts:
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
                self._add_queue(totals.queues.setdefault(step.queue, QueueCounts()), step)
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
                queue = totals.queues.setdefault(name, QueueCounts())
                queue.confirmed_offset = max(queue.confirmed_offset, following)
                if queue.lag_records and queue.behind_since_s is None:
                    queue.behind_since_s = self._now_s()
            if totals.state == "landed" and totals.lag_records:
                totals.state = "behind"

    def upkeep_done(self, landing: Landing, done: UpkeepDone) -> None:
        """A duty of upkeep was done on one of the landing's tables."""
        with self._lock:
            totals = self._of(landing)
            duty = totals.duties.setdefault((done.table, str(done.duty)), DutyCounts())
            duty.runs += 1
            duty.files_removed += max(0, done.files_before - done.files_after)
            duty.seconds += done.seconds
            totals.phases["upkeep"] = totals.phases.get("upkeep", 0.0) + done.seconds

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

    def _add_queue(self, queue: QueueCounts, step: QueueStep) -> None:
        missed = sum(each.next - each.first for each in step.missed)
        queue.records += max(0, step.next - step.first - missed)
        queue.missed_records += missed
        queue.next_offset, queue.confirmed_offset = step.next, max(queue.confirmed_offset, step.confirmed)
        if not queue.lag_records:
            queue.behind_since_s = None
        elif step.landed_time_us is not None:
            queue.behind_since_s = self._now_s() - max(0.0, (self._now_us() - step.landed_time_us) / 1e6)
        elif queue.behind_since_s is None:
            queue.behind_since_s = self._now_s()


class Observers:
    """Several observers as one, told in this order: a display, and the counts."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def step_began(self, landing: Landing) -> None:
        for each in self._observers:
            each.step_began(landing)

    def step_ended(self, landing: Landing, result: StepResult) -> None:
        for each in self._observers:
            each.step_ended(landing, result)

    def step_failed(self, landing: Landing, error: MirrorlogError) -> None:
        for each in self._observers:
            each.step_failed(landing, error)


def json_lines(totals: Mapping[str, LandingTotals], now_s: float) -> list[str]:
    """A line per landing, in the order of their names."""
    return [json.dumps(_as_json(name, totals[name], now_s), ensure_ascii=False) for name in sorted(totals)]


def _as_json(name: str, totals: LandingTotals, now_s: float) -> dict[str, Any]:
    plain = (
        "table",
        "rows",
        "bytes",
        "files",
        "file_bytes",
        "dead_letters",
        "commits",
        "steps",
        "retries",
        "conflicts",
    )
    queues = {
        queue: {
            "records": counts.records,
            "missed_records": counts.missed_records,
            "next_offset": counts.next_offset,
            "confirmed_offset": counts.confirmed_offset,
            "lag_records": counts.lag_records,
            "lag_seconds": round(counts.lag_seconds(now_s), 3),
        }
        for queue, counts in sorted(totals.queues.items())
    }
    return {
        "landing": name,
        **{each: getattr(totals, each) for each in plain},
        "failures": totals.failures,
        "seconds": {phase: round(seconds, 3) for phase, seconds in totals.phases.items()},
        "table_version": totals.table_version,
        "state": totals.state,
        "error": totals.error,
        "last_success_us": totals.success_us,
        "last_failure_us": totals.failure_us,
        "lag_records": totals.lag_records,
        "lag_seconds": round(totals.lag_seconds(now_s), 3),
        "queues": queues,
    }


# --- Prometheus -----------------------------------------------------------------------------------------------------

_Totals = Mapping[str, LandingTotals]
_Sample = tuple[Sequence[str], float]

_COUNTERS: Final[Sequence[tuple[str, str, Callable[[LandingTotals], float]]]] = (
    ("rows", "Rows that landings have added to the table, dead letters not counted", lambda each: each.rows),
    ("bytes", "Bytes of the records that the landing has read", lambda each: each.bytes),
    ("files", "Data files that the landing has added to the table", lambda each: each.files),
    ("file_bytes", "Bytes of the data files that the landing has added", lambda each: each.file_bytes),
    ("dead_letters", "Records that went to the table of dead letters", lambda each: each.dead_letters),
    ("commits", "Steps that moved a position, each one commit of the table", lambda each: each.commits),
    ("steps", "Steps that ended well, those with nothing to land too", lambda each: each.steps),
    ("conflicts", "Steps that ended because another commit to the table came before", lambda each: each.conflicts),
    ("retries", "Steps that began after one that failed", lambda each: each.retries),
)
_QUEUE_COUNTERS: Final[Sequence[tuple[str, str, Callable[[QueueCounts], float]]]] = (
    ("records", "Records of the queue that were landed, dead letters included", lambda each: each.records),
    ("missed_records", "Queue offsets that were passed over and will not be landed", lambda each: each.missed_records),
)
_QUEUE_GAUGES: Final[Sequence[tuple[str, str, Callable[[QueueCounts], float]]]] = (
    ("next_offset", "Queue offset after the last record that is in the table", lambda each: each.next_offset),
    (
        "confirmed_offset",
        "Queue offset after the last record known to be confirmed",
        lambda each: each.confirmed_offset,
    ),
    ("lag_records", "Confirmed records of the queue that are not landed", lambda each: each.lag_records),
)


class LandingMetrics(Collector):
    """The counts as metric families, made anew for each scrape."""

    def __init__(self, counts: LandingCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        totals, now_s = self._counts.copy()
        yield from _facts(totals)
        yield from _of_landings(totals, now_s)
        yield from _of_queues(totals, now_s)
        yield from _of_upkeep(totals)


def _facts(totals: _Totals) -> Iterator[Metric]:
    info = [((name, each.table, each.mode, each.write), 1.0) for name, each in totals.items()]
    labels = ("landing", "table", "mode", "write")
    yield _gauge("info", "What is landed where, and how; always 1", labels, info)
    states = [((name, state), float(each.state == state)) for name, each in totals.items() for state in STATES]
    yield _gauge("state", "1 for what the landing is doing now", ("landing", "state"), states)
    versions = [((name,), each.table_version) for name, each in totals.items() if each.table_version is not None]
    yield _gauge("table_version", "Version of the table after the last step", ("landing",), versions)
    for what, field_ in (("success", "success_us"), ("failure", "failure_us")):
        meaning = f"When the last {what} of a step was, in seconds since 1970, UTC"
        times = [(name, getattr(each, field_)) for name, each in totals.items()]
        known = [((name,), micros / 1e6) for name, micros in times if micros is not None]
        yield _gauge(f"last_{what}_timestamp_seconds", meaning, ("landing",), known)


def _of_landings(totals: _Totals, now_s: float) -> Iterator[Metric]:
    for name, meaning, value in _COUNTERS:
        yield _counter(name, meaning, ("landing",), [((landing,), value(each)) for landing, each in totals.items()])
    failures = [((name, code), count) for name, each in totals.items() for code, count in sorted(each.failures.items())]
    yield _counter("failures", "Steps that failed, by the code of their error", ("landing", "code"), failures)
    phases = [((name, phase), spent) for name, each in totals.items() for phase, spent in sorted(each.phases.items())]
    meaning = "Time spent in each part of the steps, and in upkeep"
    yield _counter("phase_seconds", meaning, ("landing", "phase"), phases)
    lags = [((name,), each.lag_seconds(now_s)) for name, each in totals.items()]
    yield _gauge("lag_seconds", "Age of the oldest record that is not landed, at most", ("landing",), lags)


def _of_queues(totals: _Totals, now_s: float) -> Iterator[Metric]:
    labels = ("landing", "queue")
    every = [((name, queue), counts) for name, each in totals.items() for queue, counts in sorted(each.queues.items())]
    for name, meaning, value in _QUEUE_COUNTERS:
        yield _counter(f"queue_{name}", meaning, labels, [(values, value(counts)) for values, counts in every])
    for name, meaning, value in _QUEUE_GAUGES:
        yield _gauge(f"queue_{name}", meaning, labels, [(values, value(counts)) for values, counts in every])
    meaning = "Age of the oldest record of the queue that is not landed, at most"
    yield _gauge(
        "queue_lag_seconds", meaning, labels, [(values, counts.lag_seconds(now_s)) for values, counts in every]
    )


def _of_upkeep(totals: _Totals) -> Iterator[Metric]:
    labels = ("landing", "table", "duty")
    every = [((name, *key), counts) for name, each in totals.items() for key, counts in sorted(each.duties.items())]
    runs = [(values, counts.runs) for values, counts in every]
    yield _counter("upkeep_runs", "Duties of upkeep that were done on the table", labels, runs)
    removed = [(values, counts.files_removed) for values, counts in every]
    yield _counter("upkeep_files_removed", "Files fewer than before, by duty of upkeep", labels, removed)
    seconds = [(values, counts.seconds) for values, counts in every]
    yield _counter("upkeep_seconds", "Time spent in each duty of upkeep", labels, seconds)


def _gauge(name: str, meaning: str, labels: Sequence[str], samples: Iterable[_Sample]) -> Metric:
    family = GaugeMetricFamily(f"mirrorlog_landing_{name}", meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, meaning: str, labels: Sequence[str], samples: Iterable[_Sample]) -> Metric:
    family = CounterMetricFamily(f"mirrorlog_landing_{name}_total", meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


@contextmanager
def serve_metrics(counts: LandingCounts, port: int, host: str = "") -> Iterator[int]:
    """Answer scrapes on `port` (0: any) while the block runs; yields the port. Raises PortTaken."""
    registry = CollectorRegistry()
    registry.register(LandingMetrics(counts))
    try:
        server, thread = start_http_server(port, host or "0.0.0.0", registry)
    except OSError as error:
        raise PortTaken(f"port {port} for metrics cannot be had: {error.strerror}; give another one") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
