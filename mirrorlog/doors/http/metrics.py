"""A node's answer as metrics in Prometheus' text format. Pure.

Each part of the status is one function here, from that part to its families, and one line of `_families`. All is made
anew from one answer, so nothing is kept between scrapes and no number outlives what it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mirrorlog.doors.http.answers import Answer, Told
from mirrorlog.doors.http.families import Sample, counter, gauge, histogram, states
from mirrorlog.wire.messages.queues import HoldInfo
from mirrorlog.wire.messages.status import (
    ClusterStatus,
    DiskStatus,
    GroupStatus,
    LogCounts,
    LogStatus,
    MemoryStatus,
    MirrorStatus,
    NodeCounts,
    NodeStatus,
    PlacedLog,
    QueueCounts,
    QueueStatus,
)

# What a node's status says of queues and groups, as metrics. Pure.
#
# A series for each of very many queues is of use to nobody and a burden for all who keep it. So the first thousand
# queues of a node, and the first thousand pairs of queue and group, have series of their own; what is beyond is one
# sum per log, under empty names. So a sum over all series is right with few queues and with many. The first are the
# oldest of each log in turn: a queue that is declared takes the series of no older one in its log.


SERIES_MAX: Final = 1_000
"""Of queues, and of groups, that have series of their own."""

_T = TypeVar("_T")
_Placed = tuple[str, _T]
"""What a log has, with the log's name."""


def queue_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each queue reaches."""
    yield gauge("mirrorlog_log_queues", "Queues in the log", ("log",), (((log.name,), len(log.queues)) for log in logs))
    first, rest = _split([[(log.name, queue) for queue in _oldest_first(log.queues)] for log in logs])

    def offsets(name: str, meaning: str, value: Callable[[QueueStatus], int]) -> Metric:
        own = (((log, queue.name), float(value(queue))) for log, queue in first)
        return gauge(f"mirrorlog_queue_{name}", meaning, ("log", "queue"), [*own, *_sums(rest, value, names=1)])

    yield offsets("begin_offset", "Queue offset of the first record that is kept", lambda queue: queue.begin)
    yield offsets("next_offset", "Queue offset after the last record appended", lambda queue: queue.next)
    yield offsets("confirmed_offset", "Queue offset after the last record confirmed", lambda queue: queue.confirmed)


def flow_metrics(mastered: Sequence[LogStatus]) -> Iterator[Metric]:
    """What went through the queues that the node masters, and who is held up. Rates are whoever's who reads these."""
    held = (((log.name,), float(log.producers_blocked)) for log in mastered)
    meaning = "Producers that may not send more before copies have caught up, by queue and connection"
    yield gauge("mirrorlog_log_blocked_producers", meaning, ("log",), held)
    first, rest = _split(
        [[(log.name, queue) for queue in _oldest_first(log.queues) if queue.counts] for log in mastered]
    )

    def counts(name: str, meaning: str, value: Callable[[QueueCounts], int]) -> Metric:
        def of(queue: QueueStatus) -> int:
            return value(queue.counts or QueueCounts())

        own = (((log, queue.name), float(of(queue))) for log, queue in first)
        return counter(f"mirrorlog_queue_{name}_total", meaning, ("log", "queue"), [*own, *_sums(rest, of, names=1)])

    yield counts("published_records", "Records appended to the queue", lambda each: each.published)
    meaning = "Records given to subscribers and with leases, each time"
    yield counts("delivered_records", meaning, lambda each: each.delivered)
    meaning = "Records given to subscribers and with leases that somebody may have had before"
    yield counts("redelivered_records", meaning, lambda each: each.redelivered)
    yield counts("acked_records", "Records that whoever had them has settled", lambda each: each.acked)
    meaning = "Records that ended before a group that acks had settled them: freed, expired, or dropped"
    yield counts("expired_records", meaning, lambda each: each.expired)
    meaning = "Subscriptions that ended because a record was not settled in time"
    yield counts("consumer_timeouts", meaning, lambda each: each.timed_out)


def group_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each group has read."""
    yield gauge("mirrorlog_log_groups", "Groups in the log", ("log",), (((log.name,), len(log.groups)) for log in logs))
    first, rest = _split([[(log.name, group) for group in _in_queue_order(log)] for log in logs])

    def values(name: str, meaning: str, value: Callable[[GroupStatus], int]) -> Metric:
        own = (((log, group.queue, group.group), float(value(group))) for log, group in first)
        labels = ("log", "queue", "group")
        return gauge(f"mirrorlog_group_{name}", meaning, labels, [*own, *_sums(rest, value, names=2)])

    yield values("position_offset", "Queue offset that the group reads next", lambda group: group.position.queue_offset)
    yield values("lag_records", "Confirmed records that the group has not passed", lambda group: group.lag)


def hold_metrics(logs: Sequence[LogStatus]) -> Iterator[Metric]:
    """How far each landing has come, and what it keeps."""
    meaning = "Holds of landings in the log, those that ended by themselves too"
    yield gauge("mirrorlog_log_holds", meaning, ("log",), (((log.name,), len(log.holds)) for log in logs))
    first, rest = _split([[(log.name, hold) for hold in log.holds] for log in logs])

    def values(name: str, meaning: str, value: Callable[[HoldInfo], int]) -> Metric:
        own = (((log, hold.queue, hold.name), float(value(hold))) for log, hold in first)
        labels = ("log", "queue", "landing")
        return gauge(f"mirrorlog_hold_{name}", meaning, labels, [*own, *_sums(rest, value, names=2)])

    yield values(
        "position_offset", "Queue offset below which the landing has everything", lambda hold: hold.queue_offset
    )
    yield values("lag_records", "Confirmed records that the landing has not got", lambda hold: hold.lag)
    yield values("live", "1 while the landing keeps records, 0 when its hold has ended", lambda hold: not hold.ended)
    known = [(log, hold) for log, hold in first if hold.kept_bytes >= 0]
    meaning = "Bytes of the log from the first record that the landing keeps on; told by the log's master"
    labels = ("log", "queue", "landing")
    samples = [((log, hold.queue, hold.name), float(hold.kept_bytes)) for log, hold in known]
    yield gauge("mirrorlog_hold_kept_bytes", meaning, labels, samples)
    meaning = "What is left of the lease of the landing's hold; told by the log's master"
    left = [(log, hold) for log, hold in first if hold.left_ms >= 0]
    samples = [((log, hold.queue, hold.name), hold.left_ms / 1000) for log, hold in left]
    yield gauge("mirrorlog_hold_lease_left_seconds", meaning, labels, samples)


def _oldest_first(queues: Sequence[QueueStatus]) -> list[QueueStatus]:
    return sorted(queues, key=lambda queue: queue.queue_id)


def _in_queue_order(log: LogStatus) -> list[GroupStatus]:
    age = {queue.name: queue.queue_id for queue in log.queues}
    return sorted(log.groups, key=lambda group: (age.get(group.queue, 0), group.group))


def _split(per_log: Sequence[Sequence[_Placed[_T]]]) -> tuple[list[_Placed[_T]], list[_Placed[_T]]]:
    """The first SERIES_MAX, taken from the logs in turn, and the others."""
    ranked = ((rank, placed) for log in per_log for rank, placed in enumerate(log))
    ordered = [placed for _, placed in sorted(ranked, key=lambda each: each[0])]
    return ordered[:SERIES_MAX], ordered[SERIES_MAX:]


def _sums(rest: Iterable[_Placed[_T]], value: Callable[[_T], int], *, names: int) -> list[Sample]:
    sums: dict[str, int] = {}
    for log, each in rest:
        sums[log] = sums.get(log, 0) + value(each)
    return [((log, *[""] * names), float(total)) for log, total in sums.items()]


# What a node has counted since its process began, as metrics. Pure.
#
# Counts of a log begin when the node takes a copy of it in, so what a mirror has counted goes on when it becomes
# master. Sums over nodes are right: each counts what it has done itself.


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
    held = [sample for each in known for sample in _by(each.users_held_s)]
    meaning = "Time in which users were held by their limits, of all of them together, by limit"
    yield counter("mirrorlog_users_held_seconds_total", meaning, ("limit",), held)


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


def _by(numbers: Mapping[str, float]) -> Iterator[Sample]:
    return (((name,), float(number)) for name, number in sorted(numbers.items()))


# What a node's status says of its cluster, as metrics. Pure.
#
# All nodes tell the same once they know the same, so a dashboard takes the `max by (log)` and no sum. What a log's
# master alone can measure (how far its mirrors are) is not here but among what the node says of its logs.


_LIVES: Final = ("up", "down", "unknown")


def cluster_metrics(cluster: ClusterStatus | None) -> Iterator[Metric]:
    """All of it; without samples for a node that is in no cluster."""
    yield from _view([] if cluster is None else [cluster])
    yield from _nodes([] if cluster is None else cluster.nodes)
    yield from _placed(() if cluster is None else cluster.logs)


def _view(known: Sequence[ClusterStatus]) -> Iterator[Metric]:
    """`known`: one or none."""

    def single(name: str, meaning: str, value: Callable[[ClusterStatus], int]) -> Metric:
        return gauge(f"mirrorlog_cluster_{name}", meaning, (), [((), value(cluster)) for cluster in known])

    yield single("version", "Version of the view that the node knows", lambda cluster: cluster.version)
    meaning = "Cluster version that the cluster runs at: what its nodes may write"
    yield single("active_version", meaning, lambda cluster: cluster.cluster_version)
    meaning = "Number of the cluster's incarnation, raised when a lost majority is replaced"
    yield single("incarnation", meaning, lambda cluster: cluster.incarnation)
    yield single("term", "Term of the coordinator that the node knows", lambda cluster: cluster.term)
    yield single("registered", "1 while the cluster knows this start of the node", lambda cluster: cluster.registered)
    meaning = "Times that the node has seen another coordinator, since its start"
    elections = [((), cluster.elections) for cluster in known]
    yield counter("mirrorlog_cluster_elections_total", meaning, (), elections)
    leads = [((node.node_id,), node.node_id == cluster.coordinator) for cluster in known for node in cluster.nodes]
    yield gauge("mirrorlog_cluster_coordinator", "1 for the node that coordinates, as far as known", ("node",), leads)


def _nodes(nodes: Sequence[NodeStatus]) -> Iterator[Metric]:
    facts = [((node.node_id, node.start_id, node.kind, str(node.witness).lower()), 1.0) for node in nodes]
    meaning = "A member and the start of it that the cluster knows; always 1"
    yield gauge("mirrorlog_cluster_node_info", meaning, ("node", "start_id", "kind", "witness"), facts)
    known = [((node.node_id,), node.software_version) for node in nodes if node.software_version]
    meaning = "Highest cluster version that the member's software can do"
    yield gauge("mirrorlog_cluster_software_version", meaning, ("node",), known)
    life = [sample for node in nodes for sample in states((node.node_id,), _LIVES, node.life)]
    yield gauge("mirrorlog_cluster_node_life", "1 for how this node sees the member", ("node", "life"), life)
    draining = [((node.node_id,), node.draining) for node in nodes]
    yield gauge("mirrorlog_cluster_node_draining", "1 while the member hands over what it masters", ("node",), draining)
    stopped = [((node.node_id,), node.stopped) for node in nodes]
    meaning = "1 while the member is away after a clean stop"
    yield gauge("mirrorlog_cluster_node_stopped", meaning, ("node",), stopped)


def _placed(logs: Sequence[PlacedLog]) -> Iterator[Metric]:
    def each(name: str, meaning: str, value: Callable[[PlacedLog], int]) -> Metric:
        return gauge(f"mirrorlog_cluster_log_{name}", meaning, ("log",), (((log.name,), value(log)) for log in logs))

    yield each("has_master", "1 while some node masters the log", lambda log: log.master != "")
    yield each("copies", "Copies that the cluster has placed", lambda log: len(log.replicas))
    yield each("wanted_copies", "Copies that the log is to have", lambda log: log.copies)
    yield each("in_sync_copies", "Copies in the in-sync set, the master's included", lambda log: len(log.in_sync))
    meaning = "Copies in the in-sync set that may have lost something"
    yield each("marked_copies", meaning, lambda log: len(log.marked))
    meaning = "Ranges of the log in which confirmed records may be gone, the latest ones"
    yield each("lost_ranges", meaning, lambda log: len(log.losses))
    meaning = "Lost ranges whose end no copy has told yet"
    yield each("open_lost_ranges", meaning, lambda log: sum(loss.end is None for loss in log.losses))
    yield each("lost_bytes", "Size of the lost ranges, as far as copies have told", _lost_bytes)


def _lost_bytes(log: PlacedLog) -> int:
    return sum(loss.end - loss.start for loss in log.losses if loss.end is not None)


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
