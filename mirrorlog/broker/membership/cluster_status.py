"""What a node tells of its cluster as a status."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.state import LogFacts, NodeFacts, advice, holds_transient
from mirrorlog.versions import version_of
from mirrorlog.wire.messages.status import ClusterStatus, LossStatus, NodeStatus, PlacedLog


def cluster_status(service: ClusterService) -> ClusterStatus:
    """As its member, which this service is, knows it."""
    state, waits = service.state, service.coordination.waits
    places = state.places
    own = state.nodes.get(service.identity.node)
    return ClusterStatus(
        version=state.version,
        incarnation=state.incarnation,
        coordinator=service.leader,
        term=service.driver.raft.term,
        elections=service.coordination.elections,
        registered=own is not None and own.start_id == service.identity.start_id,
        nodes=[_node_status(node, facts, service) for node, facts in state.nodes.items()],
        logs=[
            replace(
                _placed(log_id, log, waits.get(log_id, ())),
                transient=holds_transient(state, log_id),
                target=list(places.place(log_id).target) if places is not None else [],
                reason="" if holds_transient(state, log_id) else service.why_unmastered(log_id),
            )
            for log_id, log in state.logs.items()
        ],
        advice=advice(state),
        cluster_version=state.cluster_version,
        moving_paused=places is not None and places.paused,
    )


def _node_status(node: str, facts: NodeFacts, service: ClusterService) -> NodeStatus:
    addresses = facts.addresses
    return NodeStatus(
        node_id=node,
        member=facts.member,
        client=addresses.client,
        replication=addresses.replication,
        grpc=addresses.grpc,
        http=addresses.http,
        life=service.life(node).value,
        start_id=facts.start_id,
        kind=facts.kind.value if facts.start_id else "",
        witness=facts.witness,
        stopped=facts.stopped,
        draining=facts.draining,
        leaving=facts.leaving,
        votes=facts.member not in service.driver.raft.members.learners,
        software_version=version_of(facts.start_id) if facts.start_id else 0,
    )


def _placed(log_id: str, log: LogFacts, waits_for: Iterable[str]) -> PlacedLog:
    return PlacedLog(
        log_id=log_id,
        name=log.name,
        flush=log.flush,
        replicas=list(log.replicas),
        master=log.master.node if log.master is not None else "",
        epoch=log.epoch,
        version=log.version,
        in_sync=[node for node in log.replicas if node in log.in_sync],
        marked=[node for node in log.replicas if node in log.marked],
        copies=log.copies,
        copies_wanted=log.copies_wanted,
        losses=[LossStatus(epoch=loss.epoch, start=loss.start, end=loss.end, leapt=loss.leapt) for loss in log.losses],
        waits_for=list(waits_for),
        wished=log.wished,
    )
