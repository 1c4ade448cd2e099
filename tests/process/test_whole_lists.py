"""Every list covers the whole cluster, whichever node is asked; what cannot be reached is a row with its reason.

Four nodes, logs that two of them hold each, and one that a single node holds; that node dies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.queues import Position
from tests.doors.door import admin, channel_to
from tests.process.clusters import fast_cluster
from tests.process.test_operators import Tool

pytestmark = [pytest.mark.process, pytest.mark.long]

NODES = ("n1", "n2", "n3", "n4")
DEAD = "n4"
ASKED = ("n1", "n2", "n3")
ALONE = "alone"
QUEUES = [f"q{number}" for number in range(8)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """n4 is dead. Every queue has a record, and a group that stands before it."""
    pairs = [
        {"name": f"log-{home}", "master": home, "mirrors": [mirror], "copies": 2}
        for home, mirror in zip(NODES, (*NODES[1:], NODES[0]), strict=True)
    ]
    logs = [*pairs, {"name": ALONE, "master": DEAD, "mirrors": [], "copies": 1}]
    settings = {"cluster.node_timeout_ms": 1_000, "cluster.replace_after_ms": 600_000}
    with fast_cluster(4, min_in_sync=1, logs=logs, grpc=True, settings=settings) as four:
        four.wait_in_sync()
        asyncio.run(_filled(four))
        four.nodes[DEAD].kill()
        wait_for(lambda: asyncio.run(_taken_over(four)) or None, timeout=30, what=lambda: "the others took over")
        yield four


async def _filled(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await client.admin.pause_moving()  # a node that is slow for a moment is no reason to even anything out
        for name in (*QUEUES, ALONE):
            info = await client.admin.declare(name, {"copies": 1 if name == ALONE else 2})
            async with client.producer(name) as producer:
                await producer.send(b"one")
            position = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=0)
            await client.admin.commit_position(name, "readers", position)
        found = await client.admin.queues()
    assert {queue.master for queue in found if queue.name != ALONE} == set(NODES)
    assert [queue.master for queue in found if queue.name == ALONE] == [DEAD]


async def _taken_over(cluster: Cluster) -> bool:
    """As every node that is up says it."""
    for name in ASKED:
        try:
            async with Client(cluster.nodes[name].client) as client:
                found = await client.admin.metadata()
        except MirrorlogError:
            return False
        if {queue.name: queue.current for queue in found.queues} != dict.fromkeys(QUEUES, True):
            return False
    return True


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(capsys)


def rows_of(tool: Tool, cluster: Cluster, node: str, *command: str) -> Any:
    return tool.json(*command, servers=[cluster.nodes[node].client])


def text_of(tool: Tool, cluster: Cluster, node: str, *command: str) -> str:
    """For people, with single spaces: lines are wrapped."""
    return " ".join(tool.ok(*command, servers=[cluster.nodes[node].client]).split())


@pytest.mark.parametrize("node", ASKED)
@pytest.mark.parametrize(("command", "name"), [("queues", "name"), ("rates", "name"), ("groups", "queue")])
def test_a_list_of_queues_has_all_and_one_that_is_not_reached_with_the_reason(
    cluster: Cluster, tool: Tool, node: str, command: str, name: str
) -> None:
    rows = rows_of(tool, cluster, node, command)
    lost = [row for row in rows if "outage" in row]
    assert sorted(row[name] for row in rows if "outage" not in row) == QUEUES
    assert [row["name"] for row in lost] == [ALONE]
    assert lost[0]["outage"]["node"] == DEAD
    assert DEAD in lost[0]["outage"]["reason"]
    assert lost[0]["outage"]["reason"] in text_of(tool, cluster, node, command)


@pytest.mark.parametrize("node", ASKED)
def test_the_list_of_logs_has_all_and_one_that_is_not_reached_with_the_reason(
    cluster: Cluster, tool: Tool, node: str
) -> None:
    found = rows_of(tool, cluster, node, "offsets")
    there = {(log["name"], each["node_id"]) for each in found["nodes"] for log in each["logs"]}
    assert there == {
        *(("log-n1", each) for each in ("n1", "n2")),
        *(("log-n2", each) for each in ("n2", "n3")),
        ("log-n3", "n3"),
        ("log-n4", "n1"),
    }
    assert [each["node_id"] for each in found["unreachable"]] == [DEAD]
    ((lost),) = found["unreached"]
    assert (lost["name"], lost["nodes"]) == (ALONE, [DEAD])
    assert "n4 does not answer" in lost["reason"]
    assert "log alone is not reached: n4 does not answer" in text_of(tool, cluster, node, "offsets")
    only = rows_of(tool, cluster, node, "offsets", "--log", ALONE)
    assert [each["name"] for each in only["unreached"]] == [ALONE]
    assert only["nodes"] == []


@pytest.mark.parametrize("node", ASKED)
def test_the_doctor_names_the_log_and_the_queue_that_nobody_can_tell_of(
    cluster: Cluster, tool: Tool, node: str
) -> None:
    code, out, _ = tool("doctor", "--json", servers=[cluster.nodes[node].client])
    assert code == 1
    found = json.loads(out)
    said = {(each["what"], each["name"], each["reason"]) for each in found}
    assert {("log", ALONE, "not-reached"), ("queue", ALONE, "nodes-down"), ("node", DEAD, "node-unreachable")} <= said
    stopped = {each["name"] for each in found if each["weight"] == "stops"}
    assert stopped == {ALONE}
    away = {each["name"] for each in found if each["reason"] == "mirror-away"}
    assert away == {"log-n3", "log-n4"}, "also logs that the node that is asked does not hold"


@pytest.mark.parametrize("node", ASKED)
def test_the_grpc_door_lists_all_and_says_which_it_cannot(cluster: Cluster, node: str) -> None:
    address = cluster.nodes[node].grpc
    assert address is not None
    with channel_to(address) as channel:
        names, outages, token = [], [], ""
        while True:
            page = admin(channel).ListQueues(pb.ListQueuesRequest(page_size=3, page_token=token), timeout=10)
            names += [queue.name for queue in page.queues]
            outages += page.outages
            if not (token := page.next_page_token):
                break
        assert names == QUEUES
        assert [(each.name, each.node) for each in outages] == [(ALONE, DEAD)]
        described = admin(channel).DescribeQueues(pb.DescribeQueuesRequest(names=["q1", ALONE]), timeout=10)
        assert [queue.name for queue in described.queues] == ["q1"]
        assert [(each.name, each.node) for each in described.outages] == [(ALONE, DEAD)]
