"""The offline commands on what real nodes write, while they run and after."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import Overloaded
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import MIB, eventually, fast_cluster, log_directory, log_of
from tests.tools.conftest import Tool
from tests.tools.logs import overwrite

pytestmark = pytest.mark.process

KIB = 1024
SMALL = {
    "log.kept_mapped_bytes": 0,
    "log.prepare_bytes": 0,
    "log.retention_bytes": 4 * MIB,
    "limits.max_batch_bytes": 256 * KIB,
    "limits.max_record_bytes": 128 * KIB,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two copies of a log that frees its begin: sealed segments, recycled files, state checkpoints."""
    with fast_cluster(2, segment_bytes=MIB, settings=SMALL) as started:
        started.wait_in_sync()
        yield started


async def fill(servers: list[str], total_bytes: int) -> None:
    """Records of 1 KiB into two queues in turn."""
    async with Client(*servers) as client:
        for queue in ("a", "b"):
            await client.admin.declare(queue)
        async with client.producer("a") as first, client.producer("b", compression="zstd") as second:
            for number in range(total_bytes // KIB):
                producer = (first, second)[number % 16 == 0]
                while True:
                    try:
                        producer.send_nowait(os.urandom(KIB))
                        break
                    except Overloaded:
                        await producer.room()


def verify_running(node: Node, mqtool: Tool) -> int:
    """Verify a running node's directory; how many tables were compared."""
    outcome = mqtool("verify", str(node.data_dir), "--json")
    assert outcome.code == 0, outcome.out
    report = outcome.json
    assert report["in_use_by"] is not None
    assert report["faults"] == report["bad"] == report["lost"] == []
    return int(report["tables"]["compared"])


@pytest.mark.long
def test_a_log_is_sound_while_it_is_written_and_after(cluster: Cluster, mqtool: Tool) -> None:
    """Goal: no false alarm beside a running node, whatever it frees, seals and recycles. Method: verify master and
    mirror again and again while a process publishes 24 MiB; then stop all and verify what is left, with its index."""
    program = (
        f"import asyncio, tests.tools.test_offline_cluster as t; asyncio.run(t.fill({cluster.servers!r}, 24 * t.MIB))"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2]) as load:
        compared = 0
        while load.poll() is None:
            for node in cluster.nodes.values():
                compared += verify_running(node, mqtool)
        assert load.returncode == 0
    end = cluster.wait_confirmed().end
    for node in cluster.nodes.values():
        eventually(lambda node=node: log_of(node).begin > end - 8 * MIB, f"{node.id} has freed its begin")
        assert mqtool("recover", str(node.data_dir), "--apply").code == 13
        compared += verify_running(node, mqtool)
    assert compared
    for node in cluster.nodes.values():
        node.stop()
    for node in cluster.nodes.values():
        report = mqtool("verify", str(node.data_dir), "--json").json
        assert (report["faults"], report["bad"], report["tables"]["bad"]) == ([], [], [])
        assert report["index"]["state"] == "agrees"
        assert report["begin"] > 0
        assert {each["name"] for each in report["queues"]} == {"a", "b"}
        assert report["end"] >= end
        assert mqtool("recover", str(node.data_dir)).code == 0
        assert mqtool("recover", str(node.data_dir), "--apply").code == 0
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_in_sync()


def test_what_is_saved_is_published_again(cluster: Cluster, mqtool: Tool, tmp_path: Path) -> None:
    """Goal: records of a damaged copy come back. Method: damage one batch of a stopped mirror, save the rest, set the
    copy aside and start, print the saved records of a queue and publish them into another: all but those of the batch
    are there, as they were."""
    for queue in ("hurt", "saved"):
        mqtool("declare", queue)
    for number in range(6):
        values = ("--value", f"{number}", "--value", f"{number}+" + "x" * 500)
        mqtool("publish", "hurt", *values, "--key", "k", "--header", "h=1")
    cluster.wait_confirmed()
    mirror = cluster.mirrors[0]
    mirror.stop()
    batches = mqtool("dump", str(mirror.data_dir), "--queue", "hurt", "--json").json_lines
    bad = batches[2]
    overwrite(log_directory(mirror), bad["log_offset"] + 200, b"!")
    assert mqtool("recover", str(mirror.data_dir)).code == 15
    out = tmp_path / "out"
    assert mqtool("recover", str(mirror.data_dir), "--salvage", str(out)).code == 0
    lost = json.loads((out / "salvage.json").read_bytes())["lost"]
    first = bad["base_queue_offset"]
    assert [(each["first"], each["next"]) for each in lost] == [(first, first + bad["record_count"])]

    records = tmp_path / "records"
    printed = mqtool("dump", str(out), "--queue", "hurt", "--records", "--json")
    records.write_text(printed.out)
    log_directory(mirror).rename(tmp_path / "aside")
    mirror.start()
    cluster.wait_in_sync()
    assert mqtool("publish", "saved", "--records", str(records)).code == 0

    def shown(queue: str) -> list[dict[str, object]]:
        lines = mqtool("consume", queue, "--until-end", "--json").json_lines
        return [{name: line[name] for name in ("value", "key", "headers", "timestamp_us")} for line in lines]

    expected = shown("hurt")
    assert len(expected) == 12
    assert shown("saved") == expected[:first] + expected[first + bad["record_count"] :]
