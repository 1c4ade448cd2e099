"""Lists of connections as a client puts them together: in parts, of all nodes, without those that cannot be asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog import versions
from mirrorlog.client.operator_admin import OperatorAdmin
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, UnsupportedVersion
from mirrorlog.wire.messages.connections import (
    CloseConnection,
    ConnectionInfo,
    ConnectionsFound,
    ListConnections,
    NoSuchConnection,
)
from mirrorlog.wire.messages.queues import Done, Metadata, NodeInfo


class Link:
    """To a node with connections of these names, which gives three in an answer at most."""

    def __init__(self, node: str, names: list[str], version: int = versions.OWN) -> None:
        self.node = node
        self.names = names
        self.asked: list[object] = []
        self.welcome = SimpleNamespace(start_id=versions.run_id("s", version))

    async def request(self, message: object, expect: object, *, timeout_ms: int) -> object:
        self.asked.append(message)
        if isinstance(message, CloseConnection):
            self.names.remove(message.name)
            return Done()
        assert isinstance(message, ListConnections)
        wanted = sorted(each for each in self.names if each > message.after and message.name in ("", each))
        some = wanted[: min(3, message.limit)]
        return ConnectionsFound(
            node_id=self.node, connections=[info(self.node, each) for each in some], more=len(wanted) > len(some)
        )


class Nodes:
    """What an admin asks of its client. Nodes without a link are gone."""

    request_timeout_ms = 1_000

    def __init__(self, **links: Link | None) -> None:
        self.links = links

    async def metadata(self, queues: list[str] | None) -> Metadata:
        nodes = [NodeInfo(node_id=each, client=each, replication="") for each in self.links]
        return Metadata(cluster_id="c", cluster_name="c", node_id="n1", nodes=nodes, queues=[], missing=[])

    async def connection_to(self, address: str) -> Link:
        await asyncio.sleep(0)
        if (link := self.links[address]) is None:
            raise ConnectionLost(f"no connection to {address}")
        return link


def info(node: str, name: str) -> ConnectionInfo:
    return ConnectionInfo(
        name=name, node=node, door="native", protocol="native", peer_host="h", peer_port=1, host="n", port=2, since_us=7
    )


def admin_of(**links: Link | None) -> OperatorAdmin:
    nodes: Any = Nodes(**links)
    return OperatorAdmin(nodes)


async def test_a_list_of_many_parts_is_put_together_by_name() -> None:
    """Goal: none is missing or twice. Method: a node with more than one answer has, and one with few; then only some of
    each, of which the first answers have too few."""
    many, few = Link("n1", [f"c{number}" for number in range(8)]), Link("n2", ["c3", "b"])
    admin = admin_of(n1=many, n2=few)
    found = await admin.connections()
    assert [row.name for row in found.rows] == ["b", "c0", "c1", "c2", "c3", "c3", "c4", "c5", "c6", "c7"]
    assert [row.node for row in found.rows if row.name == "c3"] == ["n1", "n2"]
    assert (found.untold, found.more, len(many.asked)) == ({}, False, 3)
    some = await admin.connections(most=4)
    assert ([row.name for row in some.rows if row.node == "n1"], some.more) == (["c0", "c1", "c2", "c3"], True)
    assert not (await admin.connections(most=8)).more


async def test_a_node_that_cannot_be_asked_is_told_with_the_reason() -> None:
    """Goal: one that is gone, and one whose software would end the connection for the question, hide nothing of the
    others; and where none can tell, that is the answer. Method: one of each."""
    old = Link("n3", ["x"], versions.CONNECTIONS - 1)
    found = await admin_of(n1=Link("n1", ["a"]), n2=None, n3=old).connections()
    assert [row.name for row in found.rows] == ["a"]
    assert [(node, type(error)) for node, error in found.untold.items()] == [
        ("n2", ConnectionLost),
        ("n3", UnsupportedVersion),
    ]
    assert old.asked == []
    with pytest.raises(UnsupportedVersion, match="node n3 runs older software"):
        await admin_of(n3=old).connections()


async def test_the_one_that_is_closed_is_the_one_that_was_meant() -> None:
    """Goal: a name that two nodes have closes neither; one that a silent node may have is not said to be gone. Method:
    each of these, and then the one that is named with its node."""
    one, two = Link("n1", ["a", "b"]), Link("n2", ["a"])
    admin = admin_of(n1=one, n2=two, n3=None)
    for name, wrong in (("a", BadRequest), ("c", ConnectionLost)):
        with pytest.raises(MirrorlogError) as told:
            await admin.close_connection(name)
        assert type(told.value) is wrong
    with pytest.raises(NoSuchConnection):
        await admin_of(n1=one, n2=two).close_connection("c")
    assert await admin.close_connection("b", "r") == "n1"
    assert one.asked[-1] == CloseConnection(name="b", reason="r")
    assert await admin.close_connection("a", node_id="n2", since_us=7) == "n2"
    assert (one.names, two.names) == (["a"], [])
    assert two.asked[-1] == CloseConnection(name="a", since_us=7)
