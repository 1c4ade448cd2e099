"""The counts of landings as Prometheus metrics: `LandingMetrics` is the exposition, with a registry of its own, and
`serve_metrics` a thin HTTP server.

Names and units follow those of the nodes' metrics: bytes and seconds, what only grows ends in `_total`, a state is 0
or 1 for each of its values. The label `landing` is the landing's name; what belongs to one queue has the label `queue`
besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirrorlog.errors import PortTaken
from mirrorlog.spark.landing.service.counts import STATES, LandedTotals, LandingCounts, LandingTotals

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
_QUEUE_COUNTERS: Final[Sequence[tuple[str, str, Callable[[LandedTotals], float]]]] = (
    ("records", "Records of the queue that were landed, dead letters included", lambda each: each.records),
    ("missed_records", "Queue offsets that were passed over and will not be landed", lambda each: each.missed_records),
)
_QUEUE_GAUGES: Final[Sequence[tuple[str, str, Callable[[LandedTotals], float]]]] = (
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
    failed = [((name, code), n) for name, each in totals.items() for code, n in sorted(each.upkeep_failures.items())]
    yield _counter("upkeep_failures", "Upkeep that failed, by the code of its error", ("landing", "code"), failed)


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


LOOPBACK: Final = "127.0.0.1"


@contextmanager
def serve_metrics(counts: LandingCounts, port: int, host: str = LOOPBACK) -> Iterator[int]:
    """Answer scrapes on `port` (0: any) while the block runs; yields the port. Nobody is asked who he is, so other
    machines reach it only where `host` says so. Raises PortTaken."""
    registry = CollectorRegistry()
    registry.register(LandingMetrics(counts))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise PortTaken(f"{host}:{port} for metrics cannot be had: {error.strerror}; give another one") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
