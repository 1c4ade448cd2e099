"""A connection of a client as a row by RabbitMQ's names, for tools and doors. Pure.

A connection here is bound to no virtual host: each request names one. So `vhost` is there, for tools look for it, and
empty; and there are no channels. A node that tells no connections is a row with its reason, and no name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirrorlog.wire.messages.connections import ConnectionInfo

if TYPE_CHECKING:
    from mirrorlog.client.operator_admin import ClusterConnections


def untold_rows(found: ClusterConnections) -> list[dict[str, Any]]:
    """Of the nodes that tell none."""
    silent = found.untold.items()
    return [{"name": "", "node": node, "state": "unknown", "reason": str(error)} for node, error in silent]


def connection_row(info: ConnectionInfo) -> dict[str, Any]:
    """`connected_at`: ms UTC. What is ours alone stands behind."""
    product, _, version = info.client.rpartition(" ")
    return {
        "name": info.name,
        "node": info.node,
        "user": info.user,
        "vhost": "",
        "state": info.state,
        "type": "network",
        "protocol": info.protocol,
        "peer_host": info.peer_host,
        "peer_port": info.peer_port,
        "host": info.host,
        "port": info.port,
        "ssl": bool(info.tls),
        **({"ssl_protocol": info.tls} if info.tls else {}),
        "connected_at": info.since_us // 1000,
        "channels": 0,
        "send_pend": info.unsent_bytes,
        "client_properties": {"product": product or version, "version": version if product else ""},
        "client": info.client,
        "door": info.door,
        "role": info.role,
        "subscriptions": info.subscriptions,
        "producers": info.producers,
        "silent_ms": info.silent_ms,
    }
