"""A newcomer's day: what the first pages of docs/ tell to paste is pasted, in their order, on three real nodes.

Python blocks of a page share their names and one loop, as in `python -m asyncio`. A block of text right behind one is
what it prints; `…` in it stands for anything.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from mirrorlog.testing import Cluster, Node
from mirrorlog.tools.main import main

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
COMING_FROM: Final = tuple(f"coming-from/{system}" for system in ("rabbitmq", "kafka", "sqs", "nats"))
DAY: Final = ("start/tutorial", "use/streams", "use/work-queues", "use/exchanges", *COMING_FROM, "start/questions")
"""In this order: the tutorial kills a node, which a question forgets at the end."""
BEGINNINGS: Final = {"use/work-queues", "use/exchanges"}
"""Pages of which what stands before their second heading is tried."""
ALONE: Final = {"start/questions", *COMING_FROM}
"""Pages whose blocks need nothing of one another."""
WITH_TLS: Final = "How does a client use TLS?"
"""This one has a cluster of its own."""
NOT_RUN: Final = {
    "pip install": "the tests run on what is installed",
    "mqtool dev": "the nodes are the test's own, in the place where it has them",
    "import pika": "for a broker of RabbitMQ's",
    "from aiokafka": "for a broker of Kafka's",
    "import boto3": "for an account of Amazon's",
    "import nats": "for a server of NATS'",
}
"""Blocks that begin so, with the reason."""
_BLOCK: Final = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$(?:\s*^```text\n(?P<printed>.*?)^```$)?", re.M | re.S)
_FOR_SHELL: Final = set("|<>&;$`*")
_SERVER: Final = "127.0.0.1:7401"
_MQTOOL: Final = f'#!/bin/sh\nexec "{sys.executable}" -m mirrorlog.tools.main "$@"\n'

pytestmark = pytest.mark.process


class Desk:
    """A newcomer's machine: a home of its own, the addresses of the nodes in its environment."""

    def __init__(self, home: Path, servers: list[str]) -> None:
        self.home = home
        self._servers = servers
        (home / "bin").mkdir()
        tool = home / "bin/mqtool"
        tool.write_text(_MQTOOL)
        tool.chmod(0o755)
        self.environment = os.environ | {
            "HOME": str(home),
            "MIRRORLOG_SERVERS": ",".join(servers),
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def follow(self, page: str, runner: asyncio.Runner, *, only: str = "", without: str | None = None) -> None:
        """Raises AssertionError where a page is not as it tells."""
        names: dict[str, Any] = {}
        for block in to_try(page, only=only, without=without):
            where = f"docs/{page}.md, {block['text']!r}"
            with contextlib.redirect_stdout(io.StringIO()) as output:
                if block["kind"] == "sh":
                    self.shell(where, block["text"])
                else:
                    self.python(where, block["text"], {} if page in ALONE else names, runner)
            printed = " ".join(output.getvalue().split())
            if block["printed"] is not None:
                assert re.fullmatch(pattern(block["printed"]), printed), f"{where} printed\n{output.getvalue()}"

    def python(self, where: str, text: str, names: dict[str, Any], runner: asyncio.Runner) -> None:
        text = text.replace(f'"{_SERVER}"', ", ".join(f'"{server}"' for server in self._servers))
        waits = eval(compile(text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(waits):
            runner.run(_wait(waits))

    def shell(self, where: str, text: str) -> None:
        """Line by line: what is `mqtool` alone in this process, for that is quicker, what else there is by bash."""
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] == "mqtool" and not _FOR_SHELL & set(line):
                code = mqtool(words[1:])
            else:
                command = ["bash", "-euo", "pipefail", "-c", line]
                run = subprocess.run(
                    command, env=self.environment, stdout=subprocess.PIPE, text=True, timeout=60, check=False
                )
                print(run.stdout)
                code = run.returncode
            expected = {0, 1} if words[:2] == ["mqtool", "doctor"] else {0}  # 1: something stands still
            assert code in expected, f"{where}: {line} ended with {code}"


def to_try(page: str, *, only: str = "", without: str | None = None) -> list[re.Match[str]]:
    """Its blocks; of the section with a heading `only`, or of all but the one `without`."""
    sections = re.split(r"^## ", (DOCS / f"{page}.md").read_text(), flags=re.M)
    if page in BEGINNINGS:
        del sections[1:]
    told = [each for each in sections if each.startswith(only) and (without is None or not each.startswith(without))]
    found = [block for block in _BLOCK.finditer("\n".join(told)) if block["kind"] in ("python", "sh")]
    assert found, f"{page} has nothing to try"
    return [block for block in found if not block["text"].startswith(tuple(NOT_RUN))]


def mqtool(words: list[str]) -> int:
    """Its exit code; what it says of an error is on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


async def _wait(waits: Awaitable[object]) -> None:
    await waits


def pattern(printed: str) -> str:
    """Of what a page says is printed, spaces as they come."""
    return ".*".join(re.escape(" ".join(part.split())) for part in printed.split("…")).replace("\\ .*", ".*")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """Where `mqtool dev` has its nodes, started by the command, so that a line of the tutorial finds the one that it
    kills."""
    data = tmp_path / ".local/share/mirrorlog-dev/cluster"
    with patch.object(Node, "popen", subprocess.Popen), Cluster(3, data_dir=data, logs=()) as cluster:
        cluster.wait_in_sync()
        found = Desk(tmp_path, cluster.servers)
        monkeypatch.setenv("MIRRORLOG_SERVERS", found.environment["MIRRORLOG_SERVERS"])
        monkeypatch.chdir(tmp_path)
        yield found


def test_the_first_day_goes_as_the_pages_tell_it(desk: Desk) -> None:
    """Paste every block of the first pages."""
    with asyncio.Runner() as runner:
        for page in DAY:
            desk.follow(page, runner, without=WITH_TLS)


def test_a_client_speaks_tls_as_the_page_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the authority's file is enough."""
    with Cluster(1, tls="server") as cluster, asyncio.Runner() as runner:
        found = Desk(tmp_path, cluster.servers)
        shutil.copy(cluster.certificates.ca, tmp_path / "ca.pem")
        monkeypatch.setenv("MIRRORLOG_SERVERS", cluster.servers[0])
        monkeypatch.chdir(tmp_path)
        found.follow("start/questions", runner, only=WITH_TLS)
