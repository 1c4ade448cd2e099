"""A data directory of the software before placements: what it has is landed on, over the updates and a move, by the
software of each version on the same disk and the same table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirrorlog import versions
from mirrorlog.client.sync import Client
from mirrorlog.spark.checks.scope import LogSource
from mirrorlog.spark.land import land
from mirrorlog.spark.reconcile import reconcile
from mirrorlog.testing import Node
from tests.process.clusters import eventually
from tests.process.growing import Growing, join
from tests.process.test_two_versions import COMMIT_BEFORE, ROOT, software
from tests.spark.queues import every_kind_of_record, publish
from tests.spark.test_land import assert_is_the_log

SOFTWARE = {5: "eec4e7f", 6: "9a90900", 7: COMMIT_BEFORE}
"""By cluster version, each one's last commit; the first is the one before placements."""
COUNT = 400
_LAND_S = 240


def launch(growing: Growing, node: Node, source: Path, version: int, *flags: str) -> None:
    """Returns once the cluster is whole, and at that version."""
    node.command_prefix = ("env", "-C", str(source), f"PYTHONPATH={source}")
    node.launch(*flags)

    def met() -> bool:
        view = node.status().cluster
        return view is not None and view.cluster_version == version

    eventually(met, f"version {version}", timeout=30)
    growing.wait_whole([node.id], copies=1)


def land_by(source: Path, node: Node, table: Path) -> None:
    """By the landing of that software."""
    command = [sys.executable, "-m", "mirrorlog.spark.land", "q", "--servers", node.client, "--to", str(table)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=_LAND_S, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_directory_and_a_table_from_before_placements_are_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: nobody has to begin anew. Software of version 5 writes a queue and lands it; that of each version since
    goes on, and then this one. The queue is moved, and landed into the same table by this software, which has each
    record once; so has a new table of all of it, read from the nodes, and the log by its files when the node has
    stopped."""
    sources = {version: software(commit, tmp_path / commit) for version, commit in SOFTWARE.items()}
    sources[versions.OWN] = ROOT
    assert list(sources) == list(range(5, versions.OWN + 1)), "one version more has become a past one"
    table, anew = tmp_path / "table", tmp_path / "anew"
    records = every_kind_of_record(4 * COUNT)
    with Growing(tmp_path / "nodes") as growing:
        node = growing.node()
        launch(growing, node, sources[5], 5, *join(node))
        with Client(node.client) as client:
            first = client.admin.declare("q").log_id
            client.admin.declare("beside")
        publish([node.client], "q", records[:COUNT])
        land_by(sources[5], node, table)
        publish([node.client], "q", records[COUNT : 2 * COUNT])
        for version in range(6, versions.OWN + 1):
            assert node.stop() == 0
            launch(growing, node, sources[version], version)
        with Client(node.client) as client:
            client.admin.alter("q", {"flush": "disk"})
            eventually(lambda: client.admin.metadata(["q"]).queues[0].log_id != first, "q is in another log")
            with client.producer("q", confirm="all") as producer:
                for each in records[2 * COUNT :]:
                    producer.send_nowait(each.value, key=each.key, headers=each.headers, timestamp=each.timestamp_us)
        result = land(spark, [node.client], "q", table)
        assert (result.first, result.next) == (COUNT, 4 * COUNT)
        assert land(spark, [node.client], "q", anew).rows == 4 * COUNT
        for each in (table, anew):
            assert_is_the_log(spark, [node.client], "q", each, 4 * COUNT)
        assert node.stop() == 0
        assert reconcile(spark, LogSource(path=str(node.data_dir)), "q", table).equal
