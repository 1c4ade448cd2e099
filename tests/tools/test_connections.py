"""`mqtool connections`, `close-connection`: any columns by RabbitMQ's names, of all nodes, and one closed."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from mirrorlog.client import Client
from mirrorlog.client.operator_admin import ClusterConnections
from mirrorlog.diagnosis.connections import connection_row, untold_rows
from mirrorlog.errors import ConnectionLost
from mirrorlog.testing import Cluster
from mirrorlog.tools.common.output import page
from mirrorlog.tools.connections import connections_view
from mirrorlog.wire.messages.connections import ConnectionInfo
from tests.tools.conftest import Tool

INFO = ConnectionInfo(
    name="[::1]:5 -> [::1]:7401", node="n1", door="native", protocol="native", peer_host="::1", peer_port=5,
    host="::1", port=7401, since_us=1_700_000_000_123_456, user="ann", client="mirrorlog-python 1.2", tls="TLSv1.3",
)  # fmt: skip


@pytest.mark.process
def test_connections_are_listed_and_one_is_closed(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: RabbitMQ's commands by their names, for people and programs. Method: one client beside the tool's own."""

    async def story() -> None:
        async with Client(cluster.nodes["n2"].client) as client:
            await client.any_connection()
            await asyncio.to_thread(look)

    def look() -> None:
        rows = mqtool("list_connections", "name", "node", "role", "client_properties", "--json").json
        assert {row["node"] for row in rows} == {"n1", "n2", "n3"}
        [name] = [row["name"] for row in rows if row["role"] == "client"]
        assert name in mqtool("connections").out
        assert mqtool("connections", "--of", "nobody").out.split()[0] == "name"
        closed = mqtool("close_connection", name, "because")
        assert (closed.code, closed.out) == (0, f"connection {name} of node n2 is closed\n")
        again = mqtool("close-connection", name)
        assert (again.code, "no node has a connection" in again.err) == (5, True)
        unknown = mqtool("connections", "name", "frame_max")
        assert (unknown.code, "info keys frame_max are not supported" in unknown.err) == (2, True)

    asyncio.run(story())


def test_a_row_has_rabbitmqs_names_and_leaves_nothing_null() -> None:
    """Goal: its tools read it. Method: one with TLS, one without, and what a client says of itself in one word."""
    row = connection_row(INFO)
    assert (row["connected_at"], row["ssl"], row["ssl_protocol"]) == (1_700_000_000_123, True, "TLSv1.3")
    assert row["client_properties"] == {"product": "mirrorlog-python", "version": "1.2"}
    plain = connection_row(replace(INFO, tls="", client="kept"))
    assert plain["client_properties"] == {"product": "kept", "version": ""}
    assert plain.keys() == row.keys() - {"ssl_protocol"}
    assert None not in [*row.values(), *plain.values()]


def test_a_node_that_tells_nothing_is_a_row_with_its_reason_and_texts_of_clients_are_text() -> None:
    """Goal: a list that is short says so; what clients say of themselves moves no terminal. Method: the tables."""
    found = ClusterConnections([INFO], {"n2": ConnectionLost("gone")})
    assert untold_rows(found) == [{"name": "", "node": "n2", "state": "unknown", "reason": "gone"}]
    row = connection_row(replace(INFO, client="\x1b[2J"))
    text = page(connections_view(["name", "client", "connected_at", "ssl"], [row], untold_rows(found)))
    assert "\x1b" not in text
    assert "2023-11-14T22:13:20.123Z" in text
    assert "node n2 tells no connections: gone" in text
