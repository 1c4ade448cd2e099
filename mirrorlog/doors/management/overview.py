"""The cluster as a whole in the management API: overview, nodes, health checks, and what there is none of here.

Of a node RabbitMQ tells much about its virtual machine. What there is no number for here is left out: a tool that draws
a missing number draws nothing, and one that is made up draws what is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mirrorlog import __version__
from mirrorlog.client.definitions.rows import API_VERSION, Row
from mirrorlog.doors.http.lists import copy_of
from mirrorlog.doors.management.calls import ApiAnswer, Call, ClusterStatuses, Routes
from mirrorlog.doors.management.shapes import ApiError, bad_request, columns, not_found
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.queues import NodeInfo
from mirrorlog.wire.messages.status import ClusterStatus, NodeStatus, QueueStatus, Status
from mirrorlog.wire.routing import KINDS, PREDEFINED

_UNITS_S: Final = {"days": 86_400, "weeks": 7 * 86_400, "months": 30 * 86_400, "years": 365 * 86_400}


# --- Overview -------------------------------------------------------------------------------------------------------


async def _overview(call: Call) -> ApiAnswer:
    metadata, statuses = await call.client.metadata(None), await call.statuses()
    vhosts = await call.client.admin.topology.virtual_hosts()
    told = [each for info in metadata.queues if (each := statuses.queue(info)) is not None]
    row = {
        "management_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": "mirrorlog",
        "product_version": __version__,
        "rates_mode": "basic",
        "exchange_types": [{"name": kind, "description": "", "enabled": True} for kind in KINDS],
        "cluster_name": metadata.cluster_name,
        "node": await call.node_id(),
        "message_stats": _summed_rates(told),
        "queue_totals": queue_totals(told),
        "object_totals": {
            "queues": len(metadata.queues) + len(metadata.outages),
            "exchanges": sum(each.exchanges + len(PREDEFINED) + 1 for each in vhosts),
            "consumers": sum(max(0, each.consumers) for each in told),
            "connections": sum(_connections(each) for each in statuses.told),
            "channels": 0,
        },
        "listeners": [listener for node in metadata.nodes for listener in _listeners(node)],
        "contexts": [_context(node) for node in metadata.nodes if node.http],
    }
    return ApiAnswer(body=columns([row], call.query)[0])


def queue_totals(told: Iterable[QueueStatus]) -> Row:
    """Of queues whose masters tell. Pure."""
    known = [each for each in told if each.ready >= 0]
    ready, unacknowledged = sum(each.ready for each in known), sum(each.unacknowledged for each in known)
    return {"messages": ready + unacknowledged, "messages_ready": ready, "messages_unacknowledged": unacknowledged}


def _summed_rates(told: Iterable[QueueStatus]) -> Row:
    counts = [each.counts for each in told if each.counts is not None]
    return {
        "publish": sum(each.published for each in counts),
        "publish_details": {"rate": sum(each.publish_rate for each in counts)},
        "deliver_get": sum(each.delivered for each in counts),
        "deliver_get_details": {"rate": sum(each.deliver_rate for each in counts)},
        "redeliver": sum(each.redelivered for each in counts),
        "redeliver_details": {"rate": sum(each.redeliver_rate for each in counts)},
        "ack": sum(each.acked for each in counts),
        "ack_details": {"rate": sum(each.ack_rate for each in counts)},
    }


def _connections(status: Status) -> int:
    return status.counts.open.get("client", 0) if status.counts is not None else 0


def _listeners(node: NodeInfo) -> Iterable[Row]:
    addresses = {"mirrorlog": node.client, "clustering": node.replication, "grpc": node.grpc, "http": node.http}
    for protocol, address in addresses.items():
        if address:
            host, _, port = address.rpartition(":")
            yield {"node": node.node_id, "protocol": protocol, "ip_address": host, "port": int(port)}


def _context(node: NodeInfo) -> Row:
    host, _, port = (node.http or ":0").rpartition(":")
    return {"node": node.node_id, "description": "mirrorlog HTTP door", "path": "/", "ip": host, "port": int(port)}


async def _cluster_name(call: Call) -> ApiAnswer:
    return ApiAnswer(body={"name": (await call.client.metadata([])).cluster_name})


# --- Nodes ----------------------------------------------------------------------------------------------------------


async def node_rows(call: Call) -> list[Row]:
    """By name; one that does not answer says why."""
    metadata, statuses = await call.client.metadata([]), await call.statuses()
    return [_node_row(node, statuses.by_node.get(node.node_id)) for node in metadata.nodes]


def _node_row(node: NodeInfo, told: Status | MirrorlogError | None) -> Row:
    row: Row = {"name": node.node_id, "type": "disc", "partitions": [], "running": isinstance(told, Status)}
    if not isinstance(told, Status):
        return {**row, "reason": str(told) if told is not None else "nobody has asked it yet"}
    if told.memory is not None:
        row |= {
            "mem_used": told.memory.used_bytes,
            "mem_limit": told.memory.high_bytes,
            "mem_alarm": told.memory.state != "ok",
        }
    if told.disk is not None:
        row |= {"disk_free": told.disk.free_bytes, "disk_free_alarm": told.disk.state == "full"}
    if told.counts is not None:
        row |= {"sockets_used": sum(told.counts.open.values())}
    mine = _own(told)
    return {
        **row,
        "being_drained": mine.draining if mine is not None else False,
        "rates_mode": "basic",
        "enabled_plugins": ["rabbitmq_management"],
        "applications": [{"name": "mirrorlog", "description": "mirrorlog", "version": __version__}],
    }


def _own(told: Status) -> NodeStatus | None:
    nodes = told.cluster.nodes if told.cluster is not None else []
    return next((node for node in nodes if node.node_id == told.node_id), None)


async def _nodes(call: Call) -> ApiAnswer:
    return call.listed(await node_rows(call))


async def _node(call: Call) -> ApiAnswer:
    for row in await node_rows(call):
        if row["name"] == call.names["node"]:
            return ApiAnswer(body=columns([row], call.query)[0])
    raise not_found()


# --- Health ---------------------------------------------------------------------------------------------------------


async def _health(call: Call) -> ApiAnswer:
    """The node that a path names, or that answers, is well: `ok`, else 503 with what is not."""
    check = _CHECKS.get(call.names["check"])
    if check is None:
        raise not_found()
    return _health_answer(check(await call.node_id(), await call.statuses()))


def _health_answer(failed: Row | None) -> ApiAnswer:
    return ApiAnswer(body={"status": "ok"}) if failed is None else ApiAnswer(503, {"status": "failed", **failed})


async def _node_health(call: Call) -> ApiAnswer:
    """As `healthchecks/node` of RabbitMQ, which says it with 200."""
    metadata, statuses = await call.client.metadata([]), await call.statuses()
    name = call.names.get("node") or await call.node_id()
    if name not in {node.node_id for node in metadata.nodes}:
        raise not_found()
    told = statuses.by_node.get(name)
    failed = _alarms({name: told} if isinstance(told, Status) else {})
    if not isinstance(told, Status):
        return ApiAnswer(body={"status": "failed", "reason": str(told)})
    return ApiAnswer(body={"status": "ok"} if not failed else {"status": "failed", "reason": failed[0]["reason"]})


def _alarms(told: Mapping[str, Status]) -> list[Row]:
    found: list[Row] = []
    for node, status in told.items():
        if status.memory is not None and status.memory.state != "ok":
            found.append({"node": node, "resource": "memory", "reason": status.memory.reason})
        if status.disk is not None and status.disk.state == "full":
            found.append({"node": node, "resource": "disk", "reason": status.disk.reason})
    return found


def _no_alarms(node: str, statuses: ClusterStatuses) -> Row | None:
    found = _alarms({each.node_id: each for each in statuses.told})
    return {"reason": "there are alarms in effect in the cluster", "alarms": found} if found else None


def _no_local_alarms(node: str, statuses: ClusterStatuses) -> Row | None:
    found = _alarms({each.node_id: each for each in statuses.told if each.node_id == node})
    return {"reason": "there are alarms in effect on the node", "alarms": found} if found else None


def _serves(node: str, statuses: ClusterStatuses) -> Row | None:
    """The node has answered; with which it serves every virtual host, as far as its logs do."""
    told = statuses.by_node.get(node)
    if not isinstance(told, Status):
        return {"reason": str(told)}
    bad = [{"log": log.name, "reason": log.reason} for log in told.logs if log.state == "corrupt"]
    return {"reason": "logs of the node are damaged", "logs": bad} if bad else None


def _mirror_sync(node: str, statuses: ClusterStatuses) -> Row | None:
    """Fails when the end of this node would leave a log that has mirrors without any copy that is in sync."""
    up = {each.node_id for each in statuses.told}
    alone = {
        log.log_id
        for log in statuses.logs.values()
        if log.master == node and len(log.replicas) > 1 and not (up - {node}).intersection(log.in_sync)
    }
    told = statuses.by_node.get(node)
    copies = [copy_of(told, log_id) for log_id in sorted(alone)]
    queues = [queue.name for copy in copies if copy is not None for queue in copy.queues]
    if not queues:
        return None
    reason = "There are classic mirrored queues that don't have any synchronised mirrors online."
    return {"reason": reason, "queues": [{"name": name} for name in queues[:100]]}


def _quorum(node: str, statuses: ClusterStatuses) -> Row | None:
    """Fails when the cluster could decide nothing any more without this node."""
    views = [each.cluster for each in statuses.told if each.cluster is not None]
    view: ClusterStatus | None = max(views, key=lambda each: each.version, default=None)
    voters = [node.node_id for node in view.nodes if node.votes] if view is not None else []
    up = {each.node_id for each in statuses.told}.intersection(voters) - {node}
    if len(voters) < 2 or len(up) > len(voters) // 2:
        return None
    return {"reason": f"without this node {len(up)} of {len(voters)} voting nodes are up, which is no majority"}


_CHECKS: Final[Mapping[str, Callable[[str, ClusterStatuses], Row | None]]] = {
    "alarms": _no_alarms,
    "local-alarms": _no_local_alarms,
    "virtual-hosts": _serves,
    "ready": _serves,
    "ready-to-serve-clients": _serves,
    "node-is-mirror-sync-critical": _mirror_sync,
    "node-is-quorum-critical": _quorum,
}


async def _port(call: Call) -> ApiAnswer:
    """Whether a node listens on a port."""
    if not (port := call.names["port"]).isdigit():
        raise bad_request(f"port {port[:80]!r} is no number")
    listeners = [each for node in (await call.client.metadata([])).nodes for each in _listeners(node)]
    if any(each["port"] == int(port) for each in listeners):
        return ApiAnswer(body={"status": "ok", "port": int(port)})
    raise _failed_listener("No active listener", missing=int(port), ports=[each["port"] for each in listeners])


async def _protocol(call: Call) -> ApiAnswer:
    """Whether a node serves a protocol."""
    sought = call.names["protocol"]
    protocols = {each["protocol"] for node in (await call.client.metadata([])).nodes for each in _listeners(node)}
    if sought in protocols:
        return ApiAnswer(body={"status": "ok", "protocol": sought})
    raise _failed_listener("No active listener", missing=sought, protocols=sorted(protocols))


def _failed_listener(reason: str, **facts: object) -> ApiError:
    error = ApiError(503, "", reason)
    error.body = {"status": "failed", "reason": reason, **facts}  # type: ignore[dict-item]
    return error


async def _certificates(call: Call) -> ApiAnswer:
    """Whether a certificate expires within a time."""
    within, unit = call.names["within"], call.names["unit"]
    if not (within.isascii() and within.isdigit()) or len(within) > 6 or unit not in _UNITS_S:
        raise bad_request(f"Invalid time: a number of {', '.join(_UNITS_S)}")
    limit_s = int(within) * _UNITS_S[unit]
    expiring = [
        {"node": each.node_id, "certificate_expires_s": each.certificate_expires_s}
        for each in (await call.statuses()).told
        if each.certificate_expires_s and each.certificate_expires_s - each.now_us / 1e6 < limit_s
    ]
    return _health_answer({"reason": "Certificates expiring", "expired": expiring} if expiring else None)


# --- What there is nothing of ---------------------------------------------------------------------------------------


async def _index(call: Call) -> ApiAnswer:
    return ApiAnswer(body={"product_name": "mirrorlog", "management_version": API_VERSION, "overview": "/api/overview"})


async def _nothing(call: Call) -> ApiAnswer:
    """A list of what nodes do not know one by one, or have not."""
    return call.listed([])


async def _vhost_nothing(call: Call) -> ApiAnswer:
    await call.check_vhost()
    return call.listed([])


async def _none_such(call: Call) -> ApiAnswer:
    raise not_found()


_NONE: Final = {"GET": _nothing}

ROUTES: Final[Routes] = {
    "": {"GET": _index},
    "overview": {"GET": _overview},
    "cluster-name": {"GET": _cluster_name},
    "nodes": {"GET": _nodes},
    "nodes/:node": {"GET": _node},
    "healthchecks/node": {"GET": _node_health},
    "healthchecks/node/:node": {"GET": _node_health},
    "health/checks/:check": {"GET": _health},
    "health/checks/port-listener/:port": {"GET": _port},
    "health/checks/protocol-listener/:protocol": {"GET": _protocol},
    "health/checks/certificate-expiration/:within/:unit": {"GET": _certificates},
    "extensions": _NONE,
    "feature-flags": _NONE,
    "deprecated-features": _NONE,
    "deprecated-features/used": _NONE,
    "federation-links": _NONE,
    "federation-links/:vhost": {"GET": _vhost_nothing},
    "shovels": _NONE,
    "shovels/:vhost": {"GET": _vhost_nothing},
    "channels": _NONE,
    "channels/:name": {"GET": _none_such},
    "vhosts/:vhost/channels": {"GET": _vhost_nothing},
}
