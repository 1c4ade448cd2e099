"""Lists of the whole cluster over HTTP: the same whichever node's door is asked, with a row for what is not reached."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import Position
from tests.doors.http_door import HttpDoor, Page
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process


def rows(page: Page) -> list[dict[str, Any]]:
    assert page.status == 200, page
    assert page.headers["content-type"] == "application/json"
    found: list[dict[str, Any]] = json.loads(page.text)["rows"]
    return found


async def fill(cluster: Cluster) -> None:
    """A queue on n1 alone and one on n2 alone, each with a record and a group."""
    async with Client(*cluster.servers) as client:
        for node in ("n1", "n2"):
            queue = f"on {node}"
            info = await client.admin.declare(queue, {"nodes": [node]})
            async with client.producer(queue) as producer:
                await producer.send(b"v")
            position = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=1)
            await client.admin.commit_position(queue, "readers", position)
            async with client.subscribe(queue) as subscription:
                await (await anext(subscription)).ack()


def test_lists_are_whole_and_say_what_is_not_reached() -> None:
    """Goal: nothing is missing from a list for the moment in which its node is down. Method: two queues, each on one
    node; the doors of two nodes list the same queues, copies and groups; then one of the nodes is killed, and what it
    alone had is a row with the reason."""
    with fast_cluster(3, settings={"cluster.node_timeout_ms": 1_000}) as cluster:
        cluster.wait_in_sync()
        asyncio.run(fill(cluster))
        doors = [HttpDoor(cluster.nodes[node].client) for node in ("n1", "n3")]
        with doors[0], doors[1]:
            for door in doors:
                queues = {row["name"]: row for row in rows(door.get("/queues"))}
                assert {name: row["reason"] for name, row in queues.items()} == {"on n1": "", "on n2": ""}
                offsets = rows(door.get("/offsets"))
                assert {(row["log"], row["node"]) for row in offsets if row["end"] > 0} >= {
                    ("on-n1-memory-n1", "n1"),
                    ("on-n2-memory-n2", "n2"),
                }
                groups = [(row["queue"], row["group"], row["reason"]) for row in rows(door.get("/groups"))]
                assert sorted(groups) == [("on n1", "readers", ""), ("on n2", "readers", "")]
                acking = rows(door.get("/groups?queue=on%20n2"))
                assert {(row["group"], row["kind"]) for row in acking} == {("readers", "stream"), ("", "acking")}
                assert rows(door.get("/moves")) == []
            cluster.nodes["n2"].kill()
            for door in doors:
                unreached = {row["name"]: row["reason"] for row in rows(door.get("/queues"))}
                assert sorted(unreached) == ["on n1", "on n2"]
                assert not unreached["on n1"]
                assert unreached["on n2"]
                offsets = [row for row in rows(door.get("/offsets")) if row["log"] == "on-n2-memory-n2"]
                assert [(row["node"], bool(row["reason"]), "end" in row) for row in offsets] == [("n2", True, False)]
                groups = [row for row in rows(door.get("/groups")) if row["log"] == "on-n2-memory-n2"]
                assert [(bool(row["reason"]), "group" in row) for row in groups] == [(True, False)]
            assert doors[1].get("/groups?queue=nowhere").status == 404
            assert "/moves" in doors[1].get("/").text
