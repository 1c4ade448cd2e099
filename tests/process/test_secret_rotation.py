"""A cluster's secret is changed while it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.process.clusters import declare, eventually, fast_cluster, log_lines, log_of, wait_next_master
from tests.process.load import Load

OLD, NEW = "0123456789 the old one", "0123456789 the new one"


@pytest.mark.long
def test_nodes_change_their_secret_one_after_the_other_under_traffic(tmp_path: Path) -> None:
    """Goal: no outage. Method: a load; the file gets both secrets, then the new one first, then the new one alone, and
    one node after the other is told. Behind each step a master is killed, so that links are made anew; confirms go on,
    and the copies come back in sync."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(OLD)
    with fast_cluster(
        3, data_dir=tmp_path / "nodes", min_in_sync=2, settings={"cluster.secret_file": str(secret)}
    ) as cluster:
        cluster.wait_in_sync()
        with Load(cluster.servers, declare(cluster.servers[0], "q")) as load:
            for step, lines in enumerate((f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n", f"{NEW}\n"), 1):
                secret.write_text(lines)
                for node in cluster.nodes.values():
                    before = len(log_lines(node, "tls_reloaded"))
                    os.kill(node.pid, signal.SIGHUP)
                    eventually(lambda n=node, b=before: len(log_lines(n, "tls_reloaded")) > b, f"step {step}")
                master = cluster.master
                epoch = log_of(master).epoch
                master.kill()
                wait_next_master(cluster, master, epoch)
                confirmed = load.confirmed
                eventually(lambda c=confirmed: load.confirmed >= c + 20, "it goes on")
                master.start()
                cluster.wait_in_sync()
