"""`mqtool dev`: a cluster to look around in, one at a time, whose data stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.errors import DirectoryInUse

pytestmark = pytest.mark.process

MQTOOL = [sys.executable, "-m", "mirrorlog.tools.main"]


@contextmanager
def dev(directory: Path, *options: str) -> Iterator[str]:
    """What it says; ended by Ctrl-C, with exit code 0."""
    nodes = () if "--nodes" in options else ("--nodes", "1")
    command = [*MQTOOL, "dev", "--dir", str(directory), *nodes, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C here ends them" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        try:
            yield said
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


def servers(said: str) -> list[str]:
    (line,) = (line for line in said.splitlines() if "MIRRORLOG_SERVERS=" in line)
    return line.partition("=")[2].split(",")


@pytest.mark.long
def test_it_says_what_to_try_once_and_goes_on_with_what_is_there(tmp_path: Path) -> None:
    """Goal: one command for a first look. Method: start it; a second one is told where; declare a queue; again, it is
    there; with --fresh it is not."""
    with dev(tmp_path) as said:
        assert "/page/" in said
        with Client(*servers(said)) as client:
            client.admin.declare("hello")
        second = subprocess.run(
            [*MQTOOL, "dev", "--dir", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (second.returncode, second.stderr.count("\n")) == (DirectoryInUse.exit_code, 1)
        assert servers(said)[0] in second.stderr
    for options, queues in (((), ["hello"]), (("--fresh",), [])):
        with dev(tmp_path, *options) as said, Client(*servers(said)) as client:
            assert [each.name for each in client.admin.metadata().queues] == queues


@pytest.mark.long
def test_a_node_that_was_forgotten_begins_anew(tmp_path: Path) -> None:
    """Goal: what the questions of the first day end with does not end the nodes for good. Method: one of two is
    forgotten; at the next start it is said, its directory set aside, and both nodes have the queue."""
    with dev(tmp_path, "--nodes", "2") as said, Client(*servers(said)) as client:
        client.admin.declare("hello")
        client.admin.forget_node("n2", force=True)
    with dev(tmp_path, "--nodes", "2") as said, Client(*servers(said)) as client:
        aside = tmp_path / "cluster" / "n2.forgotten-1"
        assert f"node n2 was forgotten by its cluster, and begins anew; what it had is in {aside}" in said
        assert aside.is_dir()
        found = client.admin.metadata()
        assert [each.node_id for each in found.nodes] == ["n1", "n2"]
        assert [each.name for each in found.queues] == ["hello"]
