"""A node's answer as metrics in Prometheus' text format. Pure.

Each part of the status is one function here, from that part to its families, and one line of `_families`. All is made
anew from one answer, so nothing is kept between scrapes and no number outlives what it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mirrorlog.doors.http_answers import Answer, Told
from mirrorlog.doors.http_cluster_metrics import cluster_metrics
from mirrorlog.doors.http_count_metrics import count_metrics
from mirrorlog.doors.http_families import counter, gauge, states
from mirrorlog.doors.http_queue_metrics import flow_metrics, group_metrics, hold_metrics, queue_metrics
from mirrorlog.wire.messages import DiskStatus, LogStatus, MemoryStatus, MirrorStatus

_ROLES: Final = ("master", "mirror", "none")
_LOG_STATES: Final = ("serving", "recovering", "following", "disconnected", "resting", "opening", "corrupt")
_DISK_STATES: Final = ("ok", "low", "full")
_MEMORY_STATES: Final = ("ok", "high")
# The node gives zeros for the offsets of such a log: it cannot tell them.
_WITHOUT_OFFSETS: Final = {"opening", "corrupt"}


def metrics_text(answer: Answer) -> bytes:
    """All metrics, in the format that Prometheus calls `text/plain; version=0.0.4`."""
    registry = CollectorRegistry()
    registry.register(_Collected(answer))
    return generate_latest(registry)


class _Collected(Collector):
    """The one collector of a registry that lives for one scrape."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def collect(self) -> Iterator[Metric]:
        return _families(self._answer)


def _families(answer: Answer) -> Iterator[Metric]:
    status = answer.told.status
    readable = [log for log in status.logs if log.state not in _WITHOUT_OFFSETS]
    mastered = [log for log in readable if log.role == "master"]
    return chain(
        _node(answer.told),
        _disk(status.disk),
        _memory(status.memory),
        _certificate(status.certificate_expires_s),
        _logs(status.logs),
        _offsets(readable),
        _copies(mastered),
        _mirrors(mastered),
        queue_metrics(readable),
        flow_metrics(mastered),
        group_metrics(readable),
        hold_metrics(readable),
        cluster_metrics(status.cluster),
        count_metrics(status.counts),
        _scrape(answer),
    )


def _node(told: Told) -> Iterator[Metric]:
    status = told.status
    facts = {
        "cluster": status.cluster_name,
        "cluster_id": status.cluster_id,
        "node": status.node_id,
        "start_id": status.start_id,
        "version": told.software.removeprefix("mirrorlog "),
    }
    meaning = "Who the node is; always 1. A new start id is a new start of its process"
    yield gauge("mirrorlog_node_info", meaning, tuple(facts), [(tuple(facts.values()), 1.0)])
    meaning = "The node's clock when it answered, in seconds since 1970, UTC"
    yield gauge("mirrorlog_node_time_seconds", meaning, (), [((), status.now_us / 1e6)])


def _disk(disk: DiskStatus | None) -> Iterator[Metric]:
    """The disk of the data directory; without samples when it could not be measured."""
    known = [] if disk is None else [disk]
    state = [sample for each in known for sample in states((), _DISK_STATES, each.state)]
    meaning = "1 for the state of the data directory's disk. full: data is refused"
    yield gauge("mirrorlog_disk_state", meaning, ("state",), state)
    meaning = "Free bytes of the data directory's disk"
    yield gauge("mirrorlog_disk_free_bytes", meaning, (), [((), each.free_bytes) for each in known])
    meaning = "Size of the data directory's disk"
    yield gauge("mirrorlog_disk_size_bytes", meaning, (), [((), each.size_bytes) for each in known])


def _memory(memory: MemoryStatus | None) -> Iterator[Metric]:
    """Of the node and its doors; without samples when it could not be measured."""
    known = [] if memory is None else [memory]
    state = [sample for each in known for sample in states((), _MEMORY_STATES, each.state)]
    meaning = "1 for the state of the memory of the node and its doors. high: data is refused"
    yield gauge("mirrorlog_memory_state", meaning, ("state",), state)
    meaning = "Memory that the node and its doors hold, page cache not counted"
    yield gauge("mirrorlog_memory_used_bytes", meaning, (), [((), each.used_bytes) for each in known])
    meaning = "Memory from which on data is refused; 0: never"
    yield gauge("mirrorlog_memory_high_bytes", meaning, (), [((), each.high_bytes) for each in known])


def _certificate(expires_s: int) -> Iterator[Metric]:
    """Without samples where no port speaks TLS."""
    meaning = "When the node's certificate that is in use expires, in seconds since 1970, UTC"
    samples = [((), float(expires_s))] if expires_s else []
    yield gauge("mirrorlog_certificate_expiry_timestamp_seconds", meaning, (), samples)


def _logs(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """What can be said of every log that the node holds, readable or not."""
    facts = [((log.name, log.log_id, log.flush), 1.0) for log in logs]
    yield gauge("mirrorlog_log_info", "What the log is; always 1", ("log", "log_id", "flush"), facts)
    role = [sample for log in logs for sample in states((log.name,), _ROLES, log.role)]
    yield gauge("mirrorlog_log_role", "1 for what the node is to the log now", ("log", "role"), role)
    state = [sample for log in logs for sample in states((log.name,), _LOG_STATES, log.state)]
    yield gauge("mirrorlog_log_state", "1 for the state of the node's copy", ("log", "state"), state)
    meaning = "Copies that must be in sync for a publish to be taken"
    yield _per_log("min_in_sync_copies", meaning, logs, lambda log: log.min_in_sync)


def _offsets(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far the node's copy reaches, in log offsets, which are bytes."""
    yield _per_log("epoch", "Mastership that the log is in, numbered upward", logs, lambda log: log.epoch)
    yield _per_log("begin_bytes", "Log offset of the first byte that is kept", logs, lambda log: log.begin)
    yield _per_log("end_bytes", "Log offset after the last byte of the node's copy", logs, lambda log: log.end)
    yield _per_log("flushed_bytes", "Log offset up to which the copy is on disk", logs, lambda log: log.flushed)
    meaning = "Log offset up to which the node knows the log to be confirmed"
    yield _per_log("confirmed_bytes", meaning, logs, lambda log: log.confirmed)


def _copies(mastered: Sequence[LogStatus]) -> Iterator[Metric]:
    """How many copies there are; only a log's master knows."""

    def in_sync(log: LogStatus) -> int:
        return sum(mirror.in_sync for mirror in log.mirrors)

    meaning = "Copies that the log has, the master's included; told by its master"
    yield _per_log("copies", meaning, mastered, lambda log: 1 + len(log.mirrors))
    meaning = "Copies in sync, the master's included; told by the log's master"
    yield _per_log("in_sync_copies", meaning, mastered, lambda log: 1 + in_sync(log))
    meaning = "Logs mastered here that have no copy in sync but the master's own"
    alone = sum(in_sync(log) == 0 for log in mastered)
    yield gauge("mirrorlog_logs_without_in_sync_mirror", meaning, (), [((), alone)])


def _mirrors(mastered: Sequence[LogStatus]) -> Iterator[Metric]:
    """Each mirror as its master sees it. Offsets are left out before the first, times before there is a link."""

    def each(name: str, meaning: str, value: Callable[[MirrorStatus], float | None]) -> Metric:
        seen = (
            ((log.name, mirror.node_id), float(found))
            for log in mastered
            for mirror in log.mirrors
            if (found := value(mirror)) is not None
        )
        return gauge(f"mirrorlog_mirror_{name}", meaning, ("log", "mirror"), seen)

    yield each("connected", "1 while the mirror has a link to its master", lambda mirror: mirror.connected)
    yield each("in_sync", "1 while the mirror is in sync", lambda mirror: mirror.in_sync)
    yield each("acked_bytes", "Log offset up to which the mirror has acked", lambda mirror: _offset(mirror.acked))
    meaning = "Log offset up to which the mirror has its copy on disk"
    yield each("flushed_bytes", meaning, lambda mirror: _offset(mirror.flushed))
    yield each("lag_bytes", "Bytes of the log that the mirror has not acked", lambda mirror: mirror.lag_bytes)
    meaning = "Records that the mirror has not acked, estimated for a mirror that is far behind"
    yield each("lag_records", meaning, lambda mirror: mirror.lag_records)
    meaning = "Age of the oldest batch that the mirror has not acked, 0 when it has all"
    yield each("lag_seconds", meaning, lambda mirror: mirror.lag_seconds)
    meaning = "When the master last heard of the mirror, in seconds since 1970, UTC"
    yield each("last_received_timestamp_seconds", meaning, lambda mirror: _seconds(mirror.last_read_us))
    meaning = "When the master last sent to the mirror, in seconds since 1970, UTC"
    yield each("last_sent_timestamp_seconds", meaning, lambda mirror: _seconds(mirror.last_write_us))


def _scrape(answer: Answer) -> Iterator[Metric]:
    """How it went to ask the node."""
    meaning = "How long the node took to tell its status"
    yield gauge("mirrorlog_scrape_duration_seconds", meaning, (), [((), answer.took_s)])
    meaning = "Times that the node did not tell its status in time, since the HTTP door started"
    yield counter("mirrorlog_scrape_failures_total", meaning, (), [((), answer.failures)])


def _per_log(name: str, meaning: str, logs: Sequence[LogStatus], value: Callable[[LogStatus], int]) -> Metric:
    return gauge(f"mirrorlog_log_{name}", meaning, ("log",), (((log.name,), value(log)) for log in logs))


def _offset(log_offset: int) -> int | None:
    return log_offset if log_offset >= 0 else None


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1e6
