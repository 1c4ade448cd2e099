"""Confirmed records are lost with the copies that held them: that is declared, and what returns later is kept aside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirrorlog.cluster.membership import run_history
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.errors import PositionLost
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.status import PlacedLog
from tests.process.clusters import (
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    facts,
    fast_cluster,
    log_directory,
    log_lines,
    log_of,
)
from tests.process.raw import Raw, batch_of, values_of

pytestmark = pytest.mark.process

NEVER_FLUSHED = {"log.flushIntervalCommitLog": 60_000}


def placed(cluster: Cluster) -> PlacedLog:
    """The only log, as the node that masters it, or any, knows it."""
    status = next(iter(cluster.statuses().values()))
    assert status.cluster is not None
    (log,) = status.cluster.logs
    return log


def lose_power(node: Node, *, from_offset: int, log_id: str = "") -> None:
    """Of a node that was killed, its machine too: what it had not flushed is gone from there on, of its only log, or of
    that one."""
    directory = node.data_dir / "logs" / log_id if log_id else log_directory(node)
    (segment,) = (path for path in directory.iterdir() if path.name.isdigit())
    with segment.open("r+b") as file:
        file.seek(from_offset)
        file.write(bytes(segment.stat().st_size - from_offset))
    path = node.data_dir / run_history.FILE_NAME
    record = msgspec.structs.replace(run_history.RECORD_FILE.read(OS_FILES, path), boot_id="another boot")
    path.write_bytes(run_history.RECORD_FILE.encode(record))


def mqtool(*arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-m", "mirrorlog.tools.main", *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout


def dumped_values(directory: Path) -> list[str]:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in mqtool("dump", directory, "--records", "--json").splitlines()
    ]
    return [line["value"] for line in lines]


def test_what_a_returning_copy_has_more_than_a_declared_loss_left_is_kept_aside(tmp_path: Path) -> None:
    """Goal: invariant 6. A loss is declared with its start; its end is told by the copy that returns, and no byte that
    may have been confirmed is destroyed. Method: one copy stops; the other two confirm more and lose power, both with
    less than the first has. They go on as they are, with the loss declared. Then the first returns: it becomes equal to
    them, what it had more is beside it, and a tool gets the records out."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=NEVER_FLUSHED) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")

        def publish(value: bytes) -> int:
            with at_master(cluster) as raw:
                raw.produce(batch_of([value], queue))
            return cluster.wait_confirmed().end

        kept = publish(b"kept")
        held = publish(b"held")
        away = cluster.mirrors[-1]
        assert away.stop() == 0
        others = [node for node in cluster.nodes.values() if node is not away]
        eventually(lambda: set(placed(cluster).in_sync) == {node.id for node in others}, "it has left the set")
        publish(b"gone")
        epoch = log_of(cluster.master).epoch
        # The master last: a mirror that sees it die writes down that it leads now, before it dies too.
        master = cluster.master
        others.sort(key=lambda node: node is master)
        for node in others:
            node.kill()
        for node in others:
            lose_power(node, from_offset=kept)
            node.launch()
        for node in others:
            node.wait_serving()

        (loss,) = eventually(lambda: placed(cluster).losses, "the loss is declared")
        assert (loss.start, loss.end) == (kept, None)
        assert loss.epoch > epoch
        eventually(lambda: publish(b"new"), "the log goes on")

        away.start()
        cluster.wait_in_sync()
        eventually(lambda: placed(cluster).losses[0].end == held, "the end of the loss is known")
        for node in cluster.nodes.values():
            with Raw(node.client) as raw:
                assert [values_of(batch) for batch in raw.fetch(queue.queue_id, 0)[1]] == [[b"kept"]]
                lost = error_of(lambda raw=raw: raw.fetch(queue.queue_id, 1))  # type: ignore[misc]
                assert isinstance(lost, PositionLost)
                assert raw.values(queue.queue_id, lost.details["go_on_at"]) == [b"new"]
        (aside,) = (away.data_dir / "logs").glob("*.aside-*")
        (told,) = log_lines(away, "surplus_set_aside")
        assert facts(told)["path"].rstrip(";") == str(aside)
        assert (facts(told)["first"], facts(told)["last"]) == (str(kept), str(held))
        aside = aside.rename(tmp_path / "looked-at")
        assert_copies_equal(cluster)
        mqtool("verify", aside)
        mqtool("recover", aside, "--salvage", tmp_path / "saved")
        assert dumped_values(aside) == dumped_values(tmp_path / "saved") == ["held"]
        assert json.loads((aside / "surplus.json").read_text())["queues"] == {str(queue.queue_id): "q"}
