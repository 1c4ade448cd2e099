"""What seed 003 tells of a group of nodes, where it takes real sockets and processes to be true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mirrorlog.errors import ConnectionLost, RequestTimeout
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.operators import Events, GetEvents
from tests.process.clusters import at_master, declare, eventually, fast_cluster, log_of, wait_next_master
from tests.process.load import Load
from tests.process.raw import Raw

WATCHERS = 3
QUESTIONS = 2_000
"""Their answers are megabytes: more than any socket holds."""


@contextmanager
def blocked_watchers(cluster: Cluster) -> Iterator[None]:
    """They ask every node for all events again and again, and read no answer."""
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            for _ in range(WATCHERS):
                raw = stack.enter_context(Raw(node.client, timeout=1.0))
                try:
                    for _ in range(QUESTIONS):
                        raw.ask(GetEvents(after=0, wait_ms=30_000))
                    raw.ask(GetEvents(after=1_000_000, wait_ms=30_000))
                except (ConnectionLost, RequestTimeout):
                    continue  # the node has had enough of it
        yield


@pytest.mark.story("003:23c")
def test_watchers_that_never_read_delay_no_failover(tmp_path: Path) -> None:
    """Goal: whoever is told of changes cannot hold them up. Method: watchers on all nodes that read nothing, until
    their sockets are full; kill the master under load: confirms go on, and another watcher is told who was promoted."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")
        with blocked_watchers(cluster), Load(cluster.servers, queue) as load:
            eventually(lambda: load.confirmed >= 20, "the load runs")
            master = cluster.master
            epoch = log_of(master).epoch
            master.kill()
            found = wait_next_master(cluster, master, epoch)
            before = load.confirmed
            eventually(lambda: load.confirmed >= before + 20, "confirms go on")
            with at_master(cluster) as raw:
                events = raw.request(GetEvents(after=0), Events).events
            load.stop()
        assert load.longest_s < 5
        assert any(event.kind == "promoted" and event.node == found.id for event in events)
