"""`mqtool tail`: the last batches of a directory, and the last records of a queue on real nodes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog.errors import BadInput
from mirrorlog.testing import Cluster
from mirrorlog.tools.consume import _while_stdout_is_read
from mirrorlog.tools.main import app
from tests.tools.conftest import Tool
from tests.tools.logs import contents, make_past, overwrite

RUNNER = CliRunner()


def tail(directory: Path, *options: str) -> list[str]:
    result = RUNNER.invoke(app, ["tail", "--dir", str(directory), *options])
    assert result.exit_code == 0, result.exception
    return result.stdout.splitlines()


@pytest.mark.parametrize("lines", [0, 1, 10, 70, 10_000])
def test_the_last_batches_of_a_directory_are_printed(tmp_path: Path, lines: int) -> None:
    """Goal: as many as asked for, over as many files as that takes. Method: none, some of the last file, of several,
    and more than there are; nothing on disk changes."""
    maker = make_past(tmp_path)
    before = contents(tmp_path)
    found = [json.loads(line) for line in tail(tmp_path, "-n", str(lines), "--json")]
    expected = [each.log_offset for each in maker.headers][len(maker.headers) - min(lines, len(maker.headers)) :]
    assert [each["log_offset"] for each in found[:-1]] == expected
    assert found[-1]["kind"] == "end"
    assert found[-1]["end"] == maker.headers[-1].next_log_offset
    text = tail(tmp_path, "-n", str(lines))
    assert len(text) == len(expected) + 3
    assert text[-1].startswith(f"end {found[-1]['end']}, flushed ")
    assert contents(tmp_path) == before


def test_a_torn_tail_is_named_behind_the_batches(tmp_path: Path) -> None:
    """Goal: what a crash left is seen. Method: spoil the last batch."""
    maker = make_past(tmp_path)
    overwrite(tmp_path, maker.headers[-1].log_offset + 200, b"!")
    text = tail(tmp_path, "-n", "3")
    assert text[-1].startswith(f"no batch at the end, {maker.headers[-1].log_offset}..")
    assert text[-3].split()[0] == str(maker.headers[-2].log_offset)


@pytest.mark.parametrize(
    "arguments", [[], ["q", "--dir", "DIR"], ["--dir", "DIR", "--follow"], ["--dir", "DIR", "-n", "-1"]]
)
def test_a_call_that_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    """Goal: queue or directory, and a directory is not followed. Method: each wrong call."""
    make_past(tmp_path)
    result = RUNNER.invoke(app, ["tail", *(str(tmp_path) if each == "DIR" else each for each in arguments)])
    assert result.exit_code != 0
    assert isinstance(result.exception, BadInput | SystemExit)


# --- A queue ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(mqtool: Tool, request: pytest.FixtureRequest) -> str:
    """A queue with the records 0 to 24."""
    name: str = request.node.name
    assert mqtool("declare", name).code == 0
    assert mqtool("publish", name, *(part for number in range(25) for part in ("--value", str(number)))).code == 0
    return name


@pytest.fixture
def environment(cluster: Cluster) -> dict[str, str]:
    return {**os.environ, "MIRRORLOG_SERVERS": ",".join(cluster.servers)}


COMMAND = [sys.executable, "-m", "mirrorlog.tools.main", "tail"]


@pytest.mark.process
def test_the_last_records_are_printed_and_that_is_all(mqtool: Tool, queue: str) -> None:
    """Goal: a look at a queue's end. Method: ten by default, as many as asked for, more than there are, none."""

    def values(*options: str) -> list[str]:
        return [each["value"] for each in mqtool("tail", queue, "--no-follow", "--json", *options).json_lines]

    assert values() == [str(number) for number in range(15, 25)]
    assert values("-n", "2") == ["23", "24"]
    assert values("-n", "1000") == [str(number) for number in range(25)]
    assert values("-n", "0") == []
    assert mqtool("tail", queue, "-F", "-n", "1").out == "24\t-\t-\t24\n"


@pytest.mark.process
def test_new_records_follow_until_ctrl_c(mqtool: Tool, queue: str, environment: dict[str, str]) -> None:
    """Goal: like `tail -f`. Method: a process that prints the last record, then what is published then; SIGINT."""
    with subprocess.Popen(
        [*COMMAND, queue, "-n", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"24\t-\t-\t24\n"
        mqtool("publish", queue, "--value", "new")
        assert reader.stdout.readline() == b"25\t-\t-\tnew\n"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(30) == 0
        assert reader.stderr.read() == b""


@pytest.mark.process
def test_a_closed_pipe_ends_it_though_nothing_comes(queue: str, environment: dict[str, str]) -> None:
    """Goal: `mqtool tail q | head -1` ends. Method: close the pipe and publish nothing."""
    with subprocess.Popen(
        [*COMMAND, queue, "-n", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"24\t-\t-\t24\n"
        reader.stdout.close()
        assert reader.wait(30) == 1
        assert reader.stderr.read() == b""


@pytest.mark.process
def test_an_unknown_queue_is_one_line(mqtool: Tool) -> None:
    """Goal: as every command. Method: a queue that nobody declared."""
    outcome = mqtool("tail", "no-such-queue")
    assert (outcome.code, outcome.err.count("\n")) == (5, 1)


async def test_an_error_of_the_work_comes_through() -> None:
    """Goal: what ends the reading is told as it is. Method: work that fails at once."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise BadInput("so")

    with pytest.raises(BadInput, match="so"):
        await _while_stdout_is_read(fail())
