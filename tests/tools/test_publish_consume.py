"""What is published by hand is consumed by hand: on real nodes."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.client import ConsumedRecord
from mirrorlog.client.sync import Client
from mirrorlog.errors import NotCurrent
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.tools.common.records import record_fields, record_line
from tests.tools.conftest import SEGMENT_BYTES, Tool

pytestmark = pytest.mark.process


@pytest.fixture
def queue(mqtool: Tool, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name: str = request.node.name
    assert mqtool("declare", name).code == 0
    return name


def test_what_is_published_is_consumed(mqtool: Tool, queue: str) -> None:
    """Goal: value, key and headers arrive. Method: two records out and in, with what the receipt says."""
    sent = mqtool("publish", queue, "--value", "a", "--value", "", "--key", "k", "--header", "row=1", "--json")
    assert sent.json == {"queue": queue, "records": 2, "first": 0, "last": 1, "copies": 3}
    records = mqtool("consume", queue, "--until-end", "--json").json_lines
    assert [(record["queue_offset"], record["value"], record["key"]) for record in records] == [
        (0, "a", "k"),
        (1, "", "k"),
    ]
    assert records[0]["headers"] == [{"name": "row", "value": "1"}]
    assert records[0]["timestamp_us"] is None
    assert mqtool("consume", queue, "--until-end").out == "0\t-\tk\ta\n1\t-\tk\t\n"


def test_lines_of_a_file_are_records(mqtool: Tool, queue: str, tmp_path: Path) -> None:
    """Goal: bytes go through unchanged, in order. Method: many lines, one of them not UTF-8."""
    lines = [b"line %d" % number for number in range(5_000)] + [b"\xff\xfe"]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    sent = mqtool("publish", queue, "--file", str(file))
    assert sent.out == f"5001 records confirmed in {queue}: queue offsets 0 to 5000, copies 3\n"
    records = mqtool("consume", queue, "--until-end", "--json").json_lines
    assert [record["value"].encode() for record in records[:-1]] == lines[:-1]
    assert "value" not in records[-1]
    assert base64.b64decode(records[-1]["value_base64"]) == lines[-1]


def test_stdin_is_read_to_its_end(mqtool: Tool, queue: str, cluster: Cluster) -> None:
    """Goal: mqtool stands in a pipe, on both sides. Method: two processes, the second one's reader ends early."""
    command = [sys.executable, "-m", "mirrorlog.tools.main"]
    environment = {**os.environ, "MIRRORLOG_SERVERS": cluster.servers[0]}
    sent = subprocess.run(
        [*command, "publish", queue, "--file", "-"],
        input=b"x" * 1000 + b"\n" + b"y\n" * 5000,
        env=environment,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert sent.stdout.startswith(b"5001 records confirmed")
    with subprocess.Popen(
        [*command, "consume", queue], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"0\t-\t-\t" + b"x" * 1000 + b"\n"
        reader.stdout.close()
        # It would follow the queue for ever: the next record meets the closed pipe.
        mqtool("publish", queue, "--value", "z")
        assert reader.wait(60) == 1
        assert reader.stderr.read() == b""


def test_where_to_begin_and_where_to_stop(mqtool: Tool, queue: str) -> None:
    """Goal: each form of --from, with --max. Method: ten records, a known append time between them and one more."""
    mqtool("publish", queue, *(part for number in range(10) for part in ("--value", str(number))))
    last = mqtool("consume", queue, "--from", "9", "--max", "1", "--json").json
    offset = mqtool("find-offset", queue, "1970-01-01").out
    after = mqtool("find-offset", queue, "2999-01-01T00:00:00+01:00", "--json").json

    def values(*options: str) -> list[str]:
        return [record["value"] for record in mqtool("consume", queue, "--json", *options).json_lines]

    assert last["value"] == "9"
    assert last["append_time_us"] > 0
    assert offset == "0\n"
    assert after["queue_offset"] == 10
    assert values("--from", "7", "--until-end") == ["7", "8", "9"]
    assert values("--from", "3", "--max", "2") == ["3", "4"]
    assert values("--from", "latest", "--until-end") == []
    assert values("--from", "1970-01-01", "--max", "1") == ["0"]
    assert values("--from", "2999-01-01", "--until-end") == []


def test_records_stand_behind_the_queue_or_come_by_a_pipe(mqtool: Tool, cluster: Cluster, queue: str) -> None:
    """Goal: `mqtool publish Q hello`, `echo hello | mqtool publish Q`. Method: each, and to an exchange."""
    assert mqtool("publish", queue, "one", "two").code == 0
    command = [
        sys.executable,
        "-m",
        "mirrorlog.tools.main",
        "message",
        "publish",
        queue,
        "-s",
        ",".join(cluster.servers),
    ]
    piped = subprocess.run(command, input=b"three\nfour\n", capture_output=True, timeout=60, check=False)
    assert (piped.returncode, piped.stderr) == (0, b"")
    assert mqtool("publish", "--exchange", "", "--key", queue, "five").code == 0
    found = mqtool("consume", queue, "--until-end", "--json").json_lines
    assert [each["value"] for each in found] == ["one", "two", "three", "four", "five"]


def test_a_stream_group_reads_on_from_where_it_stands(mqtool: Tool, queue: str) -> None:
    """Goal: --group and --commit. Method: five records: two and a commit, one without a commit, which comes again, a
    begin of its own, which leaves the group where it is, the rest; then nothing, and the group is listed at the end."""
    assert mqtool("publish", queue, *(part for number in range(5) for part in ("--value", str(number)))).code == 0

    def values(*options: str) -> list[str]:
        found = mqtool("consume", queue, "--group", "lake", "--until-end", "--json", *options)
        assert (found.code, found.err) == (0, "")
        return [each["value"] for each in found.json_lines]

    assert values("--max", "2", "--commit") == ["0", "1"]
    assert values("--max", "1") == ["2"]
    assert values("--from", "4") == ["4"]
    assert values("--commit") == ["2", "3", "4"]
    assert values() == []
    [group] = mqtool("groups", queue, "--json").json
    assert (group["group"], group["position"]["queue_offset"], group["lag"]) == ("lake", 5, 0)
    assert values("--from", "3", "--max", "1", "--commit") == ["3"]
    assert values() == ["4"]
    assert mqtool("receive", queue, "--group", "billing", "--create", "--count", "1").code == 0
    wrong = mqtool("consume", queue, "--group", "billing", "--commit", "--until-end")
    assert (wrong.code, wrong.out, "mqtool receive" in wrong.err) == (2, "", True)


def test_ctrl_c_stores_where_the_group_stands(mqtool: Tool, queue: str, cluster: Cluster) -> None:
    """Goal: what was printed until somebody stops it is not printed again. Method: a process that waits for more is
    interrupted behind two lines."""
    assert mqtool("publish", queue, "--value", "a", "--value", "b").code == 0
    command = [sys.executable, "-m", "mirrorlog.tools.main", "-s", ",".join(cluster.servers), "consume", queue]
    reader = subprocess.Popen([*command, "--group", "lake", "--commit", "--json"], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    with reader:
        lines = [json.loads(reader.stdout.readline())["value"] for _ in range(2)]
        reader.send_signal(signal.SIGINT)
        assert reader.stdout.read() == ""
    assert lines == ["a", "b"]
    [group] = mqtool("groups", queue, "--json").json
    assert group["position"]["queue_offset"] == 2


def test_a_refusal_ends_when_the_time_is_up(mqtool: Tool) -> None:
    """Goal: a command ends, and says that nothing was stored. Method: one copy of two that must be there is dead."""
    with Cluster(2, min_in_sync=2, segment_bytes=SEGMENT_BYTES) as own:
        own.wait_in_sync()
        mqtool("declare", "q", servers=own.servers)
        own.nodes["n2"].kill()
        outcome = mqtool("publish", "q", "--value", "x", "--timeout", "0.5", servers=own.servers)
        assert outcome.code == 3
        assert "nothing was stored" in outcome.err
        assert outcome.out == ""


def test_a_node_that_is_cut_off_is_read_from_when_that_is_asked_for(mqtool: Tool) -> None:
    """Goal: after a loss one sees what is left. Method: two of three are killed; when the third refuses reads,
    `consume` and `tail` get its answer with the option that the refusal names."""
    with Cluster(3, segment_bytes=SEGMENT_BYTES) as own:
        own.wait_in_sync()
        mqtool("declare", "q", servers=own.servers)
        mqtool("publish", "q", "--value", "left", servers=own.servers)
        own.wait_confirmed()
        for node in ("n1", "n2"):
            own.nodes[node].kill()
        left = own.nodes["n3"].client
        wait_for(lambda: refuses_reads(left, "n3"), timeout=30, what=lambda: "n3 does not know that it is alone")
        for reading in (("consume", "q", "--until-end"), ("tail", "q", "--no-follow")):
            read = mqtool(*reading, "--read-from", "n3", "--allow-stale-reads", servers=[left])
            assert (read.code, read.err) == (0, "")
            assert read.out.endswith("\tleft\n")


def refuses_reads(address: str, node: str) -> bool | None:
    """None while it answers: it may still think that it is in touch with the others."""
    with (
        Client(address, request_timeout_ms=300) as client,
        client.consumer("q", read_from=node, until="confirmed") as consumer,
    ):
        try:
            consumer.read(1, timeout_ms=5_000)
        except NotCurrent as error:
            return "allow_stale_reads" in error.message
    return None


@pytest.mark.parametrize("node", ["mirror", "n2"])
def test_mirrors_can_be_read_from(mqtool: Tool, queue: str, cluster: Cluster, node: str) -> None:
    """Goal: a mirror serves confirmed records. Method: read from it once it knows that they are."""
    mqtool("publish", queue, "--value", "copied")
    cluster.wait_confirmed()
    read = mqtool("consume", queue, "--read-from", node, "--max", "1")
    assert read.out.endswith("\tcopied\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["publish", "no-such-queue", "--value", "x"], 5, "mqtool declare no-such-queue"),
        (["consume", "no-such-queue", "--until-end"], 5, "mqtool declare no-such-queue"),
        (["find-offset", "no-such-queue", "2026-01-01"], 5, "mqtool declare no-such-queue"),
        (["publish", "q", "--value", "x", "--file", "y"], 2, "not both"),
        (["publish", "q", "--file", "/no/such/file"], 2, "No such file"),
        (["publish", "q", "--value", "x", "--confirm", "some"], 2, "confirm level 'some'"),
        (["publish", "q", "--value", "x", "--header", "x"], 2, "--header"),
        (["consume", "q", "--from", "yesterday"], 2, "is no time"),
        (["consume", "q", "--read-from", "n9", "--max", "1"], 2, "n9"),
        (["consume", "q", "--max", "0"], 2, "--max"),
        (["consume", "q", "--commit", "--until-end"], 2, "--group"),
        (["consume", "q", "--from", "99", "--until-end"], 7, "99 is behind 0"),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(mqtool: Tool, arguments: list[str], code: int, text: str) -> None:
    """Goal: every wrong call ends at once and says what is wrong. Method: one of each kind."""
    mqtool("declare", "q")
    outcome = mqtool(*arguments)
    assert outcome.code == code
    assert outcome.err.startswith("mqtool: ")
    assert outcome.err.count("\n") == 1
    assert text in outcome.err


def test_a_record_above_the_limit_is_refused_and_the_others_counted(mqtool: Tool, queue: str, tmp_path: Path) -> None:
    """Goal: what was confirmed before an error is told. Method: a line above max_record_bytes behind a good one."""
    file = tmp_path / "lines"
    file.write_bytes(b"good\n" + b"x" * (4 * 1024 * 1024 + 1) + b"\n")
    outcome = mqtool("publish", queue, "--file", str(file))
    assert outcome.code == 2
    assert "max_record_bytes" in outcome.err
    assert outcome.out.startswith(f"1 record confirmed in {queue}: queue offsets 0 to 0")
    assert mqtool("consume", queue, "--max", "1").out.endswith("\tgood\n")


def test_a_line_for_people_holds_its_shape() -> None:
    """Goal: no content breaks the columns. Method: tabs, line feeds, bytes that are no text, absent parts."""
    record = ConsumedRecord("q", 7, b"a\tb\n\xff\xc3\xa9", None, [("h", None), ("i", b"\xff")], 1_000, 5)
    assert record_line(record) == "7\t1970-01-01T00:00:00.001Z\t-\ta\\tb\\n\\xffé"
    assert record_fields(record) == {
        "queue": "q",
        "queue_offset": 7,
        "timestamp_us": 1_000,
        "append_time_us": 5,
        "key": None,
        "value_base64": base64.b64encode(b"a\tb\n\xff\xc3\xa9").decode(),
        "headers": [{"name": "h", "value": None}, {"name": "i", "value_base64": "/w=="}],
    }
