"""What `mqtool nodes` says of versions, on fixed statuses."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from mirrorlog.tools.cluster import NodeList, nodes_of, nodes_view
from mirrorlog.tools.common.output import page
from mirrorlog.versions import run_id
from mirrorlog.wire.messages.status import MemoryStatus, NodeStatus
from tests.tools.statuses import cluster_status, member, node_status, placed, view


def listed(*nodes: NodeStatus, cluster_version: int = 1) -> NodeList:
    """As n1 tells it."""
    told = msgspec.structs.replace(
        node_status("n1"), cluster=view(placed(), nodes=nodes, cluster_version=cluster_version)
    )
    return nodes_of(told, cluster_status(told))


def of_version(number: int, version: int, **changes: Any) -> NodeStatus:
    """As a node of the first version tells it: its start id alone says what it runs."""
    return member(number, start_id=run_id(f"run {number}", version), **changes)


def test_each_nodes_software_and_the_clusters_version_are_told() -> None:
    """Also by a node that is older than mqtool, and also in JSON; by three nodes of two versions, and one that never
    ran."""
    found = listed(of_version(1, 1), of_version(2, 2), of_version(3, 2), member(4, start_id=""), cluster_version=1)
    assert [node.software_version for node in found.nodes] == [1, 2, 2, 0]
    told = json.loads(msgspec.json.encode(found))
    assert (told["cluster_version"], told["nodes"][1]["software_version"]) == (1, 2)


def test_a_node_whose_memory_is_high_is_told_of() -> None:
    """With the reason that it gives, under the table."""
    high = MemoryStatus(state="high", reason="the memory is high", used_bytes=9, high_bytes=7, size_bytes=10)
    told = msgspec.structs.replace(node_status("n1"), cluster=view(placed(), nodes=(member(1),)), memory=high)
    found = nodes_of(told, cluster_status(told))
    assert found.nodes[0].memory == high
    assert "n1: the memory is high" in page(nodes_view(found))


def test_an_update_that_is_under_way_says_whom_it_waits_for() -> None:
    """Those that are not updated, then those that are away; nothing before the first and behind the last."""
    assert listed(of_version(1, 1), of_version(2, 1), of_version(3, 1)).warnings == []
    (told,) = listed(of_version(1, 1), of_version(2, 2), of_version(3, 1)).warnings
    assert told == "the cluster runs at version 1 until all nodes are updated; not yet: n1, n3"
    (told,) = listed(of_version(1, 2), of_version(2, 2), of_version(3, 2, life="down")).warnings
    assert told == "the cluster runs at version 1 until all nodes, which are updated, are up; not there: n3"
    assert listed(of_version(1, 2), of_version(2, 2), of_version(3, 2), cluster_version=2).warnings == []
