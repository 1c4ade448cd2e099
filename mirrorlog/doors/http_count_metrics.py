"""What a node has counted since its process began, as metrics. Pure.

Counts of a log begin when the node takes a copy of it in, so what a mirror has counted goes on when it becomes master.
Sums over nodes are right: each counts what it has done itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from mirrorlog.doors.http_families import Sample, counter, gauge, histogram
from mirrorlog.wire.messages import LogCounts, NodeCounts


def count_metrics(counts: NodeCounts | None) -> Iterator[Metric]:
    """All of it; without samples for a node that does not tell."""
    known = [] if counts is None else [counts]
    yield from _connections(known)
    yield from _member_links(known)
    refused = [sample for each in known for sample in _by(each.refused)]
    meaning = "Publishes of which nothing was stored, by the code of the error"
    yield counter("mirrorlog_publishes_refused_total", meaning, ("code",), refused)
    yield from _refused_access(known)
    logs = [log for each in known for log in each.logs]
    yield from _published(logs)
    yield from _copied(logs)
    yield from _read_and_kept(logs)


def _connections(known: Sequence[NodeCounts]) -> Iterator[Metric]:
    meaning = "Connections that the node has accepted, by port"
    accepted = [sample for each in known for sample in _by(each.accepted)]
    yield counter("mirrorlog_connections_accepted_total", meaning, ("port",), accepted)
    standing = [sample for each in known for sample in _by(each.open)]
    yield gauge("mirrorlog_connections", "Connections that are open, by port", ("port",), standing)
    strangers = [sample for each in known for sample in _by(each.strangers)]
    meaning = "Of which have not been let in: in a handshake, without a greeting or without a login"
    yield gauge("mirrorlog_connections_strangers", meaning, ("port",), strangers)


def _refused_access(known: Sequence[NodeCounts]) -> Iterator[Metric]:
    failed = [sample for each in known for sample in _by(each.logins_failed)]
    yield counter("mirrorlog_logins_failed_total", "Logins that failed, by reason", ("reason",), failed)
    refused = [sample for each in known for sample in _by(each.rights_refused)]
    meaning = "Requests, publishes and fetches refused for want of a right, by right"
    yield counter("mirrorlog_rights_refused_total", meaning, ("right",), refused)


def _member_links(known: Sequence[NodeCounts]) -> Iterator[Metric]:
    def single(name: str, meaning: str, value: Callable[[NodeCounts], int]) -> Metric:
        return counter(f"mirrorlog_member_{name}_total", meaning, (), [((), value(each)) for each in known])

    yield single("links_opened", "Links to other nodes that were greeted", lambda each: each.links_opened)
    meaning = "Links to other nodes that have ended"
    yield single("links_closed", meaning, lambda each: each.links_opened - each.links_open)
    meaning = "Questions to other nodes that were answered by an error, or not in time"
    yield single("questions_failed", meaning, lambda each: each.questions_failed)


def _published(logs: Sequence[LogCounts]) -> Iterator[Metric]:
    """As the log's master."""
    meaning = "Batches that producers have published and the node, as master, has appended"
    yield _each("published_batches", meaning, logs, lambda log: log.published_batches)
    meaning = "Records in the batches that were published"
    yield _each("published_records", meaning, logs, lambda log: log.published_records)
    meaning = "Bytes of the batches that were published"
    yield _each("published_bytes", meaning, logs, lambda log: log.published_bytes)
    unknown = [((log.log, code), float(number)) for log in logs for code, number in sorted(log.unknown.items())]
    meaning = "Publishes that were stored and not confirmed in time, or not by this master, by the code of the error"
    yield counter("mirrorlog_log_publishes_unknown_total", meaning, ("log", "code"), unknown)
    meaning = "Time from a batch's arrival to its confirm. Not of level none, nor of one that was sent again"
    yield histogram(
        "mirrorlog_log_confirm_duration_seconds", meaning, ("log",), [((log.log,), log.confirms) for log in logs]
    )
    meaning = "Times that the node became the log's master"
    yield _each("promotions", meaning, logs, lambda log: log.promotions)


def _copied(logs: Sequence[LogCounts]) -> Iterator[Metric]:
    sent = [((log.log, mirror), float(size)) for log in logs for mirror, size in sorted(log.sent_bytes.items())]
    meaning = "Bytes of the log that the node has sent to the mirror"
    yield counter("mirrorlog_mirror_sent_bytes_total", meaning, ("log", "mirror"), sent)
    meaning = "Bytes of the log that the node has received as a mirror"
    yield _each("received_bytes", meaning, logs, lambda log: log.received_bytes)


def _read_and_kept(logs: Sequence[LogCounts]) -> Iterator[Metric]:
    meaning = "Answers to readers, empty ones included"
    yield _each("fetches", meaning, logs, lambda log: log.fetches)
    yield _each("fetched_bytes", "Bytes of the answers to readers", logs, lambda log: log.fetched_bytes)
    meaning = "Flushes that brought more of the log to the disk"
    yield _each("flushes", meaning, logs, lambda log: log.flushes)
    meaning = "Bytes of the log that flushes brought to the disk"
    yield _each("synced_bytes", meaning, logs, lambda log: log.flushed_bytes)


def _each(name: str, meaning: str, logs: Sequence[LogCounts], value: Callable[[LogCounts], int]) -> Metric:
    samples = (((log.log,), float(value(log))) for log in logs)
    return counter(f"mirrorlog_log_{name}_total", meaning, ("log",), samples)


def _by(numbers: Mapping[str, int]) -> Iterator[Sample]:
    return (((name,), float(number)) for name, number in sorted(numbers.items()))
