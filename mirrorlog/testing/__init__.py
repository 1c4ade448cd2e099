"""Real clusters for your own tests: node processes on loopback ports, ended with the test whatever happens.

    from mirrorlog.testing import Cluster

    with Cluster(copies=3) as cluster:
        cluster.wait_in_sync()
        ...  # connect to cluster.servers
        cluster.nodes["n2"].kill()

For pytest add `pytest_plugins = ["mirrorlog.testing.pytest_plugin"]` to your `conftest.py`.
"""

from mirrorlog.testing.cluster import Cluster
from mirrorlog.testing.node import Node

__all__ = ["Cluster", "Node"]
