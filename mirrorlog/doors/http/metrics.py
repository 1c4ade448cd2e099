"""A node's answer as metrics in Prometheus' text format. Pure.

The table says all that can be told: families with the same labels stand together, each with its name, its value and
its meaning. A name is public, dashboards and alerts are written against it; it follows Prometheus' conventions: units
are bytes and seconds and stand last, what only grows ends in `_total`, a state is a gauge of 0 or 1 for each of its
values. All is made anew from one answer, so nothing is kept between scrapes and no number outlives what it counts. A
family without a sample is there with its meaning alone.

What a node tells of its cluster all nodes tell alike: a dashboard takes the `max by (log)` and no sum. What it has
counted since its process began it has done itself, so sums over nodes are right; counts of a log begin when the node
takes a copy of it in, so what a mirror has counted goes on when it becomes master.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mirrorlog.doors.http import metric_families as of
from mirrorlog.doors.http.answers import NodeReport, StatusScrape
from mirrorlog.doors.http.metric_families import Families
from mirrorlog.wire.messages.queues import HoldInfo
from mirrorlog.wire.messages.status import (
    AckingGroupStatus,
    ClusterStatus,
    DiskStatus,
    FormerStatus,
    GroupStatus,
    LogCounts,
    LogStatus,
    MemoryStatus,
    MirrorStatus,
    NodeCounts,
    NodeStatus,
    PinStatus,
    PlacedLog,
    QueueCounts,
    QueueStatus,
)

_LIVES: Final = ("up", "down", "unknown")
_ROLES: Final = ("master", "mirror", "none")
_LOG_STATES: Final = ("serving", "recovering", "following", "disconnected", "resting", "opening", "corrupt")
_DISK_STATES: Final = ("ok", "low", "full")
_MEMORY_STATES: Final = ("ok", "high")
# --- Values -----------------------------------------------------------------------------------------------------------


def _states(known: Sequence[str], now: str) -> dict[str, float]:
    """1 for the state of now. One that is not known, of a newer node, is told as well."""
    return {state: float(state == now) for state in (known if now in known else (*known, now))}


def _sorted(numbers: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(numbers.items()))


def _in_sync(log: LogStatus) -> int:
    return sum(mirror.in_sync for mirror in log.mirrors)


def _lost_bytes(log: PlacedLog) -> int:
    return sum(loss.end - loss.start for loss in log.losses if loss.end is not None)


def _known(number: int) -> int | None:
    """-1 stands for none yet, and for what this node cannot tell."""
    return number if number >= 0 else None


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1e6


# --- The table --------------------------------------------------------------------------------------------------------

# fmt: off
FAMILIES: Final[Sequence[Families[Any]]] = (
    Families[NodeReport](("cluster", "cluster_id", "node", "start_id", "version"), of.node, [
        ("mirrorlog_node_info", lambda _: 1.0,
         "Who the node is; always 1. A new start id is a new start of its process"),
    ]),
    Families[NodeReport]((), lambda answer: of.one(answer.told), [
        ("mirrorlog_node_time_seconds", lambda told: told.status.now_us / 1e6,
         "The node's clock when it answered, in seconds since 1970, UTC"),
    ]),
    Families[DiskStatus]((), lambda answer: of.one(answer.told.status.disk), [
        ("mirrorlog_disk_state{state}", lambda disk: _states(_DISK_STATES, disk.state),
         "1 for the state of the data directory's disk. full: data is refused"),
        ("mirrorlog_disk_free_bytes", lambda disk: disk.free_bytes, "Free bytes of the data directory's disk"),
        ("mirrorlog_disk_size_bytes", lambda disk: disk.size_bytes, "Size of the data directory's disk"),
    ]),
    Families[MemoryStatus]((), lambda answer: of.one(answer.told.status.memory), [
        ("mirrorlog_memory_state{state}", lambda memory: _states(_MEMORY_STATES, memory.state),
         "1 for the state of the memory of the node and its doors. high: data is refused"),
        ("mirrorlog_memory_used_bytes", lambda memory: memory.used_bytes,
         "Memory that the node and its doors hold, page cache not counted"),
        ("mirrorlog_memory_high_bytes", lambda memory: memory.high_bytes,
         "Memory from which on data is refused; 0: never"),
    ]),
    Families[int]((), lambda answer: of.one(answer.told.status.certificate_expires_s or None), [  # none without TLS
        ("mirrorlog_certificate_expiry_timestamp_seconds", float,
         "When the node's certificate that is in use expires, in seconds since 1970, UTC"),
    ]),
    Families[FormerStatus](("log", "log_id"),
                         lambda answer: [((each.name, each.log_id), each) for each in answer.told.status.former], [
        ("mirrorlog_former_copy_bytes", lambda former: former.size_bytes,
         "What the node still holds of a log that the cluster does not name it for any more"),
        ("mirrorlog_former_copy_since_timestamp_seconds", lambda former: former.since_us / 1e6,
         "Since when it is such a copy, in seconds since 1970, UTC"),
    ]),
    Families[LogStatus](("log", "log_id", "flush"),
                      lambda answer: [((*name, log.log_id, log.flush), log) for name, log in of.all_logs(answer)], [
        ("mirrorlog_log_info", lambda _: 1.0, "What the log is; always 1"),
    ]),
    Families[LogStatus](("log",), of.all_logs, [
        ("mirrorlog_log_role{role}", lambda log: _states(_ROLES, log.role), "1 for what the node is to the log now"),
        ("mirrorlog_log_state{state}", lambda log: _states(_LOG_STATES, log.state),
         "1 for the state of the node's copy"),
        ("mirrorlog_log_min_in_sync_copies", lambda log: log.min_in_sync,
         "Copies that must be in sync for a publish to be taken"),
    ]),
    Families[LogStatus](("log",), of.readable, [
        ("mirrorlog_log_epoch", lambda log: log.epoch, "Mastership that the log is in, numbered upward"),
        ("mirrorlog_log_begin_bytes", lambda log: log.begin, "Log offset of the first byte that is kept"),
        ("mirrorlog_log_end_bytes", lambda log: log.end, "Log offset after the last byte of the node's copy"),
        ("mirrorlog_log_flushed_bytes", lambda log: log.flushed, "Log offset up to which the copy is on disk"),
        ("mirrorlog_log_confirmed_bytes", lambda log: log.confirmed,
         "Log offset up to which the node knows the log to be confirmed"),
    ]),
    Families[LogStatus](("log",), of.mastered, [
        ("mirrorlog_log_copies", lambda log: 1 + len(log.mirrors),
         "Copies that the log has, the master's included; told by its master"),
        ("mirrorlog_log_in_sync_copies", lambda log: 1 + _in_sync(log),
         "Copies in sync, the master's included; told by the log's master"),
    ]),
    Families[StatusScrape]((), of.one, [
        ("mirrorlog_logs_without_in_sync_mirror", lambda told: sum(not _in_sync(log) for _, log in of.mastered(told)),
         "Logs mastered here that have no copy in sync but the master's own"),
    ]),
    Families[MirrorStatus](("log", "mirror"), of.mirrors, [
        ("mirrorlog_mirror_connected", lambda mirror: mirror.connected, "1 while the mirror has a link to its master"),
        ("mirrorlog_mirror_in_sync", lambda mirror: mirror.in_sync, "1 while the mirror is in sync"),
        ("mirrorlog_mirror_acked_bytes", lambda mirror: _known(mirror.acked),
         "Log offset up to which the mirror has acked"),
        ("mirrorlog_mirror_flushed_bytes", lambda mirror: _known(mirror.flushed),
         "Log offset up to which the mirror has its copy on disk"),
        ("mirrorlog_mirror_lag_bytes", lambda mirror: mirror.lag_bytes,
         "Bytes of the log that the mirror has not acked"),
        ("mirrorlog_mirror_lag_records", lambda mirror: mirror.lag_records,
         "Records that the mirror has not acked, estimated for a mirror that is far behind"),
        ("mirrorlog_mirror_lag_seconds", lambda mirror: mirror.lag_seconds,
         "Age of the oldest batch that the mirror has not acked, 0 when it has all"),
        ("mirrorlog_mirror_last_received_timestamp_seconds", lambda mirror: _seconds(mirror.last_read_us),
         "When the master last heard of the mirror, in seconds since 1970, UTC"),
        ("mirrorlog_mirror_last_sent_timestamp_seconds", lambda mirror: _seconds(mirror.last_write_us),
         "When the master last sent to the mirror, in seconds since 1970, UTC"),
    ]),
    Families[LogStatus](("log",), of.readable, [
        ("mirrorlog_log_queues", lambda log: len(log.queues), "Queues in the log"),
    ]),
    Families[QueueStatus](("log", "queue"), of.queues, limited=True, summed=True, families=[
        ("mirrorlog_queue_begin_offset", lambda queue: queue.begin, "Queue offset of the first record that is kept"),
        ("mirrorlog_queue_next_offset", lambda queue: queue.next, "Queue offset after the last record appended"),
        ("mirrorlog_queue_confirmed_offset", lambda queue: queue.confirmed,
         "Queue offset after the last record confirmed"),
    ]),
    Families[LogStatus](("log",), of.mastered, [
        ("mirrorlog_log_blocked_producers", lambda log: log.producers_blocked,
         "Producers that may not send more before copies have caught up, by queue and connection"),
    ]),
    Families[QueueCounts](("log", "queue"), of.flows, limited=True, summed=True, families=[
        ("mirrorlog_queue_published_records_total", lambda queue: queue.published, "Records appended to the queue"),
        ("mirrorlog_queue_delivered_records_total", lambda queue: queue.delivered,
         "Records given to subscribers and with leases, each time"),
        ("mirrorlog_queue_redelivered_records_total", lambda queue: queue.redelivered,
         "Records given to subscribers and with leases that somebody may have had before"),
        ("mirrorlog_queue_acked_records_total", lambda queue: queue.acked,
         "Records that whoever had them has settled"),
        ("mirrorlog_queue_expired_records_total", lambda queue: queue.expired,
         "Records that ended before a group that acks had settled them: freed, expired, or dropped"),
        ("mirrorlog_queue_consumer_timeouts_total", lambda queue: queue.timed_out,
         "Subscriptions that ended because a record was not settled in time"),
        ("mirrorlog_queue_dead_lettered_records_total", lambda queue: queue.dead_lettered,
         "Records that have left the queue as dead letters"),
    ]),
    Families[QueueStatus](("log", "queue"), of.own_groups, limited=True, summed=True, families=[
        ("mirrorlog_queue_ready_records", lambda queue: queue.ready,
         "Records of the queue's own group that may be given out"),
        ("mirrorlog_queue_unacknowledged_records", lambda queue: queue.unacknowledged,
         "Records of the queue's own group that are with a subscriber or leased"),
        ("mirrorlog_queue_consumers", lambda queue: queue.consumers, "Subscribers of the queue's own group"),
        ("mirrorlog_queue_delayed_records", lambda queue: max(0, queue.delayed),
         "Records of the queue's own group that wait for a time"),
    ]),
    Families[QueueStatus](("log", "queue"), of.own_groups, limited=True, families=[
        ("mirrorlog_queue_oldest_seconds",
         lambda queue: None if queue.oldest_age_ms < 0 else queue.oldest_age_ms / 1000,
         "How long at least the first record is there that the queue's own group has not settled, 0 without one"),
    ]),
    Families[AckingGroupStatus](("log", "queue", "group"), of.acking, limited=True, summed=True, families=[
        ("mirrorlog_group_ready_records", lambda group: group.ready,
         "Records that may be given out, of a group with a name that acks"),
        ("mirrorlog_group_unacknowledged_records", lambda group: group.unacknowledged,
         "Records that are with a subscriber or leased, of a group with a name that acks"),
        ("mirrorlog_group_delayed_records", lambda group: group.delayed,
         "Records that wait for a time, of a group with a name that acks"),
        ("mirrorlog_group_consumers", lambda group: group.consumers, "Subscribers of a group with a name that acks"),
        ("mirrorlog_group_delivered_records_total", lambda group: group.delivered,
         "Records given to subscribers and with leases, each time, of a group with a name that acks"),
        ("mirrorlog_group_acked_records_total", lambda group: group.acked,
         "Records that whoever had them has settled, of a group with a name that acks"),
        ("mirrorlog_group_dead_lettered_records_total", lambda group: group.dead_lettered,
         "Records that have left as dead letters, of a group with a name that acks"),
    ]),
    Families[AckingGroupStatus](("log", "queue", "group"), of.acking, limited=True, families=[
        ("mirrorlog_group_oldest_seconds", lambda group: group.oldest_age_ms / 1000,
         "How long at least the first record is there that a group with a name has not settled, 0 without one"),
    ]),
    Families[LogStatus](("log",), of.readable, [
        ("mirrorlog_log_groups", lambda log: len(log.groups), "Groups in the log"),
    ]),
    Families[GroupStatus](("log", "queue", "group"), of.groups, limited=True, summed=True, families=[
        ("mirrorlog_group_position_offset", lambda group: group.position.queue_offset,
         "Queue offset that the group reads next"),
        ("mirrorlog_group_lag_records", lambda group: group.lag, "Confirmed records that the group has not passed"),
    ]),
    Families[LogStatus](("log",), of.readable, [
        ("mirrorlog_log_holds", lambda log: len(log.holds),
         "Holds of landings in the log, those that ended by themselves too"),
    ]),
    Families[PinStatus](("log", "queue"), of.pins, [
        ("mirrorlog_log_pinned_bytes", lambda pin: pin.dead_bytes,
         "Bytes of the log that nobody needs and that stay, for live ones of this queue stand before and among them"),
        ("mirrorlog_log_pinning_bytes", lambda pin: pin.live_bytes, "Live bytes of that queue"),
    ]),
    Families[HoldInfo](("log", "queue", "landing"), of.holds, limited=True, summed=True, families=[
        ("mirrorlog_hold_position_offset", lambda hold: hold.queue_offset,
         "Queue offset below which the landing has everything"),
        ("mirrorlog_hold_lag_records", lambda hold: hold.lag, "Confirmed records that the landing has not got"),
        ("mirrorlog_hold_live", lambda hold: not hold.ended,
         "1 while the landing keeps records, 0 when its hold has ended"),
    ]),
    Families[HoldInfo](("log", "queue", "landing"), of.holds, limited=True, families=[
        ("mirrorlog_hold_kept_bytes", lambda hold: _known(hold.kept_bytes),
         "Bytes of the log from the first record that the landing keeps on; told by the log's master"),
        ("mirrorlog_hold_lease_left_seconds", lambda hold: None if hold.left_ms < 0 else hold.left_ms / 1000,
         "What is left of the lease of the landing's hold; told by the log's master"),
    ]),
    Families[ClusterStatus]((), lambda answer: of.one(answer.told.status.cluster), [
        ("mirrorlog_cluster_version", lambda cluster: cluster.version, "Version of the view that the node knows"),
        ("mirrorlog_cluster_active_version", lambda cluster: cluster.cluster_version,
         "Cluster version that the cluster runs at: what its nodes may write"),
        ("mirrorlog_cluster_incarnation", lambda cluster: cluster.incarnation,
         "Number of the cluster's incarnation, raised when a lost majority is replaced"),
        ("mirrorlog_cluster_term", lambda cluster: cluster.term, "Term of the coordinator that the node knows"),
        ("mirrorlog_cluster_registered", lambda cluster: cluster.registered,
         "1 while the cluster knows this start of the node"),
        ("mirrorlog_cluster_elections_total", lambda cluster: cluster.elections,
         "Times that the node has seen another coordinator, since its start"),
        ("mirrorlog_cluster_coordinator{node}",
         lambda cluster: {node.node_id: node.node_id == cluster.coordinator for node in cluster.nodes},
         "1 for the node that coordinates, as far as known"),
    ]),
    Families[NodeStatus](("node", "start_id", "kind", "witness"), of.starts, [
        ("mirrorlog_cluster_node_info", lambda _: 1.0,
         "A member and the start of it that the cluster knows; always 1"),
    ]),
    Families[NodeStatus](("node",), of.members, [
        ("mirrorlog_cluster_software_version", lambda node: node.software_version or None,
         "Highest cluster version that the member's software can do"),
        ("mirrorlog_cluster_node_life{life}", lambda node: _states(_LIVES, node.life),
         "1 for how this node sees the member"),
        ("mirrorlog_cluster_node_draining", lambda node: node.draining,
         "1 while the member hands over what it masters"),
        ("mirrorlog_cluster_node_stopped", lambda node: node.stopped,
         "1 while the member is away after a clean stop"),
    ]),
    Families[PlacedLog](("log",), of.placed, [
        ("mirrorlog_cluster_log_has_master", lambda log: log.master != "", "1 while some node masters the log"),
        ("mirrorlog_cluster_log_copies", lambda log: len(log.replicas), "Copies that the cluster has placed"),
        ("mirrorlog_cluster_log_wanted_copies", lambda log: log.copies, "Copies that the log is to have"),
        ("mirrorlog_cluster_log_in_sync_copies", lambda log: len(log.in_sync),
         "Copies in the in-sync set, the master's included"),
        ("mirrorlog_cluster_log_marked_copies", lambda log: len(log.marked),
         "Copies in the in-sync set that may have lost something"),
        ("mirrorlog_cluster_log_lost_ranges", lambda log: len(log.losses),
         "Ranges of the log in which confirmed records may be gone, the latest ones"),
        ("mirrorlog_cluster_log_open_lost_ranges", lambda log: sum(loss.end is None for loss in log.losses),
         "Lost ranges whose end no copy has told yet"),
        ("mirrorlog_cluster_log_lost_bytes", _lost_bytes, "Size of the lost ranges, as far as copies have told"),
    ]),
    Families[NodeCounts]((), lambda answer: of.one(answer.told.status.counts), [
        ("mirrorlog_connections_accepted_total{port}", lambda counts: _sorted(counts.accepted),
         "Connections that the node has accepted, by port"),
        ("mirrorlog_connections{port}", lambda counts: _sorted(counts.open), "Connections that are open, by port"),
        ("mirrorlog_connections_strangers{port}", lambda counts: _sorted(counts.strangers),
         "Of which have not been let in: in a handshake, without a greeting or without a login"),
        ("mirrorlog_member_links_opened_total", lambda counts: counts.links_opened,
         "Links to other nodes that were greeted"),
        ("mirrorlog_member_links_closed_total", lambda counts: counts.links_opened - counts.links_open,
         "Links to other nodes that have ended"),
        ("mirrorlog_member_questions_failed_total", lambda counts: counts.questions_failed,
         "Questions to other nodes that were answered by an error, or not in time"),
        ("mirrorlog_publishes_refused_total{code}", lambda counts: _sorted(counts.refused),
         "Publishes of which nothing was stored, by the code of the error"),
        ("mirrorlog_logins_failed_total{reason}", lambda counts: _sorted(counts.logins_failed),
         "Logins that failed, by reason"),
        ("mirrorlog_rights_refused_total{right}", lambda counts: _sorted(counts.rights_refused),
         "Requests, publishes and fetches refused for want of a right, by right"),
        ("mirrorlog_users_held_seconds_total{limit}", lambda counts: _sorted(counts.users_held_s),
         "Time in which users were held by their limits, of all of them together, by limit"),
    ]),
    Families[LogCounts](("log",), of.counted, [
        ("mirrorlog_log_published_batches_total", lambda log: log.published_batches,
         "Batches that producers have published and the node, as master, has appended"),
        ("mirrorlog_log_published_records_total", lambda log: log.published_records,
         "Records in the batches that were published"),
        ("mirrorlog_log_published_bytes_total", lambda log: log.published_bytes,
         "Bytes of the batches that were published"),
        ("mirrorlog_log_publishes_unknown_total{code}", lambda log: _sorted(log.unknown),
         "Publishes that were stored and not confirmed in time, or not by this master, by the code of the error"),
        ("mirrorlog_log_confirm_duration_seconds", lambda log: log.confirms,
         "Time from a batch's arrival to its confirm. Not of level none, nor of one that was sent again"),
        ("mirrorlog_log_promotions_total", lambda log: log.promotions, "Times that the node became the log's master"),
        ("mirrorlog_mirror_sent_bytes_total{mirror}", lambda log: _sorted(log.sent_bytes),
         "Bytes of the log that the node has sent to the mirror"),
        ("mirrorlog_log_received_bytes_total", lambda log: log.received_bytes,
         "Bytes of the log that the node has received as a mirror"),
        ("mirrorlog_log_fetches_total", lambda log: log.fetches, "Answers to readers, empty ones included"),
        ("mirrorlog_log_fetched_bytes_total", lambda log: log.fetched_bytes, "Bytes of the answers to readers"),
        ("mirrorlog_log_flushes_total", lambda log: log.flushes, "Flushes that brought more of the log to the disk"),
        ("mirrorlog_log_synced_bytes_total", lambda log: log.flushed_bytes,
         "Bytes of the log that flushes brought to the disk"),
    ]),
    Families[StatusScrape]((), of.one, [
        ("mirrorlog_scrape_duration_seconds", lambda answer: answer.took_s,
         "How long the node took to tell its status"),
        ("mirrorlog_scrape_failures_total", lambda answer: answer.failures,
         "Times that the node did not tell its status in time, since the HTTP door started"),
    ]),
)
# fmt: on


def metrics_text(answer: StatusScrape, series_max: int = of.SERIES_MAX) -> bytes:
    """All metrics, in the format that Prometheus calls `text/plain; version=0.0.4`. `series_max`: of queues, and of
    groups, that have series of their own."""
    registry = CollectorRegistry()
    registry.register(_Collected(answer, series_max))
    return generate_latest(registry)


class _Collected(Collector):
    """The one collector of a registry that lives for one scrape."""

    def __init__(self, answer: StatusScrape, series_max: int) -> None:
        self._answer = answer
        self._series_max = series_max

    def collect(self) -> Iterator[Metric]:
        return (metric for group in FAMILIES for metric in group.metrics(self._answer, self._series_max))
