"""`mqtool offsets` and `mqtool groups` on real nodes."""

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from mirrorlog.client import Client
from mirrorlog.diagnosis.cluster_status import AllStatuses
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import Position
from tests.tools.conftest import SEGMENT_BYTES, Tool

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "mirrorlog.tools.main"]


def commit(cluster: Cluster, queue: str, group: str, queue_offset: int) -> None:
    async def run() -> None:
        async with Client(*cluster.servers) as client:
            info = await client.queue_info(queue)
            position = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=queue_offset)
            await client.admin.commit_position(queue, group, position)

    asyncio.run(run())


def test_json_is_the_statuses_of_all_nodes(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: the documented schema. Method: decode the output as that type and look at what must hold when idle."""
    mqtool("declare", "watched")
    mqtool("publish", "watched", "--value", "a", "--value", "b")
    end = cluster.wait_confirmed().end
    status = msgspec.json.decode(mqtool("offsets", "--json").out, type=AllStatuses)
    assert [node.node_id for node in status.nodes] == ["n1", "n2", "n3"]
    assert status.unreachable == []
    assert {(log.end, log.confirmed) for node in status.nodes for log in node.logs} == {(end, end)}
    mirrors = status.nodes[0].logs[0].mirrors
    assert [(mirror.node_id, mirror.acked, mirror.in_sync, mirror.lag_records) for mirror in mirrors] == [
        ("n2", end, True, 0),
        ("n3", end, True, 0),
    ]


def test_the_table_has_every_kind(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: logs, mirrors, lags, queues and groups at a glance. Method: a queue with a group, all titles there."""
    mqtool("declare", "shown")
    mqtool("publish", "shown", "--value", "a", "--value", "b", "--value", "c")
    commit(cluster, "shown", "readers", 1)
    text = mqtool("offsets", "--queue", "shown").out
    titles = [line for line in text.splitlines() if line.split() and line.split()[0].strip(",").isupper()]
    assert titles == [
        "LOGS of testing",
        "MASTERS and in-sync sets, as the cluster has decided",
        "MIRRORS, as their master sees them",
        "LAG of mirrors behind their master",
        "QUEUES",
        "CONSUMER GROUPS",
    ]
    rows = [line.split() for line in text.splitlines()]
    assert any(row[0] == "shown" and row[2:] == ["main", "0", "3", "3"] for row in rows if row)
    assert any(row[:2] == ["shown", "readers"] and row[3:] == ["1", "2"] for row in rows if row)


def test_groups_tell_position_and_lag(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: where readers stand. Method: two groups of one queue, and another queue that is left out."""
    for name in ("grouped", "other"):
        mqtool("declare", name)
        mqtool("publish", name, "--value", "a", "--value", "b")
    commit(cluster, "grouped", "one", 1)
    commit(cluster, "grouped", "two", 2)
    commit(cluster, "other", "three", 0)
    found = mqtool("groups", "grouped", "--json").json
    assert [(each["group"], each["position"]["queue_offset"], each["lag"]) for each in found] == [
        ("one", 1, 1),
        ("two", 2, 0),
    ]
    assert "three" in mqtool("groups").out
    assert mqtool("groups", "no-such-queue").code == 5


@pytest.mark.parametrize(
    ("filters", "code"), [(("--node", "n9"), 2), (("--log", "x"), 5), (("--queue", "no-such-queue"), 5)]
)
def test_an_unknown_filter_is_an_error(mqtool: Tool, filters: tuple[str, str], code: int) -> None:
    """Goal: a typo is no empty table. Method: each filter with a name that nobody has."""
    assert mqtool("offsets", *filters).code == code


def test_a_dead_node_and_a_dead_master_are_named(mqtool: Tool) -> None:
    """Goal: the tool serves best in an outage. Method: kill a mirror, look; kill the master, look at the other."""
    with Cluster(3, segment_bytes=SEGMENT_BYTES) as own:
        own.wait_in_sync()
        mqtool("declare", "kept", servers=own.servers)
        own.wait_confirmed()
        own.nodes["n3"].kill()
        text = mqtool("offsets", servers=own.servers).out
        assert "n3 does not answer" in text
        assert any(row.split()[:4] == ["main", "n3", "down", "NO"] for row in text.splitlines())

        own.master.kill()
        seen = msgspec.json.decode(mqtool("offsets", "--json", servers=own.servers).out, type=AllStatuses)
        assert [node.node_id for node in seen.nodes] == ["n2"]
        assert [node.node_id for node in seen.unreachable] == ["n1", "n3"]
        assert "CONNECTION_LOST" in {node.error for node in seen.unreachable}
        text = mqtool("offsets", servers=own.servers).out
        assert "its master does not answer" in text
        assert "kept" in text

        own.nodes["n2"].kill()
        nobody = mqtool("offsets", servers=own.servers)
        assert nobody.code == 9
        assert nobody.err.count("\n") == 1


def test_a_hanging_node_is_named_and_holds_nobody_up(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: the tool ends though a node does not answer. Method: pause a mirror, look, resume it."""
    node = cluster.nodes["n3"]
    node.pause()
    try:
        text = mqtool("offsets").out
    finally:
        node.resume()
    assert f"n3 does not answer: no answer from {node.client}" in text
    assert [line.split()[1] for line in text.splitlines()[2:4]] == ["n1", "n2"]


def test_a_watch_in_json_is_a_line_per_look(cluster: Cluster) -> None:
    """Goal: programs can follow. Method: three lines from a process, then Ctrl-C, which is no error."""
    arguments = ["--servers", cluster.servers[0], "offsets", "--watch", "--every", "0.1", "--json"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = [msgspec.json.decode(process.stdout.readline(), type=AllStatuses) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
    assert [look.nodes[0].now_us for look in looks] == sorted(look.nodes[0].now_us for look in looks)


def test_a_watch_refreshes_the_terminal_in_place(cluster: Cluster) -> None:
    """Goal: the display stays where it is, longer ones can be read, and the terminal is as before. Method: on a
    pseudo-terminal of ten lines; each look begins at its top, and `j` moves the table up by a line."""
    primary, secondary = os.openpty()
    arguments = ["--servers", cluster.servers[0], "offsets", "--watch", "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "10"}
    with subprocess.Popen(
        [*COMMAND, *arguments], stdin=secondary, stdout=secondary, stderr=secondary, env=environment
    ) as process:
        os.close(secondary)
        seen = b""
        while seen.count(b"LOGS of testing") < 3:
            seen += os.read(primary, 65536)
        os.write(primary, b"j")
        while b"lines 2 to 10 of " not in seen:
            seen += os.read(primary, 65536)
        os.write(primary, b"q")
        while True:
            try:
                seen += os.read(primary, 65536)
            except OSError:  # the other side is closed
                break
        assert process.wait(30) == 0
    os.close(primary)
    between = seen.split(b"LOGS of testing")[1]
    assert b"\x1b[H\x1b[2J" in between
    assert b"LOGS of testing" not in seen.split(b"lines 2 to 10 of ")[0].rpartition(b"\x1b[H\x1b[2J")[2]
    assert seen.endswith(b"\x1b[?1049l")
    assert b"Traceback" not in seen


def test_the_directory_of_a_running_node_can_be_verified_and_dumped(mqtool: Tool, cluster: Cluster) -> None:
    """Goal: offline tools do no harm beside a node. Method: both on the master's directory, which goes on serving."""
    mqtool("declare", "dumped")
    mqtool("publish", "dumped", "--value", "x")
    directory = str(cluster.master.data_dir)
    report = mqtool("verify", directory, "--json")
    assert report.code == 0
    assert report.json["bad"] == []
    lines = mqtool("dump", directory, "--json").json_lines
    assert lines[0]["changes"][0]["type"] == "EpochStarted"
    assert any(change["name"] == "dumped" for line in lines for change in line.get("changes", []) if "name" in change)
    assert lines[-1]["end"] == report.json["end"]
    assert mqtool("publish", "dumped", "--value", "y").code == 0
