"""The fixtures, as a user's test suite meets them: in a pytest run of its own."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.process

SUITE = """
import pytest
pytest_plugins = ["mirrorlog.testing.pytest_plugin"]

def test_three_copies(mirrorlog_cluster):
    assert len(mirrorlog_cluster.servers) == 3
    assert all(mirror.in_sync for mirror in mirrorlog_cluster.wait_in_sync().mirrors)

def test_two_clusters_that_fail(mirrorlog_cluster_factory):
    clusters = [mirrorlog_cluster_factory(copies=1, flush="disk") for _ in range(2)]
    print("PIDS", *(cluster.master.pid for cluster in clusters))
    assert not clusters
"""


@pytest.mark.long
def test_the_fixtures_start_clusters_and_show_their_logs_on_failure(pytester: pytest.Pytester) -> None:
    """Goal: what the documentation promises. Method: a suite with one test that passes and one that fails."""
    pytester.makeconftest("")
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*log of node n1*", "*mqnode n1 serving client=*"])
    found = re.search(r"PIDS (\d+) (\d+)", result.stdout.str())
    assert found is not None
    assert not any(_is_node(int(pid)) for pid in found.groups())


def _is_node(pid: int) -> bool:
    """Whether a process with that number is a node (the number may have gone to another by now)."""
    try:
        return b"mirrorlog.broker.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
