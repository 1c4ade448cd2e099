"""Real clusters for your own tests: node processes on loopback ports, ended with the test whatever happens.

    from mirrorlog.testing import Cluster

    with Cluster(copies=3) as cluster:
        cluster.wait_in_sync()
        ...  # connect to cluster.servers
        cluster.nodes["n2"].kill()

For pytest add `pytest_plugins = ["mirrorlog.testing.pytest_plugin"]` to your `conftest.py`.
"""

try:
    from mirrorlog.testing.cluster import Cluster
    from mirrorlog.testing.node import Node
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "mirrorlog"):
        raise
    # The client alone is installed without what nodes need, as `mirrorlog.commands` says of commands.
    needs = f"mirrorlog.testing needs {missing}: pip install 'mirrorlog[node]'"
    raise ModuleNotFoundError(needs, name=error.name) from None

__all__ = ["Cluster", "Node"]
