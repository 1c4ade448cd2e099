"""Connections that say nothing, or come and go: what they cost a node, and whom they keep out."""

from __future__ import annotations

from pathlib import Path

from mirrorlog.testing import Node
from tests.attacks.large_frames import send_one
from tests.attacks.target import Target
from tests.process.clusters import MIB, fast_cluster


def memory_bytes(node: Node) -> int:
    """Its own memory, without the pages of its files."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_connections_that_left_leave_their_memory() -> None:
    """Goal: what a connection made the node hold goes with it. Method: 800 that each send one frame of 2 MiB, in all
    1.6 GiB, and leave: the node is as small as before."""
    with fast_cluster(1) as one:
        (node,) = one.nodes.values()
        target = Target(client=(node.client,), replication=(node.replication,))
        assert send_one(target, node.client)
        before = memory_bytes(node)
        assert sum(send_one(target, node.client) for _ in range(800)) == 800
        assert memory_bytes(node) < before + 100 * MIB
