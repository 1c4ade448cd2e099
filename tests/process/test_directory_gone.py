"""A node whose files are taken away under its feet is no copy: it ends, and the others go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirrorlog.errors import DirectoryGone
from mirrorlog.testing import Node
from tests.process.clusters import (
    assert_copies_equal,
    declare,
    eventually,
    fast_cluster,
    log_directory,
    log_of,
    wait_next_master,
)
from tests.process.raw import Raw
from tests.process.traffic import Traffic, number_of


def removed(node: Node, what: str) -> None:
    """As `rm -rf` does it: a file that is made meanwhile may stay."""
    if what == "moved":
        node.data_dir.rename(node.data_dir.with_name("moved"))
    else:
        shutil.rmtree(node.data_dir if what == "all" else log_directory(node), ignore_errors=True)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("whose", "what"), [("master", "all"), ("master", "log"), ("master", "moved"), ("mirror", "all"), ("mirror", "log")]
)
def test_a_node_whose_directory_was_removed_ends_and_nothing_is_lost(tmp_path: Path, whose: str, what: str) -> None:
    """Goal: what nobody can read again is not counted as a copy. Under publishing, the data directory of the master or
    of a mirror is removed, or moved away, or that of the log alone: the node ends with its own exit code and says why,
    another one masters, confirms go on, and every confirmed record is on the others. Started again it is made anew."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2) as three:
        three.wait_in_sync()
        queue = declare(three.servers[0], "q")
        former = three.master
        epoch = log_of(former).epoch
        node = former if whose == "master" else three.mirrors[0]
        with Traffic(three.servers, "q", rate=500) as traffic:
            traffic.wait(lambda: len(traffic.confirms) > 200, "confirms are steady")
            removed(node, what)
            eventually(lambda: not node.running, "it ends")
            assert node.exit_code == DirectoryGone.exit_code, node.log_tail()
            assert "was removed, moved or replaced while it was in use" in node.log_tail()
            if whose == "master":
                wait_next_master(three, former, epoch)
            target = len(traffic.confirms) + 200
            traffic.wait(lambda: len(traffic.confirms) >= target, "confirms go on")
            traffic.stop()
        assert not traffic.refused
        for other in three.nodes.values():
            if other is not node:
                with Raw(other.client) as raw:
                    wrong = traffic.check([number_of(value) for value in raw.values(queue.queue_id)])
                assert not any(wrong.values()), f"{wrong} on {other.id}"
        node.start()
        three.wait_in_sync()
        assert_copies_equal(three)
