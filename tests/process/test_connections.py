"""Connections of clients on real nodes: listed from any node for the whole cluster, and closed from any."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import AccessRefused, BadRequest, ConnectionLost, UnsupportedVersion
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.connections import ConnectionClosed, ConnectionInfo, NoSuchConnection
from tests.client.scripted_nodes import scripted
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(2) as found:
        found.wait_in_sync()
        yield found


def at(cluster: Cluster, node: str, **options: Any) -> Client:
    return Client(cluster.nodes[node].client, **options)


async def mine(client: Client, node: str) -> ConnectionInfo:
    """The connection to a node of the one client that is a tool."""
    await client.connection_to(await client.node_address(node))
    [found] = [row for row in (await client.admin.connections()).rows if (row.node, row.role) == (node, "tool")]
    return found


async def test_each_node_tells_of_the_connections_to_all(cluster: Cluster) -> None:
    """Goal: one list, whichever node is asked. Method: a client with a subscription at each of two nodes; both of them
    see both connections, with what is known of them."""
    async with at(cluster, "n1", role="tool") as one, at(cluster, "n2") as two:
        await one.admin.declare("listed")
        async with one.subscribe("listed", name="billing") as subscription, one.producer("listed") as producer:
            await producer.send(b"x")
            await anext(subscription)
            seen = [await client.admin.connections() for client in (one, two)]
            for found in seen:
                assert found.untold == {}
                assert {row.node for row in found.rows} == {"n1", "n2"}
                assert [row.name for row in found.rows] == sorted(row.name for row in found.rows)
            master = (await one.queue_info("listed")).master
            row = await mine(one, master)
            assert row.name == f"{row.peer_host}:{row.peer_port} -> {row.host}:{row.port}"
            assert cluster.nodes[master].client == f"{row.host}:{row.port}"
            assert (row.door, row.protocol, row.role, row.user, row.tls) == ("native", "native", "tool", "", "")
            assert row.client.startswith("mirrorlog-python ")
            assert (row.state, row.subscriptions) == ("running", 1)
            [group] = (await one.admin.groups("listed")).groups
            [consumer] = group.consumers
            assert consumer.connection == row.name
            assert row.since_us <= consumer.since_us <= consumer.held_since_us


async def test_a_list_in_parts_is_the_whole_list(cluster: Cluster) -> None:
    """Goal: a node with more connections than one answer has tells all. Method: at most one of each node, and then all
    of them by name."""
    async with at(cluster, "n1") as one, at(cluster, "n1") as other:
        await other.any_connection()
        rows = (await one.admin.connections()).rows
        some = await one.admin.connections(most=1)
        assert some.more
        assert len(some.rows) == 2
        for row in rows:
            assert [each.name for each in (await one.admin.connections(name=row.name)).rows] == [row.name]


async def test_one_is_closed_from_any_node_and_its_client_goes_on(cluster: Cluster) -> None:
    """Goal: who waits is told in words that an administrator did it, and the client is back with the next call; a
    producer that is at work loses nothing. Method: close by the other node while a fetch waits and a producer sends."""
    async with at(cluster, "n1", role="tool") as one, at(cluster, "n2") as two:
        await one.admin.declare("kept")
        address = cluster.nodes["n1"].client
        connection = await one.connection_to(address)
        row = await mine(one, "n1")
        queue_id = (await one.queue_info("kept")).queue_id
        async with one.producer("kept") as producer:
            await producer.send(b"before")
            fetch = connection.fetch(
                queue_id=queue_id, epoch=0, queue_offset=1, max_bytes=1, wait_ms=20_000, timeout_ms=20_000
            )
            waiting = asyncio.ensure_future(fetch)
            await asyncio.sleep(0)
            with pytest.raises(NoSuchConnection):
                await two.admin.close_connection(row.name, node_id="n1", since_us=1)
            with pytest.raises(NoSuchConnection):
                await two.admin.close_connection("nobody -> nowhere")
            with pytest.raises(BadRequest, match="no node 'n9'"):
                await two.admin.close_connection(row.name, node_id="n9")
            assert await two.admin.close_connection(row.name, "be gone") == "n1"
            with pytest.raises(ConnectionClosed, match="an administrator has closed this connection: be"):
                await waiting
            await producer.send(b"after")
        assert (await one.queue_info("kept")).next == 2
        assert (await mine(one, "n1")).name != row.name
        events = (await two.admin.events(node_id="n1")).events
        [told] = [each for each in events if each.kind == "connection_closed"]
        assert (told.node, told.details["connection"], told.details["reason"]) == ("n1", row.name, "be gone")


async def test_one_closes_its_own(cluster: Cluster) -> None:
    """Goal: the answer comes before the end. Method: a client closes the connection over which it asks."""
    async with at(cluster, "n2", role="tool") as one:
        row = await mine(one, "n2")
        assert await one.admin.close_connection(row.name) == "n2"
        assert (await mine(one, "n2")).name != row.name


async def test_a_node_that_does_not_answer_is_told_with_its_reason() -> None:
    """Goal: a list that is short says so, and nobody is told that a connection is gone because its node is. Method: one
    of two nodes is stopped."""
    with fast_cluster(2, min_in_sync=1) as cluster:
        cluster.wait_in_sync()
        cluster.nodes["n2"].kill()
        async with at(cluster, "n1") as one:
            found = await one.admin.connections(node_timeout_ms=2_000)
            assert list(found.untold) == ["n2"]
            assert {row.node for row in found.rows} == {"n1"}
            with pytest.raises(ConnectionLost, match="no node that answers has a connection 'x'; n2: "):
                await one.admin.close_connection("x")


async def test_a_node_with_older_software_is_not_asked() -> None:
    """Goal: in a cluster that is being updated nobody's connection is ended for a question that its node does not know.
    Method: a node that says so of itself; it is told as one that tells nothing."""
    async with scripted(1) as nodes, Client(nodes["n1"].address) as client:
        connection = await client.any_connection()
        with pytest.raises(UnsupportedVersion, match="node n1 runs older software"):
            await client.admin.connections()
        with pytest.raises(UnsupportedVersion, match="node n1 runs older software"):
            await client.admin.close_connection("x", node_id="n1")
        assert connection.usable


async def test_users_see_their_own_and_administrators_close() -> None:
    """Goal: rights. Method: an administrator, a user with the tag monitoring, and one with none."""
    with fast_cluster(1) as cluster:
        async with Client(*cluster.servers) as client:
            await client.admin.topology.set_user("admin", password_hash=hashed("admin"), tags=["administrator"])
        async with at(cluster, "n1", user="admin", password="admin") as admin:
            for name, tags in (("looker", ["monitoring"]), ("ann", [])):
                await admin.admin.topology.set_user(name, password_hash=hashed(name), tags=tags)
            async with (
                at(cluster, "n1", user="looker", password="looker") as looker,
                at(cluster, "n1", user="ann", password="ann") as ann,
            ):
                await ann.any_connection()
                seen = {row.user for row in (await looker.admin.connections()).rows}
                assert {"admin", "looker", "ann"} <= seen
                assert {row.user for row in (await ann.admin.connections()).rows} == {"ann"}
                assert [row.user for row in (await looker.admin.connections(user="ann")).rows] == ["ann"]
                [of_ann] = (await ann.admin.connections()).rows
                for other in (looker, ann):
                    with pytest.raises(AccessRefused):
                        await other.admin.close_connection(of_ann.name)
                await admin.admin.close_connection(of_ann.name, "out")
                events = (await admin.admin.events()).events
                [told] = [each for each in events if each.kind == "connection_closed"]
                assert told.details == {"connection": of_ann.name, "user": "ann", "by": "admin", "reason": "out"}
                [hidden] = [each for each in (await looker.admin.events()).events if each.kind == "connection_closed"]
                assert "ann" not in hidden.text
