"""What a node's status says of its cluster, as metrics. Pure.

All nodes tell the same once they know the same, so a dashboard takes the `max by (log)` and no sum. What a log's master
alone can measure (how far its mirrors are) is not here but among what the node says of its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from mirrorlog.doors.http_families import counter, gauge, states
from mirrorlog.wire.messages import ClusterStatus, NodeStatus, PlacedLog

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
