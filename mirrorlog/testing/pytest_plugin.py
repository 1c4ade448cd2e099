"""pytest fixtures with real clusters. Put this into your `conftest.py`:

    pytest_plugins = ["mirrorlog.testing.pytest_plugin"]

and ask for a fixture:

    def test_it(mirrorlog_cluster):
        servers = mirrorlog_cluster.servers

    def test_two_copies_on_disk(mirrorlog_cluster_factory):
        cluster = mirrorlog_cluster_factory(copies=2, flush="disk")

Each test has clusters of its own, which end with it. When a test fails, its report shows the end of every node's log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from mirrorlog.testing.cluster import Cluster

ClusterFactory = Callable[..., Cluster]

_CLUSTERS = pytest.StashKey[list[Cluster]]()


@pytest.fixture
def mirrorlog_cluster_factory(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Call it with the arguments of `Cluster` as often as needed: each call gives a started cluster."""
    clusters = request.node.stash.setdefault(_CLUSTERS, [])
    with contextlib.ExitStack() as started:

        def start(copies: int = 3, **options: Any) -> Cluster:
            cluster = Cluster(copies, **options)
            clusters.append(cluster)
            return started.enter_context(cluster)

        yield start


@pytest.fixture
def mirrorlog_cluster(mirrorlog_cluster_factory: ClusterFactory) -> Cluster:
    """A started cluster of three copies whose mirrors are in sync."""
    cluster = mirrorlog_cluster_factory(copies=3)
    cluster.wait_in_sync()
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the nodes' logs to the report of a test that failed."""
    report = yield
    if report.failed:
        for cluster in item.stash.get(_CLUSTERS, []):
            for node in cluster.nodes.values():
                if tail := node.log_tail():
                    report.sections.append((f"log of node {node.id}", tail))
    return report
