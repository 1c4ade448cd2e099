"""The counts of landings as Prometheus metrics: `LandingMetrics` is the exposition, with a registry of its own, and
`serve_metrics` a thin HTTP server.

Names and units follow those of the nodes' metrics: bytes and seconds, what only grows ends in `_total`, a state is 0
or 1 for each of its values. The label `landing` is the landing's name; what belongs to one queue has the label `queue`
besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mirrorlog.errors import PortTaken
from mirrorlog.spark.landing.service.counts import STATES, DutyCounts, LandedTotals, LandingCounts, LandingTotals

_T = TypeVar("_T")
_Value = float | Mapping[str, float] | None
"""A sample; one for each value of the label that the family's name has in braces; or none."""
_Labelled = tuple[tuple[str, ...], _T]
_Families = Sequence[tuple[str, Callable[[_T], _Value], str]]

# fmt: off
_OF_LANDING: Final[_Families[LandingTotals]] = (
    ("state{state}", lambda each: {state: each.state == state for state in STATES},
     "1 for what the landing is doing now"),
    ("table_version", lambda each: each.table_version, "Version of the table after the last step"),
    ("last_success_timestamp_seconds", lambda each: each.success_us and each.success_us / 1e6,
     "When the last success of a step was, in seconds since 1970, UTC"),
    ("last_failure_timestamp_seconds", lambda each: each.failure_us and each.failure_us / 1e6,
     "When the last failure of a step was, in seconds since 1970, UTC"),
    ("rows_total", lambda each: each.rows, "Rows that landings have added to the table, dead letters not counted"),
    ("bytes_total", lambda each: each.bytes, "Bytes of the records that the landing has read"),
    ("files_total", lambda each: each.files, "Data files that the landing has added to the table"),
    ("file_bytes_total", lambda each: each.file_bytes, "Bytes of the data files that the landing has added"),
    ("dead_letters_total", lambda each: each.dead_letters, "Records that went to the table of dead letters"),
    ("commits_total", lambda each: each.commits, "Steps that moved a position, each one commit of the table"),
    ("steps_total", lambda each: each.steps, "Steps that ended well, those with nothing to land too"),
    ("conflicts_total", lambda each: each.conflicts,
     "Steps that ended because another commit to the table came before"),
    ("retries_total", lambda each: each.retries, "Steps that began after one that failed"),
    ("failures_total{code}", lambda each: each.failures, "Steps that failed, by the code of their error"),
    ("phase_seconds_total{phase}", lambda each: each.phases, "Time spent in each part of the steps, and in upkeep"),
    ("upkeep_failures_total{code}", lambda each: each.upkeep_failures, "Upkeep that failed, by the code of its error"),
)
_OF_QUEUE: Final[_Families[LandedTotals]] = (
    ("queue_records_total", lambda each: each.records, "Records of the queue that were landed, dead letters included"),
    ("queue_missed_records_total", lambda each: each.missed_records,
     "Queue offsets that were passed over and will not be landed"),
    ("queue_next_offset", lambda each: each.next_offset, "Queue offset after the last record that is in the table"),
    ("queue_confirmed_offset", lambda each: each.confirmed_offset,
     "Queue offset after the last record known to be confirmed"),
    ("queue_lag_records", lambda each: each.lag_records, "Confirmed records of the queue that are not landed"),
)
_OF_DUTY: Final[_Families[DutyCounts]] = (
    ("upkeep_runs_total", lambda each: each.runs, "Duties of upkeep that were done on the table"),
    ("upkeep_files_removed_total", lambda each: each.files_removed, "Files fewer than before, by duty of upkeep"),
    ("upkeep_seconds_total", lambda each: each.seconds, "Time spent in each duty of upkeep"),
)
# fmt: on


class LandingMetrics(Collector):
    """The counts as metric families, made anew for each scrape."""

    def __init__(self, counts: LandingCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        totals, now_s = self._counts.copy()
        landings = [((name,), each) for name, each in totals.items()]
        queues = [((*of, name), each) for of, landing in landings for name, each in sorted(landing.queues.items())]
        duties = [((*of, *duty), each) for of, landing in landings for duty, each in sorted(landing.duties.items())]
        info = [((*of, each.table, each.mode, each.write), 1.0) for of, each in landings]
        yield _family("info", "What is landed where, and how; always 1", ("landing", "table", "mode", "write"), info)
        yield from _families(_OF_LANDING, ("landing",), landings)
        lags = [(of, each.lag_seconds(now_s)) for of, each in landings]
        yield _family("lag_seconds", "Age of the oldest record that is not landed, at most", ("landing",), lags)
        yield from _families(_OF_QUEUE, ("landing", "queue"), queues)
        meaning = "Age of the oldest record of the queue that is not landed, at most"
        ages = [(of, each.lag_seconds(now_s)) for of, each in queues]
        yield _family("queue_lag_seconds", meaning, ("landing", "queue"), ages)
        yield from _families(_OF_DUTY, ("landing", "table", "duty"), duties)


def _families(families: _Families[_T], labels: Sequence[str], things: Sequence[_Labelled[_T]]) -> Iterator[Metric]:
    for name, value, meaning in families:
        yield _family(name, meaning, labels, [(values, value(each)) for values, each in things])


def _family(name: str, meaning: str, labels: Sequence[str], found: Iterable[_Labelled[_Value]]) -> Metric:
    name, _, own = name.rstrip("}").partition("{")
    made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = made(f"mirrorlog_landing_{name}", meaning, labels=[*labels, own] if own else labels)
    for values, told in found:
        if isinstance(told, Mapping):
            for each, number in sorted(told.items()):
                family.add_metric((*values, each), number)
        elif told is not None:
            family.add_metric(values, told)
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
