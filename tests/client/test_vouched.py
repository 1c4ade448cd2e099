"""Whose word counts on what a cluster takes: its master's, once that has heard the cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog.client import Client
from mirrorlog.client.connection.queue_metadata import FoundQueue, found_in
from mirrorlog.errors import MirrorlogError, NotMaster
from mirrorlog.wire.messages.queues import Metadata, NodeInfo, QueueInfo

INFO = QueueInfo(name="q", queue_id=1, log_id="x", epoch=1, master="n1", mirrors=["n2"], begin=0, next=0)


def says(node: str, *, attributes: bool, heard: bool = True) -> Metadata:
    nodes = [NodeInfo(node_id="n1", client="n1:1", replication="")]
    queues = [replace(INFO, attributes=attributes)]
    return Metadata(cluster_id="", cluster_name="", node_id=node, nodes=nodes, queues=queues, heard=heard)


def seen(told: Metadata) -> FoundQueue:
    return found_in("q", [told])[0]


async def vouched(found: Metadata, master: Metadata, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[str]]:
    """Whether it takes attributes, and who was asked for it."""
    client, asked = Client("n2:1"), list[str]()

    async def reach_master(found: FoundQueue) -> None:
        """It is there."""

    async def ask(address: str, queues: list[str] | None) -> Metadata:
        asked.append(address)
        return master

    monkeypatch.setattr(client, "reach_master", reach_master)
    monkeypatch.setattr(client, "ask", ask)
    return (await client.vouched(seen(found))).info.attributes, asked


@pytest.mark.parametrize("takes", [False, True])
async def test_the_master_is_asked_only_where_another_node_denies_it(
    monkeypatch: pytest.MonkeyPatch, takes: bool
) -> None:
    """A node that says yes has heard its cluster; one that denies it may not have."""
    master = says("n1", attributes=takes)
    assert await vouched(says("n2", attributes=True), master, monkeypatch) == (True, [])
    assert await vouched(says("n2", attributes=False), master, monkeypatch) == (takes, ["n1:1"])
    assert await vouched(says("n2", attributes=False, heard=False), master, monkeypatch) == (takes, ["n1:1"])
    assert await vouched(says("n1", attributes=False), master, monkeypatch) == (False, [])
    assert await vouched(says("n1", attributes=False, heard=False), master, monkeypatch) == (takes, ["n1:1"])


async def test_a_master_that_was_just_started_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a restart makes nobody believe that his cluster is an older one. It names itself by what it knew before."""
    unheard = says("n1", attributes=False, heard=False)
    with pytest.raises(NotMaster, match="has not heard its cluster yet; ask again") as raised:
        await vouched(unheard, unheard, monkeypatch)
    assert isinstance(raised.value, MirrorlogError)
    assert raised.value.retriable
