"""What the cluster has decided, as one node has told it, and what an operator should look at. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from mirrorlog.wire.messages.status import ClusterStatus, LossStatus, NodeStatus, PlacedLog, Status


def newest_view(statuses: Sequence[Status]) -> ClusterStatus | None:
    """Of the nodes that answer, the view that knows most; whom a log without a master waits for is as the coordinator
    among them says. None when no node is in a cluster."""
    views = [status.cluster for status in statuses if status.cluster is not None]
    if not views:
        return None
    newest = max(views, key=lambda view: (view.incarnation, view.version))
    return with_waits(newest, views)


def with_waits(view: ClusterStatus, others: Sequence[ClusterStatus]) -> ClusterStatus:
    """Only the coordinator knows whom a log waits for."""
    waits = {log.log_id: log.waits_for for other in others for log in other.logs if log.waits_for}
    logs = [
        log if log.waits_for or log.master else msgspec.structs.replace(log, waits_for=waits.get(log.log_id, []))
        for log in view.logs
    ]
    return msgspec.structs.replace(view, logs=logs)


def role_of(node: NodeStatus, coordinator: str) -> str:
    """Its part in the cluster's decisions."""
    if node.node_id == coordinator:
        return "coordinator, witness" if node.witness else "coordinator"
    if node.witness:
        return "witness"
    return "voter" if node.votes else "learner"


def masters(view: ClusterStatus, node_id: str) -> list[str]:
    """The names of the logs that a node masters."""
    return [log.name for log in view.logs if log.master == node_id]


def copies(view: ClusterStatus, node_id: str) -> list[str]:
    """The names of the logs that a node holds."""
    return [log.name for log in view.logs if node_id in log.replicas]


def loss_text(loss: LossStatus) -> str:
    """Which range, in log offsets; up to where copies that came back held the log, which may have gone further."""
    end = "unknown" if loss.end is None else f"{loss.end} or further"
    return f"{loss.start}..{end} when epoch {loss.epoch} began"


def warnings(view: ClusterStatus) -> list[str]:
    """One line each, of the cluster, with what its node advises, and then of each log; none when all is well."""
    found = list(_of_members(view))
    for log in view.logs:
        found += log_warnings(log)
    return found


def _of_members(view: ClusterStatus) -> Iterator[str]:
    if not view.registered:
        yield "the node that was asked is not let in yet: what it knows may be old"
    if not view.coordinator:
        yield "no coordinator is known: without a majority of the nodes nothing is decided"
    yield from view.advice
    for node in view.nodes:
        if node.draining and (left := masters(view, node.node_id)):
            yield f"node {node.node_id} is draining and still masters {', '.join(left)}"


def log_warnings(log: PlacedLog) -> Iterator[str]:
    """What should be looked at in one log, one line each; of one that goes with its node, by intention, nothing."""
    if log.transient:
        return
    waits = f"; it waits for {', '.join(log.waits_for)}" if log.waits_for else ""
    whole = [node for node in log.in_sync if node not in log.marked]
    if not log.master:
        if log.in_sync and not whole:
            yield f"log {log.name} is recovering: every copy that had everything may have lost something{waits}"
        else:
            yield f"log {log.name} has no master{waits}"
    elif len(log.in_sync) < log.copies_wanted:
        yield f"log {log.name} takes nothing: {len(log.in_sync)} in sync, {log.copies_wanted} are needed"
    if log.marked and whole:
        yield f"log {log.name}: the copies on {', '.join(log.marked)} may have lost something, and are not promoted"
    if len(log.replicas) <= 1:
        yield f"log {log.name} has one copy: {', '.join(log.replicas) or 'none is left'}"
    elif len(log.in_sync) == 1:
        yield f"log {log.name} has no in-sync mirror: {log.in_sync[0]} alone has everything"
    for loss in log.losses:
        yield f"log {log.name}: confirmed records may be lost, log offsets {loss_text(loss)}"
