"""What mqtool says of queues all of whose nodes are down."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.tools.main import main
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from tests.process.clusters import eventually, fast_cluster
from tests.process.raw import Raw
from tests.tools.conftest import Outcome

pytestmark = pytest.mark.process

LOG_UNAVAILABLE = 3


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"cluster.node_timeout_ms": 600}
    directory = tmp_path_factory.mktemp("outages")
    with fast_cluster(3, min_in_sync=2, data_dir=directory, settings=settings) as cluster:
        cluster.wait_in_sync()
        yield cluster


@pytest.mark.long
def test_each_list_names_the_node_that_is_to_be_started(three: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: no queue is called unknown because its only node is down, and programs are told what people are. Method: a
    queue of one copy in each of two virtual hosts; the node of the first is killed."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["--servers", ",".join(three.servers), *arguments])
        told = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), told.out, told.err)

    made = run("declare", "lonely", "--arg", "copies=1", "--json").json
    assert run("publish", "lonely", "--value", "x").code == 0
    assert run("declare", "spread").code == 0
    assert run("vhost-add", "shop").code == 0
    node = three.nodes[made["master"]]
    other = next(each for each in three.nodes.values() if each is not node)
    node.kill()
    try:
        eventually(lambda: _outages(other.client), "it is known")
        began = time.monotonic()
        for command in (["groups", "lonely"], ["rates", "lonely"], ["producers", "lonely"], ["landings", "lonely"]):
            told = run(*command)
            assert (told.code, told.out, told.err.count("\n")) == (LOG_UNAVAILABLE, "", 1), command
            assert f"node {node.id}" in told.err
        told = run("offsets", "--queue", "lonely")
        assert (told.code, f"node {node.id}" in told.err) == (LOG_UNAVAILABLE, True)
        assert time.monotonic() - began < 60, "nobody waits for it"
        [listed] = [each for each in run("queues", "--json").json if "outage" in each]
        assert (listed["name"], listed["outage"]["node"]) == ("lonely", node.id)
        assert [each["name"] for each in run("queues", "lonely", "--json").json] == ["lonely"]
        assert "lonely" in run("queues").out
        assert "lonely" in run("offsets").out
        assert run("queues", "--vhost", "shop").out.count("lonely") == 0
        assert run("queues", "--vhost", "shop", "--json").json == []
        assert "lonely" in run("doctor", "lonely").out
        assert run("groups", "no-such").code == 5
    finally:
        node.start()
        eventually(lambda: not _outages(other.client), "it is back")
    assert run("groups", "lonely").code == 0


def _outages(address: str) -> list[str]:
    with Raw(address) as raw:
        return [outage.name for outage in raw.request(GetMetadata(), Metadata).outages]
